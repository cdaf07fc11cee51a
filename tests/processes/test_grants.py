"""Two processes over one log: what a reader grants at one of them reaches its connection, which is the other's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.adapters.logged_apps import cursors, sid_of, wait_until
from tests.adapters.servers import Connection
from tests.log.redis_server import redis_server
from tests.processes.crashes import Worker
from tests.processes.worker import LENGTH

CREDIT: dict[str, Any] = {"streamguard": "v=1, credit=(5 65536)"}


@contextlib.contextmanager
def workers(kind: str, folder: Path) -> Iterator[tuple[Worker, Worker]]:
    with contextlib.ExitStack() as stack:
        place = str(folder / "streams.db")
        if kind == "Redis":
            place = stack.enter_context(redis_server(folder)).url
        both = []
        for _ in range(2):
            both.append(Worker(place))
            stack.callback(both[-1].close)
        yield both[0], both[1]


@pytest.mark.parametrize("kind", ["SQLite", "Redis"])
def test_a_grant_at_another_process_reaches_its_connection(kind: str, tmp_path: Path) -> None:
    with workers(kind, tmp_path) as (here, there), Connection(here.port) as connection, httpx.Client() as client:
        connection.request("POST", "/stories/1", **CREDIT)
        connection.until(b'data: "', 5)
        own = {"streamguard-stream": sid_of(connection.received)}
        name = connection.received.partition(b'reader="')[2][:11].decode()

        def told() -> bool:
            found = client.get(f"{there.url}/streams/status", headers=own).json()
            return bool(found["status"] == "complete")

        wait_until(told)  # the whole story is in the log, and not sent
        assert len(cursors(connection.received)) == 5
        for frames in (20, LENGTH + 1):
            grant = {"reader": name, "ack": str(cursors(connection.received)[-1]), "credit": [frames, 65536]}
            assert client.post(f"{there.url}/streams", json=grant, headers=own).status_code == 202
            connection.until(b'data: "', min(frames, LENGTH))
        connection.until(b"event: end")
