"""A log in memory on the loop's own clock, whose calls take their time, can fail, and can be looked into.

Every call of a `Store` has two steps, one before and one after its effect; each lets other tasks run. `at` is called
at each, with `"append"` or `"append, done"`, and may raise what the caller is to see; after the effect that is an
outcome that is not known.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import anyio
import anyio.lowlevel

from streamguard.core.cursor import Cursor, cursor_zero
from streamguard.core.flush import FlushPolicy, Immediate
from streamguard.core.frame import Frame
from streamguard.core.framing import FramedEncoder
from streamguard.log.base import Lease, LogUnavailable, StreamInfo, StreamState
from streamguard.log.memory import MemoryLog
from streamguard.observe.hooks import Observers
from streamguard.runtime.producer import Producer
from streamguard.runtime.source import TokenSource
from streamguard.runtime.timing import Timing
from tests.runtime.fakes import SID

__all__ = ["Store", "away", "frames_in", "make_producer", "text_in"]

T = TypeVar("T")


class Store(MemoryLog):
    """See the module. `slow`: seconds that a step takes."""

    def __init__(self, *, slow: float = 0.0, at: Callable[[str], Any] | None = None) -> None:
        super().__init__(clock=anyio.current_time)
        self.calls: list[str] = []
        self.appended: list[list[int]] = []  # the numbers of the frames of each append that was taken
        self.at = at
        self._slow = slow

    async def append(
        self, lease: Lease, after: Cursor, frames: Sequence[Frame], *, checkpoint: bytes | None = None
    ) -> Cursor:
        append = super().append
        tail = await self._call("append", lambda: append(lease, after, frames, checkpoint=checkpoint))
        self.appended.append([frame.seq for frame in frames])
        return tail

    async def read(self, after: Cursor, *, limit: int = 512) -> list[Frame]:
        return await self._call("read", lambda: super(Store, self).read(after, limit=limit))

    async def wait(self, after: Cursor, timeout: float) -> bool:  # noqa: ASYNC109  # the contract's
        return await self._call("wait", lambda: super(Store, self).wait(after, timeout))

    async def state(self, sid: str) -> StreamState:
        return await self._call("state", lambda: super(Store, self).state(sid))

    async def renew(self, lease: Lease) -> None:
        await self._call("renew", lambda: super(Store, self).renew(lease))

    async def release(self, lease: Lease) -> None:
        await self._call("release", lambda: super(Store, self).release(lease))

    async def take_over(self, sid: str, epoch: int, ttl: float) -> Lease:
        return await self._call("take_over", lambda: super(Store, self).take_over(sid, epoch, ttl))

    def lose(self, sid: str) -> None:
        """Its lease runs out now, and was not released: as of a process that died."""
        self._streams[sid].lease_end = anyio.current_time()

    async def _call(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        self.calls.append(name)
        await self._step(name)
        result = await call()
        await self._step(f"{name}, done")
        return result

    async def _step(self, name: str) -> None:
        await (anyio.sleep(self._slow) if self._slow else anyio.lowlevel.checkpoint())
        found = None if self.at is None else self.at(name)
        if inspect.isawaitable(found):
            await found


def away(*steps: str, times: int = 10**9) -> Callable[[str], None]:
    """An `at` that makes the log unavailable at the first `times` of these steps."""
    left = times

    def at(step: str) -> None:
        nonlocal left
        if step in steps and left:
            left -= 1
            raise LogUnavailable("it is away")

    return at


async def make_producer(
    log: MemoryLog,
    source: Any,
    *,
    policy: FlushPolicy | None = None,
    ttl: float = 15.0,
    patience: float = 5.0,
    renewed: float | None = None,
    on_end: Any = None,
    observers: Observers | None = None,
    **limits: Any,
) -> Producer:
    """A producer of a new stream, SID, ready to run."""
    lease = await MemoryLog.create(log, StreamInfo(SID), ttl)
    return Producer(
        TokenSource(source),
        policy or Immediate(),
        FramedEncoder("native", sid=SID),
        log,
        lease,
        Timing(clock=anyio.current_time, **limits),
        patience=patience,
        renewed=renewed,
        on_end=on_end,
        observers=observers,
    )


async def frames_in(log: MemoryLog, sid: str = SID) -> list[Frame]:
    return await MemoryLog.read(log, cursor_zero(sid), limit=10_000)


async def text_in(log: MemoryLog, sid: str = SID) -> tuple[list[str], str | None]:
    """The data of the frames before the terminal, and its status."""
    frames = await frames_in(log, sid)
    status = frames[-1].status if frames else None
    return [frame.data.decode() for frame in frames if frame.status is None], status
