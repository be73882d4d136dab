// BullMQ in the outage of script/outage: five attempts, exponential backoff from a second, as many jobs at once as others have.
import { Queue, Worker } from "bullmq";

const [socket, downstream, ...numbers] = process.argv.slice(2);
const [jobs, rate, slots, end] = numbers.map(Number);
const connection = { path: socket, maxRetriesPerRequest: null };
const queue = new Queue("outage", {
  connection,
  defaultJobOptions: { attempts: 5, backoff: { type: "exponential", delay: 1000 }, removeOnComplete: true },
});
await queue.waitUntilReady();
let [done, dead] = [0, 0];
const call = async () => {
  const reply = await fetch(downstream);
  await reply.arrayBuffer();
  if (!reply.ok) throw new Error(`HTTP ${reply.status}`);
};
const worker = new Worker("outage", call, { connection, concurrency: slots });
worker.on("completed", () => (done += 1));
worker.on("failed", (job) => {
  if (job.attemptsMade >= 5) dead += 1;
});
worker.on("error", (error) => console.error(error.message));
const began = performance.now();
const seconds = () => (performance.now() - began) / 1000;
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
for (let number = 0; number < jobs; number += 1) {
  await sleep(Math.max(0, (number / rate - seconds()) * 1000));
  await queue.add("charge", {});
}
while (seconds() < end && done + dead < jobs) await sleep(200);
console.log(done, dead);
process.exit(0);
