"""A guarded endpoint, and one whose streams can be stopped from elsewhere: `uvicorn starlette_app:app`.

    curl -N --json '{"text": "Tell me a story"}' localhost:8000/chat
    curl -N 'localhost:8000/clock?id=a'          # and, in another shell: curl -X DELETE 'localhost:8000/clock?id=a'
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from streamguard.adapters.starlette import GuardedResponse, SealMiddleware, guarded
from streamguard.core.errors import Failure

running: dict[str, GuardedResponse] = {}


@guarded
async def chat(request: Request) -> AsyncIterator[str]:
    prompt = await request.json()
    for word in prompt["text"].split():
        await asyncio.sleep(0)  # the next token is computed
        yield word + " "


async def ticks() -> AsyncIterator[str]:
    for second in range(3600):
        yield f"{second} "
        await asyncio.sleep(1)


async def clock(request: Request) -> Response:
    name = request.query_params["id"]
    response = GuardedResponse(ticks(), headers={"x-clock": name}, on_end=lambda outcome: running.pop(name, None))
    running[name] = response
    return response


async def stop_clock(request: Request) -> Response:
    response = running.get(request.query_params["id"])
    if response is None:
        return PlainTextResponse("no such clock\n", status_code=404)
    response.cancel(Failure("stopped", "somebody stopped this clock"))
    return PlainTextResponse("stopped\n")


async def with_server_name(request: Request, call_next: RequestResponseEndpoint) -> Response:
    response = await call_next(request)
    response.headers["x-served-by"] = "starlette_app"
    return response


app = Starlette(
    routes=[
        Route("/chat", chat, methods=["POST"]),
        Route("/clock", clock),
        Route("/clock", stop_clock, methods=["DELETE"]),
    ],
    middleware=[
        # First in this list is outermost. Without it the middleware below would end failed streams cleanly.
        Middleware(SealMiddleware),
        Middleware(BaseHTTPMiddleware, dispatch=with_server_name),
    ],
)
