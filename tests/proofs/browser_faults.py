"""The JavaScript client and Chromium's own EventSource, over connections that a fault proxy cuts.

Each answer is cut at one byte of its body: by a FIN or an RST in the middle of a chunk, and, asked for by HTTP/1.0, by
a FIN that nothing tells from the end of an answer. The Python client's verdict is the one to come to.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

import attrs

from streamguard.browser import SCRIPT
from streamguard.client import ReaderLimits, stream_sync
from streamguard.core.errors import StreamGuardError
from streamguard.demo.lab import FAULTS
from streamguard.testing.plan import HEAD, Plan, RandomCut
from tests.adapters.logged_apps import OURS, Site
from tests.adapters.servers import Server, serving
from tests.clients.browser import Browser, chromium
from tests.clients.lines import asked
from tests.clients.site import Front, through
from tests.clients.sources import Seen, read_chromium
from tests.modules import ROOT
from tests.proofs.registry import Result, Run, Table, proof

__all__ = ["Cuts", "browser_faults", "cuts_of", "is_whole_once", "sources_of"]

WIRES: Final = ("sse", "ndjson", "binary")
WORDS: Final = ("a é ", "\u2028\n", "答え ", "end.")
STREAMS: Final = 40  # for the EventSource
CUTS: Final = 10  # of each of them
_STORY: Final = [f"word {number} é\u2028\n " for number in range(60)]
_SCRIPTS: Final = ROOT / "tests" / "browser"
_FILES: Final = {"/streamguard.js": SCRIPT, "/reading.mjs": _SCRIPTS / "reading.mjs"}
_READ: Final = """async ([url, options]) => {
  const [sg, { reading }] = await Promise.all([import("/streamguard.js"), import("/reading.mjs")]);
  return reading(sg, url, options);
}"""
_COLUMNS: Final = (
    "carrier", "places of a cut", "whole to Python", "of these, cut to one in JavaScript", "other verdicts",
)  # fmt: skip
_ONCE: Final = {"method": "POST", "resume": False}

Read = Callable[[str], str]
"""An answer at an address, and the verdict on it."""


@attrs.define
class Cuts:
    """Answers of one carrier that were cut."""

    tried: int = 0
    whole: int = 0
    """Those that the Python client calls complete: cut behind the terminal frame."""
    dropped: int = 0
    """How often a reader in JavaScript was cut there: a stream that breaks drops what nobody has taken yet of it."""
    other: list[str] = attrs.field(factory=list)
    """Every other difference: where, what Python says, and what who says."""

    def note(self, where: str, right: str, others: dict[str, str]) -> None:
        self.tried += 1
        self.whole += right == "complete"
        for name, said in others.items():
            if (right, said) == ("complete", "truncated"):
                self.dropped += 1
            elif said != right:
                self.other.append(f"{where}: {right}, to {name} {said}")


def _closing(app: Any) -> Any:
    """An application whose connections serve one request each, so that each has a plan of its own."""

    async def closing(scope: Any, receive: Any, send: Any) -> None:
        async def noting(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            await send(message)

        await app(scope, receive, noting)

    return closing


def _by_python(url: str) -> str:
    with stream_sync("POST", url, resume=False, limits=ReaderLimits(liveness=30.0)) as answer:
        try:
            answer.read()
        except StreamGuardError:
            pass  # the receipt says it
    return answer.receipt.verdict.value


def _said(found: dict[str, Any]) -> str:
    return found["receipt"]["verdict"] if found["receipt"] else str(found["error"])


@contextmanager
def _readers(browser: Browser, home: str) -> Iterator[dict[str, Read]]:
    """The client in Node, and in a page of the same origin as the answers."""
    with asked(["node", str(_SCRIPTS / "node.mjs"), str(SCRIPT)], os.environ) as node, browser.page(home) as page:
        yield {
            f"Node {node.version}": lambda url: _said(node.ask({"do": "read", "with": [url, _ONCE]})),
            f"Chromium {browser.version}": lambda url: _said(page.evaluate(_READ, [url, _ONCE])),
        }


def cuts_of(browser: Browser, wire: str, step: int = 1) -> Cuts:
    """Cut answers of a carrier at every `step`th byte, in each way."""
    site, found = Site(*WORDS, wire=wire), Cuts()
    front = Front(_closing(site.app), files=lambda path: _FILES[path].read_bytes() if path in _FILES else None)
    plan = Plan()

    def judge(home: str) -> None:
        nonlocal plan
        url = f"{home}/tokens"
        with _readers(browser, f"{home}/page") as readers, ThreadPoolExecutor() as threads:
            reads = [_by_python, *readers.values()]
            assert {read(url) for read in reads} == {"complete"}  # and the page has its scripts from now on
            for how, fault in FAULTS.items():
                for at in range(0, _size(server, fault), step):
                    plan = attrs.evolve(fault, cut_at=at)
                    right, *others = threads.map(lambda read: read(url), reads)
                    found.note(f"{wire}, {how}, byte {at}", right, dict(zip(readers, others, strict=True)))
            plan = Plan()

    with serving(front) as server:
        through(server.port, lambda index: plan, judge)
    return found


def _size(server: Server, plan: Plan) -> int:
    """Bytes of a whole body, with its chunks' heads where it has any."""
    with server.connect() as connection:
        connection.request("POST", "/tokens", "1.0" if plan.http10 else "1.1", **OURS)
        return len(connection.rest().partition(HEAD)[2])


def sources_of(browser: Browser, streams: int, seed: int, cuts: int = CUTS) -> tuple[list[Seen], int, int]:
    """What Chromium's own EventSource hands out of streams that are cut again and again; how often they were, and how
    often an answer was generated."""
    seen, cut, starts = [], 0, 0
    # A server asks for two seconds, which is how long all of this would take otherwise.
    with patch("streamguard.core.wire.sse._RETRY_MS", 10):
        for number in range(streams):
            site = Site(*_STORY)
            places = RandomCut(
                seed=1000 * seed + number, low=90, high=800, base=Plan(after=HEAD, end="reset" if number % 2 else "fin")
            )
            front = Front(site.app)
            with serving(front) as server:
                home = f"http://127.0.0.1:{server.port}/page"
                found, proxy = through(
                    server.port,
                    lambda index, places=places: places(index) if index < cuts else Plan(),
                    lambda url, home=home: read_chromium(browser, home, f"{url}/tokens?sg=key=k"),
                )
            seen.append(found)
            cut += sum(passage.ended == "cut" for passage in proxy.history)
            starts += site.source.starts
    return seen, cut, starts


def is_whole_once(seen: Seen) -> bool:
    """Each frame once, in order, and one end."""
    frames = list(range(1, len(_STORY) + 2))
    return (seen.text, seen.frames, seen.ends) == ("".join(_STORY), frames, ["complete"])


@proof(
    claim="Cut at every byte of every carrier by a fault proxy, no answer is whole to the JavaScript client, in "
    "Chromium or Node, that is not to the Python client; what Chromium's EventSource reads is resumed and ends once.",
    minutes=15,
)
def browser_faults(run: Run) -> Result:
    rows, other = [], 0
    with chromium() as browser:
        for wire in WIRES:
            found = cuts_of(browser, wire)
            other += len(found.other)
            rows.append([wire, found.tried, found.whole, found.dropped, len(found.other)])
            run.say(f"{wire}: {found}")
        seen, cut, starts = sources_of(browser, STREAMS, run.seed)
    right = sum(map(is_whole_once, seen))
    return Result(
        shown=not other and right == starts == STREAMS,
        tables=[
            Table(_COLUMNS, rows, "The JavaScript client in Chromium and in Node"),
            Table(
                ("streams", "cuts", "whole, each frame once, one end", "generated"),
                [[STREAMS, cut, right, starts]],
                f"The EventSource of Chromium {browser.version}",
            ),
        ],
        notes=[
            f"Ways to cut: {', '.join(FAULTS)}. Each place is tried by the Python client, in Node and in Chromium.",
            "An answer that is cut behind its terminal is whole. In Chromium a body that breaks loses what nobody has "
            "taken yet, which Streams allow: such an answer is TRUNCATED there, and its end is asked for again.",
        ],
        packages=["uvicorn", "starlette", "httpx"],
    )  # fmt: skip
