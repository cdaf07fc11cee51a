"""What both clients, async and sync, make of a provider's bytes."""

from __future__ import annotations

import json

import anyio
import httpx

from streamguard import client
from tests.scenarios.stacks import chat_chunk

TEXTS = [f"event {n}" + ("\u2028" if n % 28 == 0 and n < 392 else "") for n in range(400)]
BODY = b"".join(
    f"data: {data}\n\n".encode()
    for data in [
        *(json.dumps(chat_chunk(text), ensure_ascii=False) for text in TEXTS),
        json.dumps(chat_chunk(finish="stop")),
        "[DONE]",
    ]
)


def provider(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=BODY)


def test_the_sync_client_reads_raw_line_separators_whole() -> None:
    assert BODY.count("\u2028".encode()) == 14
    with (
        httpx.Client(transport=httpx.MockTransport(provider)) as http,
        client.stream_sync("POST", "http://test/", client=http) as answer,
    ):
        assert list(answer.text()) == TEXTS
        assert answer.receipt.proved_by == "marker+reason"


def test_the_async_client_reads_raw_line_separators_whole() -> None:
    async def test() -> None:
        async with (
            httpx.AsyncClient(transport=httpx.MockTransport(provider)) as http,
            client.stream("POST", "http://test/", client=http) as answer,
        ):
            assert [text async for text in answer.text()] == TEXTS
            assert answer.receipt.proved_by == "marker+reason"

    anyio.run(test)
