"""What the observers of one part of a stream are told, and when.

The driver, its clock and its ending call one object here at the places where something happens, none of which is on a
token's way. `UNSEEN` is that object where nobody observes: each of its methods does nothing. How many tokens came is
read from what the stage counts anyway, at most once in a second, when the clock of the stream wakes, and at the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import attrs

from streamguard.core.codes import recorded
from streamguard.core.cursor import Cursor
from streamguard.core.errors import Failure
from streamguard.observe.hooks import (
    AbortNotCarried,
    Acknowledged,
    Blocked,
    Closed,
    Counts,
    FirstFrame,
    Frames,
    Observers,
    Opened,
    Outcome,
    Part,
    ReaderGone,
    RequestLabels,
    Resumed,
    Sampled,
    SourceClosed,
    Stalled,
    StreamDetails,
    TakenOver,
    Terminal,
)
from streamguard.observe.stream import Leg
from streamguard.runtime.pressure import LoopMeter, loop_meter
from streamguard.runtime.sink import Sink, Stage
from streamguard.runtime.source import TokenSource
from streamguard.runtime.timed import TimedSink, TimedStage, TokenTimer
from streamguard.runtime.wakeup import in_loop

__all__ = ["NO_LABELS", "UNSEEN", "Seen", "Unseen", "labels_of", "seen_by", "tell_sealed"]

_OFTEN: Final = 1.0  # seconds between two events that tell how many tokens came

NO_LABELS: Final = RequestLabels()


class Unseen:
    """Of a stream that nobody observes. Of one in a log `latency` answers how long the newest append took, `missing`
    how many frames the log does not have, and `own` makes an Outcome that of this process's part."""

    latency: Callable[[], float | None]
    missing: Callable[[], int]
    own: Callable[[Outcome], Outcome]

    timer: TokenTimer | None = None  # of one whose tokens are sampled

    def timed(self, stage: Stage[Any], sink: Sink[Any] | None) -> tuple[Any, Any]:
        """What the driver is to drive, and where to; None where that is who asks it."""
        return stage, sink

    def opened(self) -> None:
        """It begins."""

    def entered(self, source: TokenSource, *, task: bool = True) -> None:
        """The source is about to begin; in this `task`, or in its own context only."""

    def parks(self, since: Callable[[], float | None]) -> None:
        """Where to ask since when the driver waits for its source."""

    def attended(self, now: float) -> bool:
        """The driver has an item in hand. False as long as the next one is wanted too."""
        return True

    def progress(self, now: float) -> None:
        """The clock woke."""

    def blocked(self, by: Literal["transport", "credit", "lead"], seconds: float) -> None:
        """Something waited for the reader."""

    def stalled(self, silent: float) -> None:
        """The source was silent for too long."""

    def terminal(self, now: float) -> None:
        """The last words were made."""

    def source_closed(self, since: float, *, abandoned: bool) -> None:
        """The source, which was told to close `since`, has; or was left."""

    def follows(self, producer: Unseen | None, *, credit: bool) -> None:
        """It is a reader, which gives `credit`, perhaps, of a stream that `producer` is told of; None: not here."""

    def resumed(self, frame: int, replayed: int | None) -> None:
        """It is a reader that came back."""

    def taken_over(self, frame: int, lease: int, crashes: int) -> None:
        """It goes on with a stream whose process is gone."""

    def acknowledged(self, frame: int, rtt: float | None) -> None:
        """The reader has all up to here."""

    def closed(self, outcome: Outcome, *, aborted: bool) -> None:
        """It is over."""


UNSEEN: Final = Unseen()


class Seen(Unseen):
    """Of one part of a stream, whose stage is `stage`."""

    def __init__(
        self,
        observers: Observers,
        stage: Stage[Any],
        clock: Callable[[], float],
        labels: RequestLabels = NO_LABELS,
        hop: str | None = None,
        origin: str | None = None,
    ) -> None:
        part: Part | Literal[""] = getattr(stage, "part", "")
        cursor = stage.cursor
        self.latency = lambda: None
        self.missing = lambda: 0
        self.own = lambda outcome: outcome
        self._tell: Callable[[Any], None] = observers.tell
        self._enter, self._trace_of = observers.enter, observers.trace_of
        self._stage = stage
        self._inner: Any = getattr(stage, "inner", stage)
        self._clock = clock
        self._began = now = clock()
        self._counted = 0, cursor.seq, cursor.offset, stage.sent
        self._from, self._offset = cursor.seq, cursor.offset
        self._framed = not getattr(stage, "unframed", False)
        self._told = now  # when it was told how many came
        self._first = self._abandoned = False
        self._before: list[Resumed | TakenOver] | None = []  # what is told once it is open; None from then on
        self._meter: LoopMeter | None = None
        self._since: Callable[[], float | None] = lambda: None
        self.stream = StreamDetails(part or "direct", cursor.sid[:8], labels, now, time.time(), hop, origin)
        if observers.every:
            self.timer = TokenTimer(observers.every, self.stream.part, clock, self._sampled)
            self.timer.position = lambda: stage.cursor.seq

    def timed(self, stage: Stage[Any], sink: Sink[Any] | None) -> tuple[Any, Any]:
        timer = self.timer
        if timer is None:
            return stage, sink
        return TimedStage(stage, timer), None if sink is None else TimedSink(sink, timer)

    def _sampled(self, legs: Mapping[Leg, float]) -> None:
        self._tell(Sampled(self.stream, self._clock(), legs))

    def entered(self, source: TokenSource, *, task: bool = True) -> None:
        if task:
            self._enter(self.stream, None)
        self._enter(self.stream, source.context)
        if self.timer is not None and task:
            source.on_buffer = self.timer.buffered

    def opened(self) -> None:
        if in_loop():
            self._meter = loop_meter(self._clock)
        self._tell(Opened(self.stream, self._began, self._far))
        before, self._before = self._before or [], None
        for event in before:
            self._tell(event)
        self._lag(self._began)  # asks for the first reading

    def parks(self, since: Callable[[], float | None]) -> None:
        self._since = since

    def _far(self) -> Counts:
        """How far it is, for whoever asks."""
        cursor, since = self._stage.cursor, self._since()
        waits = None if since is None else max(0.0, self._clock() - since)
        return Counts(self._stage.items, max(0, self._made), cursor.offset - self._offset, self._stage.sent, waits)

    def attended(self, now: float) -> bool:
        if not self._first and (self._made > 0 if self._framed else self._stage.items > 0):
            self._first = True
            self._lag(now)
            self._tell(FirstFrame(self.stream, now, now - self._began))
        return self._first

    @property
    def _made(self) -> int:
        """Frames with content so far."""
        return self._stage.cursor.seq - self._from - (self._stage.status is not None)

    def progress(self, now: float) -> None:
        if now - self._told >= _OFTEN:
            self.attended(now)
            self._count(now)

    def _count(self, now: float) -> None:
        self._told = now
        cursor = self._stage.cursor
        before, self._counted = self._counted, (self._stage.items, cursor.seq, cursor.offset, self._stage.sent)
        items, frames, size, sent = (max(0, new - old) for new, old in zip(self._counted, before, strict=True))
        if items or frames or sent:
            self._tell(Frames(self.stream, now, items, frames, size, sent, self._lag(now), self.latency()))

    def _lag(self, now: float) -> float | None:
        return None if self._meter is None else self._meter.look(now).lag

    def blocked(self, by: Literal["transport", "credit", "lead"], seconds: float) -> None:
        if by == "lead" and self.timer is not None:
            self.timer.excused += seconds  # an append waits for it, too
        elif by == "credit" and self.timer is not None:
            self.timer.granted(seconds)
        self._tell(Blocked(self.stream, self._clock(), by, seconds))

    def stalled(self, silent: float) -> None:
        self._tell(Stalled(self.stream, self._clock(), silent))

    def terminal(self, now: float) -> None:
        self.attended(now)
        if self._stage.status is not None:
            failure = self._stage.ending.failure
            cause = "" if failure is None else recorded(failure.code)
            self._tell(Terminal(self.stream, now, self._stage.status, cause))

    def source_closed(self, since: float, *, abandoned: bool) -> None:
        if self.stream.part != "reader" and not self._abandoned:  # whose source is the log
            self._abandoned = abandoned
            now = self._clock()
            self._tell(SourceClosed(self.stream, now, now - since, abandoned))

    def follows(self, producer: Unseen | None, *, credit: bool) -> None:
        if self.timer is not None:
            there = None if producer is None else producer.timer
            self.timer.follow(None if there is None else there.marks, credit=credit)

    def resumed(self, frame: int, replayed: int | None) -> None:
        self._begin(Resumed(self.stream, self._clock(), frame, replayed))

    def taken_over(self, frame: int, lease: int, crashes: int) -> None:
        self._begin(TakenOver(self.stream, self._clock(), frame, lease, crashes, True))

    def _begin(self, event: Resumed | TakenOver) -> None:
        if self._before is None:
            self._tell(event)
        else:
            self._before.append(event)

    def acknowledged(self, frame: int, rtt: float | None) -> None:
        self._tell(Acknowledged(self.stream, self._clock(), frame, rtt))

    def closed(self, outcome: Outcome, *, aborted: bool) -> None:
        now, stream = self._clock(), self.stream
        outcome = self._parted(outcome) if stream.part == "reader" else self.own(outcome)
        self._count(now)
        if outcome.abandoned and not self._abandoned:
            self.source_closed(now, abandoned=True)
        if outcome.status in ("gone", "slow", "parted"):
            self._tell(ReaderGone(stream, now, recorded(outcome.failure.code if outcome.failure else outcome.status)))
        elif aborted and stream.hop is not None:
            self._tell(AbortNotCarried(stream, now, stream.hop))
        lost = getattr(self._inner, "lost", 0) + self.missing()
        trace = self._trace_of(stream)  # before any is told, since who knows it forgets it then
        self._tell(Closed(stream, now, outcome, lost, self._lag(now), self.latency(), trace))
        self._since = lambda: None  # else driver and observer would keep each other
        self._tell = _told  # a source that was abandoned may still close, and an acknowledgement come

    def _parted(self, outcome: Outcome) -> Outcome:
        """That of a connection which ended before its stream: no end of the stream's has that status."""
        if self._stage.status is not None:
            return outcome
        failure = outcome.failure or Failure(self._inner.parting, "the connection ended before its stream")
        return attrs.evolve(outcome, status="parted", failure=failure)


def _told(event: Any) -> None:
    """Nothing more is told."""


def seen_by(
    observers: Observers | None,
    stage: Stage[Any],
    clock: Callable[[], float],
    labels: RequestLabels = NO_LABELS,
    hop: str | None = None,
    origin: str | None = None,
) -> Unseen:
    """What a driver tells: UNSEEN where nobody observes."""
    return UNSEEN if observers is None else Seen(observers, stage, clock, labels, hop, origin)


def tell_sealed(
    observers: Observers | None, tail: Cursor, lease: int, crashes: int, origin: str | None = None
) -> None:
    """A stream whose process is gone was given its end behind `tail`: nobody goes on with it."""
    if observers is not None:
        now = time.monotonic()
        details = StreamDetails("producer", tail.sid[:8], NO_LABELS, now, time.time(), origin=origin)
        observers.tell(TakenOver(details, now, tail.seq, lease, crashes, False))


def labels_of(headers: Mapping[str, str], route: str | None = None, path: str | None = None) -> RequestLabels:
    """What a request is called, by its headers, whose names are lower-case."""
    said = headers.get
    return RequestLabels(said("x-request-id"), said("traceparent"), route, said("tracestate"), path)
