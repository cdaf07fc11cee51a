// node browser.cjs CHROMIUM: one browser, driven by lines of JSON. It ends with its standard input.
//
//   {"id": 1, "page": "p", "do": "open", "with": ["http://…"]}      a page of a browser context of its own
//   {"id": 2, "page": "p", "do": "evaluate", "with": ["async (x) => …", x]}
//   {"id": 3, "page": "p", "do": "reload" | "close", "with": []}
//   {"id": 4, "page": "p", "do": "size", "with": [320, 640]}
//   {"id": 5, "page": "p", "do": "media", "with": [{"colorScheme": "dark", "reducedMotion": "reduce"}]}
//   {"id": 6, "page": "p", "do": "press", "with": ["Tab"]}
//   {"id": 7, "page": "p", "do": "picture", "with": ["page.png"]}   all of it
//
// Each is answered by {"id", "value"} or {"id", "error"}, in the order in which they are done.
const { chromium } = require("playwright-core");
const readline = require("node:readline");

const pages = new Map();
const say = (answer) => process.stdout.write(JSON.stringify(answer) + "\n");

const verbs = {
  async open(browser, name, url) {
    const page = await (await browser.newContext()).newPage();
    pages.set(name, page);
    await page.goto(url);
  },
  evaluate: (browser, name, script, value) => pages.get(name).evaluate(`(${script})(${JSON.stringify(value ?? null)})`),
  async reload(browser, name) {
    await pages.get(name).reload();
  },
  size: (browser, name, width, height) => pages.get(name).setViewportSize({ width, height }),
  media: (browser, name, features) => pages.get(name).emulateMedia(features),
  press: (browser, name, key) => pages.get(name).keyboard.press(key),
  async picture(browser, name, path) {
    await pages.get(name).screenshot({ path, fullPage: true, animations: "disabled" });
  },
  async close(browser, name) {
    await pages.get(name).context().close();
    pages.delete(name);
  },
};

async function main() {
  // A container's root may not make namespaces, and its /dev/shm is small. The tests' servers are on loopback.
  const args = ["--no-sandbox", "--disable-dev-shm-usage", "--no-proxy-server"];
  args.push("--enable-precise-memory-info", "--js-flags=--expose-gc"); // for pages that measure themselves
  const browser = await chromium.launch({ executablePath: process.argv[2], args });
  say({ id: 0, value: browser.version() });
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const told = JSON.parse(line);
    verbs[told.do](browser, told.page, ...told.with).then(
      (value) => say({ id: told.id, value: value ?? null }),
      (error) => say({ id: told.id, error: String(error) }),
    );
  }
  await browser.close();
}

main();
