"""A source that does what its script says, and notes what is done to it.

    source = RecordingSource("Hello ", pause, "world")     # `pause` is an event that the test sets
    ...                                                    # give it to a TokenSource, a decorator, a response
    assert (source.steps, source.cancels, source.closes) == (2, 0, 1)
    assert source.in_one_task and source.in_one_thread

Calling it makes a producer of the chosen shape, as a function that returns a source does; each producer
runs the script from its start. An entry of the script is

    an exception             raised
    a number                 so many seconds are slept
    an event (has `wait`)    waited for; a `threading.Event` blocks, on the event loop too
    FOREVER                  waited for without end: until it is cancelled, or `release()` is called
    a function               called, and what it returns is awaited if it can be
    Yield(x)                 `x` is yielded, whatever it is
    anything else            is yielded

Asynchronous shapes run on asyncio and on trio. A synchronous one can await nothing: that is a TypeError.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Final, Literal, get_args

import anyio
import attrs

__all__ = ["FOREVER", "Note", "RecordingSource", "Shape", "Yield", "current_task"]

Shape = Literal["async generator", "async iterator", "async iterable", "generator", "iterator", "iterable"]
"""`iterator`s have `close` and nothing else; an `iterable` makes a generator at each iteration, and has a `close`
of its own, as the streams of SDKs do."""

Act = Literal["step", "return", "raise", "exit", "cancel", "close"]


@attrs.frozen
class Yield:
    """An entry of a script that is yielded as it is."""

    item: Any


class _Forever:
    def __repr__(self) -> str:
        return "FOREVER"


FOREVER: Final = _Forever()
_NOTHING: Final = object()  # an entry that yields nothing


@attrs.frozen(eq=False)
class Note:
    """One thing that happened to a source, and where.

    `step`: the script goes on. `return`: it ended. `raise`: it raised. `cancel`: it was cancelled where it
    waited. `exit`: a generator was closed at a `yield`. `close`: its clean-up ran, or `close` was called.
    """

    act: Act
    task: object
    """The task, or None outside of an event loop."""
    thread: threading.Thread
    value: Any
    """What the chosen context variable was, or None."""


class RecordingSource:
    """A source with a script and a memory.

    `shape` is what calling it makes. `variable` is a context variable whose value is noted. `cleanup` is called
    when a producer is closed, and awaited in the asynchronous shapes. With `stubborn` a cancellation is noted
    and not passed on, as sources do that catch everything: the script goes on behind what was cancelled.

    Counts: `opens` (producers made), `steps` (items yielded), `returns`, `cancels`, `exits` (generators closed
    at a `yield`), `closes`. A generator closes itself when it ends, so that one which was never started
    never closes. `notes` is everything in order. Raises ValueError for an unknown shape.
    """

    def __init__(
        self,
        *script: Any,
        shape: Shape = "async generator",
        variable: contextvars.ContextVar[Any] | None = None,
        cleanup: Callable[[], Any] | None = None,
        stubborn: bool = False,
    ) -> None:
        if shape not in get_args(Shape):
            raise ValueError(f"unknown shape {shape!r}; known: {', '.join(get_args(Shape))}")
        self.script = script
        self.shape = shape
        self.variable = variable
        self.cleanup = cleanup
        self.stubborn = stubborn
        self.notes: list[Note] = []
        self.opens = 0
        self.steps = 0
        self._released = threading.Event()
        self._wakers: list[anyio.Event] = []

    def __call__(self) -> Any:
        self.opens += 1
        if self.shape == "async generator":
            return self._async_generator()
        if self.shape == "generator":
            return self._generator()
        return _PRODUCERS[self.shape](self)

    def release(self) -> None:
        """Let everything that waits at FOREVER go on. From the event loop, where there is one."""
        self._released.set()
        for waker in self._wakers:
            waker.set()

    @property
    def returns(self) -> int:
        return self._count("return")

    @property
    def cancels(self) -> int:
        return self._count("cancel")

    @property
    def exits(self) -> int:
        return self._count("exit")

    @property
    def closes(self) -> int:
        return self._count("close")

    @property
    def tasks(self) -> list[object]:
        """The task of each note."""
        return [note.task for note in self.notes]

    @property
    def threads(self) -> list[threading.Thread]:
        """The thread of each note."""
        return [note.thread for note in self.notes]

    @property
    def values(self) -> list[Any]:
        """The context variable's value at each note."""
        return [note.value for note in self.notes]

    @property
    def in_one_task(self) -> bool:
        """Whether every step and the close were made by the same task."""
        return all(task is self.tasks[0] for task in self.tasks)

    @property
    def in_one_thread(self) -> bool:
        """Whether every step and the close were made on the same thread."""
        return all(thread is self.threads[0] for thread in self.threads)

    def note(self, act: Act) -> None:
        """Add a note of what happens here and now."""
        value = None if self.variable is None else self.variable.get(None)
        self.notes.append(Note(act, current_task(), threading.current_thread(), value))

    def _count(self, act: Act) -> int:
        return sum(note.act == act for note in self.notes)

    async def perform(self, entry: Any) -> Any:
        """Do one entry of the script; what it yields, as a Yield, or nothing of use."""
        self.note("step")
        try:
            if entry is FOREVER:
                await self._forever()
            elif isinstance(entry, (int, float)):
                await anyio.sleep(entry)
            else:
                result = _begun(entry)
                return await result if inspect.isawaitable(result) else result
        except anyio.get_cancelled_exc_class():
            self.note("cancel")
            if not self.stubborn:
                raise
        except BaseException:
            self.note("raise")
            raise
        return _NOTHING

    def perform_sync(self, entry: Any) -> Any:
        """The same without a loop."""
        self.note("step")
        try:
            if entry is FOREVER:
                self._released.wait()
            elif isinstance(entry, (int, float)):
                time.sleep(entry)
            else:
                result = _begun(entry)
                if not inspect.isawaitable(result):
                    return result
                getattr(result, "close", int)()  # else Python warns that it was never awaited
                raise TypeError(f"a source of shape {self.shape!r} cannot wait for {entry!r}")
        except BaseException:
            self.note("raise")
            raise
        return _NOTHING

    async def _forever(self) -> None:
        waker = anyio.Event()
        self._wakers.append(waker)
        if not self._released.is_set():
            await waker.wait()

    async def closed(self) -> None:
        """Note the close and clean up."""
        self.note("close")
        if self.cleanup is not None:
            result = self.cleanup()
            if inspect.isawaitable(result):
                await result

    def closed_sync(self) -> None:
        """The same without a loop."""
        self.note("close")
        if self.cleanup is not None:
            self.cleanup()

    async def _async_generator(self) -> AsyncIterator[Any]:
        try:
            for entry in self.script:
                found = await self.perform(entry)
                if isinstance(found, Yield):
                    self.steps += 1
                    try:
                        yield found.item
                    except GeneratorExit:
                        self.note("exit")
                        raise
            self.note("return")
        finally:
            await self.closed()

    def _generator(self) -> Iterator[Any]:
        try:
            for entry in self.script:
                found = self.perform_sync(entry)
                if isinstance(found, Yield):
                    self.steps += 1
                    try:
                        yield found.item
                    except GeneratorExit:
                        self.note("exit")
                        raise
            self.note("return")
        finally:
            self.closed_sync()


class _AsyncIterator:
    """Not a generator: it outlives an exception, and is closed by `close` alone."""

    def __init__(self, source: RecordingSource) -> None:
        self._source = source
        self._entries = iter(source.script)

    def __aiter__(self) -> _AsyncIterator:
        return self

    async def __anext__(self) -> Any:
        for entry in self._entries:
            found = await self._source.perform(entry)
            if isinstance(found, Yield):
                self._source.steps += 1
                return found.item
        self._source.note("return")
        raise StopAsyncIteration

    async def close(self) -> None:
        self._entries = iter(())
        await self._source.closed()


class _Iterator:
    def __init__(self, source: RecordingSource) -> None:
        self._source = source
        self._entries = iter(source.script)

    def __iter__(self) -> _Iterator:
        return self

    def __next__(self) -> Any:
        for entry in self._entries:
            found = self._source.perform_sync(entry)
            if isinstance(found, Yield):
                self._source.steps += 1
                return found.item
        self._source.note("return")
        raise StopIteration

    def close(self) -> None:
        self._entries = iter(())
        self._source.closed_sync()


class _AsyncIterable:
    def __init__(self, source: RecordingSource) -> None:
        self._source = source

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._source._async_generator()

    async def close(self) -> None:
        self._source.note("close")


class _Iterable:
    def __init__(self, source: RecordingSource) -> None:
        self._source = source

    def __iter__(self) -> Iterator[Any]:
        return self._source._generator()

    def close(self) -> None:
        self._source.note("close")


_PRODUCERS: Final[dict[str, Callable[[RecordingSource], Any]]] = {
    "async iterator": _AsyncIterator,
    "async iterable": _AsyncIterable,
    "iterator": _Iterator,
    "iterable": _Iterable,
}


def _begun(entry: Any) -> Yield | Awaitable[Any] | Any:
    """What an entry yields, or what is to be awaited for it. Raises it if it is an exception."""
    if isinstance(entry, BaseException):
        raise entry
    if isinstance(entry, Yield):
        return entry
    if callable(getattr(entry, "wait", None)):
        return entry.wait()
    if inspect.isroutine(entry):
        return entry()
    return Yield(entry)


def current_task() -> object:
    """The task that runs here, of asyncio or trio; None outside of both."""
    trio = sys.modules.get("trio")  # not imported for this: where it is not loaded, it does not run
    if trio is not None:
        try:
            return trio.lowlevel.current_task()
        except RuntimeError:
            pass  # not trio's loop
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
