// What it costs a page, or Node, to read a long stream.

/** Long tasks as the browser reports them, milliseconds each, while a stream is read and shown. */
export async function tasks(sg, url) {
  const long = [];
  const note = (entries) => long.push(...entries.map((entry) => Math.round(entry.duration)));
  const observer = new PerformanceObserver((list) => note(list.getEntries()));
  observer.observe({ type: "longtask" });
  const place = document.body.appendChild(document.createElement("pre"));
  const began = performance.now();
  const answer = await sg.stream(url, { method: "POST" });
  let texts = 0;
  let shown = "";
  let painted = false;
  const paint = () => {
    place.textContent = shown.slice(-2000);
    painted = false;
  };
  for await (const text of answer) {
    texts += 1;
    shown += text;
    if (!painted) {
      painted = true;
      requestAnimationFrame(paint);
    }
  }
  const milliseconds = performance.now() - began;
  await new Promise((resolve) => setTimeout(resolve, 100)); // entries are told of in tasks of their own
  note(observer.takeRecords());
  observer.disconnect();
  place.remove();
  return { texts, verdict: answer.receipt.verdict, milliseconds, long };
}

/** Bytes of the heap after a collection, at every tenth of a stream whose text nobody keeps. */
export async function memory(sg, url, every) {
  const collect = globalThis.gc;
  const used = () => globalThis.process?.memoryUsage().heapUsed ?? performance.memory.usedJSHeapSize;
  const answer = await sg.stream(url, { method: "POST", limits: { maxReceived: 0 } });
  const heap = [];
  let texts = 0;
  for await (const text of answer) {
    texts += text ? 1 : 0;
    if (texts % every) continue;
    collect();
    heap.push(used());
  }
  return { texts, verdict: answer.receipt.verdict, heap };
}
