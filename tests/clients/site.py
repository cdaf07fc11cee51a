"""What the clients are tried on: a Site behind a front that notes every request, and a fault proxy before it.

    front = Front(Site("t0 ", "t1 ").app)
    with serving(front) as server:
        seen, proxy = through(server.port, plan, lambda url: read(f"{url}/tokens"))
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import parse_qs

import anyio
import attrs

from streamguard.core.cursor import Cursor, looks_like_cursor
from streamguard.testing.plan import Plan
from streamguard.testing.proxy import FaultProxy

__all__ = ["Asked", "Front", "through"]

T = TypeVar("T")

_PAGE = b"<!doctype html><title>page</title>"


@attrs.define
class Asked:
    """A request, and the status of its answer (0: there was none)."""

    method: str
    path: str
    cursor: Cursor | None
    status: int = 0


class Front:
    """Notes what `app` is asked, and lets pages of every origin read its answers. `before` is called, with its number
    from 0, before each request is passed on; it may be a coroutine function. `files` are scripts, by their paths.

    It grants no preflight: a client whose requests need one fails.
    """

    def __init__(
        self,
        app: Any,
        *,
        before: Callable[[int], Any] = lambda number: None,
        files: Callable[[str], bytes | None] = lambda path: None,
    ) -> None:
        self.app = app
        self.before = before
        self.files = files
        self.asked: list[Asked] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"]
        script = self.files(path)
        if path in ("/page", "/favicon.ico") or script is not None:
            await _whole(send, b"text/html" if script is None else b"text/javascript", script or _PAGE)
            return
        asked = Asked(scope["method"], path, _cursor(scope))
        self.asked.append(asked)
        done = self.before(len(self.asked) - 1)
        if inspect.isawaitable(done):
            await done

        async def noting(message: Any) -> None:
            if message["type"] == "http.response.start":
                asked.status = message["status"]
                message = {**message, "headers": [*message["headers"], (b"access-control-allow-origin", b"*")]}
            await send(message)

        await self.app(scope, receive, noting)

    @property
    def statuses(self) -> list[int]:
        return [asked.status for asked in self.asked]

    @property
    def anew(self) -> int:
        """How often it was asked without a cursor. Only then may a source begin: a client that was cut before it was
        given the first event knows none, and Chromium may drop what it has when a cut comes close behind."""
        return sum(asked.cursor is None for asked in self.asked)


async def _whole(send: Any, kind: bytes, body: bytes) -> None:
    headers = [(b"content-type", kind), (b"cache-control", b"no-store"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _cursor(scope: Any) -> Cursor | None:
    values = [value.decode() for name, value in scope["headers"] if name == b"last-event-id"]
    values += parse_qs(scope["query_string"].decode()).get("after", [])
    return next((Cursor.parse(value) for value in values if looks_like_cursor(value)), None)


def through(port: int, plan: Plan | Callable[[int], Plan], read: Callable[[str], T]) -> tuple[T, FaultProxy]:
    """What `read` answers to the address of a fault proxy in front of a port, and that proxy."""

    async def main() -> tuple[T, FaultProxy]:
        async with FaultProxy("127.0.0.1", port, plan=plan) as proxy:
            return await anyio.to_thread.run_sync(read, proxy.url), proxy

    return anyio.run(main)
