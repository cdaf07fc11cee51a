"""The fault proxy does to a response what its plan says, at the byte that it says, on every event loop."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import pytest

from streamguard.testing.plan import HEAD, Passage, Plan, RandomCut
from streamguard.testing.proxy import FaultProxy
from streamguard.testing.sockets import reset_on_close

pytestmark = pytest.mark.anyio

HEADER = b"HTTP/1.1 200 OK\r\nx-test: 1\r\n\r\n"
BODY = bytes(range(256)) * 40


@asynccontextmanager
async def serving(
    handle: Callable[[anyio.abc.SocketStream], Any], plan: Plan | Callable[[int], Plan] | None = None
) -> AsyncIterator[FaultProxy]:
    """A proxy in front of a TCP server that runs `handle` for each connection."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, handle)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        async with FaultProxy("127.0.0.1", port, plan=plan) as proxy:
            with anyio.fail_after(20):
                yield proxy
        tasks.cancel_scope.cancel()


async def answer(stream: anyio.abc.SocketStream) -> None:
    """One request line in, a head and a body out, and the end."""
    async with stream:
        await stream.receive()
        await stream.send(HEADER)
        await stream.send(BODY)


async def fetched(proxy: FaultProxy, request: bytes = b"GET / HTTP/1.1\r\n\r\n") -> tuple[bytes, str]:
    """All that a reader gets, and how it ended for it: `eof` or `reset`."""
    got = bytearray()
    async with await anyio.connect_tcp(proxy.host, proxy.port) as stream:
        await stream.send(request)
        while True:
            try:
                got += await stream.receive()
            except anyio.EndOfStream:
                return bytes(got), "eof"
            except anyio.BrokenResourceError:
                return bytes(got), "reset"


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110  (the counters are plain numbers)
        await anyio.sleep(0.001)


async def settled(proxy: FaultProxy) -> Passage:
    """The first connection, when the proxy has done with it."""
    await until(lambda: not proxy.open)
    return proxy.history[0]


async def test_a_plan_that_asks_for_nothing_changes_nothing() -> None:
    async with serving(answer) as proxy:
        assert await fetched(proxy) == (HEADER + BODY, "eof")
        passage = await settled(proxy)
        assert passage.ended == "whole"
        assert passage.down == proxy.down == len(HEADER) + len(BODY)
        assert passage.up == proxy.up == len(b"GET / HTTP/1.1\r\n\r\n")
        assert proxy.connections == 1


@pytest.mark.parametrize("at", [0, 1, len(HEADER), 5000, len(HEADER) + len(BODY) - 1])
@pytest.mark.parametrize(("end", "seen"), [("fin", "eof"), ("reset", "reset")])
async def test_a_cut_lets_exactly_so_many_bytes_through(at: int, end: Any, seen: str) -> None:
    async with serving(answer, Plan(cut_at=at, end=end)) as proxy:
        assert await fetched(proxy) == ((HEADER + BODY)[:at], seen)
        assert (await settled(proxy)).ended == "cut"


async def test_a_cut_behind_the_end_never_happens() -> None:
    async with serving(answer, Plan(cut_at=10**6)) as proxy:
        assert (await fetched(proxy))[0] == HEADER + BODY
        assert (await settled(proxy)).ended == "whole"


async def test_positions_after_the_head_are_positions_in_the_body() -> None:
    async with serving(answer, Plan(cut_at=77, after=HEAD)) as proxy:
        assert (await fetched(proxy))[0] == HEADER + BODY[:77]


async def test_random_cuts_are_the_same_for_the_same_seed() -> None:
    plan = RandomCut(seed=3, low=1, high=900, base=Plan(end="fin", after=HEAD))
    lengths = []
    for _ in range(2):
        async with serving(answer, plan) as proxy:
            lengths.append([len((await fetched(proxy))[0]) - len(HEADER) for _ in range(5)])
    assert lengths[0] == lengths[1]
    assert lengths[0] == [plan(index).cut_at for index in range(5)]
    assert len(set(lengths[0])) > 1


async def test_a_connection_that_asks_for_nothing_takes_no_number() -> None:
    """Browsers connect ahead."""
    asked: list[int] = []

    def plan(index: int) -> Plan:
        asked.append(index)
        return Plan()

    async with serving(answer, plan) as proxy:
        async with await anyio.connect_tcp(proxy.host, proxy.port) as ahead:
            await until(lambda: proxy.open)
            assert (await fetched(proxy))[0] == HEADER + BODY
            assert asked == [0]
            await ahead.send(b"GET / HTTP/1.1\r\n\r\n")
            await ahead.receive()
            assert asked == [0, 1]


@pytest.mark.parametrize("leave", ["closes", "resets"])
async def test_a_connection_that_leaves_without_a_word_takes_no_number(leave: str) -> None:
    """Node opens one more than it uses, and closes it, where an attempt was given up while connecting."""
    async with serving(answer, lambda index: Plan(cut_at=10 if index == 0 else None)) as proxy:
        sock = socket.create_connection((proxy.host, proxy.port))
        await until(lambda: proxy.open)
        if leave == "resets":
            reset_on_close(sock)
        sock.close()
        await until(lambda: not proxy.open)
        assert len((await fetched(proxy))[0]) == 10
        assert (proxy.connections, len(proxy.history)) == (1, 1)


async def test_a_stall_holds_the_rest_until_its_time_has_passed() -> None:
    async with serving(answer, Plan(stall_at=10, stall=0.05)) as proxy:
        before = anyio.current_time()
        assert await fetched(proxy) == (HEADER + BODY, "eof")
        assert anyio.current_time() - before >= 0.05


async def test_a_cut_where_a_stall_ends_waits_for_nothing() -> None:
    """Its server says no more after that."""

    async def handle(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(HEADER)
            with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                await stream.receive()

    plan = Plan(after=HEAD, stall_at=0, stall=0.01, cut_at=0)
    async with serving(handle, plan) as proxy:
        assert await fetched(proxy) == (HEADER, "eof")


async def test_a_reader_that_leaves_a_stall_ends_the_connection() -> None:
    gone = anyio.Event()

    async def handle(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(BODY)
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await stream.receive()
            gone.set()

    async with serving(handle, Plan(stall_at=10)) as proxy:
        async with await anyio.connect_tcp(proxy.host, proxy.port) as stream:
            await stream.send(b"x")
            got = b""
            while len(got) < 10:
                got += await stream.receive()
            assert got == BODY[:10]
            await until(lambda: proxy.history[0].stalled)
        await gone.wait()
        assert (await settled(proxy)).ended == "left"


async def test_a_delay_makes_every_byte_late() -> None:
    async with serving(answer, Plan(delay=0.05)) as proxy:
        before = anyio.current_time()
        assert (await fetched(proxy))[0] == HEADER + BODY
        assert anyio.current_time() - before >= 0.05


async def test_a_rate_is_not_exceeded() -> None:
    async with serving(answer, Plan(rate=100_000)) as proxy:
        before = anyio.current_time()
        assert (await fetched(proxy))[0] == HEADER + BODY
        assert anyio.current_time() - before >= len(HEADER + BODY) / 100_000


async def test_requests_can_be_passed_on_as_http_1_0() -> None:
    lines = []

    async def handle(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            lines.append(await stream.receive())

    async with serving(handle, Plan(http10=True)) as proxy:
        await fetched(proxy, b"POST /chat HTTP/1.1\r\nhost: x\r\n\r\n{}")
    assert lines == [b"POST /chat HTTP/1.0\r\nhost: x\r\n\r\n{}"]


async def test_a_request_line_in_pieces_is_passed_on_as_http_1_0_too() -> None:
    got = bytearray()

    async def handle(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            while not got.endswith(b"\r\n\r\n"):
                got.extend(await stream.receive())

    async with serving(handle, Plan(http10=True)) as proxy:
        async with await anyio.connect_tcp(proxy.host, proxy.port) as stream:
            for piece in (b"GET / HTT", b"P/1.1\r", b"\n", b"\r\n"):
                await stream.send(piece)
                await anyio.wait_all_tasks_blocked()
            with pytest.raises(anyio.EndOfStream):
                await stream.receive()
    assert bytes(got) == b"GET / HTTP/1.0\r\n\r\n"


async def test_an_answer_counts_though_its_server_is_gone_before_the_request_is_over() -> None:
    async with serving(answer) as proxy:
        async with await anyio.connect_tcp(proxy.host, proxy.port) as stream:
            await stream.send(b"first")
            got = b""
            with pytest.raises(anyio.EndOfStream):
                while True:
                    got += await stream.receive()
            assert got == HEADER + BODY
            for _ in range(20):  # the first of these is reset by the server's system, the others cannot be sent
                await stream.send(b"more")
                await anyio.sleep(0.001)
        assert (await settled(proxy)).ended == "whole"


async def test_a_reset_by_the_server_reaches_the_reader_behind_its_bytes() -> None:
    async with (
        serving(answer, Plan(cut_at=5000, end="reset")) as server,
        FaultProxy(server.host, server.port, plan=Plan(delay=0.02)) as proxy,
    ):
        assert await fetched(proxy) == ((HEADER + BODY)[:5000], "reset")
        assert (await settled(proxy)).ended == "whole"


async def test_without_a_server_the_reader_is_reset() -> None:
    unused = socket.socket()
    unused.bind(("127.0.0.1", 0))  # bound and not listening: nobody else gets the port
    try:
        async with FaultProxy("127.0.0.1", unused.getsockname()[1]) as proxy:
            with anyio.fail_after(20):
                assert await fetched(proxy) == (b"", "reset")
                assert (await settled(proxy)).ended == "refused"
    finally:
        unused.close()


async def test_a_reader_that_leaves_ends_the_servers_connection() -> None:
    ended = anyio.Event()

    async def handle(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            try:
                while True:
                    await stream.send(BODY)
                    await anyio.sleep(0.001)
            except anyio.BrokenResourceError:
                ended.set()

    async with serving(handle) as proxy:
        async with await anyio.connect_tcp(proxy.host, proxy.port) as stream:
            await stream.receive()
        await ended.wait()
        assert (await settled(proxy)).ended == "left"


async def test_a_readers_reset_reaches_the_server() -> None:
    seen = anyio.Event()

    async def handle(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.receive()
            with pytest.raises(anyio.BrokenResourceError):
                await stream.receive()
            seen.set()

    async with serving(handle) as proxy:
        with socket.create_connection((proxy.host, proxy.port)) as reader:
            reader.sendall(b"x")
            await until(lambda: proxy.up)
            reset_on_close(reader)
        await seen.wait()
        assert (await settled(proxy)).ended == "left"


async def test_a_slow_reader_holds_the_server_back() -> None:
    sent = 0

    async def handle(stream: anyio.abc.SocketStream) -> None:
        nonlocal sent
        async with stream:
            try:
                while True:
                    await stream.send(bytes(65536))
                    sent += 65536
            except anyio.BrokenResourceError:
                pass

    async with serving(handle) as proxy, await anyio.connect_tcp(proxy.host, proxy.port):
        before = -1
        while sent != before:  # until nothing more fits into the sockets and the line
            before = sent
            await anyio.sleep(0.2)
        assert sent < 32 * 1024 * 1024


async def test_leaving_the_proxy_drops_its_connections() -> None:
    async def handle(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await anyio.sleep_forever()

    async with serving(handle) as proxy:
        stream = await anyio.connect_tcp(proxy.host, proxy.port)
        await until(lambda: proxy.open)
    async with stream:
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await stream.receive()
    assert proxy.history[0].ended == "closed"
    assert proxy.open == 0


async def test_an_error_in_the_body_leaves_the_proxy_as_it_is() -> None:
    with pytest.raises(LookupError, match="mine"):
        async with FaultProxy("127.0.0.1", 9):
            raise LookupError("mine")


async def test_what_is_held_passes_at_once_when_enough_has_come() -> None:
    """The reader answers each piece, so that the server sends the next only when the last has come, or is held."""
    arrived = []

    async def handle(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(HEADER + BODY[:2047])
            await until(lambda: proxy.down == len(HEADER))
            await stream.send(BODY[2047:2048])
            await stream.receive()  # the reader has it all
            await stream.send(b"!")

    async with serving(handle, Plan(hold=2048, after=HEAD)) as proxy:
        async with await anyio.connect_tcp(proxy.host, proxy.port) as stream:
            await stream.send(b"x")
            got = b""
            while len(got) < len(HEADER) + 2048:
                got += await stream.receive()
                arrived.append(len(got))
            await stream.send(b"y")
            with pytest.raises(anyio.EndOfStream):
                while True:
                    got += await stream.receive()
    assert got == HEADER + BODY[:2048] + b"!"
    assert set(arrived) <= {len(HEADER), len(HEADER) + 2048}


async def test_what_is_held_passes_when_the_response_ends() -> None:
    async with serving(answer, Plan(hold=10**6)) as proxy:
        assert await fetched(proxy) == (HEADER + BODY, "eof")
        assert (await settled(proxy)).ended == "whole"


async def test_what_is_held_passes_before_a_reset() -> None:
    async with (
        serving(answer, Plan(cut_at=5000, end="reset")) as server,
        FaultProxy(server.host, server.port, plan=Plan(hold=10**6)) as proxy,
    ):
        assert await fetched(proxy) == ((HEADER + BODY)[:5000], "reset")


@pytest.mark.parametrize("hold", [100, 10**6])
async def test_a_cut_inside_what_is_held_is_at_its_byte(hold: int) -> None:
    async with serving(answer, Plan(hold=hold, cut_at=77, after=HEAD)) as proxy:
        assert await fetched(proxy) == (HEADER + BODY[:77], "eof")
        assert (await settled(proxy)).ended == "cut"


@pytest.mark.parametrize(("end", "seen"), [("fin", "eof"), ("reset", "reset")])
async def test_a_silent_connection_is_ended_at_the_idle_limit(end: Any, seen: str) -> None:
    gone = anyio.Event()

    async def handle(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(HEADER + BODY)
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await stream.receive()
            gone.set()

    async with serving(handle, Plan(idle=0.4, end=end)) as proxy:
        assert await fetched(proxy) == (HEADER + BODY, seen)
        await gone.wait()
        assert (await settled(proxy)).ended == "idle"


async def test_a_connection_on_which_bytes_move_is_not_idle() -> None:
    """Twice the limit in all, and never as long without a byte: first of the server's, then of the reader's."""

    async def handle(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            for _ in range(20):
                await stream.send(b".")
                await anyio.sleep(0.05)
            for _ in range(20):
                await stream.receive()
            await stream.send(b"!")

    async with serving(handle, Plan(idle=1.0)) as proxy:
        async with await anyio.connect_tcp(proxy.host, proxy.port) as stream:
            got = b""
            while len(got) < 20:
                got += await stream.receive()
            for _ in range(20):
                await stream.send(b"x")
                await anyio.sleep(0.05)
            with pytest.raises(anyio.EndOfStream):
                while True:
                    got += await stream.receive()
        assert got == b"." * 20 + b"!"
        assert (await settled(proxy)).ended == "whole"


async def test_a_slow_but_moving_response_is_not_idle_though_its_server_is_done() -> None:
    async with serving(answer, Plan(idle=0.7, rate=10_000)) as proxy:
        assert (await fetched(proxy))[0] == HEADER + BODY
        assert (await settled(proxy)).ended == "whole"


async def test_a_stall_is_idle_too() -> None:
    async with serving(answer, Plan(idle=0.4, stall_at=10)) as proxy:
        assert await fetched(proxy) == ((HEADER + BODY)[:10], "eof")
        passage = await settled(proxy)
        assert (passage.ended, passage.stalled) == ("idle", False)
