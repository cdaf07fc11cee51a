"""The live page in Chromium, over many streams whose tokens are counted as they are made; and its picture for the docs.

    python -m tests.browser.live_page        writes docs/live-page.png anew
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import attrs
from PIL import Image  # which matplotlib brings
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from streamguard import anyone_with_the_id
from streamguard.adapters.starlette import StreamGuard, guarded
from streamguard.log.memory import MemoryLog
from streamguard.observe.live import Live
from tests.adapters.servers import DEADLINE, Connection, Gate, Server, serving
from tests.clients.browser import Browser, Page, chromium
from tests.modules import ROOT

__all__ = ["Live", "Opened", "Streams", "opened"]

PICTURE: Final = ROOT / "docs" / "live-page.png"
_WIDTH, _HEIGHT = 1200, 900
_COLOURS = 96
_REQUEST, _ITEMS = 4, 6  # columns of the open streams


class Streams:
    """An application whose streams make a token each `gap` seconds until they are told to be `still`, and end when
    `over` is opened: as complete, or as failed where their address asks for that. `made` is what each has made."""

    def __init__(self, gap: float, period: float) -> None:
        self.gap = gap
        self.still, self.over = Gate(), Gate()
        self.made: Counter[str] = Counter()
        self.live = Live(authorize=lambda request, action: "operator", period=period)
        self.guard = StreamGuard(MemoryLog(), authorize=anyone_with_the_id, observe=self.live)
        plain = guarded(observe=self.live)(self._tokens)
        self.app = Starlette(routes=[Route("/answer", plain), Route("/chat", self.guard.stream(self._tokens))])
        self.guard.install(self.app, "/streams")

    async def _tokens(self, request: Request) -> AsyncIterator[str]:
        name, asked = request.headers["x-request-id"], request.query_params
        while not self.still.opened:
            self.made[name] += 1
            yield f"token {self.made[name]} "
            if "waits" in asked:
                await self.still
            await anyio.sleep(self.gap)
        await self.over
        if "fails" in asked:
            raise RuntimeError("on purpose")


@attrs.define
class Opened:
    """A page of a server, and the connections to its streams."""

    page: Page
    streams: Streams
    server: Server
    connections: list[Connection]

    def start(self, count: int, path: str = "/answer", prefix: str = "stream") -> None:
        """Begin so many; what they send stays in the sockets."""
        for number in range(count):
            connection = self.server.connect()
            connection.get(path, x_request_id=f"{prefix}-{number}", connection="close")
            self.connections.append(connection)

    def end(self) -> None:
        """Let all end, and read them to their ends."""
        self.streams.still.open()
        self.streams.over.open()
        for connection in self.connections:
            with connection:
                connection.rest()
        self.connections.clear()

    @property
    def behind(self) -> int:
        """How many pictures the page is behind the server, which is asked last."""
        shown: int = self.page.evaluate("() => Number(document.documentElement.dataset.number ?? 0)")
        return self.streams.live.number - shown

    def differences(self) -> list[str]:
        """Where what it shows is not what the streams made, once they are still and it shows them so."""
        made = self.streams.made
        self.wait_for('of("Items") === value', f"{sum(made.values()):,}")
        shown = self.shown
        expected = {"Open": f"{len(made)}", "Items": f"{sum(made.values()):,}", "Parts ended": "0", "Abnormal": "0"}
        wrong = [name for name, value in expected.items() if shown["figures"][name] != value]
        rows = Counter({row[_REQUEST]: int(row[_ITEMS].replace(",", "")) for row in shown["open"]})
        return [*wrong, *(name for name in {*made, *rows} if made[name] != rows[name])]

    @property
    def shown(self) -> dict[str, Any]:
        """The figures by their names, and the texts of each row."""
        found: dict[str, Any] = self.page.evaluate(
            """() => ({
              figures: Object.fromEntries([...document.querySelectorAll("#figures > div")].map((pair) =>
                [pair.firstElementChild.textContent, pair.lastElementChild.textContent])),
              open: [...document.getElementById("open").rows].map((row) => [...row.cells].map((at) => at.textContent)),
              abnormal: [...document.getElementById("abnormal").rows]
                .map((row) => [...row.cells].map((at) => at.textContent)),
            })"""
        )
        return found

    def wait_for(self, condition: str, value: Any = None) -> None:
        """Until an expression of the page is true. `of("Items")` in it is the figure of that name, `value` what was
        given."""
        self.page.evaluate(
            f"""(value) => new Promise((resolve, reject) => {{
              const names = () => [...document.querySelectorAll("#figures dt")];
              const of = (name) => names().find((each) => each.textContent === name)?.nextElementSibling.textContent;
              const until = performance.now() + {DEADLINE * 1000};
              const look = () => {{
                if ({condition}) resolve();
                else if (performance.now() < until) setTimeout(look, 10);
                else reject(new Error("it did not come: " + document.body.innerText));
              }};
              look();
            }})""",
            value,
        )

    def next_picture(self) -> None:
        """Until it shows another one."""
        number = self.page.evaluate("() => document.documentElement.dataset.number ?? '0'")
        self.wait_for("(document.documentElement.dataset.number ?? '0') !== value", number)


@contextmanager
def opened(browser: Browser, *, gap: float = 0.05, period: float = 1.0) -> Iterator[Opened]:
    """The page of a server of its own."""
    streams = Streams(gap, period)
    with ExitStack() as stack:
        server = stack.enter_context(serving(streams.app))
        page = stack.enter_context(browser.page(f"{server.url}/streams/dashboard"))
        found = Opened(page, streams, server, [])
        stack.callback(found.end)
        yield found


def draw(opened: Opened, path: Path) -> None:
    """A picture of a process at work: streams that flow, one that waits, and some that went wrong."""
    opened.page.size(_WIDTH, _HEIGHT)
    opened.start(9)
    opened.start(3, "/chat", "chat")
    opened.start(1, "/answer?waits", "waits")
    left = [opened.server.connect() for _ in range(2)]
    for number, connection in enumerate(left):
        connection.get("/answer", x_request_id=f"left-{number}")
        connection.until(b"token 9")
        connection.close()
    opened.wait_for('of("Abnormal") === "2"')
    opened.wait_for('[...document.querySelectorAll("#open tr")].some((row) => row.dataset.mark === "waits")')
    opened.page.picture(path)
    Image.open(path).quantize(_COLOURS).save(path, optimize=True)


def main() -> int:
    with chromium() as browser, opened(browser) as page:
        draw(page, PICTURE)
    print(f"{PICTURE.relative_to(ROOT)}: {PICTURE.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
