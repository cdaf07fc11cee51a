"""A log against a model of it: whatever order producers, readers, faults and time come in, both say the same.

    TestMyLog = machine_test(lambda: Store(lambda retention: MyLog(url, retention=retention)), max_examples=20)

The model is a list of frames per stream. After every step each stream's `state` is compared with it, and each reader
holds exactly a beginning of its stream. A `Store` may do more than open a log, and then more is tried: time passes
(`advance`), a log is closed and another one opened, with readers at a second one (`persistent`), an acknowledged tail
is lost (`lose`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from streamguard.core.cursor import Cursor, cursor_zero, new_sid
from streamguard.core.frame import Frame
from streamguard.log.base import (
    Checkpointed,
    CursorMisfit,
    Lease,
    LeaseHeld,
    LeaseLost,
    LogError,
    LogLost,
    Retention,
    Signal,
    SignalKind,
    StreamExists,
    StreamInfo,
    StreamLog,
    StreamSealed,
    UnknownStream,
)
from streamguard.testing.log_case import at_end, framed

__all__ = ["LogMachine", "Store", "machine_of", "machine_test"]

TTL = 600.0  # longer than any example takes, for stores whose clock is the real one
RETENTION = Retention(after_end=3600.0, unsealed=7200.0)
MAX_STREAMS = 4

pieces = st.lists(st.binary(max_size=8), min_size=1, max_size=4)
words = st.sampled_from(["a", "b"])
maybe = st.none() | words
statuses = st.sampled_from([None] * 9 + ["complete", "failed", "cancelled"])  # most streams should live for some steps
seldom = st.sampled_from([False, False, False, True])
pauses = st.sampled_from([60.0, TTL - 1, TTL, 3000.0, 7200.0])


@attrs.define
class Store:
    """What one example is played with. `open` makes a log; `remove` tidies up behind it."""

    open: Callable[[Retention], StreamLog]
    advance: Callable[[float], object] | None = None
    lose: Callable[[StreamLog, str, int], object] | None = None  # the last so many frames of a stream
    persistent: bool = False
    remove: Callable[[], object] = lambda: None


@attrs.define(eq=False)
class Stream:
    """What a log should hold of one stream."""

    info: StreamInfo
    lease: Lease
    lease_end: float
    created: float
    appended: float
    frames: list[Frame] = attrs.field(factory=list)
    old_leases: list[Lease] = attrs.field(factory=list)
    checkpoint: Checkpointed | None = None
    released: bool = False
    crashes: int = 0
    cancelled: bool = False
    ended: float | None = None
    signals: list[Signal] = attrs.field(factory=list)

    def at(self, index: int) -> Cursor:
        return at_end(cursor_zero(self.info.sid), self.frames[:index])

    @property
    def tail(self) -> Cursor:
        return self.at(len(self.frames))

    def read(self, after: Cursor) -> list[Frame] | type[LogError]:
        if after.seq > len(self.frames):
            return LogLost
        return self.frames[after.seq :] if self.at(after.seq)[:4] == after[:4] else CursorMisfit


@attrs.define(eq=False)
class Reader:
    """Who reads one stream from its start, over any number of connections."""

    stream: Stream
    after: Cursor
    got: list[Frame] = attrs.field(factory=list)


class LogMachine(RuleBasedStateMachine):
    """Set `store` in a subclass, as `machine_test` does."""

    store: Callable[[], Store]

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.now = 0.0
        self.streams: list[Stream] = []
        self.readers: list[Reader] = []
        self.gone: list[Stream] = []

    @initialize()
    def opened(self) -> None:
        self.used = type(self).store()
        self.open()

    def open(self) -> None:
        self.log = self.other = self.used.open(RETENTION)
        if self.used.persistent:
            self.other = self.used.open(RETENTION)

    def closed(self) -> None:
        self.run(self.log.aclose())
        if self.other is not self.log:
            self.run(self.other.aclose())

    def teardown(self) -> None:
        try:
            if hasattr(self, "log"):
                for stream in self.streams:
                    self.run(self.log.purge(sid=stream.info.sid))
                self.closed()
                self.used.remove()
        finally:
            self.run(self.loop.shutdown_default_executor())
            self.loop.close()

    def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(call, 20.0))

    def says(self, call: Coroutine[Any, Any, Any]) -> Any:
        """What a call answers, or the class of the LogError that it raises."""
        try:
            return self.run(call)
        except LogError as exc:
            return type(exc)

    def some(self, data: st.DataObject, running: bool = False) -> Stream | None:
        """One of the streams, or None where there is none."""
        found = [stream for stream in self.streams if not running or stream.ended is None]
        return data.draw(st.sampled_from(found)) if found else None

    def forget(self, stream: Stream) -> None:
        self.streams.remove(stream)
        self.gone.append(stream)
        self.readers = [reader for reader in self.readers if reader.stream is not stream]

    def stored(self, stream: Stream, frames: Sequence[Frame], checkpoint: bytes | None) -> None:
        """Note an append that succeeded, and read it back."""
        assert self.run(self.other.read(stream.tail)) == list(frames)
        stream.frames += frames
        stream.lease_end, stream.released = self.now + TTL, False
        if frames:
            stream.appended = self.now
            stream.ended = self.now if frames[-1].status else None
        if checkpoint is not None:
            stream.checkpoint = Checkpointed(stream.tail, checkpoint)

    def handed_over(self, stream: Stream, lease: Lease) -> None:
        """Note a takeover."""
        stream.old_leases.append(stream.lease)
        stream.crashes += not stream.released
        stream.lease, stream.lease_end, stream.released = lease, self.now + TTL, False

    # ---- who starts ---------------------------------------------------------------------------

    def holder(self, key: str | None) -> Stream | None:
        held = [stream for stream in self.streams if stream.info.key == key is not None]
        return next((stream for stream in held if stream.tail.status not in ("failed", "cancelled")), None)

    @precondition(lambda self: len(self.streams) < MAX_STREAMS)
    @rule(key=maybe, name=maybe, principal=maybe)
    def create(self, key: str | None, name: str | None, principal: str | None) -> None:
        info = StreamInfo(new_sid(), key=key, name=name, principal=principal)
        holder = self.holder(key)
        if holder is not None:
            with pytest.raises(StreamExists) as exists:
                self.run(self.log.create(info, TTL))
            assert exists.value.info == holder.info
            assert self.says(self.other.state(info.sid)) is UnknownStream
        else:
            lease = self.run(self.log.create(info, TTL))
            assert lease == Lease(info.sid, 1, TTL)
            self.streams.append(Stream(info, lease, self.now + TTL, self.now, self.now))
            if name is not None:
                self.find(name, principal)

    @rule(data=st.data())
    def create_again(self, data: st.DataObject) -> None:
        if stream := self.some(data):
            assert self.says(self.other.create(StreamInfo(stream.info.sid), TTL)) is StreamExists

    def find(self, name: str, principal: str | None) -> None:
        found = [s.info for s in self.streams if (s.info.name, s.info.principal) == (name, principal)]
        assert self.run(self.other.find(name, principal)) == (found[-1] if found else None)

    @rule(name=words, principal=maybe)
    def find_one(self, name: str, principal: str | None) -> None:
        self.find(name, principal)

    @rule(key=words)
    def find_key(self, key: str) -> None:
        holder = self.holder(key)
        assert self.run(self.other.find_key(key)) == (None if holder is None else holder.info)

    # ---- who generates ------------------------------------------------------------------------

    @rule(data=st.data(), pieces=pieces, name=st.sampled_from([None, "block"]), status=statuses,
          checkpoint=st.none() | st.binary(max_size=4), repeats=st.integers(0, 2))  # fmt: skip
    def append(
        self,
        data: st.DataObject,
        pieces: list[bytes],
        name: str | None,
        status: str | None,
        checkpoint: bytes | None,
        repeats: int,
    ) -> None:
        """Once, and again as long as the answer does not arrive."""
        if stream := self.some(data, running=True):
            after = stream.tail
            frames = framed(after, *pieces, name=name, status=status, extra=b"x" if status else None)
            for _ in range(1 + repeats):
                tail = self.run(self.log.append(stream.lease, after, frames, checkpoint=checkpoint))
                assert tail == at_end(after, frames)
            self.stored(stream, frames, checkpoint)

    @rule(data=st.data(), pieces=pieces, steps=st.integers(0, 6))
    def append_and_be_cancelled(self, data: st.DataObject, pieces: list[bytes], steps: int) -> None:
        """Then it is unknown whether the frames are stored, and the append is repeated."""
        if stream := self.some(data, running=True):
            after = stream.tail
            frames = framed(after, *pieces)

            async def attempt() -> None:
                task = asyncio.ensure_future(self.log.append(stream.lease, after, frames))
                for _ in range(steps):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                assert task.cancelled() or not task.exception()

            self.run(attempt())
            assert self.run(self.log.append(stream.lease, after, frames)) == at_end(after, frames)
            self.stored(stream, frames, None)

    @rule(data=st.data(), state=st.binary(max_size=4))
    def checkpoint(self, data: st.DataObject, state: bytes) -> None:
        if stream := self.some(data, running=True):
            assert self.run(self.log.append(stream.lease, stream.tail, [], checkpoint=state)) == stream.tail
            self.stored(stream, [], state)

    @rule(data=st.data(), pieces=pieces)
    def append_elsewhere(self, data: st.DataObject, pieces: list[bytes]) -> None:
        """At a position that is not the tail; what is there already may not be written again, or over."""
        if (stream := self.some(data)) and stream.frames:
            index = data.draw(st.integers(0, len(stream.frames) - 1))
            after = Cursor(*stream.at(index)[:4])
            for frames in (framed(after, *pieces, b"never"), [*stream.frames[index:], *framed(stream.tail, b"never")]):
                expected = StreamSealed if stream.ended is not None else CursorMisfit
                try:
                    assert self.says(self.log.append(stream.lease, after, frames, checkpoint=b"n")) is expected
                except ValueError:
                    assert any(frame.status for frame in frames[:-1])

    @rule(data=st.data(), pieces=pieces)
    def append_by_a_stale_lease(self, data: st.DataObject, pieces: list[bytes]) -> None:
        if (stream := self.some(data)) and stream.old_leases:
            lease = data.draw(st.sampled_from(stream.old_leases))
            after = Cursor(*stream.tail[:4])
            assert self.says(self.log.append(lease, after, framed(after, *pieces), checkpoint=b"n")) is LeaseLost
            assert self.says(self.log.renew(lease)) is LeaseLost
            self.run(self.log.release(lease))

    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        if stream := self.some(data):
            answer = self.says(self.log.renew(stream.lease))
            assert answer is (None if stream.ended is None else StreamSealed)
            stream.lease_end, stream.released = self.now + TTL, False

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if stream := self.some(data):
            self.run(self.log.release(stream.lease))
            stream.lease_end, stream.released = self.now, True

    @rule(data=st.data(), ahead=st.sampled_from([0, 0, 0, 1, -1]))
    def take_over(self, data: st.DataObject, ahead: int) -> None:
        if stream := self.some(data):
            epoch = stream.lease.epoch + ahead
            answer = self.says(self.other.take_over(stream.info.sid, epoch, TTL))
            if stream.ended is not None:
                assert answer is StreamSealed
            elif ahead or self.held(stream):
                assert answer is LeaseHeld
            else:
                assert answer == Lease(stream.info.sid, epoch + 1, TTL)
                self.handed_over(stream, answer)

    @rule(data=st.data(), asleep=st.booleans())
    def producer_dies(self, data: st.DataObject, asleep: bool) -> None:
        """Or sleeps past its lease, and does not know; another one takes over, and the first tries to go on."""
        if stream := self.some(data, running=True):
            if asleep and self.used.advance is not None:
                self.used.advance(TTL)
                self.now += TTL
            else:
                self.run(self.log.release(stream.lease))
                stream.released = True
            old = stream.lease
            self.handed_over(stream, self.run(self.other.take_over(stream.info.sid, old.epoch, TTL)))
            assert stream.lease == Lease(stream.info.sid, old.epoch + 1, TTL)
            assert self.says(self.log.append(old, stream.tail, framed(stream.tail, b"never"))) is LeaseLost
            self.run(self.log.release(old))

    def held(self, stream: Stream) -> bool:
        return stream.ended is None and self.now < stream.lease_end

    # ---- who reads ----------------------------------------------------------------------------

    @rule(data=st.data(), back=st.integers(0, 5), wrong=st.sampled_from(["", "", "crc", "offset", "seq"]))
    def read(self, data: st.DataObject, back: int, wrong: str) -> None:
        """Anywhere, with a position that may be none."""
        if stream := self.some(data):
            after = stream.at(max(0, len(stream.frames) - back))
            if wrong:
                after = after._replace(**{wrong: getattr(after, wrong) ^ 1})
            expected = stream.read(after)
            assert self.says(self.other.read(after)) == expected
            waits = expected == [] and stream.ended is None
            assert self.run(self.other.wait(after, 0.0)) is not waits

    @precondition(lambda self: len(self.readers) < 6)
    @rule(data=st.data())
    def reader_comes(self, data: st.DataObject) -> None:
        if stream := self.some(data):
            self.readers.append(Reader(stream, stream.at(0)))

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), limit=st.integers(1, 5))
    def reader_reads(self, data: st.DataObject, limit: int) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        page = self.says(self.other.read(reader.after, limit=limit))
        expected = reader.stream.read(reader.after)
        if isinstance(expected, list):
            assert page == expected[:limit]
            reader.got += page
            reader.after = at_end(reader.after, page)
        else:  # it holds what the store lost
            assert page is expected

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def reader_is_cut(self, data: st.DataObject) -> None:
        """The last frames do not arrive; it comes back with the cursor of the last that did."""
        reader = data.draw(st.sampled_from(self.readers))
        reader.got = reader.got[: data.draw(st.integers(0, len(reader.got)))]
        reader.after = at_end(cursor_zero(reader.after.sid), reader.got)

    @rule(data=st.data(), piece=st.binary(max_size=4), leaves=st.booleans())
    def readers_wait(self, data: st.DataObject, piece: bytes, leaves: bool) -> None:
        """Two at the tail, of whom one may leave; then a frame comes."""
        if stream := self.some(data, running=True):
            after, frames = stream.tail, framed(stream.tail, piece)

            async def both() -> None:
                waiting = [asyncio.ensure_future(self.other.wait(after, 15.0)) for _ in range(2)]
                await asyncio.sleep(0)
                if leaves:
                    waiting[0].cancel()
                await self.log.append(stream.lease, after, frames)
                await asyncio.wait(waiting)
                assert waiting[1].result() is True
                assert waiting[0].cancelled() if leaves else waiting[0].result() is True

            self.run(both())
            self.stored(stream, frames, None)

    @rule(data=st.data(), kind=st.sampled_from(["cancel", "grant", "read"]), payload=st.binary(max_size=4))
    def signal(self, data: st.DataObject, kind: SignalKind, payload: bytes) -> None:
        if stream := self.some(data):
            call = self.other.signal(stream.info.sid, kind, payload)
            if kind == "cancel" and stream.ended is not None:
                with pytest.raises(StreamSealed):
                    self.run(call)
                return
            self.run(call)
            stream.signals.append(Signal(len(stream.signals) + 1, kind, payload))
            stream.cancelled |= kind == "cancel"

    @rule(data=st.data(), after=st.integers(0, 4))
    def signals(self, data: st.DataObject, after: int) -> None:
        if stream := self.some(data):
            assert self.run(self.log.signals(stream.info.sid, after, 0.0)) == stream.signals[after:]

    # ---- what goes ----------------------------------------------------------------------------

    @rule(data=st.data(), sure=seldom)
    def purge(self, data: st.DataObject, sure: bool) -> None:
        if sure and (stream := self.some(data)):
            assert self.run(self.log.purge(sid=stream.info.sid)) == 1
            self.forget(stream)

    @rule(principal=words, sure=seldom)
    def purge_principal(self, principal: str, sure: bool) -> None:
        theirs = [stream for stream in self.streams if sure and stream.info.principal == principal]
        principal = principal if sure else "nobody"
        assert self.run(self.other.purge(principal=principal)) == len(theirs)
        for stream in theirs:
            self.forget(stream)

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def ask_for_what_is_gone(self, data: st.DataObject) -> None:
        stream = data.draw(st.sampled_from(self.gone))
        sid, tail = stream.info.sid, Cursor(*stream.tail[:4])
        for call in (
            partial(self.log.append, stream.lease, tail, framed(tail, b"never")),
            partial(self.other.read, tail),
            partial(self.other.state, sid),
            partial(self.log.renew, stream.lease),
            partial(self.log.take_over, sid, 1, TTL),
            partial(self.other.signal, sid, "cancel"),
            partial(self.log.signals, sid, 0, 0.0),
        ):
            assert self.says(call()) is UnknownStream
        assert self.run(self.other.wait(tail, 15.0)) is True
        self.run(self.log.release(stream.lease))

    @rule()
    def sweep(self) -> None:
        def old(stream: Stream) -> bool:
            if stream.ended is not None:
                return stream.ended + RETENTION.after_end <= self.now
            return not self.held(stream) and stream.appended + RETENTION.unsealed <= self.now

        expired = [stream for stream in self.streams if old(stream)]
        assert self.run(self.log.sweep()) == len(expired)
        for stream in expired:
            self.forget(stream)

    @precondition(lambda self: self.used.advance)
    @rule(seconds=pauses)
    def time_passes(self, seconds: float) -> None:
        assert self.used.advance is not None
        self.used.advance(seconds)
        self.now += seconds

    @precondition(lambda self: self.used.persistent)
    @rule()
    def processes_end_and_others_start(self) -> None:
        self.closed()
        self.open()

    @precondition(lambda self: self.used.lose)
    @rule(data=st.data(), count=st.integers(1, 3))
    def a_tail_is_lost(self, data: st.DataObject, count: int) -> None:
        """What readers hold of it is never continued with other text: `read` says that their position is none."""
        assert self.used.lose is not None
        if (stream := self.some(data, running=True)) and len(stream.frames) >= count:
            self.used.lose(self.log, stream.info.sid, count)
            del stream.frames[-count:]
            stream.checkpoint = None

    @invariant()
    def every_stream_is_as_the_model_has_it(self) -> None:
        for stream in self.streams:
            state = self.run(self.other.state(stream.info.sid))
            assert state.info == stream.info
            assert state.tail == stream.tail
            assert state.first == stream.at(0)
            assert (state.epoch, state.cancelled) == (stream.lease.epoch, stream.cancelled)
            assert state.crashes == stream.crashes
            assert state.sealed is (stream.ended is not None)
            assert state.sealed or state.held is self.held(stream)
            assert state.checkpoint == stream.checkpoint

    @invariant()
    def every_reader_that_can_read_on_holds_a_beginning_of_its_stream(self) -> None:
        for reader in self.readers:
            if isinstance(reader.stream.read(reader.after), list):
                assert reader.got == reader.stream.frames[: len(reader.got)]


def machine_of(make: Callable[[], Store]) -> type[LogMachine]:
    """The machine that plays with stores that `make` makes, a new one for each example."""

    class Machine(LogMachine):
        store = staticmethod(make)

    return Machine


def machine_test(make: Callable[[], Store], *, max_examples: int | None = None) -> Any:
    """A test case that plays it; with fewer examples than the profile's for a store that is slow."""
    case = machine_of(make).TestCase
    if max_examples is not None:
        case.settings = settings(case.settings, max_examples=min(max_examples, case.settings.max_examples))
    return case
