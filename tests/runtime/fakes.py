"""A source, a reader and an application that do what they are told and note what is done to them.

`Script` is a source: it yields what it is given, sleeps for a number, waits for an event, raises an
exception, calls a function. `Wire` is a sink: it notes every call, and is slow, deaf or broken where it is
told to. `Hook` is an `on_end`. `serve` drives one stream and `Served.check` holds what every stream promises.
"""

from __future__ import annotations

import contextvars
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import attrs

from streamguard.core.dialect import Native
from streamguard.core.errors import Failure
from streamguard.core.flush import FlushPolicy, Immediate
from streamguard.core.framing import FramedEncoder
from streamguard.core.guard import CompletionGuard
from streamguard.core.pipeline import Pipeline
from streamguard.core.receipt import Verdict
from streamguard.core.verify import StreamVerifier
from streamguard.core.wire import Sse
from streamguard.observe.hooks import Outcome, observers_of
from streamguard.runtime.direct import DirectDriver
from streamguard.runtime.seen import seen_by
from streamguard.runtime.source import TokenSource
from streamguard.runtime.timing import Timing

__all__ = ["SID", "Hook", "Script", "Served", "Wire", "native", "serve", "timing"]

SID = "AAAAAAAAAAAAAAAAAAAAAA"
VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


def task_id() -> int:
    return anyio.get_current_task().id


class Script:
    """A source, used as `Script("a", 1.0, "b")`: call it to get an async generator. It is an iterator of one."""

    def __init__(self, *script: Any, cleanup: Callable[[], Awaitable[None]] | None = None) -> None:
        self.script = script
        self.cleanup = cleanup
        self.steps = 0
        self.tasks: list[int] = []  # the task at each step, and at the close
        self.values: list[str] = []  # what VARIABLE was at each step, and at the close
        self.cancels = 0
        self.exits = 0  # closed while it waited at a yield
        self.returns = 0
        self.closes = 0  # how often its `finally` ran

    def __call__(self) -> AsyncIterator[Any]:
        return self._generate()

    async def _generate(self) -> AsyncIterator[Any]:
        try:
            for act in self.script:
                self.note()
                if isinstance(act, (int, float)):
                    await anyio.sleep(act)
                elif isinstance(act, anyio.Event):
                    await act.wait()
                elif isinstance(act, BaseException):
                    raise act
                elif inspect.isfunction(act) or inspect.ismethod(act):
                    result = act()
                    if inspect.isawaitable(result):
                        await result
                else:
                    self.steps += 1
                    yield act
            self.note()
            self.returns += 1
        except GeneratorExit:
            self.exits += 1
            raise
        except anyio.get_cancelled_exc_class():
            self.cancels += 1
            raise
        finally:
            self.note()
            self.closes += 1
            if self.cleanup is not None:
                await self.cleanup()

    def note(self) -> None:
        self.tasks.append(task_id())
        self.values.append(VARIABLE.get())


class Wire:
    """A sink. `slow`: seconds a send takes, a function of its number and its bytes; `on_send` may do more."""

    def __init__(
        self,
        *,
        slow: float | Callable[[int, bytes], float] = 0.0,
        on_start: Callable[[], Any] | None = None,
        on_send: Callable[[int, bytes], Any] | None = None,
        on_end: Callable[[], Any] | None = None,
        on_abort: Callable[[], Any] | None = None,
        blocks: bool = True,
    ) -> None:
        self.left = anyio.Event()
        self.calls: list[str] = []
        self.chunks: list[bytes] = []  # what was taken whole
        self.times: list[float] = []  # when each of them was taken
        self.overlaps = 0
        self.kills = self.drops = 0
        self.backlog: int | None = None  # what the socket has not taken
        self.torn = False  # a write was interrupted or refused
        self.wrong: list[str] = []
        self._slow = slow
        self._blocks = blocks
        self._hooks = {"start": on_start, "end": on_end, "abort": on_abort}
        self._on_send = on_send
        self._busy = False
        self._over = False
        self._number = 0

    async def start(self) -> None:
        await self._call("start", None)

    async def send(self, data: bytes) -> None:
        await self._call("send", data)
        self.chunks.append(data)
        self.times.append(anyio.current_time())

    async def end(self) -> None:
        await self._call("end", None)

    async def abort(self) -> None:
        await self._call("abort", None)

    def unsent(self) -> int | None:
        return self.backlog

    def kill(self, *, drop: bool) -> bool:
        self.kills += 1
        self.drops += drop
        self.backlog = 0 if self.backlog is not None else None
        return True

    async def gone(self) -> None:
        await self.left.wait()

    async def _call(self, name: str, data: bytes | None) -> None:
        if self._busy:
            self.overlaps += 1
        if name != "abort" and (self.torn or self._over):
            self.wrong.append(f"{name} after {self.calls[-1]}{', torn' if self.torn else ''}")
        self.calls.append(name)
        self._over = self._over or name in ("end", "abort")
        self._busy = True
        try:
            if data is None:
                hook = self._hooks[name]
                result = hook() if hook is not None else None
            else:
                self._number = number = self._number + 1
                slow = self._slow(number, data) if callable(self._slow) else self._slow
                if slow:
                    await anyio.sleep(slow)
                elif self._blocks:
                    await anyio.lowlevel.checkpoint()
                result = self._on_send(number, data) if self._on_send is not None else None
            if inspect.isawaitable(result):
                await result
        except BaseException:
            self.torn = True
            raise
        finally:
            self._busy = False

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    @property
    def beats(self) -> int:
        return sum([b": hb " in chunk or b"event: ping" in chunk for chunk in self.chunks])

    def read(self, *, clean: bool | None = None) -> StreamVerifier:
        """The verdict of a reader of what was taken."""
        verifier = StreamVerifier()
        for chunk in self.chunks:
            verifier.feed(chunk)
        verifier.end(clean="end" in self.calls if clean is None else clean)
        return verifier

    @property
    def text(self) -> str:
        verifier = StreamVerifier()
        return "".join([frame.text for chunk in self.chunks for frame in verifier.feed(chunk)])

    @property
    def parts(self) -> list[Any]:
        """Texts and blocks as frames, in order."""
        verifier = StreamVerifier()
        return [frame.text or frame.item for chunk in self.chunks for frame in verifier.feed(chunk)]


class Hook:
    """An `on_end` that notes what it was given; `then` is awaited after that."""

    def __init__(self, then: Callable[[], Awaitable[None]] | None = None) -> None:
        self.outcomes: list[Outcome] = []
        self.finished = 0
        self._then = then

    async def __call__(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        if self._then is not None:
            await self._then()
        self.finished += 1


def timing(**limits: Any) -> Timing:
    """Time limits on the loop's own clock, which is virtual."""
    return Timing(clock=anyio.current_time, **limits)


def native(policy: FlushPolicy, beat: Any = "comment") -> Pipeline:
    """A pipeline of dialect `native` over SSE."""
    return Pipeline(policy, FramedEncoder(Native(), sid=SID), CompletionGuard(Sse(heartbeat=beat)))


@attrs.define
class Served:
    """One stream: its driver, its sink, its hook."""

    driver: DirectDriver[bytes]
    wire: Wire
    hook: Hook

    @property
    def outcome(self) -> Outcome:
        assert len(self.hook.outcomes) == 1, f"on_end was called {len(self.hook.outcomes)} times"
        return self.hook.outcomes[0]

    async def run(self) -> Served:
        self.check(await self.driver.run())
        return self

    def cancel(self, failure: Failure | None = None) -> None:
        self.driver.cancel(failure)

    def check(self, outcome: Outcome | None = None) -> None:
        """What holds however a stream ended."""
        wire = self.wire
        assert wire.overlaps == 0
        assert not wire.wrong
        assert self.driver.outcome is self.outcome
        if outcome is not None:
            assert outcome is self.outcome
        ends = wire.calls.count("end")
        assert ends + wire.calls.count("abort") <= 1 or (ends == 1 and wire.torn), wire.calls
        terminals = wire.body.count(b"event: end\n")
        assert terminals <= 1
        reader = wire.read()
        if "end" in wire.calls:  # a clean end means a complete terminal was written
            assert reader.verdict is Verdict.COMPLETE
        elif reader.verdict is Verdict.COMPLETE:
            assert self.outcome.status == "complete"
        else:
            assert reader.verdict in (Verdict.TRUNCATED, Verdict.FAILED)
        if terminals:
            assert reader.status == self.outcome.status
            assert b"event: end\n" in wire.chunks[-1]
        if reader.verdict is not Verdict.COMPLETE and "start" in wire.calls:
            assert "abort" in wire.calls, wire.calls


def serve(
    source: Any,
    wire: Wire | None = None,
    *,
    policy: FlushPolicy | None = None,
    hook: Hook | None = None,
    beat: str = "comment",
    observe: Any = None,
    **limits: Any,
) -> Served:
    """A stream of dialect `native` over SSE, ready to `run`."""
    wire = wire or Wire()
    hook = hook or Hook()
    limits.setdefault("clock", anyio.current_time)
    pipeline = native(policy or Immediate(), beat)
    seen = seen_by(observers_of(observe), pipeline, limits["clock"])
    told: Any = {"on_end": hook, "request_id": "request", "seen": seen}
    driver = DirectDriver(TokenSource(source), pipeline, wire, Timing(**limits), **told)
    return Served(driver, wire, hook)
