// The figures as a picture, by gnuplot.
import { writeFileSync } from "node:fs";
import { apt, home, run } from "./tools.mjs";

export function drawPlot(report, path) {
  apt("gnuplot-nox", "gnuplot");
  const rows = report.results.filter((row) => row.median !== null).sort((a, b) => a.median - b.median);
  if (rows.length === 0) return;
  const quote = (text) => `"${text.replaceAll('"', "'")}"`;
  // One bar each; those that fsync before they answer stand out.
  const colours = { redrive: [0x9ecae9, 0x1f77b4], peer: [0xc7c7c7, 0x7f7f7f] };
  const colour = (row) => colours[row.name === "redrive" ? "redrive" : "peer"][Number(row.fsynced)];
  const label = (row) => `"${row.name}, ${row.how}\\n${row.durability}"`;
  const figure = (row) => quote(Math.round(row.median).toLocaleString("en-US"));
  const lines = rows.map((row, at) => `${at} ${row.median} ${colour(row)} ${figure(row)}`);
  writeFileSync(`${home}/plot.dat`, lines.join("\n") + "\n");
  const rates = rows.map((row) => row.median);
  const least = 10 ** Math.floor(Math.log10(Math.min(...rates) / 2));
  const script = `
    set terminal pngcairo noenhanced size 1200,${130 + 44 * rows.length} font "sans,10"
    set output ${quote(path)}
    set label 1 "Jobs per second: enqueued, delivered, acknowledged (256 bytes, ${report.machine.cores} cores, median of ${report.rounds})\\nblue: redrive, grey: others; dark: fsync before the answer, light: not" at screen 0.5, screen 1 center offset 0,-1.5
    set style fill solid
    set logscale x
    set xrange [${least}:${Math.max(...rates) * 3}]
    set yrange [-0.7:${rows.length - 0.3}]
    set ytics nomirror scale 0 (${rows.map((row, at) => `${label(row)} ${at}`).join(", ")})
    set xtics nomirror
    set format x "%.0f"
    set xlabel "jobs/s, logarithmic"
    set grid xtics
    set border 3
    set tmargin 4
    set lmargin at screen 0.36
    set rmargin 3
    plot ${quote(`${home}/plot.dat`)} using 2:1:(${least}):2:($1-0.36):($1+0.36):3 with boxxyerror linecolor rgb variable notitle, \\
         "" using 2:1:4 with labels left offset 0.7,0 notitle
  `;
  writeFileSync(`${home}/plot.gp`, script);
  run("gnuplot", [`${home}/plot.gp`]);
}
