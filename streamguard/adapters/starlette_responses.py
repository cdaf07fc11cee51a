"""A guarded answer as a Starlette Response: for one connection, or for a stream in a guard's log."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import Unpack

from streamguard.adapters.asgi import GuardedAnswer, encode_headers
from streamguard.adapters.bodies import body_of
from streamguard.adapters.logged import Claim, LoggedAnswer
from streamguard.adapters.options import AnswerOptions, Options, StreamNames, StreamOptions
from streamguard.adapters.reconnect import ReconnectAnswer
from streamguard.adapters.seal import Receive, Scope, Send, mark_guarded
from streamguard.app import StreamGuard as BaseGuard
from streamguard.core.errors import Failure
from streamguard.observe.hooks import Outcome
from streamguard.runtime.source import Producer

__all__ = ["AnswerResponse", "GuardedResponse", "ReconnectResponse", "ResumableResponse"]

A = TypeVar("A", GuardedAnswer, LoggedAnswer)


class AnswerResponse(Response, Generic[A]):
    """A response whose body is an answer that streams; it can be cancelled, and has its `outcome` at the end."""

    answer: A

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        """Headers of the caller only: those of the stream are known when the request is."""
        self.raw_headers = encode_headers((name.lower(), value) for name, value in (headers or {}).items())

    @property
    def outcome(self) -> Outcome | None:
        """How the stream ended; None before."""
        return self.answer.outcome

    def cancel(self, failure: Failure | None = None) -> None:
        """End the stream as `cancelled`."""
        self.answer.cancel(failure)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Any:  # a coroutine; of no `async def`, see below
        mark_guarded(scope)
        self.answer.status = self.status_code
        self.answer.headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in self.raw_headers]
        if isinstance(self.answer, GuardedAnswer) and self.answer.options.limits is not None:
            self.answer.request = Request(scope, receive)
        # Each coroutine between the event loop and the source is gone through twice a token.
        return self.answer(scope, receive, send) if self.background is None else self._then(scope, receive, send)

    async def _then(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.answer(scope, receive, send)
        if self.background is not None:
            await self.background()


def _require_source(source: Any) -> None:
    if isinstance(source, Response):  # which is a function too, so that a TokenSource would take it
        raise TypeError(f"a {type(source).__name__} is no source: give the generator that it was given")


class GuardedResponse(AnswerResponse[GuardedAnswer]):
    """A Starlette response that streams a source, guarded.

        return GuardedResponse(generate(prompt), dialect="openai", flush=EveryTokens(8))

    Options are those of AnswerOptions; the response can be cancelled, and has its `outcome` at the end. Raises
    TypeError and ValueError for a source that is none, or is spent, as TokenSource does.
    """

    def __init__(
        self,
        source: Producer,
        status_code: int = 200,
        headers: Mapping[str, str] | None = None,
        background: BackgroundTask | None = None,
        *,
        options: AnswerOptions | None = None,
        **named: Unpack[Options],
    ) -> None:
        _require_source(source)
        self.answer = GuardedAnswer(source, status=status_code, options=options, **named)
        self.status_code = status_code
        self.background = background
        self.body = b""
        self.init_headers(headers)


class ResumableResponse(AnswerResponse[LoggedAnswer]):
    """A Starlette response that starts a stream in a guard's log, or goes on reading one; `guard.response` makes it.

    Options are those of AnswerOptions and StreamOptions. Raises as GuardedResponse does.
    """

    def __init__(
        self,
        guard: BaseGuard,
        request: Request,
        source: Producer,
        status_code: int = 200,
        headers: Mapping[str, str] | None = None,
        background: BackgroundTask | None = None,
        *,
        claim: Claim | None = None,
        options: tuple[StreamOptions, AnswerOptions] | None = None,
        **named: Unpack[StreamNames],
    ) -> None:
        _require_source(source)
        body = functools.partial(body_of, request)
        self.answer = LoggedAnswer(guard, source, request=request, body=body, claim=claim, options=options, **named)
        self.status_code = status_code
        self.background = background
        self.body = b""
        self.init_headers(headers)


class ReconnectResponse(Response):
    """A Starlette response that is the running stream of a name, or 204; `guard.reconnect` makes it."""

    def __init__(self, guard: BaseGuard, request: Request, name: str, **named: Unpack[Options]) -> None:
        super().__init__(status_code=200)
        self.answer = ReconnectAnswer(guard, name, request=request, **named)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        mark_guarded(scope)
        await self.answer(scope, receive, send)
