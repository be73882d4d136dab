// The comparison: installs what can be installed, measures each in turn, and writes down what came out.
import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import os from "node:os";
import { parseArgs } from "node:util";
import { page, summary } from "./page.mjs";
import { drawPlot } from "./plot.mjs";
import { peers, redrive } from "./peers.mjs";
import { home, measure, say } from "./tools.mjs";

const { values: flags } = parseArgs({
  options: {
    only: { type: "string" },
    redrive: { type: "string" },
    rounds: { type: "string", default: "3" },
    seconds: { type: "string", default: "5" },
    publish: { type: "boolean", default: false },
    page: { type: "boolean", default: false },
  },
});

if (flags.page) {
  const json = "docs/performance.json";
  writeFileSync("docs/performance.md", page(existsSync(json) ? JSON.parse(readFileSync(json, "utf8")) : null));
  process.exit(0);
}

const wanted = flags.only?.split(",");
const unknown = wanted?.find((name) => !peers.some((peer) => peer.id === name));
if (unknown) {
  console.error(`script/bench-peers: there is no ${unknown}; there are ${peers.map((peer) => peer.id).join(", ")}`);
  process.exit(2);
}
const chosen = [redrive(flags.redrive), ...peers.filter((peer) => !wanted || wanted.includes(peer.id))];
mkdirSync(home, { recursive: true });
rmSync(`${home}/data`, { recursive: true, force: true });

// Everything is there before anything is measured: a compiler beside it would spoil the figures.
const missing = [];
const ready = [];
for (const peer of chosen) {
  say(`installing ${peer.name}`);
  try {
    await peer.install();
    ready.push({ peer, version: peer.version() });
  } catch (error) {
    const reason = `could not be installed: ${error.message}`;
    say(`${peer.name} ${reason}`);
    missing.push({ name: peer.name, reason });
  }
}

const results = ready.flatMap(({ peer, version }) =>
  peer.variants.map((variant) => ({
    name: peer.name,
    how: variant.how,
    durability: variant.durability,
    fsynced: variant.fsynced,
    version,
    target: peer.target,
    jobs_per_second: [],
    failures: [],
  })),
);
const find = (peer, variant) => results.find((row) => row.name === peer.name && row.how === variant.how && row.durability === variant.durability);
for (let round = 1; round <= Number(flags.rounds); round++) {
  for (const { peer } of ready) {
    for (const variant of peer.variants) {
      const row = find(peer, variant);
      const directory = `${home}/data`;
      mkdirSync(directory, { recursive: true });
      let server;
      try {
        server = await variant.start?.(directory);
        const answer = await measure(variant.client(server?.address, flags.seconds));
        row.jobs_per_second.push(Math.round(peer.rate ? peer.rate(answer) : answer.jobs_per_second));
        say(`${round}/${flags.rounds} ${peer.name}, ${variant.how}, ${variant.durability}: ${row.jobs_per_second.at(-1)} jobs/s`);
      } catch (error) {
        row.failures.push(error.message);
        say(`${round}/${flags.rounds} ${peer.name}, ${variant.how}, ${variant.durability}: FAILED: ${error.message}`);
      } finally {
        await server?.stop();
        rmSync(directory, { recursive: true, force: true });
      }
    }
  }
}

const median = (values) => {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted.length ? (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2 : null;
};
for (const row of results) row.median = median(row.jobs_per_second);
const report = {
  measured_at: new Date().toISOString().slice(0, 10),
  machine: {
    cores: os.cpus().length,
    cpu: os.cpus()[0]?.model ?? "unknown",
    memory_gib: Math.round(os.totalmem() / 2 ** 30),
    system: `${os.type()} ${os.release()}`,
    filesystem: spawnSync("stat", ["-f", "-c", "%T", home], { encoding: "utf8" }).stdout.trim(),
  },
  rounds: Number(flags.rounds),
  seconds: Number(flags.seconds),
  results,
  missing,
};
writeFileSync(`${home}/results.json`, JSON.stringify(report, null, 2) + "\n");
const places = [home];
if (flags.publish) {
  mkdirSync("docs", { recursive: true });
  writeFileSync("docs/performance.json", JSON.stringify(report, null, 2) + "\n");
  writeFileSync("docs/performance.md", page(report));
  places.push("docs");
}
for (const place of places) drawPlot(report, `${place}/performance.png`);
console.log(page(report).split("<!-- table -->")[1].trim());
console.log(`\n${summary(report)}`);
console.log(`\nResults: ${places.map((place) => `${place}/`).join(" and ")}`);
const failed = results.some((row) => row.failures.length > 0) || missing.some(({ name }) => name === "redrive");
process.exit(failed ? 1 : 0);
