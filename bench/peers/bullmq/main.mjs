// BullMQ on Redis: jobs added one by one from many callers, worked off by workers with many jobs at once.
import { parseArgs } from "node:util";
import { Queue, Worker } from "bullmq";

const { values } = parseArgs({ options: { address: { type: "string" }, seconds: { type: "string", default: "5" } } });
const [host, port] = values.address.split(":");
const connection = { host, port: Number(port), maxRetriesPerRequest: null };
const callers = 64;
const ahead = 2000;
const body = "x".repeat(256);

const queue = new Queue("bench", { connection, defaultJobOptions: { removeOnComplete: true } });
await queue.waitUntilReady();
let made = 0;
let done = 0;
let making = callers;
let finish;
const finished = new Promise((resolve) => (finish = resolve));
const look = () => making === 0 && done >= made && finish();
const worker = new Worker("bench", async () => {}, { connection, concurrency: 200 });
worker.on("completed", () => {
  done += 1;
  look();
});
await worker.waitUntilReady();

const began = performance.now();
const deadline = began + Number(values.seconds) * 1000;
async function produce() {
  while (performance.now() < deadline) {
    if (made - done < ahead) {
      made += 1;
      await queue.add("bench", body);
    } else {
      await new Promise(setImmediate);
    }
  }
  making -= 1;
  look();
}
for (let i = 0; i < callers; i++) produce();
await finished;
const seconds = (performance.now() - began) / 1000;
console.log(JSON.stringify({ jobs: done, seconds, jobs_per_second: done / seconds }));
process.exit(0);
