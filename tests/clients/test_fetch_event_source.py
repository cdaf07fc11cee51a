"""@microsoft/fetch-event-source, in Chromium, with its own defaults: it asks again by the same method and body, also
where an EventSource would stop, and the source is asked once all the same.

It takes an `id:` for its own as soon as that line is there. A cut behind the line and before the end of its block costs
it that block: the frames that it has are in order, and one may be missing. Nothing that a server sends can mend that.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from streamguard.core.dialect import Raw
from streamguard.core.errors import SourceFailed
from streamguard.runtime.timing import Timing
from streamguard.testing.plan import Plan
from tests.adapters.logged_apps import Site
from tests.adapters.servers import Gate, serving
from tests.clients.browser import Browser
from tests.clients.npm import JS, npm_modules
from tests.clients.site import Front, through
from tests.clients.sources import Event, Seen

WORDS = [f"word {number} " for number in range(8)]
OPENING = b'"resume":"/streams"}\n\n'
KEY = {"idempotency-key": "k"}
GET: dict[str, Any] = {"method": "GET"}
POST: dict[str, Any] = {"method": "POST", "body": "{}", "headers": {"content-type": "application/json"}}


@attrs.frozen
class Fetched:
    """What the client handed out, and how often it said that an answer broke off, or ended."""

    seen: Seen
    errors: int
    closes: int


@pytest.fixture(scope="module")
def package() -> Path:
    return npm_modules() / "@microsoft" / "fetch-event-source" / "lib" / "esm"


@pytest.fixture
def front(package: Path) -> Front:
    """A front before nothing yet, that has the package's scripts."""

    def script(path: str) -> bytes | None:
        folder, _, name = path.strip("/").partition("/")
        if folder != "fetch-event-source":
            return None
        return (package / name.removesuffix(".js")).with_suffix(".js").read_bytes()

    return Front(None, files=script)


def fetch(browser: Browser, url: str, options: dict[str, Any], *, most: int = 3, hide: int = -1) -> Fetched:
    fetch_all = (JS / "fetch_event_source.js").read_text(encoding="utf-8")
    with browser.page(f"{url}/page") as page:
        value = {"url": f"{url}/tokens", "options": options, "most": most, "hide": hide}
        found = page.evaluate(f"(value) => {{ {fetch_all}; return fetchAll(value); }}", value)
    return Fetched(Seen([Event(*event) for event in found["events"]]), found["errors"], found["closes"])


def keyed(options: dict[str, Any]) -> dict[str, Any]:
    return {**options, "headers": {**options.get("headers", {}), **KEY}}


def cut_after(last: bytes) -> Plan:
    """A cut behind some bytes, a moment later: Chromium may drop what it has when a cut comes close behind."""
    return Plan(after=last, stall_at=0, stall=0.5, cut_at=0)


@pytest.mark.parametrize("options", [keyed(GET), keyed(POST)], ids=["GET", "POST"])
def test_a_stream_that_is_cut_between_frames_comes_whole(browser: Browser, front: Front, options: Any) -> None:
    site = Site(*WORDS)
    front.app = site.app

    def plan(index: int) -> Plan:
        return cut_after(f'data: "word {len(front.asked) * 2} "\n\n'.encode())

    with serving(front) as server:
        fetched, proxy = through(server.port, plan, lambda url: fetch(browser, url, options, most=9))
    assert fetched.seen.text == "".join(WORDS)
    assert fetched.seen.frames == list(range(1, len(WORDS) + 2))
    assert (fetched.seen.ends, fetched.closes) == (["complete"], 1)
    assert sum(passage.ended == "cut" for passage in proxy.history) >= 2
    assert site.source.starts == 1


@pytest.mark.parametrize("options", [keyed(GET), keyed(POST)], ids=["GET", "POST"])
def test_a_cut_behind_an_id_costs_it_one_block_and_no_generation(browser: Browser, front: Front, options: Any) -> None:
    site = Site(*WORDS)
    front.app = site.app
    cut = cut_after(b'data: "word 3 "')
    with serving(front) as server:
        fetched, _ = through(server.port, cut, lambda url: fetch(browser, url, options, most=50))
    assert fetched.seen.text == "".join(WORDS).replace("word 3 ", "")
    assert fetched.seen.frames == [1, 2, 3, 5, 6, 7, 8, 9]
    assert site.source.starts == 1


@pytest.mark.parametrize(
    ("options", "after"),
    [(GET, OPENING), (POST, OPENING), (keyed(GET), b"retry: 10\n"), (keyed(POST), b"retry: 10\n")],
    ids=["GET", "POST", "GET without a cursor yet", "POST without a cursor yet"],
)
def test_a_cut_before_the_first_frame_is_no_second_generation(
    browser: Browser, front: Front, options: Any, after: bytes
) -> None:
    """A POST that nothing says can be resumed ends with its connection, and that is all it is told."""
    gate = Gate()
    site = Site(gate, *WORDS)
    front.app = site.app
    front.before = lambda number: gate.open() if number == 2 else None

    def plan(index: int) -> Plan:
        return cut_after(after) if len(front.asked) < 2 else Plan()

    with serving(front) as server:
        fetched, _ = through(server.port, plan, lambda url: fetch(browser, url, options, most=9))
    assert fetched.seen.text == "".join(WORDS) or options is POST
    assert len(front.asked) >= 3
    assert site.source.starts == (1 if "idempotency-key" in options.get("headers", {}) else front.anew)


def test_a_post_whose_ids_are_comments_is_one_generation_under_a_key(browser: Browser, front: Front) -> None:
    """Dialect `openai` has ids for who asks for them. This client begins anew, and reads it from its start."""
    site = Site(*WORDS, dialect="openai")
    front.app = site.app
    cut = cut_after(b"word 3 ")
    with serving(front) as server:
        fetched, _ = through(
            server.port, lambda index: Plan() if front.asked else cut, lambda url: fetch(browser, url, keyed(POST))
        )
    assert [event.data for event in fetched.seen.events].count("[DONE]") == 1
    assert front.statuses == [200, 200]
    assert [asked.cursor for asked in front.asked] == [None, None]
    assert site.source.starts == 1


def test_an_end_that_is_a_comment_ends_it_also_behind_a_cut(browser: Browser, front: Front) -> None:
    """An EventSource, which sees no end there, is answered 204. This one would ask again for ever behind that."""
    site = Site(*[f"data: {word}\n\n" for word in WORDS], dialect=Raw("known"))
    front.app = site.app
    cut = cut_after(f"data: {WORDS[-1]}\n\n".encode())
    with serving(front) as server:
        fetched, _ = through(
            server.port, lambda index: Plan() if front.asked else cut, lambda url: fetch(browser, url, GET)
        )
    assert [event.data for event in fetched.seen.events] == WORDS
    assert (fetched.errors, fetched.closes, front.statuses) == (1, 1, [200, 200])
    assert site.source.starts == 1


@pytest.mark.parametrize(("options", "again"), [(GET, 204), (POST, 200)], ids=["GET", "POST"])
def test_a_failed_stream_is_asked_for_again_and_not_generated(
    browser: Browser, front: Front, options: Any, again: int
) -> None:
    site = Site(*WORDS[:2], SourceFailed("overloaded", "too much"), timing=Timing())
    front.app = site.app
    with serving(front) as server:
        fetched = fetch(browser, server.url, options, most=4)
    assert fetched.seen.text == "word 0 word 1 "
    assert (fetched.errors, fetched.closes) == (4, 0)
    assert front.statuses[-2:] == [again, again]
    assert site.source.starts == front.anew


@pytest.mark.parametrize("options", [GET, POST], ids=["GET", "POST"])
def test_a_stream_that_is_gone_is_not_generated_again(browser: Browser, front: Front, options: Any) -> None:
    site = Site(*WORDS[:3], Gate())
    front.app = site.app

    async def forget(number: int) -> None:
        if front.asked[number].cursor is not None:
            await site.log.purge(principal="ann")

    front.before = forget
    cut = cut_after(b'data: "word 2 "\n\n')
    with serving(front) as server:
        fetched, _ = through(server.port, cut, lambda url: fetch(browser, url, options, most=5))
    assert fetched.seen.text == "word 0 word 1 word 2 "
    assert (fetched.errors, fetched.closes) == (5, 0)
    assert front.statuses[-1] == (204 if options is GET else 409)
    assert site.source.starts == front.anew


@pytest.mark.parametrize("hide", [0, 1, 4], ids=["before the first event", "behind the first", "in mid stream"])
@pytest.mark.parametrize("options", [keyed(GET), keyed(POST)], ids=["GET", "POST"])
def test_a_page_that_is_hidden_and_shown_reads_on(browser: Browser, front: Front, options: Any, hide: int) -> None:
    """It hangs up when its page is hidden, and asks again when that is shown."""
    first, second = Gate(), Gate()
    site = Site(first, *WORDS[:4], second, *WORDS[4:])
    front.app = site.app

    def opened(number: int) -> None:
        if hide > 1 or number == 1:
            first.open()
        if number == 1:
            second.open()

    front.before = opened
    with serving(front) as server:
        fetched = fetch(browser, server.url, options, hide=hide)
    assert fetched.seen.text == "".join(WORDS)
    assert (fetched.seen.ends, fetched.closes) == (["complete"], 1)
    assert front.statuses == [200, 200]
    assert site.source.starts == 1
