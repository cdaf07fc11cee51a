"""The task that serves and the task that drives: what comes to the first, from outside, comes to the second once."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.runtime.fakes import Script, Served, Wire, serve
from tests.runtime.virtual import run

COUNTS = hasattr(asyncio.Task, "cancelling")  # Python 3.11: a task counts its cancellations


async def native(served: Served) -> None:
    task = asyncio.ensure_future(served.run())
    await asyncio.sleep(1.0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def wait_for(served: Served) -> None:
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(served.run(), 1.0)


async def scope(served: Served) -> None:
    with anyio.move_on_after(1.0) as around:
        await served.run()
    assert around.cancelled_caught


WAYS: list[Callable[[Served], Awaitable[None]]] = [native, wait_for, scope]


async def grouped() -> AsyncIterator[str]:
    """A source whose group takes some turns of the loop to end."""

    async def child() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.05)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(child)
        while True:
            yield "a"
            await anyio.sleep(0.3)


@pytest.mark.parametrize("way", WAYS)
def test_a_request_that_is_cancelled_is_known_to_be_whatever_groups_its_source_has(way: Any) -> None:
    async def test() -> Served:
        served = serve(grouped)
        await way(served)
        return served

    assert run("asyncio", test).outcome.status == "shutdown"


@pytest.mark.parametrize("way", [native, wait_for])
def test_a_clean_up_that_awaits_is_not_cut_by_the_one_cancellation_of_its_request(way: Any) -> None:
    done: list[str] = []

    async def source() -> AsyncIterator[str]:
        try:
            yield "a"
            await anyio.sleep_forever()
        finally:
            await anyio.sleep(0.05)
            done.append("rolled back")

    run("asyncio", lambda: way(serve(source)))
    assert done == ["rolled back"]


def test_a_source_that_goes_on_after_the_cancellation_of_its_request_is_told_once() -> None:
    told: list[float] = []

    async def headstrong() -> AsyncIterator[str]:
        yield "a"
        while anyio.current_time() < 20.0:
            try:
                await asyncio.sleep(0.5)
            except asyncio.CancelledError:
                told.append(anyio.current_time())

    run("asyncio", lambda: native(serve(headstrong)))
    assert len(told) == 1


# A task that is cancelled before its first step leaves a coroutine of anyio's behind that was never awaited.
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("turns", range(6))
@pytest.mark.parametrize("peek", [0.0, 1.0])
def test_a_loop_that_ends_leaves_no_source_open_and_calls_nothing_complete(turns: int, peek: float) -> None:
    """Every task of it is cancelled in one turn, whether it has begun or not."""
    script = Script("a", 10.0)

    async def test() -> Served:
        source = script()
        served = serve(source, peek=peek)
        me = asyncio.current_task()
        task = asyncio.ensure_future(served.run())
        await asyncio.sleep(0)
        for _ in range(turns):
            await asyncio.sleep(0)
        for other in asyncio.all_tasks():
            if other is not me:
                other.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        with pytest.raises(StopAsyncIteration):
            await source.__anext__()
        return served

    served = run("asyncio", test)
    assert served.outcome.status == "shutdown"
    served.check()
    gc.collect()  # here, where its warning is expected


def test_a_transport_that_raises_a_cancellation_of_its_own_ends_nothing() -> None:
    wire = Wire()

    async def gone() -> None:
        raise asyncio.CancelledError

    wire.gone = gone  # type: ignore[method-assign]

    async def test() -> Served:
        return await serve(Script("a", 1.0, "b"), wire).run()

    if COUNTS:
        assert run("asyncio", test).outcome.status == "complete"
    else:  # which cannot be told from a cancellation of the request
        with pytest.raises(asyncio.CancelledError):
            run("asyncio", test)


@pytest.mark.anyio
@pytest.mark.parametrize("fault", [KeyError("no such thing"), OSError("broken pipe")])
async def test_a_fault_of_a_layer_that_sends_is_named_in_the_log(fault: Exception, caplog: Any) -> None:
    def on_send(number: int, data: bytes) -> None:
        if b'"b"' in data:
            raise fault

    await serve(Script("a", "b"), Wire(on_send=on_send)).run()
    named = [line for line in caplog.messages if "refused a part with KeyError" in line]
    assert len(named) == isinstance(fault, KeyError)
