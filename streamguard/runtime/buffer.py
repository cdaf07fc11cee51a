"""The hand-over buffer: a producer anywhere, a consumer on an event loop, and no lock between them.

Single producer, single consumer. `put` never waits: it appends to a deque and, if the consumer sleeps, wakes
it, so that a burst of tokens costs one wake-up. The consumer takes all the text that is there as one piece: a
connection that cannot keep up gets larger frames rather than later ones, and the first token after an empty
buffer leaves at once.

Each side owns its counters (`_put…`, `_taken…`) and only reads the other's. Sleeping is an entry and a second
look: the sleeper says that it sleeps, looks again, and sleeps only if there is still nothing; the other side
acts first and looks for sleepers second. Whichever order the interpreter picks, one of the two sees the other.

The buffer is bounded in items and in bytes. At its size the *producer* waits (`wait_for_room`, `room_made`),
and goes on when half of it is free. What waits is at most the bound and one item, and so is a joined piece.

The size moves between two bounds, with what the reader takes: to about as much as it takes in a second. A slow
reader should be given what is new, not what was, and nobody's memory should hold an answer that waits for the
network; a quick one should never wait for the producer to be woken. Only a reader that is behind says what it
takes, so the size moves where the producer waits, and costs nothing where it does not.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

import anyio
import attrs

from streamguard.core.arguments import whole_number
from streamguard.core.items import Block, Checkpoint, Event, Finish, Item, Joined
from streamguard.runtime.wakeup import LoopCaller

__all__ = ["Buffer", "HandOver", "next_size", "size_of"]


def _below(instance: Any, attribute: attrs.Attribute[Any], value: int) -> None:
    whole_number(instance, attribute, value)
    name = attribute.name.replace("min", "max")
    most = getattr(instance, name)
    if value > most:
        raise ValueError(f"{attribute.name} is at most {name}, which is {most}, not {value}")


def _eighth(name: str) -> Any:
    """The default of a lower bound: an eighth of the upper one called `name`."""

    def default(instance: Any) -> int:
        most = getattr(instance, name)
        return max(1, most // 8) if isinstance(most, int) else 1  # what is none is refused by its own name

    return attrs.Factory(default, takes_self=True)


@attrs.frozen
class Buffer:
    """The bounds of a hand-over buffer: `max_items`, and `max_bytes` of text and data in them, each at least 1.

    Between them and `min_items` and `min_bytes` (an eighth, if not given) its size moves with what the reader takes.
    Raises TypeError for what is no int, ValueError for one below 1, and for a `min` above its `max`.
    """

    max_items: int = attrs.field(default=1024, validator=whole_number)
    max_bytes: int = attrs.field(default=256 * 1024, validator=whole_number)
    min_items: int = attrs.field(default=_eighth("max_items"), validator=_below, kw_only=True)
    min_bytes: int = attrs.field(default=_eighth("max_bytes"), validator=_below, kw_only=True)


def next_size(size: int, taken: int, seconds: float, least: int, most: int) -> int:
    """The size that follows `size` where the reader took `taken`, of the same unit, in so many seconds: as much as it
    takes in one, by half or double at once, from `least` to `most`."""
    wanted = int(taken / seconds) if seconds > 0 else most
    return max(least, min(most, max(size // 2, min(2 * size, wanted))))


_END: Final = object()


class HandOver:
    """Can be made anywhere. The producer calls `put`, `end` and waits for room; the consumer, in one task of an
    event loop, calls `take` and `close`.

    What waits in the queue is text, or a pair of size and item: an item that is mutable may weigh something
    else when it is taken.
    """

    def __init__(self, bounds: Buffer, clock: Callable[[], float] = time.monotonic) -> None:
        self.closed = False  # nobody takes any more
        self.idle = False  # the consumer sleeps, or is about to
        self._bounds = bounds
        self._clock = clock
        self._size_items, self._size_bytes = bounds.max_items, bounds.max_bytes  # written by the consumer
        self._behind: tuple[float, int, int] | None = None  # since when the reader is, and what was taken by then
        self._queue: deque[Any] = deque()
        self._append = self._queue.append
        self._put = self._put_bytes = 0
        self._taken = self._taken_bytes = 0
        # Below these counts there is room whatever was taken since they were set: a producer need not look.
        self._look_items, self._look_bytes = bounds.max_items, bounds.max_bytes
        self._sleepers: deque[Callable[[], object]] = deque()  # wake a producer that sleeps, or is about to
        self._ready: anyio.Event | None = None
        self._call: LoopCaller | None = None  # into the consumer's loop
        self._failure: BaseException | None = None

    # ---- the producer's side ------------------------------------------------------------------

    def put(self, item: Item) -> bool:
        """Hand over one item; never waits. False if the producer must wait for room, or nobody takes any more."""
        # Counted before it can be taken: else what waits could be below nothing.
        self._put = count = self._put + 1
        if type(item) is str:
            self._put_bytes = size = self._put_bytes + (len(item) if item.isascii() else len(item) * 4)
            self._append(item)
        else:
            own = size_of(item)
            self._put_bytes = size = self._put_bytes + own
            self._append((own, item))
        if self.idle:
            self._wake()
        return (count < self._look_items and size < self._look_bytes) or self._look()

    def end(self, failure: BaseException | None = None) -> None:
        """Say that nothing follows; `failure` is raised at the consumer after the last item.

        One that would mean something else there is told as a RuntimeError: a thread's SystemExit must not stop
        the server, a stray StopAsyncIteration must not pass for the end of the answer.
        """
        if failure is not None and (
            not isinstance(failure, Exception) or isinstance(failure, (StopIteration, StopAsyncIteration))
        ):
            cause, failure = failure, RuntimeError(f"the source raised {type(failure).__name__}")
            failure.__cause__ = cause
        self._failure = failure
        self._queue.append(_END)
        if self.idle:
            self._wake()

    def _look(self) -> bool:
        """Whether there is room, from what was taken by now."""
        items, size = self._taken + self._size_items, self._taken_bytes + self._size_bytes
        self._look_items, self._look_bytes = items, size
        if self.closed:  # asked after the line above, which may have undone what `close` wrote
            self._look_items = -1
            return False
        return self._put < items and self._put_bytes < size

    @property
    def room(self) -> bool:
        """Whether the producer may put more without waiting."""
        items, size = self.waiting
        return items < self._size_items and size < self._size_bytes

    @property
    def size(self) -> tuple[int, int]:
        """Items and bytes that may wait now: within the bounds, and moving."""
        return self._size_items, self._size_bytes

    @property
    def taken(self) -> int:
        """Items that were put and taken."""
        return self._taken

    @property
    def waiting(self) -> tuple[int, int]:
        """Items and bytes that were put and not taken."""
        return self._put - self._taken, self._put_bytes - self._taken_bytes

    def wait_for_room(self) -> bool:
        """Wait, in a thread that runs no loop, until half of the buffer is free. False: nobody takes any more."""
        while not (self.room or self.closed):
            woken = threading.Event()
            self._sleepers.append(woken.set)
            if not (self.room or self.closed):
                woken.wait()
        return not self.closed

    async def room_made(self) -> bool:
        """The same for a producer that is a task, of the consumer's loop or of another one."""
        while not (self.room or self.closed):
            woken, call = anyio.Event(), LoopCaller()
            self._sleepers.append(lambda call=call, woken=woken: call(woken.set))  # type: ignore[misc]
            if not (self.room or self.closed):
                await woken.wait()
        return not self.closed

    # ---- the consumer's side ------------------------------------------------------------------

    async def take(self) -> Item:
        """All the text that is there as one piece, or the next item that is not text.

        Raises StopAsyncIteration after the last one or after `close`, or, once, the failure that the producer
        ended with. A call that is cancelled has taken nothing.
        """
        while not self._queue:
            await self._sleep()
        return self._pop()

    def _pop(self) -> Item:
        """What `take` gives, and raises, where something is there."""
        queue = self._queue
        if self.closed:
            raise StopAsyncIteration
        if self._sleepers:
            self._resize()
        first = queue.popleft()
        if type(first) is str:
            item = self._text(first) if queue else self._one(first)
        elif first is _END:
            queue.append(_END)  # for whoever asks again
            failure, self._failure = self._failure, None
            raise StopAsyncIteration if failure is None else failure
        else:
            size, item = first
            self._taken_bytes += size
            self._taken += 1
        if self._sleepers and self._half_free():
            self._wake_producers()
        return item

    def close(self) -> None:
        """Nobody takes any more: what waits is dropped, a producer that waits goes on, the next `put` says so."""
        self.closed = True
        self._look_items = -1
        self._queue.clear()
        self._queue.append(_END)  # for one that waits in `take`
        if self.idle:
            self._wake()
        self._wake_producers()

    def _resize(self) -> None:
        """The producer waits for the reader: move the size to what that took since it was so the last time."""
        now, bounds, since = self._clock(), self._bounds, self._behind
        self._behind = (now, self._taken, self._taken_bytes)
        if since is not None:
            seconds, items, data = now - since[0], self._taken - since[1], self._taken_bytes - since[2]
            self._size_items = next_size(self._size_items, items, seconds, bounds.min_items, bounds.max_items)
            self._size_bytes = next_size(self._size_bytes, data, seconds, bounds.min_bytes, bounds.max_bytes)

    async def _sleep(self) -> None:
        self._behind = None  # there is nothing to take: how long that lasts says nothing of the reader
        if self._call is None:
            self._call = LoopCaller()
        self._ready = ready = anyio.Event()
        self.idle = True
        if self._queue:
            self.idle = False
            return
        await ready.wait()

    def _wake(self) -> None:
        """Wake the consumer, once: whoever puts until it has woken finds it awake."""
        self.idle = False
        assert self._call is not None  # it slept
        self._call(self._awake)

    def _awake(self) -> None:
        # Read here, on the consumer's loop: it may have looked again meanwhile, and sleep on another event.
        assert self._ready is not None
        self._ready.set()

    def _wake_producers(self) -> None:
        while self._sleepers:
            self._sleepers.popleft()()

    def _one(self, text: str) -> str:
        self._taken_bytes += len(text) if text.isascii() else len(text) * 4
        self._taken += 1
        return text

    def _text(self, first: str) -> str:
        """`first` and the text after it that is there now; what is put meanwhile is for the next call."""
        queue = self._queue
        pieces = [first]
        popleft, append = queue.popleft, pieces.append
        for _ in range(len(queue)):
            piece = popleft()
            if type(piece) is not str:
                queue.appendleft(piece)
                break
            append(piece)
        if len(pieces) == 1:
            return self._one(first)
        joined = Joined.of(pieces)
        self._taken_bytes += (
            len(joined)
            if joined.isascii()
            else sum([len(piece) if piece.isascii() else len(piece) * 4 for piece in pieces])
        )
        self._taken += len(pieces)
        return joined

    def _half_free(self) -> bool:
        items, size = self.waiting
        return items * 2 <= self._size_items and size * 2 <= self._size_bytes


_MAX_DEPTH: Final = 8
_SHARE: Final = 64  # bytes that any value counts for, whatever is in it


def size_of(item: Any, depth: int = _MAX_DEPTH) -> int:
    """Bytes that an item counts for: its text and data, all the way down, and a share for each value.

    Text counts as ASCII or at four bytes a character, which no encoding exceeds. Never raises.
    """
    if isinstance(item, str):
        return len(item) if item.isascii() else len(item) * 4
    if isinstance(item, (bytes, bytearray)):
        return len(item)
    parts: Any = ()
    if isinstance(item, Block):
        parts = (item.type, item.fields)
    elif isinstance(item, Event):
        parts = (item.data,)
    elif isinstance(item, Finish):
        parts = (item.usage,)
    elif isinstance(item, Checkpoint):
        parts = (item.state,)
    try:
        if isinstance(item, Mapping):
            parts = [part for pair in item.items() for part in pair]
        elif isinstance(item, (list, tuple)):
            parts = item
        return _SHARE + (sum([size_of(part, depth - 1) for part in parts]) if depth else 0)
    except Exception:
        return _SHARE  # a mapping that cannot be read: the pipeline will say so
