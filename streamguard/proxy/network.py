"""Connections for httpcore, over asyncio's own protocols.

httpcore's connections are anyio's, which serve two kinds of event loop: a read there has a cancel scope, a check for
cancellation and a lock, which together cost more than all else that a token needs on its way in. Here a read that finds
bytes returns them, and one that finds none waits for one future. uvicorn runs on asyncio alone, so nothing is lost.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Iterable
from typing import Any, Final, TypeVar

import anyio
import httpcore

__all__ = ["AsyncioBackend"]

T = TypeVar("T")

_MOST: Final = 256 * 1024  # bytes that wait to be read, before the socket is left alone
_UNTAKEN: Final = 1.0  # seconds, after which one that has answered and takes nothing is not sent the rest


class _Protocol(asyncio.Protocol):
    """What came of one connection, and who waits."""

    def __init__(self) -> None:
        self.held = bytearray()
        self.over = False  # nothing more will come
        self.error: Exception | None = None
        self.transport: Any = None
        self._paused = False
        self.full = False  # the transport takes no more just now
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.held += data
        if len(self.held) > _MOST and not self._paused:
            self._paused = True
            self.transport.pause_reading()
        _wake(self._reader)

    def eof_received(self) -> bool:
        self.over = True
        _wake(self._reader)
        return False  # and close

    def connection_lost(self, exc: Exception | None) -> None:
        self.over = True
        self.error = self.error or exc
        _wake(self._reader)
        _wake(self._writer)

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False
        _wake(self._writer)

    async def come(self) -> None:
        """Wait until there is something to read, or never will be."""
        while not self.held and not self.over:
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None

    def take(self, size: int) -> bytes:
        taken = bytes(self.held[:size])
        del self.held[:size]
        if self._paused and len(self.held) <= _MOST // 2:
            self._paused = False
            if not self.over:
                self.transport.resume_reading()
        return taken

    @property
    def answered(self) -> bool:
        """Whether the other side has begun its answer, and not only said that one will come."""
        return len(self.held) > 9 and self.held[9:10] != b"1"

    async def drained(self) -> None:
        """Wait until the transport takes more."""
        while self.full and not self.over:
            self._writer = asyncio.get_running_loop().create_future()
            try:
                await self._writer
            finally:
                self._writer = None


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


class _Stream(httpcore.AsyncNetworkStream):
    def __init__(self, protocol: _Protocol) -> None:
        self._protocol = protocol
        self._asked = False  # something was written since the last read

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        protocol = self._protocol
        self._asked = False
        if not protocol.held and not protocol.over:
            if timeout is None:
                await protocol.come()
            else:
                await _within(timeout, httpcore.ReadTimeout, protocol.come())
        if not protocol.held and protocol.error is not None:
            raise httpcore.ReadError(str(protocol.error))
        return protocol.take(max_bytes)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        protocol = self._protocol
        if protocol.over or protocol.transport.is_closing():
            if not self._asked:  # a WriteError would make httpcore wait for an answer, and whoever asked would
                raise httpcore.ConnectError("the connection was closed while it was idle")  # believe that it was sent
            raise httpcore.WriteError("the connection is closed")
        self._asked = True
        protocol.transport.write(buffer)
        if protocol.full:
            await _within(timeout, httpcore.WriteTimeout, self._taken())

    async def _taken(self) -> None:
        """Wait until the other side takes more. One that has answered need not: then a WriteError, at which httpcore
        reads the answer. Else both sides would wait for each other."""
        protocol = self._protocol
        while protocol.full and not protocol.over:
            before = protocol.transport.get_write_buffer_size()
            with anyio.move_on_after(_UNTAKEN):
                await protocol.drained()
            if protocol.answered and protocol.transport.get_write_buffer_size() == before:
                raise httpcore.WriteError("it has answered, and takes no more of the request")

    async def aclose(self) -> None:
        transport = self._protocol.transport
        # What is not sent is of a request that nobody needs any more. Under TLS an orderly close would wait for the
        # other side, and keep the connection meanwhile: where a body ends its own framing says.
        if transport.get_write_buffer_size() or transport.get_extra_info("ssl_object") is not None:
            transport.abort()
        else:
            transport.close()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore.AsyncNetworkStream:
        transport, inner = self._protocol.transport, _Protocol()
        try:
            begun = asyncio.get_running_loop().start_tls(
                transport, inner, ssl_context, server_hostname=server_hostname
            )
            inner.transport = await _within(timeout, httpcore.ConnectTimeout, begun)
        except BaseException as exc:
            transport.abort()  # httpcore forgets a connection that it could not make
            if isinstance(exc, (OSError, EOFError)):  # an SSLError is one
                raise httpcore.ConnectError(str(exc)) from exc
            raise
        return _Stream(inner)

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable":  # how httpcore asks whether the other side has closed it
            return self._protocol.over or bool(self._protocol.held)
        return self._protocol.transport.get_extra_info(info)


class AsyncioBackend(httpcore.AsyncNetworkBackend):
    """To be given to httpcore's connections."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        try:
            connected = asyncio.get_running_loop().create_connection(_Protocol, host, port)
            _, protocol = await _within(timeout, httpcore.ConnectTimeout, connected)
        except OSError as exc:
            raise httpcore.ConnectError(str(exc)) from exc
        return _Stream(protocol)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def _within(seconds: float | None, failure: type[Exception], awaited: Awaitable[T]) -> T:
    """What is awaited; raises `failure` where it takes longer."""
    with anyio.move_on_after(seconds) as scope:
        return await awaited
    assert scope.cancelled_caught
    raise failure(f"nothing in {seconds:g} s")
