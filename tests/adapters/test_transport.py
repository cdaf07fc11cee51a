"""Readers that do not read: which of them the server lets an application drop, over real sockets."""

from __future__ import annotations

import errno
import select
import socket
import sys
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from fastapi import FastAPI
from opentelemetry.sdk.trace import TracerProvider

from streamguard.adapters.asgi import GuardedAnswer, SealMiddleware
from streamguard.adapters.asgi_sink import AsgiSink
from streamguard.adapters.transport import Transport, hung_up, keep_transport, say_who_drops, transport_of, warn_of_kept
from streamguard.observe.hooks import Outcome
from streamguard.runtime.timing import Timing
from streamguard.testing import Conduct, ScriptedServer
from tests.adapters.asgi_apps import tokens
from tests.adapters.servers import Connection, Gate, serving, stack_params

READERS = 20
SMALL = 4096  # bytes of receive buffer: a reader that takes nothing soon fills what lies between


class FakeTransport:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def close(self) -> None:
        self.calls.append("close")

    def abort(self) -> None:
        self.calls.append("abort")

    def get_write_buffer_size(self) -> int:
        return 7

    def get_extra_info(self, name: str) -> Any:
        return None


def cycle(transport: Any) -> Any:
    """`receive` as uvicorn has it."""

    class Cycle:
        def __init__(self) -> None:
            self.transport = transport

        async def receive(self) -> Any: ...

    return Cycle().receive


async def closure() -> Any: ...


@pytest.mark.skipif(not hasattr(select, "POLLRDHUP"), reason="the system does not say")
def test_a_close_behind_unread_bytes_is_seen() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        theirs.send(b"x")
        assert not hung_up(ours)
        theirs.close()
        assert hung_up(ours)
    assert not hung_up(ours)
    assert not hung_up(None)


@pytest.mark.anyio
async def test_a_server_whose_transport_is_another_than_it_was_is_written_to_all_the_same() -> None:
    def unsent() -> int:
        raise AttributeError("no such attribute in this version")

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"streamguard.transport": Transport(unsent, closure, closure, waits=False)}  # type: ignore[arg-type]
    sink = AsgiSink(scope, closure, send, 200, [])
    await sink.send(b"data")
    assert sent == [{"type": "http.response.body", "body": b"data", "more_body": True}]


def wrapped(receive: Any) -> Any:
    """As layers do that stand outside the seal: spans of FastAPI, and of OpenTelemetry's instrumentation."""

    async def spanned() -> Any:
        return await receive()

    return spanned


@pytest.mark.parametrize("way", ["method", "wrapped", "closure", "http/2", "no version", "no transport", "a file"])
@pytest.mark.parametrize("drop", [True, False])
def test_only_a_transport_that_is_this_requests_alone_is_closed(way: str, drop: bool) -> None:
    transport = FakeTransport()
    receive = closure if way == "closure" else cycle({"no transport": None, "a file": sys.stdout}.get(way, transport))
    receive = wrapped(wrapped(receive)) if way == "wrapped" else receive
    scope = {"http/2": {"http_version": "2"}, "no version": {}}.get(way, {"http_version": "1.1"})
    sink = AsgiSink(scope, receive, None, 200, [])  # type: ignore[arg-type]
    reached = way in ("method", "wrapped")
    assert sink.reached is reached
    assert sink.unsent() == (7 if reached else None)
    assert sink.kill(drop=drop) is reached
    assert transport.calls == (["abort" if drop else "close"] if reached else [])
    assert not sys.stdout.closed


def test_a_layer_that_wraps_receive_does_not_hide_what_the_seal_saw() -> None:
    scope: dict[str, Any] = {"http_version": "1.1"}
    keep_transport(scope, cycle(FakeTransport()))
    assert transport_of(scope, closure) is not None


def test_nothing_is_kept_where_there_is_nothing() -> None:
    scope: dict[str, Any] = {"http_version": "1.1"}
    keep_transport(scope, closure)
    assert list(scope) == ["http_version"]


PAGE = "drop-a-reader-that-does-not-read"


@pytest.mark.parametrize("reached", [True, False])
def test_what_becomes_of_such_readers_is_said_once_whatever_their_limit(reached: bool, caplog: Any) -> None:
    """As information: nothing happened yet, and an option that was set already would be nagged about for ever."""
    caplog.set_level("INFO", "streamguard")
    say_who_drops.cache_clear()
    for limit in (10.0, 20.0, 30.0):
        anyio.run(served, Conduct(), Timing(write=limit), reached)
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert ("TCP_USER_TIMEOUT" in caplog.text) is not reached
    assert "will be dropped" in caplog.text  # at the first stream: what was dropped would be an incident
    assert PAGE in caplog.text


@pytest.mark.parametrize("reached", [True, False])
def test_a_reader_that_could_not_be_dropped_is_a_warning_once(reached: bool, caplog: Any) -> None:
    warn_of_kept.cache_clear()
    for _ in range(2):
        server = anyio.run(served, Conduct(at_messages=2, sends="hang"), Timing(write=0.05, linger=0.0), reached)
        assert server.kills == (["abort"] if reached else [])
    lines = [record.message for record in caplog.records if "does not let an application drop" in record.message]
    assert len(lines) == (0 if reached else 1)
    assert all(PAGE in line and "TCP_USER_TIMEOUT" in line for line in lines)


async def served(conduct: Conduct, timing: Timing, killable: bool) -> ScriptedServer:
    answer = GuardedAnswer(tokens(), timing=timing)
    return await ScriptedServer(answer, conduct=conduct, killable=killable).run()


# ---- over real sockets ----------------------------------------------------------------------------


async def flood() -> AsyncIterator[str]:
    while True:
        yield "x" * 10_000


class App:
    """Endless answers, and how they ended; wrapped, every layer has a `receive` of its own."""

    def __init__(self, timing: Timing) -> None:
        self.timing = timing
        self.outcomes: list[Outcome] = []
        self.all_over = Gate()

    def ended(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        if len(self.outcomes) == READERS:
            self.all_over.open()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def wrapped() -> Any:
            return await receive()

        await GuardedAnswer(flood, timing=self.timing, on_end=self.ended)(scope, wrapped, send)


def none_stays(app: App, outermost: Any, stack: tuple[str, str]) -> None:
    with serving(outermost, http=stack[0], loop=stack[1]) as server:
        readers = [server.connect(receive_buffer=SMALL) for _ in range(READERS)]
        try:
            for reader in readers:
                reader.get()
            app.all_over.wait()
            assert {(outcome.status, outcome.delivered) for outcome in app.outcomes} == {("slow", "no")}
            assert all(map(was_reset, readers))
        finally:
            for reader in readers:
                reader.close()


@pytest.mark.parametrize("stack", stack_params())
def test_no_reader_that_does_not_read_stays(stack: tuple[str, str]) -> None:
    app = App(Timing(write=1.0))
    none_stays(app, SealMiddleware(app), stack)


@pytest.mark.parametrize("stack", stack_params())
def test_the_spans_of_fastapi_which_stand_outside_the_seal_keep_none(stack: tuple[str, str]) -> None:
    app = App(Timing(write=1.0))
    spanned = FastAPI(telemetry={"tracer_provider": TracerProvider()})
    spanned.mount("/", app)
    spanned.add_middleware(SealMiddleware)
    none_stays(app, spanned, stack)


def was_reset(reader: Connection) -> bool:
    """What lay in the socket can still be read, and then the connection is gone: no clean end."""
    try:
        reader.rest()
    except ConnectionResetError:
        return True
    return False


@pytest.mark.parametrize("stack", stack_params())
def test_a_reader_that_is_slower_than_its_deadline_but_reads_gets_it_all(stack: tuple[str, str]) -> None:
    """One frame that takes longer than the deadline to send: bytes move, so nobody is dropped."""
    app = App(Timing(write=1.0))

    async def long() -> AsyncIterator[str]:
        yield "y" * 900_000
        yield "z"

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        await GuardedAnswer(long, timing=app.timing, on_end=app.ended)(scope, receive, send)

    with serving(serve, http=stack[0], loop=stack[1]) as server, server.connect(receive_buffer=SMALL) as reader:
        reader.get()
        reader.socket.settimeout(10.0)
        while b'"status":"complete"' not in reader.received[-2000:]:
            piece = reader.socket.recv(16_384)
            assert piece, "the connection ended"
            reader.received += piece
    assert reader.received.count(b"y" * 1000) == 900


def test_the_system_drops_such_readers_where_a_server_lets_nobody_reach_its_transport() -> None:
    """TCP_USER_TIMEOUT on the listening socket holds for every connection that it accepts."""
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    if option is None:
        pytest.skip("TCP_USER_TIMEOUT is Linux's")
    with socket.socket() as listening:
        listening.setsockopt(socket.IPPROTO_TCP, option, 500)
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        with socket.socket() as reader:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
            reader.connect(listening.getsockname())
            accepted, _ = listening.accept()
            with accepted:
                accepted.settimeout(20.0)
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)
                with pytest.raises(OSError) as caught:  # noqa: PT011
                    while True:
                        accepted.sendall(b"x" * 10_000)
                assert caught.value.errno == errno.ETIMEDOUT  # the test's own limit would bear no number
