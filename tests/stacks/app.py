"""The application that every stack serves: each ending, from each kind of source, and what became of it.

    POST /<label>/<kind>/<ending>/<dialect>/chat/completions     an ending of `tests.adapters.endings`
    GET  /stream/<label>/<kind>?count=&pace=&size=&…             a stream of tokens; what its server does is noted
    GET  /incomplete                                             an answer without its last message, not guarded
    GET  /counters/<label>                                       the books of the streams with this label

The test is in another process: `label` is how it finds its streams again. With STREAMGUARD_TEST_QUIET=1 the
server's own lines about our aborts are filtered.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from typing import Any

import attrs
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from streamguard.adapters.quiet import quiet_server_logs
from streamguard.adapters.seal import Message, Receive, Scope, Send
from streamguard.adapters.starlette import GuardedResponse, SealMiddleware
from streamguard.core.errors import SourceFailed
from streamguard.observe.hooks import Outcome
from streamguard.runtime.buffer import Buffer
from streamguard.runtime.timing import Timing
from tests.adapters.endings import ENDINGS, TOKENS, Answering
from tests.stacks.sources import BUFFERED, KINDS, Books, Script

__all__ = ["app", "layered"]

LINGER = float(os.environ.get("STREAMGUARD_TEST_LINGER", "0.05"))
_STALL = 0.1

BOOKS: dict[str, list[Books]] = {}

_SCRIPTS: dict[str, Callable[[], Script]] = {
    "raises-0": lambda: Script([], RuntimeError("the model broke")),
    "raises-3": lambda: Script(TOKENS[:3], RuntimeError("the model broke")),
    "raises-last": lambda: Script(TOKENS, RuntimeError("the model broke")),
    "wrong-type": lambda: Script([TOKENS[0], 42]),
    "cancelled": lambda: Script(TOKENS[:3], silent=True),
    "stalled": lambda: Script(TOKENS[:3], silent=True),
    "not-loading": lambda: Script([], loading=RuntimeError("the weights are missing")),
}
_POLICIES = {"policy-raises": None, "policy-negative": -1, "policy-above": 1}
assert {*_SCRIPTS, *_POLICIES, "finished"} == set(ENDINGS)


def _books(label: str) -> Books:
    books = Books()
    BOOKS.setdefault(label, []).append(books)
    return books


def _respond(kind: str, script: Script, books: Books, **options: Any) -> GuardedResponse:
    def ended(outcome: Outcome) -> None:
        books.status = outcome.status
        books.abandoned = outcome.abandoned

    if kind == BUFFERED:
        options["buffer"] = Buffer(max_items=4)
    return GuardedResponse(KINDS[kind](script, books), on_end=ended, **options)


async def ending(request: Request) -> Response:
    """One of `tests.adapters.endings`, from the kind of source that is asked for."""
    # As an endpoint for chat does. hypercorn closes an HTTP/2 connection on which a body comes after its answer.
    await request.body()
    name, kind, dialect = (request.path_params[key] for key in ("ending", "kind", "dialect"))
    options: dict[str, Any] = {"timing": Timing(linger=LINGER), "dialect": dialect}
    if name in _POLICIES:
        options["flush"] = Answering(_POLICIES[name])
    if name == "stalled":
        options["timing"] = Timing(linger=LINGER, stall=_STALL)
    script = _SCRIPTS.get(name, lambda: Script(TOKENS))()
    if name == "cancelled":
        script = attrs.evolve(script, last=lambda: response.cancel(None))  # made below
    response = _respond(kind, script, _books(request.path_params["label"]), **options)
    return response


@attrs.frozen
class _Noting:
    """A response whose `receive` and `send` are noted in its stream's books."""

    response: Response
    books: Books

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        books = self.books

        async def noting() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect":
                books.told()
            return message

        async def sending(message: Message) -> None:
            books.sending = time.monotonic()
            await send(message)
            books.sending = None
            books.taken += len(message.get("body", b""))

        await self.response(scope, noting, sending)


async def stream(request: Request) -> Any:
    """Tokens: `count` of them (0: for ever), `pace` seconds apart, of `size` characters; then the
    end, silence (`silent=1`) or a failure (`fails=1`). `write` is the write deadline."""
    asked = request.query_params
    count, size = int(asked.get("count", "0")), int(asked.get("size", "0"))
    endless = itertools.count() if count == 0 else range(count)
    items = (f"t{index} ".ljust(size, "x") for index in endless)
    failure = SourceFailed("overloaded", "come back later") if asked.get("fails") == "1" else None
    script = Script(items, failure, pace=float(asked.get("pace", "0")), silent=asked.get("silent") == "1")
    books = _books(request.path_params["label"])
    timing = Timing(linger=LINGER, heartbeat=None, stall=None, write=float(asked.get("write", "30")))
    return _Noting(_respond(request.path_params["kind"], script, books, timing=timing), books)


class _Incomplete:
    """An answer that its application does not finish, as a fault of its own."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})


async def incomplete(request: Request) -> Any:
    return _Incomplete()


async def counters(request: Request) -> Response:
    return JSONResponse([books.report() for books in BOOKS.get(request.path_params["label"], [])])


app = Starlette(
    routes=[
        Route("/stream/{label}/{kind}", stream, methods=["GET"]),
        Route("/incomplete", incomplete),
        Route("/counters/{label}", counters),
        Route("/{label}/{kind}/{ending}/{dialect}/chat/completions", ending, methods=["POST"]),
    ]
)
app.add_middleware(SealMiddleware)


@attrs.frozen
class _Hidden:
    """A `receive` from which the server's cannot be seen, as it can from a closure."""

    receive: Receive

    async def __call__(self) -> Message:
        return await self.receive()


async def layered(scope: Scope, receive: Receive, send: Send) -> None:
    """The same under a layer that hides the server's `receive`, and with it the transport."""
    await app(scope, _Hidden(receive), send)


if os.environ.get("STREAMGUARD_TEST_QUIET") == "1":
    quiet_server_logs()
