"""What a log may forget is forgotten, not too often, and its trouble is nobody's."""

from __future__ import annotations

import logging

import anyio
import pytest

from streamguard.log.base import LogUnavailable
from streamguard.log.memory import MemoryLog
from streamguard.runtime.background import Background
from streamguard.runtime.sweep import Sweeper

pytestmark = pytest.mark.anyio


class Counted(MemoryLog):
    """One with something to forget, so often."""

    def __init__(self, left: int, *, away: bool = False) -> None:
        super().__init__()
        self.sweeps = 0
        self._left = left
        self._away = away

    async def sweep(self) -> bool:
        self.sweeps += 1
        if self._away:
            raise LogUnavailable("it is away")
        self._left -= 1
        return self._left > 0


async def test_it_sweeps_until_there_is_nothing_left_and_then_for_a_while_not() -> None:
    log = Counted(3)
    sweeper = Sweeper(log, Background())
    await anyio.sleep(40.0)
    for _ in range(5):
        sweeper.now_and_then()
        await anyio.sleep(1.0)
    assert log.sweeps == 3
    await anyio.sleep(30.0)
    sweeper.now_and_then()
    await anyio.sleep(1.0)
    assert log.sweeps == 4


async def test_a_log_that_is_away_is_a_line_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    log = Counted(3, away=True)
    sweeper = Sweeper(log, Background())
    await anyio.sleep(40.0)
    with caplog.at_level(logging.WARNING, "streamguard"):
        sweeper.now_and_then()
        await anyio.sleep(1.0)
    assert [record.getMessage() for record in caplog.records] == [
        "what is too old could not be forgotten now: the log is unavailable: it is away"
    ]
