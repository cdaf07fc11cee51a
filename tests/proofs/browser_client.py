"""The JavaScript client at full size: every vector in Node and in Chromium, and what a long stream costs a page."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from statistics import median
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from streamguard.adapters.starlette import guarded
from streamguard.browser import SCRIPT
from tests.adapters.servers import serving
from tests.browser.damage import damaged, in_json, in_python
from tests.clients.browser import Browser, Page, chromium
from tests.clients.lines import asked
from tests.clients.site import Front
from tests.modules import ROOT
from tests.proofs.registry import Result, Run, Table, proof
from tests.vectors.files import FOLDER, WIRES

__all__ = ["Cost", "browser_client", "cost_of", "judged", "opened"]

TOKENS: Final = 50_000
ROUNDS: Final = 3
DRAWN: Final = 20_000  # streams with several faults
_BATCH: Final = 500
_AT_ONCE: Final = 4  # streams of a file that a page judges in one go
_MOST: Final = 20  # streams in a file, at most
_SCRIPTS: Final = ROOT / "tests" / "browser"
_PARTS: Final = ("vectors.mjs", "measure.mjs")
_MAX_GROWTH: Final = 2_000_000  # bytes of the heap, from first tenths to last; to keep all frames takes ten times that


def _site(tokens: int) -> Front:
    """An endpoint that sends so many tokens as fast as they are taken, beside a page and the scripts that it needs."""

    @guarded
    async def tokens_of(request: Request) -> AsyncIterator[str]:
        for number in range(tokens):
            yield f"token {number} "

    files = {f"/{name}": (_SCRIPTS / name).read_bytes() for name in _PARTS}
    files |= {f"/{wire}.json": (FOLDER / f"{wire}.json").read_bytes() for wire in WIRES}
    files["/streamguard.js"] = SCRIPT.read_bytes()
    return Front(Starlette(routes=[Route("/tokens", tokens_of, methods=["POST"])]), files=files.get)


@contextmanager
def opened(browser: Browser, tokens: int) -> Iterator[Page]:
    """A page beside such an endpoint."""
    with serving(_site(tokens), http="httptools", loop="uvloop") as server, browser.page(f"{server.url}/page") as page:
        yield page


def judged(page: Page, wires: Sequence[str] = WIRES, step: int = 1) -> dict[str, int]:
    """What the page makes of the vectors of these carriers; of the changed bytes every `step`th."""
    return _together(
        page.evaluate(
            """async ([wire, start, count, step]) => {
              const [sg, { judge }] = await Promise.all([import("/streamguard.js"), import("/vectors.mjs")]);
              const file = await (await fetch(`/${wire}.json`)).json();
              const resumes = start ? [] : file.resumes;
              return judge(sg, [{ ...file, streams: file.streams.slice(start, start + count), resumes }], step);
            }""",
            [wire, start, _AT_ONCE, step],
        )
        for wire in wires
        for start in range(0, _MOST, _AT_ONCE)
    )


def _together(parts: Iterable[dict[str, int]]) -> dict[str, int]:
    found = list(parts)
    return {key: sum(part[key] for part in found) for key in ("tried", "count")}


class Cost:
    """What a stream cost a page: long tasks of each round, and its heap at every tenth."""

    def __init__(self, rounds: list[dict[str, Any]], heap: dict[str, Any]) -> None:
        self.rounds = rounds
        self.heap: list[int] = heap["heap"]
        self.whole = all(found["verdict"] == "complete" for found in [*rounds, heap])
        self.texts = {found["texts"] for found in [*rounds, heap]}

    @property
    def long(self) -> list[int]:
        """How many tasks were longer than 50 ms in each round."""
        return [len(found["long"]) for found in self.rounds]

    @property
    def growth(self) -> int:
        """Bytes from the first tenth to the last, by the medians of three, as other things of a page come and go."""
        return int(median(self.heap[-3:]) - median(self.heap[:3]))


def cost_of(page: Page, tokens: int, rounds: int = ROUNDS) -> Cost:
    """Read so many tokens, in each round and once more for the heap."""

    def measured(call: str) -> dict[str, Any]:
        found: dict[str, Any] = page.evaluate(
            f"""async ([every]) => {{
              const [sg, {{ tasks, memory }}] = await Promise.all([import("/streamguard.js"), import("/measure.mjs")]);
              return {call};
            }}""",
            [tokens // 10],
        )
        return found

    return Cost(
        [measured('tasks(sg, "/tokens")') for _ in range(rounds)], measured('memory(sg, "/tokens", every)')
    )


def _in_node(seed: int) -> tuple[str, dict[str, int], int]:
    """Node's version, what it makes of the vectors, and how many streams with several faults it finds otherwise."""
    rng, other = Random(seed), 0
    with asked(["node", str(_SCRIPTS / "node.mjs"), str(SCRIPT)], os.environ) as process:
        files = [str(FOLDER / f"{wire}.json") for wire in WIRES]
        judged = _together(process.ask({"do": "vectors", "with": [[file], 1]}) for file in files)
        for _ in range(DRAWN // _BATCH):
            streams = [damaged(rng) for _ in range(_BATCH)]
            found = process.ask({"do": "verdicts", "with": [[in_json(stream) for stream in streams]]})
            other += sum(said != in_python(stream) for stream, said in zip(streams, found, strict=True))
        return process.version, judged, other


@proof(
    claim="The JavaScript client comes to the verdict of the Python client on every single fault, in Node and in "
    "Chromium, and on several at once; 50,000 tokens cost a page at most one task over 50 ms, and no growing memory.",
    minutes=5,
)
def browser_client(run: Run) -> Result:
    version, node, other = _in_node(run.seed)
    run.say(f"Node {version}: {json.dumps(node)}, with several faults {other} otherwise")
    with chromium() as browser, opened(browser, TOKENS) as page:
        page_found = judged(page)
        run.say(f"Chromium {browser.version}: {json.dumps(page_found)}")
        cost = cost_of(page, TOKENS)
        run.say(f"long tasks {[found['long'] for found in cost.rounds]}, heap {cost.heap}")
        verdicts = [
            [f"Node {version}", node["tried"], node["count"]],
            [f"Node {version}, streams with several faults", DRAWN, other],
            [f"Chromium {browser.version}", page_found["tried"], page_found["count"]],
        ]
    rows = [
        [number, found["texts"], found["milliseconds"], len(found["long"]), max(found["long"], default=0)]
        for number, found in enumerate(cost.rounds, 1)
    ]
    right = node["count"] == page_found["count"] == other == 0 and cost.whole and cost.texts == {TOKENS}
    return Result(
        shown=right and median(cost.long) <= 1 and cost.growth < _MAX_GROWTH,
        tables=[
            Table(("where", "streams", "other verdicts"), verdicts),
            Table(("round", "tokens", "ms", "tasks over 50 ms", "longest, ms"), rows),
            Table(("tokens", "heap after a collection, kB"), [
                [TOKENS // 10 * (tenth + 1), size / 1000] for tenth, size in enumerate(cost.heap)
            ]),
        ],
        notes=[
            "The first two rows are the vectors of `python -m tests.vectors`, streams with one fault each.",
            "The server sends all tokens as fast as they are taken; the page shows the text once a frame of its own.",
            f"From its first tenths to its last the heap grew by {cost.growth / 1000:.0f} kB.",
        ],
        packages=["uvicorn", "httptools", "starlette"],
    )  # fmt: skip
