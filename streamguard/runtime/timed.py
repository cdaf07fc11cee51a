"""Times one token in so many on its way to the reader: where it waited, and for how long.

Nothing of this is on the way of a stream whose observers want no samples. Where they do, the stage and the sink of its
driver are wrapped, and so is `put` of the buffer that a source with a thread has; each wrapper reads the clock for the
tokens that are sampled, and for those before them, whose end is when the driver was free for the next.

The seconds of a token are parts of one way, so that none is counted twice. A source that is ahead of the network has
tokens in its buffer because of the write that the driver is in, and that time is the write's.

What a policy lets go of is taken for all that it held: of a token that is cut in two, the first part counts.

A reader of a log is given pages, and what it samples are those with a frame that the producer sampled: then it is known
when the log had it. Where another process generates the stream that is not known, and one page in so many is sampled.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

import attrs

from streamguard.core.frame import place_of
from streamguard.core.items import Item
from streamguard.observe.hooks import Part
from streamguard.observe.stream import Leg
from streamguard.runtime.buffer import HandOver
from streamguard.runtime.sink import Sink, Stage

__all__ = ["Appended", "TimedSink", "TimedStage", "TokenTimer"]

T = TypeVar("T", bytes, list[Any])

_MARKS: Final = 256  # sampled frames of which it is kept when the log had them
_WRITE: Final[Mapping[Part, Leg]] = {"producer": "appended"}  # else `sent`


@attrs.define
class Appended:
    """A frame that was sampled, and since when the log has it."""

    seq: int
    at: float = math.inf


@attrs.define
class _Token:
    legs: dict[Leg, float]
    since: float  # when it came to where it is


class TokenTimer:
    """One part's. `tell` is given each way, as legs and their seconds. `excused` is how long the write that is under
    way waited for something else than its own work."""

    def __init__(
        self, every: int, part: Part, clock: Callable[[], float], tell: Callable[[Mapping[Leg, float]], object]
    ) -> None:
        self.excused = 0.0
        self.armed = False  # the next one may be sampled: when the driver is free for it is to be known
        self.leaving: list[_Token] = []  # in what was made, and not written
        self._held: list[_Token] = []  # in the flush policy
        self._every = every
        self._part = part
        self._write: Leg = _WRITE.get(part, "sent")
        self.clock = clock
        self._tell = tell
        self._free = clock()
        self._items = 0
        self._buffer: HandOver | None = None
        self.marks: deque[Appended] = deque(maxlen=_MARKS)  # of a producer, in their order
        self.position: Callable[[], int] = _nowhere  # of a producer: its newest frame
        self._follows = False  # it is a reader
        self._from: deque[Appended] | None = None  # the producer's marks, where it is here
        self._gives_credit = False
        self._waited = 0.0  # for credit, since the last page
        self._put: deque[tuple[int, float]] = deque()  # which of the buffer's items are sampled, and when they were put

    def buffered(self, buffer: HandOver) -> None:
        """The source puts its items here, from a thread of its own perhaps."""
        put, clock, every, stamps = buffer.put, self.clock, self._every, self._put
        count = 0

        def noted(item: Item) -> bool:
            nonlocal count
            count += 1
            if count % every == 0 and count > 1:  # the first one's is the time to the first token, which is another
                stamps.append((count, clock()))  # before it can be taken
            return put(item)

        self._buffer = buffer
        buffer.put = noted  # type: ignore[method-assign]

    def follow(self, marks: deque[Appended] | None, *, credit: bool) -> None:
        """It is a reader's; of a stream that is generated here `marks` are its producer's."""
        self._follows, self._from, self._gives_credit = True, marks, credit

    def granted(self, seconds: float) -> None:
        """The reader gave credit, for which the next page waited."""
        self._waited += seconds

    def looks(self) -> bool:
        """Whether the next item is to be looked at. To be asked once for each."""
        if self._buffer is not None or self._follows:
            self.armed = True
            return True
        self._items += 1
        place = self._items % self._every
        self.armed = place == self._every - 1
        return place == 0 or self.armed or bool(self._held)

    def taken(self, now: float, item: Any) -> _Token | None:
        """The item that the driver took at `now`, if it is sampled."""
        if self._follows:
            return self._page(now, item)
        put = now
        if self._buffer is not None:
            if not self._put or self._put[0][0] > self._buffer.taken:
                return None
            _, put = self._put.popleft()
            while self._put and self._put[0][0] <= self._buffer.taken:  # all that waited comes as one piece
                self._put.popleft()
        elif self._items % self._every or self._items == 1:
            return None
        legs: dict[Leg, float] = {}
        if self._part != "reader":  # whose source is the log, which waits for another
            legs["generated"] = max(0.0, put - self._free)
            if self._buffer is not None:
                legs["buffered"] = max(0.0, now - max(put, self._free))
            legs["held"] = 0.0
        legs["encoded"] = 0.0
        return _Token(legs, now)

    def _page(self, now: float, page: Sequence[Any]) -> _Token | None:
        """The same of what a reader is given."""
        self._items += 1
        waited, self._waited = self._waited, 0.0
        if self._items == 1 or (self._from is None and self._items % self._every):
            return None
        legs: dict[Leg, float] = {}
        if self._from is not None:
            first, last = place_of(page[0])[0], place_of(page[-1])[0]
            mark = next((each for each in self._from if each.seq >= first), None)  # the one that waited longest
            if mark is None or mark.seq > last:
                return None
            # Where the append has not returned, as that of a log elsewhere, the frame is here at once.
            legs["read"] = max(0.0, now - max(self._free, min(mark.at, now)) - waited)
        if self._gives_credit:
            legs["credit"] = waited
        legs["encoded"] = 0.0
        return _Token(legs, now)

    def made(self, out: object, began: float, token: _Token | None = None) -> None:
        """The stage was called at `began`, with `token` or for another, and made `out`."""
        self._free = now = self.clock()
        if token is not None:
            token.since = began
            self._held.append(token)
        if out:
            for each in self._held:
                if "held" in each.legs:
                    each.legs["held"] = began - each.since
                each.legs["encoded"] += now - began
            self.leaving += self._held
            self._held = []
        elif token is not None:
            token.legs["encoded"] = now - began
            token.since = now

    @property
    def holds(self) -> bool:
        """Whether a sampled token waits in the flush policy."""
        return bool(self._held)

    def asked(self, following: Callable[[float | None], Item]) -> Callable[[float | None], Item]:
        """`following`, which a driver without a sink asks for its next item, once the last one is written."""

        def noted(timeout: float | None) -> Item:
            self.written(self._free)
            return following(timeout)

        return noted

    def written(self, began: float) -> None:
        """The write that began then is over."""
        self._free = now = self.clock()
        tokens, self.leaving = self.leaving, []
        for token in tokens:
            token.legs[self._write] = max(0.0, now - began - self.excused)
            self._tell(token.legs)

    async def write(self, write: Awaitable[None]) -> None:
        """Await a write."""
        self.excused, began = 0.0, self.clock()
        mark = Appended(self.position()) if self.leaving and self._write == "appended" else None
        if mark is not None:
            self.marks.append(mark)  # now: a log elsewhere may give a reader the frame before the append returns
        await write
        self.written(began)
        if mark is not None:
            mark.at = self._free - self.excused


class TimedStage(Generic[T]):
    """A stage, timed; in all else it is `stage`."""

    def __init__(self, stage: Stage[T], timer: TokenTimer) -> None:
        self._stage: Stage[T] = stage
        self._timer = timer
        self._push: Callable[[Item, float], T] = stage.push

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage, name)

    def push(self, item: Item, now: float) -> T:
        timer = self._timer
        if not timer.looks():
            return self._push(item, now)
        token, began = timer.taken(now, item), timer.clock()
        out = self._push(item, now)
        timer.made(out, began, token)
        return out

    def tick(self, now: float) -> T:
        return self._last(self._stage.tick, now)

    def finish(self, now: float) -> T:
        return self._last(self._stage.finish, now)

    def _last(self, call: Callable[[float], T], now: float) -> T:
        """What makes something of what is held, without an item."""
        timer = self._timer
        if not timer.holds:
            return call(now)
        began = timer.clock()
        out = call(now)
        timer.made(out, began)
        return out


class TimedSink(Generic[T]):
    """A sink, timed; in all else it is `sink`."""

    def __init__(self, sink: Sink[T], timer: TokenTimer) -> None:
        self._sink: Sink[T] = sink
        self._timer = timer
        self._send: Callable[[T], Awaitable[None]] = sink.send

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def send(self, data: T) -> Awaitable[None]:
        timer = self._timer
        return timer.write(self._send(data)) if timer.leaving or timer.armed else self._send(data)


def _nowhere() -> int:
    return 0
