"""Heartbeats while a source is silent, in virtual time: they must neither end it nor fall into an event."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing

import anyio
import pytest

from streamguard.core.dialect import Native
from streamguard.core.flush import Immediate
from streamguard.core.framing import FramedEncoder
from streamguard.core.guard import CompletionGuard
from streamguard.core.wire import Sse, SseDecoder
from streamguard.runtime.source import TokenSource
from streamguard.runtime.stages import GuardedStream
from streamguard.runtime.timing import Timing
from tests.naive import client
from tests.naive.heartbeat import beside, with_heartbeats
from tests.runtime.virtual import BACKENDS, run
from tests.scenarios.stacks import read

INTERVAL = 15.0
EACH_LOOP = pytest.mark.parametrize("backend", BACKENDS)


async def pausing() -> AsyncIterator[str]:
    """A token, silence for three heartbeats, two tokens."""
    yield "one "
    await anyio.sleep(3.5 * INTERVAL)
    yield "two "
    yield "three"


def beats_and_texts(chunks: list[bytes]) -> list[str]:
    """What a reader meets in order: heartbeats and texts."""
    return ["beat" if chunk.startswith((b": hb", b": ping")) else client_text(chunk) for chunk in chunks]


def client_text(chunk: bytes) -> str:
    (event,) = SseDecoder().feed(chunk)
    return event.data.strip('"')


async def guarded_chunks() -> list[bytes]:
    timing = Timing(heartbeat=INTERVAL, clock=anyio.current_time)
    encoder, guard = FramedEncoder(Native()), CompletionGuard(Sse())
    async with GuardedStream(TokenSource(pausing()), Immediate(), encoder, guard, timing=timing) as stream:
        return [chunk async for chunk in stream]


async def naive_chunks() -> list[bytes]:
    async with aclosing(with_heartbeats(pausing(), INTERVAL)) as chunks:
        return [chunk async for chunk in chunks]


FAILS = pytest.mark.xfail(strict=True, raises=AssertionError)
SERVERS = [pytest.param(guarded_chunks, id="ours"), pytest.param(naive_chunks, id="naive", marks=FAILS)]


@EACH_LOOP
@pytest.mark.parametrize("serve", SERVERS)
def test_heartbeats_in_a_pause_lose_no_text(backend: str, serve: Callable[[], Awaitable[list[bytes]]]) -> None:
    """A time limit round each step gives a token, a heartbeat, and a clean end."""
    chunks = [chunk for chunk in run(backend, serve) if b"event: open" not in chunk and b": streamguard" not in chunk]
    assert beats_and_texts(chunks)[:6] == ["one ", "beat", "beat", "beat", "two ", "three"]


@EACH_LOOP
def test_a_paused_answer_is_complete(backend: str) -> None:
    reading = read(run(backend, guarded_chunks))
    assert reading.text == "one two three"
    assert reading.complete


@EACH_LOOP
def test_a_second_writer_tears_events(backend: str) -> None:
    """Why there is one writer: the naive server's heartbeat falls between the lines of an event."""
    body: list[bytes] = []

    async def slow_send(data: bytes) -> None:
        await anyio.sleep(1.1 * INTERVAL)
        body.append(data)

    async def test() -> None:
        await beside(pausing(), slow_send, INTERVAL)

    run(backend, test)
    torn = b"".join(body)
    assert b"event: token\n: ping\n\n" in torn
    assert [event.event for event in SseDecoder().feed(torn)].count("token") < 3
    assert client.read([torn]).complete  # and its reader notices nothing


@EACH_LOOP
@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_a_jump_of_the_wall_clock_changes_no_heartbeat(
    backend: str, jump: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour forward or back in mid stream: no false limit, no burst of heartbeats, none missing."""
    still = run(backend, guarded_chunks)
    now = iter(range(0, 10**9, int(abs(jump))))
    monkeypatch.setattr(time, "time", lambda: jump * next(now))
    jumping = run(backend, guarded_chunks)
    assert [chunk[:4] for chunk in jumping] == [chunk[:4] for chunk in still]
    assert read(jumping).complete
