// A long run at a steady load: measured window by window, and drawn.
import { mkdirSync, readdirSync, rmSync, statSync, writeFileSync } from "node:fs";
import path from "node:path";
import { parseArgs } from "node:util";
import { apt, freePort, measure, run, say, start } from "../peers/tools.mjs";

const WINDOW_SECONDS = 15;

const { values: flags } = parseArgs({
  options: {
    minutes: { type: "string", default: "15" },
    redrive: { type: "string" },
    publish: { type: "boolean", default: false },
  },
});

const home = path.resolve("target/soak");
const data = `${home}/data`;
// The tools keep a server's log there.
mkdirSync("target/peers", { recursive: true });
mkdirSync(home, { recursive: true });
rmSync(data, { recursive: true, force: true });
if (!flags.redrive) run("cargo", ["build", "--release", "--locked"], { stdio: ["ignore", "pipe", "inherit"] });
const redrive = path.resolve(flags.redrive ?? `${process.env.CARGO_TARGET_DIR ?? "target"}/release/redrive`);

const port = await freePort();
const server = await start(port, redrive, ["serve", "--listen", `127.0.0.1:${port}`, "--data", data, "--log-level", "warn"]);
const load = (seconds, ...more) =>
  measure([redrive, "bench", "--address", `127.0.0.1:${port}`, "--pid", String(server.pid), "--mode", "stream", "-o", "json",
    "--duration", `${seconds}s`, "--warmup", "0s", ...more]);
const bytes = () => readdirSync(data).reduce((sum, name) => sum + statSync(`${data}/${name}`).size, 0);

const capacity = (await load(10)).median.jobs_per_second;
const rate = Math.round(capacity / 2);
say(`capacity ${Math.round(capacity)} jobs/s; from here on ${rate}`);

const windows = [];
const count = Math.round((Number(flags.minutes) * 60) / WINDOW_SECONDS);
for (let at = 1; at <= count; at += 1) {
  const { redrive: figures } = (await load(WINDOW_SECONDS, "--rate", String(rate))).rounds[0];
  const window = {
    minute: (at * WINDOW_SECONDS) / 60,
    jobs_per_second: figures.jobs_per_second,
    enqueue_p99_ms: figures.enqueue.p99_us / 1000,
    settle_p99_ms: figures.settle.p99_us / 1000,
    delivery_p99_ms: figures.delivery.p99_us / 1000,
    rss_mb: figures.process.rss_bytes / 1e6,
    files_mb: bytes() / 1e6,
  };
  windows.push(window);
  const shown = Object.entries(window).map(([name, value]) => `${name} ${value.toFixed(2)}`);
  say(`${at}/${count} ${shown.join("  ")}`);
}
await server.stop();

// Whether the last third is higher than the first.
const third = Math.max(1, Math.floor(windows.length / 3));
const median = (list) => [...list].sort((a, b) => a - b)[Math.floor(list.length / 2)];
const trend = (field) => {
  const values = windows.map((window) => window[field]);
  return { first_third: median(values.slice(0, third)), last_third: median(values.slice(-third)), highest: Math.max(...values) };
};
const fields = ["rss_mb", "files_mb", "enqueue_p99_ms", "settle_p99_ms", "delivery_p99_ms"];
const trends = Object.fromEntries(fields.map((field) => [field, trend(field)]));
const report = { measured_at: new Date().toISOString().slice(0, 10), capacity, rate, minutes: Number(flags.minutes), trends, windows };
writeFileSync(`${home}/soak.json`, `${JSON.stringify(report, null, 1)}\n`);
for (const [field, { first_third, last_third, highest }] of Object.entries(trends)) {
  say(`${field}: median of the first third ${first_third.toFixed(2)}, of the last ${last_third.toFixed(2)}, highest ${highest.toFixed(2)}`);
}
draw(`${home}/soak.png`);
if (flags.publish) {
  run("cp", [`${home}/soak.json`, `${home}/soak.png`, "docs/"]);
}
process.exit(0);

function draw(png) {
  apt("gnuplot-nox", "gnuplot");
  writeFileSync(`${home}/soak.dat`, windows.map((window) => Object.values(window).join(" ")).join("\n") + "\n");
  const plot = `
    set terminal pngcairo noenhanced size 1000,720 font "sans,10"
    set output "${png}"
    set multiplot layout 2,1 title "${rate} jobs/s for ${flags.minutes} minutes, half of capacity, fsync before every answer"
    set grid
    set xlabel "minutes"
    set key outside right
    set yrange [0:*]
    set ylabel "p99, ms"
    plot "${home}/soak.dat" using 1:3 with lines title "enqueue", "" using 1:4 with lines title "settle", "" using 1:5 with lines title "delivery"
    set ylabel "MB"
    plot "${home}/soak.dat" using 1:6 with lines title "memory", "" using 1:7 with lines title "files"
    unset multiplot
  `;
  writeFileSync(`${home}/soak.gp`, plot);
  run("gnuplot", [`${home}/soak.gp`]);
}
