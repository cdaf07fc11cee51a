// node read.cjs: clients of others, asked by lines of JSON, as foreign/read.py is: what each handed out until it stopped,
// and what it threw then (null: it reports success). It ends with its standard input.
const readline = require("node:readline");

const body = { model: "m", messages: [{ role: "user", content: "hi" }] };
const key = { apiKey: "k", maxRetries: 0 };

async function each(stream, hand) {
  for await (const item of stream) hand(item);
}

const clients = {
  async openai(baseURL, hand) {
    const { OpenAI } = require("openai");
    await each(await new OpenAI({ ...key, baseURL }).chat.completions.create({ ...body, stream: true }), hand);
  },
  async "@anthropic-ai/sdk"(baseURL, hand) {
    const { Anthropic } = require("@anthropic-ai/sdk");
    await each(new Anthropic({ ...key, baseURL }).messages.stream({ ...body, max_tokens: 9 }), hand);
  },
  // It has no end of its own but a status that is no stream.
  eventsource(url, hand) {
    const exported = require("eventsource");
    const source = new (exported.EventSource ?? exported)(url);
    source.addEventListener("message", (event) => hand([event.type, event.data]));
    return new Promise((resolve) => {
      source.addEventListener("error", () => source.readyState === 2 && resolve());
    });
  },
  // In Node it needs what it knows of a page.
  async "@microsoft/fetch-event-source"(url, hand) {
    globalThis.window ??= globalThis;
    globalThis.document ??= { hidden: false, addEventListener() {}, removeEventListener() {} };
    const { fetchEventSource } = require("@microsoft/fetch-event-source");
    let errors = 0;
    await fetchEventSource(url, {
      method: "POST",
      body: JSON.stringify(body),
      onmessage: (event) => hand([event.event, event.data]),
      onerror(error) {
        errors += 1;
        if (errors === 2) throw error; // else it asks for ever
        return 5;
      },
    });
  },
  async ai(api, hand) {
    const { DefaultChatTransport, readUIMessageStream } = require("ai");
    const request = { trigger: "submit-message", chatId: "c1", messages: [] };
    const stream = await new DefaultChatTransport({ api }).sendMessages(request);
    await each(readUIMessageStream({ stream, terminateOnError: true }), hand);
  },
  async "@ag-ui/client"(url, hand) {
    const { HttpAgent } = require("@ag-ui/client");
    await new HttpAgent({ url }).runAgent({}, { onEvent: ({ event }) => hand(event) });
  },
  async "eventsource-parser"(url, hand) {
    const { EventSourceParserStream } = require("eventsource-parser/stream");
    const response = await fetch(url, { method: "POST", body: JSON.stringify(body) });
    const events = response.body.pipeThrough(new TextDecoderStream()).pipeThrough(new EventSourceParserStream());
    await each(events, (event) => hand([event.event ?? "message", event.data]));
  },
};

async function reading(client, url) {
  const handed = [];
  const hand = (item) => void handed.push(item);
  try {
    await clients[client](url, hand);
    return { handed, error: null };
  } catch (error) {
    return { handed, error: error.constructor?.name ?? error.name };
  }
}

async function main() {
  const say = (answer) => process.stdout.write(JSON.stringify(answer) + "\n");
  say({ id: 0, value: process.version });
  console.error = console.warn = console.log = () => {};
  process.on("unhandledRejection", () => {}); // some leave a promise behind that nobody can catch
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const told = JSON.parse(line);
    reading(told.do, ...told.with).then((value) => say({ id: told.id, value }));
  }
  process.exit(0); // some keep timers
}

main();
