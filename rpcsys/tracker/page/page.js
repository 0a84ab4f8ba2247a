// Keeps a page up to date. The tracker renders it and each of its fragments, with all text escaped; what has changed
// since the last update comes as HTML by group and ID, and takes the place of what was there.

import { picture } from "/picture.js";
import { range, trace } from "/speed.js";

const REFRESH_MS = 2000; // between two updates
const DAY_MS = 20000; // between two requests for the data of the keys' pictures
const TIMEOUT_MS = 5000; // for an answer of the tracker

const at = (id) => document.getElementById(id);
const title = document.title;
let version = document.body.dataset.version;
let ahead = document.body.dataset.now - Date.now() / 1000; // seconds by which the tracker's clock is ahead of ours
let started = Number(document.body.dataset.started); // the tracker, in seconds since 1970
let reachedAt = new Date();
let day = null;
let dayAt = -Infinity;

// Times.

function span(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

/** How long ago a time is, or in how long it comes; its date is shown when pointed at. */
function age(element) {
  const then = Number(element.dataset.at);
  const seconds = Date.now() / 1000 + ahead - then;
  const second = element.previousElementSibling?.tagName === "TIME"; // of two: "in 2 min to 5 min"
  const past = element.closest(".for, .boards") ? span(seconds) : `${span(seconds)} ago`;
  const text = seconds < 0 ? `${second ? "" : "in "}${span(-seconds)}` : past;
  if (element.textContent !== text) element.textContent = text;
  if (!element.title) element.title = new Date(1000 * then).toLocaleString();
}

const ages = (parent = document) => parent.querySelectorAll("time[data-at]").forEach(age);

// Pictures. Their elements are empty until they are drawn here.

/** The time that the keys' pictures show; a young lab's begins with its tracker. */
function shownTime() {
  const begin = day.begin + day.step_s > started ? Math.max(day.begin, started) : day.begin;
  const minutes = Math.max(1, Math.round((Date.now() / 1000 + ahead - begin) / 60));
  return minutes < 60 ? `${minutes} min` : `${Math.round(minutes / 60)} h`;
}

function part(name, className, text = "") {
  return Object.assign(document.createElement(name), { className, textContent: text });
}

function scale(...texts) {
  const line = part("p", "scale");
  line.append(...texts.map((text) => part("span", "", text)));
  return line;
}

function drawDay(figure) {
  const { key } = figure.dataset;
  if (!day || !Object.hasOwn(day.keys, key)) return; // a key may be called __proto__
  const time = shownTime();
  const { svg, top } = picture(key, day.keys[key], time);
  const legend = part("figcaption", "legend");
  for (const name of ["leased", "slots", "waiting"]) legend.append(part("i", name), name);
  figure.replaceChildren(svg, scale(`${time} ago`, `top: ${+top.toFixed(1)}`, "now"), legend);
}

function drawTrace(figure) {
  const board = JSON.parse(figure.dataset.trace);
  figure.replaceChildren(trace(figure.dataset.name, board));
  if (figure.classList.contains("wide")) figure.append(scale(...range(board)));
}

function pictures() {
  document.querySelectorAll("figure.day:empty").forEach(drawDay);
  document.querySelectorAll("figure.trace:empty").forEach(drawTrace);
}

// Updates.

/** The element of a fragment's HTML. */
function made(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  return template.content.firstElementChild;
}

/** Put a fragment in the place of an earlier one; a link that had the focus keeps it. */
function replace(old, fresh) {
  const links = (element) => [...element.querySelectorAll("a")];
  const focused = links(old).indexOf(document.activeElement);
  old.replaceWith(fresh);
  if (focused >= 0) links(fresh)[focused]?.focus({ preventScroll: true });
}

function update(group, { fragments, order }) {
  const shown = new Map([...group.children].map((element) => [element.dataset.fragment, element]));
  for (const [id, html] of Object.entries(fragments)) {
    const fresh = made(html);
    ages(fresh);
    if (shown.has(id)) replace(shown.get(id), fresh);
    shown.set(id, fresh);
  }
  if (!order) return;
  let next = group.firstElementChild;
  for (const id of order) {
    const element = shown.get(id);
    shown.delete(id);
    if (element === next) next = next.nextElementSibling;
    else group.insertBefore(element, next);
  }
  shown.forEach((element) => element.remove());
}

function show(changes) {
  for (const group of document.querySelectorAll("[data-group]")) {
    const change = changes.groups[group.dataset.group];
    if (change) update(group, change);
    else if (changes.whole) group.replaceChildren();
  }
  version = changes.version;
  started = changes.started;
  ahead = changes.now - Date.now() / 1000;
  document.title = changes.title;
  if (at("filter")) filter();
  pictures();
}

async function get(path) {
  const reply = await fetch(path, { signal: AbortSignal.timeout(TIMEOUT_MS), cache: "no-store" });
  if (reply.ok) return reply.json();
  throw new Error(`${path}: ${reply.status}`, { cause: (await reply.text()).trim().slice(0, 500) });
}

async function refresh() {
  try {
    if (document.querySelector(".day") && performance.now() - dayAt > DAY_MS) {
      day = await get("/api/day");
      dayAt = performance.now();
      document.querySelectorAll(".day").forEach(drawDay);
    }
    show(await get(`/live/${version}${location.pathname}`));
    reachedAt = new Date();
    reached();
  } catch (problem) {
    unreachable(problem);
  }
  setTimeout(refresh, REFRESH_MS);
}

/** Show a text in an element that is hidden without one; screen readers read it when it changes. */
function tell(id, text) {
  if (at(id).textContent === text) return;
  at(id).hidden = !text;
  at(id).textContent = text;
}

function reached() {
  tell("unreachable", "");
  at("main").classList.remove("stale");
  at("status").className = "live";
  tell("status", "live");
}

function unreachable(problem) {
  const since = `since ${reachedAt.toLocaleTimeString()}: what is shown is from then`;
  tell("unreachable", `${problem.cause || `The tracker does not answer ${since}`}. Trying again.`);
  at("main").classList.add("stale");
  at("status").className = "";
  tell("status", "not connected");
  dayAt = -Infinity;
  version = ""; // all of the page comes next
  document.title = `${title.split(":")[0]}: no answer`;
}

// The filter of boards.

function filter() {
  const words = at("filter").value.toLowerCase().split(/\s+/).filter((word) => word);
  const rows = [...at("boards").children];
  let found = 0;
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    const fits = words.every((word) => text.includes(word));
    if (row.hidden === fits) row.hidden = !fits;
    found += fits;
  }
  tell("no-match", rows.length && !found ? "No board fits the filter." : "");
}

if (at("filter")) {
  at("filter").hidden = false;
  at("filter").addEventListener("input", () => requestAnimationFrame(filter));
}
ages();
pictures();
setInterval(() => ages(), 1000);
refresh();
