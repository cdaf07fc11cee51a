"""RedisLog on a real server: the contract, the model, what lies in Redis."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from streamguard.log.base import Retention, StreamLog
from streamguard.log.redis import RedisLog
from streamguard.testing.log_contract import LOG_RULES, check_log_rule
from tests.log.machine import Store, machine_test
from tests.log.redis_server import RedisServer, redis_server

SERVERS: list[RedisServer] = []  # the one of this module, for the machine, which takes no fixture


@pytest.fixture(scope="module", autouse=True)
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        SERVERS.append(server)
        yield server
        SERVERS.clear()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


# ---- the contract and the model -------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize("shared", [False, True], ids=["one log", "two logs on one server"])
@pytest.mark.parametrize("rule", LOG_RULES)
async def test_a_log_in_redis_keeps_every_rule(rule: str, shared: bool, server: RedisServer) -> None:
    logs = itertools.count()

    def factory(retention: Retention) -> StreamLog:
        prefix = "shared:" if shared else f"{next(logs)}:"
        return RedisLog(server.url, retention=retention, prefix=prefix)

    await check_log_rule(rule, factory, shared=shared)


def lose(server: RedisServer, sid: str, count: int) -> None:
    """As a server does that is started again with an older file."""
    key = f"streamguard:{{{sid}}}:"
    with contextlib.closing(server.client()) as client:
        entries: Any = client.xrevrange(key + "frames", count=count + 1)
        client.xdel(key + "frames", *[number for number, _ in entries[:count]])
        number, fields = entries[count]
        client.execute_command("XSETID", key + "frames", number)  # type: ignore[no-untyped-call]
        client.hset(key + "meta", "tail", fields[b"f"].replace(b"+", b" ").split(b" ")[0])
        client.hdel(key + "meta", "at", "state")
        client.client_kill_filter(_type="pubsub")  # a server that was away has lost its connections


def store() -> Store:
    (server,) = SERVERS

    def remove() -> None:
        with contextlib.closing(server.client()) as client:
            assert client.keys("*{*") == [], "a stream that was purged left a key"
            client.flushdb()

    return Store(
        lambda retention: RedisLog(server.url, retention=retention),
        lose=lambda log, sid, count: lose(server, sid, count),
        persistent=True,
        remove=remove,
    )


TestRedisLog = machine_test(store, max_examples=20)
