"""The page of `docs/how-to/survive-a-reload.md`, in Chromium, loaded again at every stage of its answer."""

from __future__ import annotations

import re
from pathlib import Path

import httpx

from tests.clients.browser import Browser
from tests.test_docs import ROOT, served

DOC = (ROOT / "docs/how-to/survive-a-reload.md").read_text(encoding="utf-8")
WAIT = """(count) => new Promise((resolve) => {
  const look = () => {
    const words = kept.text.split(" ").length - 1;
    if (words >= count || kept.status !== null) resolve(kept);
    else setTimeout(look, 5);
  };
  look();
})"""


def test_a_page_that_is_loaded_again_shows_one_text(tmp_path: Path, browser: Browser) -> None:
    match = re.search(r"^```html\n<!-- page.html -->\n(.*?)^```", DOC, re.MULTILINE | re.DOTALL)
    assert match is not None
    (tmp_path / "page.html").write_text(match[1], encoding="utf-8")
    paced = {
        "range(100)": "range(20)",
        "await anyio.sleep(0.05)\n": "while number >= allowed[0]:\n            await anyio.sleep(0.005)\n",
        "    for number": "    import sys; print('a generation', file=sys.stderr)\n    for number",
        "guard.install(": "allowed = [0]\napp.get('/allow/{n}')(lambda n: allowed.insert(0, int(n)))\nguard.install(",
    }
    words = [f"word-{number} " for number in range(20)]
    with served(tmp_path, "reloaded_app.py", **paced) as url, browser.page(f"{url}/") as page:
        page.evaluate("() => ask('word')")
        for allowed in (0, 3, 3, 8, 15):
            httpx.get(f"{url}/allow/{allowed}")
            kept = page.evaluate(WAIT, allowed)
            assert (kept["text"], kept["status"]) == ("".join(words[:allowed]), None)
            page.reload()
            assert page.evaluate("() => document.getElementById('text').textContent") == "".join(words[:allowed])
        httpx.get(f"{url}/allow/20")
        for _ in range(2):
            kept = page.evaluate(WAIT, 21)
            assert (kept["text"], kept["status"]) == ("".join(words), "complete")
            page.reload()
    assert (tmp_path / "stderr").read_text(encoding="utf-8").count("a generation") == 1
