"""What each server does with guarded answers, and every ending from every kind of source on each of them.

`servers` measures what `docs/reference/servers.md` explains, and writes its tables. `servers-matrix` lets unmodified
clients read every ending of every kind of source from every server, and looks into the books of each stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tests.adapters.endings import FAILURES
from tests.modules import ROOT
from tests.proofs.registry import Result, Run, Table, proof
from tests.stacks.behaviour import BLOCKED, MEGABYTE, MODES, Shutdown, abort_lines, back_pressure, disconnect, head
from tests.stacks.behaviour import shutdown as shut_down
from tests.stacks.connections import connected
from tests.stacks.matrix import Cell, Stream, ask
from tests.stacks.processes import STACKS, Process, running
from tests.stacks.readers import READERS, Asked, only_timed_out, readers_of
from tests.stacks.sources import KINDS

__all__ = [
    "LEAVING",
    "REPORTS",
    "documented",
    "leaving_row",
    "matrix_rows",
    "reports_row",
    "servers",
    "servers_matrix",
]

PAGE: Final = ROOT / "docs" / "reference" / "servers.md"
PACKAGES: Final = [
    "uvicorn", "h11", "httptools", "hypercorn", "h2", "granian", "daphne", "twisted", "starlette", "httpx",
    "httpx-sse", "aiohttp", "openai",
]  # fmt: skip

REPORTS: Final = "What a client reports of an answer that failed"
LEAVING: Final = "When a reader leaves"
SENDING: Final = "HEAD, back-pressure, the server's own log"
STOPPING: Final = "SIGTERM while a stream is open"

_PATIENCE: Final = 1.0  # seconds for which a client waits for an answer that stays open
_SIGTERM: Final = 6.0  # seconds for which an open stream is looked at after it
_LIMITS: Final = {
    "uvicorn": "--timeout-graceful-shutdown 1",
    "hypercorn": "--graceful-timeout 1",
    "granian": "--workers-kill-timeout 1",
}


def documented(title: str) -> dict[str, list[str]]:
    """The rows of a table of the page by their first cell, without it."""
    page = PAGE.read_text(encoding="utf-8")
    lines = page.partition(f"**{title}**\n\n")[2].partition("\n\n")[0].split("\n")[2:]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {row[0]: row[1:] for row in rows}


def reports_row(process: Process, patience: float = _PATIENCE) -> list[str]:
    """A source that raises at item 3, in the dialect `openai`: what each reader reports."""
    names = readers_of("openai", process.http2)
    asked = Asked(f"{process.url}/reports/async-generator/raises-3/openai", "openai", process.http2, patience)
    with ThreadPoolExecutor(len(names)) as pool:
        readings = dict(zip(names, pool.map(lambda name: READERS[name](asked), names), strict=True))
    cells = []
    for name in READERS:
        reading = readings.get(name)
        if reading is None:
            cells.append("–")
        elif only_timed_out(reading):
            cells.append("*waits*")
        else:
            cells.append("nothing" if reading.error is None else reading.error.rpartition(".")[2])
    return [process.stack, *cells]


def leaving_row(process: Process) -> list[str]:
    """How soon a source stops in each situation, by a close of the connection."""
    cells = []
    for mode in MODES:
        left = disconnect(process, "async-generator", mode)
        cell = "within a token" if left.right else f"not as it should: {left}"
        cells.append(f"never blocked; {cell}" if mode == BLOCKED and not left.waited else cell)
    return [process.stack, *cells]


def _sending_row(stack: str) -> list[str]:
    with running(stack, "tests.stacks.app:layered") as process:
        under_layer = _line(process)
    with running(stack) as process:
        line = _line(process)  # first: a reader that leaves has some servers print more
        status, size, made = head(process)
        taken = back_pressure(process)
    return [
        stack,
        f"{status}, {size} bytes, {made} items made",
        f"after {taken / MEGABYTE:.1f} MB" if taken is not None else "never",
        line,
        under_layer,
    ]


def _line(process: Process) -> str:
    def failing() -> None:
        with connected(process) as reader:
            reader.get("/stream/failing/async-generator?count=3&fails=1")
            reader.until(b"event: end")
            reader.rest(0.5)

    lines = abort_lines(process, failing)
    return f"`{'; '.join(lines)}`" if lines else "nothing"


def _stopping_row(stack: str) -> list[str]:
    """With the server's defaults, and with a limit of a second where it has one."""
    limit = _LIMITS.get(STACKS[stack].server)
    with running(stack) as process:
        default = shut_down(process, _SIGTERM)
    if limit is None:
        return [stack, *_stopped(default), "–", "–", "–"]
    with running(stack, args=limit.split()) as process:
        limited = shut_down(process, _SIGTERM)
    return [stack, *_stopped(default), f"`{limit}`", *_stopped(limited)]


def _stopped(found: Shutdown) -> list[str]:
    if found.end is None:
        told = "goes on"
    elif found.status is None:
        told = "cut" if found.end == "cut" else "CLEAN END"
    else:
        told = f"terminal `{found.status}`, then {found.end}"
    return [told, "does not" if found.seconds is None else f"{found.seconds:.1f} s"]


@proof(
    claim="On every server a source stops within a token of its reader's leaving, HEAD starts nothing, and no client "
    "takes a failed answer for a whole one.",
    minutes=5,
)
def servers(run: Run) -> Result:
    reports, leaving, sending, stopping = [], [], [], []
    for stack in STACKS:
        with running(stack) as process:
            reports.append(reports_row(process))
            leaving.append(leaving_row(process))
        sending.append(_sending_row(stack))
        stopping.append(_stopping_row(stack))
        run.say(f"{stack}: {reports[-1][1:]}")
    bad = [
        any("nothing" in cell for row in reports for cell in row),
        any("not as" in cell for row in leaving for cell in row),
        any(row[1] != "200, 0 bytes, 0 items made" for row in sending),
        any("CLEAN" in cell for row in stopping for cell in row),
    ]
    return Result(
        shown=not any(bad),
        tables=[
            Table(["server", *READERS], reports, REPORTS),
            Table(["server", *MODES], leaving, LEAVING),
            Table(
                ["server", "HEAD", "the source waits", "its own line at an abort of ours", "and under a layer"],
                sending,
                SENDING,
            ),
            Table(
                ["server", "by default", "exits after", "with", "then", "exits after"],
                stopping,
                STOPPING,
            ),
        ],
        notes=[
            f"*waits*: the answer stays open, and this client reports no more than its own time limit "
            f"({_PATIENCE:g} s here). – : the client does not speak HTTP/2, or the server has no such limit.",
            f"After SIGTERM a stream without an end was watched for {_SIGTERM:g} s.",
        ],
        packages=PACKAGES,
    )


def matrix_rows(cells: Sequence[Cell], streams: Sequence[Stream]) -> list[list[object]]:
    """A row for each server and kind of source."""
    rows: list[list[object]] = []
    for stack, kind in dict.fromkeys((cell.stack, cell.kind) for cell in cells):
        here = [cell for cell in cells if (cell.stack, cell.kind) == (stack, kind)]
        failed = [cell for cell in here if cell.ending in FAILURES]
        finished = [cell for cell in here if cell.ending == "finished"]
        kept = [stream for stream in streams if (stream.stack, stream.kind) == (stack, kind)]
        rows.append(
            [
                stack,
                kind.replace("-", " "),
                _share(failed, lambda cell: cell.right),
                sum(cell.waited for cell in failed),
                _share(finished, lambda cell: cell.right),
                f"{sum(stream.right for stream in kept)} of {len(kept)}",
            ]
        )
    return rows


def _share(cells: Sequence[Cell], what: Callable[[Cell], bool]) -> str:
    return f"{sum(map(what, cells))} of {len(cells)}"


@proof(
    claim="On every server, of every kind of source, no client takes an answer that did not complete for a whole one, "
    "and every source is closed once.",
    minutes=20,
)
def servers_matrix(run: Run) -> Result:
    cells: list[Cell] = []
    streams: list[Stream] = []
    for stack in STACKS:
        for kind in KINDS:
            with running(stack) as process:
                found, books = ask(process, kinds=[kind], patience=_PATIENCE)
            cells += found
            streams += books
            run.say(f"{stack}, {kind}: {len(cells)} requests so far")
    wrong: list[Cell | Stream] = [cell for cell in cells if not cell.right]
    wrong += [stream for stream in streams if not stream.right]
    for one in wrong:
        run.say(f"not right: {one}")
    columns = ["server", "source", "failures noticed", "of these only waited", "finished read whole", "books right"]
    return Result(
        shown=not wrong and len(cells) == len(streams) > 0,
        tables=[Table(columns, matrix_rows(cells, streams))],
        notes=[
            f"Readers: {'; '.join(READERS)}. Over HTTP/2 all but aiohttp. The OpenAI SDKs read the dialect `openai`, "
            "the others that and `native`.",
            f"Only waited: the answer stayed open, and the client reports its own time limit ({_PATIENCE:g} s here).",
            "Books right: the stream's status is the one that its ending has, and its source was closed once, in the "
            "task or thread and the context of its steps.",
        ],
        packages=PACKAGES,
    )
