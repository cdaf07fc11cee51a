"""The recording source does what its script says, in every shape, and misses nothing that is done to it."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any, get_args

import anyio
import pytest

from streamguard.core.items import Block, Finish
from streamguard.runtime.closing import close
from streamguard.runtime.source import TokenSource
from streamguard.testing.source import FOREVER, RecordingSource, Shape, Yield, current_task

pytestmark = pytest.mark.anyio

SHAPES: list[Shape] = list(get_args(Shape))
ASYNC: list[Shape] = [shape for shape in SHAPES if shape.startswith("async")]
SYNC: list[Shape] = [shape for shape in SHAPES if not shape.startswith("async")]
VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable")


async def read(source: RecordingSource, most: int = 100) -> list[Any]:
    """What a TokenSource makes of it, closed after `most` items."""
    found = []
    with anyio.fail_after(10):
        async with TokenSource(source) as items:
            async for item in items:
                found.append(item)
                if len(found) == most:
                    break
    return found


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_script_is_yielded_in_order_and_closed(shape: Shape) -> None:
    items = ["a", b"b", Block("image"), {"x": 1}, Finish("stop")]
    source = RecordingSource(*items, shape=shape)
    assert await read(source) == items
    assert (source.opens, source.steps, source.returns, source.cancels, source.exits) == (1, 5, 1, 0, 0)
    assert source.closes == (2 if "iterable" in shape else 1)  # the iterable's own, after its generator's
    assert [note.act for note in source.notes[:6]] == ["step"] * 5 + ["return"]


@pytest.mark.parametrize("shape", SHAPES)
async def test_every_step_and_the_close_are_noted_with_where_they_were(shape: Shape) -> None:
    VARIABLE.set("mine")
    source = RecordingSource("a", "b", shape=shape, variable=VARIABLE)
    await read(source)
    assert source.in_one_task
    assert source.in_one_thread
    assert set(source.values) == {"mine"}
    here = threading.current_thread()
    assert all((thread is here) is (shape in ASYNC) for thread in source.threads)
    assert all((task is current_task()) is (shape in ASYNC) for task in source.tasks)


async def test_a_close_elsewhere_is_seen() -> None:
    source = RecordingSource("a", "b", shape="async iterator", variable=VARIABLE)
    producer = source()
    assert await producer.__anext__() == "a"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(producer.close)
    assert not source.in_one_task
    assert source.in_one_thread
    threaded = RecordingSource("a", shape="iterator")
    assert list(threaded()) == ["a"]
    thread = threading.Thread(target=threaded.closed_sync)
    thread.start()
    thread.join()
    assert not threaded.in_one_thread
    assert threaded.values == [None] * 3


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_producer_that_is_left_is_closed_where_it_stood(shape: Shape) -> None:
    reached = threading.Event()
    source = RecordingSource(Block("a"), reached.set, Block("b"), shape=shape)
    assert await read(source, 1) == [Block("a")]
    assert source.closes == (2 if "iterable" in shape else 1)
    if shape in ASYNC:  # a thread may have gone on ahead
        assert source.steps == 1
        assert not reached.is_set()
        assert source.exits == (0 if shape == "async iterator" else 1)


@pytest.mark.parametrize("shape", SHAPES)
async def test_an_exception_of_the_script_is_raised_there(shape: Shape) -> None:
    source = RecordingSource("a", LookupError("mine"), "never", shape=shape)
    with pytest.raises(LookupError, match="mine"):
        await read(source)
    assert source.steps == 1
    assert [note.act for note in source.notes].count("raise") == 1
    assert source.returns == 0


@pytest.mark.parametrize("shape", ASYNC)
async def test_a_wait_ends_when_its_event_is_set_and_a_cancel_is_noted(shape: Shape) -> None:
    event = anyio.Event()
    source = RecordingSource("a", event, "b", FOREVER, "never", shape=shape)
    producer = source()
    iterator = producer.__aiter__()
    assert await iterator.__anext__() == "a"

    async def step() -> None:
        await iterator.__anext__()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(step)
        await anyio.wait_all_tasks_blocked()
        assert source.steps == 1
        event.set()
        await anyio.wait_all_tasks_blocked()
        assert source.steps == 2
    with anyio.CancelScope() as scope:
        scope.cancel()
        await iterator.__anext__()
    assert source.cancels == 1
    assert source.steps == 2


@pytest.mark.parametrize("shape", ASYNC)
async def test_a_stubborn_source_goes_on_when_it_is_cancelled(shape: Shape) -> None:
    source = RecordingSource(FOREVER, "after", shape=shape, stubborn=True)
    iterator = source().__aiter__()
    with anyio.CancelScope() as scope:
        scope.cancel()
        assert await iterator.__anext__() == "after"
    await close(iterator)
    assert source.cancels == 1


@pytest.mark.parametrize("shape", SHAPES)
async def test_what_waits_for_ever_goes_on_when_it_is_released(shape: Shape) -> None:
    source = RecordingSource(FOREVER, "a", shape=shape)
    found: list[Any] = []

    async def reading() -> None:
        found.extend(await read(source))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reading)
        while not source.notes:  # noqa: ASYNC110  (noted by a thread)
            await anyio.sleep(0.001)
        await anyio.wait_all_tasks_blocked()
        assert found == []
        source.release()
    assert found == ["a"]
    assert await read(source) == ["a"]  # released once is released


@pytest.mark.parametrize("shape", SHAPES)
async def test_functions_are_called_and_numbers_are_slept(shape: Shape) -> None:
    called: list[int] = []
    source = RecordingSource(lambda: called.append(1), 0, 0.001, "a", Yield(5), Yield(len), shape=shape)
    assert await read(source) == ["a", 5, len]
    assert called == [1]


@pytest.mark.parametrize("shape", ASYNC)
async def test_what_a_function_returns_is_awaited(shape: Shape) -> None:
    async def later() -> None:
        await anyio.lowlevel.checkpoint()
        done.append(1)

    done: list[int] = []
    source = RecordingSource(later, "a", shape=shape, cleanup=later)
    assert await read(source) == ["a"]
    assert len(done) == 2


@pytest.mark.parametrize("shape", SYNC)
async def test_a_synchronous_source_awaits_nothing(shape: Shape) -> None:
    source = RecordingSource(anyio.Event(), shape=shape, cleanup=lambda: cleaned.append(1))
    cleaned: list[int] = []
    with pytest.raises(TypeError, match=f"'{shape}' cannot wait for"):
        await read(source)
    assert cleaned == [1]


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_thread_event_blocks(shape: Shape) -> None:
    event = threading.Event()
    event.set()
    assert await read(RecordingSource(event, "a", shape=shape)) == ["a"]


async def test_each_producer_runs_the_script_from_its_start() -> None:
    source = RecordingSource("a", "b")
    assert await read(source, 1) == ["a"]
    assert await read(source) == ["a", "b"]
    assert (source.opens, source.closes, source.returns) == (2, 2, 1)


async def test_an_iterator_that_is_closed_twice_says_so() -> None:
    source = RecordingSource("a", shape="async iterator")
    producer = source()
    await producer.close()
    await producer.close()
    assert source.closes == 2


def test_an_unknown_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown shape 'list'; known: async generator, async iterator"):
        RecordingSource(shape="list")  # type: ignore[arg-type]


def test_outside_of_a_loop_there_is_no_task() -> None:
    assert current_task() is None
    source = RecordingSource("a", shape="generator")
    assert list(source()) == ["a"]
    assert source.tasks == [None] * 3


@pytest.mark.parametrize("made", [lambda: RecordingSource("a"), lambda: RecordingSource("a", shape="generator")])
async def test_a_generator_that_never_started_never_closes(made: Callable[[], RecordingSource]) -> None:
    source = made()
    async with TokenSource(source()):
        pass
    assert (source.opens, source.notes) == (1, [])
