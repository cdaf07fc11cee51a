"""The endpoint as people write it loses what is on its way, and only because of when it ends."""

from __future__ import annotations

import anyio
import pytest

from streamguard.demo.model import Answer, Entry, Generation
from streamguard.demo.unguarded import ChunkBuffer, UnguardedAnswer
from tests.demo.asgi import sent

TOKENS = tuple(f"{number} " for number in range(10))
FOR_EVER = 60.0


def body(*, size: int, delay: float, store: float = 0.0, flush: bool = False, sse: bool = False) -> list[bytes]:
    generation = Generation(Answer(TOKENS, (0.001,) * 11, store), Entry())
    messages = anyio.run(sent, UnguardedAnswer(generation, size, delay, flush, sse))
    assert messages[0]["type"] == "http.response.start"
    assert messages[-1] == {"type": "http.response.body", "body": b"", "more_body": False}, "a clean end"
    return [message["body"] for message in messages[1:-1]]


@pytest.mark.parametrize("size", [1, 4, 100])
@pytest.mark.parametrize("flush", [False, True])
def test_without_lag_nothing_is_lost(size: int, flush: bool) -> None:
    assert b"".join(body(size=size, delay=0.0, flush=flush)) == "".join(TOKENS).encode()


def test_the_rest_of_a_chunk_is_lost_when_generation_ends_before_its_patience() -> None:
    assert body(size=4, delay=FOR_EVER) == []
    assert body(size=100, delay=0.01) == []


def test_a_flush_at_the_end_is_lost_too_while_the_sender_lags() -> None:
    assert body(size=100, delay=FOR_EVER, flush=True, store=0.0) == []
    assert b"".join(body(size=100, delay=0.01, flush=True, store=0.5)) == "".join(TOKENS).encode()


def test_as_server_sent_events_each_chunk_is_one() -> None:
    assert body(size=1, delay=0.0, sse=True)[0] == b'data: "0 "\n\n'


def test_a_chunk_is_cut_when_it_is_full_or_has_waited() -> None:
    async def cuts() -> None:
        chunks = ChunkBuffer(2, 0.01)
        for token in "abc":
            chunks.add(token)
        assert chunks.queue.qsize() == 1
        assert (await chunks.queue.get())[1] == "ab"
        assert (await chunks.queue.get())[1] == "c"

    anyio.run(cuts)
