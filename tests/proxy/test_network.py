"""A connection's bytes: held back where they are not taken, and what comes at its end."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import anyio
import httpcore
import pytest

from streamguard.proxy.network import AsyncioBackend


async def pair() -> tuple[Any, socket.socket]:
    """A stream, and the socket at its other end."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        stream = await AsyncioBackend().connect_tcp("127.0.0.1", listening.getsockname()[1], timeout=10)
        other, _ = listening.accept()
    other.setblocking(False)
    return stream, other


def test_what_nobody_reads_is_left_in_the_socket_and_comes_once_somebody_does() -> None:
    async def run() -> None:
        stream, other = await pair()
        loop, sent, data = asyncio.get_running_loop(), 0, b"x" * 65536

        async def write() -> None:
            nonlocal sent
            for _ in range(400):  # more than all buffers on the way take
                await loop.sock_sendall(other, data)
                sent += len(data)
            other.close()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            seen = -1
            while seen != sent:  # until nothing more is taken
                seen = sent
                await anyio.sleep(0.05)
            assert sent < 400 * len(data)
            total = 0
            while piece := await stream.read(65536):
                total += len(piece)
        assert total == sent == 400 * len(data)
        assert stream.get_extra_info("is_readable")
        await stream.aclose()

    anyio.run(run)


def test_a_write_waits_for_the_other_side_and_no_longer_than_it_may() -> None:
    async def run() -> None:
        stream, other = await pair()
        with pytest.raises(httpcore.WriteTimeout):
            for _ in range(1000):
                await stream.write(b"x" * 65536, timeout=0.05)
        await stream.aclose()  # what it holds is dropped
        with pytest.raises(httpcore.WriteError):
            await stream.write(b"x")
        other.close()

    anyio.run(run)


def test_a_reset_is_an_error_behind_what_came_before_it() -> None:
    async def run() -> None:
        stream, other = await pair()
        other.send(b"abc")
        assert await stream.read(2, timeout=10) == b"ab"
        other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        other.close()
        assert await stream.read(9) == b"c"
        with pytest.raises(httpcore.ReadError):
            await stream.read(9)
        await stream.aclose()

    anyio.run(run)


def test_a_close_is_the_end_and_a_silence_has_its_limit() -> None:
    async def run() -> None:
        stream, other = await pair()
        assert not stream.get_extra_info("is_readable")
        assert stream.get_extra_info("peername")[0] == "127.0.0.1"
        with pytest.raises(httpcore.ReadTimeout):
            await stream.read(9, timeout=0.01)
        other.close()
        assert await stream.read(9) == b""
        await stream.aclose()
        await AsyncioBackend().sleep(0)

    anyio.run(run)
