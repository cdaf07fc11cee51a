"""Every way in which a stream can end, and the layers that applications put round it.

    POST /<ending>/<dialect>/chat/completions

answers with a stream that ends so. `finished` is the one that completes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import attrs
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from streamguard.adapters.starlette import GuardedResponse, SealMiddleware
from streamguard.runtime.timing import Timing

__all__ = ["ENDINGS", "FAILURES", "LAYERS", "TEXT", "endings_app"]

TOKENS = ["What ", "was ", "generated ", "is ", "delivered", "."]
TEXT = "".join(TOKENS)


async def raising_at(place: int) -> AsyncIterator[str]:
    for index, token in enumerate(TOKENS):
        if index == place:
            raise RuntimeError("the model broke")
        yield token
    if place >= len(TOKENS):
        raise RuntimeError("the model broke")


async def finished() -> AsyncIterator[str]:
    for token in TOKENS:
        yield token


async def wrong_type() -> AsyncIterator[Any]:
    yield TOKENS[0]
    yield 42


async def silent() -> AsyncIterator[str]:
    for token in TOKENS[:3]:
        yield token
    await asyncio.Event().wait()


async def not_loading() -> AsyncIterator[str]:
    await asyncio.sleep(0)
    raise RuntimeError("the weights are missing")


@attrs.define
class Answering:
    """A flush policy that answers so much more than what is held, and raises where that is None."""

    more: int | None

    def push(self, piece: str, held: int, now: float) -> int:
        if self.more is None:
            raise ZeroDivisionError("the policy broke")
        return self.more if self.more < 0 else held + self.more

    def tick(self, held: int, now: float) -> int:
        return 0

    def deadline(self) -> float | None:
        return None


Making = Callable[..., GuardedResponse]


def _cancelled(**options: Any) -> GuardedResponse:
    async def source() -> AsyncIterator[str]:
        for token in TOKENS[:3]:
            yield token
        asyncio.get_running_loop().call_soon(response.cancel)
        await asyncio.Event().wait()

    response = GuardedResponse(source(), **options)
    return response


def _stalled(*, timing: Timing, **options: Any) -> GuardedResponse:
    return GuardedResponse(silent(), timing=attrs.evolve(timing, stall=0.05), **options)


def _with_policy(more: int | None) -> Making:
    return lambda **options: GuardedResponse(finished(), flush=Answering(more), **options)


ENDINGS: dict[str, tuple[str, Making]] = {
    "finished": ("finishes", lambda **options: GuardedResponse(finished(), **options)),
    "raises-0": ("raises at item 0", lambda **options: GuardedResponse(raising_at(0), **options)),
    "raises-3": ("raises at item 3", lambda **options: GuardedResponse(raising_at(3), **options)),
    "raises-last": ("raises after its last item", lambda **options: GuardedResponse(raising_at(6), **options)),
    "wrong-type": ("yields a number", lambda **options: GuardedResponse(wrong_type(), **options)),
    "cancelled": ("is cancelled with `response.cancel()`", _cancelled),
    "stalled": ("falls silent until the stall limit", _stalled),
    "policy-raises": ("has a flush policy that raises", _with_policy(None)),
    "policy-negative": ("has a flush policy that answers −1", _with_policy(-1)),
    "policy-above": ("has a flush policy that answers more than is held", _with_policy(1)),
    "not-loading": ("cannot load its model", lambda **options: GuardedResponse(not_loading(), **options)),
}
FAILURES = [name for name in ENDINGS if name != "finished"]


async def passing(request: Request, call_next: Any) -> Response:
    response: Response = await call_next(request)
    response.headers["x-passed"] = "1"
    return response


async def catch_all(request: Request, exc: Exception) -> Response:
    return JSONResponse({"error": "internal"}, status_code=500)


def _under_base(app: Starlette) -> None:
    app.add_middleware(BaseHTTPMiddleware, dispatch=passing)
    app.add_middleware(SealMiddleware)


LAYERS: dict[str, Callable[[Starlette], None]] = {
    "bare": lambda app: None,
    "BaseHTTPMiddleware, sealed": _under_base,
    "GZipMiddleware": lambda app: app.add_middleware(GZipMiddleware, minimum_size=1),
    "CORSMiddleware": lambda app: app.add_middleware(CORSMiddleware, allow_origins=["*"]),
    "a catch-all exception handler": lambda app: app.add_exception_handler(Exception, catch_all),
}


def endings_app(layer: str, *, linger: float = 0.25, http10: str = "warn") -> Starlette:
    """An application with all endings under one layer. `/unguarded/…` is an answer as it is usually written."""
    timing = Timing(linger=linger)

    async def guarded(request: Request) -> Response:
        making = ENDINGS[request.path_params["ending"]][1]
        return making(dialect=request.path_params["dialect"], timing=timing, http10=http10)

    async def unguarded(request: Request) -> Response:
        async def body() -> AsyncIterator[str]:
            async for token in raising_at(3):
                yield f'data: {{"choices":[{{"index":0,"delta":{{"content":"{token}"}}}}]}}\n\n'

        return StreamingResponse(body(), media_type="text/event-stream")

    app = Starlette(
        routes=[
            Route("/unguarded/openai/chat/completions", unguarded, methods=["POST"]),
            Route("/{ending}/{dialect}/chat/completions", guarded, methods=["POST"]),
        ]
    )
    LAYERS[layer](app)
    return app
