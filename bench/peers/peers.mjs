// Who is compared, how each is installed and started, and what it promises when it answers.
import { writeFileSync } from "node:fs";
import { apt, bin, freePort, goClient, goInstall, home, run, start } from "./tools.mjs";

const natsServer = "v2.15.2";
const seppServer = "0.1.1";

// redrive, from a binary that is there or from one that is built.
export function redrive(given) {
  const program = given ?? `${process.env.CARGO_TARGET_DIR ?? "target"}/release/redrive`;
  const bench = (...args) => (_, seconds) => [program, "bench", "-o", "json", "--duration", `${seconds}s`, "--data", `${home}/data`, ...args];
  const fsync = { durability: "fsync before every answer", fsynced: true };
  return {
    id: "redrive",
    name: "redrive",
    install: () => given ?? run("cargo", ["build", "--release", "--locked"]),
    version: () => run(program, ["--version"]).trim().split(" ").at(-1),
    rate: (answer) => answer.median.jobs_per_second,
    variants: [
      { how: "streams, 500 per call", ...fsync, client: bench("--mode", "stream", "--batch", "500") },
      { how: "streams, 100 per call", ...fsync, client: bench("--mode", "stream") },
      { how: "batches of 100", ...fsync, client: bench("--mode", "batch") },
      { how: "one job per call, 64 callers", ...fsync, client: bench("--mode", "unary") },
      { how: "streams, 500 per call", durability: "no fsync (--durability none)", fsynced: false, client: bench("--mode", "stream", "--batch", "500", "--durability", "none") },
    ],
  };
}

const client = (name) => (address, seconds) => [`${bin}/client-${name}`, "--address", address, "--seconds", seconds];

const redisServer = (fsync) => async (directory) => {
  const port = await freePort();
  const args = ["--port", port, "--bind", "127.0.0.1", "--dir", directory, "--save", "", "--appendonly", "yes", "--appendfsync", fsync];
  return start(port, "redis-server", args.map(String));
};
const redisVersion = () => run("redis-server", ["--version"]).match(/v=(\S+)/)[1];
const onRedis = (how, client) => [
  { how, durability: "Redis, appendfsync always", fsynced: true, start: redisServer("always"), client },
  { how, durability: "Redis, appendfsync everysec", fsynced: false, start: redisServer("everysec"), client },
];

const natsWith = (sync) => async (directory) => {
  const port = await freePort();
  const config = `${directory}/nats.conf`;
  writeFileSync(config, `listen: "127.0.0.1:${port}"\njetstream { store_dir: "${directory}", sync_interval: ${sync} }\n`);
  return start(port, `${bin}/nats-server`, ["-c", config]);
};

const seppWith = (mode) => async (directory) => {
  const port = await freePort();
  const env = {
    ...process.env,
    SEPP_SERVER__LISTEN_ADDR: `127.0.0.1:${port}`,
    SEPP_SERVER__DB_PATH: `${directory}/sepp`,
    SEPP_STORAGE__PERSIST_MODE: mode,
    SEPP_ADMIN__ENABLED: "false",
  };
  return start(port, `${bin}/sepp`, [], { env, cwd: directory });
};
const seppClient = (callers, batch) => (address, seconds) => [`${home}/sepp/release/redrive-bench-sepp`, "--address", address, "--seconds", seconds, "--callers", callers, "--batch", batch];

async function rabbitmq(directory) {
  const [port, epmd] = [await freePort(), await freePort()];
  const env = {
    ...process.env,
    HOME: directory,
    RABBITMQ_NODENAME: "redrive-bench@localhost",
    RABBITMQ_NODE_IP_ADDRESS: "127.0.0.1",
    RABBITMQ_NODE_PORT: String(port),
    RABBITMQ_DIST_PORT: String(await freePort()),
    RABBITMQ_MNESIA_BASE: directory,
    RABBITMQ_LOG_BASE: directory,
    RABBITMQ_LOGS: "-",
    RABBITMQ_ENABLED_PLUGINS_FILE: `${directory}/plugins`,
    // A name server of its own: one that runs already belongs to another program.
    ERL_EPMD_PORT: String(epmd),
    ERL_EPMD_ADDRESS: "127.0.0.1",
  };
  writeFileSync(`${directory}/plugins`, "[].\n");
  const names = await start(epmd, "epmd", ["-port", String(epmd), "-address", "127.0.0.1"]);
  try {
    const server = await start(port, "/usr/lib/rabbitmq/bin/rabbitmq-server", [], { env, cwd: directory });
    return {
      address: server.address,
      stop: async () => {
        await server.stop();
        await names.stop();
      },
    };
  } catch (error) {
    await names.stop();
    throw error;
  }
}

const beanstalkd = (...flags) => async (directory) => {
  const port = await freePort();
  return start(port, "beanstalkd", ["-l", "127.0.0.1", "-p", String(port), ...flags.map((flag) => flag.replace("DIR", directory))]);
};

// `target`: how many times a peer's rate redrive means to reach.
export const peers = [
  {
    id: "beanstalkd",
    name: "beanstalkd",
    target: 1,
    install: () => {
      apt("beanstalkd");
      goClient("beanstalkd");
    },
    version: () => run("beanstalkd", ["-v"]).trim().split(" ").at(-1),
    variants: [
      { how: "64 producers, 32 workers", durability: "log, fsync each (-f0)", fsynced: true, start: beanstalkd("-b", "DIR", "-f0"), client: client("beanstalkd") },
      { how: "64 producers, 32 workers", durability: "none (memory)", fsynced: false, start: beanstalkd(), client: client("beanstalkd") },
    ],
  },
  {
    id: "rabbitmq",
    name: "RabbitMQ",
    target: 4,
    install: () => {
      apt("rabbitmq-server");
      goClient("rabbitmq");
    },
    version: () => run("dpkg-query", ["-W", "-f", "${Version}", "rabbitmq-server"]).split("-")[0],
    variants: [
      { how: "2 × 1,000 publishes out, acks of up to 100", durability: "quorum queue of one node, fsync before the confirm", fsynced: true, start: rabbitmq, client: client("rabbitmq") },
    ],
  },
  {
    id: "nats",
    name: "NATS JetStream",
    target: 2,
    install: () => {
      goInstall(`github.com/nats-io/nats-server/v2@${natsServer}`);
      goClient("nats");
    },
    version: () => natsServer.slice(1),
    variants: [
      { how: "4,000 publishes out, ack each", durability: "file, fsync each (sync_interval: always)", fsynced: true, start: natsWith("always"), client: client("nats") },
      { how: "4,000 publishes out, ack each", durability: "file, fsync every 2 min (default)", fsynced: false, start: natsWith('"2m"'), client: client("nats") },
    ],
  },
  {
    id: "faktory",
    name: "Faktory",
    target: 1,
    install: () => {
      goInstall(`github.com/contribsys/faktory/cmd/faktory@latest`);
      apt("redis-server");
      goClient("faktory");
    },
    version: () => run("go", ["version", "-m", `${bin}/faktory`]).match(/\smod\s+\S+\s+v(\S+)/)[1],
    variants: [
      {
        how: "32 producers, 32 workers",
        durability: "its own Redis, a snapshot every 30 s",
        fsynced: false,
        start: async (directory) => {
          const [port, web] = [await freePort(), await freePort()];
          const args = ["-b", `127.0.0.1:${port}`, "-w", `127.0.0.1:${web}`, "-e", "development"];
          return start(port, `${bin}/faktory`, args, { env: { ...process.env, HOME: directory }, cwd: directory });
        },
        client: client("faktory"),
      },
    ],
  },
  {
    id: "asynq",
    name: "asynq",
    target: 1,
    install: () => {
      apt("redis-server");
      goClient("asynq");
    },
    version: () => {
      const own = run("go", ["list", "-m", "-f", "{{.Version}}", "github.com/hibiken/asynq"], { cwd: "bench/peers" });
      return `${own.trim().slice(1)} on Redis ${redisVersion()}`;
    },
    variants: onRedis("32 producers, 64 workers", client("asynq")),
  },
  {
    id: "bullmq",
    name: "BullMQ",
    target: 10,
    install: () => {
      apt("redis-server");
      // Not `npm ci`: that insists on optional packages for other systems, which not every registry has.
      run("npm", ["install", "--no-save", "--silent", "--no-audit", "--no-fund"], { cwd: "bench/peers/bullmq" });
    },
    version: () => {
      const own = JSON.parse(run("npm", ["ls", "--json", "bullmq"], { cwd: "bench/peers/bullmq" }));
      return `${own.dependencies.bullmq.version} on Redis ${redisVersion()}`;
    },
    variants: onRedis("bulks of 100, 200 at once", (address, seconds) => ["node", "bench/peers/bullmq/main.mjs", "--address", address, "--seconds", seconds]),
  },
  {
    id: "sepp",
    name: "sepp",
    target: 1,
    install: () => {
      const env = { ...process.env, CARGO_TARGET_DIR: `${home}/sepp` };
      run("cargo", ["install", "sepp", "--version", seppServer, "--locked", "--root", home, "--quiet"], { env });
      run("cargo", ["build", "--release", "--locked", "--quiet"], { env, cwd: "bench/peers/sepp" });
    },
    version: () => seppServer,
    // It takes at most 256 in a batch.
    variants: [
      { how: "one job per call, 64 callers", durability: "sync_all: fsync before every answer", fsynced: true, start: seppWith("sync_all"), client: seppClient("64", "1") },
      { how: "batches of 100, 16 callers, ack each", durability: "sync_all: fsync before every answer", fsynced: true, start: seppWith("sync_all"), client: seppClient("16", "100") },
      { how: "batches of 250, 16 callers, ack each", durability: "sync_all: fsync before every answer", fsynced: true, start: seppWith("sync_all"), client: seppClient("16", "250") },
      { how: "one job per call, 64 callers", durability: "buffer: no fsync", fsynced: false, start: seppWith("buffer"), client: seppClient("64", "1") },
      { how: "batches of 100, 16 callers, ack each", durability: "buffer: no fsync", fsynced: false, start: seppWith("buffer"), client: seppClient("16", "100") },
      { how: "batches of 250, 16 callers, ack each", durability: "buffer: no fsync", fsynced: false, start: seppWith("buffer"), client: seppClient("16", "250") },
    ],
  },
];
