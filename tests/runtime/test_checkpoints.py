"""Checkpoints of a source that can say where it stands: as often as asked for, and each behind what was yielded."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import pytest

from streamguard.core.items import Checkpoint
from streamguard.runtime.buffer import Buffer
from streamguard.runtime.checkpoints import CheckpointEvery
from streamguard.runtime.source import TokenSource
from tests.conftest import real_loops

pytestmark = pytest.mark.anyio


class Model:
    """Counts; its state is how far it is. `closes`: how often it was closed, and its generator."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.made = 0
        self.closes: list[str] = []

    def state(self) -> int:
        return self.made


class Sync(Model):
    def __iter__(self) -> Iterator[str]:
        try:
            for number in range(self.count):
                self.made = number + 1
                yield str(number)
        finally:
            self.closes.append("generator")

    def close(self) -> None:
        self.closes.append("model")


class Async(Model):
    async def __aiter__(self) -> AsyncIterator[str]:
        try:
            for number in range(self.count):
                self.made = number + 1
                yield str(number)
                await anyio.sleep(1.0)
        finally:
            self.closes.append("generator")

    async def aclose(self) -> None:
        self.closes.append("model")


class Steps(Model):
    """An iterator of its own."""

    def __iter__(self) -> Steps:
        return self

    def __next__(self) -> str:
        if self.made == self.count:
            raise StopIteration
        self.made += 1
        return str(self.made - 1)

    def close(self) -> None:
        self.closes.append("model")


class AsyncSteps(Model):
    def __aiter__(self) -> AsyncSteps:
        return self

    async def __anext__(self) -> str:
        if self.made == self.count:
            raise StopAsyncIteration
        self.made += 1
        return str(self.made - 1)

    async def aclose(self) -> None:
        self.closes.append("model")


def consistent(items: list[Any]) -> list[int]:
    """How many items stand before each checkpoint, which must be its state."""
    places, count = [], 0
    for item in items:
        if isinstance(item, Checkpoint):
            assert item.state == count
            places.append(count)
        else:
            count += getattr(item, "pieces", 1)
    return places


each_buffer = pytest.mark.parametrize("buffer", [None, Buffer(max_items=50)], ids=["direct", "ahead"])


async def read_by_a_slow_reader(model: Model, buffer: Buffer | None, pause: float) -> None:
    """The source may run ahead of it."""
    source = TokenSource(CheckpointEvery(items=3).over(model), buffer=buffer)
    items = []
    async with source:
        async for item in source:
            items.append(item)
            await anyio.sleep(pause)
    assert consistent(items) == [3, 6, 9]
    assert model.closes == (["generator", "model"] if isinstance(model, (Sync, Async)) else ["model"])


@pytest.mark.parametrize("kind", [Async, AsyncSteps])
@each_buffer
async def test_a_checkpoint_stands_behind_what_was_yielded_before_it(kind: type[Model], buffer: Buffer | None) -> None:
    await read_by_a_slow_reader(kind(10), buffer, 2.0)


@real_loops
@pytest.mark.parametrize("kind", [Sync, Steps])
@each_buffer
async def test_a_checkpoint_stands_behind_what_a_thread_yielded_before_it(
    kind: type[Model], buffer: Buffer | None
) -> None:
    await read_by_a_slow_reader(kind(10), buffer, 0.001)


async def test_time_makes_a_checkpoint_due() -> None:
    every = CheckpointEvery(seconds=2.5, clock=anyio.current_time)
    items = [item async for item in TokenSource(every.over(Async(10)))]
    assert consistent(items) == [4, 7, 10]
    both = CheckpointEvery(items=2, seconds=2.5, clock=anyio.current_time)
    assert consistent([item async for item in TokenSource(both.over(Async(5)))]) == [2, 4]


@real_loops
@pytest.mark.parametrize("kind", [Async, Sync])
async def test_a_reader_that_leaves_closes_the_model(kind: type[Model]) -> None:
    model = kind(10)
    async with TokenSource(CheckpointEvery(items=3).over(model)) as source:
        async for _ in source:
            break
    assert model.closes == ["generator", "model"]


@pytest.mark.parametrize(
    "options", [{}, {"items": 0}, {"items": -1}, {"items": 1.5}, {"items": True}, {"seconds": 0}, {"seconds": "1"}]
)
def test_a_limit_is_above_zero(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"items|seconds"):
        CheckpointEvery(**options)


def test_a_source_has_a_state_and_gives_items() -> None:
    class Stateless:
        def __iter__(self) -> Iterator[str]:
            return iter(())

    for source, why in ((Stateless(), "state"), (Model(1), "is no source")):
        with pytest.raises(TypeError, match=why):
            CheckpointEvery(items=1).over(source)


class Growing(Sync):
    """Its state is what it goes on writing in, as a model's tokens are."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.tokens: list[int] = []

    def state(self) -> Any:
        return {"tokens": self.tokens}

    def __iter__(self) -> Iterator[str]:
        for text in super().__iter__():
            self.tokens.append(self.made)
            yield text


@real_loops
async def test_a_checkpoint_keeps_what_the_state_was_though_the_source_runs_ahead() -> None:
    source = TokenSource(CheckpointEvery(items=2).over(Growing(6)), buffer=Buffer(100))
    async with source:
        items = [item async for item in source]
    marks = [item for item in items if isinstance(item, Checkpoint)]
    assert marks == [Checkpoint({"tokens": list(range(1, count + 1))}) for count in (2, 4, 6)]
