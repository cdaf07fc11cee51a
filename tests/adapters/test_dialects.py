"""Every dialect over real sockets, served directly and from a log, to our client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from streamguard import anyone_with_the_id
from streamguard.adapters.starlette import StreamGuard, guarded
from streamguard.client import stream_sync
from streamguard.core.dialect import AgUi, Anthropic, Native, OpenAI, OpenAIResponses, Ui
from streamguard.core.errors import FailedStream
from streamguard.core.items import Block, tool_call
from streamguard.core.receipt import Verdict
from streamguard.log.memory import MemoryLog
from tests.adapters.servers import serving

NAMES = [dialect.name for dialect in (Native(), OpenAI(), OpenAIResponses(), Anthropic(), Ui(), AgUi())]
BLOCKS = [Block("reasoning", {"text": "so"}), tool_call("c", "f", '{"x":1}')]


async def tokens(request: Request) -> AsyncIterator[Any]:
    yield BLOCKS[0]
    for word in ("a ", "b "):
        yield word
    yield BLOCKS[1]
    if "fail" in request.query_params:
        raise RuntimeError("inside")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    guard = StreamGuard(MemoryLog(), authorize=anyone_with_the_id)
    ways = {"direct": guarded, "logged": guard.stream}
    app = Starlette(
        routes=[
            Route(f"/{way}/{name}", decorator(dialect=name)(tokens), methods=["POST"])
            for way, decorator in ways.items()
            for name in NAMES
        ]
    )
    guard.install(app, "/streams")  # which seals it
    with serving(app) as server:
        yield server.url


@pytest.mark.parametrize("way", ["direct", "logged"])
@pytest.mark.parametrize("dialect", NAMES)
def test_an_answer_is_whole_or_failed(url: str, dialect: str, way: str) -> None:
    address = f"{url}/{way}/{dialect}"
    with stream_sync("POST", address) as answer:
        assert list(answer.blocks()) == BLOCKS
        assert answer.received == "a b "
        assert answer.receipt.verdict is Verdict.COMPLETE
        assert answer.response.headers.get("x-vercel-ai-ui-message-stream") == ("v1" if dialect == "ui" else None)
    with stream_sync("POST", address + "?fail=1") as answer, pytest.raises(FailedStream) as caught:
        answer.read()
    assert (caught.value.received, caught.value.failure.code) == ("a b ", "source_error")
