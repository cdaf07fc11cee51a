// Reads streams of streamguard in browsers and in Node (18 and later), verified. No dependencies, no build step.
//
//     import { stream } from "/streams/streamguard.js";
//
//     const answer = await stream("/chat", { method: "POST", json: { text: "Hello" } });
//     for await (const text of answer) show(text);     // ends only if the answer is whole, else throws
//     console.log(`${answer.receipt}`);                 // COMPLETE, 412 frames, crc 9ae0daaf, 1 resume
//
// Read from the bottom up: `stream` sends the request, an `Answer` reads and resumes, a `StreamVerifier` checks each
// frame against the only cursor that could stand beside it, one reader for each carrier makes records of bytes, and
// one for each dialect says what a frame's data means. The verifier knows no clock and no network, and comes to the
// same verdicts as the Python client: `docs/reference/wire-protocol.md` is what both follow.

export const MAX_FRAME = 16 * 1024 * 1024; // bytes of one frame's data
const MAX_NUMBER = Number.MAX_SAFE_INTEGER;
const FINAL_STATUSES = ["complete", "failed", "cancelled", "stalled", "slow", "shutdown"];
const EMPTY = new Uint8Array(0);

// ---- bytes and text -------------------------------------------------------------------------------------------

const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { ignoreBOM: true }); // else a text that begins with a BOM loses it
const strict = new TextDecoder("utf-8", { fatal: true });
const decode = (bytes) => decoder.decode(bytes);
// What is no text becomes "?" as in the Python client, so that a damaged frame fails the same check in both.
const encode = (text) => encoder.encode(/[\ud800-\udfff]/.test(text) ? text.replace(/\p{Surrogate}/gu, "?") : text);

const CRC = new Int32Array(256);
for (let byte = 0; byte < 256; byte += 1) {
  let value = byte;
  for (let bit = 0; bit < 8; bit += 1) value = value & 1 ? (value >>> 1) ^ 0xedb88320 : value >>> 1;
  CRC[byte] = value;
}

/** CRC-32 as in zlib, going on from `crc`. */
export function crc32(bytes, crc = 0) {
  let value = ~crc;
  for (let at = 0; at < bytes.length; at += 1) value = CRC[(value ^ bytes[at]) & 255] ^ (value >>> 8);
  return ~value >>> 0;
}

const hex = (crc) => crc.toString(16).padStart(8, "0");
const LF = Uint8Array.of(10);
const UNNAMED = Uint8Array.of(10, 10);

/** The chain after one more frame: `name LF status LF data LF`. */
function chain(crc, name, status, data) {
  const head = name === null && status === null ? UNNAMED : encode(`${name ?? ""}\n${status ?? ""}\n`);
  return crc32(LF, crc32(data, crc32(head, crc)));
}

/** Bytes that wait for more. It grows by doubling, so that a frame that comes byte by byte is linear work. */
class Waiting {
  #bytes = EMPTY;
  length = 0;

  add(data) {
    const size = this.length + data.length;
    if (size > this.#bytes.length) {
      const larger = new Uint8Array(Math.max(size, 2 * this.#bytes.length, 256));
      larger.set(this.#bytes.subarray(0, this.length));
      this.#bytes = larger;
    }
    this.#bytes.set(data, this.length);
    this.length = size;
  }

  get bytes() {
    return this.#bytes.subarray(0, this.length);
  }

  drop(size) {
    this.#bytes.copyWithin(0, size, this.length);
    this.length -= size;
  }

  /** All of it, which is the caller's from now on. */
  take() {
    const all = this.bytes;
    this.#bytes = EMPTY;
    this.length = 0;
    return all;
  }
}

/** A text up to `mark` and what follows it; all of it and nothing where there is no mark. */
function partition(text, mark) {
  const at = text.indexOf(mark);
  return at < 0 ? [text, ""] : [text.slice(0, at), text.slice(at + mark.length)];
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const asObject = (value) => (isObject(value) ? value : {});
const asText = (value) => (typeof value === "string" ? value : "");
const asIndex = (value) => (Number.isInteger(value) ? value : null);
const asKey = (value) => (typeof value === "string" ? value : asIndex(value));

/** Whether JSON says something: neither absent, nor zero, nor empty. */
const says = (value) => (typeof value === "object" && value !== null ? Object.keys(value).length > 0 : Boolean(value));

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

const NOT_A_NUMBER = "\0NaN";
const INSTEAD = { NaN: JSON.stringify(NOT_A_NUMBER), Infinity: "1e999", "-Infinity": "-1e999" };

/** The same of a server's event. Some write NaN and Infinity, which is no JSON: the text beside them would be lost. */
function parsedEvent(text) {
  const value = parsed(text);
  if (value !== undefined || !/NaN|Infinity/.test(text)) return value;
  try {
    const json = text.replace(/"[^"\\]*(?:\\.[^"\\]*)*"|-?Infinity|NaN/g, (found) => INSTEAD[found] ?? found);
    return JSON.parse(json, (key, part) => (part === NOT_A_NUMBER ? NaN : part));
  } catch {
    return undefined;
  }
}

// ---- errors ---------------------------------------------------------------------------------------------------

/** What all errors of this module are, save those of `fetch` itself and what an AbortSignal says. */
export class StreamGuardError extends Error {
  constructor(message, fields = {}) {
    super(message);
    this.name = new.target.name;
    Object.assign(this, fields);
  }
}

/** This side broke the rules. */
export class LocalProtocolError extends StreamGuardError {}
/** The answer was closed, or handed out already. */
export class StreamClosed extends LocalProtocolError {}
/** The other side did. */
export class RemoteProtocolError extends StreamGuardError {}

class WireError extends RemoteProtocolError {}
class CursorError extends WireError {
  constructor(text) {
    super(`not a cursor: ${JSON.stringify(text.slice(0, 128))}`);
  }
}

/** One frame above the reader's limit, in bytes. */
export class FrameTooLarge extends WireError {
  constructor(size, limit) {
    super(`a frame of at least ${size} bytes is above the reader's limit of ${limit}`, { size, limit });
    this.code = "too_large";
  }
}

/** The server answered with something that is no stream. */
export class UnexpectedResponse extends RemoteProtocolError {
  constructor({ status, contentType, body, why, retryAfterMs }) {
    const head = body.slice(0, 200);
    const beginning = head ? `, beginning ${JSON.stringify(head)}` : "";
    super(`${why || "no stream"}: HTTP ${status}, ${contentType || "no content type"}${beginning}`, {
      status, contentType, body, retryAfterMs,
    });
  }
}

/** A time limit passed: `limit` names it. */
export class LimitExceeded extends RemoteProtocolError {
  constructor(limit, milliseconds, cursor = null) {
    const what = {
      firstByteMs: "no response", livenessMs: "no byte, not even a heartbeat,", stallMs: "no frame, only heartbeats,",
    }[limit];
    super(`${what} within ${milliseconds} ms${cursor ? ` after ${cursor}` : ""}`, { limit, milliseconds, cursor });
  }
}

/** The stream was read and is not complete. */
export class VerdictError extends RemoteProtocolError {
  received = "";
}

/** The bytes ended before the terminal frame. */
export class TruncatedStream extends VerdictError {
  constructor(cursor, detail = "", frames = 0) { // how many events came where none has a cursor
    const where = !cursor && frames ? `after ${frames} event${frames > 1 ? "s" : ""} without its end marker`
      : `${cursor ? `after ${cursor}` : "before any verified frame"} without its terminal frame`;
    super(`the stream ended ${where}${detail ? `: ${detail}` : ""}`, { cursor, detail });
    this.code = null;
  }

  explained(detail) {
    if (!detail) return;
    this.message += `${this.detail ? ";" : ":"} ${detail}`;
    this.detail = this.detail ? `${this.detail}; ${detail}` : detail;
  }
}

/** A frame failed its checks; `code` names the first that did. */
export class CorruptStream extends VerdictError {
  constructor(code, cursor, detail = "") {
    const where = cursor ? `the frame after ${cursor}` : "the first frame";
    super(`${where} is corrupt (${code})${detail ? `: ${detail}` : ""}`, { code, cursor, detail });
  }
}

/** Frames are missing. */
export class StreamGap extends VerdictError {
  constructor(expected, got, cursor, detail = "", code = null) {
    const instead = got === null ? "" : `, ${got} came instead`;
    super(`frame ${expected} is missing${instead}${detail ? `: ${detail}` : ""}`, { expected, got, cursor, detail, code });
  }
}

/** The stream's own end says that it did not complete. */
export class FailedStream extends VerdictError {
  constructor(status, failure, cursor) {
    const code = failure && failure.code !== status ? `: ${failure.code}` : "";
    const why = failure ? `${code}: ${failure.message}` : "";
    super(`the stream ended as '${status}'${why}`, { status, failure, code: failure ? failure.code : null, cursor });
  }
}

// ---- cursors --------------------------------------------------------------------------------------------------

const CURSOR = /^([A-Za-z0-9_-]{22})\.(0|[1-9][0-9]{0,15})\.(0|[1-9][0-9]{0,15})\.([0-9a-f]{8})(?:\.([a-z]*)(?:\.[A-Za-z0-9._~-]*)?)?$/;

/** A position in a stream: `<sid>.<seq>.<offset>.<crc>`, and in a terminal's `.<status>`. */
export class Cursor {
  constructor(sid, seq, offset, crc, status = null) {
    this.sid = sid;
    this.seq = seq;
    this.offset = offset;
    this.crc = crc;
    this.status = status;
  }

  /** Throws for anything outside the grammar: a cursor comes from strangers. */
  static parse(text) {
    const found = text.length <= 128 && !text.endsWith("\n") ? CURSOR.exec(text) : null;
    if (!found || Number(found[2]) > MAX_NUMBER || Number(found[3]) > MAX_NUMBER) throw new CursorError(text);
    return new Cursor(found[1], Number(found[2]), Number(found[3]), parseInt(found[4], 16), found[5] || null);
  }

  static zero(sid) {
    return new Cursor(sid, 0, 0, crc32(encode(`streamguard/1 ${sid}`)));
  }

  static in(text) {
    try {
      return Cursor.parse(text);
    } catch {
      return null;
    }
  }

  equals(other) {
    return String(this) === String(other);
  }

  toString() {
    return `${this.sid}.${this.seq}.${this.offset}.${hex(this.crc)}${this.status ? `.${this.status}` : ""}`;
  }
}

// ---- carriers: bytes to records -------------------------------------------------------------------------------
//
// A record is {kind: "opening" | "frame" | "beat" | "bye", cursor, name, data, extra, reason, partial}, unverified.
// `feed` gives what is complete; `error` is then set if what follows is none of the carrier's.

const record = (kind, cursor, fields) => ({
  kind, cursor, name: null, data: EMPTY, extra: null, reason: "", partial: false, ...fields,
});

const frameRecord = (cursor, name, data, extra) => ({
  kind: "frame", cursor, name, data, extra, reason: "", partial: false,
});

const BOM = Uint8Array.of(0xef, 0xbb, 0xbf);
const ENDING_CURSOR = /^[A-Za-z0-9_-]{22}\./; // `: end <cursor>` is a terminal; `: end <crc8> <json>` is part of one

class SseReader {
  error = null;
  retry = null; // milliseconds after which the server wants to be asked again
  #records = [];
  #begun = null; // what may still become a byte-order mark; undefined once that is decided
  #afterCr = false;
  #line = new Waiting();
  #size = 0; // bytes that the block has so far
  #data = [];
  #event = EMPTY;
  #id = null;
  #comments = [];
  #ownIds;
  #maxFrame;
  #limit;

  constructor(ownIds, maxFrame) {
    this.#ownIds = ownIds; // null: an `open` event that bears cursor zero will tell
    this.#maxFrame = maxFrame;
    this.#limit = maxFrame + 1024;
    this.#begun = EMPTY;
  }

  feed(data) {
    const records = (this.#records = []);
    if (this.#begun !== undefined) data = this.#withoutMark(data);
    if (this.#afterCr && data.length) {
      this.#afterCr = false;
      if (data[0] === 10) data = data.subarray(1);
    }
    if (data.includes(13)) {
      this.#afterCr = data[data.length - 1] === 13;
      data = withLf(data);
    }
    let at = 0;
    for (let end = data.indexOf(10); end >= 0 && !this.error; end = data.indexOf(10, at)) {
      let line = data.subarray(at, end);
      at = end + 1;
      if (this.#line.length) {
        this.#size -= this.#line.length; // counted while the line was unfinished
        this.#line.add(line);
        line = this.#line.take();
      }
      this.#take(line);
    }
    if (at < data.length && !this.error) {
      this.#line.add(data.subarray(at));
      this.#size += data.length - at;
      if (this.#size > this.#limit) this.error = new FrameTooLarge(this.#size, this.#maxFrame);
    }
    return records;
  }

  /** Whether the bytes so far end inside an event. A comment is none. */
  get unfinished() {
    const isBegun = this.#data.length > 0 || this.#event.length > 0 || this.#id !== null;
    return isBegun || (this.#line.length > 0 && this.#line.bytes[0] !== 58);
  }

  end() {
    const records = (this.#records = []);
    if (this.#line.length) {
      this.#size -= this.#line.length;
      this.#take(this.#line.take());
    }
    if (!this.error) this.#take(EMPTY);
    for (const found of records) found.partial = true;
    return records;
  }

  #withoutMark(data) {
    if (!this.#begun.length && data.length && data[0] !== BOM[0]) {
      this.#begun = undefined;
      return data;
    }
    const head = new Uint8Array(this.#begun.length + data.length);
    head.set(this.#begun);
    head.set(data, this.#begun.length);
    const same = head.subarray(0, 3).every((byte, at) => byte === BOM[at]);
    this.#begun = same && head.length < 3 ? head : undefined;
    if (this.#begun) return EMPTY;
    return same ? head.subarray(3) : head;
  }

  #take(line) {
    if (!line.length) {
      if (this.#size) this.#blank();
    } else if (this.#size + line.length > this.#limit) {
      this.error = new FrameTooLarge(this.#size + line.length, this.#maxFrame);
    } else {
      this.#field(line);
    }
  }

  #field(line) {
    const colon = line.indexOf(58);
    if (colon === 0) {
      this.#comment(decode(line.subarray(1)));
      return;
    }
    // The name of most lines, without making a text of it.
    const isData = colon === 4 && line[0] === 100 && line[1] === 97 && line[2] === 116 && line[3] === 97;
    const name = isData ? "data" : decode(colon < 0 ? line : line.subarray(0, colon));
    let value = colon < 0 ? EMPTY : line.subarray(colon + 1);
    if (value[0] === 32) value = value.subarray(1);
    // Only what is kept counts: heartbeats without a blank line must not add up to a large frame.
    if (name === "data") {
      this.#data.push(value);
      this.#size += value.length + 1;
    } else if (name === "id" && !value.includes(0)) {
      this.#id = decode(value);
      this.#size += line.length;
    } else if (name === "event") {
      this.#event = value;
      this.#size += line.length;
    } else if (name === "retry" && /^[0-9]{1,100}$/.test(decode(value))) {
      this.retry = Number(decode(value));
      this.#size += line.length;
    }
  }

  #comment(text) {
    if (text.startsWith(" ")) text = text.slice(1);
    const [word, rest] = partition(text, " ");
    if (word === "end" && ENDING_CURSOR.test(rest)) {
      this.#records.push(record("frame", rest));
    } else if (word === "sg" || word === "end") {
      this.#comments.push(text);
      this.#size += text.length + 1;
    } else if (word === "hb") {
      this.#records.push(record("beat", rest));
    } else if (word === "streamguard" && rest.startsWith("1 ")) {
      this.#records.push(record("opening", rest.slice(2)));
    } else if (word === "bye") {
      const [cursor, reason] = partition(rest, " ");
      this.#records.push(record("bye", cursor, { reason }));
    }
  }

  #blank() {
    if (this.#data.length) {
      const data = this.#data.length === 1 ? this.#data[0] : joined(this.#data);
      if (data.length > this.#maxFrame) {
        this.error = new FrameTooLarge(data.length, this.#maxFrame);
        return;
      }
      this.#dispatch(data);
      this.#data = [];
    }
    this.#event = EMPTY;
    this.#id = null;
    this.#size = 0;
    if (this.#comments.length) this.#comments = [];
  }

  #dispatch(data) {
    let cursor = this.#id;
    let extra = null;
    for (const text of this.#comments) {
      const [word, rest] = partition(text, " ");
      if (word === "sg") cursor = rest;
      else extra = rest;
    }
    const event = this.#event.length ? decode(this.#event) : "";
    if (event) {
      // In `raw` an event of that name is a frame, and no frame's cursor is at zero.
      const isZero = cursor !== null && cursor.slice(22, 27) === ".0.0." && Cursor.in(cursor) !== null;
      if (this.#ownIds === null && event === "open" && isZero) this.#ownIds = true;
      if (this.#ownIds && (event === "open" || event === "bye" || event === "ping")) {
        this.#control(event, data, cursor);
        return;
      }
    }
    this.#records.push(frameRecord(cursor, event && event !== "message" ? event : null, data, extra));
  }

  #control(event, data, cursor) {
    if (event === "open") {
      this.#records.push(record("opening", cursor, { name: "open" }));
      return;
    }
    const fields = asObject(parsed(decode(data)));
    const reason = String(fields.reason ?? "");
    this.#records.push(record(event === "ping" ? "beat" : "bye", String(fields.cursor), { reason }));
  }
}

/** CR and CRLF as LF. */
function withLf(data) {
  const out = new Uint8Array(data.length);
  let size = 0;
  for (let at = 0; at < data.length; at += 1) {
    if (data[at] === 10 && data[at - 1] === 13) continue;
    out[size] = data[at] === 13 ? 10 : data[at];
    size += 1;
  }
  return out.subarray(0, size);
}

/** Lines of data, joined by LF. */
function joined(lines) {
  const out = new Uint8Array(lines.reduce((size, line) => size + line.length + 1, -1)).fill(10);
  let at = 0;
  for (const line of lines) {
    out.set(line, at);
    at += line.length + 1;
  }
  return out;
}

class NdjsonReader {
  error = null;
  retry = null;
  #line = new Waiting();
  #maxFrame;
  #limit;

  constructor(ownIds, maxFrame) {
    this.#maxFrame = maxFrame;
    this.#limit = 6 * maxFrame + 4096; // a byte grows at most sixfold when it is quoted
  }

  feed(data) {
    const records = [];
    try {
      let at = 0;
      for (let end = data.indexOf(10); end >= 0; end = data.indexOf(10, at)) {
        let line = data.subarray(at, end);
        at = end + 1;
        if (this.#line.length) {
          this.#line.add(line);
          line = this.#line.take();
        }
        if (line.some((byte) => byte !== 32 && (byte < 9 || byte > 13))) records.push(this.#record(line));
      }
      if (at < data.length) this.#line.add(data.subarray(at));
      if (this.#line.length > this.#limit) throw new FrameTooLarge(this.#line.length, this.#maxFrame);
    } catch (error) {
      if (!(error instanceof WireError)) throw error;
      this.error = error;
    }
    return records;
  }

  end() {
    try {
      return [{ ...this.#record(this.#line.take()), partial: true }];
    } catch {
      return []; // nothing, or half a line: the stream was cut, which is not for a decoder to judge
    }
  }

  #record(line) {
    if (line.length > this.#limit) throw new FrameTooLarge(line.length, this.#maxFrame);
    const fields = parsed(whole(line));
    const good = isObject(fields) && Object.keys(fields).every((key) => key === "blocked" || typeof fields[key] === "string");
    const has = (key) => good && Object.hasOwn(fields, key);
    if (has("data")) {
      const data = encode(fields.data);
      if (data.length > this.#maxFrame) throw new FrameTooLarge(data.length, this.#maxFrame);
      const cursor = has("id") ? fields.id : null;
      const name = has("event") && fields.event ? decode(encode(fields.event)) : null;
      return frameRecord(cursor, name, data, has("end") ? fields.end : null);
    }
    if (has("open")) return record("opening", fields.open);
    if (has("hb")) return record("beat", fields.hb);
    if (has("bye")) return record("bye", fields.bye, { reason: has("reason") ? fields.reason : "" });
    throw new WireError("a line that is no record of this carrier");
  }
}

/** The text of a line; none for what is no text. */
function whole(line) {
  try {
    return strict.decode(line);
  } catch {
    return withoutHalves(line);
  }
}

/** The same where surrogates are encoded, which Python takes: each is "?", as what is no text is elsewhere. */
function withoutHalves(line) {
  const isNext = (byte, least) => byte >= least && byte < 0xc0;
  const out = [];
  for (let at = 0; at < line.length; at += 1) {
    const isHalf = line[at] === 0xed && isNext(line[at + 1], 0xa0) && isNext(line[at + 2], 0x80);
    out.push(isHalf ? 63 : line[at]);
    if (isHalf) at += 2;
  }
  try {
    return strict.decode(Uint8Array.from(out));
  } catch {
    return "";
  }
}

const KINDS = ["frame", "beat", "bye"];
const PREAMBLE = 25; // "SG" 0x01, and the sid
const HEAD = 18; // kind, seq, offset, length of the name

class BinaryReader {
  error = null;
  retry = null;
  #waiting = new Waiting();
  #want = PREAMBLE; // bytes without which there is nothing to try
  #sid = null;
  #maxFrame;

  constructor(ownIds, maxFrame) {
    this.#maxFrame = maxFrame;
  }

  feed(data) {
    const records = [];
    this.#waiting.add(data);
    const bytes = this.#waiting.bytes;
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
    let at = 0;
    try {
      while (bytes.length - at >= this.#want) {
        const [found, size] = this.#sid === null ? this.#preamble(bytes) : this.#one(bytes, view, at);
        if (!found) {
          this.#want = size;
          break;
        }
        records.push(found);
        at += size;
        this.#want = HEAD;
      }
    } catch (error) {
      if (!(error instanceof WireError)) throw error;
      this.error = error;
    }
    if (at) this.#waiting.drop(at);
    return records;
  }

  end() {
    return []; // half a record: the stream was cut; lengths leave nothing to guess
  }

  #preamble(bytes) {
    if (bytes[0] !== 83 || bytes[1] !== 71 || bytes[2] !== 1) throw new WireError("not a streamguard binary stream");
    this.#sid = decode(bytes.subarray(3, PREAMBLE));
    return [record("opening", null, { data: encode(this.#sid) }), PREAMBLE];
  }

  /** The record at `at` and its size, or null and how many bytes it needs at least. */
  #one(bytes, view, at) {
    const left = bytes.length - at;
    const nameEnd = at + HEAD + bytes[at + 17];
    const header = nameEnd + 5 - at;
    if (left < header + 4) return [null, header + 4];
    // The header's own CRC first: a flipped bit in a length would make a reader wait for data that never comes.
    if (view.getUint32(at + header) !== crc32(bytes.subarray(at, at + header))) {
      throw new WireError("a record's header does not match its checksum");
    }
    const status = bytes[nameEnd];
    const size = view.getUint32(nameEnd + 1);
    if (size > this.#maxFrame) throw new FrameTooLarge(size, this.#maxFrame);
    const body = at + header + 4;
    let need = header + 4 + size + 4;
    let extraSize = 0;
    if (status) {
      need += 4;
      if (left < need) return [null, need];
      extraSize = view.getUint32(at + need - 4);
      if (extraSize > this.#maxFrame) throw new FrameTooLarge(extraSize, this.#maxFrame);
      need += extraSize;
    }
    if (left < need) return [null, need];
    const kind = KINDS[bytes[at]];
    if (kind === undefined || status > FINAL_STATUSES.length) throw new WireError("a record of unknown kind or status");
    const name = decode(bytes.subarray(at + HEAD, nameEnd));
    const numbers = `${number64(view, at + 1)}.${number64(view, at + 9)}.${hex(view.getUint32(body + size))}`;
    const cursor = `${this.#sid}.${numbers}${status && kind === "frame" ? `.${FINAL_STATUSES[status - 1]}` : ""}`;
    if (kind !== "frame") return [record(kind, cursor, { reason: name }), need];
    const extra = decode(bytes.subarray(at + need - extraSize, at + need));
    return [frameRecord(cursor, name || null, bytes.slice(body, body + size), extra || null), need];
  }
}

/** A u64 in digits: above 2^53 the number would be another one. */
function number64(view, at) {
  const high = view.getUint32(at);
  return high < 0x200000 ? String(high * 0x100000000 + view.getUint32(at + 4)) : String(view.getBigUint64(at));
}

const WIRES = { sse: SseReader, ndjson: NdjsonReader, binary: BinaryReader };
const CONTENT_TYPES = {
  "text/event-stream": "sse",
  "application/x-ndjson": "ndjson",
  "application/vnd.streamguard.v1": "binary",
};

// ---- blocks: what is more than text, handed out when it is whole ------------------------------------------------
//
// A block is {type, …fields}. Chat chunks say when a choice ends, and nothing of when a call does; its pieces are told
// apart by index and id, in any order. Anthropic's events open and close each block, those of Responses repeat it whole.
// Servers depart from that, and none of it may lose a call or make one of two: several whole calls under one index, an
// id in every piece, a name in pieces or in every piece. What an ended stream left open is handed out by `rest`: a call
// that is whole as one, else as cut off. What was handed out before is not handed out again.

const MAX_HELD = 16 * 1024 * 1024; // characters of one block that is not whole yet; no writer makes a larger one
const MAX_CHOICES = 1024; // and blocks that wait for their end: what is kept for each is looked through at each event
const CUT_REASONS = new Set(["length", "content_filter", "abort", "error"]); // that end a choice wherever it is
const NO_BLOCKS = Object.freeze([]);
const MAX_DEPTH = 256; // of the arguments of a call: deeper ones, and longer integers, are not read by every language
const MAX_DIGITS = 4300;
const JSON_SPACE = /^[ \t\n\r]*$/;
const NUMBER = /-?[0-9]+([.eE][0-9.eE+-]*)?/y;

/** Whether JSON is more than every reader of it takes, as Python's, so that no call is one to run here and none there. */
function isTooMuch(text) {
  if (text.length <= 2 * MAX_DEPTH) return false;
  let depth = 0;
  let quoted = false;
  for (let at = 0; at < text.length; at += 1) {
    const character = text[at];
    if (character === "\\") at += 1; // JSON has it in strings only
    else if (character === '"') quoted = !quoted;
    else if (quoted) continue;
    else if (character === "{" || character === "[") depth += 1;
    else if (character === "}" || character === "]") depth -= 1;
    else if (character === "-" || (character >= "0" && character <= "9")) {
      NUMBER.lastIndex = at;
      const [number, fraction] = NUMBER.exec(text);
      if (fraction === undefined && number.length - (character === "-") > MAX_DIGITS) return true;
      at += number.length - 1;
    }
    if (depth > MAX_DEPTH) return true;
  }
  return false;
}

/** Whether a text is what a call may be run with. */
const areArguments = (text) => isObject(parsed(text)) && !isTooMuch(text);

/** What grows by pieces, within a bound. */
class Pieces {
  text = "";

  constructor(first = "") {
    this.add(first);
  }

  add(piece) {
    this.text += piece;
    if (this.text.length > MAX_HELD) throw new RangeError(`a block has more than ${MAX_HELD} characters`);
  }
}

/** The arguments of a call: whether they are whole is asked at many pieces, and each is looked at once. */
class Arguments extends Pieces {
  #depth = 0;
  #quoted = false;
  #escaped = false;
  #began = false;
  #known = null; // the answer for what came so far

  add(piece) {
    super.add(piece);
    if (!JSON_SPACE.test(piece)) this.#known = this.#known === null ? null : false; // nothing may follow an object
    for (let at = 0; at < piece.length; at += 1) {
      const character = piece[at];
      if (this.#escaped) this.#escaped = false;
      else if (this.#quoted) {
        if (character === "\\") this.#escaped = true;
        else if (character === '"') this.#quoted = false;
      } else if (character === '"') this.#quoted = true;
      else if (character === "{") {
        this.#depth += 1;
        this.#began = true;
      } else if (character === "}") this.#depth -= 1;
    }
  }

  /** Whether they are a JSON object. Its braces are even at its end only, so that they are parsed once. */
  get whole() {
    if (this.#began && this.#depth === 0) this.#known ??= areArguments(this.text);
    return this.#known === true;
  }
}

const requireRoom = (size, what) => {
  if (size >= MAX_CHOICES) throw new RangeError(`more than ${MAX_CHOICES} ${what} at once`);
};
const finite = (key, value) => {
  if (typeof value === "number" && !Number.isFinite(value)) throw new RangeError("JSON has no form for it");
  return value;
};
const without = (fields) => Object.fromEntries(Object.entries(fields).filter(([key]) => key !== "type"));

/** The same JSON, in whatever order. */
function equal(a, b) {
  if (typeof a !== "object" || typeof b !== "object" || a === null || b === null) return a === b;
  const keys = Object.keys(a);
  return Array.isArray(a) === Array.isArray(b) && keys.length === Object.keys(b).length &&
    keys.every((key) => Object.hasOwn(b, key) && equal(a[key], b[key]));
}

/** A call as it is handed out. A part of a JSON object is never one, so arguments that are one are whole. `cut`: its
 * choice ended for another reason than to call it; then no arguments at all are a part, else an object without members. */
function callRead(id, name, told, { cut = false, choice = 0 } = {}) {
  const text = cut ? told : told || "{}";
  const type = areArguments(text) ? "tool_call" : "invalid_tool_call";
  return { type, id, name, arguments: text, ...(choice && { choice }) };
}

/** The same of a call whose arguments came as JSON instead of text. NaN, which some servers write, has no form in it, and
 * no call is run with something else instead. */
function callGiven(id, name, input, more = {}) {
  let text;
  try {
    text = withLineEnds(JSON.stringify(input ?? null, finite));
  } catch {
    return callRead(id, name, "", { cut: true });
  }
  return callRead(id, name, text, more);
}

/** A call that must not be run. */
const spare = (block) => (block.type === "tool_call" ? { ...block, type: "invalid_tool_call" } : block);

/** A block that came whole: its arguments may be cut off all the same, by the model's own limit. */
function asCall(item) {
  if (item.type !== "tool_call") return item;
  const told = says(item.arguments) ? item.arguments : "{}";
  const isWhole = typeof told === "string" ? areArguments(told) : isObject(told);
  return { ...item, type: isWhole ? "tool_call" : "invalid_tool_call", arguments: told };
}

/** What of one choice of a chat is not whole yet. */
class Choice {
  #index;
  #reason = "";
  #calls = [];
  #told = []; // calls that were handed out, which some servers repeat behind their reason
  #held = { reasoning: new Pieces(), refusal: new Pieces() };

  constructor(index) {
    this.#index = index;
  }

  take(delta) {
    this.#held.reasoning.add(asText(says(delta.reasoning) ? delta.reasoning : delta.reasoning_content));
    this.#held.refusal.add(asText(delta.refusal));
    const pieces = delta.tool_calls;
    if (Array.isArray(pieces)) for (const piece of pieces) this.#call(asObject(piece));
    return says(pieces) || says(delta.content) ? this.#over("reasoning") : NO_BLOCKS;
  }

  ended(reason) {
    this.#reason = reason;
    const calls = this.#calls.splice(0);
    if (calls.length) this.#told = calls;
    return [...this.#over("reasoning"), ...this.#over("refusal"), ...calls.map((call) => this.#made(call))];
  }

  /** What came behind the finish reason, or had none. */
  rest() {
    const same = (a, b) => a.id === b.id && a.name.text === b.name.text && a.told.text === b.told.text;
    const blocks = [...this.#over("reasoning"), ...this.#over("refusal")];
    for (const call of this.#calls) {
      if (!(call.id || call.name.text || call.told.text) || this.#told.some((one) => same(one, call))) continue;
      // A piece of a call that was handed out without it, or another form of one: neither may be run.
      const isSpare = !call.name.text || (call.id && this.#told.some(({ id }) => id === call.id));
      blocks.push(isSpare ? spare(this.#made(call)) : this.#made(call));
    }
    return blocks;
  }

  #made({ id, name, told }) {
    const cut = !this.#reason || CUT_REASONS.has(this.#reason);
    return callRead(id, name.text, told.text, { cut, choice: this.#index });
  }

  #over(type) {
    const { text } = this.#held[type];
    if (!text) return NO_BLOCKS;
    this.#held[type] = new Pieces();
    return [{ type, text, ...(this.#index && { choice: this.#index }) }];
  }

  #call(piece) {
    const named = asObject(piece.function);
    const call = this.#callOf(piece, named);
    const name = asText(named.name);
    // A name comes in pieces, or anew with every piece.
    if (name !== call.name.text || !(call.told.text || says(piece.id))) call.name.add(name);
    call.told.add(asText(named.arguments));
  }

  /** The call that a piece goes on with, or a new one. */
  #callOf(piece, named) {
    const [index, id] = [asKey(piece.index), asText(piece.id)];
    let last = null;
    for (const call of this.#calls) {
      if (index !== null && call.index !== index) continue;
      if (id && call.id === id) return call;
      last = call;
    }
    // A name where a whole call stands begins another: some servers give all of them one index, and no ids.
    if (last && !(id && last.id) && !(says(named.name) && last.told.whole)) {
      last.id ||= id;
      return last;
    }
    requireRoom(this.#calls.length, "tool calls");
    const call = { index, id, name: new Pieces(), told: new Arguments() };
    this.#calls.push(call);
    return call;
  }
}

function reasoningOf(item) {
  for (const parts of [item.content, item.summary]) {
    if (Array.isArray(parts) && parts.length) return parts.map((part) => asText(asObject(part).text)).join("");
  }
  return "";
}

/** The blocks of chat chunks: calls at their choice's finish reason, reasoning when something else follows. */
class ChatBlocks {
  #choices = new Map();

  take({ index, delta, finish_reason: reason }) {
    if (!says(asObject(delta)) && !says(reason)) return NO_BLOCKS;
    const number = asIndex(index) ?? 0;
    if (!this.#choices.has(number)) {
      requireRoom(this.#choices.size, "choices");
      this.#choices.set(number, new Choice(number));
    }
    const choice = this.#choices.get(number);
    const blocks = choice.take(asObject(delta));
    return says(reason) ? [...blocks, ...choice.ended(String(reason))] : blocks;
  }

  rest() {
    return [...this.#choices.values()].flatMap((choice) => choice.rest());
  }
}

/** The content blocks of Anthropic's events, each at its stop. */
class AnthropicBlocks {
  #open = new Map(); // of each its start, pieces, signature

  take(kind, { index, content_block: block, delta }) {
    const key = asKey(index);
    const open = this.#open.get(key);
    if (kind === "content_block_start") return this.#start(key, asObject(block), open);
    if (open && kind === "content_block_delta") {
      const piece = asObject(delta);
      open.pieces.add(asText(piece.partial_json) || asText(piece.thinking));
      open.signature.add(asText(piece.signature));
    } else if (open && kind === "content_block_stop") {
      this.#open.delete(key);
      return [this.#made(open)];
    }
    return NO_BLOCKS;
  }

  /** The blocks that were never stopped. */
  rest() {
    return [...this.#open.values()].map((open) => this.#made(open, true));
  }

  #start(key, start, before) {
    this.#open.delete(key);
    if (start.type !== "text") {
      requireRoom(this.#open.size, "content blocks");
      this.#open.set(key, { start, pieces: new Pieces(asText(start.thinking)), signature: new Pieces() });
    }
    if (!before) return NO_BLOCKS;
    const block = this.#made(before, true);
    // One that begins anew under its own id was not to be run.
    return [block.type === "tool_call" && block.id === asText(start.id) ? spare(block) : block];
  }

  #made({ start, pieces: { text: pieces }, signature }, cut = false) {
    const type = asText(start.type);
    if (type === "tool_use") {
      const [id, name, told] = [asText(start.id), asText(start.name), start.input];
      // Some give the input whole at the start.
      if (says(told) && !pieces && typeof told !== "string") return callGiven(id, name, told, { cut });
      return callRead(id, name, pieces || asText(told), { cut });
    }
    if (type === "thinking") {
      const signed = signature.text || asText(start.signature);
      return { type: "reasoning", text: pieces, ...(signed && { signature: signed }) };
    }
    return { type, ...without(start), ...(pieces && { arguments: pieces }) };
  }
}

/** The output items of Responses' events, each at its end; one that has none as the last event repeats it. */
class ResponsesBlocks {
  #done = []; // what items were handed out
  #open = new Map(); // calls that were begun, by their item
  #begun = 0; // calls
  #output = []; // of the last event

  take(kind, payload) {
    const item = asObject(payload.item);
    if (kind === "response.refusal.done") return [{ type: "refusal", text: asText(payload.refusal) }];
    if (kind === "response.output_item.done") {
      this.#open.delete(placeOf(payload, item.id));
      this.#done.push(markOf(item));
      return itemBlocks(item);
    }
    if (kind === "response.output_item.added" && item.type === "function_call") {
      requireRoom(this.#open.size, "tool calls");
      const [name, told] = [asText(item.name), new Pieces(asText(item.arguments))];
      this.#open.set(placeOf(payload, item.id), { id: callIdOf(item), name, told });
      this.#begun += 1;
    } else if (kind === "response.function_call_arguments.delta" && this.#open.size) {
      // Where a server does not say of which, of the last one.
      const call = this.#open.get(placeOf(payload, payload.item_id)) ?? [...this.#open.values()].at(-1);
      call.told.add(asText(payload.delta));
    } else if (kind === "response.completed" || kind === "response.incomplete") {
      const { output } = asObject(payload.response);
      this.#output = Array.isArray(output) ? output : [];
    }
    return NO_BLOCKS;
  }

  /** The items that had no end of their own, and calls that nothing repeats, as far as they came. */
  rest() {
    const items = this.#output.map(asObject).filter(says);
    const kinds = new Set(items.map((item) => asText(item.type)));
    const untold = [...kinds].flatMap((kind) => this.#untold(kind, items));
    const ended = [...this.#done, ...untold.map(markOf)].filter(({ type }) => type === "function_call");
    const ids = new Set(ended.map(({ callId }) => callId));
    const calls = [...this.#open.values()].filter(({ id }) => !ids.has(id));
    const missing = lastOf(calls, this.#begun - ended.length);
    const cut = missing.map(({ id, name, told }) => callRead(id, name, told.text, { cut: true }));
    return [...untold.flatMap(itemBlocks), ...cut];
  }

  /** The items of a type that were not handed out. They are counted first: some servers give an item another id in their
   * last event, and a call that is handed out twice would be run twice. */
  #untold(kind, items) {
    const same = items.filter((item) => asText(item.type) === kind);
    const done = this.#done.filter(({ type }) => type === kind);
    const left = same.filter((item) => !done.some((mark) => isSame(markOf(item), mark)));
    return lastOf(left, same.length - done.length);
  }
}

const lastOf = (list, count) => (count > 0 ? list.slice(-count) : []);

/** What tells the item of an event: its id, or its place among the others. */
const placeOf = (payload, id) => asText(id) || asIndex(payload.output_index);

const callIdOf = (item) => asText(says(item.call_id) ? item.call_id : item.id);

/** What an item is known by: its type, ids, and what it says, if it is a call. */
function markOf(item) {
  const type = asText(item.type);
  const said = type === "function_call" ? JSON.stringify([asText(item.name), asText(item.arguments)]) : null;
  return { type, id: asText(item.id), callId: callIdOf(item), said };
}

const isSame = (a, b) =>
  Boolean(a.id && a.id === b.id) || Boolean(a.callId && a.callId === b.callId) || (a.said !== null && a.said === b.said);

function itemBlocks(item) {
  const type = asText(item.type);
  if (type === "message") return NO_BLOCKS; // its text was handed out, and so was its refusal
  if (type === "function_call") {
    return [callRead(callIdOf(item), asText(item.name), asText(item.arguments), { cut: item.status === "incomplete" })];
  }
  if (type === "reasoning") return [{ type, text: reasoningOf(item) }];
  if (type === "image_generation_call") return [{ type: "image", data: item.result ?? null }];
  return [{ type, ...without(item) }];
}

/** The blocks that the events of any provider make whole. */
class ProviderBlocks {
  #chat = new ChatBlocks();
  #anthropic = new AnthropicBlocks();
  #responses = new ResponsesBlocks();

  take(payload) {
    if (Array.isArray(payload.choices)) return payload.choices.flatMap((choice) => this.#chat.take(asObject(choice)));
    const kind = asText(payload.type);
    return (kind.startsWith("content_block_") ? this.#anthropic : this.#responses).take(kind, payload);
  }

  rest() {
    return [...this.#chat.rest(), ...this.#anthropic.rest(), ...this.#responses.rest()];
  }
}

/** Pieces by the name of what they are of; `take` ends one. */
class Held {
  #held = new Map();

  add(key, piece) {
    if (!this.#held.has(key)) this.#held.set(key, new Pieces());
    this.#held.get(key).add(piece);
  }

  take(key) {
    const text = this.#held.get(key)?.text ?? "";
    this.#held.delete(key);
    return text;
  }

  /** What was not ended: of each its name and text. */
  rest() {
    return [...this.#held].map(([key, { text }]) => [key, text]);
  }
}

const thoughtsOf = (held) => held.rest().map(([, text]) => ({ type: "reasoning", text }));

/** Those of the AI SDK's chunks. */
class UiBlocks {
  #input = new Held();
  #names = new Map(); // of the tools whose calls have begun, by the call's id
  #thoughts = new Held();

  take(chunk) {
    const [kind, id, key] = [asText(chunk.type), asText(chunk.toolCallId), asKey(chunk.id)];
    if (kind === "tool-input-start") this.#names.set(id, asText(chunk.toolName));
    else if (kind === "tool-input-delta") this.#input.add(id, asText(chunk.inputTextDelta));
    else if (kind === "tool-input-available" || kind === "tool-input-error") return [this.#call(kind, id, chunk)];
    else if (kind === "tool-output-available") return [{ type: "tool_result", id, content: chunk.output ?? null }];
    else if (kind === "tool-output-error") {
      return [{ type: "tool_result", id, content: asText(chunk.errorText), is_error: true }];
    } else if (kind === "reasoning-delta") this.#thoughts.add(key, asText(chunk.delta));
    else if (kind === "reasoning-end") return [{ type: "reasoning", text: this.#thoughts.take(key) }];
    else if (kind === "file") {
      const media = asText(chunk.mediaType);
      const type = media.startsWith("image/") ? "image" : "file";
      return [{ type, url: asText(chunk.url), media_type: media }];
    } else if (kind.startsWith("data-")) {
      const { data = null } = chunk;
      return [{ type: kind.slice("data-".length), ...(isObject(data) ? without(data) : { data }) }];
    }
    return NO_BLOCKS;
  }

  /** What nothing ended: reasoning, and calls as far as their input came. */
  rest() {
    const input = new Map(this.#input.rest());
    const ids = new Set([...this.#names.keys(), ...input.keys()]);
    const calls = [...ids].map((id) => callRead(id, this.#names.get(id) ?? "", input.get(id) ?? "", { cut: true }));
    return [...thoughtsOf(this.#thoughts), ...calls];
  }

  /** A call whose input is there: as its pieces had it, if they say the same. */
  #call(kind, id, { toolName, input = null }) {
    this.#names.delete(id);
    const [name, given] = [asText(toolName), this.#input.take(id) || asText(input)];
    const call = given ? callRead(id, name, given) : callGiven(id, name, input);
    if (kind === "tool-input-error") return { ...call, type: "invalid_tool_call" };
    if (call.type === "tool_call" && equal(parsed(call.arguments), input)) return call;
    return callGiven(id, name, input);
  }
}

/** Those of AG-UI's events. */
class AgUiBlocks {
  #calls = new Map(); // those that are open
  #told = new Set(); // the ids of those that came in chunks and were handed out
  #thoughts = new Held();
  #chunked = ""; // the call whose chunks come

  take(event) {
    const [kind, id] = [asText(event.type), asText(event.toolCallId)];
    const open = this.#calls.get(id);
    if (kind === "TOOL_CALL_CHUNK") return this.#chunk(id || this.#chunked, event);
    if (kind === "TOOL_CALL_START") {
      this.#calls.delete(id);
      this.#calls.set(id, { id, name: asText(event.toolCallName), told: new Arguments() });
      return open ? [spare(this.#made(open))] : NO_BLOCKS;
    }
    if (kind === "TOOL_CALL_ARGS" && open) open.told.add(asText(event.delta));
    else if (kind === "TOOL_CALL_END" && open) {
      this.#calls.delete(id);
      return [this.#made(open)];
    } else if (kind === "TOOL_CALL_RESULT") return [{ type: "tool_result", id, content: event.content ?? null }];
    else if (kind === "REASONING_MESSAGE_CONTENT") this.#thoughts.add(asText(event.messageId), asText(event.delta));
    else if (kind === "REASONING_MESSAGE_END") {
      return [{ type: "reasoning", text: this.#thoughts.take(asText(event.messageId)) }];
    } else if (kind === "CUSTOM") {
      const { name, value = null } = event;
      return [{ type: asText(name), ...(isObject(value) ? without(value) : { value }) }];
    }
    return NO_BLOCKS;
  }

  /** What the end of the run makes whole: calls that came in chunks, and what nothing ended. */
  rest() {
    const calls = [...this.#calls.values()].map((call) => this.#made(call, !call.chunked));
    return [...thoughtsOf(this.#thoughts), ...calls];
  }

  /** A piece of a call that nothing ends: it is whole when its arguments are. */
  #chunk(id, event) {
    this.#chunked = id;
    const delta = asText(event.delta);
    if (!this.#calls.has(id)) {
      const isSpare = this.#told.has(id); // under the id of one that was handed out, so that it must not be run
      if (isSpare && JSON_SPACE.test(delta)) return NO_BLOCKS;
      this.#calls.set(id, { id, name: asText(event.toolCallName), told: new Arguments(), chunked: true, isSpare });
    }
    const call = this.#calls.get(id);
    call.told.add(delta);
    if (call.isSpare || !delta || !call.told.whole) return NO_BLOCKS;
    this.#calls.delete(id);
    this.#told.add(id);
    return [this.#made(call)];
  }

  #made({ id, name, told, isSpare }, cut = false) {
    const block = callRead(id, name, told.text, { cut });
    return isSpare ? spare(block) : block;
  }
}

// ---- dialects: what a frame's data says -----------------------------------------------------------------------
//
// `read(name, data)` gives text, or {item, text, texts, blocks} for what is more than text of choice 0, or null for what
// is not handed out; it throws for data that is not the dialect's. `proof` and `judge` are asked where there are no cursors;
// `rest(data)` for the blocks that a proven end makes whole, with the data of the terminal.

const failure = (code, message, retryable = false, resumable = false) => ({
  code: String(code), message: String(message), retryable: Boolean(retryable), resumable: Boolean(resumable),
});
const CODE = /^[\w.:/-]{1,64}$/;
const unproven = (message, retryable = true) => failure("unproven_end", message, retryable);

class Spoken {
  reasons = new Map();
  usage = null;
  error = null;

  get finishReason() {
    if (this.reasons.size === 1) return this.reasons.values().next().value;
    return this.reasons.size ? Object.fromEntries([...this.reasons].sort(([a], [b]) => a - b)) : null;
  }

  rest() {
    return NO_BLOCKS; // those of `native` come whole
  }
}

class NativeReader extends Spoken {
  read(name, data) {
    if (name === null) {
      const text = data[0] === '"' && data.endsWith('"') ? JSON.parse(data) : undefined;
      if (typeof text !== "string") throw new SyntaxError("the data of a text frame is no JSON string");
      return text;
    }
    if (name !== "block") return null;
    const item = JSON.parse(data);
    if (!isObject(item) || typeof item.type !== "string") throw new TypeError("a block without a type");
    return { item, text: "", blocks: [asCall(item)] };
  }

  proof() {
    return null; // this dialect always has cursors
  }

  judge() {
    return null;
  }
}

/** The first of these that is a code: what else an error event holds there, a prompt say, is no name of a failure. */
function codeIn(...values) {
  const isCode = (value) => value && (typeof value === "string" || Number.isInteger(value)) && CODE.test(value);
  return values.find(isCode) ?? "upstream_error";
}

/** How servers depart from their API: whether they send `[DONE]`. */
const PROFILES = {
  openai: true, vllm: true, sglang: true, "llama.cpp": true, ollama: true, transformers: false, litellm: true,
};
const ANTHROPIC = new Set([
  "message_start", "message_delta", "message_stop", "content_block_start", "content_block_delta", "content_block_stop",
]);

/** The events of chat, completions, Responses and Anthropic's Messages; which of them, the events say. */
class ProviderReader extends Spoken {
  #done;
  #end;
  #marked = false;
  #api = null;
  #strange = false; // whether an event came before the API was known
  #sure = false; // whether the API is known for certain: a list of choices may be a stranger's
  #begun = new Set();
  #ended = false; // the marker was seen, and nothing after it
  #overrun = false;
  #response = {};
  #blocks = new ProviderBlocks();

  constructor({ profile = "openai", end = "provider" } = {}) {
    super();
    if (!Object.hasOwn(PROFILES, profile)) throw new RangeError(`unknown profile '${profile}'`);
    if (typeof end !== "function" && !["provider", "known", "asgi", "endless"].includes(end)) {
      throw new RangeError(`unknown end rule '${end}'`);
    }
    this.#done = PROFILES[profile];
    this.#end = end;
  }

  read(name, data) {
    if (!data) return null; // some servers send it as a sign of life
    if (typeof this.#end === "function") this.#marked = Boolean(this.#end(name, data));
    if (this.#ended) this.#overrun = true;
    if (data.length < 16 && data.trim() === "[DONE]") {
      this.#ended = true;
      return { item: null, text: "" };
    }
    this.#strange ||= this.#api === null;
    const payload = parsedEvent(data);
    if (!isObject(payload)) {
      // A chat chunk is an object; a bare string between them is a gateway's error message.
      const isError = name === "error" || (typeof payload === "string" && ["chat", "completions"].includes(this.#api));
      if (isError) this.#fail(typeof payload === "string" ? payload : data);
      return { item: null, text: "" };
    }
    const error = this.#errorIn(name, payload);
    if (error !== null) {
      this.#fail(error);
      return { item: payload, text: "" };
    }
    const reading = this.#observe(payload);
    reading.blocks = this.#blocks.take(payload);
    return reading;
  }

  #observe(payload) {
    if (Array.isArray(payload.choices)) {
      const texts = this.#choices(payload);
      return { item: payload, text: texts[0] ?? "", texts };
    }
    const kind = payload.type;
    if (typeof kind === "string" && kind.startsWith("response.")) return this.#responses(kind, payload);
    if (ANTHROPIC.has(kind)) return this.#anthropic(kind, payload);
    return { item: payload, text: "" };
  }

  #errorIn(name, payload) {
    // A number of that name is a measure of somebody's own, a loss say.
    if (says(payload.error) && typeof payload.error !== "number") return payload.error;
    if ("choices" in payload && name !== "error") return null;
    if (payload.type === "response.failed") {
      this.#state(payload);
      return says(this.#response.error) ? this.#response.error : { message: "the response failed" };
    }
    return name === "error" || payload.type === "error" ? payload : null;
  }

  #fail(error) {
    if (this.error) return;
    const detail = isObject(error) ? error : { message: String(error) };
    this.error = failure(codeIn(detail.code, detail.type), detail.message || "the provider sent an error");
  }

  #choices(payload) {
    const chat = payload.object !== "text_completion";
    this.#api ??= chat ? "chat" : "completions";
    this.#sure ||= ["chat.completion.chunk", "text_completion"].includes(payload.object);
    const texts = {};
    for (const choice of payload.choices) {
      if (!isObject(choice)) continue;
      this.#sure ||= "finish_reason" in choice || isObject(choice.delta);
      const index = asIndex(choice.index) ?? 0;
      if (!this.#begun.has(index) && this.#begun.size >= MAX_CHOICES) {
        // Else they are a stranger's, and mean something else.
        if (this.#sure) this.#fail({ code: "upstream_format", message: `more than ${MAX_CHOICES} choices came` });
        break;
      }
      this.#begun.add(index);
      const holder = asObject(chat ? choice.delta : choice);
      const text = asText(chat ? holder.content : holder.text);
      if (text) texts[index] = (texts[index] ?? "") + text;
      if (says(choice.finish_reason)) this.reasons.set(index, String(choice.finish_reason));
    }
    this.#noteUsage(payload);
    return texts;
  }

  #noteUsage(payload) {
    if (isObject(payload.usage)) this.usage = payload.usage;
  }

  #state(payload) {
    this.#api = "responses";
    this.#sure = true;
    if (isObject(payload.response)) this.#response = payload.response;
  }

  #responses(kind, payload) {
    this.#state(payload);
    if (kind === "response.completed" || kind === "response.incomplete") {
      this.#ended = true;
      const { status, error } = this.#response;
      if (says(error)) this.#fail(error);
      else if (status === "failed" || status === "cancelled") {
        this.#fail({ code: "unproven_end", message: `the response ended as ${status}` });
      }
      this.reasons.set(0, String(this.#response.status || kind.slice("response.".length)));
      this.#noteUsage(this.#response);
      return { item: payload, text: "" };
    }
    return { item: payload, text: kind === "response.output_text.delta" ? asText(payload.delta) : "" };
  }

  #anthropic(kind, payload) {
    this.#api = "anthropic";
    this.#sure = true;
    if (kind === "message_stop") {
      this.#ended = true;
      return { item: payload, text: "" };
    }
    if (kind === "message_start") this.#noteUsage(asObject(payload.message));
    const delta = asObject(payload.delta);
    if (kind === "message_delta") {
      if (says(delta.stop_reason)) this.reasons.set(0, String(delta.stop_reason));
      // The start has the input, and the end its output.
      const usage = { ...this.usage, ...asObject(payload.usage) };
      this.usage = says(usage) ? usage : null;
    }
    return { item: payload, text: delta.type === "text_delta" ? asText(delta.text) : "" };
  }

  rest(data) {
    // Whose last event repeats what had no end of its own.
    if (data && this.#api === "responses") this.#blocks.take(asObject(parsed(data)));
    return this.#blocks.rest();
  }

  #hasEnd() {
    if (["chat", "completions"].includes(this.#api) && !this.#done) {
      return this.#begun.size > 0 && [...this.#begun].every((index) => this.reasons.has(index));
    }
    return this.#ended;
  }

  /** The rule that is meant: `known` is the provider's where the events are of an API, or end with its marker. */
  get #rule() {
    if (this.#end !== "known") return this.#end;
    return this.#sure || (this.#ended && !this.#overrun) ? "provider" : "asgi";
  }

  proof(clean) {
    if (this.#rule === "provider") {
      if (!this.#hasEnd()) return null;
      if (!this.#ended) return "framing";
      return this.reasons.size ? "marker+reason" : "marker";
    }
    if (typeof this.#end === "function") return this.#marked ? "marker" : null;
    return clean ? "framing" : null;
  }

  judge() {
    if (this.error || this.#rule !== "provider") return this.error;
    if ([...this.reasons.values()].some((reason) => reason === "abort" || reason === "error")) {
      return failure("generation_aborted", "the engine aborted the generation", true);
    }
    if (!this.#hasEnd()) return unproven("the provider's stream ended without its end marker");
    if (this.#overrun) return unproven("events followed the provider's end marker", false);
    if (this.#api === null && !this.#strange) return unproven("the end marker came without any part of an answer");
    if (this.#api !== null && !this.reasons.size) return unproven("the end marker came without any finish reason");
    return null;
  }
}

class UiReader extends Spoken {
  #blocks = new UiBlocks();
  #finished = false;
  #done = false;
  #overrun = false;

  read(name, data) {
    if (!data) return null;
    this.#overrun ||= this.#done;
    if (data.trim() === "[DONE]") {
      this.#done = true;
      return { item: null, text: "" };
    }
    const chunk = asObject(parsedEvent(data));
    if (chunk.type === "error") {
      this.error ??= failure("upstream_error", asText(chunk.errorText) || "the stream has an error");
    } else if (chunk.type === "abort") {
      this.error ??= failure("cancelled", asText(chunk.reason) || "the stream was aborted");
    } else if (chunk.type === "finish") {
      this.#finished = true;
      const reason = asText(chunk.finishReason).replaceAll("-", "_");
      if (reason) this.reasons.set(0, reason);
    }
    const text = chunk.type === "text-delta" ? asText(chunk.delta) : "";
    return { item: says(chunk) ? chunk : null, text, blocks: this.#blocks.take(chunk) };
  }

  rest() {
    return this.#blocks.rest();
  }

  proof() {
    if (!this.#done) return null;
    return this.reasons.size ? "marker+reason" : "marker";
  }

  judge() {
    if (this.error) return this.error;
    if (!this.#finished || !this.#done) return unproven("the stream ended without `finish` and its end marker");
    return this.#overrun ? unproven("events followed the end marker", false) : null;
  }
}

const RUN_TOKENS = { inputTokens: "input_tokens", outputTokens: "output_tokens", totalTokens: "total_tokens" };

class AgUiReader extends Spoken {
  #blocks = new AgUiBlocks();
  #done = false;
  #overrun = false;

  read(name, data) {
    if (!data) return null;
    this.#overrun ||= this.#done;
    const event = asObject(parsedEvent(data));
    const isText = event.type === "TEXT_MESSAGE_CONTENT" || event.type === "TEXT_MESSAGE_CHUNK";
    if (event.type === "RUN_ERROR") {
      this.error ??= failure(
        asText(event.code) || "upstream_error", asText(event.message) || "the run has an error",
      );
    } else if (event.type === "RUN_FINISHED") {
      this.#done = true;
      const told = Array.isArray(event.usage) && event.usage.length === 1 ? asObject(event.usage[0]) : null;
      const found = told && Object.keys(RUN_TOKENS).filter((key) => key in told).map((key) => [RUN_TOKENS[key], told[key]]);
      if (found) this.usage = Object.fromEntries(found);
    }
    const text = isText ? asText(event.delta) : "";
    return { item: says(event) ? event : null, text, blocks: this.#blocks.take(event) };
  }

  rest() {
    return this.#blocks.rest();
  }

  proof() {
    return this.#done ? "marker" : null;
  }

  judge() {
    if (!this.error && this.#overrun) return unproven("events followed the end of the run", false);
    return this.error;
  }
}

const DIALECTS = {
  native: NativeReader, openai: ProviderReader, "openai-responses": ProviderReader, anthropic: ProviderReader,
  ui: UiReader, "ag-ui": AgUiReader, raw: ProviderReader,
};
// The dialects that SDKs of others read: their terminals have a summary beside them, and no text of `native` in them.
const SUMMARY_BESIDE = new Set(["openai", "openai-responses", "anthropic", "ui", "ag-ui"]);

/** The dialect that is meant: a name, or {name, profile, end}. */
function dialectNamed(dialect) {
  const settings = typeof dialect === "string" ? { name: dialect } : dialect;
  if (settings?.name === "text") throw new RangeError("dialect 'text' proves no end, and is not read here");
  if (!isObject(settings) || !Object.hasOwn(DIALECTS, settings.name)) {
    throw new RangeError(`unknown dialect '${settings?.name}'; known: ${Object.keys(DIALECTS).join(", ")}`);
  }
  return settings;
}

// ---- the verifier ---------------------------------------------------------------------------------------------

/** The states of one connection: in this state, this may happen, and leads there. A missing key is the error. */
const STATES = {
  unopened: { opening: "open", frame: "open", beat: "unopened", terminal: "ended", bye: "parted", eof: "cut" },
  open: { frame: "open", beat: "open", terminal: "ended", bye: "parted", eof: "cut" },
  ended: { eof: "closed" },
  parted: { eof: "cut" },
  closed: {},
  cut: {},
};

/** One frame as it is handed out. `seq` is 0 where there are no cursors. */
export class AnswerFrame {
  constructor(seq, name, raw, { text, item = null, texts = null, blocks = NO_BLOCKS }) {
    this.seq = seq;
    this.name = name;
    this.raw = raw;
    this.text = text;
    this.item = item;
    this.texts = texts;
    this.blocks = blocks;
  }

  get data() {
    return decode(this.raw);
  }
}

/** What was read, and what is known about it. */
export class Receipt {
  constructor(fields) {
    Object.assign(this, fields);
  }

  toString() {
    const parts = [this.verdict.toUpperCase() + (this.code ? ` (${this.code})` : "")];
    if (this.crc !== null) parts.push(`${this.frames} frames`, `crc ${hex(this.crc)}`);
    if (this.provedBy) parts.push(`proved by ${this.provedBy}`);
    if (this.resumes) parts.push(`${this.resumes} resume${this.resumes > 1 ? "s" : ""}`);
    return parts.join(", ");
  }
}

/** Compare a frame with its cursor, in a fixed order, so that a fault has one name however the bytes were cut. */
function checkFrame(after, cursor, name, data) {
  if (cursor.sid !== after.sid) throw new CorruptStream("sid", after, `it belongs to stream ${cursor.sid}`);
  if (cursor.seq <= after.seq) {
    throw new CorruptStream("seq", after, `frame ${cursor.seq} came after frame ${after.seq}`);
  }
  if (cursor.seq > after.seq + 1) throw new StreamGap(after.seq + 1, cursor.seq, after);
  const fits = (bytes) =>
    after.offset + bytes.length === cursor.offset && chain(after.crc, name, cursor.status, bytes) === cursor.crc;
  if (fits(data)) return;
  for (const again of rewritten(data)) {
    if (!fits(again)) continue;
    throw new CorruptStream("reframed", after, "something between rewrote the data: pass it through unchanged");
  }
  if (after.offset + data.length !== cursor.offset) {
    throw new CorruptStream("length", after, `${data.length} bytes came, ${cursor.offset - after.offset} were sent`);
  }
  throw new CorruptStream("checksum", after);
}

const withLineEnds = (json) =>
  json.replace(/[\u0085\u2028\u2029]/g, (end) => `\\u${end.charCodeAt(0).toString(16).padStart(4, "0")}`);

/** JSON as our servers write it, without white space and with strings in UTF-8; nothing for what is no JSON. Its text is
 * taken apart, since a number that is read and written may look otherwise; then read and written, for a name given twice. */
function* rewritten(data) {
  const text = decode(data).replace(/^\ufeff/, "");
  const value = parsed(text);
  if (value === undefined) return;
  const part = (found) => (found[0] === '"' ? withLineEnds(JSON.stringify(JSON.parse(found))) : "");
  yield encode(text.replace(/"(?:[^"\\]|\\.)*"|[ \t\n\r]+/g, part));
  yield encode(withLineEnds(JSON.stringify(value)));
}

/** Where a stream goes on in another connection: frames that came already are dropped, if they are the same ones. */
class Joint {
  #again;
  #begun = false;

  constructor(at) {
    this.at = at;
    this.#again = Cursor.zero(at.sid);
  }

  /** Whether a frame is one that was there before. What this does not know is not judged. */
  repeats(cursor, name, data) {
    const { at } = this;
    const last = this.#again;
    if (cursor.sid !== at.sid || !cursor.seq || last.equals(at)) return false;
    if (cursor.seq > at.seq) {
      if (this.#begun) throw new StreamGap(last.seq + 1, cursor.seq, at, "among the frames that came again");
      return false;
    }
    const another = () => new CorruptStream("seq", at, `frame ${cursor.seq} came again, and is another one`);
    if (this.#begun || cursor.seq === 1) {
      const follows = new Cursor(at.sid, last.seq + 1, last.offset + data.length, chain(last.crc, name, null, data));
      if (!new Cursor(cursor.sid, cursor.seq, cursor.offset, cursor.crc).equals(follows)) throw another();
    }
    if (cursor.status !== null || (cursor.seq === at.seq && !cursor.equals(at))) throw another();
    this.#begun = true;
    this.#again = cursor;
    return true;
  }
}

/** Reads one stream from its bytes: bytes in, frames out, and a verdict. Nothing is handed out after a fault. */
export class StreamVerifier {
  state = "unopened";
  verdict = null;
  frames = 0;
  status = null;
  finishReason = null;
  usage = null;
  failure = null;
  provedBy = null;
  parting = null; // why the server ended this connection, if it said so
  resumes = 0;
  beats = 0;
  duplicates = 0;
  error = null;
  #lenient;
  #maxFrame;
  #dialect; // null: `native` if the stream says so, else a provider's events
  #reader;
  #wire;
  #guessed;
  #joint = null;
  #sid = null;
  #seq = 0;
  #offset = 0;
  #crc = 0;
  #usual = false; // whether the next frame can only follow the last one; else it is taken apart
  #promised = false;
  #dropped = false;

  constructor({ wire = "sse", dialect = null, zero = null, lenient = false, maxFrame = MAX_FRAME } = {}) {
    this.#lenient = lenient;
    this.#maxFrame = maxFrame;
    this.#dialect = dialect === null ? null : dialectNamed(dialect);
    this.#reader = new DIALECTS[this.#name ?? "raw"](this.#dialect ?? {});
    this.#wire = this.#carrier(wire);
    // These carriers name no dialect in band: without the server's word the caller's is a guess.
    this.#guessed = zero === null && this.#name === "raw" && wire !== "sse";
    if (zero !== null) this.#promise(typeof zero === "string" ? Cursor.parse(zero) : zero);
  }

  /** The last cursor whose checks held; null before any. */
  get cursor() {
    return this.#sid && new Cursor(this.#sid, this.#seq, this.#offset, this.#crc, this.status);
  }

  /** Milliseconds after which the server wants to be asked again, or null. */
  get retry() {
    return this.#wire.retry;
  }

  get receipt() {
    return new Receipt({
      verdict: this.verdict ?? "truncated",
      status: this.status,
      code: this.error?.code ?? null,
      frames: this.#seq,
      bytes: this.#offset,
      crc: this.#seq > 0 ? this.#crc : null,
      cursor: this.cursor,
      finishReason: this.finishReason,
      usage: this.usage,
      failure: this.failure,
      provedBy: this.verdict === "unverified" ? this.provedBy : null,
      resumes: this.resumes,
      duplicates: this.duplicates,
    });
  }

  /** The frames that `bytes` complete and that hold. */
  feed(bytes) {
    const frames = [];
    if (!this.error) this.#guarded(() => this.#takeAll(this.#wire.feed(bytes), frames));
    return frames;
  }

  /** End of bytes; `clean` says whether the connection's own framing ended as it should. */
  end(clean = true) {
    const frames = [];
    if (this.error || this.state === "closed" || this.state === "cut") return frames;
    this.#guarded(() => {
      const torn = this.#wire.unfinished ?? false;
      this.#takeAll(this.#wire.end(), frames);
      this.#step("eof");
      this.#conclude(clean && !torn, frames); // framing proves nothing that ends inside an event
    });
    return frames;
  }

  /** Read on behind `cursor` in another connection; `zero` is what its header promised. */
  resume(wire = "sse", zero = null) {
    const at = this.cursor;
    if (!at || !(this.verdict === null || this.verdict === "truncated")) {
      throw new LocalProtocolError("there is nothing to resume: the stream has no cursor, or is over");
    }
    this.state = "unopened";
    this.verdict = this.error = this.parting = null;
    this.#dropped = false;
    this.#wire = this.#carrier(wire);
    this.#joint = new Joint(at);
    this.#usual = false;
    this.resumes += 1;
    const other = typeof zero === "string" ? Cursor.parse(zero) : zero;
    if (other && other.sid !== at.sid) this.giveUp(this.#corrupt("sid", `the answer goes on with stream ${other.sid}`));
  }

  /** End the reading with `error`, for what was learnt beside the stream's own bytes. */
  giveUp(error) {
    const isWire = error instanceof WireError && !(error instanceof FrameTooLarge);
    this.error = isWire ? this.#corrupt("grammar", error.message) : error;
    if (error instanceof TruncatedStream) this.verdict = "truncated";
    else if (error instanceof StreamGap) this.verdict = "gap";
    else this.verdict = error instanceof FailedStream ? "failed" : "corrupt";
  }

  #guarded(work) {
    try {
      work();
    } catch (error) {
      if (!(error instanceof RemoteProtocolError)) throw error;
      this.giveUp(error);
    }
  }

  // -- one record

  #takeAll(records, frames) {
    for (const found of records) {
      if (found.partial) this.#takePartial(found, frames);
      else this.#take(found, frames);
    }
    if (this.#wire.error) throw this.#wire.error; // after what was good
  }

  #take(found, frames) {
    if (found.kind !== "frame") {
      this.#takeSign(found);
      return;
    }
    if (found.cursor !== null && this.#usual) {
      const { name, data } = found;
      const seq = this.#seq + 1;
      const offset = this.#offset + data.length;
      const crc = chain(this.#crc, name, null, data);
      if (found.cursor === `${this.#sid}.${seq}.${offset}.${hex(crc)}`) {
        if (this.state !== "open") this.#step("frame");
        this.#handOut(seq, name, data, frames);
        this.#advance(seq, offset, crc);
        return;
      }
    }
    this.#takeSlowly(found, frames);
  }

  #takeSign(found) {
    if (found.kind === "opening") {
      this.#opening(found);
      return;
    }
    this.#step(found.kind);
    if (found.kind === "beat") this.beats += 1;
    else this.parting = found.reason;
  }

  /** Everything but the usual frame: the first, the terminal, one without a cursor, a wrong one. */
  #takeSlowly(found, frames) {
    const { name, data } = found;
    if (found.cursor === null || !(this.#promised || Cursor.in(found.cursor))) {
      if (this.#promised) throw this.#corrupt("guard_stripped", "a block came without its cursor");
      this.#handOut(0, name, data, frames);
      return;
    }
    const cursor = Cursor.parse(found.cursor);
    const at = this.#promise(Cursor.zero(cursor.sid));
    if (cursor.status === "lost" && cursor.sid === this.#sid) {
      throw new StreamGap(this.#seq + 1, null, this.cursor, "the server no longer has what follows");
    }
    if (this.#joint?.repeats(cursor, name, data)) {
      this.#step("frame");
      this.duplicates += 1;
      return;
    }
    checkFrame(at, cursor, name, data);
    if (cursor.status !== null) {
      this.#terminal(cursor, found, frames);
      return;
    }
    this.#step("frame");
    this.#handOut(cursor.seq, name, data, frames);
    this.#advance(cursor.seq, cursor.offset, cursor.crc);
    this.#joint = null;
    this.#usual = true;
  }

  /** A last record whose line end is missing: accepted only if asked to, and only as a good terminal. */
  #takePartial(found, frames) {
    this.#dropped = true;
    if (!(this.#lenient && this.#promised && found.kind === "frame" && found.cursor)) return;
    try {
      if (Cursor.parse(found.cursor).status !== null) this.#takeSlowly(found, frames);
    } catch (error) {
      // Cut inside it: the end of bytes will say that the stream is truncated.
      if (error instanceof FailedStream || !(error instanceof RemoteProtocolError)) throw error;
    }
  }

  #advance(seq, offset, crc) {
    this.#seq = seq;
    this.#offset = offset;
    this.#crc = crc;
  }

  /** Before the frame counts as good: a cursor never stands after a frame that was not handed out. */
  #handOut(seq, name, data, frames) {
    let reading;
    try {
      reading = this.#reader.read(name, decode(data));
    } catch (error) {
      throw this.#corrupt("grammar", `the data is not the dialect's: ${error.message}`);
    }
    // Data that is no provider's event can only be `native` text; in `raw` a server may vouch for it.
    const isNative = name === null && data[0] === 34 && (this.#guessed || SUMMARY_BESIDE.has(this.#name));
    if (this.#promised && reading?.item === null && isNative) {
      throw this.#corrupt("grammar", "the data is text of `native`, and no provider's event");
    }
    this.frames += 1;
    if (typeof reading === "string") frames.push(new AnswerFrame(seq, name, data, { text: reading }));
    else if (reading !== null) frames.push(new AnswerFrame(seq, name, data, reading)); // an unknown name is chained only
  }

  // -- beginnings and ends

  #promise(zero) {
    this.#promised = true;
    if (this.#sid === null) {
      this.#sid = zero.sid;
      this.#crc = Cursor.zero(zero.sid).crc;
      this.#usual = true;
    }
    return new Cursor(this.#sid, this.#seq, this.#offset, this.#crc);
  }

  #opening(found) {
    // The binary carrier names the stream by its sid alone.
    const zero = Cursor.parse(found.cursor ?? String(Cursor.zero(decode(found.data))));
    this.#promise(zero);
    if (zero.sid !== this.#sid) throw this.#corrupt("sid", `the opening names stream ${zero.sid}`);
    // native's `open` event names the place where the connection goes on.
    const goesOn = this.#joint !== null && found.name === "open" && zero.equals(this.#joint.at);
    if (!zero.equals(Cursor.zero(zero.sid)) && !goesOn) {
      throw this.#corrupt("checksum", "the opening's cursor is not cursor zero");
    }
    if (found.name === "open" && this.#dialect === null) {
      this.#dialect = { name: "native" };
      this.#reader = new NativeReader();
    }
    if (this.state !== "open") this.#step("opening"); // the comment and native's `open` event are one opening
  }

  #terminal(cursor, found, frames) {
    const summary = this.#summary(found, cursor);
    if (summary && (summary.frames !== this.#seq || summary.bytes !== this.#offset)) {
      throw this.#corrupt("length", "the summary counts other frames than came");
    }
    this.#step("terminal");
    this.#advance(cursor.seq, cursor.offset, cursor.crc);
    this.frames += 1;
    this.status = cursor.status;
    if (summary && this.#dialect) {
      this.finishReason = summary.finish_reason ?? null;
      this.usage = summary.usage ?? null;
    } else {
      // Without a dialect a summary's loss would not be seen, so nothing is taken from it but an error.
      if (found.data.length) this.#reader.read(found.name, decode(found.data));
      this.#readReader();
    }
    const error = isObject(summary?.error) ? summary.error : null;
    if (error) this.failure = failure(error.code, error.message, error.retryable, error.resumable);
    if (this.status === "complete") {
      this.verdict = "complete";
      this.#last(frames, cursor.seq, found.name, found.data);
      return;
    }
    if (!FINAL_STATUSES.includes(this.status)) {
      this.failure = failure("unknown_status", `the terminal's status is '${this.status}'`);
    }
    throw new FailedStream(this.status, this.failure, this.cursor);
  }

  /** The summary in a terminal or beside it, where its dialect has a place for that. */
  #summary(found, cursor) {
    const beside = SUMMARY_BESIDE.has(this.#name);
    let text = found.name === "end" && !beside ? decode(found.data) : null;
    if (found.extra !== null && this.#name !== "native") {
      const [check, said] = partition(found.extra, " ");
      if (check !== hex(crc32(encode(said), cursor.crc))) {
        throw this.#corrupt("checksum", "the summary beside the terminal does not match its checksum");
      }
      text = said;
    }
    if (text === null) {
      if (this.#name !== "native" && !beside) return null;
      throw this.#corrupt("guard_stripped", "the terminal came without its summary");
    }
    const summary = parsed(text);
    if (isObject(summary) && "status" in summary && "frames" in summary && "bytes" in summary) {
      if (this.#dialect === null && found.extra === null) {
        throw this.#corrupt("guard_stripped", "a stream of `native` came without its `open` event");
      }
      return summary;
    }
    // The source's own last event may happen to be named so.
    if ((this.#dialect === null || this.#name === "raw") && found.extra === null) return null;
    throw this.#corrupt("grammar", "the terminal's summary is none");
  }

  #readReader() {
    this.finishReason = this.#reader.finishReason;
    this.usage = this.#reader.usage;
    this.failure = this.#reader.error;
  }

  /** The verdict of a stream whose bytes have ended. */
  #conclude(clean, frames) {
    if (this.state === "closed") return; // the terminal said it
    const detail = this.#dropped ? "an unfinished last event was dropped" : "";
    if (this.#promised) throw new TruncatedStream(this.cursor, detail);
    // No cursors: the provider's own end is all there is to go by.
    this.provedBy = this.#reader.proof(clean);
    this.#readReader();
    if (this.provedBy === null && this.failure === null) throw new TruncatedStream(null, detail, this.frames);
    this.failure = this.#reader.judge();
    if (this.failure !== null) throw new FailedStream("failed", this.failure, null);
    this.verdict = "unverified";
    this.#last(frames);
  }

  /** One frame with the blocks that a proven end makes whole, if any: the terminal, where there is one. */
  #last(frames, seq = 0, name = null, data = EMPTY) {
    const blocks = this.#reader.rest(decode(data));
    if (blocks.length) frames.push(new AnswerFrame(seq, name, data, { text: "", blocks }));
  }

  // -- small parts

  get #name() {
    return this.#dialect?.name ?? null;
  }

  #carrier(wire) {
    if (!Object.hasOwn(WIRES, wire)) throw new RangeError(`unknown wire '${wire}'; known: ${Object.keys(WIRES).join(", ")}`);
    return new WIRES[wire](this.#dialect === null ? null : this.#name === "native", this.#maxFrame);
  }

  #step(event) {
    const state = STATES[this.state][event];
    if (state === undefined) throw this.#corrupt("grammar", `${event} cannot follow in state '${this.state}'`);
    this.state = state;
  }

  #corrupt(code, detail) {
    return new CorruptStream(code, this.cursor, detail);
  }
}

// ---- the head of a response -----------------------------------------------------------------------------------

// A dictionary of RFC 9651, strictly: what is not well-formed is ignored as a whole, since half a promise is worse than
// none. One expression cuts it into members, whatever their types.
const KEY = "[a-z*][a-z0-9_.*-]*";
const INTEGER = "-?[0-9]{1,15}";
const TOKEN = "[A-Za-z*][A-Za-z0-9!#$%&'*+.^_`|~:/-]*";
const STRING = '"(?:[ !#-\\[\\]-~]|\\\\["\\\\])*"';
// UTF-8 as a display string spells it: a sequence that is no character is no such string.
const TAIL = "%[89ab][0-9a-f]";
const DISPLAY =
  `%"(?:(?:[ !#$&-~]|%[0-7][0-9a-f])|%(?:c[2-9a-f]|d[0-9a-f])${TAIL}` +
  `|%(?:e0%[ab][0-9a-f]|e[1-9a-cef]${TAIL}|ed%[89][0-9a-f])${TAIL}` +
  `|%(?:f0%[9ab][0-9a-f]|f[1-3]${TAIL}|f4%8[0-9a-f])${TAIL}${TAIL})*"`;
const BASE64 = ":(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}(?:==)?|[A-Za-z0-9+/]{3}=?)?:";
const BARE =
  `(?:-?[0-9]{1,12}\\.[0-9]{1,3}|${INTEGER}|${STRING}|${TOKEN}|${BASE64}|\\?[01]|@${INTEGER}|${DISPLAY})`;
const PARAMETERS = `(?:; *${KEY}(?:=${BARE})?)*`;
const INNER = `\\( *(?:${BARE}${PARAMETERS}(?: +${BARE}${PARAMETERS})* *)?\\)`;
const PAIR = new RegExp(`^(?:\\?0|\\( *[0-9]{1,15}${PARAMETERS} +[0-9]{1,15}${PARAMETERS} *\\))$`);
const MEMBER = new RegExp(`(${KEY})(?:=(${BARE}|${INNER}))?${PARAMETERS}(?:[ \\t]*(,)[ \\t]*|[ \\t]*$)`, "y");

/** What a `Streamguard` header promises: {cursor, dialect, wire, resume}; null if nothing that can be understood. */
export function parseAnswer(header) {
  const text = (header ?? "").replace(/^ +| +$/g, "");
  if (!text || text.length > 4096) return null;
  const members = new Map();
  MEMBER.lastIndex = 0;
  for (let comma = ","; comma; ) {
    const found = MEMBER.exec(text);
    if (!found) return null;
    members.set(found[1], found[2] ?? "?1");
    comma = found[3];
  }
  const word = (key) => (new RegExp(`^${TOKEN}$`).test(members.get(key) ?? "") ? members.get(key) : null);
  const string = (key) =>
    new RegExp(`^${STRING}$`).test(members.get(key) ?? "") ? members.get(key).slice(1, -1).replace(/\\(.)/g, "$1") : null;
  const typed = ["dialect", "wire", "flush", "compress"].every((key) => !members.has(key) || word(key) !== null)
    && ["cursor", "resume", "reader"].every((key) => !members.has(key) || string(key) !== null)
    && PAIR.test(members.get("credit") ?? "?0");
  const cursor = Cursor.in(string("cursor") ?? "");
  if (!typed || !/^0{0,14}1$/.test(members.get("v") ?? "") || !cursor || !word("dialect") || !word("wire")) return null;
  if (!cursor.equals(Cursor.zero(cursor.sid))) return null;
  return { cursor, dialect: word("dialect"), wire: word("wire"), resume: string("resume") };
}

/** Milliseconds from either form of `Retry-After`; null where there is none. A date is compared with the server's own. */
function retryAfter(headers) {
  const text = (headers.get("retry-after") ?? "").trim();
  if (/^[0-9]+$/.test(text)) return Number(text.slice(0, 9)) * 1000;
  const milliseconds = Date.parse(text) - Date.parse(headers.get("date") ?? "");
  return Number.isNaN(milliseconds) ? null : Math.max(0, milliseconds);
}

/** What a head says: the stream that follows, unless `why` says why there is none. */
function readHead(response, dialect) {
  const { status, headers } = response;
  const contentType = headers.get("content-type") ?? "";
  const wire = CONTENT_TYPES[contentType.split(";")[0].trim().toLowerCase()] ?? null;
  const promise = parseAnswer(headers.get("streamguard"));
  let why = null;
  if (![200, 201, 202, 203].includes(status)) why = "no stream";
  else if (wire === null) {
    const isText = contentType.toLowerCase().startsWith("text/plain");
    why = isText ? "plain text proves no end" : "the content type is that of no stream";
  } else if (promise && promise.wire !== wire) {
    why = `the Streamguard header promises '${promise.wire}', and this is '${wire}'`;
  }
  let known = dialect;
  if (promise && promise.dialect !== dialect?.name) {
    known = Object.hasOwn(DIALECTS, promise.dialect) ? { name: promise.dialect } : null; // the server knows what it wrote
  }
  return { wire, promise, dialect: known, why };
}

// ---- an answer ------------------------------------------------------------------------------------------------

const MAX_REFUSAL = 64 * 1024; // bytes kept of the body of an answer that is no stream
const PIECE = 16 * 1024; // bytes that are read at once: a body that was there already comes in pieces of any size
const LINGER = 250; // milliseconds to read on after the terminal, so that the connection can serve the next request
const SLICE = 8; // milliseconds after which others get a turn: a task of 50 shows
const LATER = [408, 425, 429, 500, 502, 503, 504];
const NO_MORE = { 404: "unknown_stream", 409: "misfit", 410: "trimmed" };
const OF_ONE_REQUEST = new Set(["expect", "idempotency-key", "range", "trailer", "transfer-encoding"]);
const CREDENTIALS = ["authorization", "cookie", "proxy-authorization"]; // what `fetch` takes to no other origin
const OWN_OPTIONS = ["json", "dialect", "lenient", "limits", "maxFrame", "resume", "fetch"];
const OF_THE_BODY = ["method", "body", "duplex", "integrity", "keepalive"];
const LIMITS = { firstByteMs: 60_000, livenessMs: 45_000, stallMs: null, maxReceived: 64 * 1024 * 1024 };
const POLICY = { attempts: 5, baseMs: 500, maxWaitMs: 30_000 };
const ACCEPT = "text/event-stream, application/x-ndjson, application/vnd.streamguard.v1";
const UNGUARDED =
  "the server does not say that it guards (no Streamguard header, or one that CORS does not expose): " +
  "a provider's own stream needs its end marker, or another `dialect`";

const now = () => performance.now();
const TIMEOUT = Symbol("timeout");

/** What `promise` comes to, or TIMEOUT after so many milliseconds, null for no limit; `leave` is given what rejects it.
 *
 * `Promise.race` with a promise that lives as long as the answer would keep something of each read until its end. */
function within(promise, milliseconds, leave = () => {}) {
  return new Promise((resolve, reject) => {
    const timer = milliseconds === null ? undefined : setTimeout(() => settle(resolve, TIMEOUT), milliseconds);
    const settle = (done, value) => {
      clearTimeout(timer);
      done(value);
    };
    leave((error) => settle(reject, error));
    promise.then((value) => settle(resolve, value), (error) => settle(reject, error));
  });
}

let sliceBegan = 0; // of all answers together: what one leaves of a slice is the next one's

/** Let others have a turn. A stream whose bytes are there is read in microtasks, between which nothing is painted. */
async function breathe() {
  if (globalThis.scheduler?.yield) {
    await globalThis.scheduler.yield();
  } else if (globalThis.setImmediate) {
    await new Promise((resolve) => globalThis.setImmediate(resolve));
  } else {
    await new Promise((resolve) => {
      const { port1, port2 } = new MessageChannel();
      port1.onmessage = () => {
        port1.close();
        resolve();
      };
      port2.postMessage(null);
    });
  }
  sliceBegan = now();
}

function wholeNumber(name, value, least) {
  if (!(Number.isSafeInteger(value) && value >= least)) {
    throw new RangeError(`${name} is a whole number from ${least} on, not ${value}`);
  }
}

/** Defaults with what is given over them. Throws for a name that is none of them. */
function settings(what, defaults, given) {
  for (const name of Object.keys(given)) {
    if (!Object.hasOwn(defaults, name)) {
      throw new TypeError(`${what} has no '${name}'; there are: ${Object.keys(defaults).join(", ")}`);
    }
  }
  return { ...defaults, ...given };
}

/** Where a stream goes on: when to ask for what follows, and when to give up. Only a new frame gives attempts back. */
class WayBack {
  why = ""; // there is no further attempt
  retryMs = 0; // that the server wants to be left alone, after each end of a connection
  #policy;
  #spent = 0;
  #at = null;

  constructor(policy, url) {
    this.#policy = policy;
    this.url = url;
  }

  /** Milliseconds to wait before the next attempt behind `cursor`; null to give up. `asked`: those of `Retry-After`. */
  again(cursor, asked = 0) {
    const { attempts, baseMs, maxWaitMs } = this.#policy;
    if (this.#at === null || cursor.seq > this.#at.seq) {
      this.#at = cursor;
      this.#spent = 0;
    }
    if (this.#spent >= attempts) {
      this.why = `${attempts} attempt${attempts === 1 ? "" : "s"} to resume it brought no new frame`;
      return null;
    }
    const bound = Math.min(maxWaitMs, baseMs * 2 ** Math.min(this.#spent, 64));
    this.#spent += 1;
    // Drawn, so that the readers of a server that went down do not come back all at once.
    return Math.min(maxWaitMs, Math.max(asked, this.retryMs) + bound * Math.random());
  }

  /** What an answer that is no stream means: {waitMs}, {error}, or neither, and no further attempt. */
  refused({ status, why, body, retryAfterMs }) {
    const problem = asObject(parsed(body));
    const code = asText(problem.code) || null;
    const cursor = this.#at;
    if (LATER.includes(status) || (status === 409 && code === "busy")) {
      const asked = retryAfterMs ?? 0;
      if (asked <= this.#policy.maxWaitMs) return { waitMs: this.again(cursor, asked) };
      this.why = `the server wants to be left alone for ${asked / 1000} s`;
      return { waitMs: null };
    }
    if (status in NO_MORE) {
      const told = asText(problem.detail).slice(0, 200).replace(/\s+/g, " ");
      const detail = `the server does not have what follows (HTTP ${status})${told ? `: ${told}` : ""}`;
      return { error: new StreamGap(cursor.seq + 1, null, cursor, detail, code ?? NO_MORE[status]) };
    }
    this.why = status === 204
      ? "the server says that nothing follows, and there was no terminal"
      : `the server did not resume it: ${why} (HTTP ${status})`;
    return { waitMs: null };
  }
}

/** An answer as it comes. It ends normally only if it is complete, or its end is proven where there are no cursors. */
export class Answer {
  /** The response to the request itself. */
  response = null;
  #request;
  #state = { frames: [], at: 0, handed: 0, text: "", received: 0 };
  #verifier = new StreamVerifier();
  #promise = null; // what the first answer's header said
  #address = null; // where the stream is resumed and cancelled
  #back = null; // of a stream that can be resumed
  #waitMs = null; // before the attempt that is due
  #body = null; // the reader of the connection's bytes
  #rest = EMPTY; // that came and are not read yet
  #connection = null; // its AbortController
  #error = null;
  #over = false;
  #busy = false;
  #stop = null; // ends what is waited for, where this side leaves
  #times;

  constructor(request) {
    this.#request = request;
    this.#times = { began: now(), last: now(), first: null, gap: null, waited: 0, before: 0, frames: 0 };
    const { signal } = request.init;
    if (signal) {
      const leave = () => this.#leave(signal.reason ?? new DOMException("aborted", "AbortError"));
      if (signal.aborted) leave();
      else signal.addEventListener("abort", leave, { once: true, signal: request.done.signal });
    }
  }

  // -- what is known

  /** What is known so far; final once the answer was read to its end. */
  get receipt() {
    const { first, gap, began, last } = this.#times;
    const own = { firstFrameMs: first, longestGapMs: gap, durationMs: last - began };
    return new Receipt({ ...this.#verifier.receipt, ...own });
  }

  /** The text handed out so far, up to `limits.maxReceived` characters. */
  get received() {
    return this.#state.text;
  }

  /** The last cursor whose checks held. */
  get cursor() {
    return this.#verifier.cursor;
  }

  // -- reading

  /** The text, as it comes. Leaving the loop early closes the answer. */
  text() {
    return this.#each((frame) => frame.text);
  }

  /** Every frame, with its `item`: a block of `native`, or a provider's event. */
  frames() {
    return this.#each((frame) => frame);
  }

  /** The blocks between the text, which goes to `received`: each when it is whole. */
  blocks() {
    const each = this.#each((frame) => (frame.blocks.length ? frame.blocks : null));
    const { next } = each;
    const found = [];
    each.next = async () => {
      if (!found.length) {
        const { done, value } = await next();
        if (done) return { done, value };
        found.push(...value);
      }
      return { done: false, value: found.shift() };
    };
    return each;
  }

  [Symbol.asyncIterator]() {
    return this.text();
  }

  /** The whole text, what was iterated before included. */
  async read() {
    while ((await this.#next(null)) !== null);
    if (this.#state.received > this.#request.limits.maxReceived) {
      const { received } = this.#state;
      throw new LocalProtocolError(`the answer has ${received} characters, and fewer are kept (maxReceived): iterate it`);
    }
    return this.#state.text;
  }

  /** Read no further. What generates the answer learns of it as of any reader that leaves. */
  close() {
    this.#leave(new StreamClosed("this side closed the answer before its end"));
  }

  /** Have the server end the stream; whether it did. What it had sent comes, then a FailedStream `cancelled`. */
  async cancel() {
    const at = this.cursor;
    if (!this.#address || !at) {
      throw new LocalProtocolError("the answer names no address to cancel it at: close() it, which ends its connection");
    }
    const headers = this.#again();
    headers.set("Streamguard-Stream", at.sid);
    const response = await this.#request.fetch(this.#address, { ...this.#init(), method: "DELETE", headers });
    if (response.ok) return true;
    if ([404, 409, 410].includes(response.status)) return false; // it is over, or nobody here generates it
    throw new UnexpectedResponse(await refusalOf(response, "the server did not cancel it", null, within));
  }

  #each(pick) {
    const answer = this;
    let had = 0;
    return {
      async next() {
        for (;;) {
          const frame = await answer.#next(had);
          if (frame === null) return { done: true, value: undefined };
          had += 1;
          const value = pick(frame);
          if (value) return { done: false, value };
        }
      },
      async return(value) {
        answer.close();
        return { done: true, value };
      },
      [Symbol.asyncIterator]() {
        return this;
      },
    };
  }

  /** The next frame; null at a good end. `had` is how many the taker has had: an answer is handed out once. */
  async #next(had) {
    if (this.#busy) throw new LocalProtocolError("the answer is being read already: one loop at a time");
    this.#busy = true;
    try {
      const state = this.#state;
      const behind = had !== null && had !== state.handed;
      for (;;) {
        if (now() - sliceBegan > SLICE) await breathe();
        const isEmpty = state.at === state.frames.length;
        if (isEmpty && this.#error && this.#over) throw this.#error;
        if (behind) {
          throw new StreamClosed("text that was handed out is not repeated: go on with the first loop, or take read()");
        }
        if (!isEmpty) break;
        if (this.#over) return null;
        await this.#advance();
      }
      const frame = state.frames[state.at];
      state.frames[state.at] = undefined;
      state.at += 1;
      state.handed += 1;
      state.received += frame.text.length;
      if (state.received <= this.#request.limits.maxReceived) state.text += frame.text;
      return frame;
    } finally {
      this.#busy = false;
    }
  }

  async #advance() {
    this.#state.frames = [];
    this.#state.at = 0;
    if (this.#waitMs !== null) await this.#resume();
    else await this.#read();
  }

  /** Read once, and see what came of it. */
  async #read() {
    const began = now();
    const { livenessMs, stallMs } = this.#request.limits;
    const limit = stallMs !== null && (livenessMs === null || stallMs < livenessMs) ? stallMs : livenessMs;
    let read;
    try {
      read = this.#rest.length ? { value: this.#rest } : await this.#wait(this.#body.read(), limit);
    } catch (error) {
      if (!this.#over) this.#ended(began, false, error);
      return;
    }
    if (read === TIMEOUT) this.#silent(began, limit);
    else if (read.done) this.#ended(began, true);
    else this.#came(read.value, began);
    if (!this.#over && this.#verifier.verdict === "complete") await this.#readToEnd();
  }

  #came(bytes, began) {
    this.#rest = bytes.subarray(PIECE);
    this.#hand(this.#verifier.feed(bytes.subarray(0, PIECE)));
    this.#noted(began);
    const { stallMs } = this.#request.limits;
    const { verdict, error } = this.#verifier;
    if (error) this.#finish(error); // nothing is handed out after a fault
    else if (verdict === null && this.#verifier.state === "parted" && this.#back) {
      this.#ended(now(), false); // nothing follows a bye, and a connection may stay open after it
    } else if (verdict === null && stallMs !== null && this.#times.waited >= stallMs) {
      this.#finish(new LimitExceeded("stallMs", stallMs, this.cursor));
    }
  }

  /** After the terminal: what follows it is a fault, and a connection that is read to its end serves the next request. */
  async #readToEnd() {
    const until = now() + LINGER;
    while (!this.#over) {
      let read;
      try {
        read = this.#rest.length
          ? { value: this.#rest }
          : await this.#wait(this.#body.read(), Math.max(0, until - now()));
      } catch {
        read = TIMEOUT; // the answer is known all the same
      }
      if (read === TIMEOUT || read.done) this.#ended(now(), false);
      else this.#came(read.value, now());
    }
  }

  #ended(began, clean, cause) {
    this.#hand(this.#verifier.end(clean));
    this.#noted(began);
    const { error } = this.#verifier;
    if (!(error instanceof TruncatedStream)) {
      this.#finish(error);
      return;
    }
    if (cause) error.cause = cause;
    if (clean && this.#looksUnguarded()) error.explained(UNGUARDED);
    this.#lost(error);
  }

  #silent(began, limit) {
    this.#noted(began);
    const name = limit === this.#request.limits.stallMs ? "stallMs" : "livenessMs";
    this.#lost(new LimitExceeded(name, limit, this.cursor));
  }

  /** A connection, or an attempt at one, came to nothing: plan the next attempt, or give up. */
  #lost(error, cause) {
    this.#drop();
    this.#error = error;
    const back = this.#back;
    if (!back || !this.cursor) {
      this.#finish(error);
    } else if (this.#verifier.parting === "replaced") {
      // To come back would drive that one out again.
      this.#giveUp("another reader took this one's place", cause);
    } else {
      back.retryMs = this.#verifier.retry ?? back.retryMs;
      this.#waitMs = back.again(this.cursor);
      if (this.#waitMs === null) this.#giveUp(back.why, cause);
    }
  }

  #giveUp(why, cause) {
    const error = this.#error;
    if (cause && error) error.cause = cause;
    if (error instanceof TruncatedStream) error.explained(why);
    this.#finish(error);
  }

  async #resume() {
    const headers = this.#again();
    headers.set("Last-Event-ID", String(this.cursor));
    let response;
    try {
      await this.#wait(new Promise(() => {}), this.#waitMs);
      this.#waitMs = null;
      // A redirect could lead to another origin, which these headers are not for.
      response = await this.#fetch(this.#back.url, { ...this.#init(), method: "GET", headers, redirect: "error" });
    } catch (error) {
      this.#apart();
      if (!this.#over) this.#lost(this.#error, error);
      return;
    }
    this.#apart();
    const head = readHead(response, this.#request.dialect);
    if (head.why !== null) {
      await this.#refused(response, head.why);
      return;
    }
    this.#error = null;
    this.#body = response.body.getReader();
    this.#verifier.resume(head.wire, head.promise?.cursor ?? null);
    if (head.promise && this.#promise && head.promise.dialect !== this.#promise.dialect) {
      const detail = `the answer goes on in dialect '${head.promise.dialect}', and began in '${this.#promise.dialect}'`;
      this.#verifier.giveUp(new CorruptStream("grammar", this.cursor, detail));
    }
    if (this.#verifier.error) this.#finish(this.#verifier.error);
  }

  /** The answer to an attempt is no stream. */
  async #refused(response, why) {
    const refusal = await this.#refusal(response, why);
    if (this.#over) return; // closed meanwhile
    this.#drop();
    const { waitMs, error } = this.#back.refused(refusal);
    if (error) {
      error.cause = new UnexpectedResponse(refusal);
      this.#verifier.giveUp(error);
      this.#finish(error);
    } else {
      this.#waitMs = waitMs;
      if (waitMs === null) this.#giveUp(this.#back.why, new UnexpectedResponse(refusal));
    }
  }

  // -- connections

  /** Send the request. Throws what `fetch` throws, UnexpectedResponse, and LimitExceeded. */
  async open() {
    const { url, init, lenient, maxFrame, resume } = this.#request;
    try {
      this.response = await this.#fetch(url, init);
      const head = readHead(this.response, this.#request.dialect);
      if (head.why !== null) throw new UnexpectedResponse(await this.#refusal(this.response, head.why));
      this.#promise = head.promise;
      this.#request.dialect = head.dialect;
      const zero = head.promise?.cursor ?? null;
      this.#verifier = new StreamVerifier({ wire: head.wire, dialect: head.dialect, zero, lenient, maxFrame });
      this.#body = this.response.body.getReader();
    } catch (error) {
      this.#finish(error);
      throw this.#error; // which is another one where this side left before
    }
    const here = this.response.url || String(url); // a `fetch` of somebody's own may not say where it was
    const told = this.#promise?.resume ?? null;
    this.#address = address(told, here);
    if (resume === false) return;
    if (this.#address) this.#back = new WayBack(resume.policy, this.#address);
    else if (told === null && resume.always && init.method.toUpperCase() === "GET") {
      this.#back = new WayBack(resume.policy, here);
    }
  }

  /** A response, in a connection of its own to be dropped. */
  async #fetch(url, init) {
    if (this.#over) throw this.#error;
    const connection = (this.#connection = new AbortController());
    const limit = this.#request.limits.firstByteMs;
    const response = await this.#wait(this.#request.fetch(url, { ...init, signal: connection.signal }), limit);
    if (response !== TIMEOUT) return response;
    connection.abort();
    throw new LimitExceeded("firstByteMs", limit, this.cursor);
  }

  #refusal(response, why) {
    return refusalOf(response, why, this.#request.limits.firstByteMs, (read, limit) => this.#wait(read, limit));
  }

  /** As `within`, unless this side leaves before. One thing at a time is waited for. */
  #wait(promise, milliseconds) {
    return within(promise, milliseconds, (leave) => (this.#stop = leave));
  }

  /** The options of the request, for another one about its stream. */
  #init() {
    const init = { ...this.#request.init };
    for (const name of [...OF_THE_BODY, "signal"]) delete init[name];
    return init;
  }

  /** Whether a redirect led the request to another origin than the one it was for. */
  get #elsewhere() {
    const { redirected, url } = this.response;
    if (!redirected || !url) return false; // without one its stream is looked for at the address that was asked
    return new URL(url).origin !== new URL(String(this.#request.url), globalThis.location?.href).origin;
  }

  #again() {
    const headers = new Headers(this.#request.init.headers);
    for (const name of [...headers.keys()]) {
      if (/^(content-|if-)/.test(name) || OF_ONE_REQUEST.has(name)) headers.delete(name);
    }
    // Where another origin was led to, `fetch` took them out of its request: here they would be sent there after all.
    if (this.#elsewhere) for (const name of CREDENTIALS) headers.delete(name);
    return headers;
  }

  /** Let go of the connection. */
  #drop() {
    this.#rest = EMPTY;
    const body = this.#body;
    this.#body = null;
    body?.cancel().catch(() => {}); // it may be broken, which is known
    this.#connection?.abort();
  }

  #leave(error) {
    if (this.#over) return;
    this.#state.frames.length = this.#state.at; // what was not handed out is not to come after this
    this.#finish(error);
    this.#stop?.(error);
  }

  /** The answer is over; `error` is what it ends in, null for a good end. */
  #finish(error) {
    if (this.#over) return; // the first end is the one
    this.#over = true;
    this.#error = error;
    this.#waitMs = null;
    if (error instanceof VerdictError) {
      // Attached now: what is in `frames` is handed out before the error is thrown.
      const pending = this.#state.frames.slice(this.#state.at).map((frame) => frame.text);
      error.received = (this.#state.text + pending.join("")).slice(0, this.#request.limits.maxReceived);
    }
    this.#request.done.abort();
    this.#drop();
  }

  // -- small parts

  #hand(frames) {
    if (this.#state.at === this.#state.frames.length) {
      this.#state.frames = frames;
      this.#state.at = 0;
    } else {
      for (const frame of frames) this.#state.frames.push(frame);
    }
  }

  /** A read that began at `began` is over. Only the time of reads counts: a slow caller is no stalled server. */
  #noted(began) {
    const times = this.#times;
    times.last = now();
    times.waited += times.last - began;
    if (this.#verifier.frames === times.frames) return;
    if (times.first === null) times.first = times.last - times.began;
    else times.gap = Math.max(times.gap ?? 0, times.before + times.waited);
    times.frames = this.#verifier.frames;
    times.waited = times.before = 0;
  }

  /** Until now there was no connection. */
  #apart() {
    const times = this.#times;
    times.before += times.waited + now() - times.last;
    times.waited = 0;
    times.last = now();
  }

  #looksUnguarded() {
    return !this.#promise && !this.cursor && !this.#state.text && !this.#state.frames.some((frame) => frame.text);
  }
}

/** An answer that is no stream, with as much of its body as says why. */
async function refusalOf(response, why, limitMs, wait) {
  const body = new Waiting();
  const until = now() + (limitMs ?? Infinity);
  const reader = response.body?.getReader();
  try {
    while (reader && body.length < MAX_REFUSAL) {
      const read = await wait(reader.read(), limitMs === null ? null : Math.max(0, until - now()));
      if (read === TIMEOUT || read.done) break;
      body.add(read.value);
    }
  } catch {
    // It broke off: its status says enough.
  }
  reader?.cancel().catch(() => {});
  return {
    status: response.status,
    contentType: response.headers.get("content-type") ?? "",
    body: decode(body.bytes.subarray(0, MAX_REFUSAL)),
    why,
    retryAfterMs: retryAfter(response.headers),
  };
}

/** Where a stream is resumed: an address of the same origin as its own, since the request's headers are for no other. */
function address(relative, here) {
  if (relative === null) return null;
  try {
    const target = new URL(relative, here);
    return target.origin === new URL(here).origin ? target.href : null;
  } catch {
    return null;
  }
}

/** What `stream` was given, vetted before a request is paid for. */
function requestOf(url, options) {
  const init = { method: "GET", cache: "no-store", ...options };
  for (const name of OWN_OPTIONS) delete init[name];
  const { json, dialect = null, lenient = false, limits = {}, maxFrame = MAX_FRAME, resume = null } = options;
  const headers = (init.headers = new Headers(init.headers));
  if (json !== undefined) {
    init.body = JSON.stringify(json);
    if (!headers.has("Content-Type")) headers.set("Content-Type", "application/json");
  }
  if (!headers.has("Streamguard")) headers.set("Streamguard", "v=1");
  if (!headers.has("Accept")) headers.set("Accept", ACCEPT);
  // Browsers drop it. Elsewhere: what compresses an answer holds it back.
  if (!headers.has("Accept-Encoding")) headers.set("Accept-Encoding", "identity");
  vetPlace(url, headers);
  wholeNumber("maxFrame", maxFrame, 1);
  const own = settings("limits", LIMITS, limits);
  for (const name of ["firstByteMs", "livenessMs", "stallMs"]) {
    if (own[name] !== null && !(own[name] > 0)) throw new RangeError(`${name} is above 0, or null for no limit`);
  }
  wholeNumber("maxReceived", own.maxReceived, 0);
  if (!(resume === null || typeof resume === "boolean" || isObject(resume))) {
    throw new TypeError("resume is true, false, or { attempts, baseMs, maxWaitMs }");
  }
  const policy = settings("resume", POLICY, asObject(resume));
  wholeNumber("attempts", policy.attempts, 1);
  for (const name of ["baseMs", "maxWaitMs"]) {
    if (!(policy[name] >= 0 && policy[name] < Infinity)) throw new RangeError(`${name} is from 0 on`);
  }
  return {
    url,
    init,
    limits: own,
    lenient,
    maxFrame,
    dialect: dialect === null ? null : dialectNamed(dialect),
    resume: resume === false ? false : { policy, always: resume !== null },
    fetch: options.fetch ?? globalThis.fetch.bind(globalThis),
    done: new AbortController(), // what is to be let go of at the end hangs on it
  };
}

/** A stream is verified from its start: each check is chained to the one before. */
function vetPlace(url, headers) {
  const query = String(url).split("#")[0].split("?")[1] ?? "";
  for (const text of [headers.get("Last-Event-ID") ?? "", ...new URLSearchParams(query).getAll("after")]) {
    if ((Cursor.in(text)?.seq ?? 0) > 0) {
      throw new LocalProtocolError(
        "this client verifies from the start, and cannot begin behind a cursor: ask by ?name=… or " +
          "Streamguard-Stream: <sid>, and the whole comes again, verified",
      );
    }
  }
}

/**
 * Send a request and read the stream that answers it, verified. Options are those of `fetch`, and `json` (a body),
 * `dialect`, `lenient`, `limits`, `maxFrame`, `resume`, `fetch`. Throws what `fetch` throws where there is no connection,
 * UnexpectedResponse for what is no stream, LimitExceeded where no response comes.
 */
export async function stream(url, options = {}) {
  const answer = new Answer(requestOf(url, options));
  await answer.open();
  return answer;
}
