"""Resumable applications for tests: a source that waits where it is told and keeps books, a log that can be in trouble,
and readers of bytes.

    site = Site("t0 ", gate, "t1 ")
    with serving(site.app) as server: ...

`/tokens` is a stream under `guard.stream`, `/streams` are the endpoints. Who asks stands in the header `user`.
"""

from __future__ import annotations

import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from streamguard.adapters.starlette import StreamGuard
from streamguard.core.cursor import Cursor
from streamguard.log.base import LogUnavailable, Retention, StreamInfo, StreamLog
from streamguard.log.memory import MemoryLog
from streamguard.runtime.timing import Timing
from tests.adapters.asgi_apps import Response
from tests.adapters.servers import DEADLINE, Connection, Gate, Server

__all__ = [
    "ASKING",
    "OURS",
    "SSE",
    "Counted",
    "Site",
    "TroubledLog",
    "cursors",
    "reading",
    "sid_of",
    "text_of",
    "wait_until",
]

OURS: dict[str, Any] = {"streamguard": "v=1"}
SSE: dict[str, Any] = {"accept": "text/event-stream"}
ASKING: dict[str, tuple[str, dict[str, Any]]] = {
    "ours": ("GET", OURS),
    "EventSource": ("GET", SSE),
    "SDK": ("POST", {}),
}
"""The three kinds of readers of the refusals table."""


class Counted:
    """A source that can be called for each request: text is yielded, a Gate waited for, an exception raised. It keeps
    books of how often it began and was closed."""

    def __init__(self, *script: Any) -> None:
        self.script = script
        self.starts = 0
        self.closes = 0
        self._changed = threading.Condition()

    async def __call__(self) -> AsyncIterator[Any]:
        self.starts += 1
        try:
            for act in self.script:
                if isinstance(act, Gate):
                    await act
                elif isinstance(act, BaseException):
                    raise act
                else:
                    yield act
        finally:
            with self._changed:
                self.closes += 1
                self._changed.notify_all()

    def wait_closed(self, times: int = 1) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.closes >= times, DEADLINE), "the source was not closed"


class TroubledLog(MemoryLog):
    """A log in memory that is unavailable while `trouble` is set."""

    trouble = False

    async def state(self, sid: str) -> Any:
        self._look()
        return await super().state(sid)

    async def create(self, info: StreamInfo, ttl: float) -> Any:
        self._look()
        return await super().create(info, ttl)

    async def signal(self, sid: str, kind: Any, payload: bytes = b"") -> None:
        self._look()
        await super().signal(sid, kind, payload)

    async def find_key(self, key: str) -> StreamInfo | None:
        self._look()
        return await super().find_key(key)

    def _look(self) -> None:
        if self.trouble:
            raise LogUnavailable("it is away")


def by_header(request: Request, action: str) -> str | None:
    """The principal that the request says it is; `nobody` may nothing."""
    user = request.headers.get("user", "ann")
    return None if user == "nobody" else user


class Site:
    """A guard, one stream's source, and the application round them. `options` are those of guard.stream."""

    def __init__(
        self,
        *script: Any,
        log: StreamLog | None = None,
        retention: Retention | None = None,
        authorize: Callable[..., Any] = by_header,
        max_readers: int = 8,
        by_id: bool = True,
        installed: bool = True,
        observe: Any = None,
        **options: Any,
    ) -> None:
        self.asked: list[tuple[str, str]] = []  # the action, and what asked for it
        self.source = Counted(*script)
        self.log = log or MemoryLog(retention)

        def noted(request: Any, action: Any) -> Any:
            self.asked.append((action, type(request).__name__))
            return authorize(request, action)

        self.guard = StreamGuard(self.log, authorize=noted, max_readers=max_readers, observe=observe)

        @self.guard.stream(**{"timing": Timing(linger=0.05), **options})
        async def tokens(request: Request) -> AsyncIterator[str]:
            async for item in self.source():
                yield item

        self.app = Starlette(routes=[Route("/tokens", tokens, methods=["GET", "POST"])])
        if installed:
            self.guard.install(self.app, "/streams", by_id=by_id, timing=Timing(linger=0.05))

    async def state(self, sid: str) -> Any:
        return await self.log.state(sid)

    async def purge(self, sid: str) -> Any:
        return await self.log.purge(sid=sid)

    def idle(self) -> None:
        """Wait until nothing runs and nobody reads, on this side."""
        wait_until(lambda: not len(self.guard.runs) and not len(self.guard.readers))


def wait_until(true: Callable[[], bool]) -> None:
    """Wait for what another thread does."""
    never = threading.Event()
    for _ in range(int(DEADLINE / 0.005)):
        if true():
            return
        never.wait(0.005)
    raise AssertionError("it did not happen in time")


def cursors(body: bytes) -> list[Cursor]:
    """All cursors of a body that stand beside data, in order; save those of `open`."""
    found = []
    for block in body.split(b"\n\n"):
        match = re.search(rb"^(?:id: |: sg )(\S+)$", block, re.MULTILINE)
        if match and b"event: open" not in block:
            found.append(Cursor.parse(match[1].decode()))
    return found


def text_of(body: bytes) -> str:
    """The text of a native body."""
    pieces = re.findall(rb'^data: "(.*)"$', body, re.MULTILINE)
    return b"".join(pieces).decode()


def sid_of(response: Response | bytes) -> str:
    """The sid that an answer names, in its header or in its first bytes."""
    head = response if isinstance(response, bytes) else (response.header("streamguard") or "").encode()
    match = re.search(rb'cursor="([\w-]{22})\.', head)
    assert match is not None, head
    return match[1].decode()


@contextmanager
def reading(
    server: Server, path: str = "/tokens", method: str = "GET", body: bytes = b"", **headers: Any
) -> Iterator[Connection]:
    """A connection that asked for a stream, as one that verifies unless told otherwise."""
    with server.connect() as connection:
        connection.request(method, path, body=body, **(headers or OURS))
        yield connection
