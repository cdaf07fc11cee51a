// What a stream comes to, read by the module `sg`: in Node by node.mjs, in a page by the source of this function.
//
// Options are those of `stream`, and `after` so many texts `then`: "close", "cancel", "break", "abort" or "again".

export async function reading(sg, url, { after = null, then = null, ...options } = {}) {
  const found = { text: "", error: null, receipt: null, cancelled: null, items: [] };
  const controller = new AbortController();
  let answer = null;
  try {
    answer = await sg.stream(url, { ...options, signal: controller.signal });
    let handed = 0;
    const acts = {
      close: () => answer.close(),
      cancel: async () => (found.cancelled = await answer.cancel()),
      abort: () => controller.abort(),
      again: async () => {
        for await (const text of answer) found.text += text;
      },
    };
    for await (const frame of answer.frames()) {
      found.text += frame.text;
      if (frame.item) found.items.push(frame.item);
      handed += 1;
      if (handed !== after) continue;
      if (then === "break") break;
      await acts[then]();
    }
    if (then !== "break" && answer.received !== found.text) throw new Error("`received` is another text");
    if (then === null && (await answer.read()) !== found.text) throw new Error("`read` gives another text");
  } catch (error) {
    const { name, message, code, status, received, limit, retryAfterMs, cause } = error;
    const cursor = error.cursor ? String(error.cursor) : null;
    found.error = { name, message, code, status, received, limit, retryAfterMs, cursor, cause: cause?.name };
  }
  if (answer) found.receipt = { ...answer.receipt, cursor: String(answer.receipt.cursor), line: String(answer.receipt) };
  return found;
}
