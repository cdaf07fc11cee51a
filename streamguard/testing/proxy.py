"""A TCP proxy that damages the responses passing through it, at the byte that you name.

    async with FaultProxy("127.0.0.1", 8000, plan=Plan(cut_at=500, after=HEAD)) as proxy:
        ...                                    # requests to proxy.url end after 500 bytes of the body

One connection is two pumps. `up` copies the request as it is. `down` reads the response into a bounded
line of pieces, each with the time at which it may leave, and writes it out through a `Hold` and a `Gate`,
which know at which byte something happens (`plan`). Only the writer ends a connection; the idle limit
interrupts it and leaves the ending to it.

Runs on asyncio and on trio.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Final

import anyio
import anyio.abc
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from typing_extensions import Self

from streamguard.testing.plan import HEAD, End, Gate, Hold, Passage, Plan, RandomCut
from streamguard.testing.sockets import (
    accepted,
    connected,
    finish,
    listening,
    received,
    reset,
    reset_on_close,
    send_all,
    speaks,
)

__all__ = ["HEAD", "End", "FaultProxy", "Gate", "Passage", "Plan", "RandomCut"]

_LINE: Final = 16  # pieces of 16 KiB between the two ends of a response: the bound of a connection
_HISTORY: Final = 10_000  # connections that are remembered
_LINGER: Final = 2.0  # seconds that a reader has to close after a clean end, before the socket is dropped
_STEP: Final = 0.01  # seconds of data written at once under a rate


class FaultProxy:
    """A TCP proxy in front of `target_host`:`target_port` that does to responses what `plan` says.

    `plan` is one `Plan` for every connection, or a callable that answers one for the connection's number,
    from 0, once its first byte came. It listens on `host`, on a free port: `port`, and `url` for an HTTP
    base address. Entered and left by one task; leaving drops every connection.

    Counts: `connections` (that have a plan), `open` (now), `up` and `down` (bytes passed on), and `history`, the
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
            self.open += 1
            passage = self._begun() if isinstance(self.plan, Plan) else None
            tasks.start_soon(self._connection, client, passage)

    def _begun(self) -> Passage:
        index = self.connections
        self.connections += 1
        plan = self.plan if isinstance(self.plan, Plan) else self.plan(index)
        passage = Passage(index, plan, moved=anyio.current_time())
        self.history.append(passage)
        return passage

    async def _connection(self, client: socket.socket, passage: Passage | None) -> None:
        server: socket.socket | None = None
        try:
            if passage is None:
                # Browsers and Node connect ahead: what they do not use, or leave again at once, must take no number,
                # nor a plan that is made too early.
                if not await speaks(client):
                    return
                passage = self._begun()
            server = await connected(*self.target)
            await self._pass(client, server, passage)
        except OSError:
            if passage is not None:
                passage.ended = "refused"
            reset_on_close(client)  # no server: a reader must not take that for an empty answer
        finally:
            if passage is not None and passage.ended == "open":
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
            pumps.start_soon(self._read_down, server, sender, passage)
            writing = anyio.CancelScope()
            if passage.plan.idle is not None:
                pumps.start_soon(self._watch, passage, passage.plan.idle, writing)
            clean = False
            try:
                with writing:
                    clean = await self._write_down(client, receiver, passage)
                if writing.cancelled_caught:
                    passage.ended = "idle"
                    clean = await self._end(client, passage.plan)
            except OSError:
                passage.ended = "left"
            if not clean:
                # Sockets are closed by `_connection`, when no pump waits for one any more.
                pumps.cancel_scope.cancel()
            # After a FIN the request's direction stays open until the reader closes too: a socket that is
            # closed with unread bytes in it sends a reset, and the end would not be clean.
            pumps.cancel_scope.deadline = anyio.current_time() + _LINGER

    async def _watch(self, passage: Passage, idle: float, writing: anyio.CancelScope) -> None:
        """Interrupt the writer once nothing has moved for `idle` seconds."""
        while (left := passage.moved + idle - anyio.current_time()) > 0:  # noqa: ASYNC110  (`moved` moves with each byte)
            await anyio.sleep(left)
        writing.cancel()

    async def _end(self, client: socket.socket, plan: Plan) -> bool:
        """End the response as the plan says; whether by a FIN."""
        return await (reset(client) if plan.end == "reset" else finish(client))

    async def _pump_up(
        self, client: socket.socket, server: socket.socket, passage: Passage, scope: anyio.CancelScope
    ) -> None:
        """The request, until its side ends. Over a finished or stalled response, that ends the connection."""
        head = bytearray() if passage.plan.http10 else None
        try:
            while piece := await received(client):
                passage.moved = anyio.current_time()
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
        self, server: socket.socket, line: MemoryObjectSendStream[tuple[float, bytes | None]], passage: Passage
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
                    passage.moved = anyio.current_time()
                    await line.send((passage.moved + passage.plan.delay, piece))
                    if piece is None:
                        return
            except anyio.BrokenResourceError:
                return  # the writer has ended the connection

    async def _write_down(
        self, client: socket.socket, line: MemoryObjectReceiveStream[tuple[float, bytes | None]], passage: Passage
    ) -> bool:
        """The response, through the gate, until it ends or is ended; whether by a FIN. Raises OSError."""
        hold = Hold(passage.plan)
        gate = Gate(passage.plan)
        async with line:
            async for due, piece in line:
                await anyio.sleep_until(due)
                passing = hold.drain() if piece is None else hold.take(piece)
                if await self._through(gate, client, passing, passage):
                    return await self._end(client, passage.plan)
                if piece is None:
                    passage.ended = "whole"
                    return await reset(client)
        if await self._through(gate, client, hold.drain(), passage):
            return await self._end(client, passage.plan)
        passage.ended = "whole"
        return await finish(client)

    async def _through(self, gate: Gate, client: socket.socket, data: bytes, passage: Passage) -> bool:
        """Pass `data` on up to where the gate says; whether it said that the response is cut."""
        rest, event = data, None
        while rest or event == "stall":  # where a stall ends a cut may stand, and nothing more may come
            passing, event, rest = gate.take(rest)
            await self._send(client, passing, passage)
            if event == "stall":
                passage.stalled = True
                try:
                    await anyio.sleep(passage.plan.stall)
                finally:
                    passage.stalled = False
            elif event == "cut":
                passage.ended = "cut"
                return True
        return False

    async def _send(self, client: socket.socket, data: bytes, passage: Passage) -> None:
        rate = passage.plan.rate
        step = len(data) if rate is None else max(1, int(rate * _STEP))
        for at in range(0, len(data), step or 1):
            part = data[at : at + step]
            await send_all(client, part)
            passage.down += len(part)
            self.down += len(part)
            passage.moved = anyio.current_time()
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
