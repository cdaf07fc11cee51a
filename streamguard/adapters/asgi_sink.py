"""One ASGI response, as a driver's sink: how bytes leave, how the body ends, and how it ends otherwise."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import anyio

from streamguard.adapters.admitting import until_gone
from streamguard.adapters.pacing import Pacer, make_pacer
from streamguard.adapters.seal import Receive, Scope, Send, mark_aborted, part_send
from streamguard.adapters.transport import say_who_drops, transport_of, warn_of_kept

__all__ = ["AsgiSink"]

_HIGH_WATER: Final = 256 * 1024  # bytes that a server may hold which does not make its applications wait


class AsgiSink:
    """One ASGI response."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, status: int, headers: Iterable[tuple[bytes, bytes]]
    ) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._send_part = part_send(send)
        self._transport = transport_of(scope, receive, send)
        self._start = {"type": "http.response.start", "status": status, "headers": list(headers)}
        self.trailer: Callable[[], bytes] = bytes  # what a clean end puts behind the body
        self._pacer: Pacer | None = None
        if self._transport is not None and not self._transport.waits:
            self.send = self._send_when_taken  # type: ignore[method-assign]

    @property
    def reached(self) -> bool:
        """Whether the transport can be reached: `unsent` and `kill` then work."""
        return self._transport is not None

    def keep(self, window: bool | int, write: float | None) -> None:
        """Keep what is on its way below a send window, and say who drops a reader that takes nothing for `write`
        seconds. An answer that is held has no scope, and no reader yet."""
        if not self._scope:
            return
        if write is not None:
            say_who_drops(self.reached)
        pacer = self._pacer = make_pacer(self._transport, window)
        if pacer is None:
            return
        admit, send = pacer.admit, self.send

        async def send_in_window(data: bytes) -> None:
            await admit(len(data))
            await send(data)

        self.send = send_in_window  # type: ignore[method-assign]

    async def start(self) -> None:
        await self._send(self._start)
        # A bridge to another framework takes a part as it is: a message for it would be made only to be taken apart.
        write = getattr(getattr(self._send, "__self__", None), "write_part", None)
        if write is not None and self._pacer is None:
            self.send = write  # type: ignore[method-assign]

    def send(self, data: bytes) -> Awaitable[None]:
        send = self._send_part  # a call of the attribute itself would be taken for a method's, which is slower
        return send({"type": "http.response.body", "body": data, "more_body": True})

    async def _send_when_taken(self, data: bytes) -> None:
        """The same on a server that takes whatever it is given: else it would hold all that a source makes."""
        pause = 0.005
        while self._full():
            await anyio.sleep(pause)
            pause = min(2 * pause, 0.1)
        await self._send_part({"type": "http.response.body", "body": data, "more_body": True})

    def _full(self) -> bool:
        assert self._transport is not None
        try:
            return (self._transport.unsent() or 0) > _HIGH_WATER
        except Exception:  # another version of the server: who watches the reader says so, once
            return False

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": self.trailer(), "more_body": False})

    async def abort(self) -> None:
        mark_aborted(self._scope)  # and return: a body without its last message is the abort

    def unsent(self) -> int | None:
        if self._pacer is not None and self._pacer.held:  # what the system holds is why it waits
            return self._pacer.held + self._pacer.on_its_way()
        return self._transport.unsent() if self._transport is not None else None

    def kill(self, *, drop: bool) -> bool:
        if self._transport is None:
            if drop:
                warn_of_kept()
            return False
        # Where the reader may still read: not `abort`, which drops what is not sent yet, as the terminal may be.
        (self._transport.abort if drop else self._transport.close)()
        return True

    async def gone(self) -> None:
        # It reads the body: unread, that would turn the close into a reset, which can tear the terminal off.
        await until_gone(self._receive)
