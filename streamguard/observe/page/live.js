// The live page: a picture of one process, kept new by a guarded stream.
//
// A picture comes whole, and then as what differs. What came is put together at once, and shown when the browser draws
// next: a page that draws slowly shows the newest and skips what was between. Labels came with requests: text only.

import { stream, UnexpectedResponse } from "../streamguard.js";

const FEED = new URL("feed", import.meta.url);
FEED.username = FEED.password = ""; // which `fetch` refuses, and the browser knows
const LIMITS = { livenessMs: 70_000, maxReceived: 0 };
const AGAIN_MS = [250, 8000]; // until a feed that ended, or was cut, is asked for again: at first, and at most
const QUIET_S = 5; // without an item, after which a stream is one that waits
const LATE = 3; // periods without a picture, after which the page says so
const KEPT = 200; // records of abnormal streams
const TITLES = {
  time_to_first_frame_seconds: "Until the first frame",
  time_per_item_seconds: "From item to item, on average of a stream",
  stream_duration_seconds: "From a stream's beginning to its end",
  blocked_seconds: "Waits for readers",
};

const place = (id) => document.getElementById(id);
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const clock = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });

const count = (value) => (value ?? null) === null ? "" : whole.format(value);
const rate = (value) => tenths.format(value);
const time = (seconds) => clock.format(new Date(seconds * 1000));

function span(seconds) {
  if ((seconds ?? null) === null) return "";
  if (seconds < 1) return `${tenths.format(seconds * 1000)} ms`;
  if (seconds < 10) return `${tenths.format(seconds)} s`;
  if (seconds < 120) return `${whole.format(seconds)} s`;
  return seconds < 7200 ? `${whole.format(seconds / 60)} min` : `${whole.format(seconds / 3600)} h`;
}

function size(bytes) {
  if ((bytes ?? null) === null) return "";
  if (bytes < 1000) return `${bytes} B`;
  return bytes < 1e6 ? `${tenths.format(bytes / 1000)} kB` : `${whole.format(bytes / 1e6)} MB`;
}

function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function made(name, text = "", kind = "") {
  const element = document.createElement(name);
  element.textContent = text;
  if (kind) element.className = kind;
  return element;
}

// ---- what is known -----------------------------------------------------------------------------

const known = { number: 0, head: null, rows: new Map(), records: [], histograms: {}, bounds: {}, process: null };
let came = 0; // when the newest picture did

/** Take a picture in. */
function take(picture) {
  if (picture.whole) {
    known.rows.clear();
    known.records = [];
    known.histograms = {};
    known.bounds = picture.bounds;
    known.process = picture.process;
  }
  known.number = picture.number;
  known.head = picture.head;
  for (const number of picture.gone) known.rows.delete(number);
  for (const [number, row] of Object.entries(picture.rows)) known.rows.set(number, row);
  Object.assign(known.histograms, picture.histograms);
  known.records = [...picture.records.reverse(), ...known.records].slice(0, KEPT);
  came = performance.now();
  draw();
}

// ---- what is shown -----------------------------------------------------------------------------

/** A table whose rows are kept by a key; cells are written where their text differs. */
class Table {
  #body;
  #rows = new Map();
  #numeric;

  constructor(id, columns, numeric) {
    this.#body = place(id);
    this.columns = columns;
    this.#numeric = numeric;
  }

  /** Show `entries`, of a key, texts, and what the row is marked with, in their order. */
  show(entries) {
    const there = new Set(entries.map(([key]) => key));
    for (const [key, row] of this.#rows) {
      if (there.has(key)) continue;
      row.remove();
      this.#rows.delete(key);
    }
    let next = this.#body.firstElementChild;
    for (const [key, texts, mark] of entries) {
      const row = this.#rows.get(key) ?? this.#made(key);
      if (row === next) next = row.nextElementSibling;
      else this.#body.insertBefore(row, next);
      if (row.dataset.mark !== mark) row.dataset.mark = mark;
      texts.forEach((text, at) => say(row.cells[at], text));
    }
  }

  #made(key) {
    const row = document.createElement("tr");
    for (let at = 0; at < this.columns; at += 1) {
      const cell = made(at === 0 ? "th" : "td", "", at >= this.#numeric ? "n" : "");
      if (at === 0) cell.scope = "row";
      row.append(cell);
    }
    this.#rows.set(key, row);
    return row;
  }
}

const openTable = new Table("open", 11, 5);
const abnormalTable = new Table("abnormal", 10, 7);

/** How a stream stands, in words; and whether it waits. */
function standing(state, heard, now) {
  const silent = Math.floor(now - heard);
  if (state === "starting") return silent < QUIET_S ? ["starting", ""] : [`no item for ${span(silent)}`, "waits"];
  if (state === "reader") return ["its reader takes nothing", "waits"];
  if (state === "streaming") return silent < QUIET_S ? ["streaming", ""] : [`silent for ${span(silent)}`, "waits"];
  return [state, state === "stalled" ? "bad" : "waits"];
}

function showOpen(now) {
  const only = place("quiet").checked;
  const entries = [];
  for (const [key, row] of known.rows) {
    const [name, part, route, request, began, state, heard, items, pace, , sent, blocked, acked] = row;
    const [words, mark] = standing(state, heard, now);
    if (only && !mark) continue;
    entries.push([key, [
      name, words, part, route ?? "", request ?? "", span(Math.max(0, Math.floor(now - began))), count(items),
      rate(pace), part === "producer" ? "" : size(sent), blocked ? span(blocked) : "", count(acked),
    ], mark]);
  }
  entries.sort(([one], [other]) => one - other);
  openTable.show(entries);
  const open = Object.values(known.head.open).reduce((sum, part) => sum + part, 0);
  say(place("listed"), entries.length === open ? `${open}` : `${entries.length} of ${open}`);
  place("none-open").hidden = entries.length > 0;
}

function showAbnormal() {
  abnormalTable.show(known.records.map((record) => [record.number, [
    time(Date.parse(record.time) / 1000), record.stream, record.status, record.cause, record.part, record.route ?? "",
    record.request_id ?? "", count(record.items), record.lost ? count(record.lost) : "", span(record.ended),
  ], record.lost ? "bad" : ""]));
  place("none-abnormal").hidden = known.records.length > 0;
}

const figures = new Map();

function figure(name, text, mark = "") {
  if (!figures.has(name)) {
    const pair = document.createElement("div");
    pair.append(made("dt", name), made("dd"));
    place("figures").append(pair);
    figures.set(name, pair);
  }
  const pair = figures.get(name);
  say(pair.lastElementChild, text);
  if (pair.dataset.mark !== mark) pair.dataset.mark = mark;
}

function showFigures({ open, closed, ...head }) {
  const ended = Object.values(closed).reduce((sum, part) => sum + part, 0);
  figure("Open", count(open.direct + open.producer));
  figure("Readers of logs", count(open.reader));
  figure("Items a second", rate(head.rate));
  figure("Items", count(head.items));
  figure("Parts ended", count(ended));
  figure("Abnormal", count(head.abnormal));
  figure("Lost frames", count(head.lost), head.lost ? "bad" : "");
  figure("Refused", count(head.refused));
  figure("Waiting for a slot", count(head.waiting), head.waiting ? "waits" : "");
  figure("Without a reader", count(head.detached));
  figure("Stalls", count(head.stalls));
  figure("Resumed", count(head.resumes));
  figure("Taken over", count(head.takeovers));
  figure("Loop lag", span(head.lag) || "not known");
  figure("An append to the log", span(head.log_latency) || "none");
  figure("Memory", size(head.resident) || "not known");
  figure("Process", head.draining ? "is told to go" : "takes streams", head.draining ? "waits" : "");
}

const charts = new Map();

/** A table of one distribution: a bar and a number for each range, so that it can be read out. */
function chart(name, bounds) {
  const table = document.createElement("table");
  const caption = made("caption", TITLES[name] ?? name);
  const body = document.createElement("tbody");
  const bars = [...bounds, null].map((bound) => {
    const row = document.createElement("tr");
    const label = made("th", bound === null ? "more" : `≤ ${span(bound)}`);
    label.scope = "row";
    const number = made("td", "", "n");
    const drawn = made("td", "", "bar");
    const bar = document.createElement("div");
    drawn.append(bar);
    drawn.setAttribute("aria-hidden", "true");
    row.append(label, number, drawn);
    body.append(row);
    return { number, bar };
  });
  table.append(caption, body);
  place("histograms").append(table);
  return bars;
}

function showHistograms() {
  for (const [name, counts] of Object.entries(known.histograms)) {
    if (!charts.has(name)) charts.set(name, chart(name, known.bounds[name]));
    const most = Math.max(1, ...counts);
    counts.forEach((number, at) => {
      const { number: cell, bar } = charts.get(name)[at];
      say(cell, count(number));
      bar.style.inlineSize = `${(100 * number) / most}%`;
    });
  }
}

let asked = false;
let paused = false;

/** Show what is known, when the browser draws next. */
function draw() {
  if (asked || paused || !known.head) return;
  asked = true;
  requestAnimationFrame(() => {
    asked = false;
    const { now } = known.head;
    showFigures(known.head);
    showOpen(now);
    showAbnormal();
    showHistograms();
    say(place("now"), time(now));
    say(place("worker"), `Process ${known.process.pid}`);
    document.documentElement.dataset.number = known.number;
  });
}

function tell(words, mark = "") {
  say(place("state"), words);
  place("state").dataset.mark = mark;
}

place("pause").addEventListener("click", () => {
  paused = !paused;
  place("pause").setAttribute("aria-pressed", String(paused));
  draw();
});
place("quiet").addEventListener("change", draw);

// ---- where it comes from -----------------------------------------------------------------------

/** Read one feed to its end. */
async function read() {
  const answer = await stream(FEED, { limits: LIMITS, resume: false });
  for await (const { item } of answer.frames()) {
    if (item?.type !== "picture") continue;
    take(item);
    tell("Live");
  }
}

const wait = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

async function follow() {
  for (let pause = AGAIN_MS[0]; ; pause = Math.min(2 * pause, AGAIN_MS[1])) {
    const number = known.number;
    let words = "Asking again";
    try {
      await read();
    } catch (error) {
      if (error instanceof UnexpectedResponse && [401, 403, 404].includes(error.status)) {
        tell("Not allowed any more: load the page again", "bad");
        return;
      }
      words = "No connection: what is shown is old";
    }
    tell(words, "waits");
    if (known.number !== number) pause = AGAIN_MS[0];
    await wait(pause * (0.75 + Math.random() / 2)); // pages that were cut together do not come back together
  }
}

setInterval(() => {
  const late = known.process && performance.now() - came > LATE * 1000 * known.process.period + 1000;
  if (late && place("state").textContent === "Live") tell("Nothing new: what is shown is old", "waits");
}, 1000);
follow();
