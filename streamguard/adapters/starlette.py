"""Starlette: a guarded answer as a Response, and a decorator for endpoints.

    @guarded
    async def tokens(request):
        yield "Hello"

    app = Starlette(routes=[Route("/", tokens)])
    app.add_middleware(SealMiddleware)
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, overload

import anyio
import anyio.to_thread
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import Unpack

from streamguard.adapters.asgi import GuardedAnswer, SealMiddleware, encode_headers, request_facts
from streamguard.adapters.options import AnswerOptions, Options
from streamguard.adapters.seal import Receive, Scope, Send
from streamguard.core.errors import Failure
from streamguard.observe.hooks import Outcome
from streamguard.runtime.source import Producer

__all__ = ["GuardedResponse", "SealMiddleware", "guarded", "wrap_endpoint"]

# What can be guarded: a function that yields, or one that returns something to iterate; `async def` or `def`.
Streaming = Callable[..., AsyncIterable[Any] | Iterable[Any] | Awaitable[Any]]
Endpoint = Callable[[Request], Awaitable[Response]]

# The name under which an adapter may pass the request to a wrapped endpoint that does not ask for it.
REQUEST: Final = "streamguard_request"


class GuardedResponse(Response):
    """A Starlette response that streams a source, guarded.

        return GuardedResponse(generate(prompt), dialect="openai", flush=EveryTokens(8))

    Options are those of AnswerOptions; the response can be cancelled, and has its `outcome` at the end.
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
        self.answer = GuardedAnswer(source, status=status_code, options=options, **named)
        self.status_code = status_code
        self.background = background
        self.body = b""
        self.init_headers(headers)

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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.answer.status = self.status_code
        self.answer.headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in self.raw_headers]
        await self.answer(scope, receive, send)
        if self.background is not None:
            await self.background()


def _answer_from(result: Any, options: AnswerOptions) -> Response:
    """What an endpoint returned, as a response: a Response of its own passes, a source is guarded."""
    return result if isinstance(result, Response) else GuardedResponse(result, options=options)


def wrap_endpoint(endpoint: Callable[..., Any], options: AnswerOptions) -> Callable[..., Awaitable[Response]]:
    """An async function that calls `endpoint` and guards what it yields or returns.

    A plain `def` that yields is called, which runs nothing, and steps on a thread of its own. One that returns its
    source may block before it does: it runs where frameworks run a plain `def`, in their pool of threads, and only
    for as long as it takes to return.

    It shows no `__wrapped__`: FastAPI follows it, finds a generator function and answers 200 with an
    empty body. Raises TypeError for what is no function.
    """
    if inspect.isasyncgenfunction(endpoint) or inspect.isgeneratorfunction(endpoint):

        async def guarded_endpoint(*args: Any, **kwargs: Any) -> Response:
            kwargs.pop(REQUEST, None)
            if (request := _request_in(args, kwargs)) is not None:
                await _read_body(request)
            return GuardedResponse(endpoint(*args, **kwargs), options=options)

    elif inspect.iscoroutinefunction(endpoint) or _is_function(endpoint):
        call = endpoint if inspect.iscoroutinefunction(endpoint) else functools.partial(_in_pool, endpoint)

        async def guarded_endpoint(*args: Any, **kwargs: Any) -> Response:
            request = kwargs.pop(REQUEST, None) or _request_in(args, kwargs)
            if request is not None and _starts_nothing(request):
                return GuardedResponse(_nothing, options=options)
            return _answer_from(await call(*args, **kwargs), options)

    else:
        raise TypeError(
            f"@guarded needs a function that yields, or one that returns something to iterate; "
            f"{getattr(endpoint, '__name__', endpoint)!r} is neither"
        )
    functools.update_wrapper(guarded_endpoint, endpoint)
    del guarded_endpoint.__wrapped__  # type: ignore[attr-defined]
    return guarded_endpoint


def _is_function(endpoint: Any) -> bool:
    while isinstance(endpoint, functools.partial):
        endpoint = endpoint.func
    return inspect.isroutine(endpoint)


async def _in_pool(endpoint: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return await anyio.to_thread.run_sync(functools.partial(endpoint, *args, **kwargs))


def _request_in(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Request | None:
    return next((value for value in (*args, *kwargs.values()) if isinstance(value, Request)), None)


def _starts_nothing(request: Request) -> bool:
    """Whether the answer is a refusal, or has no body: then an endpoint that starts a model must not run."""
    return request.method == "HEAD" or request_facts(request.scope).cursor is not None


def _nothing() -> AsyncIterator[str]:
    raise AssertionError("the source of an answer that starts nothing was asked for")


async def _read_body(request: Request) -> None:
    """Read the body before the stream begins, so that an endpoint that yields can still ask for it.

    While the stream runs its driver owns `receive`: it waits there for the reader to leave, and an endpoint
    that waited there too, inside its generator, would wait for a body that is gone.
    """
    try:
        await request.body()
    except RuntimeError:
        pass  # consumed already, by FastAPI for a form


@overload
def guarded(endpoint: Streaming, /) -> Endpoint: ...
@overload
def guarded(**options: Unpack[Options]) -> Callable[[Streaming], Endpoint]: ...
def guarded(endpoint: Streaming | None = None, /, **named: Unpack[Options]) -> Any:
    """Guard an endpoint that yields, or that returns an iterable, `async def` or `def`. Options as in AnswerOptions:

        @guarded
        @guarded(dialect="openai", flush=EveryTokens(8))

    The request's body is read before an endpoint that yields begins; one that returns its source reads it
    itself, as it likes.
    """
    options = AnswerOptions.of(None, named)
    if endpoint is not None:
        return wrap_endpoint(endpoint, options)
    return functools.partial(wrap_endpoint, options=options)
