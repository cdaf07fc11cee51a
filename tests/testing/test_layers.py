"""Layers that change when things arrive."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from streamguard.adapters.asgi import GuardedAnswer
from streamguard.testing.layers import HeldStart
from streamguard.testing.server import ScriptedServer
from streamguard.testing.source import FOREVER, RecordingSource

pytestmark = pytest.mark.anyio

START = {"type": "http.response.start", "status": 200, "headers": []}


def body(data: bytes, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


@pytest.mark.parametrize(
    ("messages", "passed"),
    [
        ([START], []),
        ([START, body(b"")], []),
        ([START, body(b""), body(b"x")], [START, body(b"x")]),
        ([START, body(b"x"), body(b""), body(b"", False)], [START, body(b"x"), body(b""), body(b"", False)]),
        ([START, body(b"", False)], [START, body(b"", False)]),
    ],
)
async def test_the_start_message_waits_for_a_body(messages: list[Any], passed: list[Any]) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in messages:
            await send(message)

    server = await ScriptedServer(HeldStart(app)).run()
    assert [sent.message for sent in server.sent] == passed


async def test_a_guarded_answer_needs_no_token_to_get_its_headers_through() -> None:
    """Its opening is a body, so that a model which thinks for a minute first does not look like a dead server."""
    source = RecordingSource(FOREVER)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await GuardedAnswer(source)(scope, receive, send)

    with anyio.fail_after(10):
        async with ScriptedServer(HeldStart(app)) as server:
            await server.until(bytes=1)
            assert source.steps == 0
            server.leave()
    assert server.status == 200
    assert server.body.startswith(b": streamguard 1 ")
