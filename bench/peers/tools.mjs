// Programs: run, installed, started, waited for and stopped.
import { spawn, spawnSync } from "node:child_process";
import { closeSync, openSync, readFileSync } from "node:fs";
import net from "node:net";
import path from "node:path";

export const home = path.resolve("target/peers");
export const bin = `${home}/bin`;

export const say = (text) => console.error(`-- ${text}`);

// The end of what a program said, without what belongs to this machine: its paths, and the registries that it uses.
const lastWords = (text) => {
  const lines = text.trim().split("\n").slice(-3).map((line) => line.trim());
  return lines.join(" / ").replaceAll(/https?:\/\/[^\s/]+\//g, "").replaceAll(`${path.resolve()}/`, "");
};

// The output of a program that must succeed; otherwise an error with its last words.
export function run(program, args, options = {}) {
  const done = spawnSync(program, args, { encoding: "utf8", maxBuffer: 1 << 26, ...options });
  if (done.error) throw new Error(`${program}: ${done.error.message}`);
  if (done.status !== 0) {
    const words = lastWords(done.stderr || done.stdout);
    throw new Error(`${path.basename(program)} ${args[0]}: ${words || `exit code ${done.status}`}`);
  }
  return done.stdout;
}

// What was started and has not ended. Each is a process group, with what it started itself; none outlives this program.
const running = new Set();
const signal = (child, name) => {
  try {
    process.kill(-child.pid, name);
  } catch {
    // It has ended.
  }
};
process.on("exit", () => running.forEach((child) => signal(child, "SIGKILL")));
for (const name of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(name, () => process.exit(1));

// A program in the background, and the promise of its end.
function launch(program, args, options) {
  const child = spawn(program, args, { detached: true, ...options });
  running.add(child);
  const end = new Promise((resolve) => {
    child.once("error", (error) => resolve(error.message));
    child.once("close", (code, signal) => resolve(code === 0 ? null : `ended with ${code ?? signal}`));
  }).finally(() => {
    // What it started goes with it.
    signal(child, "SIGKILL");
    running.delete(child);
  });
  return { child, end };
}

// What a client prints that must succeed.
export async function measure([program, ...args]) {
  const { child, end } = launch(program, args, { stdio: ["ignore", "pipe", "pipe"] });
  const [out, err] = [[], []];
  child.stdout.on("data", (data) => out.push(data));
  child.stderr.on("data", (data) => err.push(data));
  const killed = setTimeout(() => signal(child, "SIGKILL"), 120_000);
  const failure = await end;
  clearTimeout(killed);
  if (failure) throw new Error(`the client ${failure}: ${lastWords(Buffer.concat(err).toString())}`);
  return JSON.parse(Buffer.concat(out).toString());
}

const has = (program) => spawnSync("sh", ["-c", `command -v ${program}`]).status === 0;

// A Debian package that has the program, which may lie where only root looks.
export function apt(pack, program = pack) {
  if (has(program) || has(`/usr/sbin/${program}`)) return;
  const root = process.getuid() === 0 ? [] : ["sudo", "-n"];
  const call = (...args) => run([...root, "apt-get"][0], [...root, "apt-get", "-qq", ...args].slice(1));
  call("update");
  // Its service must not start by itself: it would take part of the machine.
  const quiet = { env: { ...process.env, DEBIAN_FRONTEND: "noninteractive", RUNLEVEL: "1" } };
  run([...root, "apt-get"][0], [...root, "apt-get", "-qq", "install", "--yes", "--no-install-recommends", pack].slice(1), quiet);
}

// A program of a Go module.
export function goInstall(what) {
  run("go", ["install", what], { env: { ...process.env, GOBIN: bin } });
}

// One of our own clients in Go.
export function goClient(name) {
  run("go", ["build", "-o", `${bin}/client-${name}`, `./${name}`], { cwd: "bench/peers" });
}

export function freePort() {
  return new Promise((resolve, reject) => {
    const server = net.createServer();
    server.on("error", reject);
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}

const answers = (port) =>
  new Promise((resolve) => {
    const socket = net.connect(port, "127.0.0.1");
    const end = (there) => {
      socket.destroy();
      resolve(there);
    };
    socket.once("connect", () => end(true)).once("error", () => end(false));
  });

// Runs a server until it listens on its port.
export async function start(port, program, args, options = {}) {
  const log = `${home}/server.log`;
  const out = openSync(log, "w");
  const { child, end } = launch(program, args, { stdio: ["ignore", out, out], ...options });
  closeSync(out);
  let ended = false;
  end.then(() => (ended = true));
  const stop = async () => {
    signal(child, "SIGTERM");
    const killed = setTimeout(() => signal(child, "SIGKILL"), 10_000);
    await end;
    clearTimeout(killed);
  };
  const deadline = Date.now() + 60_000;
  while (!(await answers(port))) {
    if (ended || Date.now() > deadline) {
      await stop();
      throw new Error(`${path.basename(program)} does not listen: ${lastWords(readFileSync(log, "utf8"))}`);
    }
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  return { address: `127.0.0.1:${port}`, pid: child.pid, stop };
}
