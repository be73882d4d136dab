// The figures as a picture, by gnuplot.
import { writeFileSync } from "node:fs";
import { apt, home, run } from "./tools.mjs";

export function drawPlot(report, path) {
  apt("gnuplot-nox", "gnuplot");
  const rows = report.results.filter((row) => row.median !== null).sort((a, b) => a.median - b.median);
  if (rows.length === 0) return;
  const quote = (text) => `"${text.replaceAll('"', "'")}"`;
  const label = (row) => quote(`${row.name}, ${row.how}: ${row.durability}`);
  // One bar each; those that fsync before they answer stand out.
  const colour = (row) => (row.name === "redrive" ? 0x1f77b4 : row.fsynced ? 0x7f7f7f : 0xc7c7c7);
  const lines = rows.map((row, at) => `${at} ${row.median} ${colour(row)} ${label(row)}`);
  writeFileSync(`${home}/plot.dat`, lines.join("\n") + "\n");
  const script = `
    set terminal pngcairo size 1200,${120 + 34 * rows.length} font "sans,11"
    set output ${quote(path)}
    set title "Jobs per second: enqueued, delivered, acknowledged (256 bytes, ${report.machine.cores} cores, median of ${report.rounds})\\nblue: redrive · dark: fsync before the answer · light: no fsync"
    set style fill solid
    set logscale x
    set xrange [100:*]
    set yrange [-0.7:${rows.length - 0.3}]
    set xlabel "jobs/s, logarithmic"
    set grid xtics
    set lmargin 72
    set rmargin 12
    plot ${quote(`${home}/plot.dat`)} using ($2/2):0:($2/2):(0.38):3:ytic(4) with boxxyerror linecolor rgb variable notitle, \\
         "" using 2:0:(sprintf(" %d", $2)) with labels left notitle
  `;
  writeFileSync(`${home}/plot.gp`, script);
  run("gnuplot", [`${home}/plot.gp`]);
}
