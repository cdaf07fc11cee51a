// node node.mjs MODULE: the client in Node, asked by lines of JSON.
//
//   {"id": 1, "do": "read", "with": ["http://…", {options}]}       what a stream comes to
//   {"id": 2, "do": "drop", "with": []}                            its connections; where it left an answer Node makes one more
//   {"id": 3, "do": "verdicts", "with": [[{stream}]]}              what it makes of the streams of damage.py
//   {"id": 4, "do": "promises", "with": [["v=1, …"]]}              what it reads in values of the header Streamguard
//   {"id": 5, "do": "vectors", "with": [["a.json"], 1]}            what it makes of the vectors in files
//   {"id": 6, "do": "blocks", "with": ["http://…", {options}]}     the blocks that a loop is given, and what ended it
//   {"id": 7, "do": "parsed", "with": [[{stream}]]}                the same as of "verdicts", and how much was parsed for that
import { readFileSync } from "node:fs";
import readline from "node:readline";
import { pathToFileURL } from "node:url";
import { reading } from "./reading.mjs";
import { judge, verdicts } from "./vectors.mjs";

const sg = await import(pathToFileURL(process.argv[2]));
const say = (answer) => process.stdout.write(JSON.stringify(answer) + "\n");

new Headers(); // loads what is behind `fetch`, whose pool of connections is then known
const { constructor: Agent } = globalThis[Symbol.for("undici.globalDispatcher.1")];
let dispatcher = new Agent();
const verbs = {
  read: (url, options) => reading(sg, url, { ...options, dispatcher }),
  async drop() {
    await dispatcher.destroy();
    dispatcher = new Agent();
  },
  async blocks(url, options) {
    const found = { blocks: [], received: null, error: null };
    const answer = await sg.stream(url, { ...options, dispatcher });
    try {
      for await (const block of answer.blocks()) found.blocks.push(block);
    } catch (error) {
      found.error = error.name;
    }
    return { ...found, received: answer.received };
  },
  async parsed(streams) {
    const { parse } = JSON;
    let characters = 0;
    JSON.parse = (text) => {
      characters += text.length;
      return parse(text);
    };
    try {
      const said = verdicts(sg, streams);
      return { said, characters };
    } finally {
      JSON.parse = parse;
    }
  },
  verdicts: async (streams) => verdicts(sg, streams),
  promises: async (headers) => headers.map((header) => {
    const promise = sg.parseAnswer(header);
    return promise && [String(promise.cursor), promise.dialect, promise.wire, promise.resume];
  }),
  vectors: async (files, step) => judge(sg, files.map((file) => JSON.parse(readFileSync(file, "utf-8"))), step),
};

say({ id: 0, value: process.version });
process.on("unhandledRejection", (error) => say({ id: -1, error: String(error) })); // nobody asked: the script is over
for await (const line of readline.createInterface({ input: process.stdin })) {
  const { id, do: verb, with: given } = JSON.parse(line);
  verbs[verb](...given).then((value) => say({ id, value: value ?? null }), (error) => say({ id, error: String(error) }));
}
