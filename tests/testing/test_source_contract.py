"""Sources of every kind keep the contract; for each rule there is one that breaks it and is told so."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any, get_args

import anyio
import pytest

from streamguard.core.items import Block, Finish
from streamguard.runtime.push import PushSource
from streamguard.runtime.source import TokenSource
from streamguard.testing.contract import ContractBroken
from streamguard.testing.source import FOREVER, RecordingSource, Shape, Yield
from streamguard.testing.source_contract import check_source

BACKENDS = pytest.mark.parametrize("backend", ["asyncio", "trio"])
VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable")


async def scoped() -> AsyncIterator[str]:
    """Leaves its task group, its scope and its variable only where it entered them."""
    token = VARIABLE.set("mine")
    try:
        async with anyio.create_task_group():
            with anyio.CancelScope():
                for index in range(3):
                    await anyio.sleep(0.001)
                    yield f"{index} "
    finally:
        VARIABLE.reset(token)


def pushed() -> PushSource:
    source = PushSource()
    source.put("a")
    source.put(Block("image"))
    source.finish("stop")
    return source


async def loading() -> AsyncIterator[str]:
    await anyio.lowlevel.checkpoint()
    return scoped()


class Endless:
    def __aiter__(self) -> Endless:
        return self

    async def __anext__(self) -> str:
        return "again "


@BACKENDS
@pytest.mark.parametrize(
    "factory",
    [scoped, pushed, loading, Endless, lambda: ["a", "b"], lambda: TokenSource(scoped()), lambda: scoped],
    ids=["scoped", "pushed", "loading", "endless", "list", "token source", "function"],
)
def test_a_good_source_passes(factory: Any, backend: str) -> None:
    check_source(factory, backend=backend, max_items=50)


@BACKENDS
@pytest.mark.parametrize("shape", get_args(Shape))
def test_every_shape_passes_and_is_closed_each_time(shape: Shape, backend: str) -> None:
    source = RecordingSource("a", 0.001, b"b", Block("image"), Finish("stop"), shape=shape)
    check_source(source, backend=backend)
    assert source.opens > 10
    if shape.startswith("async"):
        assert source.cancels > 0
        assert source.exits > 0 or shape == "async iterator"
    if shape in ("async iterator", "iterator"):
        assert source.closes == source.opens


def test_a_source_without_an_item_passes() -> None:
    check_source(RecordingSource())


async def swallowing() -> AsyncIterator[str]:
    while True:
        yield "a"
        try:
            await anyio.sleep(0.005)
        except BaseException:
            pass  # as a retry that catches everything


async def giving_up() -> AsyncIterator[str]:
    yield "a"
    try:
        await anyio.sleep(0.005)
    except BaseException:
        return
    yield "b"


async def complaining() -> AsyncIterator[str]:
    yield "a"
    try:
        await anyio.sleep(0.005)
    except BaseException:
        raise LookupError("mine") from None


async def clinging() -> AsyncIterator[str]:
    try:
        yield "a"
    finally:
        yield "b"


async def failing_close() -> AsyncIterator[str]:
    try:
        yield "a"
        yield "b"
    except GeneratorExit:
        raise LookupError("mine") from None


class Reopened(TokenSource):
    async def open(self) -> AsyncIterator[Any]:
        return self._iterator or await super().open()


class Restless:
    """Yields on when it is closed or over."""

    def __init__(self, *items: str) -> None:
        self.items = list(items)
        self.over = False

    def __aiter__(self) -> Restless:
        return self

    async def __anext__(self) -> str:
        if self.items:
            return self.items.pop()
        if not self.over:
            self.over = True
            raise StopAsyncIteration
        return "more"

    async def aclose(self) -> None:
        pass


class Reader:
    """Starts a thread, or a task, that outlives it."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.left = 2

    def __aiter__(self) -> Reader:
        return self

    async def __anext__(self) -> str:
        if self.left == 2 and self.kind == "thread":
            threading.Thread(target=STOP.wait, daemon=True).start()
        elif self.left == 2:
            TASKS.append(asyncio.ensure_future(asyncio.Event().wait()))
        self.left -= 1
        if self.left < 0:
            raise StopAsyncIteration
        return "a"


STOP = threading.Event()
TASKS: list[Any] = []
ONCE = RecordingSource("a", shape="async iterator")()


class Spent:
    """Every one after the first is empty, because they share what they read from."""

    shared = iter(["a", "b"])

    def __aiter__(self) -> Spent:
        return self

    async def __anext__(self) -> str:
        for item in self.shared:
            return item
        raise StopAsyncIteration


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    Spent.shared = iter(["a", "b"])
    STOP.clear()
    yield
    STOP.set()
    TASKS.clear()


@pytest.mark.parametrize(
    ("factory", "rule", "message"),
    [
        (lambda: "text", "producer", "making it raised TypeError"),
        (lambda: 1 / 0, "producer", "making it raised ZeroDivisionError"),
        (lambda: ONCE, "fresh", "the same source twice"),
        (Spent, "fresh", "yielded 2 items, and its second one none"),
        (RecordingSource("a", LookupError("mine")), "raises nothing", r"its step 2 raised LookupError\('mine'\)"),
        (
            RecordingSource("a", LookupError("mine"), shape="generator"),
            "raises nothing",
            r"raised LookupError\('mine'\)",
        ),
        (lambda: lambda: 5, "raises nothing", "opening it raised TypeError"),
        (RecordingSource(Yield(5)), "items", "it yielded 5: "),
        (RecordingSource("a", Yield(None), shape="iterator"), "items", "it yielded None: "),
        (RecordingSource(Finish("stop"), Finish("length")), "items", "it yielded Finish"),
        (RecordingSource(Finish("abort")), "items", "the stream ends as failed"),
        (lambda: Reopened(scoped()), "opened once", "opened a second time"),
        (lambda: Restless("a"), "end", "after it had ended, it yielded 'more'"),
        (lambda: Restless(*["a"] * 2000), "close", "after it was closed behind 0 items, it yielded 'a'"),
        (clinging, "close", "closing it after 1 items raised RuntimeError"),
        (failing_close, "close", "closing it after 1 items raised LookupError"),
        (
            RecordingSource("a", cleanup=lambda: 1 / 0, shape="async iterator"),
            "close",
            "closing it raised ZeroDivision",
        ),
        (swallowing, "cancel", "cancelled where it waited, it yielded on; let a cancellation through"),
        (giving_up, "cancel", "it said that it is exhausted"),
        (complaining, "cancel", "it raised LookupError"),
        (lambda: Reader("thread"), "leaves nothing", "one more thread stays behind"),
        (lambda: Reader("task"), "leaves nothing", "one more task stays behind"),
    ],
)
def test_a_broken_rule_is_named(factory: Any, rule: str, message: str) -> None:
    with pytest.raises(ContractBroken, match=message) as caught:
        check_source(factory, max_items=20)
    assert caught.value.rule == rule
    assert f"breaks the rule {rule!r}" in str(caught.value)


@pytest.mark.parametrize(
    ("source", "rule", "doing"),
    [
        (RecordingSource("a", FOREVER), "raises nothing", "its step 2"),
        (RecordingSource("a", FOREVER, shape="generator"), "raises nothing", "its step 2"),
        (RecordingSource("a", "b", cleanup=anyio.sleep_forever, shape="async iterator"), "close", "closing it"),
    ],
)
def test_a_source_that_never_lets_go_fails_the_test_and_does_not_hang_it(
    source: RecordingSource, rule: str, doing: str
) -> None:
    try:
        with pytest.raises(ContractBroken, match=f"{doing} took more than 1 s") as caught:
            check_source(source, patience=1.0)
        assert caught.value.rule == rule
    finally:
        source.release()


def test_a_source_that_swallows_every_cancellation_fails_the_test_too() -> None:
    source = RecordingSource("a", *[0.02] * 100, "b", stubborn=True)
    with pytest.raises(ContractBroken) as caught:
        check_source(source, max_items=1, patience=5)
    assert caught.value.rule == "cancel"


@pytest.mark.anyio
async def test_it_runs_inside_of_a_loop_too() -> None:
    check_source(scoped)


def test_items_must_suit_the_dialect() -> None:
    source = RecordingSource(Block("image"))
    check_source(source)
    with pytest.raises(ContractBroken, match="it yielded Block") as caught:
        check_source(source, dialect="openai")
    assert caught.value.rule == "items"
