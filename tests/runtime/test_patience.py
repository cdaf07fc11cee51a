"""A source that is told to stop: for a moment, then left alone, then abandoned."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from streamguard.runtime.closing import INSISTENCE
from streamguard.runtime.patience import Patience
from streamguard.runtime.source import TokenSource
from tests.runtime.fakes import Script

pytestmark = pytest.mark.anyio


async def test_nothing_is_due_before_it_is_told() -> None:
    assert Patience(5.0).due == float("inf")


async def test_it_is_told_for_a_moment_then_left_alone_then_abandoned() -> None:
    patience = Patience(5.0)
    patience.stop(10.0)
    assert patience.due == 10.0 + INSISTENCE
    assert patience.insist(patience.due) is False
    assert patience.calm.shield
    assert patience.due == 15.0
    assert patience.insist(15.0) is True


async def test_a_limit_below_that_moment_is_kept() -> None:
    patience = Patience(0.0)
    patience.stop(10.0)
    assert patience.due == 10.0
    assert patience.insist(10.0) is True


async def test_a_clean_up_has_a_limit_of_its_own(caplog: Any) -> None:
    source = TokenSource(Script("a", cleanup=lambda: anyio.sleep(60)))
    await (await source.open()).__anext__()
    patience = Patience(2.0)
    patience.stop(0.0)
    patience.insist(0.1)
    with patience.scope, patience.closing, patience.calm:
        patience.scope.cancel()
        assert await patience.close(source, 0.0, "name") is False
    assert anyio.current_time() == 2.0
    assert patience.due == 2.0 + INSISTENCE
    said = "its source did not close in time: give its blocking calls a time limit, or raise this one, Timing(close=2)"
    assert f"stream name: {said}" in caplog.text


async def test_what_closes_in_time_closes_whatever_was_cancelled() -> None:
    script = Script("a", cleanup=lambda: anyio.sleep(1))
    source = TokenSource(script)
    await (await source.open()).__anext__()
    patience = Patience(2.0)
    with patience.scope, patience.closing, patience.calm:
        patience.scope.cancel()
        assert await patience.close(source, 0.0, "name") is True
    assert script.closes == 1


@pytest.mark.parametrize("exc", [KeyboardInterrupt, SystemExit])
async def test_a_close_that_ends_the_program_does(exc: type[BaseException]) -> None:
    class Ends:
        def __aiter__(self) -> Ends:
            return self

        async def __anext__(self) -> str:
            raise StopAsyncIteration

        def close(self) -> None:
            raise exc

    with pytest.raises(exc):
        await Patience(2.0).close(TokenSource(Ends()), 0.0, "name")
