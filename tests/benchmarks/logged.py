"""What a log in memory costs, beside the direct path: CPU a token, replay, and the memory of a stream that waits.

The same source goes both ways, to a `send` that only counts, or to readers over real sockets. A logged stream has one
reader, which is there from the start. It makes two tasks of one, a stored frame, and a wake-up a token; the direct path
has none of these.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import tracemalloc
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import attrs
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from streamguard.adapters.starlette import GuardedResponse, StreamGuard
from streamguard.app import anyone_with_the_id
from streamguard.core.cursor import Cursor, cursor_zero
from streamguard.core.wire.sse import SseDecoder
from streamguard.log.memory import MemoryLog
from tests.benchmarks.paths import SCOPE, Source, serve, suspending, tokens
from tests.benchmarks.served import RATE, READERS, STACKS, TOKENS, Served, answering, served, source_of
from tests.proofs.measure import ratio
from tests.proofs.registry import Result, Run, Table, proof

__all__ = ["detached_memory", "logged_per_token", "logged_served_per_token", "memory_replay", "stored_sid"]

COUNT: Final = 20_001  # tokens of an answer that is served flat out
PAIRS: Final = 7
MOST: Final = 2.0
REPLAYED: Final = 10_000  # frames
FASTER: Final = 20.0
HELD: Final = 200  # streams that wait, where memory is counted

_NEGOTIATED: Final = (b"streamguard", b"v=1")  # a stream outlives its reader only where that can resume
_COLUMNS: Final = ("way", "µs a token", "µs, direct", "ratio", "of the pairs", "at most")


def _guard() -> StreamGuard:
    return StreamGuard(MemoryLog(), authorize=anyone_with_the_id)


def _logged(source: AsyncIterator[str], guard: StreamGuard | None = None) -> Any:
    """An answer that goes through a log, as an application."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await (guard or _guard()).response(Request(scope, receive), source)(scope, receive, send)

    return app


def _microseconds(make: Callable[[Any], Any], source: Source) -> Callable[[], float]:
    return lambda: serve(make(source(COUNT))).seconds / COUNT * 1e6


@proof(claim=f"A token that goes through a log in memory costs at most {MOST:g} times a direct one.", minutes=2)
def logged_per_token(run: Run) -> Result:
    rows: list[tuple[object, ...]] = []
    shown = True
    for name, source, most in (
        ("the source never waits", tokens, MOST),
        ("the loop turns once a token (for orientation)", suspending, None),
    ):
        run.say(name)
        found = ratio(
            _microseconds(_logged, source), _microseconds(GuardedResponse, source), pairs=PAIRS, say=run.say
        )
        shown = shown and (most is None or found.median <= most)
        spread = f"{found.low:.2f} to {found.high:.2f}"
        rows.append((name, found.subject, found.reference, found.median, spread, most or ""))
    return Result(
        shown,
        [Table(_COLUMNS, rows)],
        [
            "CPU time of the process for the whole answer, its opening and ending included, divided by its tokens.",
            "Where the source never waits, the reader has its turn every few milliseconds and is given what came until "
            "then as one part. Where the loop turns once a token, each is a part, and wakes the reader's task: the "
            "turn itself costs both ways the same.",
        ],
        ["starlette"],
    )


# ---- over sockets ---------------------------------------------------------------------------------


def _application() -> Starlette:
    guard = _guard()

    async def endpoint(request: Request) -> Any:
        return guard.response(request, source_of(request.scope))

    app = Starlette(routes=[Route(path, endpoint) for path in ("/stream", "/wait", "/brief")])
    guard.install(app, "/streams")
    return app


logged = answering(_application())


@proof(
    claim=f"Served by uvicorn to {READERS} readers at {RATE} tokens a second, a token that goes through a log in "
    f"memory costs the server at most {MOST:g} times the CPU of a direct one.",
    minutes=3,
)
def logged_served_per_token(run: Run) -> Result:
    costs, times, shown = [], [], True
    for http, loop in STACKS:
        run.say(f"uvicorn with {http} and {loop}")
        with served("logged", http, loop, __name__) as ours, served("guarded", http, loop) as theirs:
            mine, other = Served(ours), Served(theirs)
            found = ratio(mine, other, pairs=5, say=run.say)
            delays = [(mine.later(), other.later()) for _ in range(3)]
        shown = shown and found.median <= MOST
        stack, spread = f"{http}, {loop}", f"{found.low:.2f} to {found.high:.2f}"
        costs.append((stack, found.subject, found.reference, found.median, spread, MOST))
        late, soon = (statistics.median(column) for column in zip(*delays, strict=True))
        times.append((stack, late, soon, late - soon))
    return Result(
        shown,
        [
            Table(("uvicorn with", *_COLUMNS[1:]), costs, "CPU of the server"),
            Table(
                ("uvicorn with", "µs, logged", "µs, direct", "µs later"),
                times,
                "From `yield` to the bytes at the client, medians of all tokens",
            ),
        ],
        [f"{READERS} streams at {RATE} tokens a second, {TOKENS} tokens each; what they cost once is not of a token."],
        ["uvicorn", "starlette", "h11", "httptools", "uvloop"],
    )


# ---- replay ---------------------------------------------------------------------------------------


def stored_sid(body: bytes) -> str:
    """The stream of an answer."""
    return Cursor.parse(next(event.id for event in SseDecoder().feed(body) if event.id)).sid


@attrs.define
class _Replay:
    """A stream, served as it is made, and again from its start."""

    source: Source
    guard: StreamGuard = attrs.field(factory=_guard)
    sid: str = ""

    def live(self) -> float:
        found = serve(_logged(self.source(REPLAYED), self.guard), keep=True)
        self.sid = stored_sid(found.body)
        return found.seconds / REPLAYED * 1e6

    def again(self) -> float:
        again = (b"last-event-id", str(cursor_zero(self.sid)).encode())

        async def resumed(scope: Any, receive: Any, send: Any) -> None:
            asked = {**scope, "method": "GET", "headers": [*scope["headers"], _NEGOTIATED, again]}
            await _logged(tokens(0), self.guard)(asked, receive, send)

        kept = serve(resumed, keep=True)
        assert kept.frames() == REPLAYED, f"{kept.frames()} of {REPLAYED} frames came again"
        return serve(resumed).seconds / REPLAYED * 1e6


@proof(claim=f"Replay of {REPLAYED:,} frames from memory is at least {FASTER:g} times faster than live.", minutes=1)
def memory_replay(run: Run) -> Result:
    rows: list[tuple[object, ...]] = []
    shown = True
    for name, source, least in (
        ("each before the next one comes", suspending, FASTER),
        ("as fast as they can (for orientation)", tokens, None),
    ):
        run.say(name)
        replay = _Replay(source)
        found = ratio(replay.live, replay.again, pairs=PAIRS, attempts=10, say=run.say)
        shown = shown and (least is None or found.median >= least)
        spread = f"{found.low:.1f} to {found.high:.1f}"
        rows.append((name, found.subject, found.reference, found.median, spread, least or ""))
    columns = ("came", "µs a frame, live", "replayed", "times faster", "of the pairs", "at least")
    return Result(
        shown,
        [Table(columns, rows)],
        [
            "CPU time, both to a `send` that goes nowhere. Live: from the source through the log to its reader. "
            "Replayed: a request with the cursor before the first frame, in pages of 512 frames."
        ],
        ["starlette"],
    )


# ---- memory ---------------------------------------------------------------------------------------


async def _waiting(over: asyncio.Event) -> AsyncIterator[str]:
    yield "token"
    await over.wait()


async def _held(make: Callable[[AsyncIterator[str]], Any], readers: Callable[[], int] | None = None) -> float:
    """kB of Python's own that each of HELD streams keeps which wait for their source; with `readers`, which counts
    them, once all of those have left."""
    gone, over = asyncio.Event(), asyncio.Event()

    async def one(first: asyncio.Event) -> None:
        async def receive() -> Any:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if b"token" in message.get("body", b""):
                first.set()

        headers: Any = SCOPE["headers"]
        await make(_waiting(over))({**SCOPE, "headers": [*headers, _NEGOTIATED]}, receive, send)

    async def start(count: int) -> list[asyncio.Task[None]]:
        firsts = [asyncio.Event() for _ in range(count)]
        tasks = [asyncio.create_task(one(first)) for first in firsts]
        for first in firsts:
            await first.wait()
        return tasks

    tasks = await start(20)
    gc.collect()
    tracemalloc.start()
    tasks += await start(HELD)
    if readers is not None:
        gone.set()
        while readers():  # noqa: ASYNC110  (nothing tells of it)
            await asyncio.sleep(0.01)
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    over.set()
    await asyncio.gather(*tasks)
    return used / HELD / 1e3


@proof(claim="What a detached idle stream holds is measured, and printed; nothing is claimed of it.", minutes=1)
def detached_memory(run: Run) -> Result:
    def detached() -> float:
        guard = _guard()

        return asyncio.run(_held(lambda source: _logged(source, guard), lambda: len(guard.readers)))

    def direct() -> float:
        return asyncio.run(_held(GuardedResponse))

    pairs = [(detached(), direct()) for _ in range(3)]
    mine, other = (statistics.median(column) for column in zip(*pairs, strict=True))
    columns = ("kB, detached and idle", "kB, direct and idle, with its reader", "ratio")
    return Result(
        True,
        [Table(columns, [(mine, other, mine / other)])],
        [
            f"What Python has allocated for each of {HELD} streams that had one token, the task that serves the "
            "request included; no socket, and no server's own share."
        ],
        ["starlette"],
    )
