"""An application with one endpoint for each thing that goes wrong with streams, and one where nothing does.

Answers take half a second, a token at a time, where it matters how their tokens come.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from streamguard import anyone_with_the_id
from streamguard.adapters.seal import Receive, Scope, Send
from streamguard.adapters.starlette import StreamGuard, guarded
from streamguard.log.memory import MemoryLog

__all__ = ["COUNT", "Faulty", "chunk"]

COUNT: Final = 24  # tokens of an answer
_PACE: Final = 0.02  # seconds for one
DONE: Final = "data: [DONE]\n\n"


def chunk(text: str = "", reason: str | None = None) -> str:
    delta = {"content": text} if text else {}
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return f"data: {json.dumps({'object': 'chat.completion.chunk', 'choices': [choice]})}\n\n"


async def _tokens(pace: float = _PACE) -> AsyncIterator[str]:
    for number in range(COUNT):
        await anyio.sleep(pace)
        yield f"t{number} "


async def _chunks(*ending: str, pace: float = _PACE) -> AsyncIterator[str]:
    async for token in _tokens(pace):
        yield chunk(token)
    for event in ending:
        yield event


_WHOLE: Final = (chunk(reason="stop"), DONE)
_ERROR: Final = 'data: {"error": {"message": "out of memory", "code": 500}}\n\n'


async def _unflushed(_: Request) -> AsyncIterator[str]:
    """A buffer of eight events whose rest nobody sends."""
    held: list[str] = []
    async for event in _chunks(*_WHOLE, pace=0):
        held.append(event)
        if len(held) == 8:
            yield "".join(held[:-1])
            held = held[-1:]


async def _crashed(_: Request) -> AsyncIterator[str]:
    """Broken off in the middle, as by a server whose engine died."""
    async for token in _tokens(0):
        yield chunk(token)
    raise ConnectionError("the engine died")


async def _idle(_: Request) -> AsyncIterator[str]:
    """Three tokens, and then nothing for longer than the layer in front waits."""
    for number in range(3):
        yield chunk(f"t{number} ")
    await anyio.sleep(30)


async def _blocking(_: Request) -> AsyncIterator[str]:
    for number in range(COUNT):
        time.sleep(2 * _PACE)  # noqa: ASYNC251  (the fault itself)
        yield chunk(f"t{number} ")
    for event in _WHOLE:
        yield event


def _text() -> Iterator[str]:
    """A source that blocks, of text that says nothing of its end."""
    for number in range(COUNT):
        time.sleep(_PACE)
        yield f"t{number} "


async def _events(_: Request) -> AsyncIterator[str]:
    async for token in _tokens(0):
        yield f"data: {token}\n\n"


async def _gzip(_: Request) -> AsyncIterator[bytes]:
    coding = zlib.compressobj(wbits=31)
    async for event in _chunks(*_WHOLE):
        yield coding.compress(event.encode())
    yield coding.flush()


class Faulty:
    """The application, and the books of the endpoint that does not stop."""

    def __init__(self) -> None:
        self.running = 0
        self._asked = 0
        guard = StreamGuard(MemoryLog(), authorize=anyone_with_the_id)
        self._app = Starlette(
            routes=[
                Route("/guarded", guard.stream(self._guarded, dialect="openai")),
                Route("/brief", guard.stream(self._brief, dialect="openai")),
                Route("/bare", guarded(dialect="openai")(self._brief)),
                self._route("/quick", lambda _: _chunks(*_WHOLE, pace=0)),
                self._route("/whole", lambda _: _chunks(*_WHOLE)),
                self._route("/unflushed", _unflushed),
                self._route("/crashed", _crashed),
                self._route("/short", self._short),
                self._route("/events", _events),
                self._route("/unmarked", lambda _: _chunks(chunk(reason="stop"), pace=0)),
                self._route("/error-done", lambda _: _chunks(_ERROR, DONE, pace=0)),
                self._route("/error", lambda _: _chunks(_ERROR, pace=0)),
                self._route("/done", lambda _: _chunks(DONE, pace=0)),
                self._route("/idle", _idle),
                self._route("/blocking", _blocking),
                Route("/text", lambda _: StreamingResponse(_text(), media_type="text/plain")),
                Route("/gzip", self._compressed),
                Route("/metrics", self._metrics),
                Route("/json", lambda _: PlainTextResponse('{"answer": 42}', media_type="application/json")),
            ]
        )
        guard.install(self._app, "/streams")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == "/deaf" and scope["method"] == "GET":
            await self._deaf(send)
        else:
            await self._app(scope, receive, send)

    def _route(self, path: str, body: Callable[[Request], AsyncIterator[Any]]) -> Route:
        async def endpoint(request: Request) -> Response:
            return StreamingResponse(body(request), media_type="text/event-stream")

        return Route(path, endpoint)

    async def _guarded(self, _: Request) -> AsyncIterator[str]:
        async for token in _tokens():
            yield token

    async def _brief(self, _: Request) -> AsyncIterator[str]:
        async for token in _tokens(0):
            yield token

    async def _short(self, _: Request) -> AsyncIterator[str]:
        """Each second answer loses its last token, and still says that it is whole."""
        self._asked += 1
        for number in range(3 if self._asked % 2 else 2):
            yield chunk(f"t{number} ")
        for event in _WHOLE:
            yield event

    async def _compressed(self, request: Request) -> Response:
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return StreamingResponse(_chunks(*_WHOLE), media_type="text/event-stream")
        headers = {"content-encoding": "gzip"}
        return StreamingResponse(_gzip(request), media_type="text/event-stream", headers=headers)

    async def _metrics(self, _: Request) -> Response:
        return PlainTextResponse(f'# TYPE gauge\nvllm:num_requests_running{{model="m"}} {self.running}.0\n')

    async def _deaf(self, send: Send) -> None:
        """Never asks whether its reader is there."""
        self.running += 1
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for event in _chunks(*_WHOLE):
            await send({"type": "http.response.body", "body": event.encode(), "more_body": True})
        await send({"type": "http.response.body"})
        self.running -= 1
