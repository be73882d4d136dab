// BullMQ on Redis: jobs added in bulk, worked off by one worker with many jobs at once. Producers and the worker have a
// thread each: BullMQ's own work per job is more than one of them can do.
import { isMainThread, parentPort, Worker as Thread } from "node:worker_threads";
import { parseArgs } from "node:util";
import { Queue, Worker } from "bullmq";

const { values } = parseArgs({ options: { address: { type: "string" }, seconds: { type: "string", default: "5" } } });
const [host, port] = values.address.split(":");
const connection = { host, port: Number(port), maxRetriesPerRequest: null };
const callers = 4;
const bulk = 100;
const ahead = 2000;
const body = "x".repeat(256);

if (isMainThread) await work();
else await produce();

async function work() {
  let began;
  let done = 0;
  let made = Infinity;
  let finish;
  const finished = new Promise((resolve) => (finish = resolve));
  const worker = new Worker("bench", check, { connection, concurrency: 200 });
  worker.on("completed", () => {
    done += 1;
    if (done % bulk === 0) producer.postMessage(done);
    if (done >= made) finish();
  });
  worker.on("failed", (_, error) => end(error.message));
  worker.on("error", (error) => end(error.message));
  await worker.waitUntilReady();
  const producer = new Thread(new URL(import.meta.url), { argv: process.argv.slice(2) });
  producer.on("error", (error) => end(error.message));
  producer.on("message", (message) => {
    if (message === "began") {
      began = performance.now();
    } else {
      made = message;
      if (done >= made) finish();
    }
  });
  await finished;
  const seconds = (performance.now() - began) / 1000;
  const queue = new Queue("bench", { connection });
  const left = Object.values(await queue.getJobCounts()).reduce((sum, count) => sum + count, 0);
  if (left > 0 || done !== made || done === 0) end(`${made} jobs were enqueued, ${done} acknowledged, ${left} are left`);
  console.log(JSON.stringify({ jobs: done, seconds, jobs_per_second: done / seconds }));
  process.exit(0);
}

async function check({ data }) {
  if (data.length !== body.length) throw new Error(`a body of ${data.length} bytes was delivered`);
}

function end(why) {
  console.error(why);
  process.exit(1);
}

async function produce() {
  const queue = new Queue("bench", { connection, defaultJobOptions: { removeOnComplete: true } });
  await queue.waitUntilReady();
  const jobs = Array.from({ length: bulk }, () => ({ name: "bench", data: body }));
  let made = 0;
  let done = 0;
  const wake = [];
  parentPort.on("message", (count) => {
    done = count;
    for (const resume of wake.splice(0)) resume();
  });
  parentPort.postMessage("began");
  const deadline = performance.now() + Number(values.seconds) * 1000;
  const caller = async () => {
    while (performance.now() < deadline) {
      if (made - done < ahead) {
        made += bulk;
        await queue.addBulk(jobs);
      } else {
        await new Promise((resolve) => wake.push(resolve));
      }
    }
  };
  await Promise.all(Array.from({ length: callers }, caller));
  parentPort.postMessage(made);
  parentPort.unref();
  await queue.close();
}
