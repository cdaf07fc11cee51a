"""Headers, first bytes and heartbeats over sockets, while the source is slow or silent.

A silent source waits at a gate that the reader opens once it has seen what it waits for, so that no test
depends on how long anything takes.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from streamguard.adapters.seal import Message, Receive, Scope, Send
from streamguard.core.receipt import Verdict
from streamguard.core.verify import StreamVerifier
from streamguard.core.wire import Sse
from streamguard.runtime.timing import Timing
from tests.adapters.asgi_apps import answering, unchunked
from tests.adapters.servers import Connection, Gate, serving, stack_params

OFTEN = Timing(heartbeat=0.02, linger=0.05)
BEAT = re.compile(rb"^: hb [\w-]{22}\.(\d+)\.\d+\.[0-9a-f]{8}\n", re.MULTILINE)


def body_of(connection: Connection) -> bytes:
    """What came of the body so far, without its chunk framing."""
    return unchunked(connection.received.partition(b"\r\n\r\n")[2])[0]


def gated(gate: Gate, before: int = 0) -> Any:
    async def source() -> AsyncIterator[str]:
        for index in range(before):
            yield f"t{index} "
        await gate
        yield "late1 "
        yield "late2 "

    return source


def loading(gate: Gate) -> Any:
    async def source() -> AsyncIterator[str]:
        await gate
        return gated(gate)()

    return source


@pytest.mark.parametrize("stack", stack_params())
@pytest.mark.parametrize("producer", [gated, loading], ids=["first token", "loading model"])
def test_headers_and_opening_do_not_wait_for_the_first_token(producer: Any, stack: tuple[str, str]) -> None:
    gate = Gate()
    app = answering(producer(gate))
    with serving(app, http=stack[0], loop=stack[1]) as server, server.connect() as connection:
        connection.get()
        connection.until(b": streamguard 1 ")
        assert b"200 OK" in connection.received
        gate.open()
        connection.until(b"event: end")
        assert b"late2 " in connection.received


@pytest.mark.parametrize("dialect", ["native", "openai", "raw"])
def test_the_opening_makes_a_layer_that_withholds_headers_let_them_go(dialect: str) -> None:
    """Layers exist that keep `http.response.start` until the first body."""
    gate = Gate()
    inner = answering(gated(gate), dialect=dialect)

    async def withholding(scope: Scope, receive: Receive, send: Send) -> None:
        held: list[Message] = []

        async def late(message: Message) -> None:
            if message["type"] == "http.response.start":
                held.append(message)
                return
            while held:
                await send(held.pop())
            await send(message)

        await inner(scope, receive, late)

    with serving(withholding) as server, server.connect() as connection:
        connection.get()
        connection.until(b"200 OK")
        connection.until(b": streamguard 1 ")
        gate.open()


@pytest.mark.parametrize("producer", [gated, loading], ids=["first token", "loading model"])
def test_the_first_heartbeat_comes_before_the_first_token(producer: Any) -> None:
    gate = Gate()
    with serving(answering(producer(gate), timing=OFTEN)) as server, server.connect() as connection:
        connection.get()
        connection.until(b": hb ", 2)
        assert b"late1" not in connection.received
        gate.open()
        connection.until(b"event: end")


@pytest.mark.parametrize("dialect", ["native", "openai"])
def test_a_pause_has_heartbeats_and_loses_nothing(dialect: str) -> None:
    """`wait_for` round the source's step would give a token, one heartbeat and a normal end."""
    gate = Gate()
    app = answering(gated(gate, before=1), timing=OFTEN, dialect=dialect)
    with serving(app) as server, server.connect() as connection:
        connection.get(streamguard="v=1")
        connection.until(b"t0 ")
        connection.until(b": hb ", 3)
        gate.open()
        connection.until(b"0\r\n\r\n")
        body = body_of(connection)
    verifier = StreamVerifier(dialect=dialect)
    text = "".join([frame.text for frame in verifier.feed(body) + verifier.end(clean=True)])
    assert (verifier.verdict, text) == (Verdict.COMPLETE, "t0 late1 late2 ")
    assert BEAT.findall(body)[:3] == [b"1"] * 3


def test_no_heartbeat_tears_an_event_or_follows_the_terminal() -> None:
    gate = Gate()
    with serving(answering(gated(gate, before=1), timing=OFTEN)) as server, server.connect() as connection:
        connection.get(connection="close")
        connection.until(b": hb ", 3)
        gate.open()
        connection.rest()
        body = body_of(connection)
    assert BEAT.sub(b"", body.partition(b"event: end\n")[2]) == body.partition(b"event: end\n")[2]
    without = BEAT.sub(b"", body)
    assert b": hb" not in without  # every one was a line of its own
    assert all(block.rsplit(b"\n", 1)[-1].startswith(b"data: ") for block in without.split(b"\n\n")[:-1])


def test_a_padded_heartbeat_fills_what_holds_two_kilobytes_back() -> None:
    """Off by default; a layer that lets bytes go by blocks of 2,048 is passed by one padded heartbeat."""
    gate = Gate()
    inner = answering(gated(gate, before=1), timing=OFTEN, wire=Sse(heartbeat="padded"))

    async def holding(scope: Scope, receive: Receive, send: Send) -> None:
        held = b""

        async def late(message: Message) -> None:
            nonlocal held
            if message["type"] == "http.response.body" and message.get("more_body"):
                held += message["body"]
                whole = len(held) - len(held) % 2048
                message = {**message, "body": held[:whole]}
                held = held[whole:]
            await send(message)

        await inner(scope, receive, late)

    with serving(holding) as server, server.connect() as connection:
        connection.get()
        connection.until(b"t0 ")
        gate.open()


def test_the_default_heartbeat_is_short() -> None:
    gate = Gate()
    with serving(answering(gated(gate), timing=OFTEN)) as server, server.connect() as connection:
        connection.get()
        connection.until(b": hb ", 2)
        gate.open()
        connection.until(b"event: end")
        assert all(len(match.group()) < 64 for match in BEAT.finditer(body_of(connection)))


def test_a_ping_is_an_event_with_json() -> None:
    gate = Gate()
    app = answering(gated(gate), timing=OFTEN, wire=Sse(heartbeat="ping"))
    with serving(app) as server, server.connect() as connection:
        connection.get()
        connection.until(b"event: ping\n", 2)
        gate.open()
        connection.until(b"event: end")
        block = body_of(connection).partition(b"event: ping\n")[2].partition(b"\n\n")[0]
    assert "cursor" in json.loads(block.removeprefix(b"data: "))


def test_without_a_heartbeat_there_is_none() -> None:
    async def slow() -> AsyncIterator[str]:
        for _ in range(3):
            await asyncio.sleep(0.05)
            yield "t "

    with serving(answering(slow, timing=Timing(heartbeat=None))) as server, server.connect() as connection:
        connection.get()
        assert b": hb " not in connection.until(b"event: end")


@pytest.mark.parametrize("hops", [1, 2])
def test_heartbeats_keep_a_connection_open_whose_reader_cuts_idle_ones(hops: int) -> None:
    """The silence is longer than the reader's limit; `hops` readers stand one behind the other."""
    gate = Gate()
    limit = 2.0
    with serving(answering(gated(gate, before=1), timing=Timing(heartbeat=0.1))) as server:
        connections = [server.connect() for _ in range(hops)]
        for connection in connections:
            connection.socket.settimeout(limit)
            connection.get()
        for _ in range(25):
            for connection in connections:
                connection.until(b": hb ", connection.received.count(b": hb ") + 1)
        gate.open()
        for connection in connections:
            connection.until(b"event: end")
            assert b"late2 " in connection.received
            connection.close()


def test_answers_forbid_transformation_on_the_way() -> None:
    """A proxy that compresses would hold frames back."""
    with serving(answering(gated(_opened()))) as server, server.connect() as connection:
        connection.get()
        assert b"no-transform" in connection.until(b"\r\n\r\n")


def _opened() -> Gate:
    gate = Gate()
    gate.open()
    return gate
