// Everything but the table of services.

import { SPAN_S, isGroup, trouble } from "./model.js";
import { bits, drawSparkline, el, keyed, number, percent, setAttribute, setText, span, sparkline, time } from "./dom.js";
import { plural } from "./services.js";

const byId = (id) => document.getElementById(id);

// Lines of a list at first.
const ATTENTION_MAX = 8;
const EVENTS_FIRST = 12;
const DROPS_MAX = 12;
const CERTIFICATE_DAYS = 10;
// As in `hairpin status`.
const NEARLY_FULL = 0.9;

export function drawHeader(model) {
  const { status, now } = model;
  setText(byId("instance"), status.instance);
  const plane = status.plane ? `, plane ${status.plane}` : "";
  const parts = [`${status.version}, process ${status.pid}${plane}, up ${span(status.uptime_s)}`];
  if (status.began && status.began !== "fresh") parts.push(`began by ${status.began}`);
  const { reloads } = status;
  if (reloads.last_unix_s > 0) {
    const how = reloads.last_succeeded ? "applied" : "refused";
    parts.push(`last reload ${span(now - reloads.last_unix_s)} ago: ${how}`);
  } else {
    parts.push("no reload yet");
  }
  setText(byId("about"), parts.join(" · "));
  const unready = unreadyServices(status);
  const ready = byId("ready");
  ready.className = `pill ${unready.length === 0 ? "good" : "bad"}`;
  setText(ready, unready.length === 0 ? "ready" : `${plural(unready.length, "service")} not ready`);
  const title = `${unready.length === 0 ? "" : "not ready: "}${status.instance} · Hairpin`;
  if (document.title !== title) document.title = title;
}

const unreadyServices = (status) =>
  status.services.filter((one) => one.state !== "removed" && !one.ready && !isGroup(one));

export function drawAttention(model) {
  const found = attention(model);
  const shown = found.slice(0, ATTENTION_MAX);
  if (found.length > shown.length) {
    shown.push({ tone: "muted", what: "", text: `${plural(found.length - shown.length, "more line")}; tick “only trouble” below` });
  }
  const section = byId("attention");
  section.hidden = shown.length === 0;
  const make = () => {
    const parts = { what: el("strong"), text: el("span") };
    const item = el("li", {}, parts.what, " ", parts.text);
    item.parts = parts;
    return item;
  };
  keyed(section.querySelector("ul"), shown, (one) => `${one.what}\n${one.key ?? one.text}`, make, (item, one) => {
    item.className = one.tone;
    setText(item.parts.what, one.what);
    setText(item.parts.text, one.text);
  });
}

function attention({ status, now, offload }) {
  const found = [];
  for (const service of unreadyServices(status)) {
    found.push({ tone: "bad", what: service.name, key: "ready", text: `is not ready: ${service.not_ready}` });
  }
  const { reloads } = status;
  if (reloads.last_unix_s > 0 && !reloads.last_succeeded) {
    found.push({ tone: "bad", what: "reload", key: "reload", text: `was refused: ${reloads.last_error}` });
  }
  for (const one of capacities(status, offload).filter((one) => one.share >= NEARLY_FULL)) {
    found.push({ tone: "warn", what: one.name, key: "full", text: `is ${percent(one.share)} full${one.then}` });
  }
  for (const one of status.https?.certificates ?? []) {
    const days = (one.valid_until_unix_s - now) / 86_400;
    if (days >= CERTIFICATE_DAYS && !one.placeholder) continue;
    const name = one.names[0] ?? one.file;
    const text = one.placeholder ? "has no certificate yet" : days < 0 ? "has expired" : `expires in ${span(days * 86_400)}`;
    found.push({ tone: days < 0 ? "bad" : "warn", what: `certificate ${name}`, key: one.service, text });
  }
  for (const service of status.services) {
    for (const backend of service.backends) {
      if (trouble(backend) !== "down") continue;
      const { reason, since_unix_s: since } = backend.health;
      const text = `is down for ${span(now - since)}${reason ? `: ${reason}` : ""}`;
      found.push({ tone: "bad", what: `${service.name}/${backend.name}`, key: backend.address, text });
    }
  }
  return found;
}

const TILES = [
  ["requests", "Requests/s", number, ({ errors }) => (errors === null ? "" : `${percent(errors)} answered with 5xx`)],
  ["latency", "Time to response, p99", time, ({ median }) => (median === null ? "" : `median ${time(median)}`)],
  ["fresh", "New connections/s", number, ({ all }) => `${number(all)} so far`],
  ["bits", "Traffic", bits, (totals) => `${number(totals.packetsSoftware + totals.packetsOffloaded)} packets/s`],
  ["connections", "Connections now", number, () => ""],
  ["offloaded", "Offloaded bytes", percent, (totals) => `${bits(totals.bitsOffloaded)} by rules`],
];

export function drawTiles(model) {
  // Without HTTP services there is nothing to say of requests.
  const shown = TILES.filter(([name]) => model.status.http || (name !== "requests" && name !== "latency"));
  const make = ([, title]) => {
    const parts = { value: el("p", { class: "value" }), more: el("p", { class: "muted more" }), spark: sparkline() };
    const tile = el("div", { class: "tile" }, el("h3", {}, title), parts.value, parts.spark, parts.more);
    tile.parts = parts;
    return tile;
  };
  keyed(byId("tiles"), shown, ([name]) => name, make, (tile, [name, title, format, more]) => {
    tile.dataset.tile = name;
    setText(tile.parts.value, format(model.totals[name]));
    setText(tile.parts.more, more(model.totals));
    drawSparkline(tile.parts.spark, model.histories[name], SPAN_S, title, format);
  });
}

export function drawCarriers(model) {
  const { status, offload, totals } = model;
  const body = byId("carriers").querySelector(".body");
  if (!body.parts) body.parts = makeCarriers(body);
  const { parts } = body;
  const engine = status.offload.engine;
  const inSoftware = offload ? offload.in_software.reduce((sum, [, count]) => sum + count, 0) : null;
  // Where counting took too long, it ended early.
  const atLeast = offload?.is_part ? "at least " : "";
  const engineBits = totals.bitsOffloaded;
  const isCard = engine === "rte_flow";
  const lines = [
    ["software", "Software", "the workers", inSoftware, totals.bits - engineBits, totals.packetsSoftware],
    ["kernel", "Kernel", "rules of BPF", ...(isCard ? [null, null, null] : [offload?.offloaded, engineBits, totals.packetsOffloaded])],
    ["card", "Card", "rules of rte_flow", ...(isCard ? [offload?.offloaded, engineBits, totals.packetsOffloaded] : [null, null, null])],
  ];
  const all = (inSoftware ?? 0) + (offload?.offloaded ?? 0);
  for (const [name, , , connections, traffic, packets] of lines) {
    const line = parts[name];
    setText(line.connections, connections === null ? number(null) : `${atLeast}${number(connections)}`);
    setText(line.share, all > 0 && connections !== null ? percent(connections / all) : "–");
    setText(line.traffic, bits(traffic));
    setText(line.packets, number(packets));
    line.bar.style.flexGrow = all > 0 ? String((connections ?? 0) / all) : "0";
  }
  parts.bar.hidden = all === 0;
  const detail = status.offload.engine_detail ? ` (${status.offload.engine_detail})` : "";
  const what = engine === "none" ? "Nothing is offloaded" : `Policy ${status.offload.policy}, engine ${engine}`;
  setText(parts.policy, `${what}${detail}. Connections that are over count here until their rules are gone.`);
  setText(parts.failed, offload ? "" : model.offloadError);
  const reasons = [...(offload?.in_software ?? [])].sort((one, other) => other[1] - one[1]);
  const lacks = Object.entries(status.offload.engine_lacks ?? {});
  drawPairs(parts.reasons, [...reasons.map(([why, count]) => [why, `${atLeast}${number(count)}`]), ...lacks.map(([kind, why]) => [`${kind}: ${why}`, ""])]);
  parts.why.hidden = reasons.length + lacks.length === 0;
}

function makeCarriers(body) {
  const parts = { bar: el("div", { class: "stack", "aria-hidden": "true" }), policy: el("p", { class: "muted" }) };
  const rows = el("tbody");
  for (const [name, title, by] of [["software", "Software", "workers"], ["kernel", "Kernel", "BPF rules"], ["card", "Card", "its own rules"]]) {
    const line = { bar: el("span", { class: name }) };
    const cells = ["connections", "share", "traffic", "packets"].map((cell) => (line[cell] = el("td", { class: "number" })));
    const head = el("th", { scope: "row" }, el("span", { class: `swatch ${name}`, "aria-hidden": "true" }), `${title} `, el("small", { class: "muted" }, by));
    rows.append(el("tr", { "data-carrier": name }, head, ...cells));
    parts.bar.append(line.bar);
    parts[name] = line;
  }
  const titles = ["Carrier", "Connections", "Share", "Traffic", "Packets/s"];
  const head = el("tr", {}, ...titles.map((title, at) => el("th", { scope: "col", class: at > 0 ? "number" : "" }, title)));
  parts.failed = el("p", { class: "bad" });
  parts.why = el("h3", {}, "Connections in software, and why");
  parts.reasons = el("dl");
  body.append(parts.bar, el("div", { class: "scroll" }, el("table", {}, el("thead", {}, head), rows)), parts.policy, parts.failed, parts.why, parts.reasons);
  return parts;
}

function drawPairs(list, pairs) {
  const make = () => {
    const parts = { what: el("dt"), value: el("dd", { class: "number" }) };
    const line = el("div", {}, parts.what, parts.value);
    line.parts = parts;
    return line;
  };
  keyed(list, pairs, ([what]) => what, make, (line, [what, value]) => {
    setText(line.parts.what, what);
    setText(line.parts.value, value);
  });
}

// How full everything is that can be full, and what happens then.
function capacities(status, offload) {
  const { capacity, http, mbufs } = status;
  const all = [];
  const add = (name, used, max, then = "") => {
    if (max > 0) all.push({ name, used, max, share: used / max, then });
  };
  const lost = capacity.table_full_total > 0 ? `: ${number(capacity.table_full_total)} connections were refused` : "";
  add("connection table", capacity.entries, capacity.connections_max, lost);
  for (const worker of status.workers.length > 1 ? status.workers : []) {
    // One that is much fuller than the others.
    if (worker.entries / worker.connections_max > 2 * (capacity.entries / capacity.connections_max) + 0.05) {
      add(`connection table of worker ${worker.id}`, worker.entries, worker.connections_max, lost);
    }
  }
  if (status.offload.engine !== "none") {
    const rules = offload ? [["rules, IPv4", 0], ["rules, IPv6", 1]].map(([name, at]) => [name, offload.rules[at], offload.rules_max[at]]) : [];
    if (rules.length === 0) rules.push(["rules", status.offload.rules, status.offload.rules_max]);
    rules.forEach(([name, used, max]) => add(name, used, max, ": further connections stay in software when it is full"));
  }
  if (http) {
    add("HTTP and TLS clients", http.clients_entries, http.clients_max);
    add("HTTP buffers", http.buffers, http.buffers_max);
  }
  if (mbufs) add("packet buffers", mbufs.in_use, mbufs.max);
  return all.sort((one, other) => other.share - one.share);
}

export function drawCapacity({ status, offload }) {
  const [bars, workers] = byId("capacity").querySelectorAll("ul");
  drawBars(bars, capacities(status, offload).map((one) => ({ ...one, text: `${number(one.used)} of ${number(one.max)}` })));
  const busy = status.workers.map((worker) => {
    return { name: `worker ${worker.id}`, share: worker.busy_share, text: `core ${worker.cpu}` };
  });
  drawBars(workers, busy);
}

function drawBars(list, items) {
  const make = () => {
    const parts = { name: el("span"), text: el("small", { class: "muted" }), share: el("span", { class: "number" }) };
    parts.fill = el("span", { class: "fill" });
    parts.bar = el("div", { class: "bar", role: "meter", "aria-valuemin": "0", "aria-valuemax": "100" }, parts.fill);
    const item = el("li", {}, el("div", { class: "label" }, parts.name, " ", parts.text, parts.share), parts.bar);
    item.parts = parts;
    return item;
  };
  keyed(list, items, (one) => one.name, make, (item, { name, share, text }) => {
    const { parts } = item;
    const full = share >= 0.999 ? ", full" : share >= NEARLY_FULL ? ", nearly full" : "";
    item.className = share >= 0.999 ? "bad" : share >= NEARLY_FULL ? "warn" : "";
    setText(parts.name, name);
    setText(parts.text, text);
    setText(parts.share, `${percent(share)}${full}`);
    setAttribute(parts.bar, "aria-label", name);
    setAttribute(parts.bar, "aria-valuenow", String(Math.round(share * 100)));
    parts.fill.style.width = `${Math.min(100, share * 100)}%`;
  });
}

export function drawDrops({ drops }) {
  const body = byId("drops").querySelector(".body");
  if (!body.parts) {
    const parts = { none: el("p", { class: "muted" }, "Nothing so far."), rows: el("tbody") };
    const head = el("tr", {}, el("th", { scope: "col" }, "Reason"), el("th", { scope: "col", class: "number" }, "Per second"), el("th", { scope: "col", class: "number" }, "So far"));
    parts.table = el("div", { class: "scroll" }, el("table", {}, el("thead", {}, head), parts.rows));
    body.parts = parts;
    body.append(parts.none, parts.table);
  }
  const shown = drops.filter((one) => one.total > 0).sort((one, other) => (other.perS ?? 0) - (one.perS ?? 0) || other.total - one.total);
  body.parts.none.hidden = shown.length > 0;
  body.parts.table.hidden = shown.length === 0;
  const make = ({ what, name }) => {
    const row = el("tr", {}, el("th", { scope: "row" }, `${name} `, el("small", { class: "muted" }, what)), el("td", { class: "number" }), el("td", { class: "number" }));
    return row;
  };
  keyed(body.parts.rows, shown.slice(0, DROPS_MAX), (one) => `${one.what}\n${one.name}`, make, (row, one) => {
    setText(row.children[1], number(one.perS));
    setText(row.children[2], number(one.total));
  });
}

export function drawEvents(model) {
  const section = byId("events");
  const more = byId("events-more");
  const all = [...model.events].reverse();
  const shown = section.isWhole ? all : all.slice(0, EVENTS_FIRST);
  more.hidden = shown.length === all.length;
  more.onclick = () => {
    section.isWhole = true;
    drawEvents(model);
  };
  const make = (event) => {
    const moment = el("time", { datetime: event.time });
    const kind = el("span", { class: "kind" }, event.level === "warning" ? `warning, ${event.kind}` : event.kind);
    const line = el("li", { class: event.level === "warning" ? "warn" : "" }, moment, " ", kind, " ", el("span", { class: "message" }, event.message));
    line.parts = { moment };
    return line;
  };
  // At midnight a line that stays gets a date.
  const update = (line, event) => setText(line.parts.moment, local(event.time));
  keyed(section.querySelector("ul"), shown, (one) => `${one.time}\n${one.pid}\n${one.kind}\n${one.message}`, make, update);
}

// A time by the viewer's clock, with the day if it is another one.
function local(text) {
  const moment = new Date(text);
  if (Number.isNaN(moment.getTime())) return text;
  const clock = moment.toLocaleTimeString([], { hour12: false });
  return moment.toDateString() === new Date().toDateString() ? clock : `${moment.toLocaleDateString()} ${clock}`;
}
