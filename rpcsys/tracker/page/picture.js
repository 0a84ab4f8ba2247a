// The last day of a key as a picture: leased slots as an area, all slots and waiting requests as lines.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 288;
const HEIGHT = 80;

export function shape(name, attributes) {
  const element = document.createElementNS(SVG, name);
  for (const [attribute, value] of Object.entries(attributes)) element.setAttribute(attribute, value);
  return element;
}

/** A line through the averages in steps, with a gap at each null (the tracker did not run). */
function line(values, top) {
  const width = WIDTH / values.length;
  let path = "";
  let broken = true;
  values.forEach((value, index) => {
    if (value === null) {
      broken = true;
      return;
    }
    const y = (HEIGHT - 1 - (value / top) * (HEIGHT - 3)).toFixed(1);
    path += `${broken ? "M" : "L"}${(index * width).toFixed(1)} ${y}H${((index + 1) * width).toFixed(1)}`;
    broken = false;
  });
  return path;
}

/** Bars from the base line, without gaps. */
function area(values, top) {
  const width = WIDTH / values.length;
  return values.map((value, index) => {
    if (!value) return "";
    const height = Math.max(1, (value / top) * (HEIGHT - 3)).toFixed(1);
    return `M${(index * width).toFixed(1)} ${HEIGHT - 1}v-${height}h${width.toFixed(2)}v${height}z`;
  }).join("");
}

/** The picture's title, which screen readers read. */
function words(key, time, slots, leased, waiting) {
  const known = leased.filter((value) => value !== null);
  if (!known.length) return `${key}: no data of the last ${time}`;
  const mean = known.reduce((sum, value) => sum + value, 0) / known.length;
  const most = (values) => Math.max(0, ...values);
  return `${key}, the last ${time}: ${mean.toFixed(1)} of at most ${most(slots).toFixed(0)} slots leased on average; `
    + `at most ${most(waiting).toFixed(1)} waiting`;
}

/** The SVG of a key's `steps`, which last `time`: [slots, leased, waiting] or null for each ten minutes. */
export function picture(key, steps, time) {
  const column = (index) => steps.map((step) => (step === null ? null : step[index]));
  const [slots, leased, waiting] = [column(0), column(1), column(2)];
  const top = Math.max(1, ...slots, ...leased, ...waiting);
  const svg = shape("svg", {
    class: "picture", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img",
  });
  const title = shape("title", {});
  title.textContent = words(key, time, slots, leased, waiting);
  svg.append(title);
  for (const share of [0.25, 0.5, 0.75]) {
    svg.append(shape("line", { class: "rule", x1: share * WIDTH, x2: share * WIDTH, y1: 0, y2: HEIGHT }));
  }
  svg.append(
    shape("line", { class: "rule", x1: 0, x2: WIDTH, y1: HEIGHT - 0.5, y2: HEIGHT - 0.5 }),
    shape("path", { class: "leased", d: area(leased, top) }),
    shape("path", { class: "slots", d: line(slots, top) }),
    shape("path", { class: "waiting", d: line(waiting, top) }),
  );
  return { svg, top };
}
