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
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import anyio

from streamguard.runtime.sink import Sink

__all__ = ["Connection", "Lost"]

logger = logging.getLogger("streamguard")

T = TypeVar("T", bytes, list[Any])


class Lost(Exception):
    """The reader is gone. A signal inside the driver: no source can raise it, no caller sees it."""


class Connection(Generic[T]):
    """Writes to one sink; `clock` is the stream's."""

    def __init__(self, sink: Sink[T], clock: Callable[[], float]) -> None:
        self.opening: T | None = None  # the body's first bytes, made by the stage before it takes any item
        self.opened = False
        self.torn = False
        self.lost = False
        self.over = False
        self._aborted = False
        self.wrote = clock()  # when the last write began or ended
        self.first_byte: float | None = None
        self.gone = anyio.Event()
        self._sink: Sink[T] = sink
        self._clock = clock
        self._scope: anyio.CancelScope | None = None
        self._claimed: anyio.Event | None = None

    @contextmanager
    def claim(self) -> Iterator[None]:
        """Write beside the driver."""
        self._claimed = claimed = anyio.Event()
        try:
            yield
        finally:
            claimed.set()
            self._claimed = None

    async def settled(self) -> None:
        """Wait until nobody writes beside the driver."""
        if self._claimed is not None:
            await self._claimed.wait()

    def leave(self) -> None:
        """The reader left: no write waits for it any longer."""
        self.gone.set()
        if self._scope is not None:
            self._scope.cancel()

    async def open(self) -> None:
        """Send the headers, and the `opening`. Raises Lost."""
        self.opened = True
        await self._write(self._sink.start)
        if self.opening:
            await self.send(self.opening)
        self.first_byte = self._clock()

    async def send(self, out: T) -> None:
        """Send a part of the body. Raises Lost."""
        await self._write(lambda: self._sink.send(out))
        self.wrote = self._clock()

    async def end(self) -> None:
        """End the body cleanly; where that fails, not cleanly."""
        try:
            await self._sink.end()
        except Exception as exc:
            logger.info("the transport refused the end of a stream: %r", exc)
            await self.abort()
        self.over = True

    async def abort(self) -> None:
        """End the connection in a way that no reader takes for a clean end."""
        if self.over or not self.opened:
            return  # before the headers the server's own error answer is the better one
        self.over = self._aborted = True
        try:
            await self._sink.abort()
        except Exception as exc:
            logger.warning("the transport could not abort a stream: %r", exc)

    def kill(self) -> None:
        """Once aborted: let the reader go now, because this task does not return yet."""
        if self._aborted:
            try:
                self._sink.kill()
            except Exception as exc:
                logger.warning("the transport of an aborted stream could not be closed: %r", exc)

    async def _write(self, write: Callable[[], Awaitable[None]]) -> None:
        if self.gone.is_set():
            self.lost = True
            raise Lost
        try:
            with anyio.CancelScope() as scope:
                self._scope = scope
                await write()
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
            self.torn = self.lost = True
            raise Lost
