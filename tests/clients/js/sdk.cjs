// node sdk.cjs: the SDKs of others, asked by lines of JSON. It ends with its standard input.
//
//   {"id": 1, "do": "chat", "with": ["http://…", …]}
//
// Each is answered by {"id", "value"}, which is what the SDK hands out, or {"id", "error"}, what it throws.
const readline = require("node:readline");

const key = { apiKey: "k", maxRetries: 0 };
const asked = { model: "m", messages: [], stream: true };
const user = (text) => ({ id: "u1", role: "user", parts: [{ type: "text", text }] });

async function all(stream) {
  const found = [];
  for await (const item of stream) found.push(item);
  return found;
}

// What `useChat` of every framework is made of, with a state of its own.
function chatOf(api, id, headers) {
  const { AbstractChat, DefaultChatTransport } = require("ai");
  const seen = { finish: null, errors: [] };
  const state = {
    status: "ready",
    error: undefined,
    messages: [],
    pushMessage: (message) => state.messages.push(message),
    popMessage: () => state.messages.pop(),
    replaceMessage: (index, message) => (state.messages[index] = message),
    snapshot: (thing) => structuredClone(thing),
  };
  class Chat extends AbstractChat {}
  const chat = new Chat({
    id,
    state,
    transport: new DefaultChatTransport({ api, headers }),
    onError: (error) => seen.errors.push(error.message),
    onFinish: ({ isAbort, isDisconnect, isError }) => (seen.finish = { isAbort, isDisconnect, isError }),
  });
  const told = () => ({ ...seen, status: chat.status, message: chat.messages.findLast((one) => one.role !== "user") ?? null });
  return { chat, told };
}

const verbs = {
  async chat(baseURL) {
    const { OpenAI } = require("openai");
    return all(await new OpenAI({ ...key, baseURL }).chat.completions.create(asked));
  },
  async responses(baseURL) {
    const { OpenAI } = require("openai");
    return all(await new OpenAI({ ...key, baseURL }).responses.create({ model: "m", input: "q", stream: true }));
  },
  async response(baseURL) {
    const { OpenAI } = require("openai");
    return new OpenAI({ ...key, baseURL }).responses.stream({ model: "m", input: "q" }).finalResponse();
  },
  async message(baseURL) {
    const { Anthropic } = require("@anthropic-ai/sdk");
    return new Anthropic({ ...key, baseURL }).messages.stream({ model: "m", messages: [], max_tokens: 9 }).finalMessage();
  },
  async ui(api) {
    const { chat, told } = chatOf(api, "c1");
    await chat.sendMessage(user("hi"));
    return told();
  },
  // What the transport hands to the chat.
  async chunks(api) {
    const { DefaultChatTransport } = require("ai");
    const request = { trigger: "submit-message", chatId: "c1", messages: [] };
    return all(await new DefaultChatTransport({ api }).sendMessages(request));
  },
  async resume(api, id, headers) {
    const { chat, told } = chatOf(api, id, headers);
    chat.messages = [user("hi")];
    await chat.resumeStream();
    return told();
  },
  // The message that the AI SDK makes by itself of what a provider sends.
  async provider(baseURL, names) {
    const { jsonSchema, readUIMessageStream, streamText, tool } = require("ai");
    const { createOpenAICompatible } = require("@ai-sdk/openai-compatible");
    const model = createOpenAICompatible({ name: "p", apiKey: "k", baseURL })("m");
    const open = { inputSchema: jsonSchema({ type: "object", additionalProperties: true }) };
    const tools = Object.fromEntries(names.map((name) => [name, tool(open)]));
    const found = streamText({ model, tools, prompt: "hi", maxRetries: 0 });
    return (await all(readUIMessageStream({ stream: found.toUIMessageStream() }))).at(-1);
  },
  async agent(url) {
    const { HttpAgent } = require("@ag-ui/client");
    let failed = null; // it tells, and throws nothing
    const listener = { onRunErrorEvent: ({ event }) => void (failed = event.message) };
    return { messages: (await new HttpAgent({ url }).runAgent({}, listener)).newMessages, failed };
  },
};

async function main() {
  const say = (answer) => process.stdout.write(JSON.stringify(answer) + "\n");
  say({ id: 0, value: process.version });
  process.on("unhandledRejection", () => {}); // some leave a promise behind that nobody can catch
  console.error = console.warn = () => {}; // some SDKs print what they also throw
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const told = JSON.parse(line);
    verbs[told.do](...told.with).then(
      (value) => say({ id: told.id, value: value ?? null }),
      (error) => say({ id: told.id, error: `${error.name}: ${error.message}` }),
    );
  }
}

main();
