"""Whether the event loop has had a turn: asked often, answered by the loop itself."""

from __future__ import annotations

import asyncio

import anyio
import anyio.lowlevel
import pytest

from streamguard.runtime.turns import SLICE, LoopTurns
from tests.runtime.virtual import run


class Neighbour:
    """Counts the turns that another task gets."""

    def __init__(self) -> None:
        self.turns = 0
        self.stop = False

    async def run(self) -> None:
        while not self.stop:
            self.turns += 1
            await anyio.lowlevel.checkpoint()


async def turns_given(calls: int, between: int) -> int:
    """The turns that a neighbour gets while `give` is called, with `between` turns of our own after each."""
    neighbour = Neighbour()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(neighbour.run)
        await anyio.lowlevel.checkpoint()
        turns = LoopTurns()
        await turns.give()
        neighbour.turns = 0
        for _ in range(calls):
            for _ in range(between):
                await anyio.lowlevel.checkpoint()
            await turns.give()
        found = neighbour.turns
        neighbour.stop = True
    return found


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_task_that_never_suspends_gives_a_turn_at_each_call(backend: str) -> None:
    async def test() -> int:
        return await turns_given(20, 0)

    assert run(backend, test) in range(18, 22)


def test_a_loop_that_turned_by_itself_is_not_made_to_turn_again() -> None:
    async def test() -> int:
        return await turns_given(20, 2)

    assert run("asyncio", test) in range(38, 43)  # the forty of our own, and none for asking


def test_only_one_callback_waits_in_the_loop_however_often_it_is_asked() -> None:
    async def test() -> int:
        loop = asyncio.get_running_loop()
        turns = LoopTurns()
        for _ in range(100):
            turns._turned = True  # as if the loop had turned, and had not run the callback yet
            await turns.give()
        return len(loop._ready)  # type: ignore[attr-defined]

    assert run("asyncio", test) == 1


def test_a_slice_is_shorter_than_what_a_neighbour_may_have_to_wait() -> None:
    assert 2 * SLICE <= 0.010
