"""Whether limits hold under connections that misbehave, and whether one user's crowd delays another.

2,000 connections ask one uvicorn process for a stream, with 8 slots. A quarter are reset at once, a quarter never read
a byte (their streams are too large for the buffers on the way, so they end as `slow`), and half read to the end.
Looked at are the slots in use whenever a source takes a step, and what is left at the end. Then 2,000 requests of one
user wait for one slot, and one of another user's comes last: counted are the streams that begin between its arrival
and its own.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import attrs
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from streamguard import Admission, Limits, Timing
from streamguard.adapters.starlette import SealMiddleware, StreamGuard, guarded
from streamguard.log.memory import MemoryLog
from tests.adapters.servers import STACKS, Server, serving
from tests.proofs.registry import Result, Run, Table, proof

__all__ = ["admission", "crowd", "misbehaved"]

SLOTS = 8
DEADLINE = 300.0  # seconds for one row
PLAN = [(path, stack) for path in ("direct", "logged") for stack in (STACKS[0], STACKS[-1])]
LARGE = "x" * 262_144  # six of them fill no reader's buffers that reads, and every one's that does not


def user(request: Any) -> str | None:
    found: str | None = request.headers.get("user")
    return found


def who(request: Any, action: Any) -> str | None:
    return user(request)


@attrs.define(eq=False, slots=False)
class Site:
    """An application with limits, and its books."""

    path: str
    limits: Limits
    size: int = 0
    """How many large pieces a stream has."""
    most: int = 0
    started: list[str] = attrs.field(factory=list)
    """Whose streams began, in that order."""

    def __attrs_post_init__(self) -> None:
        self.admission = Admission(self.limits)
        options: dict[str, Any] = {"timing": Timing(write=0.5, linger=0.05)}
        self.guard = StreamGuard(MemoryLog(), authorize=who, limits=self.admission)
        wrap = self.guard.stream(**options) if self.path == "logged" else guarded(limits=self.admission, **options)
        self.app = Starlette(routes=[Route("/", wrap(self.tokens))])
        if self.path == "logged":
            self.guard.install(self.app, "/streams")
        else:
            self.app.add_middleware(SealMiddleware)

    async def tokens(self, request: Request) -> AsyncIterator[str]:
        self.started.append(user(request) or "")
        yield "t0 "
        for _ in range(self.size):
            self.most = max(self.most, self.admission.streams)
            await asyncio.sleep(0.001)
            yield LARGE
        self.most = max(self.most, self.admission.streams)

    @property
    def left(self) -> tuple[int, int, int]:
        """Slots in use, requests that wait, and runs."""
        return self.admission.streams, self.admission.waiting, len(self.guard.runs)


async def connected(port: int, who: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**16)
    writer.write(f"GET / HTTP/1.1\r\nhost: t\r\nuser: {who}\r\nstreamguard: v=1\r\n\r\n".encode())
    return reader, writer


async def whole(reader: asyncio.StreamReader) -> bool:
    """Read an answer; whether its terminal said that it is complete."""
    tail = b""
    while piece := await reader.read(2**18):
        tail = (tail + piece)[-1000:]
        if b'"status":"complete"' in tail:
            return True
    return False


async def _misbehave(port: int, count: int) -> int:
    """Open `count` connections, of each kind in turn; how many of those that read had their whole answer."""
    readers: list[asyncio.Task[bool]] = []
    kept = []
    for number in range(count):
        reader, writer = await connected(port, f"user-{number % 97}")
        if number % 4 == 0:
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        elif number % 4 == 1:
            writer.transport.pause_reading()  # type: ignore[attr-defined]
        else:
            readers.append(asyncio.ensure_future(whole(reader)))
        kept.append(writer)
    found = sum(await asyncio.gather(*readers))
    for writer in kept:
        writer.transport.abort()
    return found


def _settled(server: Server, site: Site, none: tuple[int, int, int]) -> tuple[int, int, int]:
    deadline = time.monotonic() + DEADLINE

    async def look() -> tuple[int, int, int]:
        return site.left

    while (left := server.call(look)) != none and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def misbehaved(path: str, stack: tuple[str, str], count: int) -> tuple[bool, Sequence[object]]:
    """Let `count` connections come, half of which misbehave; whether all is as it should be, and the row."""
    limits = Limits(max_streams=SLOTS, max_waiting=count, max_wait=DEADLINE, principal=user)
    site = Site(path, limits, size=30 if path == "direct" else 2)
    with serving(site.app, http=stack[0], loop=stack[1]) as server:
        good = asyncio.run(_misbehave(server.port, count))
        left = _settled(server, site, (0, 0, 0))
    admission = site.admission
    shown = (site.most == SLOTS, good, left) == (True, count // 2, (0, 0, 0))  # full, and never over
    gone = admission.refused["left"]
    return shown, [path, "+".join(stack), count, good, admission.admitted, gone, site.most, left[0], left[1]]


async def _crowded(site: Site, server: Server, count: int) -> int:
    tasks = [asyncio.ensure_future(_asked(server.port, "many")) for _ in range(count + 1)]
    await _waiting(site, count)
    before = len(site.started)
    last = asyncio.ensure_future(_asked(server.port, "other"))
    await _waiting(site, count + 1)
    server.call(site.gate.set)  # type: ignore[attr-defined]
    await asyncio.gather(last, *tasks)
    return site.started.index("other") - before


async def _waiting(site: Site, count: int) -> None:
    # It is the server's loop that counts, in another thread. The first has a slot before its source begins.
    while site.admission.waiting < count or not site.started:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def _asked(port: int, who: str) -> bool:
    reader, writer = await connected(port, who)
    try:
        return await whole(reader)
    finally:
        writer.close()


def crowd(path: str, stack: tuple[str, str], count: int) -> tuple[bool, Sequence[object]]:
    """Let `count` of one user wait, then one of another's; whether that was next, or the one after, and the row."""
    limits = Limits(max_streams=1, max_waiting=count + 1, max_wait=DEADLINE, principal=user)
    site = Crowd(path, limits)
    with serving(site.app, http=stack[0], loop=stack[1]) as server:
        between = asyncio.run(_crowded(site, server, count))
        left = _settled(server, site, (0, 0, 0))
    return between <= 1 and left == (0, 0, 0), [path, "+".join(stack), count, between, len(site.started), left[0]]


@attrs.define(eq=False, slots=False)
class Crowd(Site):
    """One slot, whose first stream waits for the gate."""

    gate: asyncio.Event = attrs.field(factory=asyncio.Event)

    async def tokens(self, request: Request) -> AsyncIterator[str]:
        self.started.append(user(request) or "")
        yield "t0 "
        await self.gate.wait()


@proof(claim="2,000 connections, half of them hostile, leave no slot taken; a crowd delays nobody else.", minutes=10)
def admission(run: Run) -> Result:
    shown, rows, crowds = True, [], []
    for path, stack in PLAN:
        good, row = misbehaved(path, stack, 2000)
        shown &= good
        rows.append(row)
        run.say(f"{row}")
        good, row = crowd(path, stack, 2000)
        shown &= good
        crowds.append(row)
        run.say(f"{row}")
    asked = ("path", "server", "connections", "read whole", "admitted", "left the room")
    columns = (*asked, "most in use", "in use at the end", "waiting at the end")
    waited = ("path", "server", "waiting of one user", "began before the other's", "began in all", "in use at the end")
    return Result(
        shown,
        [Table(columns, rows, title=f"{SLOTS} slots"), Table(waited, crowds, title="one slot")],
        notes=[
            "A quarter of the connections are reset at once, a quarter never read, half read to the end.",
            "Left the room: requests whose reader was gone before they had a slot.",
        ],
        packages=["starlette", "uvicorn", "httptools", "uvloop", "h11"],
    )
