// A worker as thin as it can be: grpc-js with the proto files, fetch, and what any error has.
import grpc from '@grpc/grpc-js';
import loader from '@grpc/proto-loader';
import { promisify } from 'node:util';

const [server, queue, api, protos] = process.argv.slice(2);
const loaded = loader.loadSync('redrive/v1/queue.proto', { includeDirs: [protos], keepCase: true, arrays: true, defaults: true });
const { QueueService } = grpc.loadPackageDefinition(loaded).redrive.v1;
const client = new QueueService(server, grpc.credentials.createInsecure());
const call = (name) => promisify(client[name].bind(client));

for (;;) {
  const claimed = await call('Claim')({ queues: [queue], max_jobs: 1, wait: { seconds: 20 } });
  for (const { lease } of claimed.jobs) {
    const err = await fetch(api, { signal: AbortSignal.timeout(5000) }).then(() => null, (err) => err);
    if (!err) {
      await call('Ack')({ lease });
      continue;
    }
    const error = { type: err.name, message: err.message, code: err.code ?? '' };
    const answer = await call('Nack')({ lease, error });
    console.log(JSON.stringify({ ...error, explanation: answer.explanation }));
  }
}
