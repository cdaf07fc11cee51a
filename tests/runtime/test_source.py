"""Any producer becomes items, and is closed once."""

from __future__ import annotations

import asyncio
import functools
import types
from collections.abc import AsyncIterator, Callable
from collections.abc import Iterator as SyncIterator
from typing import Any
from unittest import mock

import anyio
import pytest

from streamguard.core.errors import StreamClosed
from streamguard.core.items import Block
from streamguard.runtime.buffer import Buffer
from streamguard.runtime.push import PushSource
from streamguard.runtime.source import TokenSource
from tests.conftest import real_loops
from tests.runtime.fakes import Script, serve, task_id
from tests.runtime.virtual import BACKENDS, run

pytestmark = pytest.mark.anyio


async def generate() -> AsyncIterator[str]:
    yield "a"
    yield "b"


class Iterator:
    """An iterator that notes how it is closed; what it can be closed by is added below."""

    def __init__(self) -> None:
        self.left = ["b", "a"]
        self.closed: list[str] = []

    def __aiter__(self) -> Iterator:
        return self

    async def __anext__(self) -> str:
        if not self.left:
            raise StopAsyncIteration
        return self.left.pop()


class WithAclose(Iterator):
    async def aclose(self) -> None:
        await anyio.lowlevel.checkpoint()
        self.closed.append("aclose")


class WithClose(Iterator):
    def close(self) -> None:
        self.closed.append("close")


class WithAsyncClose(Iterator):
    async def close(self) -> None:
        await anyio.lowlevel.checkpoint()
        self.closed.append("close")


class WithBoth(WithAclose, WithClose):
    pass


class Iterable:
    """Only `__aiter__`, as SDK streams are that keep their connection in the iterable."""

    def __init__(self) -> None:
        self.iterator = WithAclose()
        self.closed: list[str] = []

    def __aiter__(self) -> Iterator:
        return self.iterator

    def close(self) -> None:
        self.closed.append("close")


class GeneratorMethod:
    async def __aiter__(self) -> AsyncIterator[str]:
        yield "a"
        yield "b"


async def loaded() -> AsyncIterator[str]:
    await anyio.sleep(1)
    return generate()


async def loads_a_factory() -> Callable[[], Any]:
    return loaded


PRODUCERS = {
    "async generator": generate,
    "iterator with aclose": WithAclose,
    "iterator with close": WithClose,
    "iterator with neither": Iterator,
    "iterable": Iterable,
    "iterable by a generator method": GeneratorMethod,
    "awaitable": loaded,
    "factory": lambda: generate,
    "factory of an awaitable": lambda: loaded,
    "factory of an awaitable of a factory": lambda: loads_a_factory,
    "partial": lambda: functools.partial(generate),
    "class": lambda: WithClose,
    "source": lambda: TokenSource(generate()),
}


def each(names: dict[str, Callable[[], Any]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in names.items()])


@each(PRODUCERS)
async def test_every_kind_of_producer_gives_its_items(make: Callable[[], Any]) -> None:
    async with TokenSource(make()) as items:
        assert [item async for item in items] == ["a", "b"]


async def test_an_iterator_that_is_no_iterable_can_be_driven() -> None:
    class Steps:
        def __init__(self) -> None:
            self.left = ["b", "a"]

        async def __anext__(self) -> str:
            if not self.left:
                raise StopAsyncIteration
            return self.left.pop()

    class Producer:
        def __aiter__(self) -> Any:
            return Steps()

    served = await serve(Producer()).run()
    assert served.outcome.status == "complete"
    assert served.wire.text == "ab"


@each(PRODUCERS)
async def test_every_kind_of_producer_can_be_closed_before_it_was_opened(make: Callable[[], Any]) -> None:
    source = TokenSource(make())
    await source.aclose()
    with pytest.raises(StreamClosed):
        await source.open()


@each({name: make for name, make in PRODUCERS.items() if name != "class"})
async def test_nothing_starts_before_it_is_opened(make: Callable[[], Any]) -> None:
    before = anyio.current_time()
    source = TokenSource(make())
    assert anyio.current_time() == before
    await source.aclose()


@pytest.mark.parametrize("wrong", ["text", b"bytes", bytearray(b"bytes"), 1, None, {"a": 1}])
async def test_what_is_no_producer_is_refused_at_once(wrong: Any) -> None:
    """Text and mappings can be iterated, and are items themselves: letters and keys are never what was meant."""
    with pytest.raises(TypeError, match="is no source: give a generator"):
        TokenSource(wrong)


@pytest.mark.parametrize("result", ["text", {"a": 1}, 1, None])
async def test_a_factory_of_something_else_is_refused_when_it_is_opened(result: Any) -> None:
    source = TokenSource(lambda: result)
    with pytest.raises(TypeError, match="the source became"):
        await source.open()
    await source.aclose()


async def test_a_factory_that_returns_itself_does_not_keep_the_loop() -> None:
    class Mirror:
        def __call__(self) -> Mirror:
            return self

    with pytest.raises(TypeError, match="became Mirror"):
        await TokenSource(Mirror()).open()
    with pytest.raises(TypeError, match="became Mock"):
        await TokenSource(mock.Mock(spec=lambda: None)).open()


@pytest.mark.parametrize(
    ("kind", "closed"),
    [
        (WithAclose, ["aclose"]),
        (WithClose, ["close"]),
        (WithAsyncClose, ["close"]),
        (WithBoth, ["aclose"]),
        (Iterator, []),
    ],
)
async def test_closing_takes_the_way_that_there_is(kind: type[Iterator], closed: list[str]) -> None:
    iterator = kind()
    async with TokenSource(iterator) as items:
        assert await items.__anext__() == "a"
    await items.aclose()
    assert iterator.closed == closed


async def test_the_iterable_is_closed_too_after_its_iterator() -> None:
    iterable = Iterable()
    async with TokenSource(iterable) as items:
        await items.__anext__()
    assert iterable.iterator.closed == ["aclose"]
    assert iterable.closed == ["close"]


async def test_the_iterable_is_closed_though_its_iterator_raises() -> None:
    class Broken(Iterable):
        def __aiter__(self) -> Iterator:
            broken = WithAclose()
            broken.aclose = mock.AsyncMock(side_effect=OSError("reset"))  # type: ignore[method-assign]
            return broken

    iterable = Broken()
    source = TokenSource(iterable)
    await source.open()
    with pytest.raises(OSError, match="reset"):
        await source.aclose()
    assert iterable.closed == ["close"]


async def test_a_class_given_as_factory_is_not_closed_itself() -> None:
    await TokenSource(WithClose).aclose()  # `WithClose.close` needs a self


async def test_three_nested_wrappers_are_closed_down_to_the_innermost() -> None:
    """A generator that iterates another does not close it when it is closed itself; a TokenSource does."""
    script = Script("a", "b", "c")

    class Plain:
        """A plain iterator object with `close` only."""

        def __init__(self, inner: TokenSource) -> None:
            self.inner = inner

        def __aiter__(self) -> Plain:
            return self

        def __anext__(self) -> Any:
            return self.inner.__anext__()

        async def close(self) -> None:
            await self.inner.aclose()

    async def wrap(inner: Any) -> AsyncIterator[Any]:
        async with TokenSource(inner) as items:
            async for item in items:
                yield item

    outermost = TokenSource(wrap(Plain(TokenSource(wrap(script())))))
    assert await outermost.__anext__() == "a"
    await outermost.aclose()
    assert script.closes == script.exits == 1
    assert set(script.tasks) == {task_id()}


async def test_plain_nesting_leaves_the_inner_generator_open() -> None:
    """Why the one above needs TokenSource: this is what people write."""
    script = Script("a", "b", "c")
    inner = script()

    async def wrap() -> AsyncIterator[Any]:
        async for item in inner:
            yield item

    outer = wrap()
    await outer.__anext__()
    await outer.aclose()  # type: ignore[attr-defined]
    assert script.closes == 0
    await inner.aclose()  # type: ignore[attr-defined]


async def test_a_nested_source_is_closed_through_the_driver() -> None:
    script = Script("a", "b", "c")
    served = serve(TokenSource(TokenSource(script())))
    served.wire._on_send = lambda number, data: served.wire.left.set() if number == 2 else None
    await served.run()
    assert script.closes == 1
    assert len(set(script.tasks)) == 1


async def test_a_task_that_loads_is_a_source_too() -> None:
    """An awaitable that runs already, as a framework's dependency would be."""
    script = Script("a")
    done = anyio.Event()

    class Loading:
        def __await__(self) -> Any:
            yield from done.wait().__await__()
            return script()

    async with anyio.create_task_group() as tasks:
        served = serve(Loading(), heartbeat=0.25)
        tasks.start_soon(served.run)
        await anyio.sleep(0.6)
        done.set()
    assert served.outcome.status == "complete"
    assert served.wire.beats == 2


@pytest.mark.parametrize("buffer", [None, Buffer(max_items=2)])
async def test_a_buffer_changes_no_item(buffer: Buffer | None) -> None:
    block = Block("image")
    async with TokenSource(Script("a", block, "b", block), buffer=buffer) as items:
        assert [item async for item in items] == ["a", block, "b", block]


async def test_a_raised_exception_comes_out_of_the_iterator() -> None:
    async with TokenSource(Script("a", ValueError("no"))) as items:
        assert await items.__anext__() == "a"
        with pytest.raises(ValueError, match="no"):
            await items.__anext__()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("done", [True, False])
async def test_a_task_is_awaited_and_not_iterated(done: bool) -> None:
    """A future has `__iter__` too, for the sake of old coroutines: a finished one would be an empty answer."""

    async def load() -> AsyncIterator[str]:
        return generate()

    task = asyncio.ensure_future(load())
    if done:
        await task
    async with TokenSource(task) as items:
        assert [item async for item in items] == ["a", "b"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_future_of_no_producer_is_refused_when_it_is_opened() -> None:
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    future.set_result("the answer")
    with pytest.raises(TypeError, match="the source became str"):
        await TokenSource(future).open()


async def test_a_step_of_a_generator_is_awaited_and_not_iterated() -> None:
    generator = generate()
    with pytest.raises(TypeError, match="the source became str"):
        await TokenSource(generator.__anext__()).open()
    await generator.aclose()  # type: ignore[attr-defined]


async def test_an_old_coroutine_is_awaited_and_not_iterated() -> None:
    @types.coroutine
    def load() -> Any:
        yield from anyio.lowlevel.checkpoint().__await__()
        return generate()

    async with TokenSource(load()) as items:
        assert [item async for item in items] == ["a", "b"]


async def test_what_can_be_iterated_and_awaited_is_iterated() -> None:
    """As database cursors and pages of an API are: to await them gives something else, or only the first page."""

    class Pages(GeneratorMethod):
        def __await__(self) -> Any:
            raise AssertionError

    async with TokenSource(Pages()) as items:
        assert [item async for item in items] == ["a", "b"]


A, B = Block("a"), Block("b")  # a thread hands over texts that wait as one


async def blocks() -> AsyncIterator[Block]:
    yield A
    yield B


def blocks_sync() -> SyncIterator[Block]:
    yield A
    yield B


def pushed() -> PushSource:
    source = PushSource()
    source.put(A)
    source.put(B)
    source.finish()
    return source


ONE_SHOT = {
    "async generator": blocks,
    "generator": blocks_sync,
    "source": lambda: TokenSource(blocks()),
    "push source": pushed,
}


@real_loops
@each(ONE_SHOT)
@pytest.mark.parametrize("wrapped", [False, True], ids=["given", "made by a function"])
async def test_a_source_that_was_read_is_no_empty_answer(make: Callable[[], Any], wrapped: bool) -> None:
    one = make()
    async with TokenSource(one) as items:
        assert [item async for item in items] == [A, B]
    with pytest.raises(ValueError, match="make a new one for each request"):
        await TokenSource((lambda: one) if wrapped else one).open()


async def test_a_generator_that_somebody_else_read_is_no_empty_answer() -> None:
    spent, spent_sync = blocks(), blocks_sync()
    assert [item async for item in spent] == list(spent_sync)
    for one in (spent, spent_sync):
        with pytest.raises(ValueError, match="generator is already exhausted: make a new one"):
            TokenSource(one)


async def test_a_generator_that_runs_is_refused() -> None:
    asked: list[str] = []

    def itself() -> SyncIterator[str]:
        with pytest.raises(ValueError, match="generator is already running: make a new one"):
            TokenSource(one)
        asked.append("sync")
        yield "a"

    async def itself_async() -> AsyncIterator[str]:
        with pytest.raises(ValueError, match="generator is already running: make a new one"):
            TokenSource(other)
        asked.append("async")
        yield "a"

    one, other = itself(), itself_async()
    assert list(one) == [item async for item in other]
    assert asked == ["sync", "async"]


async def test_a_generator_whose_first_item_was_taken_by_hand_gives_the_others() -> None:
    one = blocks()
    assert await one.__anext__() == A
    async with TokenSource(one) as items:
        assert [item async for item in items] == [B]


@real_loops
@each(ONE_SHOT)
@pytest.mark.parametrize("early", [True, False], ids=["made before", "made after"])
async def test_a_second_reader_is_refused_and_takes_nothing_from_the_first(
    make: Callable[[], Any], early: bool
) -> None:
    """To close what it was refused would end the first reader's answer early, and cleanly."""
    one = make()
    first = TokenSource(one)
    second = TokenSource(one if early else lambda: one)
    unread = TokenSource(one)
    assert await first.__anext__() == A
    with pytest.raises(ValueError, match="make a new one for each request"):
        TokenSource(one)
    with pytest.raises(ValueError, match="make a new one for each request"):
        await second.open()
    await second.aclose()
    await unread.aclose()
    assert [item async for item in first] == [B]
    await first.aclose()


@each(ONE_SHOT)
async def test_one_that_was_closed_unread_is_spent_too(make: Callable[[], Any]) -> None:
    one = make()
    await TokenSource(one).aclose()
    with pytest.raises(ValueError, match="make a new one for each request"):
        TokenSource(one)


@real_loops
async def test_an_iterable_serves_any_number_of_answers() -> None:
    again = GeneratorMethod()
    for producer in (again, again, ["a", "b"], ["a", "b"]):
        async with TokenSource(producer) as items:
            assert "".join([str(item) async for item in items]) == "ab"


async def test_a_stream_of_a_spent_source_fails_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    one = generate()
    await serve(TokenSource(one)).run()
    served = await serve(TokenSource(lambda: one)).run()
    assert served.outcome.status == "failed"
    assert "make a new one for each request" in caplog.text


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_iterator_that_begins_anew_when_it_is_asked_for_is_asked_once(backend: str) -> None:
    """The driver steps a source in two ways, and goes over from one to the other while it runs."""

    class Rewinding:
        def __aiter__(self) -> Rewinding:
            self.number = 0
            return self

        async def __anext__(self) -> str:
            await anyio.sleep(0.01)
            self.number += 1
            if self.number > 30:
                raise StopAsyncIteration
            return f"{self.number} "

    async def test() -> str:
        return (await serve(Rewinding()).run()).wire.text

    assert run(backend, test) == "".join(f"{number} " for number in range(1, 31))
