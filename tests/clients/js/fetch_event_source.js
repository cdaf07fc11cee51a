// In a page: what @microsoft/fetch-event-source hands out. It has no end of its own where an answer is no stream, so it
// is stopped at the error number `most`. `hide` is after how many events the page is hidden, once, and soon shown again.
async function fetchAll({ url, options, most, hide }) {
  const { fetchEventSource } = await import("/fetch-event-source/index.js");
  const seen = { events: [], errors: 0, closes: 0 };
  let hidden = false;
  let blinked = false;
  Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
  const show = (value) => {
    hidden = !value;
    document.dispatchEvent(new Event("visibilitychange"));
  };
  const blink = () => {
    if (blinked) return;
    blinked = true;
    show(false);
    setTimeout(show, 20, true);
  };
  const early = hide === 0 ? { onopen: blink } : {};
  const ended = fetchEventSource(url, {
    ...options,
    ...early,
    onmessage(event) {
      seen.events.push([event.event || "message", event.data, event.id]);
      if (seen.events.length === hide) blink();
    },
    onclose: () => (seen.closes += 1),
    onerror(error) {
      seen.errors += 1;
      if (seen.errors === most) throw error;
    },
  });
  await ended.catch(() => null);
  return seen;
}
