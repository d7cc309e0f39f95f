// Asks the instance again and again, and draws what it says. Nothing here changes anything there.

import { Model } from "./model.js";
import { ServicesTable } from "./services.js";
import { drawAttention, drawCapacity, drawCarriers, drawDrops, drawEvents, drawHeader, drawTiles } from "./panels.js";
import { setText, span } from "./dom.js";

const INTERVAL_MS = 2000;
// Where an answer takes long, the next question waits for four times as long.
const SHARE = 4;
const INTERVAL_MAX_MS = 30_000;
const PATIENCE_MS = 15_000;

const model = new Model();
const table = new ServicesTable(model);
const away = document.getElementById("away");
const pause = document.getElementById("pause");
let timer = 0;
let isAsking = false;
let isPaused = false;
let answered = 0;

async function ask(path) {
  const response = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) }).catch((error) => {
    // A browser says no more.
    throw error instanceof TypeError ? new Error("no connection") : error;
  });
  if (!response.ok) throw new Error((await response.text()).trim() || `${path} was answered with ${response.status}`);
  return { body: await response.json(), date: Date.parse(response.headers.get("date") ?? "") };
}

// The rest is worth showing without it.
async function askIfKnown(path) {
  try {
    return { body: (await ask(path)).body, error: "" };
  } catch (error) {
    return { body: null, error: error.message };
  }
}

async function poll() {
  clearTimeout(timer);
  if (isAsking || isPaused || document.hidden) return;
  isAsking = true;
  const began = performance.now();
  let answers = null;
  try {
    answers = await Promise.all([ask("status"), askIfKnown("offload"), askIfKnown("events")]);
  } catch (error) {
    tellAway(error);
  }
  try {
    if (answers !== null) take(...answers);
  } catch (error) {
    tell(`This page cannot show what the instance says: ${error.message}.`);
  }
  isAsking = false;
  const took = performance.now() - began;
  const interval = Math.min(INTERVAL_MAX_MS, Math.max(INTERVAL_MS, SHARE * took));
  setText(document.getElementById("every"), `Asked every ${Math.round(interval / 1000)} s.`);
  timer = setTimeout(poll, Math.max(0, interval - took));
}

function take({ body: status, date }, offload, events) {
  // A newer program has a newer page.
  if (model.status !== null && model.status.version !== status.version) {
    location.reload();
    return;
  }
  answered = Date.now();
  model.offload = offload.body;
  model.offloadError = offload.error;
  if (events.body !== null) model.events = events.body.events;
  model.take(status, (Number.isNaN(date) ? answered : date) / 1000);
  away.hidden = true;
  document.body.classList.remove("away");
  draw();
}

function draw() {
  drawHeader(model);
  drawAttention(model);
  drawTiles(model);
  table.draw();
  drawCarriers(model);
  drawCapacity(model);
  drawDrops(model);
  drawEvents(model);
}

function tellAway(error) {
  const why = error.name === "TimeoutError" ? "no answer in time" : error.message;
  const last = answered > 0 ? ` What is shown is ${span((Date.now() - answered) / 1000)} old.` : "";
  tell(`The instance does not answer: ${why}.${last}`);
}

function tell(text) {
  setText(away, text);
  away.hidden = false;
  document.body.classList.add("away");
}

pause.addEventListener("click", () => {
  isPaused = !isPaused;
  pause.setAttribute("aria-pressed", String(isPaused));
  setText(pause, isPaused ? "Go on" : "Pause");
  poll();
});
document.addEventListener("visibilitychange", poll);
poll();
