"""Many readers of one server, in one process: what came, and how long each token was on its way.

A token bears the time at which it was yielded, in nanoseconds of CLOCK_MONOTONIC, which is the same clock in every
process of a machine. The readers do nothing but look at the clock and for those stamps.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import attrs
import httpx

__all__ = ["STAMP", "Load", "Reader", "answer", "ask", "hold", "holding", "stamp", "stream"]

STAMP: Final = re.compile(rb"@(\d{20})@")
_LIMIT: Final = 120.0  # seconds after which a run has failed


def stamp() -> str:
    """A token that says when it was yielded."""
    return f"@{time.monotonic_ns():020d}@"


@attrs.define
class Load:
    """What all readers of one run got: tokens, body and framing in bytes, when each token was yielded (nanoseconds of
    the clock), and microseconds from there to the reader; how many connections ended."""

    tokens: int = 0
    received: int = 0
    ended: int = 0
    yielded: list[int] = attrs.field(factory=list)
    delays: list[float] = attrs.field(factory=list)

    def between(self, begin: int, end: int) -> int:
        """How many tokens were yielded from one nanosecond of the clock to another."""
        return sum(begin <= at < end for at in self.yielded)

    @property
    def median(self) -> float:
        return statistics.median(self.delays)


class Reader(asyncio.Protocol):
    """Asks once, with more `headers`; `first` is set when a token came, `over` when the connection ended."""

    def __init__(self, path: str, load: Load, *, close: bool, headers: str = "") -> None:
        loop = asyncio.get_running_loop()
        self.first: asyncio.Future[None] = loop.create_future()
        self.over: asyncio.Future[None] = loop.create_future()
        self._path = path
        self._load = load
        self._headers = headers + ("connection: close\r\n" if close else "")
        self.transport: asyncio.Transport | None = None
        self.tokens = 0
        self._rest = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(f"GET {self._path} HTTP/1.1\r\nhost: localhost\r\n{self._headers}\r\n".encode())

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        load = self._load
        load.received += len(data)
        if self._rest:
            data = self._rest + data
        self._rest = data[data.rfind(b"@") :] if data.count(b"@") % 2 else b""  # a stamp that is cut
        for found in STAMP.findall(data):
            at = int(found)
            self.tokens += 1
            load.tokens += 1
            load.yielded.append(at)
            load.delays.append((now - at) / 1e3)
        if self.tokens and not self.first.done():
            self.first.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._load.ended += 1
        if not self.over.done():
            self.over.set_result(None)
        if not self.first.done():
            self.first.set_exception(ConnectionError("the connection ended before the first token"))


async def _connect(port: int, make: Callable[[], Reader]) -> Reader:
    _, reader = await asyncio.get_running_loop().create_connection(make, "127.0.0.1", port)
    return reader


def stream(
    port: int, path: str, readers: int, *, pause: float = 0.0, make: Callable[[Load], Reader] | None = None
) -> Load:
    """So many readers at once, each to the end of its answer; `make` makes those that do more than to read.

    With a `pause`, in seconds, they look for what came only that often. A reader that waits is woken by who writes to
    it, which is work of the server where both are on one machine, and is there only if the reader slept meanwhile.
    """

    async def run() -> Load:
        load = Load()
        one = partial(Reader, path, load, close=True) if make is None else partial(make, load)
        started = [await _connect(port, one) for _ in range(readers)]
        over = asyncio.ensure_future(asyncio.gather(*(reader.over for reader in started)))
        until = time.monotonic() + _LIMIT
        while pause and not over.done() and time.monotonic() < until:
            time.sleep(pause)  # noqa: ASYNC251  # not in `select`, from which each write would wake it
            await asyncio.sleep(0)
        await asyncio.wait_for(over, until - time.monotonic())
        return load

    return asyncio.run(run())


@asynccontextmanager
async def holding(port: int, path: str, readers: int) -> AsyncIterator[Load]:
    """While the block runs, so many readers have had their first token and wait; what came to them."""
    load = Load()
    held = []
    try:
        for _ in range(readers):
            held.append(await _connect(port, lambda: Reader(path, load, close=False)))
        await asyncio.wait_for(asyncio.gather(*(reader.first for reader in held)), _LIMIT)
        yield load
    finally:
        for reader in held:
            assert reader.transport is not None
            reader.transport.abort()


def hold(port: int, path: str, readers: int, question: str) -> float:
    """What the server answers to `question` while so many readers have had their first token and wait."""

    async def run() -> float:
        async with holding(port, path, readers):
            return await answer(port, question)

    return asyncio.run(run())


def ask(port: int, question: str) -> float:
    """A number that the server knows."""
    return asyncio.run(answer(port, question))


async def answer(port: int, question: str) -> float:
    """The same, of a loop that runs."""
    async with httpx.AsyncClient(timeout=_LIMIT) as client:
        return float((await client.get(f"http://127.0.0.1:{port}{question}")).text)
