"""An awaitable tells when it first waits, and is otherwise what it stands for."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import anyio
import pytest

from streamguard.runtime.first_wait import FirstWait

pytestmark = pytest.mark.anyio


class _Bare:
    """An awaitable whose iterator has no method but `__next__`."""

    def __await__(self) -> Any:
        return iter(())


async def test_what_does_not_wait_is_not_told_of() -> None:
    told: list[str] = []

    def write() -> Awaitable[None]:
        return _Bare()

    await FirstWait(write, lambda: told.append("waits"))
    assert not told


async def test_what_waits_is_told_of_once() -> None:
    told: list[float] = []

    async def write() -> None:
        await anyio.sleep(1.0)
        await anyio.sleep(1.0)

    await FirstWait(write, lambda: told.append(anyio.current_time()))
    assert told == [0.0]
    assert anyio.current_time() == 2.0


async def test_what_is_raised_in_a_write_and_into_it_goes_through() -> None:
    async def fails() -> None:
        await anyio.sleep(1.0)
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        await FirstWait(fails, lambda: None)
    with anyio.move_on_after(1.0) as scope:
        await FirstWait(anyio.sleep_forever, lambda: None)
    assert scope.cancelled_caught
