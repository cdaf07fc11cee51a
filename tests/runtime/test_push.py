"""A source that is pushed to, from anywhere, and tells whoever pushes that nobody reads any more."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import anyio
import pytest

from streamguard.core.errors import SourceFailed, StreamClosed
from streamguard.runtime.buffer import Buffer
from streamguard.runtime.push import PushSource
from streamguard.runtime.source import TokenSource
from tests.conftest import LOOPS
from tests.runtime.fakes import serve

pytestmark = pytest.mark.anyio


@pytest.fixture(params=LOOPS)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """Threads take real time, so this is not the virtual one."""
    return request.param


async def run(source: PushSource, *producers: Any) -> Any:
    """Serve `source`, fed by `producers` on threads of their own."""
    served = serve(source, clock=time.monotonic)
    threads = [threading.Thread(target=producer, daemon=True) for producer in producers]
    for thread in threads:
        thread.start()
    await served.run()
    for thread in threads:
        await anyio.to_thread.run_sync(thread.join, 10)
        assert not thread.is_alive()
    return served


async def test_what_a_thread_pushes_arrives() -> None:
    source = PushSource()

    def produce() -> None:
        for number in range(500):
            source.put(f"{number} ")
        source.finish("stop", {"completion_tokens": 500})

    served = await run(source, produce)
    assert served.wire.text == "".join(f"{number} " for number in range(500))
    assert served.wire.read().finish_reason == "stop"
    assert served.outcome.items == 500


async def test_two_threads_may_push_at_once() -> None:
    source = PushSource(buffer=Buffer(max_items=16))
    left = [2]
    lock = threading.Lock()

    def produce(mark: str) -> None:
        for _ in range(2000):
            if not source.put(mark):
                assert source.wait()
        with lock:
            left[0] -= 1
            if not left[0]:
                source.finish()

    served = await run(source, lambda: produce("a"), lambda: produce("b"))
    assert served.outcome.status == "complete"
    assert sorted(served.wire.text) == ["a"] * 2000 + ["b"] * 2000


async def test_it_can_be_made_and_filled_where_there_is_no_loop() -> None:
    made: list[PushSource] = []

    def elsewhere() -> None:
        made.append(PushSource())
        made[0].put("a")
        made[0].finish()

    await anyio.to_thread.run_sync(elsewhere)
    assert (await run(made[0])).wire.text == "a"


async def test_a_callback_on_the_loops_own_thread_pushes_too() -> None:
    source = PushSource(buffer=Buffer(max_items=2))
    served = serve(source, clock=time.monotonic)

    async def produce() -> None:
        for number in range(20):
            if not source.put(f"{number} "):
                assert await source.room_made()
        source.finish()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(served.run)
        tasks.start_soon(produce)
    assert served.wire.text == "".join(f"{number} " for number in range(20))


@pytest.mark.parametrize("failure", [ValueError("no"), SourceFailed("overloaded", "later"), SystemExit(1)])
async def test_a_failure_is_that_of_the_source(failure: BaseException) -> None:
    source = PushSource()
    source.put("a")
    source.fail(failure)
    source.finish()  # too late to make it whole
    served = await run(source)
    assert served.wire.text == "a"
    assert served.wire.read().status == "failed"
    assert served.outcome.failure.code == ("overloaded" if isinstance(failure, SourceFailed) else "source_error")


async def test_after_the_end_nothing_can_be_pushed() -> None:
    source = PushSource()
    source.finish()
    with pytest.raises(StreamClosed, match="finished"):
        source.put("a")


async def test_a_reader_that_left_is_told_to_the_producer_and_once_to_on_close() -> None:
    told: list[str] = []
    source = PushSource(on_close=lambda: told.append("closed"))
    served = serve(source, clock=time.monotonic)
    over = threading.Event()

    def produce() -> None:
        try:
            while True:
                if not source.put("x"):
                    source.wait()
        except StreamClosed:
            over.set()

    served.wire._on_send = lambda number, data: served.wire.left.set() if number == 3 else None
    thread = threading.Thread(target=produce, daemon=True)
    thread.start()
    await served.run()
    assert await anyio.to_thread.run_sync(over.wait, 10)
    await source.aclose()
    assert served.outcome.status == "gone"
    assert told == ["closed"]
    source.finish()
    source.fail(ValueError("too late"))


async def test_a_source_that_nobody_iterated_is_closed_and_may_tell_so_in_a_task() -> None:
    told = anyio.Event()

    async def abort() -> None:
        await anyio.lowlevel.checkpoint()
        told.set()

    source = PushSource(on_close=abort)
    await TokenSource(source).aclose()
    assert told.is_set()
    with pytest.raises(StreamClosed, match="over"):
        source.put("a")
    assert source.room_made is not None
    assert await source.room_made() is False


async def test_a_finished_source_is_not_told_that_it_is_over() -> None:
    told: list[str] = []
    source = PushSource(on_close=lambda: told.append("closed"))
    source.finish()
    await run(source)
    assert told == []


@pytest.mark.parametrize(("bounds", "size"), [(Buffer(max_items=5), 1), (Buffer(max_bytes=10), 2)])
async def test_a_producer_that_does_not_slow_down_fails_the_stream_at_twice_the_bound(
    bounds: Buffer, size: int
) -> None:
    """What it pushed last is lost. Had it gone on once there was room, the answer would lack a piece and look whole."""
    source = PushSource(buffer=bounds)
    rooms = [source.put("x" * size) for _ in range(10)]
    assert rooms == [True] * 4 + [False] * 6
    with pytest.raises(BufferError, match=r"10 items wait .*: call `wait`"):
        source.put("lost")
    with pytest.raises(StreamClosed, match="more was put than it holds"):
        source.put("after the lost one")
    source.finish()  # too late to make it whole
    served = await run(source)
    assert served.wire.text == "x" * size * 10
    assert served.wire.read().status == "failed"
    assert served.outcome.failure.message == "BufferError"


async def test_an_engine_that_swallows_the_overflow_is_told_by_on_close() -> None:
    told: list[str] = []
    source = PushSource(buffer=Buffer(max_items=1), on_close=lambda: told.append("closed"))
    for _ in range(3):
        with contextlib.suppress(BufferError):
            source.put("x")
    await run(source)
    assert told == ["closed"]


async def test_one_large_item_is_within_any_bound() -> None:
    source = PushSource(buffer=Buffer(max_bytes=10))
    assert source.put(b"x" * 20) is False
    source.finish()
    assert (await run(source)).wire.read().status == "complete"


async def test_a_stream_that_is_over_says_so_though_its_buffer_was_full() -> None:
    source = PushSource(buffer=Buffer(max_items=1))
    source.put("a")
    source.put("b")
    await source.aclose()
    with pytest.raises(StreamClosed, match="over"):
        source.put("c")


async def test_waiting_on_the_loop_is_refused() -> None:
    source = PushSource()
    with pytest.raises(RuntimeError, match="room_made"):
        source.wait()
    assert await anyio.to_thread.run_sync(source.wait)


@pytest.mark.parametrize("wrong", [{"buffer": 5}, {"on_close": 5}, {"on_close": lambda source: None}])
def test_what_is_no_buffer_or_no_function_is_refused_when_it_is_given(wrong: Any) -> None:
    with pytest.raises(TypeError, match=next(iter(wrong))):
        PushSource(**wrong)


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (lambda source: source.fail("it broke"), "fail takes an exception: fail(RuntimeError('it broke'))"),
        (lambda source: source.fail(ValueError), "fail takes an exception: fail(ValueError('…'))"),
        (lambda source: source.finish({"total_tokens": 1}), "reason is text or None, not a dict"),
        (lambda source: source.finish("stop", 7), "usage is a mapping or None, not a int"),
    ],
    ids=["text", "a class", "usage by position", "a number"],
)
async def test_an_end_that_is_refused_is_a_failed_stream_and_no_open_one(end: Any, said: str) -> None:
    source = PushSource()
    raised: list[str] = []

    def produce() -> None:
        source.put("a")
        try:
            end(source)
        except TypeError as exc:
            raised.append(str(exc))

    with anyio.fail_after(10):
        served = await run(source, produce)
    assert raised[0].startswith(said)
    assert (served.outcome.status, served.outcome.failure.code) == ("failed", "source_error")
    with pytest.raises(StreamClosed):
        source.put("b")
