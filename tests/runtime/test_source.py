"""Any producer becomes items, and is closed once."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from typing import Any
from unittest import mock

import anyio
import pytest

from streamguard.core.errors import StreamClosed
from streamguard.core.items import Block
from streamguard.runtime.buffer import Buffer
from streamguard.runtime.source import TokenSource
from tests.runtime.fakes import Script, serve, task_id

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
    assert set(script.tasks) == {task_id()}


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
