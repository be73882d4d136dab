// docs/performance.md, out of the results. Without results it says so.

const number = (value) => Math.round(value).toLocaleString("en-US");

const head = `# Performance

What was measured, on which machine, and how to measure it again. Made by \`script/bench-peers --publish\` out of
[performance.json](performance.json): figures are not typed in by hand.

A job's life is enqueue, delivery, acknowledgement, with a body of 256 bytes. Every server and its client run on the same machine, one
after the other in one run, so that rates can be compared with each other; they say little about another machine. Each peer runs with
the calls and windows that suit it, and beside its figure stands what is certain when it answers. The clock stops when the server has
no job left.

How near that is to what gRPC and the disk allow, how it fares with ten million jobs and over fifteen minutes: [ceilings.md](ceilings.md).
`;

const again = `## Again

\`\`\`text
$ script/bench-peers                                                  # the comparison, about ten minutes
$ redrive bench --workers 256 --ceiling --rounds 5                    # unary calls beside a server that does nothing
$ redrive bench --workers 64 --ceiling --rounds 5
$ redrive bench --mode batch --ceiling --rounds 5                     # batches
$ redrive bench --mode stream --ceiling --rounds 5                    # streams
$ redrive bench --mode stream --producers 1 --workers 1 --batch 1 --ahead 1   # enqueue to delivery, idle
$ script/bench-check                                                  # instructions of the hot path
$ cargo bench --bench micro                                           # micro-benchmarks
\`\`\`
`;

const placeholder = `
**Nothing has been measured for this page yet.** The figures below are placeholders until the final run on an idle machine.

<!-- table -->
| queue | how | durability | jobs/s |
|---|---|---|---|
| redrive | streams, 500 per call | fsync before every answer | not measured yet |
| redrive | batches of 100 | fsync before every answer | not measured yet |
| redrive | one job per call, 64 callers | fsync before every answer | not measured yet |
| beanstalkd, RabbitMQ, NATS JetStream, Faktory, asynq, BullMQ, sepp | | | not measured yet |
<!-- table -->

`;

export function page(report) {
  if (!report) return head + placeholder + again;
  const rows = [...report.results].sort((a, b) => (b.median ?? 0) - (a.median ?? 0));
  const mine = best(rows);
  const { machine } = report;
  return `${head}
Measured on ${report.measured_at}: ${machine.cores} cores (${machine.cpu}), ${machine.memory_gib} GiB, ${machine.system}, data on ${machine.filesystem}; medians
of ${report.rounds} rounds of ${report.seconds} s, in turn. The last column says how many times as fast redrive is with ${mine?.how ?? "streams, 500 per call"} and an fsync before
every answer; below 1, the peer is ahead.

![jobs per second](performance.png)

<!-- table -->
| queue | version | how | durability | jobs/s | lowest to highest | redrive is |
|---|---|---|---|--:|---|--:|
${[...rows.map((row) => line(row, mine)), ...report.missing.map(absent)].join("\n")}
<!-- table -->

## Where a peer is ahead

${wins(rows)}

${again}`;
}

// Whether redrive is as far ahead of each peer as it means to be.
export function summary(report) {
  const mine = best(report.results);
  const compared = report.results.filter((row) => row.target).map((row) => {
    const factor = ratio(mine, row);
    const reached = factor === null ? "not measured" : `${times(factor)}: ${factor > row.target ? "yes" : "NO"}`;
    return `${row.name}, ${row.how}, ${row.durability}: target ${row.target} ×, reached ${reached}`;
  });
  const from = mine ? `redrive, ${mine.how}, ${mine.durability}: ${number(mine.median)} jobs/s` : "redrive was not measured";
  return [from, ...compared, ...report.missing.map(({ name, reason }) => `${name}: ${reason}`)].join("\n");
}

const own = (rows) => rows.filter((row) => row.name === "redrive" && row.fsynced && row.median !== null);
const best = (rows) => own(rows).sort((a, b) => b.median - a.median)[0];
const ratio = (mine, row) => (mine && row.median ? mine.median / row.median : null);
const times = (factor) => `${factor < 10 ? factor.toFixed(2) : number(factor)} ×`;
// Text of other programs must not end a cell.
const cell = (text) => text.replaceAll("|", "\\|");

function line(row, mine) {
  const rates = row.jobs_per_second;
  const rate = row.median === null ? "failed" : number(row.median);
  const range = rates.length ? `${number(Math.min(...rates))} to ${number(Math.max(...rates))}` : cell(row.failures[0]);
  const name = row.name === "redrive" ? "**redrive**" : row.name;
  const factor = row.name === "redrive" ? null : ratio(mine, row);
  return `| ${name} | ${row.version} | ${row.how} | ${row.durability} | ${rate} | ${range} | ${factor === null ? "" : times(factor)} |`;
}

const absent = ({ name, reason }) => `| ${name} | | | | not measured | ${cell(reason)} | |`;

// Each way of redrive against every peer, with nothing left out.
function wins(rows) {
  const sentences = own(rows).map((mine) => {
    const ahead = rows.filter((row) => row.name !== "redrive" && row.median > mine.median);
    const named = ahead.map((row) => `  - ${row.name}, ${row.how}, ${row.durability}: ${times(row.median / mine.median)} as fast`);
    const what = `- redrive with ${mine.how} and an fsync before every answer, ${number(mine.median)} jobs/s, is behind`;
    return named.length ? `${what}\n${named.join("\n")}` : `${what} none of them`;
  });
  return sentences.join("\n");
}
