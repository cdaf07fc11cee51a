"""A producer is closed by what it offers, and a group that only says so is no failure."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from streamguard.runtime.closing import close, close_sync

pytestmark = pytest.mark.anyio


class Group(Exception):
    """As `exceptiongroup` and Python's own look from outside."""

    def __init__(self, *exceptions: BaseException) -> None:
        super().__init__()
        self.exceptions = exceptions


@pytest.mark.parametrize(("names", "called"), [("aclose close", "aclose"), ("close", "close"), ("", None)])
@pytest.mark.parametrize("is_async", [True, False])
async def test_the_first_way_there_is_is_taken(names: str, called: str | None, is_async: bool) -> None:
    calls: list[str] = []

    def method(name: str) -> Any:
        async def waiting() -> None:
            await anyio.lowlevel.checkpoint()
            calls.append(name)

        return waiting if is_async else lambda: calls.append(name)

    producer = type("Producer", (), {})()
    for name in names.split():
        setattr(producer, name, method(name))
    await close(producer)
    assert calls == ([called] if called else [])


async def test_what_is_named_close_and_cannot_be_called_is_left_alone() -> None:
    producer = type("Producer", (), {"close": True})()
    await close(producer)
    close_sync(producer)


@pytest.mark.parametrize(
    ("failure", "raised"),
    [
        (Group(GeneratorExit()), False),
        (Group(GeneratorExit(), Group(GeneratorExit())), False),
        (Group(GeneratorExit(), ValueError()), True),
        (GeneratorExit(), True),
        (ValueError(), True),
    ],
)
async def test_a_group_of_exits_is_an_exit(failure: BaseException, raised: bool) -> None:
    class Producer:
        async def aclose(self) -> None:
            raise failure

    if not raised:
        await close(Producer())
        return
    with pytest.raises(type(failure)):
        await close(Producer())
