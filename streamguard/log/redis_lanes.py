"""Calls to Redis, gathered: what waits together goes in one round trip, over all streams of the process.

A lane is one connection. While its batch is under way the next one gathers, so that the busier a process is, the
larger are its batches, and nobody waits for a timer. What changes something has one lane, so that calls arrive in the
order in which they were made, and never wait for the long answers of readers, who have lanes of their own. A call that
is refused fails alone; a connection that breaks, or is silent for `timeout`, fails all who wait for it, at once and
with the reason, and the next call opens another one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import anyio

from streamguard.log.base import LogUnavailable
from streamguard.log.redis_link import Address, Link, NoScriptError, ResponseError, command, reason

__all__ = ["Lane", "Lanes"]

_MOST_CALLS: Final = 512  # of one batch
_MOST_BYTES: Final = 1024 * 1024  # of one batch, if it has more than one call
_PRIMARY: Final = 1.0  # seconds for which a server that was a primary is believed to be one
_IDLE: Final = 0.005  # seconds after which a connection may have been closed unnoticed
_ROLE: Final = command(b"ROLE")


class _Call:
    """Commands that go together, and who waits for the replies."""

    __slots__ = ("answer", "count", "packed", "since")

    def __init__(self, packed: bytes, count: int, answer: asyncio.Future[list[Any]], since: float) -> None:
        self.packed = packed
        self.count = count
        self.answer = answer
        self.since = since

    def fail(self, why: str) -> None:
        if not self.answer.done():
            self.answer.set_exception(LogUnavailable(why))


class Lane:
    """One connection, opened by the first call, and the calls that wait for it."""

    def __init__(self, address: Address, timeout: float, loop: asyncio.AbstractEventLoop) -> None:
        self._address = address
        self._timeout = timeout
        self._loop = loop
        self._waiting: deque[_Call] = deque()
        self._task: asyncio.Task[None] | None = None
        self._link: Link | None = None
        self._looked = 0.0  # when it was a primary
        self._used = 0.0

    @property
    def busy(self) -> int:
        """How many wait, and one more while a batch is under way."""
        return len(self._waiting) + (self._task is not None)

    async def call(self, packed: bytes, count: int) -> list[Any]:
        """Send `count` commands; the replies. Raises LogUnavailable if one is refused, or if there is no answer."""
        answer: asyncio.Future[list[Any]] = self._loop.create_future()
        self._waiting.append(_Call(packed, count, answer, self._loop.time()))
        if self._task is None:
            self._task = self._loop.create_task(self._serve())
        return await answer

    async def aclose(self) -> None:
        """Serve who waits; then close."""
        if self._task is not None:
            await asyncio.wait([self._task])
        await self._drop()

    def forget(self) -> None:
        """The loop is closed, and with it all that waited."""
        self._waiting.clear()
        self._task = self._link = None

    # ---- inside -------------------------------------------------------------------------------

    async def _serve(self) -> None:
        batch: list[_Call] = []
        why = "it was closed"
        try:
            while batch := self._take():
                try:
                    with anyio.fail_after(self._timeout):
                        await self._exchange(batch)
                except LogUnavailable as exc:
                    await self._fail(batch, exc.why)
                except TimeoutError:
                    await self._fail(batch, f"Redis at {self._address.name} did not answer within {self._timeout:g} s")
        except Exception as exc:
            why = f"an error that is streamguard's own: {exc!r}"
            raise
        finally:
            self._task = None
            for call in (*batch, *self._waiting):  # none, unless this was stopped
                call.fail(why)
            self._waiting.clear()

    def _take(self) -> list[_Call]:
        """What waits, up to a limit, without those whose callers have left or have waited too long."""
        batch: list[_Call] = []
        size = 0
        late = self._loop.time() - self._timeout
        while self._waiting and len(batch) < _MOST_CALLS and size < _MOST_BYTES:
            call = self._waiting.popleft()
            if call.since < late:
                call.fail(f"Redis at {self._address.name} did not come to it within {self._timeout:g} s")
            elif not call.answer.done():
                batch.append(call)
                size += len(call.packed)
        return batch

    async def _exchange(self, batch: list[_Call]) -> None:
        now = self._loop.time()
        if self._link is not None:
            if now - self._used > _IDLE:
                await asyncio.sleep(0)  # else the loop has not seen yet that the server closed it meanwhile
            if self._link.ended:
                await self._drop()
        self._used = now
        if self._link is None:
            self._link = await Link.open(self._address)
            self._looked = now
        look = now - self._looked > _PRIMARY
        packed = [call.packed for call in batch]
        count = sum([call.count for call in batch])
        replies = await self._link.exchange([*packed, _ROLE] if look else packed, count + look)
        if look:
            self._link.require_primary(replies.pop())
            self._looked = now
        at = 0
        again: list[_Call] = []
        for call in batch:
            those = replies[at : at + call.count]
            at += call.count
            if not _settled(call, those):
                again.append(call)
        if again:  # nothing of them was done
            await self._link.load()
            replies = await self._link.exchange([call.packed for call in again], sum(call.count for call in again))
            for call in again:
                those, replies = replies[: call.count], replies[call.count :]
                _settled(call, those, last=True)

    async def _fail(self, batch: Sequence[_Call], why: str) -> None:
        """Those of a batch, and all who wait behind it: they have waited as long as one may."""
        waiting = [*batch, *self._waiting]
        self._waiting.clear()
        for call in waiting:
            call.fail(why)
        await self._drop()

    async def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.close()


def _settled(call: _Call, replies: list[Any], last: bool = False) -> bool:
    """Answer a call; False where the server did not know a script, unless this is the last attempt."""
    for reply in replies:
        if isinstance(reply, ResponseError):
            if isinstance(reply, NoScriptError) and not last:
                return False
            call.fail(reason(reply))
            return True
    if not call.answer.done():
        call.answer.set_result(replies)
    return True


class Lanes:
    """The connections of a process: one for what changes something, `readers` for the rest, opened when needed."""

    def __init__(self, address: Address, readers: int, timeout: float, loop: asyncio.AbstractEventLoop) -> None:
        self.writing = Lane(address, timeout, loop)
        self._reading = [Lane(address, timeout, loop) for _ in range(readers)]

    @property
    def reading(self) -> Lane:
        """The first one that is idle, else the one for which fewest wait."""
        return min(self._reading, key=lambda lane: lane.busy)

    async def aclose(self) -> None:
        for lane in (self.writing, *self._reading):
            await lane.aclose()

    def forget(self) -> None:
        for lane in (self.writing, *self._reading):
            lane.forget()
