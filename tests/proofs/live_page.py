"""The live page at full size: how far it is behind the server while 200 streams make tokens, and what it shows then."""

from __future__ import annotations

import time
from contextlib import ExitStack
from statistics import median
from typing import Final

import attrs

from tests.browser.live_page import opened
from tests.clients.browser import Browser, chromium
from tests.proofs.registry import Result, Run, Table, proof

__all__ = ["Watched", "live_page", "watched"]

STREAMS: Final = 200
GAP: Final = 0.05  # seconds between two tokens of a stream
PICTURES: Final = 30
READERS: Final = 3  # pages that are open beside it
HUNG: Final = 5.0  # seconds for which a page does nothing at all
_MOST_BEHIND: Final = 2  # pictures
_MAX_GROWTH: Final = 2_000_000  # bytes of the page's heap; all that comes in twenty pictures is as much
_HANG: Final = "(ms) => { const until = performance.now() + ms; while (performance.now() < until); }"
_HEAP: Final = "() => { window.gc(); return performance.memory.usedJSHeapSize; }"


@attrs.frozen
class Watched:
    """What was seen: how many pictures the page was behind at each, and after it hung; its heap after a collection; how
    many tokens and pictures the server made, in how many seconds; and where the page showed other figures."""

    behind: list[int]
    after_hanging: int
    heap: list[int]
    tokens: int
    made: int
    seconds: float
    differences: list[str]

    @property
    def growth(self) -> int:
        """Bytes of the heap, from the first to the last."""
        return self.heap[-1] - self.heap[0]

    @property
    def keeps_up(self) -> bool:
        return max(*self.behind, self.after_hanging) <= _MOST_BEHIND and self.growth < _MAX_GROWTH


def watched(
    browser: Browser,
    streams: int,
    pictures: int,
    *,
    readers: int = READERS,
    gap: float = GAP,
    period: float = 1.0,
    hung: float = HUNG,
) -> Watched:
    """Look at a page for so many pictures of so many streams, beside `readers` others."""
    behind, heap = [], []
    with opened(browser, gap=gap, period=period) as page, ExitStack() as others:
        began = time.monotonic()
        page.start(streams)
        page.wait_for('of("Open") === value', str(streams))
        for _ in range(readers):
            others.enter_context(browser.page(f"{page.server.url}/streams/dashboard"))
        for number in range(pictures):
            page.next_picture()
            behind.append(page.behind)
            if number in (pictures // 3, pictures - 1):
                heap.append(page.page.evaluate(_HEAP))
        page.page.evaluate(_HANG, hung * 1000)
        page.next_picture()
        page.next_picture()
        after = page.behind
        page.streams.still.open()
        seconds = time.monotonic() - began
        differences = page.differences()
        tokens, made = page.streams.made.total(), page.streams.live.number
    return Watched(behind, after, heap, tokens, made, seconds, differences)


@proof(
    claim="With 200 open streams that make tokens all the time the live page in Chromium is never more than two "
    "pictures behind its server, nor once it hung for five seconds, and shows of each stream what it made.",
    minutes=3,
)
def live_page(run: Run) -> Result:
    with chromium() as browser:
        found, version = watched(browser, STREAMS, PICTURES), browser.version
    run.say(f"Chromium {version}: behind {found.behind}, then {found.after_hanging}, heap {found.heap}")
    figures: dict[str, object] = {
        "streams": STREAMS,
        "tokens": found.tokens,
        "a second, of all": round(found.tokens / found.seconds),
        "pictures watched": len(found.behind),
        "behind, median": median(found.behind),
        "behind, at most": max(found.behind),
        "behind, once it hung for 5 s": found.after_hanging,
        "heap grew by, kB": round(found.growth / 1000),
        "figures that differ": len(found.differences),
    }
    return Result(
        shown=found.keeps_up and not found.differences,
        tables=[Table(list(figures), [list(figures.values())])],
        notes=[
            "Behind: the number of the server's newest picture, asked after the page, less that of the one shown.",
            f"{READERS} more pages are open, in the same browser. The server, in the process of the test, made "
            f"{found.made} pictures for all of them, one a second.",
            "The heap is that of the page, after a collection, from a third of the pictures to the last.",
        ],
        packages=["uvicorn", "starlette"],
    )
