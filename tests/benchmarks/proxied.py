"""What a token costs the proxy, and how much later it comes, beside a relay that somebody writes by hand.

The relay is what most write: an endpoint of Starlette's that opens a stream with httpx and answers with its raw bytes.
Both stand in front of the same server of chat chunks, a process of its own, and are served by uvicorn in the same way,
each in a process that says what it used. The proxy keeps its streams in memory, as `streamguard proxy` does.

Readers and counts are those of `served`. There are five hundred at a time, each with few tokens a second: so many that
two processors carry model, relay and readers together.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import os
import statistics
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

import attrs
import httpx
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from streamguard.log.memory import MemoryLog
from streamguard.proxy.app import ProxySettings, proxy_app
from streamguard.proxy.upstream import Upstream
from tests.benchmarks.load import Load, ask, stamp, stream
from tests.benchmarks.served import PAIRS, allow_files, answering, served
from tests.proofs.measure import ratio
from tests.proofs.registry import Result, Run, Table, proof

__all__ = ["BRIEF", "MOST", "proxied", "proxy_per_token"]

STACKS: Final = (("h11", "asyncio"), ("h11", "uvloop"))  # the command's
STREAMS: Final = 500
RATE: Final = 5  # tokens a second and stream
TOKENS: Final = 70
BRIEF: Final = 6
BEGUN: Final = 6.0  # seconds after which all streams run: to begin costs much more than a token, and takes up to four
RUNNING: Final = 5.0  # seconds for which they are looked at
PAUSE: Final = 0.01
MOST: Final = 1.5
_MODEL: Final = "STREAMGUARD_BENCHMARK_MODEL"
_CHUNK: Final = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
_turns = itertools.cycle(range(STREAMS))


def _event(delta: dict[str, str], reason: str | None = None) -> bytes:
    chunk = {**_CHUNK, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
    return f"data: {json.dumps(chunk)}\n\n".encode()


_BEFORE, _AFTER = _event({"content": "|"}).split(b"|")


async def _paced(tokens: int) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    due = (math.ceil(loop.time() * RATE) + next(_turns) / STREAMS) / RATE
    for _ in range(tokens):
        due += 1 / RATE
        await asyncio.sleep(due - loop.time())
        yield _BEFORE + stamp().encode() + _AFTER
    yield _event({}, "stop")
    yield b"data: [DONE]\n\n"


async def model(scope: Any, receive: Any, send: Any) -> None:
    """The server of both: an application without a framework, which costs least."""
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    async for event in _paced(BRIEF if scope["path"] == "/brief" else TOKENS):
        await send({"type": "http.response.body", "body": event, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def _relay() -> Starlette:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    client = httpx.AsyncClient(base_url=os.environ.get(_MODEL, "http://localhost"), timeout=None, limits=limits)

    async def endpoint(request: Request) -> StreamingResponse:
        response = await client.send(client.build_request(request.method, request.url.path), stream=True)
        return StreamingResponse(
            response.aiter_raw(),
            response.status_code,
            {"content-type": response.headers["content-type"]},
            background=BackgroundTask(response.aclose),
        )

    return Starlette(routes=[Route(path, endpoint) for path in ("/stream", "/brief")])


relay = answering(_relay())
_settings = ProxySettings(on_sigterm=False, connect=60.0)
proxy = answering(proxy_app(Upstream.parse(os.environ.get(_MODEL, "http://localhost")), MemoryLog(), _settings))


@contextmanager
def proxied(*ways: str, http: str = "h11", loop: str = "asyncio") -> Iterator[list[int]]:
    """The server, and what stands in front of it; the ports of the latter."""
    with served("model", "httptools", "uvloop", __name__) as behind:
        os.environ[_MODEL] = f"http://127.0.0.1:{behind}"
        try:
            with served(ways[0], http, loop, __name__) as first, served(ways[-1], http, loop, __name__) as last:
                yield [first, last]
        finally:
            del os.environ[_MODEL]


@attrs.define
class _Through:
    """One way: each measurement is its process's CPU microseconds a token."""

    port: int
    loads: list[Load] = attrs.field(factory=list)

    def __call__(self) -> float:
        with ThreadPoolExecutor(1) as threads:
            running = threads.submit(self.streamed, PAUSE)
            time.sleep(BEGUN)
            before, begin = ask(self.port, "/cpu"), time.monotonic_ns()
            time.sleep(RUNNING)
            after, end = ask(self.port, "/cpu"), time.monotonic_ns()
            load = running.result()
        return (after - before) / load.between(begin, end) * 1e6

    def streamed(self, pause: float) -> Load:
        load = stream(self.port, "/stream", STREAMS, pause=pause)
        assert load.tokens == STREAMS * TOKENS, f"{load.tokens} of {STREAMS * TOKENS} tokens came"
        return load

    def late(self) -> tuple[float, float]:
        """Microseconds from `yield` to readers that wait: the median of all tokens, and that of one in a hundred."""
        cuts = statistics.quantiles(self.streamed(0.0).delays, n=100)
        return cuts[49], cuts[98]


@proof(
    claim="A token costs the proxy at most 1.5 times the CPU that it costs a relay from httpx to Starlette that was "
    "written by hand, with five hundred streams at a time.",
    minutes=12,
)
def proxy_per_token(run: Run) -> Result:
    allow_files(4 * STREAMS)
    rows, times, shown = [], [], True
    for http, loop in STACKS:
        run.say(f"uvicorn with {http} and {loop}")
        with proxied("proxy", "relay", http=http, loop=loop) as (ours, theirs):
            mine, other = _Through(ours), _Through(theirs)
            found = ratio(mine, other, pairs=PAIRS, say=run.say)
            pairs = [(mine.late(), other.late()) for _ in range(2)]
        shown = shown and found.median <= MOST
        spread = f"{found.low:.3f} to {found.high:.3f}"
        rows.append((f"{http}, {loop}", found.subject, found.reference, found.median, spread, MOST))
        late = [statistics.median(pair[way][cut] / 1e3 for pair in pairs) for cut in (0, 1) for way in (0, 1)]
        times.append((f"{http}, {loop}", late[0], late[1], late[0] - late[1], late[2], late[3], late[2] - late[3]))
    columns = ("uvicorn with", "µs a token", "µs of the relay", "ratio", "of the pairs", "at most")
    late_columns = ("p50", "p50 of the relay", "more", "p99", "p99 of the relay", "more")
    return Result(
        shown,
        [
            Table(columns, rows, title="CPU of the process in front"),
            Table(("uvicorn with", *late_columns), times, title="From the model to the reader, in ms"),
        ],
        [f"{STREAMS} streams at {RATE} tokens a second, {TOKENS} tokens each."],
        ["uvicorn", "starlette", "httpx", "httpcore", "h11", "uvloop"],
    )
