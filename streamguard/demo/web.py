"""The demo page: one answer, streamed twice, read as people write it and by the library's client for the browser.

    GET   /                 the page, its style and its script
    POST  /unguarded        the answer by an endpoint as people write it
    POST  /guarded          the same tokens at the same times, guarded, in a log in memory
    POST  /fault?run=&do=   `cut` or `stall` what is streamed to that run of the page
    …     /streams          the endpoints of resumable streams; they serve the client too

Both answers pass the relay, which does to them what a network does. Nothing comes from another host.
"""

from __future__ import annotations

import json
import random
import re
import socket
import threading
import webbrowser
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import uvicorn
from starlette.applications import Starlette
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from streamguard.adapters.starlette import StreamGuard
from streamguard.app import anyone_with_the_id
from streamguard.browser import style_of
from streamguard.demo.model import Answer, Entry, Generation
from streamguard.demo.relay import RUN, Relay
from streamguard.demo.servers import listening
from streamguard.log.memory import MemoryLog
from streamguard.runtime.timing import Timing

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp

__all__ = ["GAP", "PAGE", "PORT", "TEXT", "demo_page", "serve_page"]

PAGE: Final = Path(__file__).with_name("page")
PORT: Final = 8765
GAP: Final = 0.09  # mean seconds between tokens: as fast as one reads, and time enough to press a button
_GAP_SIGMA: Final = 0.5
_HEARTBEAT: Final = 0.4  # a third of what the page's client waits for a byte: it shows a stall in seconds

# Up to the third full stop each reads as the end of an answer, and what comes last turns it round.
TEXT: Final = (
    "Yes, you can delete the old bucket. Every object was copied on Monday, the checksums agree, and nothing has read "
    "from it since. Deleting it takes a minute and saves the cost of two terabytes. Three things come first. The "
    "nightly export still writes there: point it to the new bucket, or tonight’s run fails. Two dashboards link to it; "
    "the runbook names them. And the folder for 2019 is under legal hold until March: it must not be deleted at all. "
    "So the answer for today is no. Move that folder, then delete the rest."
)
_TOKENS: Final = tuple(re.findall(r"\S+\s*", TEXT))

_TYPES: Final = {
    "index.html": "text/html; charset=utf-8",
    "demo.css": "text/css; charset=utf-8",
    "demo.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def _at_a_pace(run: str) -> AsyncIterator[str]:
    """The answer at a model's times, which are the same whenever it is made for one run."""
    rng = random.Random(run)
    gaps = [GAP * rng.lognormvariate(-(_GAP_SIGMA**2) / 2, _GAP_SIGMA) for _ in _TOKENS]
    return Generation(Answer(_TOKENS, (*gaps, 0.0), 0.0), Entry()).tokens()


def demo_page(tokens: Callable[[str], AsyncIterator[str]] = _at_a_pace) -> ASGIApp:
    """The page and its endpoints, behind the relay. `tokens` makes the answer for a run, once for each endpoint."""
    guard = StreamGuard(MemoryLog(), authorize=anyone_with_the_id)

    async def unguarded(request: Request) -> Response:
        async def events() -> AsyncIterator[str]:
            async for token in tokens(request.headers.get(RUN, "")):
                yield f"data: {json.dumps(token)}\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    @guard.stream(timing=Timing(heartbeat=_HEARTBEAT))
    async def guarded(request: Request) -> AsyncIterator[str]:
        async for token in tokens(request.headers.get(RUN, "")):
            yield token

    async def fault(request: Request) -> Response:
        faults = {"cut": relay.cut, "stall": relay.stall}
        do, run = faults.get(request.query_params.get("do", "")), request.query_params.get("run")
        if do is None or run is None:
            return JSONResponse({"detail": "POST /fault?run=RUN&do=cut, or do=stall"}, 400)
        return JSONResponse({"streams": await do(run)})

    files = [Route(f"/{'' if name == 'index.html' else name}", _file(name, kind)) for name, kind in _TYPES.items()]
    app = Starlette(
        routes=[
            *files,
            Route("/unguarded", unguarded, methods=["POST"]),
            Route("/guarded", guarded, methods=["POST"]),
            Route("/fault", fault, methods=["POST"]),
        ]
    )
    guard.install(app, "/streams")
    relay = Relay(app)
    return relay


def _file(name: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        if name.endswith(".css"):
            return Response(style_of(PAGE / name), media_type=kind, headers=_HEADERS)
        return FileResponse(PAGE / name, media_type=kind, headers=_HEADERS)

    return answer


class _Server(uvicorn.Server):
    """Calls `started` once it can be asked."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], object]) -> None:
        super().__init__(config)
        self._then = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._then()


def serve_page(host: str, port: int, *, open_browser: bool = False) -> None:
    """Serve the page until an interrupt, which is raised again as KeyboardInterrupt. Raises OSError for an address that
    cannot be had."""
    with listening(host, port) as listener:
        name, number = listener.getsockname()[:2]
        shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(name, f"[{name}]" if ":" in name else name)
        url = f"http://{shown}:{number}/"

        def started() -> None:
            print(f"{url}  (Ctrl-C ends it)", flush=True)
            if open_browser:  # in a thread: a browser in the terminal would hold the server up until it is left
                threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()

        # A stalled answer never ends by itself: an interrupt must not wait for it.
        config = uvicorn.Config(
            demo_page(), log_level="critical", loop="asyncio", http="h11", timeout_graceful_shutdown=0
        )
        _Server(config, started).run(sockets=[listener])
