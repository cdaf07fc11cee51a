"""An async source ahead of its reader: one task for its steps and its close, and no end that is not one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from streamguard.runtime.buffer import Buffer
from streamguard.runtime.source import TokenSource
from tests.runtime.fakes import VARIABLE, Script, Served, Wire, serve, task_id
from tests.runtime.virtual import BACKENDS, run

pytestmark = pytest.mark.anyio


def ahead(source: Any, wire: Wire | None = None, *, buffer: Buffer | None = None, **limits: Any) -> Served:
    return serve(TokenSource(source, buffer=buffer or Buffer()), wire, **limits)


async def test_items_arrive_whole_and_in_one_task_in_one_context() -> None:
    VARIABLE.set("request")
    script = Script("a", 0.1, "b", "c")
    served = await ahead(script).run()
    assert served.wire.text == "abc"
    assert served.outcome.items == 3
    assert len(set(script.tasks)) == 1
    assert set(script.tasks) != {task_id()}
    assert set(script.values) == {"request"}
    assert script.closes == script.returns == 1


async def test_a_slow_network_does_not_slow_the_source_and_gets_larger_frames() -> None:
    script = Script(*["x"] * 100)
    served = await ahead(script, Wire(slow=1.0)).run()
    assert served.wire.text == "x" * 100
    assert len(served.wire.chunks) < 10
    assert served.outcome.items == 100


async def test_at_the_bound_the_source_waits() -> None:
    script = Script(*["x"] * 100)
    source = TokenSource(script, buffer=Buffer(max_items=4))
    assert await source.__anext__() == "xxxx"
    await anyio.wait_all_tasks_blocked()
    assert script.steps <= 9
    await source.aclose()
    assert script.exits == script.closes == 1
    assert script.cancels == 0


@pytest.mark.parametrize("ending", ["raises", "cancelled by itself"])
async def test_a_source_that_fails_does_not_pass_for_a_whole_one(ending: str, anyio_backend_name: str) -> None:
    failure: Any = ValueError("no")
    if ending == "cancelled by itself" and anyio_backend_name == "asyncio":  # trio's come by scope only
        failure = asyncio.CancelledError()
    script = Script("a", failure)
    served = await ahead(script).run()
    assert served.wire.text == "a"
    assert served.wire.read().status == "failed"
    assert script.closes == 1


async def test_a_reader_that_leaves_stops_a_source_that_waits() -> None:
    script = Script("a", 1000.0, "b")
    served = ahead(script)
    served.wire._on_send = lambda number, data: served.wire.left.set() if number == 2 else None
    await served.run()
    assert served.outcome.status == "gone"
    assert script.cancels == script.closes == 1
    assert len(set(script.tasks)) == 1
    assert anyio.current_time() < 1


async def test_a_clean_up_may_wait_within_the_limit_and_not_beyond() -> None:
    done = []

    async def cleanup() -> None:
        await anyio.sleep(3)
        done.append(anyio.current_time())

    for limit, finished in ((5.0, 1), (1.0, 0)):
        done.clear()
        script = Script(*["x"] * 100, cleanup=cleanup)
        served = ahead(script, buffer=Buffer(max_items=1), close=limit)
        served.wire._on_send = lambda number, data, wire=served.wire: wire.left.set() if number == 3 else None
        await served.run()
        assert served.outcome.status == "gone"
        assert script.closes == 1
        assert len(done) == finished


async def test_a_generator_with_a_scope_around_its_yield_is_closed_inside_it() -> None:
    closed = []

    async def scoped() -> AsyncIterator[str]:
        with anyio.move_on_after(1000):
            try:
                while True:
                    yield "x"
            finally:
                closed.append(task_id())

    source = TokenSource(scoped, buffer=Buffer(max_items=2))
    await source.__anext__()
    await source.aclose()
    assert len(closed) == 1


async def test_iterator_and_iterable_are_closed_once() -> None:
    closed: list[str] = []

    class Steps:
        async def __anext__(self) -> str:
            return "x"

        async def aclose(self) -> None:
            closed.append("iterator")

    class Iterable:
        def __aiter__(self) -> Any:
            return Steps()

        def close(self) -> None:
            closed.append("iterable")

    source = TokenSource(Iterable(), buffer=Buffer(max_items=2))
    await source.__anext__()
    await source.aclose()
    assert closed == ["iterator", "iterable"]


async def test_one_that_was_never_started_is_closed() -> None:
    closed: list[str] = []

    class Iterable:
        def __aiter__(self) -> Any:
            raise AssertionError

        def close(self) -> None:
            closed.append("iterable")

    await TokenSource(Iterable(), buffer=Buffer()).aclose()
    assert closed == ["iterable"]


async def test_what_closing_raises_comes_out_of_the_close() -> None:
    async def cleanup() -> None:
        raise OSError("reset")

    source = TokenSource(Script("a", "b", "c", cleanup=cleanup), buffer=Buffer(max_items=1))
    await source.__anext__()
    with pytest.raises(OSError, match="reset"):
        await source.aclose()


async def test_a_clean_up_does_not_hold_back_the_terminal() -> None:
    class Slow:
        left = 1

        def __aiter__(self) -> Any:
            return self

        async def __anext__(self) -> str:
            self.left -= 1
            if self.left < 0:
                raise StopAsyncIteration
            return "a"

        async def aclose(self) -> None:
            await anyio.sleep(3)

    served = await ahead(Slow()).run()
    assert served.wire.read().status == "complete"
    assert served.wire.times[-1] < 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_buffered_source_that_swallows_again_and_again_does_not_spin(backend: str) -> None:
    told = 0

    async def source() -> AsyncIterator[str]:
        nonlocal told
        yield "a"
        while anyio.current_time() < 50:
            try:
                await anyio.sleep(50)
            except anyio.get_cancelled_exc_class():
                told += 1
        yield "b"

    async def test() -> Served:
        return await serve(TokenSource(source, buffer=Buffer()), stall=1.0, close=2.0, linger=0.0).run()

    assert run(backend, test, tick=0.0001).outcome.abandoned
    assert 1 < told < 4000


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_source_that_never_suspends_lets_the_loop_turn_ahead_of_its_reader_too(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("streamguard.runtime.ahead.monotonic", lambda: clock[0])
    made, taken = 0, []

    async def source() -> AsyncIterator[str]:
        nonlocal made
        for _ in range(500):
            clock[0] += 0.003
            made += 1
            yield "a"

    async def test() -> None:
        wire = Wire(on_send=lambda number, data: taken.append(made))
        assert (await ahead(source, wire).run()).outcome.status == "complete"

    run(backend, test)
    assert taken[1] < 50  # the first text leaves long before the last is made
