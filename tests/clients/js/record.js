// What an EventSource hands out, until it closes for good. For a browser's page and for Node.
function record(source) {
  return new Promise((resolve) => {
    const seen = { events: [], opens: 0, errors: 0 };
    for (const type of ["message", "open", "block", "ping", "bye", "end"]) {
      source.addEventListener(type, (event) => {
        // `open` is also what an EventSource says of its connection, and then it bears no data.
        if (event.data === undefined) seen.opens += 1;
        else seen.events.push([type, event.data, event.lastEventId]);
      });
    }
    source.addEventListener("error", () => {
      seen.errors += 1;
      if (source.readyState === 2) resolve(seen);
    });
  });
}

if (typeof module !== "undefined") module.exports = record;
