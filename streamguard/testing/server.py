"""An ASGI server without sockets that a script decides, honest about streaming.

    server = ScriptedServer(app, conduct=Conduct(at_bytes=500))     # the reader leaves after 500 bytes
    await server.run()
    assert server.ended == "unfinished"

`httpx.ASGITransport` and Starlette's `TestClient` run an application to its end before they hand anything
out, so that nothing of a stream's behaviour in time is to be seen through them. Here each message is
noted when it is sent, and by whom; a `send` is taken at once, or takes some turns of the loop, or hangs,
or fails, or succeeds for ever and goes nowhere, as on real servers; and `receive` tells of the reader
that left at once, too early, late, or never.

There is no clock and no chance in it: things happen at a byte or a message, or when a test calls
`leave`, `tell`, `release` or `cancel`. `until` waits for the application to get somewhere.

    async with ScriptedServer(app) as server:       # the application runs beside the block
        await server.until(messages=3)
        server.leave()
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any, Final, Literal

import anyio
import anyio.abc
from typing_extensions import Self

from streamguard.testing.conduct import ASGIApp, Conduct, Message, Sent
from streamguard.testing.source import current_task

__all__ = ["ScriptedServer"]

End = Literal["open", "complete", "unfinished", "raised"]

_START: Final = "http.response.start"
_BODY: Final = "http.response.body"
_REPLAYS: Final = 1000  # of a hidden disconnect, after which an application is in an endless loop


class ScriptedServer:
    """One request to `app`, and what it answers.

    `scope` adds to the HTTP scope that is made of the other arguments. `conduct` is how server and reader
    behave. With `killable` the `receive` that the application gets is a method of an object that has a
    `transport`, as uvicorn's is: `kills` notes each `close` and `abort` of it, which also are a reader that left.

    After the call, or at any time: `sent` (each message as a Sent), `ended`, `status`, `headers`, `body` (what
    the reader got), `overlaps`, `late` (messages behind the end), `wrong` (messages that break ASGI), `error`
    (what the application raised). `ended` is the application's side: `complete` when the last message of a body
    was sent, `unfinished` when it returned without, `raised` when it raised or was cancelled.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        conduct: Conduct | None = None,
        method: str = "GET",
        path: str = "/",
        headers: Iterable[tuple[str, str]] = (),
        body: bytes = b"",
        http_version: str = "1.1",
        killable: bool = False,
        scope: dict[str, Any] | None = None,
    ) -> None:
        self.app = app
        self.conduct = conduct or Conduct()
        self.scope = {**_http_scope(method, path, headers, http_version), **(scope or {})}
        self.sent: list[Sent] = []
        self.wrong: list[str] = []
        self.ended: End = "open"
        self.error: BaseException | None = None
        self.status: int | None = None
        self.headers: list[tuple[str, str]] = []
        self.body = b""
        self.taken = 0
        self.received = 0
        self.left = self.conduct.at_messages == 0 and self.conduct.sends in ("silent", "fail")
        self.kills: list[str] = []
        self._request: Message | None = {"type": "http.request", "body": body, "more_body": False}
        self._replayed = dict(self._request)
        self._replays = 0
        self._killable = killable
        self._started = False
        self._complete = False
        self._busy = 0
        self._told = False
        self._released = False
        self._changed = anyio.Event()
        self._scope: anyio.CancelScope | None = None
        self._tasks: anyio.abc.TaskGroup | None = None

    # ---- what a test does -------------------------------------------------------------------------------

    async def run(self) -> Self:
        """Run the application until it returns or raises. What it raises is kept in `error`, as servers log it."""
        receive = _Cycle(self).receive if self._killable else self._receive
        try:
            with anyio.CancelScope() as scope:
                self._scope = scope
                await self.app(self.scope, receive, self._send)
                self.ended = "complete" if self._complete else "unfinished"
        except Exception as exc:
            self.error = exc
            self.ended = "raised"
        finally:
            if self.ended == "open":
                self.ended = "raised"
            self._change()
        return self

    async def __aenter__(self) -> Self:
        self._tasks = tasks = await anyio.create_task_group().__aenter__()
        tasks.start_soon(self.run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._tasks is not None
        if exc is not None:
            self._tasks.cancel_scope.cancel()
        # Without the block's exception, which a task group would wrap in a group of its own.
        await self._tasks.__aexit__(None, None, None)

    async def until(self, *, messages: int = 0, bytes: int = 0, received: int = 0) -> None:
        """Wait until so many messages were sent (taken or not), so many bytes of the body have come to the reader, and
        `receive` was called so often. Raises RuntimeError when the application ends before."""
        while len(self.sent) < messages or len(self.body) < bytes or self.received < received:
            if self.ended != "open":
                raise RuntimeError(
                    f"the application ended ({self.ended}) after {len(self.sent)} messages, "
                    f"{len(self.body)} bytes and {self.received} calls of receive"
                )
            await self._changed.wait()

    async def ending(self) -> End:
        """Wait until the application has ended; how."""
        while self.ended == "open":
            await self._changed.wait()
        return self.ended

    def leave(self) -> None:
        """The reader leaves now."""
        self.left = True
        self._change()

    def tell(self) -> None:
        """`receive` answers `http.disconnect` from now on, whatever the conduct says."""
        self._told = True
        self._change()

    def release(self) -> None:
        """A reader that stopped reading reads on, and no send hangs any longer."""
        self._released = True
        self._change()

    def cancel(self) -> None:
        """Cancel the application, as servers do that shut down."""
        assert self._scope is not None, "the application does not run"
        self._scope.cancel()

    def kill(self, how: str) -> None:
        """What the application does through a transport: the connection is closed at once."""
        self.kills.append(how)
        self._released = True
        self.leave()

    # ---- what it is asked -------------------------------------------------------------------------------

    @property
    def overlaps(self) -> int:
        """Messages that were sent while another send had not returned."""
        return sum(sent.overlaps for sent in self.sent)

    @property
    def late(self) -> int:
        """Messages that were sent behind the end of the answer."""
        return sum(sent.late for sent in self.sent)

    def header(self, name: str) -> str | None:
        """The value of a header; several joined by commas."""
        found = [value for key, value in self.headers if key == name.lower()]
        return ", ".join(found) if found else None

    # ---- what the application calls ---------------------------------------------------------------------

    async def _receive(self) -> Message:
        self.received += 1
        self._change()
        if self._request is not None:
            request, self._request = self._request, None
            return request
        if self.conduct.told == "hidden" and not self._told:
            return self._replay()
        while not self._disconnected():
            await self._changed.wait()
        return {"type": "http.disconnect"}

    def _replay(self) -> Message:
        self._replays += 1
        if self._replays > _REPLAYS:
            self.wrong.append("receive was called again and again for a disconnect that does not come")
            raise RuntimeError(self.wrong[-1])
        return dict(self._replayed)

    def _disconnected(self) -> bool:
        told = self.conduct.told
        return self._told or told == "early" or (told == "at once" and (self.left or self._complete))

    async def _send(self, message: Message) -> None:
        sent = Sent(dict(message), current_task(), self._busy > 0, self._complete)
        self.sent.append(sent)
        self._change()
        self._busy += 1
        try:
            for _ in range(self.conduct.turns):
                await anyio.lowlevel.checkpoint()
            self._check(sent)
            if not self._take(sent):
                await self._refuse(sent)
            if message["type"] == _BODY and not message.get("more_body", False):
                self._complete = True
        finally:
            self._busy -= 1
            sent.pending = False
            self._change()

    def _check(self, sent: Sent) -> None:
        """Raises RuntimeError where a server would, because the message breaks ASGI."""
        kind = sent.message["type"]
        started, self._started = self._started, self._started or kind == _START
        if self._complete:
            problem = "after the answer had ended"
        elif kind not in (_START, _BODY):
            problem = "which is no message of an HTTP response"
        elif (kind == _START) is started:
            problem = "a second time" if started else "before the start message"
        else:
            return
        self.wrong.append(
            f"{kind!r} was sent {problem}" if kind in (_START, _BODY) else f"{kind!r} was sent, {problem}"
        )
        raise RuntimeError(self.wrong[-1])

    def _take(self, sent: Sent) -> bool:
        """Hand to the reader what it takes of the message; whether that is all of it."""
        start = sent.message["type"] == _START
        if self.left or self._at_mark(start):
            return False
        done = sent.taken or 0
        at = None if self._released else self.conduct.at_bytes
        piece = sent.body[done:] if at is None else sent.body[done : done + at - len(self.body)]
        if start:
            self._head(sent.message)
        self.body += piece
        sent.taken = done + len(piece)
        whole = sent.taken == len(sent.body)
        self.taken += whole
        if self._at_mark(False) and self.conduct.sends in ("silent", "fail"):
            self.left = True
        return whole

    def _head(self, message: Message) -> None:
        self.status = message["status"]
        headers = [(bytes(name), bytes(value)) for name, value in message.get("headers", ())]
        self.headers = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in headers]

    def _at_mark(self, start: bool) -> bool:
        """Whether the reader has taken all that it takes. The start message has no bytes to count."""
        if self._released:
            return False
        at_bytes, at_messages = self.conduct.at_bytes, self.conduct.at_messages
        if at_messages is not None and self.taken >= at_messages:
            return True
        return at_bytes is not None and not start and len(self.body) >= at_bytes

    async def _refuse(self, sent: Sent) -> None:
        """What becomes of a send of which the reader does not take everything."""
        sends = self.conduct.sends
        while not self._released and (sends == "stuck" or (sends == "hang" and not self.left)):
            await self._changed.wait()
        if not self.left:
            self._take(sent)  # it reads on
        elif sends == "fail" and not self._released:
            raise self.conduct.error()

    def _change(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()


def _http_scope(method: str, path: str, headers: Iterable[tuple[str, str]], http_version: str) -> dict[str, Any]:
    target, _, query = path.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": http_version,
        "method": method,
        "scheme": "http",
        "path": target,
        "raw_path": target.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers],
        "client": ("127.0.0.1", 12345),
        "server": ("127.0.0.1", 80),
    }


class _Transport:
    def __init__(self, server: ScriptedServer) -> None:
        self._server = server

    def close(self) -> None:
        self._server.kill("close")

    def abort(self) -> None:
        self._server.kill("abort")

    def get_write_buffer_size(self) -> int:
        """What hangs now."""
        return sum(len(sent.body) for sent in self._server.sent if sent.pending)

    def get_extra_info(self, name: str) -> None:
        return None


class _Cycle:
    """What uvicorn's `receive` is a method of."""

    def __init__(self, server: ScriptedServer) -> None:
        self._server = server
        self.transport = _Transport(server)

    async def receive(self) -> Message:
        return await self._server._receive()
