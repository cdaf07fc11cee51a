"""Applications that stream already, and a server for them without sockets: what the middleware's tests stand on."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from typing import Any

import anyio
import attrs

from streamguard.adapters.seal import ASGIApp, Message, Receive, Scope, Send
from streamguard.core.verify import StreamVerifier
from streamguard.core.wire import SseDecoder
from streamguard.runtime.timing import Timing

__all__ = ["DONE", "EVENTS", "LINES", "QUICK", "Sent", "called", "chunk", "events", "http", "streaming"]

EVENTS = b"text/event-stream; charset=utf-8"
LINES = b"application/x-ndjson"
DONE = b"data: [DONE]\n\n"
QUICK = Timing(linger=0.0)


def chunk(text: str = "", reason: str | None = None) -> bytes:
    """One event of chat completions."""
    choice = {"index": 0, "delta": {"content": text} if text else {}, "finish_reason": reason}
    return f"data: {json.dumps({'object': 'chat.completion.chunk', 'choices': [choice]})}\n\n".encode()


def streaming(
    source: Callable[[], AsyncGenerator[bytes, None]] | Iterable[bytes],
    *,
    kind: bytes = EVENTS,
    headers: Iterable[tuple[bytes, bytes]] = (),
    status: int = 200,
    ends: bool = True,
) -> ASGIApp:
    """A plain ASGI application that answers with the pieces of `source`; with `ends=False` it returns without the last
    part."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind), *headers]})
        if callable(source):
            async with aclosing(source()) as pieces:
                async for piece in pieces:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
        else:
            for piece in source:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        if ends:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    return app


def http(method: str = "GET", path: str = "/", version: str = "1.1", **headers: str) -> dict[str, Any]:
    """The scope of a request."""
    fields = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    path, _, query = path.partition("?")
    return {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": version, "method": method,
        "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
        "headers": fields, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip


@attrs.define
class Sent:
    """What an application sent, and raised."""

    messages: list[Message] = attrs.field(factory=list)
    raised: BaseException | None = None

    @property
    def body(self) -> bytes:
        return b"".join([message.get("body", b"") for message in self.messages])

    @property
    def clean(self) -> bool:
        last = self.messages[-1] if self.messages else {}
        return last.get("type") == "http.response.body" and not last.get("more_body", False)

    @property
    def status(self) -> int:
        return int(self.messages[0]["status"])

    def header(self, name: str) -> str | None:
        return next((value.decode() for key, value in self.messages[0]["headers"] if key == name.encode()), None)

    def verified(self, **options: Any) -> StreamVerifier:
        verifier = StreamVerifier(**options)
        verifier.feed(self.body)
        verifier.end(clean=self.clean)
        return verifier


async def called(
    app: ASGIApp,
    scope: dict[str, Any] | None = None,
    body: bytes = b"",
    leave: anyio.Event | None = None,
    on_body: Callable[[bytes], object] | None = None,
) -> Sent:
    """Call the application as a server does. The reader leaves once `leave` is set; `on_body` sees each part."""
    sent = Sent()
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if waiting:
            return waiting.pop()
        await (leave or anyio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.messages.append(message)
        if on_body is not None and message.get("body"):
            on_body(message["body"])

    try:
        await app(http() if scope is None else scope, receive, send)
    except Exception as exc:
        sent.raised = exc
    return sent


def events(data: bytes) -> list[tuple[str, str]]:
    """The names and data of a body's events."""
    return [(event.event, event.data) for event in SseDecoder().feed(data)]
