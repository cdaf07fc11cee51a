"""One stream on one WebSocket, whatever the framework: answers, what the reader says meanwhile, and the close.

To an answer, direct or in a log, the session looks like a request over HTTP. Its `send` makes a message of each record
of the carrier, its `receive` hears what the reader says: acknowledgements and credit, a cancel, that it left.

How a connection ended is its close code: 1000 after `complete`, or after the reader's own cancel; 4500 behind another
terminal; 4503 behind a `bye`, whose stream lives on; 4000 and the status of HTTP where there was no stream, or where
what the reader said is no word of the protocol.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import anyio
import attrs

from streamguard.adapters.asgi import GuardedAnswer
from streamguard.adapters.logged import LoggedAnswer
from streamguard.adapters.seal import Message, Scope
from streamguard.adapters.transport import Transport, give_transport, of_asyncio, warn_of_kept
from streamguard.app import Action, StreamGuard
from streamguard.core.negotiate import parse_answer
from streamguard.core.wire.messages import messages, parting_word
from streamguard.log.base import LogError
from streamguard.runtime.background import Background
from streamguard.runtime.grants import Told

__all__ = ["REFUSED", "Refused", "Session", "Socket", "close_socket", "object_of"]

logger = logging.getLogger("streamguard")

REFUSED: Final = 4000  # a close code, less the status of HTTP
_NORMAL, _ENDED, _LIVES_ON = 1000, 4500, 4503
_MAX_SAID: Final = 4096  # characters of a message behind the first
_CLOSE: Final = 5.0  # seconds that a close may take: of a reader that takes nothing it is never over
_MAX_REASON: Final = 120  # bytes of a close frame's reason are 123 at most (RFC 6455, section 5.5)

Principal = Callable[[Action], Awaitable["str | None"]]


class Socket(Protocol):
    """A WebSocket of a framework's, accepted with our subprotocol."""

    transport: Any
    """asyncio's transport under it; None where that cannot be reached."""

    async def receive(self) -> str | None:
        """The next message; None once the other side has left. What is no text is an empty one."""
        ...

    async def send(self, message: str | bytes) -> None:
        """Send one; returns when the transport takes more. Raises OSError where the other side has left."""

    async def close(self, code: int, reason: str) -> None:
        """Close it. Raises nothing for one that is closed."""


class Refused(Exception):
    """What the reader said is against the protocol; `code` is HTTP's status for it."""

    def __init__(self, status: int, reason: str) -> None:
        self.status = status
        self.reason = reason


class Session:
    """One stream on one socket. `scope` asks for it, with `body`, the application's part of the first message; in
    `binary` or JSON messages. `guard` hears what the reader tells, where there is one."""

    def __init__(
        self, socket: Socket, scope: Scope, body: Any, *, binary: bool, guard: StreamGuard | None = None
    ) -> None:
        self.scope = scope
        self._socket = socket
        self._guard = guard
        self._binary = binary
        self.body = b"" if body is None else json.dumps(body).encode()
        self._cancel: Callable[[], Awaitable[object]] = _nothing
        self._asked = self._clean = self._cancelled = False
        self._status, self._refusal = 0, b""  # of an answer that is no stream
        self._last = b""  # the last message that was sent
        self._code: tuple[int, str] | None = None  # where the reader is to blame
        self._over: anyio.Event | None = None  # of the close, once it has begun
        self._reader, self._sid = "", ""
        self._background = Background()
        give_transport(scope, self._transport())

    async def serve(self, answer: GuardedAnswer | LoggedAnswer, principal: Principal) -> None:
        """Answer, and close the socket as that ended. `principal` answers who asks for the action of that name."""

        async def cancel() -> None:
            if self._guard is None or not self._sid:
                answer.cancel()
            elif (who := await principal("cancel")) is not None:
                await self._guard.find(self._sid, who)
                await self._guard.cancel(self._sid)

        self._cancel = cancel
        try:
            await answer(self.scope, self.receive, self.send)
        finally:
            with anyio.CancelScope(shield=True):
                await self._close()

    # ---- what an application over HTTP is given -----------------------------------------------

    async def receive(self) -> Message:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        try:
            while (message := await self._socket.receive()) is not None:
                await self._heard(message)
        except Refused as no:
            self._code = REFUSED + no.status, no.reason
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            promised = dict(message["headers"]).get(b"streamguard")
            if self._status < 300 and promised is not None:
                self._status = 0
                await self._open(promised.decode("latin-1"))
            return
        if self._status:
            self._refusal += message.get("body", b"")
            return
        for record in messages(message["body"], binary=self._binary):
            self._last = record
            await self._socket.send(record if self._binary else record.decode())
        self._clean = self._clean or not message.get("more_body", False)

    async def _open(self, promised: str) -> None:
        answer = parse_answer(promised)
        assert answer is not None
        self._reader, self._sid = answer.reader or "", answer.cursor.sid if self._guard is not None else ""
        await self._socket.send(json.dumps({"streamguard": promised}))

    # ---- what the reader says -----------------------------------------------------------------

    async def _heard(self, message: str) -> None:
        """One message: {"ack": "<cursor>", "credit": [frames, bytes]}, or {"cancel": true}. Raises Refused."""
        if len(message) > _MAX_SAID:
            raise Refused(413, "too_large")
        said = object_of(message)
        try:
            if said.get("cancel") is True:
                self._cancelled = True
                await self._cancel()
            elif self._guard is not None and self._reader:
                told = Told.parse(json.dumps({**said, "reader": self._reader}).encode())
                if await self._guard.grants.hear(told, self._sid) == "misfit":
                    raise Refused(409, "misfit")
        except ValueError:
            raise Refused(400, "bad_message") from None
        except LogError as exc:  # it ended meanwhile, or its log is away: the stream says so itself
            logger.info("what a reader told came to nothing: %s", exc)

    # ---- the end of the connection ------------------------------------------------------------

    def _transport(self) -> Transport:
        """What a driver may do with the connection: end it by a close frame, behind what was sent, or drop it."""

        def close() -> None:
            self._background.start(self._close, "streamguard websocket close")

        def cannot() -> None:
            warn_of_kept()
            close()

        found = of_asyncio(self._socket.transport)
        if found is None:
            return Transport(lambda: None, close, cannot)
        return attrs.evolve(found, close=close)

    async def _close(self) -> None:
        if self._over is not None:
            await self._over.wait()
            return
        self._over = anyio.Event()
        try:
            with anyio.move_on_after(_CLOSE):
                if self._refusal and self._code is None:
                    await self._send_refusal()
                await close_socket(self._socket, *self._parting())
        finally:
            self._over.set()

    async def _send_refusal(self) -> None:
        try:
            await self._socket.send(json.dumps({"problem": json.loads(self._refusal)}))
        except (OSError, ValueError):
            pass  # it has left, or this is no problem's JSON: the code says it

    def _parting(self) -> tuple[int, str]:
        if self._code is not None:
            return self._code
        if self._status:
            return REFUSED + self._status, _code_of(self._refusal)
        kind, word = parting_word(self._last, binary=self._binary) if self._last else ("", "")
        if word == "complete" or (word == "cancelled" and (self._clean or self._cancelled)):
            return _NORMAL, word
        return (_LIVES_ON if kind == "bye" else _ENDED), word


def object_of(message: str) -> dict[str, Any]:
    """A message as a JSON object. Raises Refused."""
    try:
        said = json.loads(message)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise Refused(400, "bad_message")
    return said


async def close_socket(socket: Socket, code: int, reason: str) -> None:
    """Close it, with as much of the reason as there is room for."""
    await socket.close(code, reason.encode()[:_MAX_REASON].decode(errors="ignore"))


async def _nothing() -> None:
    """What a cancel does before there is a stream."""


def _code_of(refusal: bytes) -> str:
    try:
        return str(json.loads(refusal)["code"])
    except (ValueError, KeyError, TypeError):
        return "nothing_more"
