"""RedisLog on a real server: the contract, the model, what lies in Redis."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from streamguard.core.cursor import cursor_zero
from streamguard.log.base import Retention, StreamLog
from streamguard.log.redis import RedisLog
from streamguard.testing.log_case import at_end
from streamguard.testing.log_contract import LOG_RULES, check_log_rule
from tests.log.machine import Store, machine_test
from tests.log.redis_server import RedisServer, redis_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
@pytest.mark.parametrize("shared", [False, True], ids=["one log", "two logs on one server"])
@pytest.mark.parametrize("rule", LOG_RULES)
async def test_a_log_in_redis_keeps_every_rule(rule: str, shared: bool, server: RedisServer) -> None:
    logs = iter(range(1000))

    def factory(retention: Retention) -> StreamLog:
        prefix = "shared:" if shared else f"{next(logs)}:"
        return RedisLog(server.url, retention=retention, prefix=prefix)

    await check_log_rule(rule, factory, shared=shared)
