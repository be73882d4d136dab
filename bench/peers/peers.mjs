// Who is compared, how each is installed and started, and what it promises when it answers.
import { writeFileSync } from "node:fs";
import { apt, bin, freePort, goClient, goInstall, home, run, start } from "./tools.mjs";

const natsServer = "v2.14.9";
const faktoryServer = "latest";
const seppServer = "0.1.1";

const target = process.env.CARGO_TARGET_DIR ?? "target";
const program = `${target}/release/redrive`;
const bench = (...args) => (_, seconds) => [program, "bench", "-o", "json", "--duration", `${seconds}s`, "--data", `${home}/data`, ...args];

export const redrive = {
  name: "redrive",
  install: () => run("cargo", ["build", "--release", "--locked"]),
  version: () => run(program, ["--version"]).trim().split(" ").at(-1),
  rate: (answer) => answer.median.jobs_per_second,
  variants: [
    { how: "streams", durability: "fsync before every answer", fsynced: true, client: bench("--mode", "stream") },
    { how: "batches of 100", durability: "fsync before every answer", fsynced: true, client: bench("--mode", "batch") },
    { how: "one job per call, 64 callers", durability: "fsync before every answer", fsynced: true, client: bench("--mode", "unary") },
    { how: "streams", durability: "none", fsynced: false, client: bench("--mode", "stream", "--durability", "none") },
  ],
};

const client = (name) => (address, seconds) => [`${bin}/client-${name}`, "--address", address, "--seconds", seconds];

const redisServer = (fsync) => async (directory) => {
  const port = await freePort();
  const args = ["--port", port, "--bind", "127.0.0.1", "--dir", directory, "--save", "", "--appendonly", "yes", "--appendfsync", fsync];
  return start(port, "redis-server", args.map(String));
};
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
const seppClient = (address, seconds) => [`${home}/sepp/release/redrive-bench-sepp`, "--address", address, "--seconds", seconds];

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
    // A name server of its own: one that runs already belongs to somebody else.
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

export const peers = [
  {
    name: "beanstalkd",
    install: () => {
      apt("beanstalkd");
      goClient("beanstalkd");
    },
    version: () => run("beanstalkd", ["-v"]).trim().split(" ").at(-1),
    variants: [
      { how: "32 producers, 32 workers", durability: "log, fsync each (-f0)", fsynced: true, start: beanstalkd("-b", "DIR", "-f0"), client: client("beanstalkd") },
      { how: "32 producers, 32 workers", durability: "none (memory)", fsynced: false, start: beanstalkd(), client: client("beanstalkd") },
    ],
  },
  {
    name: "rabbitmq",
    install: () => {
      apt("rabbitmq-server");
      goClient("rabbitmq");
    },
    version: () => run("dpkg-query", ["-W", "-f", "${Version}", "rabbitmq-server"]).trim(),
    variants: [
      { how: "confirms in a window of 200, ack each", durability: "quorum queue of one node, persistent", fsynced: true, start: rabbitmq, client: client("rabbitmq") },
    ],
  },
  {
    name: "nats",
    install: () => {
      goInstall(`github.com/nats-io/nats-server/v2@${natsServer}`);
      goClient("nats");
    },
    version: () => natsServer,
    variants: [
      { how: "JetStream, publishes in a window of 256, ack each", durability: "file, fsync each (sync_interval: always)", fsynced: true, start: natsWith("always"), client: client("nats") },
      { how: "JetStream, publishes in a window of 256, ack each", durability: "file, fsync every 2 min (default)", fsynced: false, start: natsWith('"2m"'), client: client("nats") },
    ],
  },
  {
    name: "faktory",
    install: () => {
      goInstall(`github.com/contribsys/faktory/cmd/faktory@${faktoryServer}`);
      apt("redis-server");
      goClient("faktory");
    },
    version: () => faktoryServer,
    variants: [
      {
        how: "32 producers, 32 workers",
        durability: "its own Redis, snapshots and a log every second",
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
    name: "asynq",
    install: () => {
      apt("redis-server");
      goClient("asynq");
    },
    version: () => run("go", ["list", "-m", "-f", "{{.Version}}", "github.com/hibiken/asynq"], { cwd: "bench/peers" }).trim(),
    variants: onRedis("32 producers, 64 workers", client("asynq")),
  },
  {
    name: "bullmq",
    install: () => {
      apt("redis-server");
      run("npm", ["ci", "--silent", "--no-audit", "--no-fund"], { cwd: "bench/peers/bullmq" });
    },
    version: () => JSON.parse(run("npm", ["ls", "--json", "bullmq"], { cwd: "bench/peers/bullmq" })).dependencies.bullmq.version,
    variants: onRedis("64 producers, 200 workers", (address, seconds) => ["node", "bench/peers/bullmq/main.mjs", "--address", address, "--seconds", seconds]),
  },
  {
    name: "sepp",
    install: () => {
      const env = { ...process.env, CARGO_TARGET_DIR: `${home}/sepp` };
      run("cargo", ["install", "sepp", "--version", seppServer, "--locked", "--root", home, "--quiet"], { env });
      run("cargo", ["build", "--release", "--locked", "--quiet"], { env, cwd: "bench/peers/sepp" });
    },
    version: () => seppServer,
    variants: [
      { how: "one job per call, 64 callers", durability: "sync_all: fsync before every answer", fsynced: true, start: seppWith("sync_all"), client: seppClient },
      { how: "batches of 100, 64 callers, ack each", durability: "sync_all: fsync before every answer", fsynced: true, start: seppWith("sync_all"), client: (...args) => [...seppClient(...args), "--batch", "100"] },
      { how: "one job per call, 64 callers", durability: "buffer: no fsync", fsynced: false, start: seppWith("buffer"), client: seppClient },
    ],
  },
];
