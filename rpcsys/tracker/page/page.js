// The lab, live. All data of the tracker is inserted as text, never as markup.

import { picture } from "/picture.js";
import { trace } from "/speed.js";

const REFRESH_MS = 2000; // between two requests for the lab
const DAY_MS = 20000; // between two requests for the pictures' data
const TIMEOUT_MS = 5000; // for an answer of the tracker

const BAD = ["set aside", "unhealthy", "gone"];
const ODD = ["drained", "preparing"];

const at = (id) => document.getElementById(id);
let lab = null;
let day = { begin: 0, step_s: 0, keys: {} };
let speeds = { boards: {} };
let dayAt = -Infinity;
let reachedAt = null;
let ahead = 0; // seconds by which the tracker's clock is ahead of ours

/** An element with properties and children; strings become text. */
function make(name, properties = {}, ...children) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function span(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

/** The time since (sign 1) or until (-1) `since`, updated every second. */
function age(since, sign = 1) {
  const element = make("span", { className: "age" });
  Object.assign(element.dataset, { since, sign });
  updateAge(element);
  return element;
}

function updateAge(element) {
  const { since, sign } = element.dataset;
  element.textContent = span(sign * (Date.now() / 1000 + ahead - since));
}

/** Show `items` in `parent`. Elements of unchanged items stay, with their selection and scroll position. */
function show(parent, items, name, draw) {
  const before = new Map([...parent.children].map((element) => [element.dataset.name, element]));
  const now = items.map((item) => {
    const title = name(item);
    const text = JSON.stringify(item);
    const known = before.get(title);
    if (known && known.drawnFrom === text) return known;
    const element = draw(item);
    element.dataset.name = title;
    element.drawnFrom = text;
    return element;
  });
  if (now.length !== parent.children.length || now.some((element, i) => element !== parent.children[i])) {
    parent.replaceChildren(...now);
  }
}

function setText(id, text) {
  at(id).hidden = !text;
  at(id).textContent = text;
}

// Totals and keys.

function totals() {
  const figures = [
    [lab.totals.slots, "slots"],
    [lab.totals.free, "slots free"],
    [lab.totals.leased, "slots leased"],
    [lab.totals.out_of_use, "slots out of use"],
    [lab.totals.waiting, "requests waiting"],
  ];
  const drawTotal = ([number, word]) => make("li", {}, make("b", {}, String(number)), word);
  show(at("totals"), figures, ([, word]) => word, drawTotal);
}

/** Text of any length: its first lines, and all of it as a tooltip. */
function long(element, text) {
  return make(element, { className: "long", title: text }, text);
}

/** The time that the pictures show; a young lab's begins with its tracker. */
function shownTime() {
  const begin = day.begin + day.step_s > lab.started ? Math.max(day.begin, lab.started) : day.begin;
  const minutes = Math.max(1, Math.round((lab.now - begin) / 60));
  return minutes < 60 ? `${minutes} min` : `${Math.round(minutes / 60)} h`;
}

function drawKey({ key, slots, free, leased, waiting, queue, steps, time }) {
  const counts = slots ? [`${free} of ${slots} slots free`, `${leased} leased`] : ["no server"];
  const card = make("article", { className: "card" },
    long("h3", key || "any key (by label)"),
    make("p", {}, counts.join(", "), waiting ? `, ${waiting} waiting` : ""),
  );
  if (steps) {
    const { svg, top } = picture(key, steps, time);
    card.append(svg,
      make("p", { className: "scale" }, make("span", {}, `${time} ago`), make("span", {}, `top: ${+top.toFixed(1)}`),
        make("span", {}, "now")),
      make("p", { className: "legend" }, make("i", { className: "leased" }), "leased",
        make("i", { className: "slots" }), "slots", make("i", { className: "waiting" }), "waiting"),
    );
  }
  if (queue.length) card.append(make("ol", {}, ...queue.map(drawWaiting)));
  if (waiting > queue.length) card.append(make("p", {}, `and ${waiting - queue.length} more`));
  return card;
}

function drawWaiting({ user, address, since, priority, count, labels, parked }) {
  const wants = Object.entries(labels).map(([label, value]) => label + (/^[<>=!]/.test(value) ? "" : "=") + value);
  const details = [
    count > 1 ? `${count} at once` : null,
    wants.length ? wants.join(" ") : null,
    priority !== 1 ? `priority ${priority}` : null,
    parked || null,
  ].filter((detail) => detail);
  return make("li", {}, who(user, address), " for ", age(since), details.length ? ` (${details.join("; ")})` : "");
}

function who(user, address) {
  return user === address ? user : `${user} @ ${address}`;
}

// Boards.

function drawBoard(server) {
  const cell = (head, ...children) => {
    const element = make("td", {}, ...children);
    element.dataset.head = head;
    return element;
  };
  const known = server.state === "free" ? "free" : "busy";
  const kind = BAD.includes(server.state) ? "bad" : ODD.includes(server.state) ? "odd" : known;
  const slow = server.speed === "slow" ? make("span", { className: "state bad" }, "slow") : null;
  const traced = server.trace ? trace(server.name, server.trace) : null;
  const until = server.until ? make("span", {}, "tried again in ", age(server.until, -1)) : null;
  const note = [server.reason || null, until, slow, server.slow || null];
  const leases = (head, draw) => {
    const rows = server.leases.map((lease) => make("div", {}, draw(lease)));
    const free = head === "Since" && server.since ? age(server.since) : null;
    return rows.length ? cell(head, make("span", {}, ...rows)) : cell(head, free);
  };
  return make("tr", {},
    cell("Board", make("span", {}, long("span", server.name), long("small", labels(server)))),
    cell("Key", server.key ? long("span", server.key) : null),
    cell("State", make("span", {}, make("span", { className: `state ${kind}` }, server.state),
      ...note.filter((part) => part).map((part) => make("small", {}, part)), traced ?? "")),
    leases("Held by", holder),
    leases("Since", (lease) => age(lease.since)),
    leases("Ends within", (lease) => (lease.until ? age(lease.until, -1) : "no limit")),
  );
}

function holder({ user, address, how, running, lease }) {
  const note = how === "inferred" ? " (inferred)" : how === "ours" && !running ? " (opening)" : "";
  return make("span", { title: `lease ${lease}` }, who(user, address) + note);
}

function labels({ address, labels: facts, devices, slots }) {
  const named = Object.entries(facts).map(([label, value]) => `${label}=${value}`);
  const found = devices.length > 1 ? devices.map((name) => `device=${name}`) : [];
  return [address, slots > 1 ? `${slots} slots` : null, ...named, ...found].filter((part) => part).join(" ");
}

function gone() {
  const board = { state: "gone", speed: "", slow: "", until: null, slots: 1, address: "", labels: {}, devices: [] };
  const boards = new Map(lab.gone.map((server) => [server.name, { ...board, ...server, leases: [] }]));
  for (const { server, key, ...lease } of lab.away) {
    if (!boards.has(server)) boards.set(server, { ...board, name: server, key, reason: "", since: null, leases: [] });
    const left = boards.get(server);
    left.leases.push(lease);
    left.reason = "its connection ended; its sessions may go on";
  }
  return [...boards.values()];
}

function boards() {
  const words = at("filter").value.toLowerCase().split(/\s+/).filter((word) => word);
  const holders = (server) => server.leases.map((lease) => who(lease.user, lease.address));
  const fields = (server) => [server.name, server.key, server.state, server.speed, labels(server), ...holders(server)];
  const text = (server) => fields(server).join("\n").toLowerCase();
  const traced = (server) => {
    const board = speeds.boards[server.name];
    return board && board.points.length ? { ...server, trace: { points: board.points, seconds: board.seconds } } : server;
  };
  const all = [...gone(), ...lab.servers.map(traced)];
  const shown = all.filter((server) => words.every((word) => text(server).includes(word)));
  show(at("boards"), shown, (server) => `${server.state === "gone"} ${server.name}`, drawBoard);
  setText("no-boards", shown.length ? "" : all.length ? "No board fits the filter." : "No board is here.");
  setText("more-boards", lab.more_servers ? `and ${lab.more_servers} more; /api/summary has them all` : "");
}

function draw() {
  totals();
  const time = shownTime();
  const keys = lab.keys.map((key) => ({ ...key, steps: day.keys[key.key] ?? null, time }));
  show(at("keys"), keys, ({ key }) => key, drawKey);
  at("keys-head").textContent = `Keys (${lab.keys.length + lab.more_keys})`;
  at("boards-head").textContent = `Boards (${lab.servers.length + lab.more_servers})`;
  at("no-keys").hidden = lab.keys.length > 0;
  at("settling").hidden = !lab.settling;
  at("replicas").hidden = !lab.replicas;
  at("replicas").className = lab.replicas.includes(" behind") || lab.replicas.includes(" missing") ? "banner mild" : "";
  setText("replicas", lab.replicas);
  at("sites").hidden = !lab.sites;
  at("sites").className = lab.sites.includes(" (cut off)") ? "banner mild" : "";
  setText("sites", lab.sites);
  setText("more-keys", lab.more_keys ? `and ${lab.more_keys} more keys` : "");
  setText("version", `rpcsys ${lab.version}`);
  boards();
}

// Requests to the tracker.

async function get(path) {
  const reply = await fetch(path, { signal: AbortSignal.timeout(TIMEOUT_MS), cache: "no-store" });
  const why = reply.status === 503 ? await reply.text() : "";
  if (!reply.ok) throw new Error(`${path}: ${reply.status}`, { cause: why.trim() });
  return reply.json();
}

async function refresh() {
  try {
    if (performance.now() - dayAt > DAY_MS) {
      day = await get("/api/day");
      speeds = await get("/api/speeds");
      dayAt = performance.now();
    }
    lab = await get("/api/lab");
    ahead = lab.now - Date.now() / 1000;
    reachedAt = new Date();
    draw();
    reached();
  } catch (problem) {
    unreachable(problem);
  }
  setTimeout(refresh, REFRESH_MS);
}

function reached() {
  setText("unreachable", "");
  at("lab").classList.remove("stale");
  at("status").className = "live";
  at("status").textContent = `live, tracker up for ${span(lab.now - lab.started)}`;
  document.title = `Device lab: ${lab.totals.waiting} waiting`;
}

function unreachable(problem) {
  const since = reachedAt ? ` since ${reachedAt.toLocaleTimeString()}: what is shown is from then` : "";
  setText("unreachable", `${problem.cause || "The tracker does not answer"}${since}. Trying again.`);
  at("unreachable").title = String(problem);
  at("lab").classList.add("stale");
  at("status").className = "";
  at("status").textContent = "not connected";
  dayAt = -Infinity;
  document.title = "Device lab: no answer";
}

at("filter").addEventListener("input", () => lab && boards());
setInterval(() => document.querySelectorAll(".age").forEach(updateAge), 1000);
refresh();
