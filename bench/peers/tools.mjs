// Programs: run, installed, started, waited for and stopped.
import { spawn, spawnSync } from "node:child_process";
import { closeSync, openSync, readFileSync } from "node:fs";
import net from "node:net";
import path from "node:path";

export const home = path.resolve("target/peers");
export const bin = `${home}/bin`;

export const say = (text) => console.error(`-- ${text}`);

// The output of a program that must succeed; otherwise an error with its last words.
export function run(program, args, options = {}) {
  const done = spawnSync(program, args, { encoding: "utf8", maxBuffer: 1 << 26, ...options });
  if (done.error) throw new Error(`${program}: ${done.error.message}`);
  if (done.status !== 0) {
    const words = (done.stderr || done.stdout).trim().split("\n").slice(-3).join(" / ");
    throw new Error(`${program} ${args.slice(0, 3).join(" ")}: ${words || `exit code ${done.status}`}`);
  }
  return done.stdout;
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
  const child = spawn(program, args, { stdio: ["ignore", out, out], ...options });
  closeSync(out);
  let ended = false;
  const end = new Promise((resolve) => {
    child.once("exit", resolve);
    child.once("error", resolve);
  }).then(() => (ended = true));
  const deadline = Date.now() + 60_000;
  while (!(await answers(port))) {
    if (ended || Date.now() > deadline) {
      child.kill("SIGKILL");
      const words = readFileSync(log, "utf8").trim().split("\n").slice(-3).join(" / ");
      throw new Error(`${program} does not listen: ${words}`);
    }
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  const stop = async () => {
    child.kill("SIGTERM");
    const killed = setTimeout(() => child.kill("SIGKILL"), 10_000);
    await end;
    clearTimeout(killed);
  };
  return { address: `127.0.0.1:${port}`, stop };
}
