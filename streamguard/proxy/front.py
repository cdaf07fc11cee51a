"""What stands before everything else, and refuses what must not pass.

A request is passed on only where there is one way to read it. What two servers could take for two different requests,
or for requests of two different lengths, is refused here, whatever this process's own server made of it:

    a target that is no path, or has `..` in it             400 bad_target
    a length and a transfer coding, or an unknown coding    400 bad_framing
    HTTP/1.0 with a transfer coding                         400 bad_framing
    more header bytes than `max_head`                       431 head_too_large
    a body above `max_body`                                 413 body_too_large
    a body that stands still for `body_silence` seconds     408 body_too_slow
    CONNECT and TRACE, and any change of protocol           501 not_implemented

A connection that had any of these is closed behind the answer: what follows in it may be a part of the same trick.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import anyio

from streamguard.adapters.asgi import request_facts, send_refusal
from streamguard.adapters.seal import ASGIApp, Message, Receive, Scope, Send
from streamguard.adapters.transport import keep_transport
from streamguard.adapters.watching import BY_PATH, tell_refused
from streamguard.core.exchange import Refusal, problem
from streamguard.observe.hooks import Observers
from streamguard.proxy.headers import values

__all__ = ["Front"]

_TARGET: Final = re.compile(rb"/[!-~]*")  # origin-form, in the characters that a target may have
_CLOSE: Final = ("connection", "close")
_TARGET_NO: Final = problem(400, "bad_target", "the target of a request is a path", _CLOSE)
_FRAMING_NO: Final = problem(400, "bad_framing", "where the request's body ends is not clear", _CLOSE)
_HEAD_NO: Final = problem(431, "head_too_large", "the request's headers are too large", _CLOSE)
_BODY_NO: Final = problem(413, "body_too_large", "the request's body is too large", _CLOSE)
_SLOW: Final = problem(408, "body_too_slow", "the request's body did not come in time", _CLOSE)
_METHOD_NO: Final = problem(501, "not_implemented", "the method is not implemented here", _CLOSE)
_UPGRADE_NO: Final = problem(501, "not_implemented", "no protocol but HTTP is spoken here", _CLOSE)


class Front:
    """Pure ASGI, outermost. The limits are bytes, and seconds between two pieces of a body; `observers` are told of
    what is refused."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        max_head: int = 65536,
        max_body: int = 64 * 1024 * 1024,
        body_silence: float = 60.0,
        observers: Observers | None = None,
    ) -> None:
        self.app = app
        self.observers = observers
        self.max_head = max_head
        self.max_body = max_body
        self.body_silence = body_silence

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})  # no server of the command's gets here
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope[BY_PATH] = True
        refused = self._refused(scope)
        if refused is not None:
            await self._refuse(refused, scope, send)
            return
        fields = scope["headers"]
        if not values(fields, b"content-length") and not values(fields, b"transfer-encoding"):
            await self.app(scope, receive, send)
            return
        keep_transport(scope, receive, send)  # which the seal could not see behind what stands before it here
        body = _Bounded(self, receive, send)
        await self.app(scope, body.receive, body.send)
        if body.refused is not None and not body.begun:
            await self._refuse(body.refused, scope, send)

    async def _refuse(self, refused: Refusal, scope: Scope, send: Send) -> None:
        tell_refused(self.observers, refused, request_facts(scope), scope)
        await send_refusal(refused, scope, send)

    def _refused(self, scope: Scope) -> Refusal | None:
        fields, method = scope["headers"], scope["method"]
        if sum(len(name) + len(value) + 4 for name, value in fields) + len(scope["raw_path"]) > self.max_head:
            return _HEAD_NO
        if method in ("CONNECT", "TRACE"):
            return _METHOD_NO
        path = bytes(scope["raw_path"])
        if not (_TARGET.fullmatch(path) or (path == b"*" and method == "OPTIONS")) or _climbs(path):
            return _TARGET_NO
        if b"#" in path or b"#" in scope["query_string"]:
            return _TARGET_NO
        # Offered by Java's client with every request, and free to be passed over (RFC 9110, section 7.8).
        if any(value.strip().lower() != b"h2c" for value in values(fields, b"upgrade")):
            return _UPGRADE_NO
        return self._misframed(scope)

    def _misframed(self, scope: Scope) -> Refusal | None:
        fields = scope["headers"]
        lengths, codings = values(fields, b"content-length"), values(fields, b"transfer-encoding")
        if codings:
            known = [coding.strip().lower() for coding in codings] == [b"chunked"]
            return _FRAMING_NO if lengths or not known or scope["http_version"] == "1.0" else None
        if not lengths:
            return None
        if len(lengths) > 1 or not re.fullmatch(rb"[0-9]{1,18}", lengths[0]):
            return _FRAMING_NO
        return _BODY_NO if int(lengths[0]) > self.max_body else None


def _climbs(path: bytes) -> bool:
    """Whether a segment of the path is `.` or `..`, by any spelling that a server may undo."""
    return any(segment in (b".", b"..") for segment in re.split(rb"[/\\]", unquote_to_bytes(path)))


class _Bounded:
    """A request's body, which is cut where it is too large or too slow: whoever reads it learns that the client has
    left, and what to answer is in `refused`."""

    def __init__(self, front: Front, receive: Receive, send: Send) -> None:
        self.begun = False  # the answer has
        self.refused: Refusal | None = None
        self._front = front
        self._receive = receive
        self._send = send
        self._size = 0
        self._more = True

    async def receive(self) -> Message:
        if self.refused is not None:
            return {"type": "http.disconnect"}
        if not self._more:
            return await self._receive()
        message: Any = None
        with anyio.move_on_after(self._front.body_silence):
            message = await self._receive()
        if message is None:
            self.refused = _SLOW
            return {"type": "http.disconnect"}
        self._size += len(message.get("body", b""))
        self._more = message["type"] == "http.request" and message.get("more_body", False)
        if self._size > self._front.max_body:
            self.refused = _BODY_NO
            return {"type": "http.disconnect"}
        return message  # type: ignore[no-any-return]

    def send(self, message: Message) -> Awaitable[None]:  # no coroutine: it would be one more at every token
        if self.refused is not None and not self.begun:
            return _dropped()  # what somebody says of a client that is gone: this one gets its refusal
        self.begun = True
        return self._send(message)


async def _dropped() -> None:
    """What is awaited for a message that did not pass."""
