"""The stages as async iterators, one by one or joined, for people who bring their own server.

    pipe(TokenSource(g))                                                        items
    pipe(TokenSource(g), EveryTokens(8))                                        text, blocks, …
    pipe(TokenSource(g), EveryTokens(8), FramedEncoder(Native()))               frames
    pipe(TokenSource(g), EveryTokens(8), FramedEncoder(Native()), CompletionGuard(Sse()))   bytes

Each is the direct driver with as much of the pipeline as was given, and a sink that hands over to the
iterator; so heartbeats, deadlines, limits and closing are those of a served stream, and the bytes are
the same. Enter it with `async with`: the driver is a task of its own, and leaving stops it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext
from types import TracebackType
from typing import Any, Generic, TypeVar, overload

import anyio
import anyio.abc
import attrs

from streamguard.core.arguments import require, require_callable
from streamguard.core.errors import Failure, StreamAborted, StreamBroken, StreamClosed
from streamguard.core.flush import FlushPolicy
from streamguard.core.frame import Frame
from streamguard.core.framing import FramedEncoder
from streamguard.core.guard import CompletionGuard
from streamguard.core.items import Item
from streamguard.core.pipeline import Pipeline, require_stage
from streamguard.observe.hooks import Observer, Observers, OnEnd, Outcome, observers_of
from streamguard.runtime.direct import DirectDriver
from streamguard.runtime.drain import Draining
from streamguard.runtime.lists import FrameLists, ItemLists
from streamguard.runtime.seen import seen_by
from streamguard.runtime.sink import Stage
from streamguard.runtime.source import Producer, TokenSource
from streamguard.runtime.timing import DEFAULT_TIMING, TIMING_EXAMPLE, Timing

__all__ = ["GuardedStream", "StageStream", "pipe"]

T = TypeVar("T")


class _HandOver(Generic[T]):
    """A sink that hands over to an iterator, one at a time: the driver waits until it was taken.

    What is offered stays until it is taken, so that an `__anext__` that is cancelled loses nothing: a
    memory stream may have given it away by then.
    """

    def __init__(self) -> None:
        self._offer: list[T] = []  # at most one
        self._offered = anyio.Event()
        self._taken = anyio.Event()
        self._left = anyio.Event()
        self._over = False

    async def start(self) -> None:
        pass

    async def send(self, data: T) -> None:
        if self._left.is_set():
            raise StreamBroken("nobody iterates any more")
        self._taken = anyio.Event()
        self._offer.append(data)
        self._offered.set()
        await self._taken.wait()

    async def end(self) -> None:
        self.kill(drop=False)

    abort = end

    def unsent(self) -> int:
        return 0  # who iterates takes its time

    def kill(self, *, drop: bool) -> bool:
        self._over = True
        self._offered.set()
        return True

    async def gone(self) -> None:
        await self._left.wait()

    async def take(self) -> T:
        """The next one. Raises EndOfStream after the last."""
        while self._left.is_set() or not self._offer:
            if self._over or self._left.is_set():
                raise anyio.EndOfStream
            await self._offered.wait()
        self._offered = anyio.Event()
        self._taken.set()
        return self._offer.pop()

    def leave(self) -> None:
        """Nobody takes any more."""
        self._offer.clear()
        self._left.set()
        self._offered.set()


class StageStream(Generic[T]):
    """A source through some of the stages, as an async iterator. `outcome` is set when it is over.

    Whoever iterates is waited for: the write deadline of `timing` is not this one's, but the server's that writes.
    `drain` ends it as `shutdown` where it outlasts the grace of a process that is told to go; who serves asks it
    whether it is `ready` before a stream is made.

    Raises, after the last item: StreamAborted if the stages end in a guard and the terminal was not
    `complete`; else, if they make no frames, what the source raised, as in peek mode before anything was sent.
    """

    def __init__(
        self,
        source: TokenSource | Producer,
        stage: Stage[Any],
        *,
        timing: Timing = DEFAULT_TIMING,
        on_end: OnEnd | None = None,
        observe: Observer | Sequence[Observer] | Observers | None = None,
        drain: Draining | None = None,
    ) -> None:
        require("timing", timing, Timing, TIMING_EXAMPLE)
        if on_end is not None:
            require_callable("on_end", on_end, "the Outcome")
        self._source = source if isinstance(source, TokenSource) else TokenSource(source)
        self._stage = stage
        self._timing = attrs.evolve(timing, write=None)  # who iterates is waited for: it may do more than write
        self._on_end = on_end
        self._observers = observers_of(observe)
        if drain is not None:
            require("drain", drain, Draining, "Draining(grace=20)")
        self._joined = nullcontext if drain is None else drain.draining.joined
        self._waiting: list[T] = []
        self._sink: _HandOver[Any] | None = None
        self._driver: DirectDriver[Any] | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self.outcome: Outcome | None = None

    async def __aenter__(self) -> StageStream[T]:
        if self._driver is not None:
            raise StreamClosed("a stream is entered once")
        self._sink = _HandOver()
        seen = seen_by(self._observers, self._stage, self._timing.clock)
        self._driver = DirectDriver(self._source, self._stage, self._sink, self._timing, on_end=self._on_end, seen=seen)
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._run, self._driver, self._sink)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._sink is not None
        assert self._tasks is not None
        self._sink.leave()
        await self._tasks.__aexit__(None, None, None)

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        if self._sink is None or self._driver is None:
            raise StreamClosed("enter the stream with `async with` before iterating it")
        while not self._waiting:
            try:
                data = await self._sink.take()
            except anyio.EndOfStream:
                raise self._over(self._driver) from self._driver.exception
            if isinstance(data, bytes):
                return data  # type: ignore[return-value]  # a guard's stage makes bytes, so T is bytes
            self._waiting = data[::-1]
        return self._waiting.pop()

    def cancel(self, failure: Failure | None = None) -> None:
        """End the stream as `cancelled`."""
        if self._driver is not None:
            self._driver.cancel(failure)

    def _over(self, driver: DirectDriver[Any]) -> Exception:
        status = self._stage.status or "gone"
        if driver.exception is not None and (isinstance(self._stage, ItemLists) or self._stage.status is None):
            return driver.exception
        if status == "complete" or isinstance(self._stage, FrameLists):
            return StopAsyncIteration()
        return StreamAborted(status, self._stage.ending.failure)

    async def _run(self, driver: DirectDriver[Any], sink: _HandOver[Any]) -> None:
        try:
            with self._joined(driver.shut_down):
                await driver.run()
        except Exception as exc:
            if exc is not driver.exception:
                raise
            # In peek mode, before anything was sent: the iterator raises it.
        finally:
            self.outcome = driver.outcome
            await sink.end()


@overload
def pipe(source: TokenSource | Producer, /) -> TokenSource: ...
@overload
def pipe(source: TokenSource | Producer, policy: FlushPolicy, /, **options: Any) -> StageStream[Item]: ...
@overload
def pipe(
    source: TokenSource | Producer, policy: FlushPolicy, encoder: FramedEncoder, /, **options: Any
) -> StageStream[Frame]: ...
@overload
def pipe(
    source: TokenSource | Producer,
    policy: FlushPolicy,
    encoder: FramedEncoder,
    guard: CompletionGuard,
    /,
    **options: Any,
) -> StageStream[bytes]: ...
def pipe(
    source: TokenSource | Producer,
    policy: FlushPolicy | None = None,
    encoder: FramedEncoder | None = None,
    guard: CompletionGuard | None = None,
    /,
    **options: Any,
) -> TokenSource | StageStream[Any]:
    """The stages given, in their order, joined; options are `timing`, `on_end`, `observe`
    and `drain`."""
    for stage, kind in ((encoder, FramedEncoder), (guard, CompletionGuard)):
        if stage is not None:
            require_stage(stage, kind, "source, policy, encoder, guard")
    if policy is None:
        if options:
            raise TypeError(f"a source alone takes no {', '.join(options)}; the stages are given by position")
        return source if isinstance(source, TokenSource) else TokenSource(source)
    if encoder is None:
        return StageStream(source, ItemLists(policy), **options)
    if guard is None:
        return StageStream(source, FrameLists(policy, encoder), **options)
    return StageStream(source, Pipeline(policy, encoder, guard), **options)


class GuardedStream(StageStream[bytes]):
    """The whole pipe: a source as guarded bytes.

        async with GuardedStream(TokenSource(g), EveryTokens(8), FramedEncoder(Native()), CompletionGuard(Sse())) as s:
            async for chunk in s:
                await response.write(chunk)
        await response.write_eof()     # not reached unless the stream is complete
    """

    def __init__(
        self,
        source: TokenSource | Producer,
        policy: FlushPolicy,
        encoder: FramedEncoder,
        guard: CompletionGuard,
        *,
        timing: Timing = DEFAULT_TIMING,
        on_end: OnEnd | None = None,
        observe: Observer | Sequence[Observer] | Observers | None = None,
        drain: Draining | None = None,
    ) -> None:
        own: Any = {"timing": timing, "on_end": on_end, "observe": observe, "drain": drain}
        super().__init__(source, Pipeline(policy, encoder, guard), **own)
