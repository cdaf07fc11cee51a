"""Any producer, for a thread that waits: each item once, in time, and no wake-up is lost or meant for another wait."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from streamguard.core.errors import SourceFailed
from streamguard.runtime.blocking_source import BlockingSource, Quiet, _BlockingHandOver
from streamguard.runtime.buffer import Buffer
from streamguard.runtime.source import TokenSource
from tests.adapters.servers import DEADLINE, Gate


def before_sleep(hand_over: _BlockingHandOver, *acts: Callable[[], object]) -> None:
    """Do these, one a sleep, where the consumer has looked for the last time and does not sleep yet."""
    sleep, left = hand_over._sleep_until_woken, list(acts)

    def acting(*args: Any) -> bool:
        if left:
            left.pop(0)()
        return sleep(*args)

    hand_over._sleep_until_woken = acting  # type: ignore[assignment]


class TestHandOver:
    def test_what_comes_between_the_last_look_and_the_sleep_wakes_it(self) -> None:
        hand_over = _BlockingHandOver(Buffer())
        before_sleep(hand_over, lambda: hand_over.put("one"))
        assert hand_over.next(DEADLINE) == "one"

    def test_what_comes_between_two_looks_is_taken_without_a_sleep_and_its_wake_ends_no_later_one(self) -> None:
        hand_over = _BlockingHandOver(Buffer())

        class Looked(deque[Any]):
            looks = 0

            def __bool__(self) -> bool:
                self.looks += 1
                if self.looks == 2:
                    hand_over.put("one")
                return len(self) > 0

        hand_over._queue = queue = Looked()
        hand_over._append = queue.append
        assert hand_over.next(DEADLINE) == "one"
        before_sleep(hand_over, lambda: None, lambda: hand_over.put("two"))  # the first sleep ends at the old wake
        assert hand_over.next(DEADLINE) == "two"

    def test_a_wait_with_a_time_of_its_own_is_not_cut_short_by_the_clock_of_all(self) -> None:
        hand_over = _BlockingHandOver(Buffer())

        def ticked() -> None:
            for _ in range(3):
                hand_over.tick()
            hand_over.put("one")

        before_sleep(hand_over, ticked)
        assert hand_over.next(DEADLINE) == "one"

    def test_one_without_is_ended_by_the_second_tick_that_finds_nothing_new(self) -> None:
        hand_over = _BlockingHandOver(Buffer())
        hand_over.put("one")
        assert hand_over.next(None) == "one"
        ticks = []

        def ticked() -> None:
            while hand_over.idle:
                hand_over.tick()
                ticks.append(1)

        before_sleep(hand_over, ticked)
        with pytest.raises(Quiet):
            hand_over.next(None)
        assert len(ticks) == 2  # one that took note of the item, one that found no other

    def test_a_tick_disturbs_nobody_who_is_awake(self) -> None:
        hand_over = _BlockingHandOver(Buffer())
        hand_over.tick()
        hand_over.tick()
        before_sleep(hand_over, lambda: hand_over.put("one"))
        assert hand_over.next(None) == "one"

    @pytest.mark.parametrize("timeout", [None, DEADLINE])
    def test_an_interruption_ends_a_wait_of_either_kind_or_the_next_one_and_no_other(
        self, timeout: float | None
    ) -> None:
        hand_over = _BlockingHandOver(Buffer())
        before_sleep(hand_over, hand_over.interrupt, lambda: hand_over.put("one"))
        with pytest.raises(Quiet):
            hand_over.next(timeout)
        assert hand_over.next(timeout) == "one"
        hand_over.interrupt()  # while it is elsewhere
        with pytest.raises(Quiet):
            hand_over.next(timeout)
        hand_over.put("two")
        assert hand_over.next(timeout) == "two"

    def test_a_wait_is_over_at_its_time_and_what_comes_just_then_is_not_lost(self) -> None:
        hand_over = _BlockingHandOver(Buffer())
        for timeout in (0.0, -1.0, 0.001):
            with pytest.raises(Quiet):
                hand_over.next(timeout)
        hand_over._sleep_until_woken = lambda *args: bool(hand_over.put("one")) and False  # type: ignore[assignment]
        with pytest.raises(Quiet):
            hand_over.next(0.001)
        assert hand_over.next(None) == "one"

    def test_a_close_while_it_sleeps_ends_the_wait(self) -> None:
        hand_over = _BlockingHandOver(Buffer())
        before_sleep(hand_over, hand_over.close)
        with pytest.raises(StopAsyncIteration):
            hand_over.next(None)


# ---- sources -----------------------------------------------------------------------------------------


class Books:
    """Sources of both kinds that note their close. A gate in the script is waited for, an exception raised."""

    def __init__(self, *script: Any) -> None:
        self.script = script
        self.closed = Gate()
        self.threads: set[str] = set()

    def plain(self) -> Iterator[Any]:
        try:
            for act in self.script:
                self.threads.add(threading.current_thread().name)
                if isinstance(act, Exception):
                    raise act
                if isinstance(act, Gate):
                    act.wait()
                else:
                    yield act
        finally:
            self.closed.open()

    async def later(self) -> AsyncIterator[Any]:
        try:
            for act in self.script:
                self.threads.add(threading.current_thread().name)
                if isinstance(act, Exception):
                    raise act
                if isinstance(act, Gate):
                    await act
                else:
                    yield act
        finally:
            self.closed.open()


def opened(source: Any, bounds: Buffer | None = None) -> BlockingSource:
    return BlockingSource(TokenSource(source), bounds)


def rest(source: BlockingSource) -> list[Any]:
    """The items to the end, each as it was put."""
    found = []
    try:
        while True:
            found.append(source.next(DEADLINE))
    except StopAsyncIteration:
        return found


KINDS = ["plain", "later"]
BYTES = [b"one", b"two", b"three", b"four"]  # which are not joined


@pytest.mark.parametrize("kind", KINDS)
def test_items_come_in_their_order_also_through_a_buffer_of_one(kind: str) -> None:
    books = Books(*BYTES)
    source = opened(getattr(books, kind)(), Buffer(max_items=1))
    source.start()
    assert rest(source) == BYTES
    assert source.close(DEADLINE)
    assert books.threads == {"streamguard-source" if kind == "plain" else "streamguard-loop"}


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_source_raises_is_raised_behind_its_last_item(kind: str) -> None:
    source = opened(getattr(Books(b"one", SourceFailed("overloaded", "later")), kind)())
    source.start()
    assert source.next(DEADLINE) == b"one"
    with pytest.raises(SourceFailed, match="later"):
        source.next(DEADLINE)
    assert source.close(DEADLINE)


@pytest.mark.parametrize("kind", KINDS)
def test_a_close_wakes_a_source_that_waits_for_room(kind: str) -> None:
    books = Books(*BYTES)
    source = opened(getattr(books, kind)(), Buffer(max_items=1))
    source.start()
    assert source.next(DEADLINE) == b"one"
    assert source.close(DEADLINE)
    assert books.closed.opened


def test_an_async_source_that_waits_is_cancelled_by_the_close() -> None:
    books = Books(b"one", Gate())
    source = opened(books.later())
    source.start()
    assert source.next(DEADLINE) == b"one"
    assert source.close(DEADLINE)
    assert books.closed.opened


def test_a_source_in_a_blocking_call_is_abandoned_at_the_limit_and_closes_when_it_returns() -> None:
    gate = Gate()
    books = Books(b"one", gate)
    source = opened(books.plain())
    source.start()
    assert source.next(DEADLINE) == b"one"
    assert not source.close(0.001)
    assert not books.closed.opened
    gate.open()
    books.closed.wait()


def test_so_is_an_async_one_that_does_not_stop_when_it_is_cancelled() -> None:
    gate, began, over = Gate(), Gate(), Gate()

    async def stubborn() -> AsyncIterator[Any]:
        began.open()
        while not gate.opened:
            try:
                await gate
            except asyncio.CancelledError:
                continue
        over.open()
        yield b"late"

    source = opened(stubborn())
    source.start()
    began.wait()
    assert not source.close(0.001)
    gate.open()
    over.wait()


@pytest.mark.parametrize("kind", KINDS)
def test_a_source_that_never_began_is_closed_without_a_step(kind: str) -> None:
    books = Books(b"one")
    made = getattr(books, kind)()
    assert opened(made).close(DEADLINE)
    assert not books.threads
    with pytest.raises(StopIteration if kind == "plain" else StopAsyncIteration):
        next(made) if kind == "plain" else asyncio.run(anext(made))


def test_a_source_that_another_stream_has_is_refused_and_not_closed() -> None:
    books = Books(b"one", b"two")
    shared = books.plain()
    first, second = opened(shared, Buffer(max_items=1)), opened(shared)
    first.start()
    with pytest.raises(ValueError, match="another stream"):
        second.start()
    assert second.close(DEADLINE)
    assert rest(first) == [b"one", b"two"]
    assert first.close(DEADLINE)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_close_raises_is_logged_and_no_more(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    class Plain(list[Any]):
        def close(self) -> None:
            raise OSError("closed already")

    class Later:
        def __aiter__(self) -> Any:
            return self

        async def __anext__(self) -> Any:
            raise StopAsyncIteration

        async def aclose(self) -> None:
            raise OSError("closed already")

    source = opened(Plain([b"one"]) if kind == "plain" else Later())
    source.start()
    rest(source)
    assert source.close(DEADLINE)
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        "closing a source raised OSError('closed already')"
    ]


def test_where_the_system_gives_no_thread_the_source_is_closed_and_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    class Opened(list[Any]):
        closes = 0

        def close(self) -> None:
            self.closes += 1

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    made = Opened()
    opened([]).close(DEADLINE)  # the clock and the loop of the process have theirs
    source = opened(made)
    first = opened([])
    first.start()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError, match="new thread"):
            source.start()
    assert source.close(DEADLINE)
    assert first.close(DEADLINE)
    assert made.closes == 1


def test_a_silent_source_is_looked_at_by_the_clock_of_all_as_long_as_it_runs() -> None:
    for kind in KINDS:  # the clock rests where nobody waits, and goes on for the next
        gate = Gate()
        source = opened(getattr(Books(gate, b"one"), kind)())
        source.start()
        with pytest.raises(Quiet):
            source.next(None)
        gate.open()
        assert source.next(DEADLINE) == b"one"
        assert source.close(DEADLINE)


def test_a_wait_is_interrupted_from_another_thread() -> None:
    source = opened(Books(gate := Gate()).plain())
    source.start()
    thread = threading.Thread(target=source.interrupt)
    before_sleep(source._hand_over, thread.start)
    with pytest.raises(Quiet):
        source.next(DEADLINE)
    thread.join(DEADLINE)
    gate.open()
    assert source.close(DEADLINE)


def test_a_plain_source_that_is_inline_is_stepped_and_closed_by_the_consumer() -> None:
    seen: list[int] = []

    def source() -> Iterator[str]:
        try:
            seen.append(threading.get_ident())
            yield "one"
            yield "two"
        finally:
            seen.append(threading.get_ident())

    items = BlockingSource(TokenSource(source()), None, inline=True)
    items.start()
    assert items.next(0.0) == "one"
    assert items.close(0.0)
    assert seen == [threading.get_ident()] * 2


def test_one_that_never_began_is_closed_there_too_and_another_streams_is_left_alone() -> None:
    def source() -> Iterator[str]:
        yield "one"

    own = source()
    assert BlockingSource(TokenSource(own), None, inline=True).close(0.0)
    assert own.gi_frame is None
    others = source()
    second = BlockingSource(TokenSource(others), None, inline=True)
    BlockingSource(TokenSource(others), None, inline=True).start()
    with pytest.raises(ValueError, match="read by another stream"):
        second.start()
    assert second.close(0.0)
    assert next(others) == "one"


def test_any_other_source_has_the_loop_also_where_it_may_be_inline() -> None:
    async def source() -> AsyncIterator[str]:
        yield threading.current_thread().name

    items = BlockingSource(TokenSource(source()), None, inline=True)
    items.start()
    assert items.next(DEADLINE) == "streamguard-loop"
    assert items.close(DEADLINE)


def test_one_that_is_inline_is_watched_from_another_thread_as_long_as_it_is_open() -> None:
    looked = threading.Event()

    def source() -> Iterator[str]:
        looked.wait(DEADLINE)
        yield threading.current_thread().name

    seen: list[str] = []

    def watch() -> None:
        seen.append(threading.current_thread().name)
        looked.set()

    items = BlockingSource(TokenSource(source()), None, inline=True)
    items.watch = watch
    items.start()
    assert items.next(None) == threading.current_thread().name
    items.close(0.0)
    assert set(seen) == {"streamguard-clock"}
