"""An application's streamed body as a source: its `send` puts the pieces, a driver in another task takes them.

The application stays in the task in which its server called it. So whatever is no stream runs as it did, and what the
application opened for the request is there for as long as it runs. While it streams, `receive` is the driver's, which
waits for the reader to leave; the application's own is told of that only once its stream is over: of a stream in a log
the reader may leave, and the application goes on.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio
import anyio.lowlevel

from streamguard.adapters.inner_ends import InnerEnds
from streamguard.adapters.middleware_judge import UNENDED, Kind, piece_of
from streamguard.adapters.seal import Message, Receive, ended_by_base
from streamguard.core.errors import SourceFailed, StreamClosed
from streamguard.runtime.buffer import Buffer
from streamguard.runtime.shortcut import NearSource

__all__ = ["AHEAD", "LATE", "AppBody", "SharedReceive", "no_body"]

AHEAD: Final = Buffer(max_items=64, max_bytes=64 * 1024)  # how far an application may run ahead of the network

LATE: Final = 0.25
"""Seconds in which a BaseHTTPMiddleware raises what the application did, behind the clean end that it made of it. It
does so at once; it is waited for only where something else runs behind the answer."""

_MAX_HELD: Final = 1024 * 1024  # bytes of a request's body that wait for an application which does not read them
_COLON: Final = ord(":")  # line ends, too, are no more than this, and no name of a field begins with such a byte
_SIGNS: Final = re.compile(rb"(?:(?::[^\r\n]*)?[\r\n])+")  # comments, each up to the end of its line, and empty lines
_EDGES: Final = (b"\n\n", b"\r\n\r\n")
_BODY: Final = "http.response.body"
_DISCONNECT: Final = {"type": "http.disconnect"}


async def no_body() -> Message:
    """The `receive` of a request that `authorize` is given: who read the body there would take it from the
    application."""
    raise RuntimeError("`authorize` under GuardMiddleware sees a request's head: its body is the application's to read")


class SharedReceive:
    """One `receive` for two: the application, which wants the body, and a driver, which waits for the reader to leave.

    Only one of them waits in the server's at a time; the other sleeps until it is back.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._held: deque[Message] = deque()  # what came and was not given to the application
        self._size = 0
        self._busy = False
        self._turned: anyio.Event | None = None
        self.left = False  # the reader has
        self.streams = False  # the application does: then it is told by `tell` only
        self.told = False
        self.asleep = 0  # calls of the application's that wait, and would be told

    async def application(self) -> Message:
        """The application's `receive`."""
        while not self._held:
            if self.told or (self.left and not self.streams):
                return dict(_DISCONNECT)
            if self._busy or self.left:
                self.asleep += 1
                try:
                    await self._turn()
                finally:
                    self.asleep -= 1
            else:
                await self._pull()
        message = self._held.popleft()
        self._size -= len(message.get("body", b""))
        self._wake()
        return message

    async def driver(self) -> Message:
        """The driver's: the messages are kept for the application too."""
        while not self.left:
            if self._busy or self._size > _MAX_HELD:
                await self._turn()
            else:
                await self._pull()
                if not self.left:
                    return dict(self._held[-1])
        return dict(_DISCONNECT)

    async def body(self) -> bytes:
        """The request's body, before the application gets it. What broke off is an empty one."""
        pieces = []
        while True:
            await self._pull()
            if self.left:
                return b""
            pieces.append(self._held[-1].get("body", b""))
            if not self._held[-1].get("more_body", False):
                return b"".join(pieces)

    def tell(self) -> bool:
        """The stream is over: the application's `receive` says that the reader has left. Whether it waits there."""
        self.told = True
        self._wake()
        return self.asleep > 0

    async def _pull(self) -> None:
        self._busy = True
        try:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.left = True
            else:
                self._held.append(message)
                self._size += len(message.get("body", b""))
        finally:
            self._busy = False
            self._wake()

    async def _turn(self) -> None:
        if self._turned is None:
            self._turned = anyio.Event()
        await self._turned.wait()

    def _wake(self) -> None:
        if self._turned is not None:
            self._turned.set()
            self._turned = None


class _Source(NearSource):
    """`opened` is set once a driver takes from it, or nobody ever will."""

    def __init__(self, buffer: Buffer, on_close: Callable[[], object]) -> None:
        super().__init__(buffer=buffer, on_close=on_close)
        self.opened = anyio.Event()

    def __aiter__(self) -> _Source:
        self.opened.set()
        return self


class AppBody:
    """The body of one answer. `source` is for a driver; closing it stops the application.

    One that waits in `receive` is told there, as by a server, and one that waits in `send` by an OSError. Any other
    would only learn at its next token: it is cancelled.
    """

    def __init__(
        self,
        receive: SharedReceive,
        application: anyio.CancelScope,
        tasks: Any,
        buffer: Buffer | None,
        inner: InnerEnds,
        kind: Kind,
    ) -> None:
        self.source = _Source(buffer or AHEAD, self._stop)
        self.ended = False  # the application sent its last part
        self.stopped = False  # it was told to stop before that
        self._receive = receive
        self._application = application
        self._tasks = tasks
        self._inner = inner
        self._of_events = kind == "events"
        self._last = _EDGES[0]  # the last piece that reached the source
        self._missing = False  # a middleware inside ended the body, and the application did not
        self._waits = 0  # how many of its tasks do, in `send`
        self._turn = anyio.Lock()  # theirs to put: each waits for room behind its own piece
        self._over = anyio.Event()
        receive.streams = True

    async def opened(self) -> None:
        """Wait until the stream has begun: before it has a slot, a generator must not. Raises OSError where it was
        refused one."""
        self._waits += 1
        try:
            await self.source.opened.wait()
        finally:
            self._waits -= 1
        if self.stopped:
            raise _left()

    async def send(self, message: Message) -> None:
        """The application's `send`, once its answer has begun. Raises OSError where nobody takes it any more."""
        shortcut = self.source.shortcut
        if message.get("more_body") and message["type"] == _BODY and not self.ended:
            piece = piece_of(message)
            if piece and self._of_events:
                if piece[0] <= _COLON and self._last.endswith(_EDGES) and _SIGNS.fullmatch(piece):
                    await self._sign()
                    return
                self._last = piece
        else:
            shortcut, piece = None, b""
        if shortcut is not None and not self._waits:  # else it would overtake those that wait for their turn
            try:
                taken = shortcut.take(piece) if piece else False
                if taken is True:
                    return
                if taken is not False:
                    await self._waiting(taken)
                    return
            except StreamClosed:
                raise _left() from None
        await self._put(message)

    async def _sign(self) -> None:
        """A sign of life, at an event's edge: the reader is sent ours. It does not reach the source, since it is no
        event: an application of which nothing else comes is silent."""
        if self.stopped:
            raise _left()
        await anyio.lowlevel.checkpoint()

    async def _waiting(self, taken: Awaitable[None]) -> None:
        self._waits += 1
        try:
            await taken
        finally:
            self._waits -= 1

    async def _put(self, message: Message) -> None:
        self._waits += 1
        try:
            if self._turn.locked():
                await self._turn.acquire()
            else:
                self._turn.acquire_nowait()
            try:
                await self._put_next(message)
            finally:
                self._turn.release()
        finally:
            self._waits -= 1

    async def _put_next(self, message: Message) -> None:
        if message["type"] != _BODY or self.ended:
            raise RuntimeError(f"{message['type']!r} cannot follow here")
        piece, self.ended = piece_of(message), not message.get("more_body", False)
        try:
            room = not piece or self.source.put(piece)
        except StreamClosed:
            raise _left() from None
        if self.ended:
            self._receive.tell()  # what an application asks for behind its answer is nobody's any more
            self._missing = self._inner.missing
            if not self._inner.sent and ended_by_base():
                self._tasks.start_soon(self._finish_late)
            else:
                self._finish()
        elif not room and not await self.source.room_made():
            raise _left()

    def gone(self) -> None:
        """The application was cancelled: whoever stops it need not wait. The driver ends by the same cancellation."""
        self._over.set()

    def over(self, failure: BaseException | None = None) -> None:
        """The application has returned, or raised `failure`. Nothing of that counts behind its end."""
        self._over.set()
        if failure is not None:
            self.source.fail(failure)
        else:
            self._finish()

    def _finish(self) -> None:
        if self.ended and not self._missing:
            self.source.finish()
        else:
            self.source.fail(SourceFailed(UNENDED.code, UNENDED.message, retryable=True))

    async def _finish_late(self) -> None:
        with anyio.move_on_after(LATE):
            await self._over.wait()
        self._finish()

    async def _stop(self) -> None:
        self.stopped = True
        self.source.opened.set()
        told = self._receive.tell() or self._waits > 0
        if told or self._over.is_set():
            return  # it may have more to do than to stop: what runs behind its answer is its own
        self._application.cancel()
        await self._over.wait()


def _left() -> OSError:
    return OSError("the stream is over: nobody takes more of it")
