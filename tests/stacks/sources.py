"""Every kind of source in one script: what it yields, and how it ends.

    Script(["a ", "b "], RuntimeError("the model broke"))     two tokens, then it raises
    Script(["a "], silent=True)                               one token, then nothing until it is closed

A kind makes a producer that plays the script and keeps its books: steps, closes, and whether each close happened
once, where the steps did (the same task, thread and context).
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any, Final

import attrs

from streamguard.runtime.push import PushSource
from streamguard.runtime.source import Producer

__all__ = ["BUFFERED", "KINDS", "Books", "Script"]

BUFFERED: Final = "buffered"
_BLOCKED: Final = 0.4  # seconds that a silent sync source stays in its step: nobody can interrupt it there
_PLACE: contextvars.ContextVar[object] = contextvars.ContextVar("_PLACE")


@attrs.define(eq=False)
class Books:
    """One stream's counts, and those of `http.disconnect` and of `send` that the application notes."""

    made: int = 0
    closed: int = 0
    elsewhere: int = 0
    """Closes in another task, thread or context than the steps'."""
    status: str | None = None
    abandoned: bool = False
    disconnects: int = 0
    made_at_disconnect: int | None = None
    taken: int = 0
    """Bytes of the body whose `send` returned."""
    sending: float | None = None
    """Since when a `send` has not returned."""
    began: float = attrs.field(factory=time.monotonic)
    _where: object = None

    def step(self) -> None:
        if self._where is None:
            _PLACE.set(self)
            self._where = _here()
        self.made += 1

    def close(self) -> None:
        self.closed += 1
        same = self._where is None or (self._where == _here() and _PLACE.get(None) is self)
        self.elsewhere += not same

    def told(self) -> None:
        self.disconnects += 1
        if self.made_at_disconnect is None:
            self.made_at_disconnect = self.made

    def report(self) -> dict[str, Any]:
        """Everything as JSON; `sending` is in seconds until now."""
        values = attrs.asdict(self, filter=lambda field, _: not field.name.startswith("_") and field.name != "began")
        return {**values, "sending": None if self.sending is None else time.monotonic() - self.sending}


def _here() -> object:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return threading.get_ident()


@attrs.frozen
class Script:
    """What a source does. `pace` is in seconds before each item; `loading` is raised instead of making a source."""

    items: Iterable[Any]
    failure: Exception | None = None
    silent: bool = False
    pace: float = 0.0
    loading: Exception | None = None
    last: Callable[[], object] = lambda: None
    """Called, in the event loop, after the last item."""


async def _async_generator(script: Script, books: Books) -> AsyncIterator[Any]:
    try:
        for item in script.items:
            if script.pace:
                await asyncio.sleep(script.pace)
            books.step()
            yield item
        script.last()
        if script.silent:
            await asyncio.Event().wait()
        if script.failure is not None:
            raise script.failure
    finally:
        books.close()


class _AsyncIterator:
    """What SDKs return: no generator, and closed by `close`."""

    def __init__(self, script: Script, books: Books) -> None:
        self._script = script
        self._books = books
        self._items = iter(script.items)

    def __aiter__(self) -> _AsyncIterator:
        return self

    async def __anext__(self) -> Any:
        script = self._script
        if script.pace:
            await asyncio.sleep(script.pace)
        for item in self._items:
            self._books.step()
            return item
        script.last()
        if script.silent:
            await asyncio.Event().wait()
        if script.failure is not None:
            raise script.failure
        raise StopAsyncIteration

    async def close(self) -> None:
        self._books.close()


def _sync_generator(script: Script, books: Books) -> Iterator[Any]:
    try:
        for item in script.items:
            if script.pace:
                time.sleep(script.pace)
            books.step()
            yield item
        script.last()
        if script.silent:
            time.sleep(_BLOCKED)
        if script.failure is not None:
            raise script.failure
    finally:
        books.close()


def _push_source(script: Script, books: Books) -> PushSource:
    over = threading.Event()
    source = PushSource(on_close=over.set)

    def produce() -> None:
        try:
            for item in script.items:
                if over.wait(script.pace) if script.pace else over.is_set():
                    return
                books.step()
                if not source.put(item) and not source.wait():
                    return
            script.last()
            if script.silent:
                over.wait()
            elif script.failure is not None:
                source.fail(script.failure)
            else:
                source.finish()
        except Exception as exc:
            source.fail(exc)
        finally:
            books.close()

    threading.Thread(target=produce, name="producer", daemon=True).start()
    return source


def _in_loop(script: Script) -> Script:
    """The same for a producer in a thread: what is to be called in the event loop is handed to it."""
    loop = asyncio.get_running_loop()
    return attrs.evolve(script, last=lambda: loop.call_soon_threadsafe(script.last))


_MAKERS: dict[str, Callable[[Script, Books], Any]] = {
    "async-generator": _async_generator,
    "async-iterator": _AsyncIterator,
    "sync-generator": lambda script, books: _sync_generator(_in_loop(script), books),
    "push": lambda script, books: _push_source(_in_loop(script), books),
    BUFFERED: _async_generator,
}


def _producer(kind: str, script: Script, books: Books) -> Producer:
    if script.loading is None:
        source: Producer = _MAKERS[kind](script, books)
        return source
    failure = script.loading

    async def load() -> Any:
        await asyncio.sleep(0)
        raise failure

    return load


KINDS: dict[str, Callable[[Script, Books], Producer]] = {kind: functools.partial(_producer, kind) for kind in _MAKERS}
