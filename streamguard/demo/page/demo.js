// The demo page: two readers of one answer, and what became of it.
//
// The two functions below are all that reads; the page shows their own text. Everything else shows what they hand out,
// and what a model said is only ever text.

import { stream, VerdictError } from "/streams/streamguard.js";

async function readUnguarded(url, options, show) {
  const response = await fetch(url, options);
  const text = new TextDecoderStream();
  const reader = response.body.pipeThrough(text).getReader();
  let buffer = "";
  while (true) {
    const { done, value } = await reader.read();
    if (done) return; // no more: that was the answer
    buffer += value;
    const events = buffer.split("\n\n");
    buffer = events.pop();
    for (const event of events) {
      show(JSON.parse(event.slice(6))); // "data: "
    }
  }
}

async function readGuarded(url, options, show) {
  const answer = await stream(url, options);
  for await (const text of answer) {
    show(text, answer.receipt);
  }
  return answer.receipt; // only if it is whole
}

const QUIET_MS = 1000; // without a word, after which a side says for how long
const LIMITS = { livenessMs: 1200 }; // the server gives a sign of life every 400 ms
const RESUME = { baseMs: 100, maxWaitMs: 800 }; // servers ask for two seconds: a crowd would need them

const place = (id) => document.getElementById(id);
const number = new Intl.NumberFormat("en");
const counted = (count, what) => `${number.format(count)} ${what}${count === 1 ? "" : "s"}`;

/** One of the two: what it was given, and what it shows. */
class Side {
  text = "";
  #root;
  #since = null; // when it last got something, while it reads

  constructor(id, reader) {
    this.#root = place(id);
    this.part("code").textContent = String(reader);
  }

  part(name) {
    return this.#root.querySelector(`[data-part="${name}"]`);
  }

  say(state, words) {
    const shown = this.part("state");
    this.#root.dataset.state = state;
    if (shown.textContent !== words) shown.textContent = words;
  }

  begin() {
    this.text = "";
    this.#since = performance.now();
    this.part("answer").textContent = "";
    this.part("answer").setAttribute("aria-busy", "true");
    this.part("received").textContent = "nothing yet";
    this.say("reading", "Streaming");
  }

  took(text) {
    this.text += text;
    this.#since = performance.now();
    this.part("answer").textContent = this.text;
    this.part("received").textContent = counted([...this.text].length, "character");
    this.say("reading", "Streaming");
  }

  comesBack() {
    this.#since = performance.now();
    this.say("waiting", "Coming back");
  }

  end(state, words) {
    this.#since = null;
    this.part("answer").setAttribute("aria-busy", "false");
    this.say(state, words);
  }

  get reads() {
    return this.#since !== null;
  }

  /** Say for how long nothing came. */
  tick() {
    const silent = this.reads ? performance.now() - this.#since : 0;
    if (silent > QUIET_MS) this.say("waiting", `Silent for ${Math.floor(silent / 1000)} s`);
  }
}

const unguarded = new Side("unguarded", readUnguarded);
const guarded = new Side("guarded", readGuarded);
let run = null;

/** One pressing of Start. Nothing is shown of a run that another one has replaced. */
class Run {
  id = Array.from(crypto.getRandomValues(new Uint32Array(4)), (part) => part.toString(36)).join("-");
  #began = performance.now();
  #left = new AbortController();
  #connections = 0;
  #frames = 0;

  constructor() {
    place("events").textContent = "";
    for (const side of [unguarded, guarded]) side.begin();
    unguarded.part("lost").hidden = true;
    unguarded.part("receipt").textContent = "none";
    guarded.part("verified").textContent = "nothing yet";
    guarded.part("resumed").textContent = "not needed so far";
    guarded.part("receipt").textContent = "at the end";
    this.note("Started: the answer is on its way to both.");
    this.#readPlainly();
    this.#readVerified();
    enable();
  }

  leave() {
    this.#left.abort();
  }

  get #options() {
    return { method: "POST", headers: { "Demo-Run": this.id }, signal: this.#left.signal };
  }

  async #readPlainly() {
    try {
      await readUnguarded("/unguarded", this.#options, (text) => this.#isNow() && unguarded.took(text));
    } catch (error) {
      if (this.#isNow()) this.#failed(unguarded, "Unguarded", error);
      return;
    }
    if (!this.#isNow()) return;
    unguarded.end("done", "Finished");
    this.note(`Unguarded: finished, with ${counted([...unguarded.text].length, "character")}.`);
    this.#compare();
  }

  async #readVerified() {
    // Told of each connection: the first, and each in which the answer goes on.
    const noting = (url, init) => {
      this.#connections += 1;
      if (this.#connections > 1 && this.#isNow()) this.#resuming();
      return fetch(url, init);
    };
    const options = { ...this.#options, limits: LIMITS, resume: RESUME, fetch: noting };
    try {
      const receipt = await readGuarded("/guarded", options, (text, found) => this.#isNow() && this.#verified(text, found));
      if (!this.#isNow()) return;
      guarded.end("whole", "Complete, verified");
      this.#known(receipt);
      guarded.part("receipt").textContent = String(receipt);
      this.note(`Guarded: complete and verified, ${counted([...guarded.text].length, "character")}.`);
      this.#compare();
    } catch (error) {
      if (this.#isNow()) this.#failed(guarded, "Guarded", error);
    }
  }

  #verified(text, receipt) {
    guarded.took(text);
    this.#known(receipt);
  }

  #known({ frames, crc, resumes, duplicates }) {
    this.#frames = frames;
    const sum = crc === null ? "" : `, checksum ${crc.toString(16).padStart(8, "0")}`;
    guarded.part("verified").textContent = `${counted(frames, "frame")}${sum}`;
    if (!resumes) return;
    const twice = duplicates ? `${counted(duplicates, "frame")} came twice and went` : "nothing came twice";
    guarded.part("resumed").textContent = `${resumes === 1 ? "once" : `${resumes} times`}, ${twice}`;
  }

  #resuming() {
    guarded.comesBack();
    this.note(`Guarded: asks again, for what is behind frame ${this.#frames}.`);
  }

  #failed(side, name, error) {
    const why = error instanceof VerdictError ? "Incomplete" : "No answer";
    side.end("broken", why);
    this.note(`${name}: ${why.toLowerCase()}: ${error.message}`);
    enable();
  }

  /** What the one lacks is known once the other has all of it. */
  #compare() {
    enable();
    if (guarded.reads || !guarded.text.startsWith(unguarded.text)) return;
    const lost = guarded.text.slice(unguarded.text.length);
    unguarded.part("lost").hidden = !lost; // the other may have been a moment behind
    if (!lost) {
      unguarded.part("receipt").textContent = "none";
      return;
    }
    unguarded.part("lost-name").textContent = unguarded.reads
      ? "It waits for this, with no end in sight"
      : "Never came, and this reader was not told";
    unguarded.part("lost-text").textContent = lost;
    unguarded.part("receipt").textContent = `none: ${counted([...lost].length, "character")} of the answer are missing`;
    if (!unguarded.reads) this.note(`Unguarded lacks ${counted([...lost].length, "character")}, and shows no sign of it.`);
  }

  async fault(action, words) {
    this.note(words);
    const query = new URLSearchParams({ run: this.id, do: action });
    let streams = 0;
    try {
      ({ streams } = await (await fetch(`/fault?${query}`, { method: "POST" })).json());
    } catch {
      // The server is gone, and with it every connection.
    }
    if (this.#isNow() && !streams) this.note("No connection was open just then.");
  }

  /** A line of what happened; it is read out, so there are few. */
  note(words) {
    const line = document.createElement("li");
    const time = document.createElement("time");
    const seconds = (performance.now() - this.#began) / 1000;
    time.dateTime = `PT${seconds.toFixed(1)}S`;
    time.textContent = `${seconds.toFixed(1)} s`;
    const text = document.createElement("span");
    text.textContent = words;
    line.append(time, text);
    place("events").append(line);
  }

  #isNow() {
    return run === this;
  }
}

/** Buttons that have nothing to do keep the focus that they may have, and say that they are off. */
function enable() {
  const isOff = String(!(unguarded.reads || guarded.reads));
  for (const id of ["cut", "stall"]) place(id).setAttribute("aria-disabled", isOff);
}

function onPress(id, act) {
  place(id).addEventListener("click", () => {
    if (place(id).getAttribute("aria-disabled") !== "true") act();
  });
}

onPress("start", () => {
  run?.leave();
  run = null; // what the old run still gets is nobody's while the new one clears the page
  run = new Run();
  place("start").textContent = "Restart";
});
onPress("cut", () => run.fault("cut", "Connections cut."));
onPress("stall", () => run.fault("stall", "Connections stalled: they stay open, and nothing comes."));
setInterval(() => {
  for (const side of [unguarded, guarded]) side.tick();
}, 250);
