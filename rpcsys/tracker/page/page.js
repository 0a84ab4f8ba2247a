// The lab, live. Whatever comes from the tracker is put in as text and never as markup.

import { picture } from "/picture.js";

const LOOK_MS = 2000; // how often to look
const DAY_MS = 20000; // how often the pictures are made anew
const PATIENCE_MS = 5000; // how long the tracker may take to answer

const BAD = ["set aside", "unhealthy", "away"];
const ODD = ["drained", "preparing"];

const at = (id) => document.getElementById(id);
let lab = null;
let day = { keys: {} };
let dayAt = -Infinity;
let reachedAt = null;
let ahead = 0; // how far the tracker's clock is ahead of ours, in seconds

/** An element with properties and children; text among them stays text. */
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

/** The time since (or until) then, which goes on by itself. */
function age(since, sign = 1) {
  const element = make("span", { className: "age" });
  Object.assign(element.dataset, { since, sign });
  tell(element);
  return element;
}

function tell(element) {
  const { since, sign } = element.dataset;
  element.textContent = span(sign * (Date.now() / 1000 + ahead - since));
}

/** Make `parent` show `items`, keeping what has not changed: a selection or a scroll survives a look. */
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

function say(id, text) {
  at(id).hidden = !text;
  at(id).textContent = text;
}

// Totals and keys.

function totals() {
  const count = (state) => lab.servers.filter((server) => state.includes(server.state)).length;
  const sum = (field) => lab.keys.reduce((total, key) => total + key[field], 0);
  const figures = [
    [lab.servers.length + lab.more_servers, "boards"],
    [sum("free"), "free"],
    [sum("leased"), "leased"],
    [sum("waiting"), "waiting"],
    [count(BAD) + count(["drained"]), "out of use"],
  ];
  show(at("totals"), figures, ([, word]) => word, ([number, word]) => make("li", {}, make("b", {}, String(number)), word));
}

function drawKey({ key, slots, free, leased, waiting, queue, steps }) {
  const counts = slots ? [`${free} of ${slots} free`, `${leased} leased`] : ["no server"];
  const card = make("article", { className: "card" },
    make("h3", {}, key || "any key (by label)"),
    make("p", {}, counts.join(", "), waiting ? `, ${waiting} waiting` : ""),
  );
  if (steps) {
    const { svg, top } = picture(key, steps);
    card.append(svg,
      make("p", { className: "scale" }, make("span", {}, "24 h ago"), make("span", {}, `top: ${+top.toFixed(1)}`), make("span", {}, "now")),
      make("p", { className: "legend" }, make("i", { className: "leased" }), "leased",
        make("i", { className: "slots" }), "there", make("i", { className: "waiting" }), "waiting"),
    );
  }
  if (queue.length) card.append(make("ol", {}, ...queue.map(drawWaiting)));
  if (waiting > queue.length) card.append(make("p", {}, `and ${waiting - queue.length} more`));
  return card;
}

function drawWaiting({ user, address, since, priority, count, labels, parked }) {
  const wants = Object.entries(labels).map(([label, value]) => `${label}=${value}`);
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
  const kind = BAD.includes(server.state) ? "bad" : ODD.includes(server.state) ? "odd" : server.state === "free" ? "free" : "busy";
  const note = [server.reason || null, server.until ? make("span", {}, "tried again in ", age(server.until, -1)) : null];
  const rows = (draw) => server.leases.map((lease) => make("div", {}, draw(lease)));
  return make("tr", {},
    cell("Board", make("span", {}, server.name, make("small", {}, labels(server)))),
    cell("Key", server.key),
    cell("State", make("span", {}, make("span", { className: `state ${kind}` }, server.state),
      ...note.filter((part) => part).map((part) => make("small", {}, part)))),
    server.leases.length ? cell("Held by", make("span", {}, ...rows((lease) => holder(lease)))) : cell("Held by"),
    server.leases.length ? cell("Since", make("span", {}, ...rows((lease) => age(lease.since)))) : cell("Since"),
    server.leases.length ? cell("Ends within", make("span", {}, ...rows((lease) => (lease.until ? age(lease.until, -1) : "no limit")))) : cell("Ends within"),
  );
}

function holder({ user, address, how, running, lease }) {
  const note = how === "inferred" ? " (inferred)" : how === "ours" && !running ? " (opening)" : "";
  return make("span", { title: `lease ${lease}` }, who(user, address) + note);
}

function labels({ address, labels: facts, slots }) {
  const named = Object.entries(facts).map(([label, value]) => `${label}=${value}`);
  return [address, slots > 1 ? `${slots} slots` : null, ...named].filter((part) => part).join(" ");
}

function away() {
  const boards = new Map();
  for (const { server, ...lease } of lab.away) {
    if (!boards.has(server)) {
      const reason = "its connection is gone; its sessions may go on";
      boards.set(server, { name: server, key: lease.key, state: "away", reason, until: null, slots: 1, address: "", labels: {}, leases: [] });
    }
    boards.get(server).leases.push(lease);
  }
  return [...boards.values()];
}

function boards() {
  const words = at("filter").value.toLowerCase().split(/\s+/).filter((word) => word);
  const text = (server) => [server.name, server.key, server.state, labels(server), ...server.leases.map((lease) => who(lease.user, lease.address))]
    .join("\n").toLowerCase();
  const all = [...away(), ...lab.servers];
  const shown = all.filter((server) => words.every((word) => text(server).includes(word)));
  show(at("boards"), shown, (server) => `${server.state === "away"} ${server.name}`, drawBoard);
  say("no-boards", shown.length ? "" : all.length ? "No board fits the filter." : "No board is here.");
  say("more-boards", lab.more_servers ? `and ${lab.more_servers} more; /api/summary has them all` : "");
}

function draw() {
  totals();
  const keys = lab.keys.map((key) => ({ ...key, steps: day.keys[key.key] ?? null }));
  show(at("keys"), keys, ({ key }) => key, drawKey);
  at("no-keys").hidden = lab.keys.length > 0;
  at("settling").hidden = !lab.settling;
  say("more-keys", lab.more_keys ? `and ${lab.more_keys} more keys` : "");
  say("version", `rpcsys ${lab.version}`);
  boards();
}

// Looking.

async function get(path) {
  const reply = await fetch(path, { signal: AbortSignal.timeout(PATIENCE_MS), cache: "no-store" });
  if (!reply.ok) throw new Error(`${path}: ${reply.status}`);
  return reply.json();
}

async function look() {
  try {
    if (performance.now() - dayAt > DAY_MS) {
      day = await get("/api/day");
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
  setTimeout(look, LOOK_MS);
}

function reached() {
  say("unreachable", "");
  at("lab").classList.remove("stale");
  at("status").className = "live";
  at("status").textContent = `live, tracker up for ${span(lab.now - lab.started)}`;
  document.title = `Device lab: ${lab.keys.reduce((sum, key) => sum + key.waiting, 0)} waiting`;
}

function unreachable(problem) {
  const since = reachedAt ? ` since ${reachedAt.toLocaleTimeString()}: what is shown is from then` : "";
  say("unreachable", `The tracker does not answer${since}. Trying again.`);
  at("unreachable").title = String(problem);
  at("lab").classList.add("stale");
  at("status").className = "";
  at("status").textContent = "not connected";
  dayAt = -Infinity;
  document.title = "Device lab: no answer";
}

at("filter").addEventListener("input", () => lab && boards());
setInterval(() => document.querySelectorAll(".age").forEach(tell), 1000);
look();
