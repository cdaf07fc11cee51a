"""Whether this process takes new streams, for a load balancer or an orchestrator: 200, and 503 from the moment at
which it is told to go.

    Route("/ready", Readiness())            of the application's seal
    guard.install(app, ready="/ready")      of a guard

Nobody is authorized for it: it says nothing about any stream.
"""

from __future__ import annotations

from typing import Final

from streamguard.adapters.asgi import send_refusal
from streamguard.adapters.seal import Receive, Scope, Send
from streamguard.adapters.shutdown import drain_of
from streamguard.core.exchange import NO_STORE, Refusal
from streamguard.runtime.drain import Draining

__all__ = ["Readiness"]

_PLAIN: Final = ("content-type", "text/plain; charset=utf-8")


class Readiness:
    """The endpoint, as an ASGI application; of `guard`, or of the application's seal."""

    def __init__(self, guard: Draining | None = None) -> None:
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        ready = (drain_of(scope) if self._guard is None else self._guard).ready
        status, body = (200, b"ready\n") if ready else (503, b"going away\n")
        headers = [_PLAIN, NO_STORE, ("content-length", str(len(body)))]
        await send_refusal(Refusal(status, headers, b"" if scope["method"] == "HEAD" else body), scope, send)
