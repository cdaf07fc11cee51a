"""The send window of a connection: without a socket in virtual time, then over real ones."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from streamguard.adapters import pacing
from streamguard.adapters.asgi import GuardedAnswer, SealMiddleware
from streamguard.adapters.options import AnswerOptions
from streamguard.adapters.pacing import Link, Pacer, link_of, make_pacer
from streamguard.adapters.transport import Transport
from streamguard.core.window import Sample, SendWindow
from streamguard.observe.hooks import Outcome
from streamguard.runtime.timing import Timing
from tests.adapters.servers import serving, stack_params
from tests.runtime.virtual import BACKENDS, run

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells so much of a connection")
each_backend = pytest.mark.parametrize("backend", BACKENDS)


def never() -> None:
    raise AssertionError("nobody closes it")


class Wire:
    """A transport that takes whatever it is given, and what is on its way: `acknowledge` lets some of it arrive."""

    def __init__(self) -> None:
        self.away = self.acked = 0
        self.rtt = 0.01
        self.looks = 0
        self.transport = Transport(self._held, never, never, held=self._held, socket=lambda: self)

    def _held(self) -> int:
        self.looks += 1
        return self.away

    def acknowledge(self, size: int) -> None:
        self.away -= size
        self.acked += size


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    wire = Wire()
    monkeypatch.setattr(pacing, "queued", lambda connection: 0)
    monkeypatch.setattr(pacing, "link_of", lambda connection: Link(wire.acked, 0, wire.rtt))
    return wire


async def send(wire: Wire, pacer: Pacer, *sizes: int) -> None:
    for size in sizes:
        await pacer.admit(size)
        wire.away += size


@each_backend
def test_a_write_starts_while_less_than_the_window_is_on_its_way_and_may_overshoot(wire: Wire, backend: str) -> None:
    async def test() -> None:
        pacer = Pacer(wire.transport, 1000, anyio.current_time)
        await send(wire, pacer, 400, 400, 400)
        assert (wire.away, pacer.held) == (1200, 0)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send, wire, pacer, 50)
            await anyio.sleep(5.0)
            assert (wire.away, pacer.held, pacer.on_its_way()) == (1200, 50, 1200)
            wire.acknowledge(200)
            await anyio.sleep(5.0)
            assert wire.away == 1000
            wire.acknowledge(1)
            await anyio.sleep(0.1)
            assert (wire.away, pacer.held) == (1049, 0)

    run(backend, test)


@each_backend
def test_a_write_that_is_given_up_leaves_nothing_held(wire: Wire, backend: str) -> None:
    async def test() -> None:
        pacer = Pacer(wire.transport, 10, anyio.current_time)
        with anyio.move_on_after(3.0) as scope:
            await send(wire, pacer, 100, 100)
        assert (scope.cancelled_caught, pacer.held, wire.away) == (True, 0, 100)

    run(backend, test)


@each_backend
def test_while_there_is_room_it_looks_once_a_millisecond_at_most(wire: Wire, backend: str) -> None:
    async def test() -> None:
        pacer = Pacer(wire.transport, 10**6, anyio.current_time)
        for _ in range(10):
            await send(wire, pacer, *[10] * 100)
            await anyio.sleep(0.0011)
        assert wire.looks == 10

    run(backend, test)


class Noted(SendWindow):
    """A window that keeps its samples."""

    def __init__(self) -> None:
        super().__init__(1000, least=1000)
        self.samples: list[Sample] = []

    def take(self, sample: Sample) -> int:
        self.samples.append(sample)
        return super().take(sample)


@each_backend
def test_a_window_that_learns_is_told_what_the_system_knows(wire: Wire, backend: str) -> None:
    async def test() -> None:
        window = Noted()
        pacer = Pacer(wire.transport, window, anyio.current_time)
        await send(wire, pacer, 300)
        await anyio.sleep(1.0)
        wire.acknowledge(300)
        await send(wire, pacer, 1200)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send, wire, pacer, 10)
            await anyio.sleep(0.01)
            wire.acknowledge(1000)
        first, second, *more = window.samples
        assert (first.sent, first.acked, first.rtt) == (0, 0, 0.01)
        assert (second.sent, second.acked, second.rtt, second.held) == (300, 300, 0.01, False)
        assert [(one.sent, one.acked, one.rtt) for one in more][:1] == [(1500, 300, None)]
        assert (more[-1].sent, more[-1].acked, more[-1].rtt, more[-1].held) == (1500, 1300, 0.01, True)

    run(backend, test)


@each_backend
def test_a_saturating_sender_grows_its_window_on_a_link_that_takes_more(wire: Wire, backend: str) -> None:
    """Each write is acknowledged after ten milliseconds, however much is on its way."""

    async def test() -> int:
        pacer = Pacer(wire.transport, SendWindow(), anyio.current_time)
        going: deque[float] = deque()

        async def link() -> None:
            while True:
                await anyio.sleep(0.0005)
                while going and anyio.current_time() - going[0] >= 0.01:
                    going.popleft()
                    wire.acknowledge(1000)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(link)
            for _ in range(4000):
                await send(wire, pacer, 1000)
                going.append(anyio.current_time())
            tasks.cancel_scope.cancel()
        return pacer.size

    assert run(backend, test) > 4 * 16 * 1024


@each_backend
def test_a_reader_that_takes_nothing_is_looked_at_ten_times_a_second(wire: Wire, backend: str) -> None:
    async def test() -> None:
        pacer = Pacer(wire.transport, 10, anyio.current_time)
        with anyio.move_on_after(60.0):
            await send(wire, pacer, 100, 100)
        assert 550 < wire.looks < 650

    run(backend, test)


@each_backend
def test_an_acknowledgement_that_was_quicker_than_the_systems_average_counts_as_it_was(
    wire: Wire, backend: str
) -> None:
    """The average holds those that the reader's system put off."""

    async def test() -> None:
        window = Noted()
        pacer = Pacer(wire.transport, window, anyio.current_time)
        wire.rtt = 0.05
        await send(wire, pacer, 300, 300)
        await anyio.sleep(0.02)
        wire.acknowledge(600)
        await send(wire, pacer, 300)
        await anyio.sleep(0.3)
        wire.acknowledge(300)  # long ago, for all that can be seen here
        await send(wire, pacer, 300)
        assert [sample.rtt for sample in window.samples[1:]] == [pytest.approx(0.02), 0.05]

    run(backend, test)


# ---- the option ---------------------------------------------------------------------------------


def test_a_window_is_off_or_learns_or_is_a_number_of_bytes() -> None:
    assert AnswerOptions().window is False
    for good in (True, False, 1, 65536):
        assert AnswerOptions(window=good).window == good
    with pytest.raises(TypeError, match="window is True, False, or a number of bytes"):
        AnswerOptions(window=1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one byte or more"):
        AnswerOptions(window=0)


def test_without_a_socket_there_is_no_window_and_the_log_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    pacing._say_who_has_none.cache_clear()
    hidden = Transport(lambda: 0, never, never)
    assert make_pacer(None, False) is make_pacer(hidden, False) is None
    assert not caplog.records
    assert make_pacer(None, True) is make_pacer(hidden, 65536) is None
    assert [record.message.partition(",")[0] for record in caplog.records] == ["a send window is set"]
    pacing._say_who_has_none.cache_clear()


@linux
def test_a_connection_tells_what_was_acknowledged_and_what_is_none_tells_nothing() -> None:
    with socket.socket() as listening, socket.socket() as one:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        one.connect(listening.getsockname())
        before = link_of(one)
        other, _ = listening.accept()
        with other:
            one.sendall(b"x" * 1000)
            assert len(other.recv(1000, socket.MSG_WAITALL)) == 1000
        found = link_of(one)
        bare: Any = type("Bare", (), {"fileno": lambda self: one.fileno()})()
        again = link_of(bare)
        assert before is not None
        assert found is not None
        assert again is not None
        assert found.acked - before.acked <= 1001
        assert again.acked >= found.acked
        assert found.again == 0
        assert 0 < found.rtt < 10
        assert one.fileno() >= 0
        assert one.send(b"y") == 1, "a look closed the connection"
    assert link_of(one) is None
    left, right = socket.socketpair()
    with left, right:
        assert link_of(left) is None


# ---- over sockets -------------------------------------------------------------------------------

PIECE = 16 * 1024


class Source:
    """Pieces without end; how many were asked for."""

    def __init__(self) -> None:
        self.made = 0

    async def __call__(self) -> AsyncIterator[str]:
        while True:
            self.made += 1
            yield "x" * PIECE
            await asyncio.sleep(0)


@linux
@pytest.mark.parametrize("stack", stack_params())
@pytest.mark.parametrize("window", [64 * 1024, True])
def test_a_reader_that_takes_nothing_gets_a_window_and_is_dropped_in_time(stack: Any, window: bool | int) -> None:
    """Without a window it is megabytes that the system takes."""
    source, ended, outcomes = Source(), threading.Event(), list[Outcome]()

    def note(outcome: Outcome) -> None:
        outcomes.append(outcome)
        ended.set()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        timing = Timing(write=0.4, linger=0.05)
        await GuardedAnswer(source(), window=window, timing=timing, on_end=note)(scope, receive, send)

    http, loop = stack
    with serving(SealMiddleware(app), http=http, loop=loop) as server:
        with server.connect(receive_buffer=4096) as connection:
            connection.get()
            assert ended.wait(10.0)
    assert [outcome.status for outcome in outcomes] == ["slow"]
    assert PIECE * source.made <= 64 * 1024 + 8 * PIECE  # and what the reader's own system took


@linux
@pytest.mark.parametrize("stack", stack_params())
def test_all_that_is_sent_through_a_window_arrives(stack: Any) -> None:
    async def pieces() -> AsyncIterator[str]:
        for _ in range(100):
            yield "x" * PIECE

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await GuardedAnswer(pieces(), window=4096)(scope, receive, send)

    http, loop = stack
    with serving(SealMiddleware(app), http=http, loop=loop) as server, server.connect() as connection:
        connection.get(connection="close")
        body = connection.rest()
    assert body.count(b"x") >= 100 * PIECE
    assert b'"status":"complete"' in body
