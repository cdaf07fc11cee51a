// What the client `sg` makes of every vector, in Node or in a page: how many there were, and which came to another verdict
// than the file says. The form of a file is told in tests/vectors/__init__.py.

const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);
const bytes = (base64) => Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
const cut = (data, size) =>
  Array.from({ length: Math.ceil(data.length / size) }, (_, n) => data.subarray(n * size, (n + 1) * size));

/** Whole, byte by byte, and in larger pieces. */
const chunkings = (data) => [[data], ...[1, 3, 40, 700].map((size) => cut(data, size))];

function together(parts) {
  const all = new Uint8Array(parts.reduce((size, part) => size + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

const at = (name) => {
  const code = name.codePointAt(0);
  return code < 127 ? code - 48 - (code > 92) : code - 161 + 78;
};

/** `files` as JSON; of the changed bytes every `step`th. */
export function judge({ StreamVerifier }, files, step = 1) {
  Error.stackTraceLimit = 0; // it costs more than to read a stream
  const wrong = [];
  let tried = 0;

  function read(chunks, options) {
    const verifier = new StreamVerifier(options);
    const frames = [];
    for (const chunk of chunks) frames.push(...verifier.feed(chunk));
    frames.push(...verifier.end());
    return { verifier, frames };
  }

  /** Whether a reading is the outcome; what was handed out is the beginning of the whole's, and the same where it is all. */
  function check(what, stream, { verifier, frames }, name, isBeginning = true) {
    tried += 1;
    const [verdict, code, count] = stream.outcomes[at(name)];
    const receipt = verifier.receipt;
    const isSame = (frame, [own, data, text]) =>
      frame.name === own && frame.data === data && (verdict !== "complete" || frame.text === text);
    const right =
      receipt.verdict === verdict && receipt.code === code && frames.length === count &&
      (!isBeginning || frames.every((frame, number) => isSame(frame, stream.frames[number])));
    if (!right) wrong.push([stream.name, what, [verdict, code, count], [receipt.verdict, receipt.code, frames.length]]);
  }

  function swept(stream, options, data) {
    for (const [key, lenient] of [["cuts", false], ["lenient", true]]) {
      [...stream[key]].forEach((name, size) => {
        check(`${key} at ${size}`, stream, read([data.subarray(0, size)], { ...options, lenient }), name);
      });
    }
    const values = stream.values.map((value) => [value[0] === "^", Number(value.slice(1))]);
    [...stream.changed].forEach((name, number) => {
      if (name === "." || number % step) return;
      const place = Math.floor(number / values.length);
      const [flips, value] = values[number % values.length];
      const changed = data.slice();
      changed[place] = flips ? data[place] ^ value : value;
      // Some of them byte by byte too: a fault has one name however the bytes are cut.
      const chunked = number % 199 ? [[changed]] : [[changed], cut(changed, 1)];
      for (const chunks of chunked) check(`byte ${place} as ${changed[place]}`, stream, read(chunks, options), name);
    });
  }

  function cased(stream, options, parts) {
    for (const [number, [what, pieces, name, more]] of stream.cases.entries()) {
      const { text, status, failure, zero, max_frame: maxFrame } = more;
      const data = pieces.map((piece) => (typeof piece === "number" ? parts[piece] : bytes(piece)));
      const own = { ...options, ...(zero && { zero }), ...(maxFrame && { maxFrame }) };
      const all = together(data);
      for (const chunks of [[all], cut(all, number % 9 ? 41 : 1)]) {
        const found = read(chunks, own);
        check(what, stream, found, name, false);
        const told = [found.frames.map((frame) => frame.text).join(""), found.verifier.status ?? undefined];
        if (!same(told, [text, status])) wrong.push([stream.name, what, [text, status], told]);
        if (failure !== found.verifier.failure?.code) wrong.push([stream.name, what, failure, found.verifier.failure]);
      }
    }
  }

  function whole(stream, options, data) {
    for (const chunks of chunkings(data)) {
      const { verifier, frames } = read(chunks, options);
      const { status, frames: count, bytes: size, crc, finishReason, usage } = verifier.receipt;
      const receipt = { status, frames: count, bytes: size, crc, finish_reason: finishReason, usage };
      const handed = frames.map((frame) => [frame.name, frame.data, frame.text]);
      if (!same(receipt, stream.receipt) || !same(handed, stream.frames)) {
        wrong.push([stream.name, "whole", stream.receipt, receipt]);
      }
    }
  }

  function joined(words, [what, connections, expected]) {
    tried += 1;
    let verifier = null;
    let text = "";
    const take = (frames) => frames.forEach((frame) => (text += frame.text));
    for (const [wire, pieces, sid] of connections) {
      const zero = sid && `${sid}.0.0.${{ A: "82ec9484", E: "a99ab3fb" }[sid[0]]}`;
      if (verifier) verifier.resume(wire, zero);
      else verifier = new StreamVerifier({ wire, dialect: "native" });
      for (const piece of pieces) take(verifier.feed(typeof piece === "number" ? words[wire][piece] : bytes(piece)));
      take(verifier.end(false));
    }
    const { verdict, code, resumes, duplicates } = verifier.receipt;
    const found = { verdict, code, text, resumes, duplicates };
    if (!same(found, expected)) wrong.push([what, expected, found]);
  }

  for (const { wire, streams, words, resumes } of files) {
    for (const stream of streams) {
      const options = { wire, dialect: stream.dialect, zero: stream.zero };
      const parts = stream.parts.map(bytes);
      const data = together(parts);
      whole(stream, { ...options, zero: null }, data);
      cased(stream, { ...options, zero: null }, parts);
      swept(stream, options, data);
    }
    const parts = Object.fromEntries(Object.entries(words).map(([name, own]) => [name, own.map(bytes)]));
    for (const joint of resumes) joined(parts, joint);
  }
  return { tried, wrong: wrong.slice(0, 20), count: wrong.length };
}

/** What the client makes of streams that are given with their options, in an order that `damage.py` has too. */
export function verdicts({ StreamVerifier }, streams) {
  Error.stackTraceLimit = 0;
  return streams.map(({ data, options, clean }, number) => {
    const all = bytes(data);
    const verifier = new StreamVerifier(options);
    const frames = cut(all, number % 3 ? all.length || 1 : 7).flatMap((chunk) => verifier.feed(chunk));
    frames.push(...verifier.end(clean));
    const receipt = verifier.receipt;
    const text = frames.map((frame) => frame.text).join("");
    return [
      receipt.verdict, receipt.code, frames.length, text, receipt.provedBy, receipt.finishReason,
      receipt.failure?.code ?? null, receipt.status, receipt.frames, receipt.crc, frames.flatMap((frame) => frame.blocks),
    ];
  });
}
