"""SQLiteLog: the contract, several processes on one file, and a file in trouble."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from streamguard.log.base import Retention, StreamLog
from streamguard.log.sqlite import SQLiteLog
from streamguard.testing.log_contract import LOG_RULES, check_log_rule

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("shared", [False, True], ids=["one log", "two logs on one file"])
@pytest.mark.parametrize("rule", LOG_RULES)
async def test_a_log_in_a_file_keeps_every_rule(rule: str, shared: bool, tmp_path: Path) -> None:
    numbers = itertools.count()

    def factory(retention: Retention) -> StreamLog:
        name = "shared.db" if shared else f"{next(numbers)}.db"
        return SQLiteLog(tmp_path / name, retention=retention)

    await check_log_rule(rule, factory, shared=shared)
