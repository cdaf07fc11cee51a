"""Checkpoints of a source that can say where it stands, without its yielding any.

    class Model:                                  # a source, sync or async, with a `state()`
        def __init__(self, tokens=()): ...
        def state(self): return {"tokens": self.tokens}
        def __iter__(self): ...

    CheckpointEvery(items=50, seconds=1.0).over(Model())

`state()` is asked between two steps of the source, where the source itself is stepped: what it answers is how things
stand behind the item that was yielded last, however far ahead of the network the source runs. A sync source is stepped
in a thread of its own, and asked there. The answer is copied at once.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from typing import Any, Protocol

import attrs

from streamguard.core.arguments import require_callable, shown
from streamguard.core.items import Checkpoint, Item
from streamguard.runtime.closing import close, close_sync

__all__ = ["CheckpointEvery", "Stateful"]


class Stateful(Protocol):
    """A source that can say where it stands; it is an iterable too, sync or async."""

    def state(self) -> Any:
        """What the source could go on from, behind the item that it yielded last; as JSON has it."""
        ...


def _count(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise ValueError(f"items is a whole number from 1 on, not {shown(value)}")


def _time(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and not (isinstance(value, (int, float)) and value > 0):
        raise ValueError(f"seconds is a number above zero, not {shown(value)}")


@attrs.frozen(kw_only=True)
class CheckpointEvery:
    """A checkpoint after so many items, or once so many seconds have passed since the last; whichever comes first.

    `clock` gives monotonic seconds. Raises ValueError without either limit, and for one that is not above zero.
    """

    items: int | None = attrs.field(default=None, validator=_count)
    seconds: float | None = attrs.field(default=None, validator=_time)
    clock: Callable[[], float] = attrs.field(default=time.monotonic, repr=False)

    def __attrs_post_init__(self) -> None:
        if self.items is None and self.seconds is None:
            raise ValueError("CheckpointEvery(items=50) or CheckpointEvery(seconds=1.0): without either there is none")

    def over(self, source: Any) -> AsyncIterator[Item] | Iterator[Item]:
        """A generator of what `source` yields, with its checkpoints; sync if the source is. It closes the source.

        Raises TypeError for a source that has no `state()`, or is no iterable.
        """
        if not callable(getattr(source, "state", None)):
            raise TypeError("the source has no method state(): CheckpointEvery asks it for the state")
        require_callable("source.state", source.state)
        if isinstance(source, AsyncIterable):
            return self._async(source)
        if isinstance(source, Iterable):
            return self._sync(source)
        raise TypeError(f"{shown(source)} is no source: it has neither __aiter__ nor __iter__")

    async def _async(self, source: Any) -> AsyncIterator[Item]:
        steps, due = source.__aiter__(), _Due(self)
        try:
            async for item in steps:
                yield item
                if due.after_item():
                    yield Checkpoint(source.state())
        finally:
            await close(steps)
            if steps is not source:
                await close(source)

    def _sync(self, source: Any) -> Iterator[Item]:
        steps, due = iter(source), _Due(self)
        try:
            for item in steps:
                yield item
                if due.after_item():
                    yield Checkpoint(source.state())
        finally:
            close_sync(steps)
            if steps is not source:
                close_sync(source)


class _Due:
    """When the next checkpoint is due."""

    def __init__(self, every: CheckpointEvery) -> None:
        self._every = every
        self._count = 0
        self._last = every.clock()

    def after_item(self) -> bool:
        every = self._every
        self._count += 1
        now = every.clock()
        enough = every.items is not None and self._count >= every.items
        if not enough and (every.seconds is None or now - self._last < every.seconds):
            return False
        self._count, self._last = 0, now
        return True
