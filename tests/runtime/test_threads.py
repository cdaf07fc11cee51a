"""Sync sources: one thread that takes every step and closes, and a loop that never waits for it."""

from __future__ import annotations

import contextvars
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest

from streamguard.core.errors import StreamClosed
from streamguard.core.items import Block
from streamguard.runtime.buffer import Buffer
from streamguard.runtime.source import TokenSource
from streamguard.runtime.threads import ThreadIterator
from tests.conftest import LOOPS
from tests.runtime.fakes import Served, serve

pytestmark = pytest.mark.anyio

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


@pytest.fixture(params=LOOPS)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """Threads take real time, so this is not the virtual one."""
    return request.param


class Steps:
    """A sync source that notes where it runs. Called, it gives a generator; a function in its script is called."""

    def __init__(self, *script: Any, cleanup: Callable[[], None] | None = None) -> None:
        self.script = script
        self.cleanup = cleanup
        self.made = 0
        self.closes = 0
        self.threads: set[int] = set()
        self.values: list[str] = []
        self.over = threading.Event()

    def __call__(self) -> Iterator[Any]:
        try:
            for act in self.script:
                self._note()
                if isinstance(act, BaseException):
                    raise act
                if callable(act):
                    act()
                else:
                    self.made += 1
                    yield act
        finally:
            self._note()
            self.closes += 1
            if self.cleanup is not None:
                self.cleanup()
            self.over.set()

    def _note(self) -> None:
        self.threads.add(threading.get_ident())
        self.values.append(VARIABLE.get())
        VARIABLE.set(f"step {len(self.values)}")


class Iterable:
    """An SDK's stream: `close` on the iterable, an iterator of its own."""

    def __init__(self) -> None:
        self.closed_on: list[int] = []
        self.iterator_closed_on: list[int] = []

    def __iter__(self) -> Any:
        outer = self

        class Steps:
            left = 3

            def __iter__(self) -> Any:
                return self

            def __next__(self) -> str:
                if not self.left:
                    raise StopIteration
                self.left -= 1
                return "x"

            def close(self) -> None:
                outer.iterator_closed_on.append(threading.get_ident())

        return Steps()

    def close(self) -> None:
        self.closed_on.append(threading.get_ident())


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "streamguard-source"]


async def on_thread(event: threading.Event) -> None:
    """Wait for what a thread sets, without keeping the loop."""
    assert await anyio.to_thread.run_sync(event.wait, 10)


def until(condition: Callable[[], bool]) -> None:
    """Wait, on a thread, for what another one does."""
    for _ in range(10_000):
        if condition():
            return
        time.sleep(0.001)
    raise AssertionError("it did not come")


async def ended() -> None:
    for thread in threads():
        await anyio.to_thread.run_sync(thread.join, 10)
    assert threads() == []


async def run(source: Any, **options: Any) -> Served:
    return await serve(source, clock=time.monotonic, **options).run()


# ---- steps ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [Steps("a", "b"), lambda: iter(["a", "b"]), lambda: ["a", "b"], lambda: ("a", "b"),
                                  lambda: (text for text in "ab")])  # fmt: skip
async def test_a_sync_producer_gives_its_items(make: Callable[[], Any]) -> None:
    for producer in (make(), make):
        served = await run(producer)
        assert served.outcome.status == "complete"
        assert served.wire.text == "ab"
        assert served.outcome.items == 2
    await ended()


async def test_items_that_are_no_text_keep_their_place() -> None:
    block = Block("image")
    async with TokenSource(iter(["a", block, "b", block, block])) as items:
        assert [item async for item in items] == ["a", block, "b", block, block]


async def test_every_step_and_the_close_are_on_one_thread_in_one_context() -> None:
    VARIABLE.set("request")
    steps = Steps(*"abcdef")
    served = await run(steps)
    assert served.wire.text == "abcdef"
    assert len(steps.threads) == 1
    assert threading.get_ident() not in steps.threads
    assert steps.values == ["request", *[f"step {number}" for number in range(1, 7)]]
    assert VARIABLE.get() == "request"
    assert steps.closes == 1


async def test_the_context_is_that_in_which_the_source_was_made() -> None:
    VARIABLE.set("made here")
    steps = Steps("a")
    source = TokenSource(steps())
    VARIABLE.set("run here")
    await run(source)
    assert steps.values[0] == "made here"


async def test_a_source_is_not_asked_for_more_than_its_buffer_holds() -> None:
    steps = Steps(*["x"] * 1000)
    source = TokenSource(steps(), buffer=Buffer(max_items=4))
    async with source:
        await source.__anext__()
        (thread,) = threads()
        hand_over = source._iterator._hand_over  # type: ignore[union-attr]
        # until it waits for room, or has gone on though there is none
        await anyio.to_thread.run_sync(until, lambda: bool(hand_over._sleepers) or not thread.is_alive())
        assert steps.made <= 4 + 4 + 1
    assert steps.closes == 1


# ---- failures ------------------------------------------------------------------------------------


async def test_an_exception_reaches_the_stream_after_the_text_before_it() -> None:
    served = await run(Steps("a", "b", ValueError("no")))
    assert served.wire.read().status == "failed"
    assert served.wire.text == "ab"
    assert served.outcome.failure is not None
    assert (served.outcome.failure.code, served.outcome.failure.message) == ("source_error", "ValueError")


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), SystemExit(3), GeneratorExit(), StopAsyncIteration()])
async def test_an_exception_that_stops_a_program_stops_one_stream(failure: BaseException) -> None:
    served = await run(Steps("a", failure))
    assert served.wire.read().status == "failed"
    assert served.outcome.failure is not None
    assert served.outcome.failure.code == "source_error"


async def test_a_source_that_raises_our_own_closed_error_has_failed() -> None:
    """It may feed on another stream that was closed: half an answer is no whole one."""
    served = await run(Steps("a", StreamClosed("another stream")))
    assert served.wire.read().status == "failed"


async def test_what_cannot_be_iterated_after_all_fails_the_stream() -> None:
    class Broken:
        def __iter__(self) -> Any:
            raise StopIteration  # which `for` would take for an end

    assert (await run(Broken())).wire.read().status == "failed"


async def test_a_close_that_raises_spoils_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    def cleanup() -> None:
        raise OSError("the connection was gone")

    class Closing(Iterable):
        def close(self) -> None:
            super().close()
            raise OSError("the connection was gone")

    source = Closing()
    served = await run(source)
    assert served.outcome.status == "complete"
    assert len(source.closed_on) == 1
    assert "closing its source raised OSError" in caplog.text


@pytest.mark.parametrize("failure", [SystemExit(1), ValueError("no")])
async def test_a_generator_whose_clean_up_raises_when_the_reader_left(failure: BaseException) -> None:
    def cleanup() -> None:
        raise failure

    steps = Steps(*["x"] * 10_000, cleanup=cleanup)
    source = TokenSource(steps(), buffer=Buffer(max_items=1))
    await source.__anext__()
    with pytest.raises(type(failure) if isinstance(failure, Exception) else RuntimeError):
        await source.aclose()
    assert steps.closes == 1


async def test_a_thread_that_cannot_be_started_fails_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    steps = Steps("a")
    served = serve(steps())
    monkeypatch.setattr(threading.Thread, "start", refuse)
    await served.driver.run()
    assert served.wire.read().status == "failed"


# ---- closing -------------------------------------------------------------------------------------


async def test_a_source_that_was_never_started_is_closed_all_the_same() -> None:
    generator = Steps("a")()
    await TokenSource(generator).aclose()
    with pytest.raises(StopIteration):
        next(generator)
    iterable = Iterable()
    await TokenSource(iterable).aclose()
    assert len(iterable.closed_on) == 1
    assert iterable.iterator_closed_on == []
    assert threading.get_ident() not in iterable.closed_on  # closing a connection may block
    await ended()


async def test_iterator_and_iterable_are_closed_once_on_the_thread_that_drove_them() -> None:
    iterable = Iterable()
    async with TokenSource(iterable) as items:
        assert await items.__anext__() in ("x", "xx", "xxx")
    await items.aclose()
    assert len(iterable.closed_on) == len(iterable.iterator_closed_on) == 1
    assert iterable.closed_on == iterable.iterator_closed_on
    await ended()


async def test_a_thread_that_waits_for_room_takes_no_further_step() -> None:
    steps = Steps(*["x"] * 10_000)
    source = TokenSource(steps(), buffer=Buffer(max_items=1))
    await source.__anext__()
    hand_over = source._iterator._hand_over  # type: ignore[union-attr]
    await anyio.to_thread.run_sync(until, lambda: bool(hand_over._sleepers))
    made = steps.made
    await source.aclose()
    assert steps.made == made
    assert steps.closes == 1
    await ended()


async def test_a_thread_inside_a_step_takes_no_further_one() -> None:
    inside, go_on = threading.Event(), threading.Event()
    steps = Steps("a", inside.set, lambda: go_on.wait(10), "b", "c")
    source = TokenSource(steps())
    assert await source.__anext__() == "a"
    await on_thread(inside)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(source.aclose)
        await anyio.wait_all_tasks_blocked()
        go_on.set()
    assert steps.made == 2  # it was on its way to "b"
    assert steps.closes == 1
    await ended()


async def test_a_reader_that_leaves_ends_the_thread() -> None:
    steps = Steps(*["x"] * 1_000_000)
    served = serve(TokenSource(steps(), buffer=Buffer(max_items=8)))
    served.wire._on_send = lambda number, data: served.wire.left.set() if number == 3 else None
    await served.run()
    assert served.outcome.status == "gone"
    assert not served.outcome.abandoned
    assert steps.closes == 1
    assert steps.made < 1000
    await ended()


async def test_a_thread_stuck_in_a_step_is_abandoned_and_closes_when_it_can(caplog: pytest.LogCaptureFixture) -> None:
    stuck, go_on = threading.Event(), threading.Event()
    steps = Steps("a", stuck.set, lambda: go_on.wait(10), "b")
    served = serve(steps, clock=time.monotonic, close=0.05)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(served.run)
        await on_thread(stuck)
        served.wire.left.set()
    assert (served.outcome.status, served.outcome.abandoned) == ("gone", True)
    assert "close in time" in caplog.text or "abandoned" in caplog.text
    assert steps.closes == 0
    go_on.set()
    await on_thread(steps.over)
    assert (steps.closes, steps.made) == (1, 2)
    assert len(steps.threads) == 1
    await ended()


@pytest.mark.parametrize("why", ["stalled", "cancelled"])
async def test_the_terminal_does_not_wait_for_a_thread_that_is_stuck(why: str) -> None:
    """The limit for closing is far longer than this test waits: the terminal must leave before it."""
    stuck, go_on = threading.Event(), threading.Event()
    told = anyio.Event()
    steps = Steps("a", stuck.set, lambda: go_on.wait(60), "b")
    served = serve(steps, clock=time.monotonic, close=60.0, stall=0.3 if why == "stalled" else 600.0)
    served.wire._on_send = lambda number, data: told.set() if b"event: end" in data else None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(served.run)
        await on_thread(stuck)
        if why == "cancelled":
            served.cancel()
        with anyio.move_on_after(30) as limit:
            await told.wait()
        before = steps.closes
        go_on.set()
    assert not limit.cancelled_caught
    assert before == 0
    assert served.wire.read().status == served.outcome.status == why
    assert not served.outcome.abandoned
    assert steps.closes == 1
    await ended()


async def test_many_streams_that_are_left_leave_no_thread() -> None:
    async def leave() -> None:
        source = TokenSource(Steps(*["x"] * 1000)(), buffer=Buffer(max_items=2))
        await source.__anext__()
        await source.aclose()

    async with anyio.create_task_group() as tasks:
        for _ in range(50):
            tasks.start_soon(leave)
    await ended()


async def test_closing_twice_is_harmless() -> None:
    steps = Steps("a", "b")
    iterator = ThreadIterator(steps(), Buffer(), contextvars.copy_context())
    await iterator.__anext__()
    await iterator.aclose()
    await iterator.aclose()
    with pytest.raises(StopAsyncIteration):
        await iterator.__anext__()
    assert steps.closes == 1


EXIT = """
import threading
import time
from streamguard import TokenSource
import {backend} as backend

inside = threading.Event()

def source():
    yield "a"
    inside.set()
    time.sleep(3600)

async def main():
    items = TokenSource(source())
    await items.__anext__()
    inside.wait(10)
    print("seen")

backend.run({main})
"""


@pytest.mark.parametrize(("backend", "main"), [("asyncio", "main()"), ("trio", "main")])
def test_a_stuck_thread_keeps_no_interpreter_from_ending(backend: str, main: str) -> None:
    code = EXIT.format(backend=backend, main=main)
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "seen\n", "")
