"""Slow readers and memory: what waits for whom. A run that nobody reads waits for nobody."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from streamguard.adapters.starlette import StreamGuard
from streamguard.app import anyone_with_the_id
from streamguard.log.memory import MemoryLog
from streamguard.runtime.buffer import Buffer
from streamguard.runtime.runs import Detach
from tests.adapters.asgi_apps import exchange
from tests.adapters.logged_apps import OURS, cursors, reading, text_of, wait_until
from tests.adapters.servers import DEADLINE, serving

WORDS = [f"t{number} " for number in range(1000)]


def made(kind: str, gone: threading.Event) -> Any:
    """An endpoint that yields all words, three of them before its reader is gone."""

    async def suspending(request: Request) -> AsyncIterator[str]:
        for number, word in enumerate(WORDS):
            if number == 3:
                await asyncio.to_thread(gone.wait, DEADLINE)
            yield word

    def blocking(request: Request) -> Iterator[str]:
        for number, word in enumerate(WORDS):
            if number == 3:
                assert gone.wait(DEADLINE)
            yield word

    return suspending if kind == "async" else blocking


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_a_detached_run_behind_a_small_buffer_goes_to_its_end(kind: str) -> None:
    gone = threading.Event()
    guard = StreamGuard(MemoryLog(), authorize=anyone_with_the_id)
    options: dict[str, Any] = {"on_disconnect": Detach(60.0), "buffer": Buffer(max_items=8)}
    app = Starlette(routes=[Route("/tokens", guard.stream(**options)(made(kind, gone)))])
    guard.install(app, "/streams")
    with serving(app) as server:
        with reading(server) as connection:
            connection.until(b't2 "')
        wait_until(lambda: not len(guard.readers))
        gone.set()
        wait_until(lambda: not len(guard.runs))
        at = cursors(connection.received)[-1]
        rest = exchange(server.connect(), path="/streams", last_event_id=str(at), **OURS)
    assert cursors(rest.body)[-1].status == "complete"
    assert text_of(rest.body) == "".join(WORDS[3:])
