// Elements, drawings and texts. Names, hosts and messages become text and never markup, wherever they come from.

const SVG = "http://www.w3.org/2000/svg";

function built(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

export function el(name, attributes = {}, ...children) {
  return built(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return built(document.createElementNS(SVG, name), attributes, children);
}

// Nothing is touched that stays as it is: a selection and the focus survive.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setAttribute(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

// Makes the children of `parent` those of `items`, in their order, and keeps the nodes of keys that were there before.
export function keyed(parent, items, keyOf, make, update) {
  const before = parent.nodesByKey ?? new Map();
  const now = new Map();
  let place = parent.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    if (now.has(key)) continue;
    const node = before.get(key) ?? make(item);
    update(node, item);
    now.set(key, node);
    if (node === place) place = place.nextSibling;
    else parent.insertBefore(node, place);
  }
  for (const [key, node] of before) if (!now.has(key)) node.remove();
  parent.nodesByKey = now;
}

const WIDTH = 120;
const HEIGHT = 32;

export function sparkline() {
  const drawing = svg("svg", { class: "sparkline", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
  drawing.append(svg("path", { class: "area" }), svg("path", { class: "line" }));
  return drawing;
}

// Draws a history over the last `span` seconds. `what` says what it is, and `format` writes a value.
export function drawSparkline(drawing, history, span, what, format) {
  const points = history.points;
  const [area, line] = drawing.children;
  if (points.length < 2) {
    setAttribute(drawing, "aria-label", `${what}: not enough is known yet`);
    return;
  }
  const last = points[points.length - 1].at;
  const values = points.map((point) => point.value);
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const top = most > 0 ? most : 1;
  const x = (at) => (WIDTH * (1 - (last - at) / span)).toFixed(1);
  const y = (value) => (HEIGHT - 2 - (HEIGHT - 4) * (value / top)).toFixed(1);
  const path = points.map((point, at) => `${at === 0 ? "M" : "L"}${x(point.at)} ${y(point.value)}`).join("");
  setAttribute(line, "d", path);
  setAttribute(area, "d", `${path}L${x(last)} ${HEIGHT}L${x(points[0].at)} ${HEIGHT}Z`);
  const label = `${what}, last three minutes: ${format(least)} to ${format(most)}, now ${format(values[values.length - 1])}`;
  setAttribute(drawing, "aria-label", label);
}

const NONE = "–";

// Three digits and a prefix: 0, 7.4, 950, 1,234, 12.3 k, 4.56 M.
export function number(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  if (value < 0.05) return "0";
  if (value < 10) return String(Math.round(value * 10) / 10);
  if (value < 10_000) return Math.round(value).toLocaleString("en-US");
  return scaled(value);
}

function scaled(value) {
  for (const prefix of ["", " k", " M", " G", " T"]) {
    if (value < 999.5) return (value < 10 ? value.toFixed(2) : value < 100 ? value.toFixed(1) : value.toFixed(0)) + prefix;
    value /= 1000;
  }
  return `${value.toFixed(0)} P`;
}

export function bits(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  if (value < 1) return "0 bit/s";
  const text = scaled(value);
  return text.includes(" ") ? `${text}bit/s` : `${value.toFixed(0)} bit/s`;
}

export function percent(share) {
  if (share === null || share === undefined || !Number.isFinite(share)) return NONE;
  if (share > 0 && share < 0.0005) return "<0.1 %";
  return share > 0 && share < 0.0995 ? `${(share * 100).toFixed(1)} %` : `${Math.round(share * 100)} %`;
}

export function time(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return NONE;
  if (seconds < 1e-3) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 1) return `${(seconds * 1e3).toPrecision(seconds < 0.1 ? 2 : 3)} ms`;
  return `${seconds.toPrecision(3)} s`;
}

// How long something lasts: the two largest units.
export function span(seconds) {
  let left = Math.max(0, Math.round(seconds));
  const parts = [];
  for (const [unit, length] of [["d", 86_400], ["h", 3600], ["min", 60], ["s", 1]]) {
    const count = Math.floor(left / length);
    left -= count * length;
    if (count > 0) parts.push(`${count}\u00a0${unit}`);
    if (parts.length === 2) break;
  }
  return parts.join(" ") || "0\u00a0s";
}
