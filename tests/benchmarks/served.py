"""What a stream costs the process that serves it, over real sockets on uvicorn.

The same source, served by a bare ASGI application, by sse-starlette and guarded, each in a process of its own that
answers what it used. The bare application sends as many bytes a token as the guarded one, one `send` a token, and
does nothing else: no heartbeat, no limit, no watch.

A token's CPU time is what the process uses while all streams run, by the tokens of that time. What a stream costs
once, to begin and to end, is the rest, and is shown beside it.

How often a process sleeps is no work of the way that is measured, and costs more than a token. So tokens are due
evenly, whoever serves them, and while CPU time is counted readers look a hundred times a second, so that no write has
to wake one. How late a token comes is measured apart, with readers that wait for it. `sleeps` is shown beside the CPU
time: a machine that was too busy to keep up has next to none, on either side.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

from sse_starlette.sse import EventSourceResponse
from starlette.applications import Starlette
from starlette.routing import Route

from streamguard.adapters.starlette import GuardedResponse, SealMiddleware
from streamguard.core.flush import Immediate
from streamguard.core.framing import FramedEncoder
from streamguard.core.guard import CompletionGuard
from streamguard.core.pipeline import Pipeline
from tests.benchmarks.load import Load, ask, hold, stamp, stream
from tests.modules import ROOT
from tests.proofs.measure import ratio
from tests.proofs.registry import Result, Run, Table, proof

__all__ = [
    "BRIEF", "FRAME", "PAIRS", "RATE", "READERS", "STACKS", "TOKENS", "Served", "allow_files", "answering", "listening",
    "memory_per_stream", "numbers", "served", "served_per_token", "source_of", "streaming_app",
]  # fmt: skip

STACKS: Final = (("h11", "asyncio"), ("httptools", "uvloop"))
READERS: Final = 200
RATE: Final = 50  # tokens a second and stream
TOKENS: Final = 400  # of one stream, as models answer
BRIEF: Final = 6  # of one that only shows that readers read
BEGUN: Final = 1.0  # seconds after which all streams run
RUNNING: Final = 6.0  # seconds for which they are looked at
PAIRS: Final = 5
LATER: Final = 2  # pairs of runs in which tokens are timed
HELD: Final = 1_000  # streams that are open at once, where memory is counted
PAUSE: Final = 0.01  # seconds between two looks of the readers, while CPU time is counted

AGAINST: Final = {"bare": 1.5, "sse-starlette": 0.85}
_COLUMNS: Final = ("uvicorn with", "against", "µs a token", "µs of the other", "ratio", "of the pairs", "at most")
_MORE: Final = ("bytes a token", "sleeps a token", "µs once a stream")
MOST_LATER: Final = 100.0  # microseconds
MOST_MEMORY: Final = 1.25


_RUNNING: Final = re.compile(r"(?:running on|Listening at:) http://[\d.]+:(\d+)")

_turns = itertools.cycle(range(READERS))


async def paced(tokens: int = TOKENS) -> AsyncIterator[str]:
    """A model at RATE. The streams of one run are due one after the other, evenly, whatever serves them.

    Left to themselves they are due as they began: in step where that is quick. Then a server wakes once for many of
    them, and what is compared is how often it sleeps.
    """
    loop = asyncio.get_running_loop()
    phase = next(_turns) / READERS
    due = (math.ceil(loop.time() * RATE) + phase) / RATE
    for _ in range(tokens):
        due += 1 / RATE
        await asyncio.sleep(due - loop.time())
        yield stamp()


async def waiting() -> AsyncIterator[str]:
    yield stamp()
    await asyncio.Event().wait()


def _frame() -> int:
    """Bytes of a guarded frame of one token: what the bare application sends, too."""
    pipeline = Pipeline(Immediate(), FramedEncoder("native"), CompletionGuard("sse"))
    pipeline.open()
    return round(sum(len(pipeline.push(stamp(), 0.0)) for _ in range(TOKENS)) / TOKENS)


FRAME: Final = _frame()


def numbers(scope: Any) -> float | None:
    """What this process used, at the addresses that ask for it."""
    if scope["path"] == "/cpu":
        return time.process_time()
    if scope["path"] == "/sleeps":
        return float(resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw)
    if scope["path"] == "/memory":
        with open("/proc/self/statm", encoding="ascii") as file:
            return float(file.read().split()[1]) * resource.getpagesize()
    return None


def source_of(scope: Any) -> AsyncIterator[str]:
    if scope["path"] == "/wait":
        return waiting()
    return paced(BRIEF) if scope["path"] == "/brief" else paced()


def answering(app: Any) -> Any:
    """`app`, in a process that also answers what it used."""

    async def answers(scope: Any, receive: Any, send: Any) -> None:
        number = numbers(scope) if scope["type"] == "http" else None
        if number is None:
            await app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": str(number).encode()})

    return answers


async def _bare(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    async for token in source_of(scope):
        body = b"data: " + token.encode()
        await send({"type": "http.response.body", "body": body.ljust(FRAME - 2) + b"\n\n", "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def streaming_app(make: Any) -> Starlette:
    """What `make` makes of a source, answered at each address."""
    async def endpoint(request: Any) -> Any:
        return make(source_of(request.scope))

    return Starlette(routes=[Route(path, endpoint) for path in ("/stream", "/wait", "/brief")])


sealed = streaming_app(GuardedResponse)
sealed.add_middleware(SealMiddleware)
bare = answering(_bare)
guarded = answering(sealed)
sse_starlette = answering(streaming_app(EventSourceResponse))


@contextmanager
def served(way: str, http: str, loop: str, module: str = __name__) -> Iterator[int]:
    """uvicorn with an application of this module, or of another, as a process; its port."""
    app = f"{module}:{way.replace('-', '_')}"
    command = [sys.executable, "-m", "uvicorn", app, "--port", "0", "--http", http, "--loop", loop, "--no-access-log"]
    command += ["--interface", "asgi3", "--lifespan", "off", "--backlog", "2048"]
    with listening(command) as port:
        yield port


@contextmanager
def listening(command: list[str]) -> Iterator[int]:
    """A server as a process that says where it runs; its port."""
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        found = next(filter(None, map(_RUNNING.search, process.stderr)))
        yield int(found[1])
    finally:
        process.kill()  # some streams wait for ever
        process.communicate(timeout=10)


class Served:
    """One way, served: each measurement is the server's CPU microseconds a token, and keeps what came, how often the
    server slept, and what a stream costs once."""

    def __init__(self, port: int, readers: int = READERS) -> None:
        self.port = port
        self.readers = readers
        self.loads: list[Load] = []
        self.sleeps: list[float] = []  # a token
        self.once: list[float] = []  # microseconds a stream

    def __call__(self) -> float:
        idle = ask(self.port, "/cpu")
        with ThreadPoolExecutor(1) as threads:
            running = threads.submit(self._load, PAUSE)
            time.sleep(BEGUN)
            slept, before, begin = ask(self.port, "/sleeps"), ask(self.port, "/cpu"), time.monotonic_ns()
            time.sleep(RUNNING)
            after, end = ask(self.port, "/cpu"), time.monotonic_ns()
            slept = ask(self.port, "/sleeps") - slept
            load = running.result()
        tokens = load.between(begin, end)
        assert tokens >= 0.9 * self.readers * RATE * (end - begin) / 1e9, "the streams did not all run"
        cost = (after - before) / tokens * 1e6
        self.once.append(((ask(self.port, "/cpu") - idle) * 1e6 - cost * load.tokens) / self.readers)
        self.sleeps.append(slept / tokens)
        self.loads.append(load)
        return cost

    def later(self) -> float:
        """Microseconds from `yield` to readers that wait, the median of all tokens."""
        return self._load(0.0).median

    def _load(self, pause: float) -> Load:
        load = self.streamed(pause)
        assert load.tokens == self.readers * TOKENS, f"{load.tokens} of {self.readers * TOKENS} tokens came"
        return load

    def streamed(self, pause: float) -> Load:
        """One run of all readers, to their ends."""
        return stream(self.port, "/stream", self.readers, pause=pause)

    @property
    def more(self) -> tuple[float, float, float]:
        """Bytes and sleeps of a token, and microseconds of a stream."""
        load = self.loads[-1]
        return load.received / load.tokens, statistics.median(self.sleeps), statistics.median(self.once)


@proof(
    claim="Served by uvicorn, a guarded token costs the server at most 1.5 times a bare application's CPU and 0.85 of "
    "sse-starlette's, and arrives within 100 µs of a bare one.",
    minutes=9,
)
def served_per_token(run: Run) -> Result:
    costs, times, shown = [], [], True
    for http, loop in STACKS:
        for way, most in AGAINST.items():
            run.say(f"uvicorn with {http} and {loop}, against {way}")
            with served("guarded", http, loop) as ours, served(way, http, loop) as theirs:
                mine, other = Served(ours), Served(theirs)
                found = ratio(mine, other, pairs=PAIRS, say=run.say)
                if way == "bare":
                    pairs = [(mine.later(), other.later()) for _ in range(LATER)]
                    later = statistics.median(guarded - bare for guarded, bare in pairs)
                    shown = shown and later <= MOST_LATER
                    medians = [statistics.median(column) for column in zip(*pairs, strict=True)]
                    times.append((f"{http}, {loop}", *medians, later, MOST_LATER))
            shown = shown and found.median <= most
            spread = f"{found.low:.3f} to {found.high:.3f}"
            row = (f"{http}, {loop}", way, found.subject, found.reference, found.median, spread, most)
            costs.append((*row, *mine.more, *other.more))
    return Result(
        shown,
        [
            Table(
                (*_COLUMNS, *_MORE, *(f"{name}, other" for name in _MORE)),
                costs,
                title="CPU of the server",
            ),
            Table(
                ("uvicorn with", "µs, guarded", "µs, bare", "µs later", "at most"),
                times,
                title="From `yield` to the bytes at the client, medians of all tokens",
            ),
        ],
        [f"{READERS} streams at {RATE} tokens a second, {TOKENS} tokens each; bytes with head and framing."],
        ["uvicorn", "starlette", "sse-starlette", "h11", "httptools", "uvloop"],
    )


def _memory(way: str, http: str, loop: str) -> float:
    """Kilobytes a stream, of a fresh server: what a thousand that wait add to what it had when it was warm."""
    with served(way, http, loop) as port:
        stream(port, "/stream", 20)
        before = ask(port, "/memory")
        return (hold(port, "/wait", HELD, "/memory") - before) / HELD / 1e3


@proof(claim="An open guarded stream holds at most 1.25 times the memory of one of sse-starlette.", minutes=5)
def memory_per_stream(run: Run) -> Result:
    allow_files(2 * HELD + 100)
    rows, shown = [], True
    for http, loop in STACKS:
        run.say(f"uvicorn with {http} and {loop}")
        found = ratio(
            lambda: _memory("guarded", http, loop),  # noqa: B023  # called before the loop goes on
            lambda: _memory("sse-starlette", http, loop),  # noqa: B023
            pairs=PAIRS,
            say=run.say,
        )
        shown = shown and found.median <= MOST_MEMORY
        spread = f"{found.low:.3f} to {found.high:.3f}"
        rows.append((f"{http}, {loop}", found.subject, found.reference, found.median, spread, MOST_MEMORY))
    columns = ("uvicorn with", "kB a stream", "kB of sse-starlette", "ratio", "of the pairs", "at most")
    notes = [f"Resident memory of a fresh server with {HELD} streams that had their first token, connection included."]
    return Result(shown, [Table(columns, rows)], notes, ["uvicorn", "starlette", "sse-starlette"])


def allow_files(count: int) -> None:
    """Let this process, and those that it starts, have so many files open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))
