"""An aiohttp request, as the ASGI applications of the adapters see one.

    return await served(GuardedAnswer(source), request)

What answers a request, refuses it, resumes a stream or takes an acknowledgement is written once, over ASGI's three
names. Here they are a few lines round aiohttp's own: `scope` holds the facts of the request, `receive` reads its body
and then waits for its reader to leave, `send` writes to a StreamResponse. aiohttp shows its transport, so that a reader
that takes nothing is dropped, and a send window kept, as on uvicorn (`transport.py`).

aiohttp tells a handler nothing of a reader that leaves, unless the whole server cancels its handlers then. So for as
long as an answer runs a protocol of ours stands before aiohttp's own at the transport, which hands everything on and
notes the end. An aborted answer is one whose last chunk aiohttp is kept from writing: it then closes the connection,
behind what was written.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from aiohttp import web

from streamguard.adapters.asgi import request_facts
from streamguard.adapters.seal import ASGIApp, Message, Scope
from streamguard.core.exchange import Refusal
from streamguard.core.unstreamed import refuse_unstreamed

__all__ = ["REQUEST", "Bridge", "GuardedStream", "body_of", "heard", "read_body", "scope_of", "served", "unasked"]

REQUEST: Final = "aiohttp.request"  # in the scope: the request itself


class GuardedStream(web.StreamResponse):
    """The response of an answer that was streamed. `aborted`: its body must not end cleanly."""

    aborted = False

    async def write_eof(self, data: bytes = b"") -> None:
        if not self.aborted:
            await super().write_eof(data)


class _Watched(asyncio.Protocol):
    """Hands everything on to `inner`; what ends the connection is noted first."""

    def __init__(self, inner: Any, gone: asyncio.Event) -> None:
        self._inner = inner
        self._gone = gone
        self.data_received = inner.data_received  # type: ignore[method-assign]
        self.pause_writing = inner.pause_writing  # type: ignore[method-assign]
        self.resume_writing = inner.resume_writing  # type: ignore[method-assign]

    def eof_received(self) -> Any:
        self._gone.set()  # asyncio closes the transport then, and nothing more can be written
        return self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone.set()
        self._inner.connection_lost(exc)


@contextmanager
def _told_of_the_end(request: web.BaseRequest) -> Iterator[asyncio.Event]:
    """An event that is set when the reader leaves, while the block runs."""
    gone = asyncio.Event()
    transport, inner = request.transport, request.protocol
    if transport is None or transport.is_closing():
        gone.set()
        yield gone
        return
    watched = _Watched(inner, gone)
    transport.set_protocol(watched)
    try:
        yield gone
    finally:
        if not gone.is_set() and transport.get_protocol() is watched:
            transport.set_protocol(inner)


class Bridge:
    """One request, and what is answered to it. `gone` is set when its reader has left."""

    def __init__(self, request: web.Request, gone: asyncio.Event) -> None:
        self.request = request
        self.response: GuardedStream | None = None
        self.transport = request.transport  # where `transport.py` looks for it
        self._gone = gone
        self._started: Message = {}
        self.write_part: Callable[[bytes], Awaitable[None]] | None = None  # once the headers are out
        self._whole = self._ended = False

    async def receive(self) -> Message:
        if not self._whole:
            content = self.request.content
            try:
                # What a middleware read already, aiohttp keeps.
                piece = await (self.request.read() if content.at_eof() else content.readany())
            except Exception:  # it broke off
                self._whole = True
                await self._gone.wait()
                return {"type": "http.disconnect"}
            self._whole = content.at_eof()
            return {"type": "http.request", "body": piece, "more_body": not self._whole}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in message["headers"]]
            self.response = GuardedStream(status=message["status"])
            for name, value in pairs:
                self.response.headers.add(name, value)
            writer = await self.response.prepare(self.request)
            assert writer is not None
            self.write_part = writer.write
            return
        assert self.response is not None
        assert self.write_part is not None
        if message.get("body"):
            await self.write_part(message["body"])
        if not message.get("more_body", False):
            self._ended = True
            await self.response.write_eof()

    def finished(self) -> web.StreamResponse:
        """What the handler returns: the response, with its abort, if that is how it ended."""
        if self.response is None:  # the reader was gone before there was anything to say
            return web.Response(status=503)
        if not self._ended:
            self.response.aborted = True
            self.response.force_close()  # the headers are out: nothing says `Connection: close`
        return self.response


@contextmanager
def heard(request: web.Request) -> Iterator[Bridge]:
    """The bridge of a request, which learns while the block runs that the reader has left."""
    with _told_of_the_end(request) as gone:
        yield Bridge(request, gone)


async def served(answer: ASGIApp, request: web.Request, scope: Scope) -> web.StreamResponse:
    """Answer a request with an ASGI application."""
    with heard(request) as bridge:
        await answer(scope, bridge.receive, bridge.send)
    return bridge.finished()


class _Route:
    """What a scope has of a route."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path


def scope_of(request: web.Request, more: Mapping[str, Any]) -> Scope:
    """The scope of a request, and what is `more` than its own facts."""
    version, resource = request.version, request.match_info.route.resource
    return {
        "type": "http",
        "method": request.method,
        "path": request.path,
        "query_string": request.rel_url.raw_query_string.encode("latin-1", "replace"),
        "headers": [(name.lower(), value) for name, value in request.raw_headers],
        "http_version": f"{version.major}.{version.minor}",
        "route": None if resource is None else _Route(resource.canonical),
        REQUEST: request,
        **more,
    }


async def read_body(request: web.Request) -> None:
    """Read the body before a stream begins, so that a handler that yields can still ask for it. A form with files is
    read as one: what aiohttp has read as bytes it does not take apart any more."""
    if request.content_type.startswith("multipart/"):
        await request.post()
    else:
        await request.read()


async def unasked(request: web.Request, dialect: str) -> Refusal | None:
    """What the body says against a stream, where it was read whole: else the source may mean to read it itself."""
    body = b"" if request.can_read_body else await request.read()
    return refuse_unstreamed(request_facts(scope_of(request, {})), dialect, body)


async def body_of(request: web.Request) -> bytes:
    """The request's body, wherever it is by now. What a handler read by itself, piece by piece, is gone."""
    if not request.content_type.startswith("multipart/"):
        return await request.read()
    parts: list[Any] = []
    for name, value in (await request.post()).items():
        if isinstance(value, web.FileField):
            parts.append((name, value.filename, hashlib.sha256(value.file.read()).hexdigest()))
            value.file.seek(0)
        else:
            parts.append((name, value))
    return repr(parts).encode()
