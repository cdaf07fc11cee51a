"""An EventSource whose stream is gone is told so in one block, and given the time to take it before the abort.

Chromium drops what it has of a body when it learns of an abort close behind it: one in fifteen times on a busy machine.
It came back with the cursor that it had, to be told again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest

from streamguard.adapters.asgi import GuardedAnswer
from streamguard.adapters.endpoints import Endpoints
from streamguard.adapters.shutdown import DRAIN
from streamguard.app import StreamGuard, anyone_with_the_id
from streamguard.core.cursor import cursor_zero, new_sid
from streamguard.log.memory import MemoryLog
from streamguard.runtime.drain import Drain
from streamguard.runtime.timing import Timing
from streamguard.testing import ScriptedServer


def logged(timing: Timing) -> Any:
    guard = StreamGuard(MemoryLog(), authorize=anyone_with_the_id)
    return Endpoints(guard, "/streams", unsealed="allow", timing=timing)


def direct(timing: Timing) -> Any:
    async def source() -> AsyncIterator[str]:
        yield "never asked for"

    return GuardedAnswer(source, unsealed="allow", timing=timing)


@pytest.mark.anyio
@pytest.mark.parametrize(("linger", "leaves"), [(30.0, True), (0.01, False)])
@pytest.mark.parametrize("make", [logged, direct])
async def test_the_block_of_a_lost_stream_is_followed_by_an_abort_only_when_it_was_taken(
    make: Callable[[Timing], Any], linger: float, leaves: bool
) -> None:
    app = make(Timing(linger=linger))
    cursor = cursor_zero(new_sid())._replace(seq=3, offset=9)
    told, asked, gone = anyio.Event(), anyio.Event(), anyio.Event()
    headers = {"accept": "text/event-stream", "last-event-id": str(cursor)}
    scope: Any = {"type": "http", "method": "GET", "path": "/streams", "query_string": b"", "http_version": "1.1"}
    scope["headers"] = [(name.encode(), value.encode()) for name, value in headers.items()]
    over = False

    async def receive() -> Any:
        if not asked.is_set():
            asked.set()
            return {"type": "http.request", "body": b"", "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message.get("body"):
            assert b"event: end\nid: " in message["body"]
            assert message["more_body"]
            told.set()

    async def answer() -> None:
        nonlocal over
        await app(scope, receive, send)
        over = True

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer)
            await told.wait()
            await asked.wait()
            if leaves:
                assert not over
                gone.set()
    assert over


@pytest.mark.anyio
@pytest.mark.parametrize("make", [logged, direct])
async def test_its_connection_is_ended_also_where_a_server_leaves_an_unfinished_answer_open(
    make: Callable[[Timing], Any],
) -> None:
    cursor = cursor_zero(new_sid())._replace(seq=3, offset=9)
    headers = [("accept", "text/event-stream"), ("last-event-id", str(cursor))]
    server = ScriptedServer(make(Timing(linger=0.01)), path="/streams", headers=headers, killable=True)
    await server.run()
    assert (server.ended, server.kills) == ("unfinished", ["close"])


@pytest.mark.anyio
async def test_so_is_that_of_a_reader_whose_stream_was_shut_down_before_its_headers() -> None:
    answering: list[GuardedAnswer] = []

    async def source() -> AsyncIterator[str]:
        await anyio.sleep_forever()
        yield "never"

    async def app(scope: Any, receive: Any, send: Any) -> None:
        answering.append(GuardedAnswer(source, unsealed="allow", timing=Timing(linger=0.01, peek=60.0)))
        drain = scope[DRAIN] = Drain(grace=0.0)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answering[0], scope, receive, send)
            await anyio.wait_all_tasks_blocked()
            drain.begin()

    server = ScriptedServer(app, headers=[("accept", "text/event-stream")], killable=True)
    await server.run()
    assert (server.status, server.ended, server.kills) == (200, "unfinished", ["close"])
