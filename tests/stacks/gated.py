"""An application whose streams make a token only when the test says so.

    GET  /gated/<name>          the stream; `?heartbeat=` seconds, without it none
    POST /runs/<name>/next      lets it make one more token
    POST /runs/<name>/finish    lets its source return
    GET  /runs/<name>/closed    waits `?within=` seconds until its source is closed; the stream's books
    POST /<http10>/<ending>/<dialect>/chat/completions
                                the endings of `tests.adapters.endings`, under each form of `http10=`

A token that waits for its predecessor to be read makes buffering visible without a clock: a proxy that holds
token n back is never sent token n + 1, and the reader waits for ever.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import attrs
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from streamguard.adapters.seal import ASGIApp, Receive, Scope, Send
from streamguard.adapters.starlette import GuardedResponse
from streamguard.observe.hooks import Outcome
from streamguard.runtime.timing import Timing
from tests.adapters.endings import endings_app

__all__ = ["APP", "HTTP10", "app"]

APP = "tests.stacks.gated:app"
HTTP10 = ("warn", "buffer", "refuse")
LINGER = 0.05  # seconds; enough for a reader that hangs up by itself, and no wait worth naming for the others


@attrs.define(eq=False)
class _Run:
    """One stream's gate and its books. Two processes have one clock, so a token says when it was made."""

    steps: asyncio.Queue[bool] = attrs.field(factory=asyncio.Queue)
    closed: asyncio.Event = attrs.field(factory=asyncio.Event)
    made: int = 0
    status: str | None = None

    async def source(self) -> AsyncIterator[str]:
        try:
            while await self.steps.get():
                self.made += 1
                yield f"t{self.made} {time.monotonic_ns()} "
        finally:
            self.closed.set()

    def end(self, outcome: Outcome) -> None:
        self.status = outcome.status


@attrs.frozen
class _AfterTheBody:
    """An application that is asked once the request was read, as one that uses its body is.

    An answer that is over before its request makes HTTP/2 proxies reset the stream behind it, without fault, and
    curl 7 takes that for a failure.
    """

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body", False):
            pass
        await self.app(scope, receive, send)


_runs: dict[str, _Run] = {}


def _run(request: Request) -> _Run:
    return _runs.setdefault(request.path_params["name"], _Run())


async def _gated(request: Request) -> Response:
    run = _run(request)
    heartbeat = float(request.query_params["heartbeat"]) if "heartbeat" in request.query_params else None
    return GuardedResponse(run.source(), timing=Timing(heartbeat=heartbeat), on_end=run.end)


async def _step(request: Request) -> Response:
    _run(request).steps.put_nowait(request.path_params["step"] == "next")
    return Response(status_code=204)


async def _closed(request: Request) -> Response:
    run = _run(request)
    try:
        await asyncio.wait_for(run.closed.wait(), float(request.query_params["within"]))
    except asyncio.TimeoutError:
        pass
    return JSONResponse({"closed": run.closed.is_set(), "made": run.made, "status": run.status})


app = Starlette(
    routes=[
        Route("/gated/{name}", _gated),
        Route("/runs/{name}/closed", _closed),
        Route("/runs/{name}/{step}", _step, methods=["POST"]),
        *[Mount(f"/{form}", _AfterTheBody(endings_app("bare", linger=LINGER, http10=form))) for form in HTTP10],
    ]
)
