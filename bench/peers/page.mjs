// docs/performance.md, out of the results. Without results it says so.

const number = (value) => Math.round(value).toLocaleString("en-US");

const head = `# Performance

What was measured, on which machine, and how to measure it again. Made by \`script/bench-peers --publish\` out of
[performance.json](performance.json): figures are not typed in by hand.

A job's life is enqueue, delivery, acknowledgement, with a body of 256 bytes. Every server and its client run on the same machine, one
after the other in one run, so that rates can be compared with each other; they say little about another machine. Each peer runs with
the calls and windows that suit it, and beside its figure stands what is certain when it answers.
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
| redrive | streams | fsync before every answer | not measured yet |
| redrive | batches of 100 | fsync before every answer | not measured yet |
| redrive | one job per call, 64 callers | fsync before every answer | not measured yet |
| beanstalkd, RabbitMQ, NATS JetStream, Faktory, asynq, BullMQ, sepp | | | not measured yet |
<!-- table -->

`;

export function page(report) {
  if (!report) return head + placeholder + again;
  const rows = [...report.results].sort((a, b) => (b.median ?? 0) - (a.median ?? 0));
  const { machine } = report;
  return `${head}
Measured on ${report.measured_at}: ${machine.cores} cores (${machine.cpu}), ${machine.memory_gib} GiB, ${machine.system}, data on ${machine.filesystem}; medians
of ${report.rounds} rounds of ${report.seconds} s, in turn.

![jobs per second](performance.png)

<!-- table -->
| queue | version | how | durability | jobs/s | lowest to highest |
|---|---|---|---|---|---|
${rows.map(line).join("\n")}
${absent(report)}
<!-- table -->

## Where a peer is ahead

${wins(rows)}

${again}`;
}

function line(row) {
  const rates = row.jobs_per_second;
  const rate = row.median === null ? "failed" : number(row.median);
  const range = rates.length ? `${number(Math.min(...rates))} to ${number(Math.max(...rates))}` : row.failures[0];
  const name = row.name === "redrive" ? "**redrive**" : row.name;
  return `| ${name} | ${row.version} | ${row.how} | ${row.durability} | ${rate} | ${range} |`;
}

function absent(report) {
  if (report.missing.length === 0) return "";
  const lines = report.missing.map(({ name, reason }) => `- ${name}: ${reason}`);
  return `\nNot measured, because it could not be installed here:\n\n${lines.join("\n")}\n`;
}

// Each way of redrive against every peer, with nothing left out.
function wins(rows) {
  const own = rows.filter((row) => row.name === "redrive" && row.fsynced && row.median !== null);
  const sentences = own.map((mine) => {
    const ahead = rows.filter((row) => row.name !== "redrive" && row.median > mine.median);
    const named = ahead.map((row) => `${row.name} (${row.durability}) ${(row.median / mine.median).toFixed(1)} ×`);
    const what = `- redrive with ${mine.how}, ${number(mine.median)} jobs/s`;
    return named.length ? `${what}: behind ${named.join(", ")}.` : `${what}: behind none of them.`;
  });
  return sentences.join("\n");
}
