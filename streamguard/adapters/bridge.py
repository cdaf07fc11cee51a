"""An ASGI application, called from a thread: what is written once for event loops serves WSGI too.

    head = Bridge(application).begin(scope, environ)

The application runs in the process's loop thread. What it sends waits in a bounded queue for the thread that serves the
request, which takes all that is there at once, so that a connection that cannot keep up gets larger parts. An answer
that the application does not end raises from its body (BodyAborted).
"""

from __future__ import annotations

import concurrent.futures
import logging
import queue
from collections.abc import Generator, MutableMapping
from typing import Any, Final

import anyio

from streamguard.adapters.blocking import Body, Head
from streamguard.adapters.environ import Environ, aborted_by, cut_off, gone_by, keep_body, limit_writes, warn_of_lone
from streamguard.adapters.seal import ASGIApp, Message
from streamguard.adapters.transport import Transport, give_transport
from streamguard.runtime.blocking import LOOK
from streamguard.runtime.loopthread import Call, Waiting, loop_thread

__all__ = ["Bridge"]

logger = logging.getLogger("streamguard")

_HIGH: Final = 64 * 1024  # bytes that wait, above which the application waits

Part = Message | bytes | Call | None  # an answer's start, a part of its body, its end


class Bridge:
    """One request. `write`: how many seconds a reader may take nothing, where the system can see to that."""

    def __init__(self, app: ASGIApp, environ: Environ, *, write: float | None = None) -> None:
        self._app = app
        self._environ = environ
        self._body = keep_body(environ)
        self._gone = gone_by(environ)
        self._parts: Waiting = queue.SimpleQueue()
        self._whole = False
        self._failure: BaseException | None = None
        self._task: concurrent.futures.Future[None] | None = None
        # Each side owns its counter, and only reads the other's.
        self._put = self._taken = 0
        self._room: anyio.Event | None = None  # of an application that waits
        self._left: anyio.Event | None = None
        self._asked = self._over = False
        warn_of_lone(environ)
        limit_writes(environ, write)

    def begin(self, scope: MutableMapping[str, Any]) -> Head:
        """Call the application; its answer. Raises what it raised before one."""
        self._task = loop_thread().start(self._run, scope, waiting=self._parts)
        try:
            start = self._next()
        except BaseException:
            self.close()
            raise
        if not isinstance(start, MutableMapping):
            if self._failure is not None:
                raise self._failure
            raise RuntimeError("the application answered nothing")
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in start["headers"]]
        return Head(start["status"], headers, Body(self._body_parts(), self.close))

    def close(self) -> None:
        """The server is done with the answer. What the application has to do after that it does by itself."""
        loop_thread().call(self._leave)

    # ---- the thread ---------------------------------------------------------------------------------

    def _next(self) -> Part:
        while True:
            try:
                part: Part = self._parts.get(timeout=LOOK)
                if not isinstance(part, Call):
                    return part
                part()
            except queue.Empty:
                if self._gone is not None and self._gone():
                    loop_thread().call(self._leave)

    def _body_parts(self) -> Generator[bytes, None, None]:
        while True:
            part = self._next()
            data = []
            while isinstance(part, bytes):
                data.append(part)
                if self._parts.empty():
                    break
                part = self._next()
            if data:
                self._taken += sum(map(len, data))
                if (room := self._room) is not None:
                    loop_thread().call(room.set)
                yield b"".join(data)
            if part is None:
                break
        if not self._whole:
            raise aborted_by(self._environ)()

    # ---- the event loop -----------------------------------------------------------------------------

    async def _run(self, scope: MutableMapping[str, Any]) -> None:
        self._left = anyio.Event()
        give_transport(scope, Transport(self._unsent, close=lambda: self._parts.put(None), abort=self._drop))
        if self._over:
            self._left.set()
        try:
            await self._app(scope, self._receive, self._send)
        except BaseException as exc:
            self._failure = exc
            if self._put:
                logger.exception("an application failed after its answer had begun")
            if not isinstance(exc, Exception):
                raise
        finally:
            self._parts.put(None)

    async def _receive(self) -> Message:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        assert self._left is not None
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        assert self._left is not None
        if message["type"] == "http.response.start":
            self._parts.put(message)
            return
        body = message.get("body", b"")
        if body:
            self._put += len(body)
            self._parts.put(bytes(body))
        if not message.get("more_body", False):
            self._whole = True
            self._parts.put(None)  # what the application does after that is its own business
            return
        while self._put - self._taken > _HIGH and not self._left.is_set():
            self._room = room = anyio.Event()
            if self._put - self._taken > _HIGH:  # else it was made meanwhile, and nobody saw the event
                await room.wait()
            self._room = None

    def _unsent(self) -> int:
        return 0 if self._over else self._put - self._taken  # nobody takes the rest: a stream must not wait for that

    def _drop(self) -> None:
        """The reader takes nothing, and the thread may be in the server's write."""
        self._parts.put(None)
        cut_off(self._environ)

    def _leave(self) -> None:
        self._over = True
        if self._left is not None:
            self._left.set()
        if self._room is not None:
            self._room.set()
