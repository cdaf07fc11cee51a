"""The contract of a log: logs that are right pass, and each that is wrong in one thing is refused for that thing."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import anyio.lowlevel
import attrs
import pytest

from streamguard.core.cursor import Cursor
from streamguard.core.frame import Frame, row_of
from streamguard.log.base import (
    Checkpointed,
    CursorMisfit,
    Lease,
    LogLost,
    Retention,
    Signal,
    SignalKind,
    StreamExists,
    StreamInfo,
    StreamLog,
    StreamSealed,
    StreamState,
    UnknownStream,
)
from streamguard.log.kept import LET_GO
from streamguard.log.memory import MemoryLog
from streamguard.testing.contract import ContractBroken
from streamguard.testing.log_append_rules import APPEND_RULES
from streamguard.testing.log_case import framed
from streamguard.testing.log_contract import LOG_RULES, check_log_rule, check_stream_log
from streamguard.testing.log_life_rules import LIFE_RULES
from streamguard.testing.log_read_rules import READ_RULES

pytestmark = pytest.mark.anyio


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize("rule", LOG_RULES)
async def test_a_log_in_memory_keeps_every_rule(rule: str) -> None:
    clock = Clock()
    await check_log_rule(rule, lambda retention: MemoryLog(retention, clock=clock), advance=clock.advance)


async def test_a_log_on_the_real_clock_passes_too_and_so_does_one_that_is_made_by_a_coroutine() -> None:
    async def connected(retention: Retention) -> StreamLog:
        await anyio.lowlevel.checkpoint()
        return MemoryLog(retention)

    await check_stream_log(connected)


async def test_a_store_may_be_shared_by_the_logs_of_a_factory_and_by_all_rules() -> None:
    store: dict[Retention, MemoryLog] = {}

    def factory(retention: Retention) -> MemoryLog:
        return store.setdefault(retention, MemoryLog(retention))

    await check_stream_log(factory, shared=True)
    assert sum(log.streams for log in store.values()) == 0, "rules leave streams behind"


def test_no_rule_hides_another_of_its_name() -> None:
    assert len(LOG_RULES) == len(APPEND_RULES) + len(READ_RULES) + len(LIFE_RULES)


# ---- wrong logs -----------------------------------------------------------------------------------


class AnyEpoch(MemoryLog):
    """A producer that slept through a takeover goes on."""

    async def append(
        self, lease: Lease, after: Cursor, frames: Sequence[Frame], *, checkpoint: bytes | None = None
    ) -> Cursor:
        stream = self._streams.get(lease.sid)
        epoch = lease.epoch if stream is None else stream.epoch
        return await super().append(Lease(lease.sid, epoch, lease.ttl), after, frames, checkpoint=checkpoint)


class Anywhere(MemoryLog):
    """Appends at the tail, whatever the producer took for it."""

    async def append(
        self, lease: Lease, after: Cursor, frames: Sequence[Frame], *, checkpoint: bytes | None = None
    ) -> Cursor:
        try:
            return await super().append(lease, after, frames, checkpoint=checkpoint)
        except CursorMisfit as misfit:
            moved = framed(misfit.tail, *(frame.data for frame in frames))
            return await super().append(lease, misfit.tail, moved, checkpoint=checkpoint)


class Creating(MemoryLog):
    """An append makes the stream that it is for."""

    async def append(
        self, lease: Lease, after: Cursor, frames: Sequence[Frame], *, checkpoint: bytes | None = None
    ) -> Cursor:
        if lease.sid not in self._streams:
            await self.create(StreamInfo(lease.sid), lease.ttl)
        return await super().append(lease, after, frames, checkpoint=checkpoint)


class Once(MemoryLog):
    """What is the tail already is refused, so that nobody can repeat an append."""

    async def append(
        self, lease: Lease, after: Cursor, frames: Sequence[Frame], *, checkpoint: bytes | None = None
    ) -> Cursor:
        stream = self._streams.get(lease.sid)
        if stream is not None and stream.epoch == lease.epoch and stream.ended is None:
            tail = stream.tail
            if frames and tail.seq == frames[-1].seq:
                raise CursorMisfit(tail)
        return await super().append(lease, after, frames, checkpoint=checkpoint)


class Doubling(MemoryLog):
    """A repeated append is stored once more, behind the first."""

    async def append(
        self, lease: Lease, after: Cursor, frames: Sequence[Frame], *, checkpoint: bytes | None = None
    ) -> Cursor:
        stream = self._streams.get(lease.sid)
        before = None if stream is None else stream.tail
        tail = await super().append(lease, after, frames, checkpoint=checkpoint)
        if stream is not None and frames and tail == before:
            stream.rows += map(row_of, frames)
        return tail


class Open(MemoryLog):
    """The terminal is a frame like any other."""

    def _seal(self, stream: object, now: float) -> None:
        pass

    async def append(
        self, lease: Lease, after: Cursor, frames: Sequence[Frame], *, checkpoint: bytes | None = None
    ) -> Cursor:
        tail = await super().append(lease, after, frames, checkpoint=checkpoint)
        stream = self._streams[lease.sid]
        stream.tail = Cursor(*stream.tail[:4])
        return tail


class EagerCheckpoint(MemoryLog):
    """The checkpoint is stored in a step before the frames, which may be refused."""

    async def append(
        self, lease: Lease, after: Cursor, frames: Sequence[Frame], *, checkpoint: bytes | None = None
    ) -> Cursor:
        stream = self._streams.get(lease.sid)
        if stream is not None and checkpoint is not None:
            stream.checkpoint = Checkpointed(after, checkpoint)
        return await super().append(lease, after, frames, checkpoint=checkpoint)


class NoCheckpointWithFrames(MemoryLog):
    async def append(
        self, lease: Lease, after: Cursor, frames: Sequence[Frame], *, checkpoint: bytes | None = None
    ) -> Cursor:
        return await super().append(lease, after, frames, checkpoint=None if frames else checkpoint)


class Slow(MemoryLog):
    """Looks first, and writes a step later."""

    async def append(
        self, lease: Lease, after: Cursor, frames: Sequence[Frame], *, checkpoint: bytes | None = None
    ) -> Cursor:
        stream = self._streams.get(lease.sid)
        if stream is not None and after == stream.tail and stream.ended is None and lease.epoch == stream.epoch:
            await anyio.lowlevel.checkpoint()
            stream.tail = after
        return await super().append(lease, after, frames, checkpoint=checkpoint)


class Silent(MemoryLog):
    """An append wakes nobody."""

    async def append(
        self, lease: Lease, after: Cursor, frames: Sequence[Frame], *, checkpoint: bytes | None = None
    ) -> Cursor:
        stream = self._streams.get(lease.sid)
        if stream is None:
            return await super().append(lease, after, frames, checkpoint=checkpoint)
        asleep = stream.readers[:]
        stream.readers.clear()
        try:
            return await super().append(lease, after, frames, checkpoint=checkpoint)
        finally:
            stream.readers += asleep


class WakesOne(Silent):
    async def append(
        self, lease: Lease, after: Cursor, frames: Sequence[Frame], *, checkpoint: bytes | None = None
    ) -> Cursor:
        tail = await super().append(lease, after, frames, checkpoint=checkpoint)
        for waker in self._streams[lease.sid].readers[:1]:
            waker()
        return tail


class SilentPurge(MemoryLog):
    async def purge(self, *, sid: str | None = None, principal: str | None = None) -> int:
        stream = self._streams.get(sid or "")
        asleep = [] if stream is None else stream.readers[:]
        if stream is not None:
            stream.readers.clear()
        try:
            return await super().purge(sid=sid, principal=principal)
        finally:
            if stream is not None:
                stream.readers += asleep


class Restless(MemoryLog):
    """Says that there is something whenever anything happened."""

    async def wait(self, after: Cursor, timeout: float) -> bool:  # noqa: ASYNC109
        await super().wait(after, 0.0)
        return True


class Twice(MemoryLog):
    async def read(self, after: Cursor, *, limit: int = 512) -> list[Frame]:
        frames = await super().read(after, limit=limit)
        return frames + frames[-1:]


class Unlimited(MemoryLog):
    async def read(self, after: Cursor, *, limit: int = 512) -> list[Frame]:
        return await super().read(after, limit=10_000)


class Trusting(MemoryLog):
    """Looks at the number of a cursor only."""

    async def read(self, after: Cursor, *, limit: int = 512) -> list[Frame]:
        try:
            return await super().read(after, limit=limit)
        except CursorMisfit:
            stream = self._streams[after.sid]
            start = after.seq - stream.first.seq
            return [Frame(*row) for row in stream.rows[start : start + limit]]


class Patient(MemoryLog):
    """A cursor beyond the tail is waited for: the reader's hole would be filled with other text."""

    async def read(self, after: Cursor, *, limit: int = 512) -> list[Frame]:
        try:
            return await super().read(after, limit=limit)
        except LogLost:
            return []


class Altering(MemoryLog):
    """Stores frames in columns of its own, and not all parts of them."""

    part = "extra"

    async def read(self, after: Cursor, *, limit: int = 512) -> list[Frame]:
        return [self.altered(frame) for frame in await super().read(after, limit=limit)]

    def altered(self, frame: Frame) -> Frame:
        return Frame(frame.seq, frame.offset, frame.crc, frame.data, frame.name, frame.status)


class NoNames(Altering):
    def altered(self, frame: Frame) -> Frame:
        return Frame(frame.seq, frame.offset, frame.crc, frame.data, None, frame.status, frame.extra)


class EmptyIsNone(Altering):
    def altered(self, frame: Frame) -> Frame:
        return Frame(frame.seq, frame.offset, frame.crc, frame.data, frame.name, frame.status, frame.extra or None)


class AsText(Altering):
    def altered(self, frame: Frame) -> Frame:
        data = frame.data.decode(errors="replace").encode()
        return Frame(frame.seq, frame.offset, frame.crc, data, frame.name, frame.status, frame.extra)


class Untrimmed(MemoryLog):
    def __init__(self, retention: Retention, clock: Clock) -> None:
        super().__init__(retention, clock=clock)
        self._max_stream_bytes = 1 << 40


class TwoOfAName(MemoryLog):
    """Two creates at once both find the name free."""

    async def create(self, info: StreamInfo, ttl: float) -> Lease:
        if info.sid not in self._streams:
            await anyio.lowlevel.checkpoint()
            self._streams.pop(info.sid, None)
        return await super().create(info, ttl)


class TwoOfAKey(MemoryLog):
    async def create(self, info: StreamInfo, ttl: float) -> Lease:
        if info.key not in self._keys:
            await anyio.lowlevel.checkpoint()
            self._keys.pop(info.key or "", None)
        return await super().create(info, ttl)


class KeyForEver(MemoryLog):
    async def create(self, info: StreamInfo, ttl: float) -> Lease:
        used: dict[str | None, StreamInfo] = self.__dict__.setdefault("used", {})
        if info.key is not None and info.key in used:
            raise StreamExists(used[info.key])
        lease = await super().create(info, ttl)
        used[info.key] = info
        return lease


class HalfMade(MemoryLog):
    """Stores the stream, and then finds that its key is taken."""

    async def create(self, info: StreamInfo, ttl: float) -> Lease:
        try:
            return await super().create(info, ttl)
        except StreamExists as exists:
            if exists.info.sid != info.sid:
                await super().create(StreamInfo(info.sid), ttl)
            raise


class ByReference(MemoryLog):
    async def create(self, info: StreamInfo, ttl: float) -> Lease:
        lease = await super().create(info, ttl)
        self._streams[info.sid].info = info
        return lease


class Greedy(MemoryLog):
    """Takes a lease over whose holder is alive."""

    async def take_over(self, sid: str, epoch: int, ttl: float) -> Lease:
        stream = self._streams.get(sid)
        if stream is not None and stream.epoch == epoch:
            stream.lease_end = 0.0
        return await super().take_over(sid, epoch, ttl)


class Hasty(MemoryLog):
    """Two who take over at once both see the same epoch."""

    async def take_over(self, sid: str, epoch: int, ttl: float) -> Lease:
        lease = await super().take_over(sid, epoch, ttl)
        stream = self._streams[sid]
        end, stream.epoch, stream.lease_end = stream.lease_end, epoch, 0.0
        await anyio.lowlevel.checkpoint()
        stream.epoch, stream.lease_end = lease.epoch, end
        return lease


class Unrenewed(MemoryLog):
    """An append does not renew the lease."""

    async def append(
        self, lease: Lease, after: Cursor, frames: Sequence[Frame], *, checkpoint: bytes | None = None
    ) -> Cursor:
        stream = self._streams.get(lease.sid)
        end = 0.0 if stream is None else stream.lease_end
        tail = await super().append(lease, after, frames, checkpoint=checkpoint)
        self._streams[lease.sid].lease_end = end
        return tail


class ReleasesAny(MemoryLog):
    """Whoever lost the lease can still let it go."""

    async def release(self, lease: Lease) -> None:
        stream = self._streams.get(lease.sid)
        if stream is not None:
            stream.lease_end = 0.0


class EachACrash(MemoryLog):
    """Does not tell a lease that was released from one that ran out."""

    async def state(self, sid: str) -> StreamState:
        state = await super().state(sid)
        return attrs.evolve(state, crashes=state.epoch - 1)


class NoCrash(MemoryLog):
    async def state(self, sid: str) -> StreamState:
        return attrs.evolve(await super().state(sid), crashes=0)


class LastCrash(MemoryLog):
    """Says how the last producer went, and forgets the others."""

    async def take_over(self, sid: str, epoch: int, ttl: float) -> Lease:
        self._streams[sid].crashes = 0
        return await super().take_over(sid, epoch, ttl)


class EarlyCrash(MemoryLog):
    """Counts who is silent, though nobody took over yet: that one may come back."""

    async def state(self, sid: str) -> StreamState:
        state, released = await super().state(sid), self._streams[sid].lease_end == LET_GO
        return attrs.evolve(state, crashes=state.crashes + (not state.held and not state.sealed and not released))


class ForgetsCancel(MemoryLog):
    async def take_over(self, sid: str, epoch: int, ttl: float) -> Lease:
        lease = await super().take_over(sid, epoch, ttl)
        self._streams[sid].cancelled = False
        return lease


class CancelsLate(MemoryLog):
    """Takes a cancel for a stream that ended."""

    async def signal(self, sid: str, kind: SignalKind, payload: bytes = b"") -> None:
        try:
            await super().signal(sid, kind, payload)
        except StreamSealed:
            self._streams[sid].cancelled = True


class SignalsOnce(MemoryLog):
    """A signal is gone with the first who reads it."""

    async def signals(self, sid: str, after: int, timeout: float) -> list[Signal]:  # noqa: ASYNC109
        signals = await super().signals(sid, after, timeout)
        self._streams[sid].signals.clear()
        return signals


class SilentSignals(MemoryLog):
    async def signal(self, sid: str, kind: SignalKind, payload: bytes = b"") -> None:
        stream = self._streams.get(sid)
        asleep = [] if stream is None else stream.listeners[:]
        if stream is not None:
            stream.listeners.clear()
        await super().signal(sid, kind, payload)
        if stream is not None:
            stream.listeners += asleep


class DeafSignals(MemoryLog):
    """Who listens is not told that the stream is gone."""

    async def signals(self, sid: str, after: int, timeout: float) -> list[Signal]:  # noqa: ASYNC109
        known = sid in self._streams
        try:
            return await super().signals(sid, after, timeout)
        except UnknownStream:
            if known:
                return []
            raise


class OwnErrors(MemoryLog):
    """Its errors are those of what it is made of."""

    async def state(self, sid: str) -> StreamState:
        if sid not in self._streams:
            raise KeyError(sid)
        return await super().state(sid)


class DropsCancels(MemoryLog):
    async def signal(self, sid: str, kind: SignalKind, payload: bytes = b"") -> None:
        await super().signal(sid, kind, payload)
        signals = self._streams[sid].signals
        if len(signals) >= 1024 and signals[0].kind == "cancel":
            del signals[0]


class Oldest(MemoryLog):
    async def find(self, name: str, principal: str | None) -> StreamInfo | None:
        streams = self._names.get((name, principal))
        return next(iter(streams.values())).info if streams else None


class Anybodys(MemoryLog):
    """Finds a name whoever its principal is."""

    async def find(self, name: str, principal: str | None) -> StreamInfo | None:
        found = [stream.info for stream in self._streams.values() if stream.info.name == name]
        return found[-1] if found else None


class KeepsNames(MemoryLog):
    """The index of names is not told of a purge."""

    async def find(self, name: str, principal: str | None) -> StreamInfo | None:
        seen: dict[tuple[str, str | None], StreamInfo] = self.__dict__.setdefault("seen", {})
        found = await super().find(name, principal)
        if found is not None:
            seen[name, principal] = found
        return found or seen.get((name, principal))


class PurgesAll(MemoryLog):
    async def purge(self, *, sid: str | None = None, principal: str | None = None) -> int:
        count = await super().purge(sid=sid, principal=principal)
        for stream in list(self._streams.values()) if sid is None and count else []:
            self._forget(stream)
        return count


class SweepsAll(MemoryLog):
    async def sweep(self, limit: int = 100) -> int:
        old = list(self._streams.values())
        for stream in old:
            self._forget(stream)
        return len(old)


class SweepsNothing(MemoryLog):
    async def sweep(self, limit: int = 100) -> int:
        return 0


class SweepsTooMany(MemoryLog):
    async def sweep(self, limit: int = 100) -> int:
        return await super().sweep()


class Ageless(MemoryLog):
    async def state(self, sid: str) -> StreamState:
        return attrs.evolve(await super().state(sid), age=0.0)


class Falls(MemoryLog):
    async def renew(self, lease: Lease) -> None:
        raise OSError("the store is a wreck")


class Misnumbering(MemoryLog):
    """Takes frames as they come, and a terminal with others behind it."""

    async def append(
        self, lease: Lease, after: Cursor, frames: Sequence[Frame], *, checkpoint: bytes | None = None
    ) -> Cursor:
        try:
            return await super().append(lease, after, frames, checkpoint=checkpoint)
        except ValueError:
            self._streams[lease.sid].rows += map(row_of, frames)
            return after


WRONG: dict[type[MemoryLog], str] = {
    AnyEpoch: "L1: only the log's epoch appends",
    Anywhere: "L1: only at the tail",
    Creating: "L1: an append never creates",
    Once: "L1: an append may be repeated",
    Doubling: "L1: an append may be repeated",
    Open: "L1, L2: the terminal seals",
    EagerCheckpoint: "L1: only the log's epoch appends",
    NoCheckpointWithFrames: "L1: an append may be repeated",
    Slow: "L1: of several appends at once, one",
    Misnumbering: "L1: frames follow their position",
    Silent: "L2: many streams at once, each whole and in order",
    WakesOne: "wait: woken by whatever comes",
    SilentPurge: "wait: woken by whatever comes",
    Restless: "wait: for frames, the end, or the timeout",
    Twice: "L1: an append at the tail is stored",
    Unlimited: "read: page for page, in order",
    Trusting: "read: a position fits in all its parts",
    Patient: "L6: a cursor beyond the tail is lost",
    Altering: "L1, L2: the terminal seals",
    NoNames: "read: frames come back as they were appended",
    EmptyIsNone: "read: frames come back as they were appended",
    AsText: "read: frames come back as they were appended",
    Untrimmed: "trim: older frames go above max_bytes",
    TwoOfAName: "create: one stream of a sid",
    TwoOfAKey: "create: one stream of a key",
    KeyForEver: "create: who failed or was cancelled frees its key",
    HalfMade: "create: one stream of a key",
    ByReference: "create: what a new stream is",
    Ageless: "create: what a new stream is",
    Greedy: "L3: one takes over, once the lease ended",
    Hasty: "L3: one takes over, once the lease ended",
    Unrenewed: "L3: a lease holds for its ttl",
    ReleasesAny: "release: another need not wait",
    EachACrash: "L3: a lease that ran out is a crash, one that was released is none",
    NoCrash: "L3: a lease that ran out is a crash, one that was released is none",
    LastCrash: "L3: a lease that ran out is a crash, one that was released is none",
    EarlyCrash: "L3: a lease that ran out is a crash, one that was released is none",
    ForgetsCancel: "L7: a cancel is recorded for good",
    CancelsLate: "L7: a cancel of a stream that ended is refused",
    SignalsOnce: "signals: numbered, kept, waited for",
    SilentSignals: "signals: numbered, kept, waited for",
    DeafSignals: "signals: of a stream that is gone",
    OwnErrors: "L1: an append never creates",
    DropsCancels: "signals: bounded, and a cancel stays",
    Oldest: "find: the newest of a name and a principal",
    Anybodys: "find: the newest of a name and a principal",
    KeepsNames: "find: the newest of a name and a principal",
    PurgesAll: "purge: a stream, or all of a principal's",
    SweepsAll: "sweep: what is too old",
    SweepsNothing: "sweep: what is too old",
    SweepsTooMany: "sweep: some at a time",
    Falls: "wait: not woken by what brings no frame",
}


# Whoever waits in these is never woken: the rule is broken once its patience is over, so that it may be short.
HANGING = {Silent, WakesOne, SilentPurge, SilentSignals, SweepsNothing}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("wrong", WRONG)
async def test_a_wrong_log_is_refused_for_what_is_wrong(wrong: type[MemoryLog]) -> None:
    clock = Clock()
    rule = WRONG[wrong]

    def factory(retention: Retention) -> MemoryLog:
        return wrong(retention, clock=clock)

    with pytest.raises(ContractBroken) as raised:
        await check_log_rule(rule, factory, advance=clock.advance, patience=0.2 if wrong in HANGING else 30.0)
    assert raised.value.rule == rule
    assert f"{wrong.__name__} breaks the rule {rule!r}" in str(raised.value)


async def test_all_rules_are_played_and_the_first_that_is_broken_is_told() -> None:
    with pytest.raises(ContractBroken, match="AnyEpoch") as raised:
        await check_stream_log(AnyEpoch)
    assert raised.value.rule == WRONG[AnyEpoch]


async def test_what_lacks_a_method_is_no_log() -> None:
    class Half:
        async def aclose(self) -> None:
            pass

    with pytest.raises(ContractBroken, match="lacks a method"):
        await check_stream_log(lambda retention: Half())  # type: ignore[arg-type,return-value]
