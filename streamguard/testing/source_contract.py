"""The contract of a source, for a test of your own: what a stream expects of whatever yields its items.

    def test_my_source():
        check_source(lambda: my_model.generate("hello"))

The source is read through a TokenSource, as a stream reads it: whole, left after each of its first items,
cancelled where it waits. All of that happens on an event loop of its own in a thread of its own, so that a
source that never lets go fails the test instead of hanging it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final, NoReturn

import anyio
import anyio.lowlevel

from streamguard.core.dialect import Dialect, dialect_named
from streamguard.core.errors import StreamClosed
from streamguard.core.flush import Immediate
from streamguard.core.framing import FramedEncoder
from streamguard.core.guard import CompletionGuard
from streamguard.core.pipeline import Pipeline
from streamguard.core.receipt import Verdict
from streamguard.core.verify import StreamVerifier
from streamguard.core.wire import Sse
from streamguard.runtime.source import TokenSource
from streamguard.runtime.threads import ThreadIterator
from streamguard.testing.contract import ContractBroken

__all__ = ["check_source"]

_LEFT_AFTER: Final = 3  # the source is left after 0 to so many items, and cancelled behind as many
_LEAKS: Final = 4  # runs that must each leave a task or a thread behind, to be called a leak
_GRACE: Final = 0.05  # seconds that a closed source may take to say that it is over
_LOOK: Final = 0.01  # seconds between two looks at a source that is being checked


def check_source(
    factory: Callable[[], Any],
    *,
    dialect: str | Dialect = "native",
    backend: str = "asyncio",
    max_items: int = 1000,
    patience: float = 10.0,
) -> None:
    """Raise ContractBroken, an AssertionError, for the first rule that `factory`'s sources break.

    `factory` makes a new source at each call, on the event loop: anything that a TokenSource takes, or a TokenSource.
    Its items must suit `dialect`. An endless source is read for `max_items`. `patience` is how many seconds one
    step, or a close, may take.
    """
    check = _Check(factory, dialect_named(dialect), max_items)
    failure: list[BaseException] = []

    def run() -> None:
        try:
            anyio.run(check.run, backend=backend)
        except BaseException as exc:
            failure.append(exc)

    thread = threading.Thread(target=run, name="streamguard-check", daemon=True)
    thread.start()
    seen, waited = -1, 0.0
    while thread.is_alive():
        thread.join(_LOOK)
        waited = waited + _LOOK if check.beats == seen else 0.0
        seen = check.beats
        if waited > patience:
            raise ContractBroken(check.name, check.rule, f"{check.doing} took more than {patience:g} s")
    if failure:
        raise failure[0]


class _Check:
    """One check, on its event loop. `rule` and `doing` say what it is at, for a source that never returns from it."""

    def __init__(self, factory: Callable[[], Any], dialect: Dialect, max_items: int) -> None:
        self.name = "the source"
        self.rule = "producer"
        self.doing = "making it"
        self.beats = 0
        self._factory = factory
        self._dialect = dialect
        self._max_items = max_items

    async def run(self) -> None:
        first = await self._made()
        count = await self._whole(first)
        second = await self._made()
        if first is second or first._producer is second._producer:
            self._broken("fresh", "the factory gave the same source twice; make a new one at each call")
        again = await self._whole(second)
        if count and not again:
            self._broken("fresh", f"the factory's first source yielded {count} items, and its second one none")
        await self._opened_twice()
        for items in range(min(count, _LEFT_AFTER) + 1):
            await self._left(items)
        for items in range(min(count, _LEFT_AFTER) + 1):
            await self._cancelled(items)
        await self._leaks(min(count, 1))

    def at(self, rule: str, doing: str) -> None:
        self.rule, self.doing = rule, doing
        self.beats += 1

    def _broken(self, rule: str, what: str, cause: BaseException | None = None) -> NoReturn:
        raise ContractBroken(self.name, rule, what) from cause

    async def _made(self) -> TokenSource:
        """What the factory makes, as a TokenSource."""
        self.at("producer", "making it")
        try:
            made = self._factory()
            source = made if isinstance(made, TokenSource) else TokenSource(made)
        except Exception as exc:
            self._broken("producer", f"making it raised {exc!r}", exc)
        self.name = getattr(made, "__qualname__", None) or type(made).__name__
        return source

    async def _whole(self, source: TokenSource) -> int:
        """Read to the end: how many items came."""
        pipeline = Pipeline(Immediate(), FramedEncoder(self._dialect), CompletionGuard(Sse()))
        verifier = StreamVerifier(dialect=self._dialect.name)
        verifier.feed(pipeline.open())
        count = 0
        items: Any = None
        self.at("raises nothing", "opening it")
        try:
            items = await source.open()
            while count < self._max_items:
                self.at("raises nothing", f"its step {count + 1}")
                item = await items.__anext__()
                verifier.feed(self._pushed(pipeline, item))
                count += 1
        except StopAsyncIteration:
            verifier.feed(pipeline.finish(0.0))
            verifier.end(clean=True)
            if verifier.verdict is not Verdict.COMPLETE:
                self._broken("items", f"with its items the stream ends as {verifier.status}, not as complete")
            await self._over(items, "end", "after it had ended")
        except ContractBroken:
            raise
        except Exception as exc:
            self._broken("raises nothing", f"{self.doing} raised {exc!r}", exc)
        finally:
            await self._close(source)
        return count

    def _pushed(self, pipeline: Pipeline, item: Any) -> bytes:
        try:
            return pipeline.push(item, 0.0)
        except Exception as exc:
            raise ContractBroken(self.name, "items", f"it yielded {item!r:.100}: {exc}") from exc

    async def _opened_twice(self) -> None:
        source = await self._made()
        try:
            await source.open()
            self.at("opened once", "opening it a second time")
            try:
                await source.open()
            except StreamClosed:
                return
            self._broken("opened once", "it was opened a second time; two readers would each get every other item")
        finally:
            await self._close(source)

    async def _left(self, items: int) -> None:
        """Close after so many items, as when a reader leaves."""
        source = await self._made()
        iterator = await source.open()
        for number in range(items):
            self.at("raises nothing", f"its step {number + 1}")
            try:
                await iterator.__anext__()
            except StopAsyncIteration:  # of a thread's items several come as one
                break
        await self._close(source, f"closing it after {items} items")
        producer = source._producer
        if getattr(producer, "ag_frame", None) is not None or getattr(producer, "gi_frame", None) is not None:
            self._broken("close", f"after {items} items it was closed, and is still running")
        if hasattr(producer, "aclose") or hasattr(producer, "close"):
            await self._over(iterator, "close", f"after it was closed behind {items} items")

    async def _over(self, iterator: Any, rule: str, when: str) -> None:
        """An asynchronous iterator must yield nothing more: it may say that it is over, or raise."""
        self.at(rule, f"its next step {when}")
        with anyio.move_on_after(_GRACE):
            try:
                item = await iterator.__anext__()
            except Exception:
                return
            self._broken(rule, f"{when}, it yielded {item!r:.100}")

    async def _close(self, source: TokenSource, doing: str = "closing it") -> None:
        self.at("close", doing)
        try:
            await source.aclose()
        except Exception as exc:
            self._broken("close", f"{doing} raised {exc!r}", exc)
        self.at("close", doing)

    async def _cancelled(self, items: int) -> None:
        """Cancel it in its first wait behind so many items, if it waits at all. A thread cannot be cancelled."""
        source = await self._made()
        reached = anyio.Event()
        said = ""

        async def reading(scope: anyio.CancelScope) -> None:
            nonlocal said
            # Both stand around the source from its first step: it may have entered scopes of its own, to be left first.
            with scope, anyio.CancelScope() as closing:
                try:
                    iterator = await source.open()
                    if isinstance(iterator, ThreadIterator):
                        return
                    count = 0
                    async for _ in iterator:
                        self.at("cancel", "letting go when it is cancelled")
                        if scope.cancel_called:
                            said = "it yielded on"
                            return
                        count += 1
                        if count == items:
                            reached.set()
                        if count > self._max_items:
                            return
                    said = "it said that it is exhausted" if scope.cancel_called else ""
                except Exception as exc:
                    said = f"it raised {exc!r}" if scope.cancel_called else ""
                finally:
                    reached.set()
                    closing.shield = True
                    await self._close(source)

        if not items:
            reached.set()
        async with anyio.create_task_group() as tasks:
            scope = anyio.CancelScope()
            tasks.start_soon(reading, scope)
            await reached.wait()
            self.at("cancel", "coming to a wait")
            await anyio.wait_all_tasks_blocked()
            self.at("cancel", "letting go when it is cancelled")
            scope.cancel()
        if said:
            self._broken("cancel", f"cancelled where it waited, {said}; let a cancellation through")

    async def _leaks(self, items: int) -> None:
        """Run after run, each left after an item: tasks and threads must not become more and more."""
        counts: list[tuple[int, int]] = []
        for _ in range(_LEAKS + 1):
            await self._left(items)
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
            counts.append((len(anyio.get_running_tasks()), await self._threads()))
        for kind, seen in zip(("task", "thread"), zip(*counts, strict=True), strict=True):
            if all(after > before for before, after in pairwise(seen)):
                self._broken("leaves nothing", f"each time that it is left, one more {kind} stays behind: {list(seen)}")

    async def _threads(self) -> int:
        """How many threads there are, once those that are ending have ended."""
        count = threading.active_count()
        for _ in range(20):
            await anyio.sleep(0.001)
            count = min(count, threading.active_count())
        return count
