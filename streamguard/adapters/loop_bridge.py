"""An ASGI application's answer for a framework that takes bodies as async iterators, in the event loop of both.

    head = await LoopBridge(application, scope, body).begin()

The application runs in a task beside the one that iterates. What it sends waits, up to a bound, and is taken all at
once. A body that the application does not end raises BodyAborted where no seal stands outside, which else drops the end
that the framework gives it. Whoever stops iterating waits for the application: what the framework opened for the
request is there for as long as the source uses it.

Where the framework's own `send` is known (SEND), and nobody stands between it and the body, parts go there at once
(`straight`): a token then has no task to change.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import anyio
import attrs

from streamguard.adapters.admitting import Place, admitted_request
from streamguard.adapters.asgi import GuardedAnswer, request_facts
from streamguard.adapters.logged import Claim, LoggedAnswer, make_claim, with_slot
from streamguard.adapters.reading import ROOT
from streamguard.adapters.returned import refuse_plain
from streamguard.adapters.seal import ASGIApp, Message, Scope, Send, is_aborted, mark_guarded
from streamguard.adapters.shutdown import drain_of
from streamguard.adapters.threaded import Guarding, Logging, Passes
from streamguard.adapters.transport import Transport, closing_by, give_transport
from streamguard.core.unstreamed import refuse_unstreamed
from streamguard.runtime.blocking import BodyAborted

__all__ = ["SEND", "LoopBody", "LoopBridge", "LoopHead", "answered"]

SEND: Final = "streamguard.send"  # in a scope: what the framework itself was called with

_HIGH: Final = 64 * 1024  # bytes that wait, above which the application waits


@attrs.frozen
class LoopHead:
    """What an answer begins with, and its body."""

    status: int
    headers: list[tuple[str, str]]
    body: LoopBody


class LoopBody:
    """A body, to be iterated once."""

    def __init__(self, parts: AsyncIterator[bytes], straight: Callable[[], object] | None = None) -> None:
        self._parts = parts
        self._straight = straight

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._parts

    def straight(self) -> AsyncIterator[bytes]:
        """The same for the framework's own `send`, which need not be given what can be sent without it."""
        if self._straight is not None:
            self._straight()
        return self._parts


class LoopBridge:
    """One request."""

    def __init__(self, app: ASGIApp, scope: Scope, body: bytes = b"") -> None:
        self._app = app
        self._scope = closing_by(scope, self._close)
        if self._scope is scope:  # no transport can be reached: then the body itself is ended
            self._scope = {**scope}
            give_transport(self._scope, Transport(self._unsent, close=self._end, abort=self._end))
        self._cut = False
        self._closing: Callable[[], None] | None = None  # once all was taken
        self._parked = False  # whether who iterates is back for more, so that it has sent what it had
        self._body: bytes | None = body
        self._start: asyncio.Future[Message] | None = None
        self._task: asyncio.Task[None] | None = None
        self._left = anyio.Event()
        self._parts: list[bytes] = []
        self._size = 0
        self._more = anyio.Event()
        self._room = anyio.Event()
        self._whole = False
        self._straight: Send | None = None

    async def begin(self) -> LoopHead:
        """Call the application; its answer. Raises what it raised before one."""
        task, started = self._begun()
        try:
            waited: list[asyncio.Future[Any]] = [task, started]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            self._left.set()
            raise
        if not started.done():
            task.result()
            raise RuntimeError("the application answered nothing")
        start = started.result()
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in start["headers"]]
        return LoopHead(start["status"], headers, self.body())

    def body(self) -> LoopBody:
        """The body of an application that is called when it is asked for, if it was not yet."""
        return LoopBody(self._taken(), self._go_straight)

    def _go_straight(self) -> None:
        if not self._parts:  # what waits already must not be overtaken
            self._straight = self._scope.get(SEND)

    async def _taken(self) -> AsyncIterator[bytes]:
        task, _ = self._begun()
        try:
            while True:
                if self._parts:
                    data, self._parts, self._size = b"".join(self._parts), [], 0
                    self._room.set()
                    yield data
                    continue
                if self._closing is not None:
                    self._closing()
                    self._closing = None
                if self._whole or self._cut or task.done():
                    break
                self._more = anyio.Event()
                self._parked = True
                await self._more.wait()
                self._parked = False
        finally:
            self._left.set()
            self._room.set()
            if not task.done() and not self._cut:
                await asyncio.wait([task])
        if task.done():
            task.result()
        if not self._whole and not is_aborted(self._scope):
            raise BodyAborted

    def _unsent(self) -> int:
        return 0 if self._left.is_set() else self._size  # nobody takes the rest: a stream must not wait for that

    def _end(self) -> None:
        self._cut = True
        self._more.set()

    def _close(self, close: Callable[[], None]) -> None:
        if self._parked and not self._parts:
            close()
        else:
            self._closing = close

    def _begun(self) -> tuple[asyncio.Task[None], asyncio.Future[Message]]:
        if self._task is None or self._start is None:
            self._start = asyncio.get_running_loop().create_future()
            self._task = asyncio.get_running_loop().create_task(self._app(self._scope, self._receive, self._send))  # type: ignore[arg-type]
            self._task.add_done_callback(lambda task: self._more.set())
        return self._task, self._start

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    def _send(self, message: Message) -> Awaitable[None]:
        if self._straight is not None and message.get("more_body", False):
            return self._straight(message)
        return self._keep(message)

    async def _keep(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            assert self._start is not None
            if not self._start.done():
                self._start.set_result(message)
            return
        if body := message.get("body"):
            self._parts.append(body)
            self._size += len(body)
        if not message.get("more_body", False):
            self._whole = True
        self._more.set()
        while self._size > _HIGH and not self._left.is_set():
            self._room = anyio.Event()
            await self._room.wait()


async def answered(
    guarding: Guarding,
    scope: Scope,
    request: Any,
    body: bytes,
    endpoint: Callable[[], Awaitable[Any]],
    name: Any,
    passes: Passes,
) -> Any:
    """What `guarding` answers a request of the running loop with: a LoopHead, or what the endpoint returned, where that
    `passes` as a response of its own."""
    mark_guarded(scope)
    scope.setdefault(ROOT, scope.get("root_path", ""))
    logging = isinstance(guarding, Logging)
    claim = await (_claimed(guarding, scope, request, body) if logging else _place(guarding, scope, request))
    source: Any = _nothing
    try:
        if claim.starts:
            source = await endpoint()
            if passes(source):
                claim.let_go()
                return source
            refuse_plain(name, source, guarding.whole)
            source = guarding.dress(source)
        app = _logged(guarding, request, body, source, claim) if logging else _direct(guarding, request, source, claim)
        app.refused = refuse_unstreamed(claim.facts, guarding.options.dialect.name, body)
    except BaseException:
        claim.let_go()
        raise
    return await LoopBridge(app, scope, body).begin()


async def _claimed(guarding: Any, scope: Scope, request: Any, body: bytes) -> Claim:
    read = functools.partial(_read, body)
    claim = await make_claim(guarding.guard, request, scope, read)
    return await with_slot(guarding.guard, claim, request, _silent, read)


async def _place(guarding: Guarding, scope: Scope, request: Any) -> Claim:
    """The same without a log: a slot, perhaps, and whether the request starts a stream."""
    facts, drain, admission = request_facts(scope), drain_of(scope), guarding.options.limits
    claim = Claim(facts)
    if admission is None or not claim.starts or not drain.ready:
        return claim
    place = await admitted_request(admission, facts, request, _silent, drain=drain)
    return Claim(facts, slot=place.slot, refused=place.refused)


def _direct(guarding: Guarding, request: Any, source: Any, claim: Claim) -> GuardedAnswer:
    answer = GuardedAnswer(source, options=guarding.options)
    answer.request = request
    if claim.slot is not None or claim.refused is not None:
        answer.place = Place(claim.slot, claim.refused)
    return answer


def _logged(guarding: Any, request: Any, body: bytes, source: Any, claim: Claim) -> LoggedAnswer:
    return LoggedAnswer(guarding.guard, source, request=request, body=body, claim=claim, options=guarding.both)


async def _read(body: bytes) -> bytes:
    return body


async def _silent() -> Message:
    """A `receive` that tells nothing: the framework itself cancels the request of a reader that leaves."""
    await anyio.sleep_forever()
    raise AssertionError


def _nothing() -> AsyncIterator[str]:
    raise AssertionError("the source of an answer that starts nothing was asked for")
