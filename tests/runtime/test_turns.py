"""Whether the event loop has a turn: looked at seldom, and told by the source's own steps."""

from __future__ import annotations

import asyncio
import types
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from streamguard.runtime.turns import SLICE, LoopTurns, Watched
from tests.runtime.fakes import Script, serve
from tests.runtime.virtual import BACKENDS, run

pytestmark = pytest.mark.anyio

LONG = 1.0  # seconds past the end of a slice: one step took them
SOON = 0.0


class Neighbour:
    """Counts the turns that another task gets."""

    def __init__(self) -> None:
        self.turns = 0

    async def run(self) -> None:
        while True:
            self.turns += 1
            await anyio.lowlevel.checkpoint()


async def turns_given(late: float, *, suspends: bool, slices: int = 20) -> int:
    """The turns that a neighbour gets while so many slices of one item each end `late`."""

    async def items() -> AsyncIterator[int]:
        for number in range(slices):
            if suspends:
                await anyio.lowlevel.checkpoint()
            yield number

    neighbour = Neighbour()
    async with aclosing(items()) as source, anyio.create_task_group() as tasks:
        turns = LoopTurns(source)
        tasks.start_soon(neighbour.run)
        await anyio.lowlevel.checkpoint()
        neighbour.turns = 0
        for _ in range(slices):
            await turns.source.__anext__()
            if turns.due(late):
                await turns.give(late)
        found = neighbour.turns
        tasks.cancel_scope.cancel()
    return found


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_source_of_many_items_that_never_suspends_gives_a_turn_a_slice(backend: str) -> None:
    assert run(backend, lambda: turns_given(SOON, suspends=False)) in range(19, 22)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_source_of_long_steps_that_never_suspends_gives_a_turn_a_slice(backend: str) -> None:
    assert run(backend, lambda: turns_given(LONG, suspends=False)) in range(18, 22)  # the first is let pass


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_source_of_long_steps_that_suspends_is_not_made_to_turn_again(backend: str) -> None:
    assert run(backend, lambda: turns_given(LONG, suspends=True)) in range(19, 22)  # its own, and none for asking


async def test_a_source_is_watched_seldom_once_it_suspended_and_always_while_it_does_not() -> None:
    async def items() -> AsyncIterator[int]:
        for number in range(100):
            if number < 40:
                await anyio.lowlevel.checkpoint()
            yield number

    watched = []
    async with aclosing(items()) as source:
        turns = LoopTurns(source)
        for _ in range(100):
            watched.append(isinstance(turns.source, Watched))
            await turns.source.__anext__()
            if turns.due(LONG):
                await turns.give(LONG)
    assert sum(watched[:40]) <= 8
    assert sum(watched[45:]) == 55


@pytest.mark.parametrize("blocks", [0.0, 0.02])
async def test_a_stream_whose_source_never_suspends_lets_others_run(blocks: float, monkeypatch: Any) -> None:
    """On a clock that each token moves: 300 tokens, at once or slowly."""
    clock = [0.0]
    neighbour = Neighbour()
    script: list[Any] = []
    for _ in range(300):
        script += [lambda: clock.__setitem__(0, clock[0] + (blocks or 0.0001)), "a"]
    served = serve(Script(*script), heartbeat=None, stall=None, write=None)
    monkeypatch.setattr(served.driver, "_clock", lambda: clock[0])
    served.wire._blocks = False
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(neighbour.run)
        await served.run()
        tasks.cancel_scope.cancel()
    assert neighbour.turns >= (250 if blocks else 5)


# ---- the watched iterator -------------------------------------------------------------------------


async def stepped(kind: str) -> AsyncIterator[Any]:
    """Items with and without a suspension before them, from each kind of async iterator."""

    async def generator() -> AsyncIterator[int]:
        yield 1
        await anyio.lowlevel.checkpoint()
        yield 2

    class Iterator:
        def __init__(self) -> None:
            self._items = generator()

        def __aiter__(self) -> Iterator:
            return self

        async def __anext__(self) -> int:
            return await self._items.__anext__()

    return generator() if kind == "generator" else Iterator()


@pytest.mark.parametrize("kind", ["generator", "iterator"])
async def test_a_watched_iterator_gives_the_same_and_says_which_step_suspended(kind: str) -> None:
    watched: Watched[Any] = Watched(await stepped(kind))
    found = []
    async for item in watched:
        found.append((item, watched.suspended))
        watched.suspended = False
    assert found == [(1, False), (2, True)]


@pytest.mark.parametrize("kind", ["generator", "iterator"])
async def test_a_cancellation_reaches_the_source_through_a_watched_step(kind: str) -> None:
    reached: list[str] = []

    async def waiting() -> AsyncIterator[int]:
        try:
            await anyio.sleep_forever()
            yield 1
        except anyio.get_cancelled_exc_class():
            reached.append("cancelled")
            raise

    with anyio.move_on_after(1.0):
        await Watched(waiting()).__anext__()
    assert reached == ["cancelled"]


async def test_what_a_watched_source_does_with_a_cancellation_is_its_own() -> None:
    async def stubborn() -> AsyncIterator[str]:
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            yield "swallowed"

    async with aclosing(stubborn()) as source:
        watched: Watched[str] = Watched(source)
        with anyio.CancelScope() as scope:
            scope.cancel()
            item = await watched.__anext__()
        assert item == "swallowed"
        assert watched.suspended


async def test_an_error_of_a_watched_source_is_raised() -> None:
    async def broken() -> AsyncIterator[int]:
        yield 1
        raise OSError("the model broke")

    watched: Watched[int] = Watched(broken())
    assert await watched.__anext__() == 1
    with pytest.raises(OSError, match="the model broke"):
        await watched.__anext__()


async def test_a_coroutine_that_was_made_of_a_generator_is_a_step_too() -> None:
    """`await` takes it, and it has no `__await__`."""

    class Old:
        def __aiter__(self) -> Old:
            return self

        @types.coroutine
        def __anext__(self) -> Any:
            yield from anyio.lowlevel.checkpoint().__await__()
            return "item"

    watched: Watched[Any] = Watched(Old())  # type: ignore[arg-type]
    assert await watched.__anext__() == "item"
    assert watched.suspended


class Bare:
    """An awaitable that is a bare iterator, without `send`, `throw` or `close`."""

    def __init__(self, waits: int) -> None:
        self._waits = waits

    def __aiter__(self) -> Bare:
        return self

    def __anext__(self) -> Bare:
        return self

    def __await__(self) -> Bare:
        return self

    def __iter__(self) -> Bare:
        return self

    def __next__(self) -> None:
        self._waits -= 1
        if self._waits < 0:
            raise StopIteration("done")


def test_a_bare_iterator_is_stepped_too_and_given_up_when_told() -> None:
    async def wait() -> str:
        return await Watched(Bare(2)).__anext__()  # type: ignore[type-var]

    step = wait()
    assert step.send(None) is None
    assert step.send(None) is None
    with pytest.raises(StopIteration, match="done"):
        step.send(None)
    step = wait()
    step.send(None)
    with pytest.raises(KeyError):
        step.throw(KeyError())
    step = wait()
    step.send(None)
    step.close()


def test_an_abandoned_step_is_closed() -> None:
    closed: list[str] = []

    async def waiting() -> AsyncIterator[int]:
        try:
            await asyncio.Future(loop=loop)
            yield 1
        finally:
            closed.append("closed")

    async def step(watched: Watched[int]) -> None:
        await watched.__anext__()

    loop = asyncio.new_event_loop()
    try:
        coroutine = step(Watched(waiting()))
        coroutine.send(None)
        coroutine.close()
    finally:
        loop.close()
    assert closed == ["closed"]


def test_a_slice_is_shorter_than_what_a_neighbour_may_have_to_wait() -> None:
    assert 2 * SLICE <= 0.010
