// The history of a board's canary as a picture: its time against its own, by batches of runs.

import { shape } from "/picture.js";

const WIDTH = 160;
const HEIGHT = 36;
const LEAST = 5; // percent above and below that the picture shows at least

/** Percents, signed. */
function percents(value) {
  return `${value < 0 ? "" : "+"}${value.toFixed(1)} %`;
}

/** The SVG of a board's `points`: [seconds since 1970, percents above its own time, whether it was slow]. */
export function trace(name, { points, seconds }) {
  const values = points.map(([, percent]) => percent);
  const top = Math.max(LEAST, ...values.map(Math.abs));
  const step = WIDTH / points.length;
  const y = (percent) => (HEIGHT / 2 - (percent / top) * (HEIGHT / 2 - 2)).toFixed(1);
  const svg = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
  const title = shape("title", {});
  const begin = new Date(1000 * points[0][0]).toLocaleString();
  title.textContent = `${name}: its canary's time since ${begin}, against its own ${(1000 * seconds).toPrecision(3)} ms; `
    + `${percents(values.at(-1))} now`;
  svg.append(title, shape("line", { class: "rule", x1: 0, x2: WIDTH, y1: HEIGHT / 2, y2: HEIGHT / 2 }));
  for (const [kind, fits] of [["well", 0], ["slow", 1]]) {
    const steps = points.map(([, percent, slow], index) =>
      slow === fits ? `M${(index * step).toFixed(1)} ${y(percent)}h${step.toFixed(2)}` : "");
    svg.append(shape("path", { class: kind, d: steps.join("") }));
  }
  return svg;
}

/** What stands beneath a wide picture. */
export function range({ points }) {
  return [new Date(1000 * points[0][0]).toLocaleString(), `${percents(points.at(-1)[1])} now`];
}
