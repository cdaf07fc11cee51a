"""The JavaScript client in Chromium, in a page of another origin than the stream's, which CORS lets read it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from streamguard.adapters.endpoints import CORS_EXPOSED, CORS_HEADERS
from streamguard.browser import SCRIPT
from streamguard.core.errors import SourceFailed
from streamguard.testing.plan import HEAD, Plan, RandomCut
from tests.adapters.logged_apps import Site
from tests.adapters.middleware_apps import DONE, chunk
from tests.adapters.servers import Gate, serving
from tests.browser.conftest import HERE
from tests.clients.browser import Browser, Page
from tests.clients.site import Front, through
from tests.proofs.browser_client import cost_of, judged, opened
from tests.proofs.browser_faults import cuts_of, is_whole_once, sources_of
from tests.proxy.fronted import fronted
from tests.test_docs import ROOT, served

pytestmark = pytest.mark.usefixtures("at_once")

WORDS = [f"word {number} é\u2028\n " for number in range(60)]
TEXT = "".join(WORDS)
FILES = {"/streamguard.js": SCRIPT.read_bytes(), "/reading.mjs": (HERE / "reading.mjs").read_bytes()}
READ = """async ([url, options]) => {
  const [sg, { reading }] = await Promise.all([import("/streamguard.js"), import("/reading.mjs")]);
  return reading(sg, url, options);
}"""


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    async def nothing(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("the page asked its own origin for a stream")

    with serving(Front(nothing, files=FILES.get)) as server, browser.page(f"{server.url}/page") as page:
        yield page


def site_of(*script: Any) -> Site:
    site = Site(*script)
    # Outside of the seal, as a page's preflight has no principal.
    site.app.add_middleware(
        CORSMiddleware,
        allow_origins=["*"],
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=CORS_HEADERS,
        expose_headers=CORS_EXPOSED,
    )
    return site


def read(page: Page, url: str, **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = page.evaluate(READ, [url, options])
    return found


def test_a_post_that_is_cut_at_random_bytes_comes_whole_and_is_generated_once(page: Page) -> None:
    site = site_of(*WORDS)
    cuts = RandomCut(seed=8, low=90, high=900, base=Plan(after=HEAD, end="reset"))
    with serving(site.app) as server:
        found, proxy = through(
            server.port,
            lambda index: cuts(index) if index < 12 else Plan(),
            lambda url: read(page, f"{url}/tokens", method="POST", json={}, resume={"baseMs": 1, "attempts": 20}),
        )
    assert (found["error"], found["text"]) == (None, TEXT)
    assert (found["receipt"]["verdict"], found["receipt"]["duplicates"]) == ("complete", 0)
    assert found["receipt"]["resumes"] >= 5
    assert any(passage.ended == "cut" for passage in proxy.history)
    assert site.source.starts == 1


@pytest.mark.parametrize("then", [None, "cancel"])
def test_behind_the_proxy_it_reads_on_and_cancels_what_the_application_lets_it_read(page: Page, then: Any) -> None:
    """The application, whose CORS layer this is, is asked for the first answer alone, and for preflights."""
    starts: list[int] = []

    async def chat(request: Request) -> StreamingResponse:
        async def events() -> AsyncIterator[bytes]:
            starts.append(1)
            for word in WORDS[:20]:
                yield chunk(word)
            if then == "cancel":
                await anyio.sleep_forever()
            yield chunk(reason="stop")
            yield DONE

        return StreamingResponse(events(), media_type="text/event-stream")

    app = Starlette(routes=[Route("/chat", chat, methods=["POST"])])
    allows: Any = {"allow_methods": ["GET", "POST", "DELETE"], "allow_headers": CORS_HEADERS}
    app.add_middleware(CORSMiddleware, allow_origins=[page.evaluate("() => location.origin")], **allows)
    options: dict[str, Any] = {"method": "POST", "json": {}, "resume": {"baseMs": 1}}
    if then is not None:
        options |= {"after": 9, "then": then}
    with fronted(app) as (proxy, _):
        found, _ = through(
            proxy.port,
            # A page that is slow loses all that such a connection brought: fewer than the attempts that it has.
            lambda index: Plan(after=b": streamguard 1 ", cut_at=1500, end="reset") if index < 4 else Plan(),
            lambda url: read(page, f"{url}/chat", **options),
        )
    assert (found["text"], starts) == ("".join(WORDS[:20]), [1])
    assert found["receipt"]["resumes"] >= 1
    assert (found["receipt"]["verdict"], found.get("cancelled")) == (("failed", True) if then else ("complete", None))


def test_a_silent_connection_is_left_for_another(page: Page) -> None:
    with serving(site_of(*WORDS).app) as server:
        found, _ = through(
            server.port,
            lambda index: Plan(after=HEAD, stall_at=700) if index < 2 else Plan(),  # one may be a preflight's
            lambda url: read(page, f"{url}/tokens", limits={"livenessMs": 1000}, resume={"baseMs": 1}),
        )
    assert (found["error"], found["text"]) == (None, TEXT)
    assert found["receipt"]["resumes"] in (1, 2)


def test_a_failure_an_early_leave_and_a_cancel_are_as_in_node(page: Page) -> None:
    with serving(site_of("half ", SourceFailed("overloaded", "too much")).app) as server:
        failed = read(page, f"{server.url}/tokens")
    assert (failed["error"]["name"], failed["error"]["code"], failed["error"]["received"]) == (
        "FailedStream", "overloaded", "half ",
    )  # fmt: skip
    site = site_of("first ", Gate())
    with serving(site.app) as server:
        found = read(page, f"{server.url}/tokens", method="POST", after=1, then="cancel")
        site.source.wait_closed()
    assert (found["cancelled"], found["error"]["name"], found["error"]["status"]) == (True, "FailedStream", "cancelled")


def test_the_proof_at_a_small_size(browser: Browser) -> None:
    with opened(browser, 500) as small:
        cost = cost_of(small, 500, rounds=1)
        found = judged(small, ["binary"], step=97)
    assert (cost.whole, cost.texts, len(cost.heap)) == (True, {500}, 10)
    assert cost.long[0] < 50  # a machine that is busy with other things makes many
    assert found["count"] == 0
    assert found["tried"] > 2_000


def test_the_proof_of_cuts_at_a_small_size(browser: Browser) -> None:
    found = cuts_of(browser, "binary", step=150)
    assert (found.tried > 6, found.other) == (True, [])
    (seen,), cut, starts = sources_of(browser, 1, seed=1, cuts=2)
    assert (is_whole_once(seen), cut, starts) == (True, 2, 1)


def test_the_page_of_the_how_to_shows_the_answer_and_its_receipt_and_stops_it(browser: Browser, tmp_path: Path) -> None:
    doc = (ROOT / "docs/how-to/read-a-stream-in-the-browser.md").read_text(encoding="utf-8")
    match = re.search(r"^```html\n<!-- page.html -->\n(.*?)^```", doc, re.MULTILINE | re.DOTALL)
    assert match is not None
    (tmp_path / "page.html").write_text(match[1], encoding="utf-8")
    shown = """([first, what]) => new Promise((resolve) => {
      const text = (id) => document.getElementById(id).textContent;
      if (first) document.getElementById(first).click();
      const look = () => (text(what) ? resolve([text("text"), text("end")]) : setTimeout(look, 5));
      look();
    })"""
    paced = {
        "range(100)": "range(40)",
        "await anyio.sleep(0.05)\n": "while number >= allowed[0]:\n            await anyio.sleep(0.005)\n",
        "guard.install(": "allowed = [3]\napp.get('/allow/{n}')(lambda n: allowed.insert(0, int(n)))\nguard.install(",
    }
    words = [f"word-{number} " for number in range(40)]
    with served(tmp_path, "browser_app.py", **paced) as url, browser.page(f"{url}/") as page:
        page.evaluate(shown, ["ask", "text"])
        text, end = page.evaluate(shown, ["stop", "end"])
        assert end == "stopped"
        assert text in ["".join(words[:count]) for count in (1, 2, 3)]
        httpx.get(f"{url}/allow/40")
        text, end = page.evaluate(shown, ["ask", "end"])
    assert text == "".join(words)
    assert re.fullmatch(r"COMPLETE, 41 frames, crc [0-9a-f]{8}", end)
