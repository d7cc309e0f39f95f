// The table of services, groups and backends: only rows that are open and within a limit are in the document.

import { SPAN_S, backendKey, serviceKey, trouble } from "./model.js";
import { bits, drawSparkline, el, keyed, number, percent, setAttribute, setText, span, sparkline, time } from "./dom.js";

// Rows at first, and how many more each time.
const ROWS = 100;
const MORE = 200;
// So many backends in all are shown without being asked for.
const OPEN_BACKENDS = 40;

export class ServicesTable {
  #model;
  #section = document.getElementById("services");
  #body = this.#section.querySelector("tbody");
  #more = document.getElementById("services-more");
  #filter = document.getElementById("filter");
  #trouble = document.getElementById("trouble");
  // What has been opened or closed here, by key.
  #opened = new Map();
  #limit = ROWS;

  constructor(model) {
    this.#model = model;
    const again = () => {
      this.#limit = ROWS;
      this.draw();
    };
    this.#filter.addEventListener("input", again);
    this.#trouble.addEventListener("change", again);
    this.#more.addEventListener("click", () => {
      this.#limit += MORE;
      this.draw();
    });
    this.#body.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button === null) return;
      this.#opened.set(button.dataset.key, button.getAttribute("aria-expanded") !== "true");
      this.draw();
    });
  }

  draw() {
    const { trees } = this.#model;
    const rows = this.#rows();
    const shown = rows.slice(0, this.#limit);
    keyed(this.#body, shown, (row) => row.key, makeRow, (node, row) => this.#update(node, row));
    this.#more.hidden = rows.length <= shown.length;
    setText(this.#more, `Show ${Math.min(MORE, rows.length - shown.length)} more of ${rows.length} lines`);
    document.getElementById("services-none").hidden = rows.length > 0 || trees.length === 0;
    const groups = trees.reduce((count, tree) => count + tree.groups.length, 0);
    const backends = trees.reduce((count, tree) => count + tree.backends, 0);
    const parts = [[trees.length, "service"], [groups, "group"], [backends, "backend"]].filter(([count]) => count > 0);
    setText(document.getElementById("services-count"), parts.map(([count, what]) => plural(count, what)).join(", "));
  }

  // The rows that fit, those of services with trouble first.
  #rows() {
    const { trees } = this.#model;
    const words = this.#filter.value.toLowerCase().split(/\s+/).filter((word) => word !== "");
    const search = { words, only: this.#trouble.checked, isOn: words.length > 0 || this.#trouble.checked };
    const all = trees.reduce((count, tree) => count + tree.backends, 0);
    const isOpen = (key) => this.#opened.get(key) ?? (search.isOn || all <= OPEN_BACKENDS);
    const rows = [];
    for (const tree of troubledFirst(trees, (one) => one.down > 0 || isUnready(one.service))) {
      const { service, groups } = tree;
      const key = serviceKey(service);
      const isWhole = fits(search, service, null, null);
      const inner = backendRows(service, null, 1, search, isWhole);
      for (const group of troubledFirst(groups, (one) => one.backends.some((backend) => trouble(backend) === "down"))) {
        const groupKey = serviceKey(group);
        const isWholeGroup = isWhole || fits(search, service, group, null);
        const backends = backendRows(service, group, 2, search, isWholeGroup);
        if (!isWholeGroup && backends.length === 0) continue;
        inner.push({ kind: "group", key: groupKey, level: 1, service: group, isOpen: isOpen(groupKey) });
        if (isOpen(groupKey)) inner.push(...backends);
      }
      if (!isWhole && inner.length === 0) continue;
      rows.push({ kind: "service", key, level: 0, service, tree, isOpen: isOpen(key) });
      if (isOpen(key)) rows.push(...inner);
    }
    return rows;
  }

  #update(row, { kind, key, level, service, backend, tree, isOpen }) {
    const cells = row.parts;
    const rates = this.#model.rates.get(key) ?? {};
    const one = backend ?? service;
    const [word, why, tone] = backend ? backendState(backend, this.#model.now) : serviceState(service, tree);
    row.className = `level-${level} ${kind} ${tone}`;
    if (cells.button) {
      setAttribute(cells.button, "aria-expanded", String(isOpen));
      cells.button.dataset.key = key;
    }
    setText(cells.name, kind === "group" ? service.name.slice(service.group_of.length + 1) : one.name);
    setText(cells.detail, backend ? backend.address : kind === "group" ? "group" : `${service.listen}, ${service.balance}`);
    setText(cells.word, word);
    setText(cells.why, why);
    setText(cells.connections, number(one.connections));
    setText(cells.fresh, number(rates.fresh));
    setText(cells.requests, number(rates.requests));
    setText(cells.latency, kind === "service" ? time(rates.latency) : "");
    setText(cells.traffic, bits(rates.bits));
    setText(cells.offloaded, percent(rates.bits > 0 ? rates.offloaded / rates.bits : null));
    setText(cells.weight, backend ? String(backend.weight) : "");
    if (cells.spark) {
      const what = rates.requests === null || rates.requests === undefined ? "traffic" : "requests/s";
      const format = what === "traffic" ? bits : number;
      const history = this.#model.serviceHistories.get(key);
      if (history) drawSparkline(cells.spark, history, SPAN_S, `${service.name}: ${what}`, format);
    }
  }
}

export function plural(count, what) {
  return `${count.toLocaleString("en-US")} ${what}${count === 1 ? "" : "s"}`;
}

const isUnready = (service) => service.state !== "removed" && !service.ready;

function troubledFirst(all, isTroubled) {
  const troubled = all.filter(isTroubled);
  return troubled.length === 0 ? all : [...troubled, ...all.filter((one) => !isTroubled(one))];
}

function backendRows(service, group, level, search, isWhole) {
  const of = group ?? service;
  const fitting = of.backends.filter((backend) => (isWhole && !search.only) || fits(search, service, group, backend));
  const rows = fitting.map((backend) => ({ kind: "backend", key: backendKey(of, backend), level, service: of, backend }));
  return troubledFirst(rows, ({ backend }) => trouble(backend) === "down");
}

// Whether all words occur in what stands in a row, or in those of which it is a part.
function fits({ words, only, isOn }, service, group, backend) {
  if (!isOn) return true;
  // A group is there for its backends.
  const isTroubled = backend === null ? group === null && isUnready(service) : trouble(backend) !== "";
  if (only && !isTroubled) return false;
  const texts = [service.name, service.listen, service.protocol, group?.name ?? "", service.not_ready ?? ""];
  if (backend) texts.push(backend.name, backend.address, backend.state, backend.health.state, backend.health.reason);
  const text = texts.join(" ").toLowerCase();
  return words.every((word) => text.includes(word));
}

// A word, what there is to say about it, and its tone.
function serviceState(service, tree) {
  if (service.state === "removed") return ["removed", "its connections go on for a while", "plain"];
  const backends = tree ? tree.backends : service.backends.filter((backend) => backend.state !== "removed").length;
  const troubled = tree ? tree.troubled : service.backends.filter((backend) => trouble(backend) !== "").length;
  const up = `${(backends - troubled).toLocaleString("en-US")} of ${backends.toLocaleString("en-US")} in use`;
  if (!service.ready) return ["not ready", service.not_ready || up, "bad"];
  return ["ready", up, troubled > 0 ? "warn" : "good"];
}

function backendState(backend, now) {
  const { health } = backend;
  const since = health.since_unix_s > 0 ? `for ${span(now - health.since_unix_s)}` : "";
  const reason = [health.reason, since].filter((text) => text !== "").join(", ");
  const hand = backend.overridden ? "by command" : "";
  if (backend.state === "removed") return ["removed", "its connections go on for a while", "plain"];
  if (health.state === "down") {
    return [backend.state === "enabled" ? "down" : `${backend.state}, down`, reason, "bad"];
  }
  if (backend.state !== "enabled") return [backend.state, hand, "warn"];
  if (health.settling || health.state === "unknown") return ["first checks", reason, "warn"];
  if (health.state === "up") {
    const slow = health.weight_share < 1 ? `starts slowly, ${percent(health.weight_share)} of its weight` : "";
    return ["up", slow || since, "good"];
  }
  return ["enabled", "not checked", "plain"];
}

function makeRow({ kind }) {
  const parts = { name: el("span", { class: "name" }), detail: el("small", { class: "muted" }) };
  const first = el("th", { scope: "row" });
  if (kind === "backend") {
    first.append(parts.name, " ", parts.detail);
  } else {
    parts.button = el("button", { type: "button", class: "toggle" }, parts.name);
    first.append(parts.button, " ", parts.detail);
  }
  [parts.word, parts.why] = [el("span", { class: "state" }), el("small", { class: "why" })];
  const row = el("tr", {}, first, el("td", { class: "states" }, parts.word, " ", parts.why));
  const spark = el("td", { class: "spark narrow-3" });
  if (kind !== "backend") {
    parts.spark = sparkline();
    spark.append(parts.spark);
  }
  row.append(spark);
  for (const [name, more, label] of [
    ["connections", "", "connections"],
    ["fresh", "narrow-2", "new/s"],
    ["requests", "", "requests/s"],
    ["latency", "narrow-3", "p99"],
    ["traffic", "", "traffic"],
    ["offloaded", "narrow-2", "offloaded"],
    ["weight", "narrow-3", "weight"],
  ]) {
    parts[name] = el("td", { class: `number ${more}`, "data-label": label });
    row.append(parts[name]);
  }
  row.parts = parts;
  return row;
}
