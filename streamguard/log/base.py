"""What a log is: the store of streams that outlive their connections.

A log holds *frames*, never bytes of a carrier: a reader may come back over another one. Whoever generates a stream
holds its *lease* and appends; whoever reads one reads from a cursor, and waits for more. Seven rules hold, whatever
happens to the processes and to the store in between:

L1  `append` succeeds only if the lease's epoch is the log's, `after` is the tail, and the stream is not sealed. Frames
    that already are the tail succeed without effect, so that an append whose outcome is unknown can be repeated.
    It never creates a stream.
L2  A frame is handed to readers only after its append was acknowledged. The terminal frame seals the stream, and is
    appended together with the last content.
L3  A takeover is one compare-and-set of the epoch, on the *store's* clock. Who held the stream before can append no
    more, however long it slept.
L4  Who takes over says from where it goes on (`runtime.takeover`).
L5  A checkpoint is stored with the frames before it, in one step, and with what the dialect needs to go on.
L6  A tail that was there and is gone is never continued: `read` of a cursor beyond the tail raises `LogLost`.
L7  A cancel is recorded for good, and every `state` shows it: nobody goes on with a stream that was cancelled. A log
    lets its lease be taken over all the same, because somebody must seal it. One of a sealed stream is refused, in the
    same step; a terminal that was made before the cancel is known to its producer is stored behind it as it is.

Positions are cursors, and every one is compared in all its parts: sequence, offset and checksum. A cursor of another
stream, or of another history of the same one, fits nowhere.

Every method is a coroutine, may be called from several tasks at once, and may raise `LogUnavailable` when the store is
in trouble: then nothing is known of the outcome, and the call may be repeated. Cancelling a call leaves its outcome
unknown in the same sense. Times are seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol, runtime_checkable

import attrs

from streamguard.core.arguments import number, whole_number
from streamguard.core.cursor import Cursor
from streamguard.core.errors import StreamGuardError
from streamguard.core.frame import Frame, Row, TextFields

__all__ = [
    "MAX_SIGNALS",
    "PAGE",
    "Checkpointed",
    "CursorMisfit",
    "CursorTrimmed",
    "Lease",
    "LeaseHeld",
    "LeaseLost",
    "LogError",
    "LogLost",
    "LogUnavailable",
    "Retention",
    "Signal",
    "SignalKind",
    "StreamExists",
    "StreamInfo",
    "StreamLog",
    "StreamSealed",
    "StreamState",
    "Tail",
    "TextAppend",
    "UnknownStream",
    "follow",
    "tail_of",
    "text_append",
]

PAGE: Final = 512  # frames of one `read`, by default
MAX_SIGNALS: Final = 1024  # of one stream that a log must keep; newer ones say all that older ones did, save a cancel

SignalKind = Literal["cancel", "grant", "read"]

crash: Callable[[str], object] | None = None
"""Called with the name of a step at which a process may die, for tests that let it (`testing.crash`); else None."""


class LogError(StreamGuardError):
    """What a log says no with. Each is about one stream; other streams go on."""


class UnknownStream(LogError):
    """No stream of this name: it never was, its time is over, or it was purged."""

    def __init__(self, sid: str) -> None:
        self.sid = sid
        super().__init__("no such stream: it expired, was purged, or never was here")


class StreamExists(LogError):
    """A stream of this name, or of this idempotency key, is there already: `info` is that one's."""

    def __init__(self, info: StreamInfo) -> None:
        self.info = info
        super().__init__("a stream of this name or idempotency key exists already")


class StreamSealed(LogError):
    """The stream ended; `tail` is its terminal's cursor. Nothing can be appended."""

    def __init__(self, tail: Cursor) -> None:
        self.tail = tail
        super().__init__(f"the stream ended already, as {tail.status!r}")


class LeaseLost(LogError):
    """Somebody else generates this stream now (`epoch` is theirs): stop at once."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        super().__init__("the lease on the stream is lost: another producer took it over")


class LeaseHeld(LogError):
    """The lease cannot be taken: its holder is alive, or another was faster; `epoch` is the log's."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        super().__init__("the lease on the stream is held")


class CursorMisfit(LogError):
    """The position is not one of this stream's; `tail` is where it stands."""

    def __init__(self, tail: Cursor) -> None:
        self.tail = tail
        super().__init__("the cursor is not one of this stream's")


class CursorTrimmed(LogError):
    """The position is older than what is kept; `first` is the oldest that can be read from."""

    def __init__(self, first: Cursor) -> None:
        self.first = first
        super().__init__("the frames after this cursor are not kept any more")


class LogLost(LogError):
    """The position lies beyond the tail: the store lost what it had acknowledged."""

    def __init__(self, tail: Cursor) -> None:
        self.tail = tail
        super().__init__("the log ends before this cursor: it lost frames that it had acknowledged")


class LogUnavailable(LogError):
    """The store cannot be reached, or refuses; nothing is known of the outcome."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(f"the log is unavailable: {why}")


@attrs.frozen
class StreamInfo:
    """What is fixed when a stream starts.

    `sid` is its name, `dialect` its dialect's; `principal` is who started it (None: anybody who knows the sid),
    `name` the application's own name for it (a chat id), `key` an idempotency key in its scope, `fingerprint` what was
    asked for under that key, `options` whatever the application needs to go on with it, as JSON has it.
    """

    sid: str
    dialect: str = "native"
    principal: str | None = None
    name: str | None = None
    key: str | None = None
    fingerprint: str | None = None
    options: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen
class Lease:
    """The right to append to one stream: `epoch` grows by one at each takeover. `ttl` is how long it holds."""

    sid: str
    epoch: int
    ttl: float


@attrs.frozen
class Checkpointed:
    """Where a source said that it could go on: the tail then, and its state, as bytes."""

    at: Cursor
    state: bytes


@attrs.frozen
class Signal:
    """Something that a reader tells the producer; numbers grow, from 1."""

    number: int
    kind: SignalKind
    payload: bytes = b""


@attrs.frozen
class StreamState:
    """A stream as the log has it.

    `tail` is the last frame's cursor, with the terminal's status once the stream is sealed; `first` the oldest position
    that can be read from; `epoch` the newest lease's, `held` whether that still holds on the store's clock;
    `cancelled` whether a cancel was recorded; `age` how long ago it was created; `crashes` how many of its producers
    were lost: leases that ran out and were taken over. A lease that its holder released is none of them.
    """

    info: StreamInfo
    tail: Cursor
    first: Cursor
    epoch: int
    held: bool
    cancelled: bool
    age: float
    checkpoint: Checkpointed | None = None
    crashes: int = 0

    @property
    def sealed(self) -> bool:
        return self.tail.status is not None


@attrs.frozen(kw_only=True)
class Retention:
    """How much is kept of what.

    `after_end`: seconds that a sealed stream can still be read. `unsealed`: seconds without an append after which a
    stream whose lease ended is given up. `max_bytes`: of one stream; older frames are trimmed above it, those of a
    stream that is sealed too. Raises TypeError for a limit that is no number, or for bytes that are not whole,
    ValueError for one that is not above zero.
    """

    after_end: float = attrs.field(default=600.0, validator=number(above=0))
    unsealed: float = attrs.field(default=3600.0, validator=number(above=0))
    max_bytes: int = attrs.field(default=64 * 1024 * 1024, validator=whole_number)


def tail_of(after: Cursor, frames: Sequence[Frame]) -> Cursor:
    """The tail once `frames` are appended at `after`; without frames `after` itself, whose status is dropped.

    Raises ValueError for frames that are not numbered on from `after`, and for a status before the last: no reader
    would take them, and what was stored cannot be taken back. Data and checksums are the encoder's.
    """
    sid, seq, offset, crc, _ = after
    if not frames:
        return Cursor(sid, seq, offset, crc)
    last = frames[-1]
    if last.seq == seq + 1 and last.offset == offset + len(last.data) and len(frames) == 1:  # a token
        return _new(Cursor, (sid, last.seq, last.offset, last.crc, last.status))
    for frame in frames:
        seq += 1
        offset += len(frame.data)
        if frame.seq != seq or frame.offset != offset or (frame.status is not None and frame is not last):
            raise ValueError(f"frame {frame.seq} at {frame.offset} (status {frame.status!r}) does not stand there")
    return Cursor(sid, last.seq, last.offset, last.crc, last.status)


_new: Final = tuple.__new__  # what a NamedTuple's own does, after a call of a Python function


@runtime_checkable
class StreamLog(Protocol):
    """One store. See the module's docstring for what holds of every method."""

    async def create(self, info: StreamInfo, ttl: float) -> Lease:
        """Make a stream at cursor zero, with its first lease (epoch 1).

        One step: of two calls with one sid, or with one `key` whose stream is not `failed` or `cancelled`, one
        succeeds, the other raises StreamExists with the winner's info.
        """
        ...

    async def append(
        self, lease: Lease, after: Cursor, frames: Sequence[Frame], *, checkpoint: bytes | None = None
    ) -> Cursor:
        """Store `frames` behind `after`, and with them the `checkpoint`; the new tail, which it is safe to send up to.

        Renews the lease. A frame with a status must be the last one, and seals. Without frames only a checkpoint is
        stored. Raises, in this order, UnknownStream, LeaseLost, StreamSealed (unless the frames are the tail already),
        CursorMisfit; frames of which only some are stored do not fit. Raises ValueError for frames that do not follow
        `after` (`tail_of`), at any point, and stores nothing then.
        """
        ...

    async def read(self, after: Cursor, *, limit: int = PAGE) -> list[Frame]:
        """The stored frames behind `after`, in order, at most `limit`; empty at the tail.

        A status in `after` is not compared. Raises UnknownStream, LogLost, CursorTrimmed, CursorMisfit.
        """
        ...

    async def wait(self, after: Cursor, timeout: float) -> bool:
        """Wait until `read(after)` would not be empty, or the stream is sealed or gone; False once `timeout` passed.

        True at once where `read(after)` would raise: a position that is none is never waited for.
        """
        ...

    async def state(self, sid: str) -> StreamState:
        """The stream as it is now. Raises UnknownStream."""
        ...

    async def renew(self, lease: Lease) -> None:
        """Hold the lease for its `ttl` from now. Raises UnknownStream, LeaseLost, StreamSealed."""
        ...

    async def release(self, lease: Lease) -> None:
        """Let the lease go, so that another need not wait for its end, and whose takeover is none after a crash. No
        error where it is lost already."""
        ...

    async def take_over(self, sid: str, epoch: int, ttl: float) -> Lease:
        """The lease with epoch + 1, in one step: only if `epoch` is the log's and does not hold any more.

        Where that ran out, and was not released, `crashes` grows by one in the same step. Raises UnknownStream,
        StreamSealed, LeaseHeld.
        """
        ...

    async def signal(self, sid: str, kind: SignalKind, payload: bytes = b"") -> None:
        """Tell the producer something, wherever it runs. `cancel` is recorded for good. Raises UnknownStream,
        and StreamSealed for a cancel of a stream that ended, however it did.

        `grant` is flow control, `read` says that somebody reads the stream at another process. Of those two a log keeps
        the newest MAX_SIGNALS of a stream, or more.
        """
        ...

    async def signals(self, sid: str, after: int, timeout: float) -> list[Signal]:
        """The signals with a number above `after`; waits for one up to `timeout`. Raises UnknownStream."""
        ...

    async def find(self, name: str, principal: str | None) -> StreamInfo | None:
        """The newest stream of that name and principal, if any is kept."""
        ...

    async def find_key(self, key: str) -> StreamInfo | None:
        """The stream that holds an idempotency key, if any does."""
        ...

    async def purge(self, *, sid: str | None = None, principal: str | None = None) -> int:
        """Forget a stream, or all of a principal's, leaving no byte of their text; how many. Readers see it gone."""
        ...

    async def sweep(self, limit: int = 100) -> int:
        """Forget what retention says, at most `limit` streams; how many. Called now and then by whoever serves."""
        ...

    async def aclose(self) -> None:
        """Let go of files and connections. Stored streams stay."""
        ...


class Tail(Protocol):
    """A reader at the tail of a stream, for a log that has its frames at hand."""

    async def next(self, seconds: float) -> list[Row]:
        """The frames behind those that it has given, in order, as rows; PAGE of them at most. Waits up to `seconds` for
        the first; empty once they have passed, and at the end of a sealed stream. Raises as `read` does."""
        ...


def follow(log: StreamLog, after: Cursor) -> Tail | None:
    """A reader from `after` on, where the log has a shorter way than to read and to wait; else None.

    A log may have a method `follow(after)` for it. Raises as `read` does.
    """
    method: Callable[[Cursor], Tail | None] | None = getattr(log, "follow", None)
    return None if method is None else method(after)


TextAppend = Callable[[Lease, Cursor, TextFields], "Cursor | None"]
"""`append` of one frame of text, done at once; None for whatever is not the plain case, in which nothing was done."""


def text_append(log: StreamLog) -> TextAppend | None:
    """A shorter way to append a text, where the log has one: a log may have a method `text_append()` for it."""
    method: Callable[[], TextAppend | None] | None = getattr(log, "text_append", None)
    return None if method is None else method()
