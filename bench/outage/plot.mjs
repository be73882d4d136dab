// The calls of each second as a picture, by gnuplot: one part for each run of script/outage, all to one scale.
//
//   node bench/outage/plot.mjs OUT.png TITLE=FILE.dat...
import { readFileSync, writeFileSync } from "node:fs";
import { apt, run } from "../peers/tools.mjs";

const [png, ...parts] = process.argv.slice(2);
apt("gnuplot-nox", "gnuplot");
const plots = parts.map((part) => {
  const at = part.lastIndexOf("=");
  return { title: part.slice(0, at), file: part.slice(at + 1) };
});
const rows = (file) => readFileSync(file, "utf8").trim().split("\n").filter((line) => !line.startsWith("#"));
const numbers = plots.flatMap(({ file }) => rows(file).map((line) => line.split(" ").map(Number)));
const most = Math.max(...numbers.map(([, served, failed]) => served + failed));
const last = Math.max(...numbers.map(([second]) => second));
const panel = ({ title, file }) => {
  const [, from, to] = /^# (\S+) (\S+)/.exec(readFileSync(file, "utf8")) ?? [];
  const down = from
    ? `set object 1 rectangle from ${from}, graph 0 to ${Math.min(to, last)}, graph 1 fillcolor rgb 0xeeeeee fillstyle solid noborder behind`
    : "unset object";
  return `
    ${down}
    set label 1 "${title}" at graph 0.5, 0.9 center front
    plot "${file}" using 1:($2+$3) with boxes linecolor rgb 0xd62728 title "failed", \\
         "" using 1:2 with boxes linecolor rgb 0x2ca02c title "served"`;
};
const script = `
    set terminal pngcairo noenhanced size 1000,${60 + 190 * plots.length} font "sans,10"
    set output "${png}"
    set multiplot layout ${plots.length},1 title "calls per second; grey: the service is down"
    set style fill solid
    set boxwidth 1
    set grid ytics
    set key top right
    set xrange [0:${last}]
    set yrange [0:${Math.ceil(most * 1.25)}]
    set lmargin 6
    ${plots.map(panel).join("\n")}
    unset multiplot
  `;
writeFileSync("target/outage/plot.gp", script);
run("gnuplot", ["target/outage/plot.gp"]);
