"""One connection as its driver sees it: opened once, written to by one at a time, ended once.

Three facts decide what may still happen on it. `opened`: headers were handed to the transport. `torn`: a
write was interrupted or refused, so nobody knows what the transport took; nothing may follow. `lost`: the
reader left, or the transport says so. A write that waits for a reader who has left is given up, because
not every transport wakes it.

Whoever writes beside the driver holds `claim()` meanwhile, and the driver waits for `settled` before its
own next write: one write at a time, and no lock.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Generic, TypeVar

import anyio

from streamguard.runtime.first_wait import FirstWait
from streamguard.runtime.sink import Sink

__all__ = ["Connection", "Lost"]

logger = logging.getLogger("streamguard")

T = TypeVar("T", bytes, list[Any])


class Lost(Exception):
    """The reader is gone. A signal inside the driver: no source can raise it, no caller sees it."""


class Connection(Generic[T]):
    """Writes to one sink; `clock` is the stream's, `limit` how long the reader may take nothing (None: for ever)."""

    def __init__(self, sink: Sink[T], clock: Callable[[], float], limit: float | None = None) -> None:
        self.opening: T | None = None  # the body's first bytes, made by the stage before it takes any item
        self.opened = False
        self.torn = False
        self.lost = False
        self.slow = False  # the reader took nothing for too long: `lost` as well
        self.over = False
        self.aborted = self._released = False
        self.wrote = clock()  # when the last write began or ended, or a sign of life was due
        self.first_byte: float | None = None
        self.gone = anyio.Event()
        self._sink: Sink[T] = sink
        self._clock = clock
        self.limit = limit
        self._visible = True
        self._taken = -float("inf")  # what the socket had taken at the last look, and since when it is no more
        self._since = self.wrote
        self._scope: Any = None  # a CancelScope, or what stands for one
        self._new_scope: Callable[[], anyio.CancelScope] = anyio.CancelScope
        self._claimed = False
        self._free: anyio.Event | None = None  # for who waits until it is claimed no more

    def claim(self) -> AbstractContextManager[None]:
        """Write beside the driver."""
        return _Claim(self)

    def hold(self, *, claimed: bool) -> None:
        """Begin, or end, a claim."""
        self._claimed = claimed
        if not claimed and self._free is not None:
            self._free.set()
            self._free = None

    @contextmanager
    def claim_for(self, interruption: Any) -> Iterator[None]:
        """A claim for a write that waits already: `interruption.cancel()` is to end it."""
        with self.claim():
            self._scope = interruption
            try:
                yield
            finally:
                self._scope = None
                self.wrote = self._clock()

    @property
    def claimed(self) -> bool:
        """Whether somebody writes beside the driver."""
        return self._claimed

    async def settled(self) -> None:
        """Wait until nobody writes beside the driver."""
        if self._claimed:
            self._free = self._free or anyio.Event()
            await self._free.wait()

    def leave(self) -> None:
        """The reader left: no write waits for it any longer."""
        self.gone.set()
        if self._scope is not None:
            self._scope.cancel()

    def unsent(self) -> int | None:
        """What the transport took and the socket did not, in bytes; None where nobody can see it."""
        try:
            return self._sink.unsent() if self._visible else None
        except Exception as exc:
            logger.warning("what a transport has not sent cannot be seen: %r", exc)
            self._visible = False  # it would say so at every look
            return None

    def stuck(self, now: float, sent: int, *, writing: bool) -> bool:
        """Whether the reader took nothing for too long, as far as anybody can see. To be asked often.

        `sent` is how many bytes of the body were written so far. Where what is unsent can be seen, no more of them left
        for `limit` seconds; else one write lasts that long.
        """
        if self.limit is None:
            return False
        left = self.unsent()
        if left is None:
            return writing and now - self.wrote >= self.limit
        # Not what is unsent by itself, which grows where a server takes whatever it is given.
        taken = sent - left
        if not left or taken > self._taken:
            self._since = now
        self._taken = taken  # also where it is less: what waits to be written counted as taken until it was
        return left > 0 and now - self._since >= self.limit

    def look_from(self, now: float) -> None:
        """All is taken so far: what is written from now on has the whole `limit`."""
        self._since = now

    def give_up(self) -> None:
        """The reader takes nothing: no write waits for it any longer."""
        self.slow = self.lost = True
        if self._scope is not None:
            self._scope.cancel()

    def hurry(self, limit: float) -> None:
        """From now on the reader has `limit` seconds at most to take anything, also of what is being written."""
        self.limit = limit if self.limit is None else min(self.limit, limit)
        if self._scope is not None:
            self._scope.deadline = min(self._scope.deadline, anyio.current_time() + limit)

    async def open(self) -> None:
        """Send the headers, and the `opening`. Raises Lost."""
        self.opened = True
        await self._write(self._start)
        self.wrote = self.first_byte = self._clock()

    async def _start(self) -> None:
        await self._sink.start()
        if self.opening:
            await self._sink.send(self.opening)

    async def send(self, out: T) -> None:
        """Send a part of the body. Raises Lost."""
        await self._write(lambda: self._sink.send(out))
        self.wrote = self._clock()

    async def end(self) -> None:
        """End the body cleanly; where that fails, or waits too long for the reader, not cleanly.

        Not given up because the reader left: one who has the whole hangs up while it is ended.
        """
        try:
            with anyio.CancelScope() as scope:
                await self._in_time(scope, self._sink.end)
            if scope.cancelled_caught:
                self.slow = self.lost = self.torn = True
                await self.abort()
        except Exception as exc:
            logger.info("the transport refused the end of a stream: %r", exc)
            await self.abort()
        self.over = True

    async def abort(self) -> None:
        """End the connection in a way that no reader takes for a clean end."""
        if self.over or not self.opened:
            return  # before the headers the server's own error answer is the better one
        self.over = self.aborted = True
        try:
            await self._sink.abort()
        except OSError as exc:  # the reader hung up first: there is no clean end to be taken for one
            logger.info("the connection of a stream was gone before it could be aborted: %r", exc)
        except Exception as exc:
            logger.warning("the transport could not abort a stream: %r", exc)

    async def part(self) -> None:
        """After the end: wait for the socket to take what is unsent, and drop a connection that takes nothing.

        Nobody else would: a server closes behind what is unsent, which for a reader that does not read is never.
        """
        self.release()
        if not self.slow and self.limit is not None and await self._stays(self.limit):
            self.slow = self.lost = True
            self._kill(drop=True)

    def release(self) -> None:
        """Once aborted: let the reader go now, because the task that serves it may not return yet."""
        if self.aborted and not self._released:
            self._released = True
            self._kill(drop=self.slow)

    def _kill(self, *, drop: bool) -> None:
        try:
            self._sink.kill(drop=drop)
        except Exception as exc:
            logger.warning("the transport of a stream that is over could not be closed: %r", exc)

    async def _stays(self, limit: float) -> bool:
        """Wait until all that is unsent has left (False), or none of it has for `limit` seconds (True)."""
        pause = 0.01
        last, since = self.unsent(), self._clock()
        while last:
            await anyio.sleep(min(pause, limit / 4))
            pause = min(2 * pause, 1.0)
            left, now = self.unsent(), self._clock()
            if left != last:  # also where it is more: that is of another answer, which is served after this one
                last, since = left, now
            elif now - since >= limit:
                return True
        return False

    async def _look(self, scope: anyio.CancelScope, limit: float) -> None:
        """Beside a write that waits behind what is unsent: cancel it once none of that leaves any more."""
        if not await self._stays(limit):
            await anyio.sleep(limit)  # it has left, and the write has its own time
        scope.cancel()

    async def _in_time(self, scope: anyio.CancelScope, write: Callable[[], Awaitable[None]]) -> None:
        """Write; `scope`, which is the caller's, is cancelled where the reader takes nothing for too long."""
        limit = self.limit
        # Where it can be seen what waits before this write, its time is the reader's who takes that.
        if limit is not None and self.unsent():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._look, scope, limit)
                await write()
                tasks.cancel_scope.cancel()
        elif limit is None:
            await write()
        else:
            await FirstWait(write, lambda: _limit(scope, limit))

    async def _write(self, write: Callable[[], Awaitable[None]]) -> None:
        if self.gone.is_set() or self.slow:
            self.lost = True
            raise Lost
        self.wrote = self._clock()
        try:
            scope = self._new_scope()
            # The event loop's own class: anyio finds out anew for each of its own, which is a third of what it costs.
            self._new_scope = type(scope)
            with scope:
                self._scope = scope
                await self._in_time(scope, write)
        except Exception as exc:
            self.torn = self.lost = True
            raise Lost from exc
        except BaseException:
            self.torn = True
            self.lost = self.gone.is_set()
            raise
        finally:
            self._scope = None
        if scope.cancelled_caught:
            self.slow = self.slow or not self.gone.is_set()
            self.torn = self.lost = True
            raise Lost


class _Claim(AbstractContextManager[None]):
    """Not made of a generator, which costs a sign of life as much as to make its bytes."""

    __slots__ = ("_line",)

    def __init__(self, line: Connection[Any]) -> None:
        self._line = line

    def __enter__(self) -> None:
        self._line.hold(claimed=True)

    def __exit__(self, *exc: object) -> None:
        self._line.hold(claimed=False)


def _limit(scope: anyio.CancelScope, seconds: float) -> None:
    scope.deadline = anyio.current_time() + seconds
