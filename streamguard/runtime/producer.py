"""Source -> pipeline -> log: the half of a resumable stream that generates.

It is the direct driver over a stage that makes frames and a sink that appends them, so everything that holds of a
served source holds here: limits, flush deadlines, closing, cancellation at any await. What differs:

* Nobody's leaving ends it but the one who holds the reins: `leave` (its lease is lost), `cancel` (told by a reader).
* Two tasks beside the driver keep the lease and listen for signals. A holder that cannot renew stops in time by its
  own clock, before another may hold the lease by the store's.
* A server that goes away writes no end: the stream lives on in the log. Its lease is let go, so that another process
  can take it over at once.
* An append whose outcome is unknown is repeated for a while, with the source paused: the log takes it only once.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio
import anyio.abc
import attrs

from streamguard.core.cursor import Cursor
from streamguard.core.errors import Failure
from streamguard.core.flush import FlushPolicy
from streamguard.core.frame import Frame
from streamguard.core.framing import FramedEncoder
from streamguard.core.items import Checkpoint, Item
from streamguard.core.jsontext import dumps
from streamguard.log import base
from streamguard.log.base import Lease, LogError, LogUnavailable, StreamLog, StreamSealed, text_append
from streamguard.observe.hooks import Observers, OnEnd, Outcome, RequestLabels
from streamguard.runtime.direct import DirectDriver
from streamguard.runtime.lead import Lead
from streamguard.runtime.leases import let_go
from streamguard.runtime.lists import FrameLists
from streamguard.runtime.seen import NO_LABELS, seen_by
from streamguard.runtime.source import TokenSource
from streamguard.runtime.timing import Timing

__all__ = ["LogSink", "LoggedStage", "Mark", "Producer"]

logger = logging.getLogger("streamguard")

_PAUSE: Final = 0.05  # seconds before an append is repeated for the first time
_LISTEN: Final = 30.0  # seconds of one wait for a signal


@attrs.frozen
class Mark:
    """Among frames: here the source could go on from `state`, which is JSON."""

    state: bytes


class LoggedStage(FrameLists):
    """items -> flush -> encode, for a log: a checkpoint stands as a `Mark` behind the frames before it. With `fields` a
    text that is all that leaves is a tuple, for a log that takes it so."""

    part = "producer"

    def __init__(self, policy: FlushPolicy, encoder: FramedEncoder, *, fields: bool = False) -> None:
        super().__init__(policy, encoder)
        if fields:
            self._stage.text = encoder.text_fields
        self._encoder = encoder
        self._frames = self.push
        self.push = self._push

    @property
    def cursor(self) -> Cursor:  # type: ignore[override]
        return self._encoder.cursor

    def _push(self, item: Item, now: float) -> list[Any]:
        if type(item) is not Checkpoint:
            return self._frames(item, now)
        if self._stage.source.intake.torn:
            return []
        mark = Mark(dumps(item.state))  # before what is held has left: a state that is no JSON fails the stream
        return [*self._frames(item, now), mark]

    def fail(self, failure: Failure, now: float, status: str = "failed") -> list[Frame]:
        """A server that goes away is no end of the stream: only what is held leaves."""
        if status == "shutdown":
            return self.drain()
        return super().fail(failure, now, status)


class LogSink:
    """Where a producer's frames go. `tail` is the last that was acknowledged, `renewed` when the newest call was sent
    that renewed the lease; `patience` is how long, in seconds, an append may fail before the stream does."""

    def __init__(
        self,
        log: StreamLog,
        lease: Lease,
        tail: Cursor,
        clock: Callable[[], float],
        *,
        renewed: float,
        patience: float = 5.0,
    ) -> None:
        self.log = log
        self._append_text = text_append(log)
        self.lease = lease
        self.tail = tail
        self.renewed = renewed
        self._clock = clock
        self._patience = patience
        self._left = anyio.Event()
        self.taken: Callable[[], None] | None = None  # called after each append that was acknowledged
        self.lead: Lead | None = None  # how far it may be ahead of its readers
        self.latency: float | None = None  # seconds of the newest append, once `time_appends` was called

    @property
    def takes_fields(self) -> bool:
        """Whether a text may come as a tuple."""
        return self._append_text is not None

    async def start(self) -> None: ...

    async def send(self, data: list[Any]) -> None:
        """Append frames, and the marks among them, each together with the frames before it. Raises what the log does,
        once that is said: to the driver it is no more than a reader's leaving."""
        try:
            if self._append_text is not None and len(data) == 1 and type(data[0]) is tuple and base.crash is None:
                asked = self._clock()
                tail = self._append_text(self.lease, self.tail, data[0])
                if tail is not None:
                    self.tail = tail
                    if asked > self.renewed:
                        self.renewed = asked
                    if self.taken is not None:
                        self.taken()
                    if self.lead is not None and tail.offset > self.lead.free:
                        await self.lead.wait(tail)
                    return
            await self._send(data)
            if self.taken is not None:
                self.taken()
            if self.lead is not None and self.tail.offset > self.lead.free and self.tail.status is None:
                await self.lead.wait(self.tail)
        except LogError as exc:
            self.leave(exc)
            raise
        except Exception:
            logger.exception("stream %s: its log failed", self.lease.sid[:8])
            raise

    async def _send(self, data: list[Any]) -> None:
        frames: list[Frame] = []
        for part in data:
            if type(part) is Mark:
                await self._append(frames, part.state)
                frames = []
            else:
                frames.append(Frame(*part) if type(part) is tuple else part)
        if frames:  # none behind a mark, and where a server that goes away has nothing left to say
            await self._append(frames, None)

    async def _append(self, frames: list[Frame], state: bytes | None) -> None:
        if base.crash is not None:
            self._before(frames, base.crash)
        asked = self._clock()
        try:
            self.tail = await self.log.append(self.lease, self.tail, frames, checkpoint=state)
        except LogUnavailable as exc:
            asked = await self._again(frames, state, asked, exc)
        self.renewed = max(self.renewed, asked)
        if base.crash is not None:
            base.crash("between-append-and-delivery")

    async def _again(self, frames: list[Frame], state: bytes | None, since: float, exc: LogUnavailable) -> float:
        """Append what may have been appended, until the log says so; when the call was sent that it answered."""
        pause = _PAUSE
        logger.warning("stream %s: %s; it is tried again", self.lease.sid[:8], exc)
        while (asked := self._clock()) - since < self._patience:
            await anyio.sleep(min(pause, since + self._patience - asked))
            pause = min(2 * pause, 1.0)
            asked = self._clock()
            try:
                self.tail = await self.log.append(self.lease, self.tail, frames, checkpoint=state)
                return asked
            except LogUnavailable as again:
                exc = again
        self.leave(f"{exc}, for {self._patience:g} s; it is given up")
        raise exc

    def time_appends(self) -> None:
        """From now on know how long an append takes, of a log that is waited for."""
        append = self._append

        async def timed(frames: list[Frame], state: bytes | None) -> None:
            since = self._clock()
            await append(frames, state)
            self.latency = self._clock() - since

        self._append = timed  # type: ignore[method-assign]

    def _before(self, frames: list[Frame], crash: Callable[[str], object]) -> None:
        """The steps before an append at which a test may let this process die."""
        if not self.tail.seq:
            crash("before-first-frame")
        if frames and frames[-1].status is not None:
            crash("between-content-and-terminal")
        crash("before-append")

    async def end(self) -> None: ...

    async def abort(self) -> None: ...

    def unsent(self) -> int:
        return 0  # the log has it, or the call has not returned

    def kill(self, *, drop: bool) -> bool:
        return False

    async def gone(self) -> None:
        await self._left.wait()

    def leave(self, why: object) -> None:
        """The stream is somebody else's now, or cannot be written: stop, and write no end. The first reason is said."""
        if not self._left.is_set():
            logger.warning("stream %s: %s", self.lease.sid[:8], why)
        self._left.set()


class Producer:
    """Generates one stream into a log, under a lease. `timing` are the source's limits; `renewed` is when, by its
    clock, the call was sent that gave the lease or renewed it (now, by default)."""

    def __init__(
        self,
        source: TokenSource,
        policy: FlushPolicy,
        encoder: FramedEncoder,
        log: StreamLog,
        lease: Lease,
        timing: Timing,
        *,
        patience: float = 5.0,
        renewed: float | None = None,
        on_end: OnEnd | None = None,
        observers: Observers | None = None,
        labels: RequestLabels = NO_LABELS,
        asked: str = "",
        origin: str | None = None,
    ) -> None:
        since = timing.clock() if renewed is None else renewed
        self.sink = LogSink(log, lease, encoder.cursor, timing.clock, renewed=since, patience=patience)
        self.lease = lease
        self.origin = origin  # see `Observer.began`
        self.on_read: Callable[[], None] | None = None  # called when a reader elsewhere says that it is there
        self._clock = timing.clock
        quiet = attrs.evolve(timing, heartbeat=None, write=None, peek=0.0, linger=0.0)
        stage = LoggedStage(policy, encoder, fields=self.sink.takes_fields)
        self.seen = seen_by(observers, stage, timing.clock, labels, origin=origin)
        if observers is not None:
            self.sink.time_appends()
            self.seen.own = self._own
            self.seen.latency = lambda: self.sink.latency
            self.seen.missing = lambda: max(0, encoder.cursor.seq - self.sink.tail.seq)
        told: OnEnd | None = None if on_end is None else lambda outcome: on_end(self._own(outcome))
        self._driver: DirectDriver[list[Any]] = DirectDriver(
            source, stage, self.sink, quiet, on_end=told, request_id=labels.request_id, asked=asked, seen=self.seen
        )

    @property
    def outcome(self) -> Outcome | None:
        outcome = self._driver.outcome
        return None if outcome is None else self._own(outcome)

    @property
    def sealed(self) -> bool:
        """Whether the log has an end of ours."""
        return self.sink.tail.status is not None

    @property
    def exception(self) -> Exception | None:
        """What the source raised, or a policy."""
        return self._driver.exception

    @property
    def items(self) -> int:
        """What the source yielded so far."""
        return self._driver.stage.items

    def cancel(self, failure: Failure | None = None) -> None:
        """End the stream as `cancelled`."""
        self._driver.cancel(failure)
        self._hurry()

    def shut_down(self) -> None:
        """Stop, and let the stream go: it lives on in the log, for another process to go on with."""
        self._driver.shut_down()
        self._hurry()

    def _hurry(self) -> None:
        if self.sink.lead is not None:
            self.sink.lead.end()

    async def run(self, begin: Callable[[anyio.abc.TaskGroup | None], object] = lambda tasks: None) -> None:
        """Generate the stream to its end. Re-raises a cancellation from outside; then the stream lives on.

        `begin` is given the group of the tasks that run beside it: what it starts there is cancelled at the end. It is
        given None once the group takes no task any more.
        """
        try:
            async with anyio.create_task_group() as tasks:
                begin(tasks)
                tasks.start_soon(self._tended, self._keep)
                tasks.start_soon(self._tended, self._listen)
                try:
                    await self._driver.run()
                finally:
                    begin(None)  # before the group is closed, and while the lease is let go of
                tasks.cancel_scope.cancel()
        finally:
            if not self.sealed:
                await let_go(self.sink.log, self.lease)

    def _own(self, outcome: Outcome) -> Outcome:
        """The Outcome, which is that of this process's part only where the log has no end of ours."""
        return attrs.evolve(outcome, let_go=not self.sealed)

    async def _tended(self, task: Callable[[], Awaitable[None]]) -> None:
        """One that ends with a refusal of the log says that the stream is not ours any more."""
        try:
            await task()
        except StreamSealed:
            pass  # by ourselves: anybody else would have had to take the lease first
        except LogError as exc:
            self.sink.leave(exc)

    async def _keep(self) -> None:
        """Renew the lease while nothing is appended, and stop before it ends."""
        ttl, log = self.lease.ttl, self.sink.log
        while True:
            await anyio.sleep(max(0.01, self.sink.renewed + ttl / 3 - self._clock()))
            asked = self._clock()
            if asked - self.sink.renewed < ttl / 3:
                continue
            if base.crash is not None:
                base.crash("in-lease-renewal")
            try:
                with anyio.move_on_after(ttl / 6):
                    await log.renew(self.lease)
                    self.sink.renewed = max(self.sink.renewed, asked)
            except LogUnavailable as exc:
                logger.warning("stream %s: its lease could not be renewed: %s", self.lease.sid[:8], exc)
                await anyio.sleep(ttl / 12)
            if self._clock() - self.sink.renewed > 2 * ttl / 3:
                self.sink.leave("its lease could not be renewed in time")
                return

    async def _listen(self) -> None:
        number = 0
        while True:
            try:
                signals = await self.sink.log.signals(self.lease.sid, number, _LISTEN)
            except LogUnavailable:
                await anyio.sleep(1.0)
                continue
            for signal in signals:
                number = signal.number
                if signal.kind == "cancel":
                    self.cancel()
                    return
                if signal.kind == "read" and self.on_read is not None:
                    self.on_read()
