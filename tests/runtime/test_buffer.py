"""The hand-over buffer: nothing lost or reordered, bounded, one wake-up a batch, no sleeper forgotten."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamguard.core.flush import Immediate
from streamguard.core.items import Block, Checkpoint, Event, Finish, Item, Joined
from streamguard.core.verify import StreamVerifier
from streamguard.runtime.buffer import Buffer, HandOver, next_size, size_of
from tests.conftest import real_loops
from tests.runtime.fakes import native
from tests.runtime.virtual import run


class Threaded:
    """A function on a thread that is joined, and whose exception is raised, when the block is left."""

    def __init__(self, function: Any) -> None:
        self.failure: BaseException | None = None
        self.thread = threading.Thread(target=self._run, args=(function,), daemon=True)

    def _run(self, function: Any) -> None:
        try:
            function()
        except BaseException as exc:
            self.failure = exc

    def __enter__(self) -> Threaded:
        self.thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.thread.join(10)
        assert not self.thread.is_alive()
        if self.failure is not None:
            raise self.failure


async def rest(buffer: HandOver) -> list[Item]:
    items = []
    while True:
        try:
            items.append(await buffer.take())
        except StopAsyncIteration:
            return items


# ---- what is taken is what was put ---------------------------------------------------------------

ITEMS = st.one_of(st.text(max_size=4), st.binary(max_size=3), st.builds(Block, st.just("image")))


@given(items=st.lists(st.one_of(ITEMS, st.none()), max_size=30), bounds=st.builds(Buffer, st.integers(1, 6)))
def test_the_model_nothing_is_lost_repeated_or_reordered(items: list[Any], bounds: Buffer) -> None:
    """None stands for a take. The model is a list of what waits, whose text at the front comes as one piece."""

    async def test() -> None:
        buffer = HandOver(bounds)
        model: list[Any] = []
        for item in items:
            if item is None:
                if not model:
                    continue
                wanted = [model.pop(0)]
                while isinstance(wanted[0], str) and model and isinstance(model[0], str):
                    wanted.append(model.pop(0))
                taken = await buffer.take()
                assert taken == ("".join(wanted) if isinstance(wanted[0], str) else wanted[0])
                if isinstance(taken, Joined):
                    assert taken.pieces == sum(map(bool, wanted))
            else:
                model.append(item)
                more = buffer.put(item)
                assert more is buffer.room is (len(model) < bounds.max_items)
            assert buffer.waiting == (len(model), sum(map(size_of, model)))
        buffer.end()
        await rest(buffer)
        assert buffer.waiting == (0, 0)

    run("trio", test)


@given(pieces=st.lists(st.text(max_size=5), max_size=20))
def test_joined_pieces_make_the_same_stream_and_count_as_many_items(pieces: list[str]) -> None:
    texts = []
    for items in (pieces, [Joined.of(pieces)]):
        pipeline, reader = native(Immediate()), StreamVerifier()
        data = [pipeline.open(), *[pipeline.push(item, 0.0) for item in items], pipeline.finish(0.0)]
        texts.append("".join([frame.text for frame in reader.feed(b"".join(data))]))
        assert pipeline.items == sum(map(bool, pieces))
    assert texts[0] == texts[1]


@pytest.mark.anyio
@real_loops
@pytest.mark.parametrize("bounds", [Buffer(1), Buffer(3), Buffer(1024), Buffer(max_bytes=7)], ids=str)
async def test_a_thread_hands_over_all_it_has(bounds: Buffer, anyio_backend: Any) -> None:
    buffer = HandOver(bounds)
    most = 0

    def produce() -> None:
        nonlocal most
        for number in range(3000):
            if not buffer.put(f"{number} "):
                most = max(most, buffer.waiting[0])
                assert buffer.wait_for_room()
        buffer.end()

    with Threaded(produce):
        taken = await rest(buffer)
    assert "".join(map(str, taken)) == "".join(f"{number} " for number in range(3000))
    assert sum([getattr(item, "pieces", 1) for item in taken]) == 3000
    assert most <= bounds.max_items
    assert max(map(size_of, taken)) <= bounds.max_bytes + 5  # and one item


# ---- bounds --------------------------------------------------------------------------------------


def test_bounds_are_at_least_one() -> None:
    for wrong in ({"max_items": 0}, {"max_bytes": 0}, {"max_items": -1}):
        (name,) = wrong
        with pytest.raises(ValueError, match=f"^{name} is a whole number of at least 1, not "):
            Buffer(**wrong)
    other: Any
    for other in (1.5, "x", None, True):
        with pytest.raises(TypeError, match=f"^max_items is a whole number of at least 1, not {other!r}$"):
            Buffer(max_items=other)


def test_bytes_are_a_bound_too() -> None:
    buffer = HandOver(Buffer(max_bytes=10))
    assert buffer.put("12345")
    assert not buffer.put("12345")
    assert buffer.waiting == (2, 10)


def test_text_that_is_not_ascii_weighs_no_less_than_its_bytes() -> None:
    for text in ("é", "你好", "🙂", "\ud800", "aé"):
        assert size_of(text) >= len(text.encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize(
    "item",
    [
        b"x" * 1000,
        Block("image", {"data": "x" * 1000}),
        Block("image", {"parts": [{"data": "x" * 1000}]}),
        Event("x" * 1000),
        {"choices": [{"delta": {"content": "x" * 1000}}]},
        Finish(usage={"note": "x" * 1000}),
        Checkpoint({"state": "x" * 1000}),
        Joined.of(["x" * 500, "x" * 500]),
    ],
    ids=lambda item: type(item).__name__,
)
def test_data_inside_an_item_counts(item: Item) -> None:
    assert 1000 <= size_of(item) < 2000


def test_an_item_that_cannot_be_weighed_is_handed_over_all_the_same() -> None:
    class Hostile(Mapping[str, Any]):
        def __getitem__(self, key: str) -> Any:
            raise KeyError(key)

        def __iter__(self) -> Iterator[str]:
            raise RuntimeError("no")

        def __len__(self) -> int:
            raise RuntimeError("no")

    deep: list[Any] = []
    deep.append(deep)
    for item in (Hostile(), {"deep": deep}, object(), None, ("a", "b")):
        assert 0 < size_of(item) < 10_000
        buffer = HandOver(Buffer())
        assert buffer.put(item)
        assert run("trio", buffer.take) is item


def test_an_item_weighs_when_it_is_taken_what_it_weighed_when_it_was_put() -> None:
    buffer = HandOver(Buffer())
    usage: dict[str, Any] = {"text": "x" * 100}
    buffer.put(usage)
    usage.clear()
    run("trio", buffer.take)
    assert buffer.waiting == (0, 0)


def test_a_producer_goes_on_when_half_of_the_buffer_is_free() -> None:
    async def test() -> None:
        buffer = HandOver(Buffer(max_items=4))
        for number in range(4):
            buffer.put(b"%d" % number)
        went_on: list[int] = []

        async def producer() -> None:
            assert await buffer.room_made()
            went_on.append(buffer.waiting[0])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(producer)
            await anyio.wait_all_tasks_blocked()
            for _ in range(2):
                assert went_on == []
                await buffer.take()
                await anyio.wait_all_tasks_blocked()
        assert went_on == [2]

    run("trio", test)
    run("asyncio", test)


# ---- wake-ups ------------------------------------------------------------------------------------


@pytest.mark.parametrize("uvloop", [False, pytest.param(True, id="uvloop")])
def test_a_batch_costs_one_wake_up(uvloop: bool) -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        buffer = HandOver(Buffer())
        wakes = []

        def counting(callback: Any, *args: Any, context: Any = None) -> Any:
            wakes.append(callback)
            return loop.call_soon_threadsafe(callback, *args)

        taking = asyncio.ensure_future(buffer.take())
        await asyncio.sleep(0)
        assert buffer.idle
        assert buffer._call is not None
        buffer._call._call = counting
        for batch in range(3):
            with Threaded(lambda: [buffer.put("x") for _ in range(500)]):
                pass  # the loop stands still meanwhile
            assert len(wakes) == batch + 1
            assert await taking == "x" * 500
            taking = asyncio.ensure_future(buffer.take())
            await asyncio.sleep(0)
        taking.cancel()

    if uvloop:
        loops = pytest.importorskip("uvloop")
        loop = loops.new_event_loop()
    else:
        loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(test())
    finally:
        loop.close()


@pytest.mark.anyio
@real_loops
async def test_the_first_token_after_an_empty_buffer_leaves_at_once(anyio_backend: Any) -> None:
    """The producer puts one, and the next only when the consumer has it: no token waits for another."""
    buffer = HandOver(Buffer())
    has = threading.Semaphore(0)

    def produce() -> None:
        for number in range(200):
            buffer.put(str(number))
            assert has.acquire(timeout=10)
        buffer.end()

    with Threaded(produce):
        for number in range(200):
            assert await buffer.take() == str(number)
            has.release()
        assert await rest(buffer) == []


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_producer_on_the_loops_own_thread_wakes_its_consumer(backend: str) -> None:
    async def test() -> None:
        buffer = HandOver(Buffer(max_items=1))

        async def produce() -> None:
            for _ in range(100):
                if not buffer.put("x"):
                    assert await buffer.room_made()
            buffer.end()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(produce)
            assert await rest(buffer) == ["x"] * 100

    run(backend, test)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_take_that_is_cancelled_has_taken_nothing(backend: str) -> None:
    async def test() -> None:
        buffer = HandOver(Buffer())
        for _ in range(3):
            with anyio.move_on_after(0.01):
                await buffer.take()
            buffer.put("a")
            assert await buffer.take() == "a"
        got: list[Item] = []
        with anyio.CancelScope() as scope:  # the item comes together with the cancellation

            async def both() -> None:
                buffer.put("b")
                scope.cancel()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(both)
                got.append(await buffer.take())
        assert got or await buffer.take() == "b"
        assert buffer.waiting == (0, 0)

    run(backend, test)


def test_every_interleaving_of_the_last_look_wakes_the_sleeper() -> None:
    """The item comes at the one moment at which the consumer has said that it sleeps and not looked again."""

    async def test() -> None:
        buffer = HandOver(Buffer())

        class Late:
            """A queue in which an item appears between the look and the second look."""

            def __init__(self, inner: Any) -> None:
                self.inner = inner
                self.looks = 0

            def __bool__(self) -> bool:
                self.looks += 1
                if self.looks == 2:
                    buffer.put("late")
                return bool(self.inner)

            def __len__(self) -> int:
                return len(self.inner)

            def __getattr__(self, name: str) -> Any:
                return getattr(self.inner, name)

        buffer._queue = Late(buffer._queue)  # type: ignore[assignment]
        with anyio.fail_after(1):
            assert await buffer.take() == "late"
        assert not buffer.idle

    run("asyncio", test)
    run("trio", test)


# ---- endings -------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_failure_comes_after_the_last_item_and_once(backend: str) -> None:
    async def test() -> None:
        buffer = HandOver(Buffer())
        buffer.put("a")
        buffer.end(ValueError("no"))
        assert await buffer.take() == "a"
        with pytest.raises(ValueError, match="no"):
            await buffer.take()
        assert await rest(buffer) == []

    run(backend, test)


@pytest.mark.parametrize(
    "failure", [SystemExit(1), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError(), StopIteration(),
                StopAsyncIteration()], ids=lambda failure: type(failure).__name__,
)  # fmt: skip
def test_a_failure_that_means_something_else_to_a_task_is_told_as_one_that_does_not(failure: BaseException) -> None:
    async def test() -> None:
        buffer = HandOver(Buffer())
        buffer.end(failure)
        with pytest.raises(RuntimeError, match=f"the source raised {type(failure).__name__}") as raised:
            await buffer.take()
        assert raised.value.__cause__ is failure

    run("asyncio", test)
    run("trio", test)


@real_loops
async def test_after_close_nothing_waits_and_nobody_does(anyio_backend: Any) -> None:
    buffer = HandOver(Buffer(max_items=2))
    buffer.put(b"1")
    buffer.put(b"2")
    results: list[bool] = []

    async def producer() -> None:
        results.append(await buffer.room_made())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(producer)
        with Threaded(lambda: results.append(buffer.wait_for_room())):
            await anyio.wait_all_tasks_blocked()
            while len(buffer._sleepers) < 2:
                threading.Event().wait(0.001)
            buffer.close()
    assert results == [False, False]
    assert not buffer.put(b"3")
    buffer.end(ValueError("too late"))
    assert await rest(buffer) == []
    assert len(buffer._queue) <= 3  # two ends, and the one item that came too late


def test_close_while_the_producer_is_about_to_wait_does_not_leave_it_waiting() -> None:
    """Between its look and its entry as a sleeper, and between the entry and its second look."""
    for moment in ("before the entry", "after the entry"):
        buffer = HandOver(Buffer(max_items=1))
        buffer.put("x")

        class Sleepers(type(buffer._sleepers)):  # type: ignore[misc]
            def append(self, wake: Any) -> None:
                if moment == "before the entry":  # noqa: B023 - used in this turn only
                    buffer.close()  # noqa: B023
                super().append(wake)
                if moment == "after the entry":  # noqa: B023
                    buffer.close()  # noqa: B023

        buffer._sleepers = Sleepers()
        assert buffer.wait_for_room() is False


def test_a_wake_up_for_a_loop_that_is_gone_is_no_error() -> None:
    async def sleep_once(buffer: HandOver) -> None:
        with anyio.move_on_after(0.001):
            await buffer.take()

    for backend in ("asyncio", "trio"):
        for on_thread in (True, False):
            buffer = HandOver(Buffer())
            anyio.run(sleep_once, buffer, backend=backend)
            if on_thread:
                with Threaded(lambda: buffer.put("x")):  # noqa: B023 - used in this turn only
                    pass
            else:
                buffer.put("x")
            assert buffer.waiting == (1, 1)


# ---- a size that moves with what the reader takes -------------------------------------------------


def test_the_size_is_what_a_reader_takes_in_a_second_by_half_or_double_at_once() -> None:
    assert [next_size(64, taken, 2.0, 8, 1024) for taken in (2, 150, 1000)] == [32, 75, 128]
    assert [next_size(9, 0, 2.0, 8, 1024), next_size(1000, 10**6, 1.0, 8, 1024)] == [8, 1024]
    assert next_size(64, 1, 0.0, 8, 1024) == 128  # in no time


@given(st.integers(1, 100), st.integers(0, 10**6), st.floats(0, 100), st.integers(1, 50), st.integers(50, 10**4))
def test_the_size_stays_between_its_bounds(size: int, taken: int, seconds: float, least: int, most: int) -> None:
    assert least <= next_size(size, taken, seconds, least, most) <= most


def test_a_buffers_lower_bounds_are_an_eighth_and_never_above_the_upper_ones() -> None:
    assert (Buffer().min_items, Buffer().min_bytes) == (128, 32 * 1024)
    assert (Buffer(3, 9).min_items, Buffer(3, 9).min_bytes) == (1, 1)
    assert Buffer(3, min_items=3).min_items == 3
    with pytest.raises(ValueError, match=r"^min_items is at most max_items, which is 3, not 4$"):
        Buffer(3, min_items=4)
    with pytest.raises(ValueError, match=r"^min_bytes is at most max_bytes, which is 262144, not 262145$"):
        Buffer(min_bytes=262145)
    for wrong, error in ((0, ValueError), (1.5, TypeError), (None, TypeError)):
        with pytest.raises(error, match=r"^min_bytes is a whole number of at least 1, not "):
            Buffer(min_bytes=wrong)  # type: ignore[arg-type]


class Read:
    """A buffer, kept full by a task, and a reader to whom each item is so many seconds of work."""

    def __init__(self, bounds: Buffer, item: Item = "token") -> None:
        self.buffer = HandOver(bounds, anyio.current_time)
        self.most = 0
        self._item = item

    async def fill(self) -> None:
        while True:
            if not self.buffer.put(self._item):
                self.most = max(self.most, self.buffer.waiting[0])
                if not await self.buffer.room_made():
                    return
            if self.buffer.waiting[0] > 10_000:
                raise AssertionError("the buffer is not bounded")

    async def read(self, turns: int, seconds: float) -> None:
        """Take so many times; what is taken takes so long for each of its pieces."""
        for _ in range(turns):
            taken = await self.buffer.take()
            await anyio.sleep(getattr(taken, "pieces", 1) * seconds)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("item", ["token", Block("image")], ids=["text", "block"])
def test_a_slow_reader_makes_the_buffer_small_and_a_quick_one_large_again(backend: str, item: Item) -> None:
    async def test() -> None:
        read = Read(Buffer(1024, min_items=32), item)
        turns = 1 if isinstance(item, str) else 300  # text is taken whole, a block by itself
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read.fill)
            await read.read(3 * turns, 0.00001)
            assert read.buffer.size[0] == 1024
            await read.read(12 * turns, 0.02)  # fifty in a second
            assert read.buffer.size[0] == 50
            read.most = 0
            await read.read(6 * turns, 0.02)
            assert read.most == 50
            await read.read(12 * turns, 1.0)
            assert read.buffer.size[0] == 32
            await read.read(20 * turns, 0.00001)
            assert read.buffer.size[0] == 1024
            read.buffer.close()

    run(backend, test)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_bytes_move_too_and_each_bound_by_itself(backend: str) -> None:
    async def test() -> None:
        read = Read(Buffer(1024, 64 * 1024, min_items=16, min_bytes=2000), "x" * 1000)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read.fill)
            await read.read(20, 0.1)  # ten kilobytes in a second
            assert read.buffer.size == (16, 10_000)
            read.buffer.close()

    run(backend, test)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_slow_source_makes_no_buffer_small(backend: str) -> None:
    """What a reader takes then says nothing of the reader. Nor does the time in which it had nothing to take."""

    async def test() -> None:
        buffer = HandOver(Buffer(8, min_items=1), anyio.current_time)

        async def fill() -> None:
            for number in range(40):
                await anyio.sleep(100.0 if number % 10 == 0 else 0.0)
                if not buffer.put(str(number)):
                    await buffer.room_made()
            buffer.end()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fill)
            assert "".join(map(str, await rest(buffer))) == "".join(map(str, range(40)))
        assert buffer.size[0] == 8

    run(backend, test)


@given(st.lists(st.sampled_from([0.0, 0.001, 0.1, 7.0]), min_size=1, max_size=30), st.booleans())
def test_no_token_is_dropped_whatever_the_reader_does(pauses: list[float], text: bool) -> None:
    async def test() -> None:
        buffer = HandOver(Buffer(8, min_items=1, min_bytes=1), anyio.current_time)
        put: list[Any] = [str(number) if text or number % 3 else Block("image", {"n": number}) for number in range(200)]

        async def fill() -> None:
            for item in put:
                if not buffer.put(item):
                    assert buffer.waiting[0] <= 8
                    assert await buffer.room_made()
            buffer.end()

        taken: list[Any] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fill)
            for pause in pauses:
                with anyio.move_on_after(0 if pause == 7.0 else None):
                    try:
                        taken.append(await buffer.take())
                    except StopAsyncIteration:
                        break
                await anyio.sleep(pause)
            else:
                taken += await rest(buffer)

        def plain(items: list[Any]) -> list[Any]:
            whole: list[Any] = []
            for item in items:
                if isinstance(item, str) and whole and isinstance(whole[-1], str):
                    whole[-1] += item
                else:
                    whole.append(item)
            return whole

        assert plain(taken) == plain(put)

    run("trio", test)
