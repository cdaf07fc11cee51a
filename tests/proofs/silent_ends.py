"""Whether any client takes a guarded stream that did not complete for a whole one.

Unmodified client libraries read every ending of `tests.adapters.endings` from real servers, under every
layer; each must report an error, and of a finished stream none may. What they report is the table of
`docs/explanation/who-notices.md`, which this proof writes. Two more tables keep it honest: the same
failure unguarded, and behind a hop that speaks HTTP/1.0, where an abort cannot arrive.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import anyio
import anyio.from_thread
import attrs

from streamguard.testing.proxy import FaultProxy, Plan
from tests.adapters.endings import ENDINGS, FAILURES, LAYERS, TEXT, endings_app
from tests.adapters.readers import READERS, Reading, readers_for
from tests.adapters.servers import STACKS, serving
from tests.modules import ROOT
from tests.proofs.registry import Result, Run, Table, proof

__all__ = ["Asked", "ask", "http10_table", "no_silent_end", "quiet", "reports_table", "unguarded_table"]

PAGE = ROOT / "docs" / "explanation" / "who-notices.md"
SEALED = "BaseHTTPMiddleware, sealed"
HTTP10 = ("warn", "buffer", "refuse")


@attrs.frozen
class Asked:
    """One request and what its reader had at the end."""

    stack: str
    layer: str
    ending: str
    dialect: str
    reader: str
    reading: Reading

    @property
    def right(self) -> bool:
        """Whether the reader knows how the stream ended, and has no text that was not generated."""
        if self.ending == "finished":
            return self.reading == Reading(TEXT, None)
        return self.reading.error is not None and TEXT.startswith(self.reading.text)

    @property
    def report(self) -> str:
        return _report(self.reading)


def _report(reading: Reading) -> str:
    return "nothing" if reading.error is None else reading.error.rpartition(".")[2]


def ask(
    layer: str,
    stack: tuple[str, str],
    endings: Iterable[str],
    dialects: Iterable[str] = ("openai", "native"),
    *,
    linger: float = 0.25,
) -> list[Asked]:
    """Let every reader read every ending from one server, one ending at a time, its readers at once."""
    asked = []
    with quiet(), ThreadPoolExecutor(len(READERS)) as pool:
        with serving(endings_app(layer, linger=linger), http=stack[0], loop=stack[1]) as server:
            for ending in endings:
                for dialect in dialects:
                    names = readers_for(dialect)
                    url = f"{server.url}/{ending}/{dialect}"
                    readings = pool.map(lambda name, url=url, dialect=dialect: READERS[name](url, dialect), names)
                    asked += [
                        Asked("+".join(stack), layer, ending, dialect, name, reading)
                        for name, reading in zip(names, readings, strict=True)
                    ]
    return asked


@contextmanager
def quiet() -> Iterator[None]:
    """Failures are what is asked for: their log would be all that one sees."""
    loggers = [logging.getLogger(name) for name in ("streamguard", "uvicorn.error")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def reports_table(asked: Sequence[Asked]) -> Table:
    """What each reader reports of each ending, over all servers and layers."""
    rows = []
    for ending, (title, _) in ENDINGS.items():
        cells = [
            ", ".join(sorted({one.report for one in asked if (one.ending, one.reader) == (ending, reader)}))
            for reader in READERS
        ]
        rows.append([f"the source {title}", *cells])
    return Table(["", *READERS], rows, "What an unmodified client reports")


def _counts_table(asked: Sequence[Asked]) -> Table:
    """How many requests were made on each server under each layer, and how many readers knew the end."""
    rows = []
    for layer in LAYERS:
        for stack in dict.fromkeys(one.stack for one in asked):
            here = [one for one in asked if (one.layer, one.stack) == (layer, stack)]
            failed = [one for one in here if one.ending != "finished"]
            finished = [one for one in here if one.ending == "finished"]
            rows.append(
                [
                    layer,
                    f"uvicorn, {stack}",
                    f"{sum(one.right for one in failed)} of {len(failed)}",
                    f"{sum(one.right for one in finished)} of {len(finished)}",
                ]
            )
    return Table(["layer", "server", "failures noticed", "finished streams read whole"], rows)


def unguarded_table(linger: float = 0.25) -> Table:
    """The same failure, a source that raises at item 3, as it is usually served; and guarded beside it."""
    rows = []
    for layer in ("bare", SEALED):
        for ending, title in (("unguarded", "unguarded"), ("raises-3", "guarded")):
            asked = ask(layer, STACKS[0], [ending], ["openai"], linger=linger)
            middleware = "no middleware" if layer == "bare" else "BaseHTTPMiddleware"
            rows.append([f"{title}, {middleware}", *[one.report for one in asked]])
    return Table(["", *READERS], rows, "The same failure without streamguard")


def http10_table(linger: float = 0.25) -> Table:
    """A source that raises at item 3, behind a hop that asks its upstream by HTTP/1.0."""
    rows: list[list[Any]] = []
    with quiet(), anyio.from_thread.start_blocking_portal() as portal, ThreadPoolExecutor(len(READERS)) as pool:
        for http10 in HTTP10:
            with serving(endings_app("bare", linger=linger, http10=http10)) as server:
                proxy = FaultProxy("127.0.0.1", server.port, plan=Plan(http10=True))
                with portal.wrap_async_context_manager(proxy):
                    url = f"{proxy.url}/raises-3/openai"
                    readings = pool.map(lambda name, url=url: READERS[name](url, "openai"), READERS)
                    rows.append([f'`http10="{http10}"`', *[_report(reading) for reading in readings]])
    return Table(["", *READERS], rows, "Where an abort cannot arrive: a hop that speaks HTTP/1.0")


@proof(
    claim="No client takes a guarded stream that did not complete for a whole one, nor a whole one for a failed.",
    minutes=15,
)
def no_silent_end(run: Run) -> Result:
    asked: list[Asked] = []
    for stack in STACKS:
        for layer in LAYERS:
            asked += ask(layer, stack, ENDINGS)
            run.say(f"{'+'.join(stack)}, {layer}: {len(asked)} requests so far")
    wrong = [one for one in asked if not one.right]
    for one in wrong:
        run.say(f"not right: {one}")
    return Result(
        shown=not wrong and {one.ending for one in asked} == {"finished", *FAILURES},
        tables=[reports_table(asked), _counts_table(asked), unguarded_table(), http10_table()],
        notes=[
            "The OpenAI SDKs read the dialect `openai`, the others that and `native`; `nothing` is a normal end.",
            "Right is: an error and a beginning of the text for a failure, no error and the whole text otherwise.",
        ],
        packages=["uvicorn", "h11", "httptools", "uvloop", "starlette", "httpx", "httpx-sse", "aiohttp", "openai"],
    )
