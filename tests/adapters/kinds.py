"""One script as every kind of source that the library takes, and the books of what was done to it.

    source = Source("sync generator", "a", gate, "b")
    GuardedAnswer(source.make(), **source.options)

A script is text to yield, an exception to raise, a `Gate` to wait at. Each step, and the close, note where they
ran (a task, or a thread's number) and what VARIABLE was there; a step then sets it, so that the next one shows
whether it is in the same context.

    async generator     closed by `aclose`
    async iterator      an object with `__anext__`, and `close` only
    sync generator      on a thread of its own
    sync iterator       an object with `__next__` and `close`, on a thread of its own
    push                an engine's thread, which pushes; it is told by `on_close`, in the task that serves
    buffered            an async generator that runs ahead, in a task of its own
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

from streamguard.adapters.seal import Receive, Scope, Send
from streamguard.core.errors import StreamClosed
from streamguard.runtime.buffer import Buffer
from streamguard.runtime.push import PushSource
from tests.adapters.servers import DEADLINE, Gate

__all__ = [
    "ASYNC",
    "KINDS",
    "SYNC",
    "VARIABLE",
    "CloseOnly",
    "CloseOnlyAsync",
    "Source",
    "Told",
    "join_threads",
    "place",
    "source_threads",
    "start_engine",
]

ASYNC = ["async generator", "async iterator", "buffered"]
SYNC = ["sync generator", "sync iterator"]
KINDS = [*ASYNC, *SYNC, "push"]

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


def place() -> object:
    """The task that runs this, or the number of the thread where there is none."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return threading.get_ident()


def source_threads() -> list[threading.Thread]:
    """The threads of sync sources, and of the engines here, that are alive."""
    return [thread for thread in threading.enumerate() if thread.name in ("streamguard-source", "engine")]


def start_engine(work: Callable[..., object], *args: Any) -> None:
    """Run `work` on a thread with a copy of this context, as whoever starts one for a request should."""
    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(work, *args), name="engine", daemon=True).start()


def join_threads() -> None:
    """Wait until none of them is left."""
    for thread in source_threads():
        thread.join(DEADLINE)
    assert source_threads() == []


class CloseOnly:
    """A wrapper of a sync iterator that has `close` and no more."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __iter__(self) -> CloseOnly:
        return self

    def __next__(self) -> Any:
        return next(self.inner)

    def close(self) -> None:
        self.inner.close()


class CloseOnlyAsync:
    """The same of an async one: what its `close` returns must be awaited."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __aiter__(self) -> CloseOnlyAsync:
        return self

    def __anext__(self) -> Any:
        return self.inner.__anext__()

    def close(self) -> Any:
        return self.inner.aclose()


class Source:
    """One source of a kind. `bound` is that of its buffer, where it has one."""

    def __init__(self, kind: str, *script: Any, bound: int = 1024) -> None:
        self.kind = kind
        self.script: Iterable[Any] = script
        self.bounds = Buffer(max_items=bound)
        self.options: dict[str, Any] = {} if kind in ("async generator", "async iterator", "push") else {
            "buffer": self.bounds
        }  # fmt: skip
        self.made = 0
        self.started = 0
        self.places: list[object] = []
        self.values: list[str] = []
        self.closes: list[object] = []  # where each close ran
        self.closing_values: list[str] = []
        self.closed = Gate()

    def make(self) -> Any:
        """The source. Nothing of it runs before its first step, but an engine does at once."""
        if self.kind in ("async generator", "buffered"):
            return self._generate()
        if self.kind == "sync generator":
            return self._generate_in_thread()
        return {"async iterator": _AsyncSteps, "sync iterator": _Steps, "push": self._push}[self.kind](self)

    def note(self) -> None:
        self.started += not self.places
        self.places.append(place())
        self.values.append(VARIABLE.get())
        VARIABLE.set(f"step {len(self.values)}")

    def close(self) -> None:
        self.closes.append(place())
        self.closing_values.append(VARIABLE.get())
        self.closed.open()

    async def _generate(self) -> AsyncIterator[Any]:
        try:
            for act in self.script:
                self.note()
                if isinstance(act, Gate):
                    await act
                elif isinstance(act, BaseException):
                    raise act
                else:
                    self.made += 1
                    yield act
        finally:
            self.close()

    def _generate_in_thread(self) -> Iterator[Any]:
        try:
            for act in self.script:
                self.note()
                if isinstance(act, Gate):
                    act.wait()
                elif isinstance(act, BaseException):
                    raise act
                else:
                    self.made += 1
                    yield act
        finally:
            self.close()

    @staticmethod
    def _push(source: Source) -> PushSource:
        pushed = PushSource(buffer=source.bounds, on_close=source.close)
        start_engine(source._engine, pushed)
        return pushed

    def _engine(self, pushed: PushSource) -> None:
        try:
            for act in self.script:
                self.note()
                if isinstance(act, Gate):
                    act.wait()
                elif isinstance(act, BaseException):
                    pushed.fail(act)
                    return
                else:
                    self.made += 1
                    if not pushed.put(act) and not pushed.wait():
                        return
            pushed.finish()
        except StreamClosed:
            pass


class _AsyncSteps:
    def __init__(self, source: Source) -> None:
        self._source = source
        self._acts = iter(source.script)

    def __aiter__(self) -> _AsyncSteps:
        return self

    async def __anext__(self) -> Any:
        for act in self._acts:
            self._source.note()
            if isinstance(act, Gate):
                await act
            elif isinstance(act, BaseException):
                raise act
            else:
                self._source.made += 1
                return act
        raise StopAsyncIteration

    def close(self) -> None:
        self._source.close()


class _Steps:
    def __init__(self, source: Source) -> None:
        self._source = source
        self._acts = iter(source.script)

    def __iter__(self) -> _Steps:
        return self

    def __next__(self) -> Any:
        for act in self._acts:
            self._source.note()
            if isinstance(act, Gate):
                act.wait()
            elif isinstance(act, BaseException):
                raise act
            else:
                self._source.made += 1
                return act
        raise StopIteration

    def close(self) -> None:
        self._source.close()


class Told:
    """An ASGI application round another one, that opens a gate once the server said that the reader is gone.

    What blocks in a thread cannot be interrupted; it goes on when the driver was told.
    """

    def __init__(self, app: Callable[[Scope, Receive, Send], Any], gate: Gate) -> None:
        self.app = app
        self.gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def noting() -> Any:
            message = await receive()
            if message["type"] == "http.disconnect":
                asyncio.get_running_loop().call_later(0.05, self.gate.open)
            return message

        await self.app(scope, noting, send)
