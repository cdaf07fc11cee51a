"""A TCP proxy that damages the responses passing through it, at the byte that you name.

    async with FaultProxy("127.0.0.1", 8000, plan=Plan(cut_at=500, after=HEAD)) as proxy:
        ...                                    # requests to proxy.url end after 500 bytes of the body

One connection is two pumps. `up` copies the request as it is. `down` reads the response into a bounded
line of pieces, each with the time at which it may leave, and writes it out through a `Gate`, which knows
at which byte something happens. A gate has no sockets and no clock, so that a fault at byte N is at byte
N whatever the pieces are.

Runs on asyncio and on trio. Nothing here draws a random number but `RandomCut`, from its seed.
"""

from __future__ import annotations

import math
import random
import socket
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Literal

import anyio
import anyio.abc
import attrs
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from typing_extensions import Self

from streamguard.testing.sockets import (
    accepted,
    connected,
    finish,
    listening,
    received,
    reset,
    reset_on_close,
    send_all,
)

__all__ = ["HEAD", "End", "FaultProxy", "Gate", "Passage", "Plan", "RandomCut"]

HEAD: Final = b"\r\n\r\n"  # the end of an HTTP/1 head: positions "after" it count bytes of the body

_LINE: Final = 16  # pieces of 16 KiB between the two ends of a response: the bound of a connection
_HISTORY: Final = 10_000  # connections that are remembered
_LINGER: Final = 2.0  # seconds that a reader has to close after a clean end, before the socket is dropped
_STEP: Final = 0.01  # seconds of data written at once under a rate

End = Literal["fin", "reset"]


def _natural(instance: object, attribute: attrs.Attribute[Any], value: float | None) -> None:
    if value is not None and not 0 <= value < math.inf:
        raise ValueError(f"{attribute.name} is {value!r}: a number from 0 up is needed")


def _positive(instance: object, attribute: attrs.Attribute[Any], value: float | None) -> None:
    if value is not None and not 0 < value < math.inf:
        raise ValueError(f"{attribute.name} is {value!r}: a number above 0 is needed")


@attrs.frozen(kw_only=True)
class Plan:
    """What happens to the response bytes of one connection. The default is nothing.

    Positions count the bytes of all responses on the connection, from 0: `cut_at=0` lets none through.
    Raises ValueError for a negative number.
    """

    cut_at: int | None = attrs.field(default=None, validator=_natural)
    """The connection ends when so many bytes were let through."""
    end: End = attrs.field(default="fin", validator=attrs.validators.in_(("fin", "reset")))
    """How a cut ends it: `fin`, as if all had been sent, or `reset` (RST)."""
    stall_at: int | None = attrs.field(default=None, validator=_natural)
    """When so many bytes were let through nothing moves for `stall` seconds, with the connection open."""
    stall: float = attrs.field(default=math.inf)
    """Seconds. The default is until the reader leaves or the proxy closes."""
    delay: float = attrs.field(default=0.0, validator=_natural)
    """Seconds by which each byte is late. It adds up to no lower rate, below 256 KiB in flight."""
    rate: float | None = attrs.field(default=None, validator=_positive)
    """Bytes a second, or None for no limit."""
    after: bytes = b""
    """Positions are counted behind the first occurrence of this; `HEAD` makes them positions in the body."""
    http10: bool = False
    """Requests are passed on as HTTP/1.0, as some reverse proxies do by default: the response then has no
    framing, and its end is the end of the connection."""


@attrs.frozen(kw_only=True)
class RandomCut:
    """A plan for each connection, cut at a byte drawn evenly from `low` to `high` (both included).

    Connection `n` of one seed is always cut at the same byte. `base` gives everything else.
    """

    seed: int
    low: int
    high: int
    base: Plan = Plan()

    def __call__(self, index: int) -> Plan:
        cut = random.Random(f"{self.seed}/{index}").randint(self.low, self.high)
        return attrs.evolve(self.base, cut_at=cut)


@attrs.define
class Passage:
    """One connection: what passed so far, and how it ended."""

    index: int
    plan: Plan
    up: int = 0
    """Request bytes that were passed on."""
    down: int = 0
    """Response bytes that were passed on."""
    stalled: bool = False
    """Whether it stands at its stall now."""
    ended: Literal["open", "whole", "cut", "left", "closed", "refused"] = "open"
    """`whole`: by the server; `cut`: by the plan; `left`: by the reader; `closed`: by the proxy, when it was
    left; `refused`: there was no server."""


class Gate:
    """Where in a response something happens: pieces in, what may pass out. No I/O."""

    def __init__(self, plan: Plan) -> None:
        self._after = plan.after
        self._tail = b""  # the last bytes before the marker: it may stand across two pieces
        self._counted = 0
        marks: list[tuple[int, Literal["cut", "stall"]]] = []
        if plan.stall_at is not None:
            marks.append((plan.stall_at, "stall"))
        if plan.cut_at is not None:
            marks.append((plan.cut_at, "cut"))
        self._marks = sorted(marks, key=lambda mark: mark[0])  # at one byte, the stall comes first

    def take(self, piece: bytes) -> tuple[bytes, Literal["cut", "stall"] | None, bytes]:
        """What of `piece` passes, what happens then, and the rest, to be given again after it."""
        start = self._skip(piece)
        if start is None or not self._marks:
            return piece, None, b""
        room = self._marks[0][0] - self._counted
        if len(piece) - start < room:
            self._counted += len(piece) - start
            return piece, None, b""
        self._counted += room
        return piece[: start + room], self._marks.pop(0)[1], piece[start + room :]

    def _skip(self, piece: bytes) -> int | None:
        """Where in `piece` counting begins, or None while the marker has not come."""
        if not self._after:
            return 0
        seen = self._tail + piece
        at = seen.find(self._after)
        if at < 0:
            self._tail = seen[max(0, len(seen) - len(self._after) + 1) :]
            return None
        start = at + len(self._after) - len(self._tail)
        self._after = b""
        return start


class FaultProxy:
    """A TCP proxy in front of `target_host`:`target_port` that does to responses what `plan` says.

    `plan` is one `Plan` for every connection, or a callable that answers one for the connection's number,
    from 0. It listens on `host`, on a free port: `port`, and `url` for an HTTP base address. Entered and
    left by one task; leaving drops every connection.

    Counts: `connections` (accepted), `open` (now), `up` and `down` (bytes passed on), and `history`, the
    last 10,000 `Passage`s in order.
    """

    def __init__(
        self,
        target_host: str,
        target_port: int,
        *,
        plan: Plan | Callable[[int], Plan] | None = None,
        host: str = "127.0.0.1",
        max_connections: int = 1000,
    ) -> None:
        self.target = (target_host, target_port)
        self.plan = Plan() if plan is None else plan
        self.host = host
        self.port = 0
        self.connections = 0
        self.open = 0
        self.history: deque[Passage] = deque(maxlen=_HISTORY)
        self.up = 0
        self.down = 0
        self._room = anyio.Semaphore(max_connections)
        self._listener: socket.socket | None = None
        self._tasks: anyio.abc.TaskGroup | None = None

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    async def __aenter__(self) -> Self:
        listener = await listening(self.host)
        self.port = listener.getsockname()[1]
        self._tasks = tasks = anyio.create_task_group()
        await tasks.__aenter__()
        self._listener = listener
        tasks.start_soon(self._accept, tasks, listener)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._tasks is not None
        assert self._listener is not None
        self._tasks.cancel_scope.cancel()
        try:
            # Without the caller's exception, which a task group would wrap in a group of its own.
            await self._tasks.__aexit__(None, None, None)
        finally:
            self._listener.close()

    async def _accept(self, tasks: anyio.abc.TaskGroup, listener: socket.socket) -> None:
        while True:
            await self._room.acquire()
            client = await accepted(listener)
            index = self.connections
            self.connections += 1
            self.open += 1
            plan = self.plan if isinstance(self.plan, Plan) else self.plan(index)
            passage = Passage(index, plan)
            self.history.append(passage)
            tasks.start_soon(self._connection, client, passage)

    async def _connection(self, client: socket.socket, passage: Passage) -> None:
        server: socket.socket | None = None
        try:
            server = await connected(*self.target)
            await self._pass(client, server, passage)
        except OSError:
            passage.ended = "refused"
            reset_on_close(client)  # no server: a reader must not take that for an empty answer
        finally:
            if passage.ended == "open":
                passage.ended = "closed"
            client.close()
            if server is not None:
                server.close()
            self.open -= 1
            self._room.release()

    async def _pass(self, client: socket.socket, server: socket.socket, passage: Passage) -> None:
        sender, receiver = anyio.create_memory_object_stream[tuple[float, bytes | None]](_LINE)
        async with anyio.create_task_group() as pumps:
            pumps.start_soon(self._pump_up, client, server, passage, pumps.cancel_scope)
            pumps.start_soon(self._read_down, server, sender, passage.plan.delay)
            try:
                clean = await self._write_down(client, receiver, passage)
            except OSError:
                passage.ended = "left"
                clean = False
            if not clean:
                # Sockets are closed by `_connection`, when no pump waits for one any more.
                pumps.cancel_scope.cancel()
            # After a FIN the request's direction stays open until the reader closes too: a socket that is
            # closed with unread bytes in it sends a reset, and the end would not be clean.
            pumps.cancel_scope.deadline = anyio.current_time() + _LINGER

    async def _pump_up(
        self, client: socket.socket, server: socket.socket, passage: Passage, scope: anyio.CancelScope
    ) -> None:
        """The request, until its side ends. Over a finished or stalled response, that ends the connection."""
        head = bytearray() if passage.plan.http10 else None
        try:
            while piece := await received(client):
                if head is not None:
                    head += piece
                    piece = _as_http10(head)
                    head = None if piece else head
                await _send_unless_gone(server, piece)
                passage.up += len(piece)
                self.up += len(piece)
        except OSError:
            passage.ended = "left" if passage.ended == "open" else passage.ended
            reset_on_close(server)
        if passage.stalled and passage.ended == "open":
            passage.ended = "left"
        if passage.ended != "open":
            scope.cancel()
            return
        try:
            server.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the server is gone already, which the other pump finds by itself

    async def _read_down(
        self, server: socket.socket, line: MemoryObjectSendStream[tuple[float, bytes | None]], delay: float
    ) -> None:
        """The response into the line; None for a reset, which must not overtake the bytes before it."""
        async with line:
            try:
                while True:
                    try:
                        piece: bytes | None = await received(server)
                    except OSError:
                        piece = None
                    if piece == b"":
                        return
                    await line.send((anyio.current_time() + delay, piece))
                    if piece is None:
                        return
            except anyio.BrokenResourceError:
                return  # the writer has ended the connection

    async def _write_down(
        self, client: socket.socket, line: MemoryObjectReceiveStream[tuple[float, bytes | None]], passage: Passage
    ) -> bool:
        """The response, through the gate, until it ends or is ended; whether by a FIN. Raises OSError."""
        gate = Gate(passage.plan)
        async with line:
            async for due, piece in line:
                await anyio.sleep_until(due)
                if piece is None:
                    passage.ended = "whole"
                    return await reset(client)
                rest = piece
                while rest:
                    passing, event, rest = gate.take(rest)
                    await self._send(client, passing, passage)
                    if event == "stall":
                        passage.stalled = True
                        await anyio.sleep(passage.plan.stall)
                        passage.stalled = False
                    elif event == "cut":
                        passage.ended = "cut"
                        return await (reset(client) if passage.plan.end == "reset" else finish(client))
        passage.ended = "whole"
        return await finish(client)

    async def _send(self, client: socket.socket, data: bytes, passage: Passage) -> None:
        rate = passage.plan.rate
        step = len(data) if rate is None else max(1, int(rate * _STEP))
        for at in range(0, len(data), step or 1):
            part = data[at : at + step]
            await send_all(client, part)
            passage.down += len(part)
            self.down += len(part)
            if rate is not None:
                await anyio.sleep(len(part) / rate)


def _as_http10(head: bytearray) -> bytes:
    """The request as HTTP/1.0, once its first line is whole; nothing before."""
    line, found, rest = bytes(head).partition(b"\r\n")
    if not found:
        return b""
    return line.replace(b" HTTP/1.1", b" HTTP/1.0") + found + rest


async def _send_unless_gone(server: socket.socket, data: bytes) -> None:
    """A server may answer and close before it has read the request: its answer still counts."""
    try:
        await send_all(server, data)
    except OSError:
        pass
