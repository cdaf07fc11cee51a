"""FastAPI: the same verbs as for Starlette, for endpoints with parameters, models and dependencies.

    app.add_middleware(SealMiddleware)      # last, so that it is outermost

    @app.post("/chat")
    @guarded
    async def chat(prompt: Prompt):
        async for token in model.generate(prompt.text):
            yield token

FastAPI reads an endpoint's signature. The decorator gives it a resolved one, because the names in string
annotations (`from __future__ import annotations`) mean something in the endpoint's module only. It asks for the
request and the response on its own account too: whether the endpoint may run at all depends on the one, and what
dependencies set on the other belongs to the answer.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, get_args, get_origin, overload

from streamguard.extras import needs

with needs("fastapi", __name__):
    from starlette.requests import Request
    from starlette.responses import Response

from typing_extensions import Unpack

from streamguard.adapters import starlette
from streamguard.adapters.asgi import SealMiddleware
from streamguard.adapters.options import Options
from streamguard.adapters.starlette import (
    REQUEST,
    RESPONSE,
    GuardedResponse,
    Guarding,
    Opening,
    ReconnectResponse,
    ResumableResponse,
    Streaming,
    guarded_websocket,
)

__all__ = [
    "GuardedResponse",
    "Opening",
    "ReconnectResponse",
    "ResumableResponse",
    "SealMiddleware",
    "StreamGuard",
    "guarded",
    "guarded_websocket",
]

Endpoint = Callable[..., Awaitable[Response]]


@overload
def guarded(endpoint: Streaming, /) -> Endpoint: ...
@overload
def guarded(**options: Unpack[Options]) -> Callable[[Streaming], Endpoint]: ...
def guarded(endpoint: Streaming | None = None, /, **named: Unpack[Options]) -> Any:
    """Guard an endpoint that yields, or that returns an iterable, `async def` or `def`. Options as in AnswerOptions:

        @guarded
        @guarded(dialect="openai", flush=EveryTokens(8))

    Where an endpoint that yields has the `Request`, its body is read before the first token is asked for. The
    answer has the route's `status_code`, and what dependencies, or an endpoint that returns its source, set on an
    injected `Response`; an endpoint that yields begins when its headers are gone.
    """
    wrap = starlette.guarded(**named)
    if endpoint is not None:
        return _shown(wrap(endpoint), endpoint)
    return lambda function: _shown(wrap(function), function)


class StreamGuard(starlette.StreamGuard):
    """The application's object, for FastAPI: `guard.stream` takes what `guarded` takes."""

    def _wrap(self, endpoint: Streaming, guarding: Guarding) -> Endpoint:
        return _shown(super()._wrap(endpoint, guarding), endpoint)


def _shown(wrapper: Endpoint, endpoint: Callable[..., Any]) -> Endpoint:
    """`wrapper` with the signature that FastAPI is to read."""
    wrapper.__signature__ = _resolved(endpoint)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {}
    return wrapper


def _resolved(endpoint: Callable[..., Any]) -> inspect.Signature:
    """The signature with its parameters' annotations evaluated, which returns a Response.

    The endpoint's own return annotation describes the items: FastAPI would make a response model of it. It
    is not even evaluated, since its names are often imported for type checkers only.
    """
    signature = inspect.signature(endpoint)
    names = _globals(endpoint)
    parameters = [
        parameter.replace(annotation=eval(parameter.annotation, names))
        if isinstance(parameter.annotation, str)
        else parameter
        for parameter in signature.parameters.values()
    ]
    for name, kind in ((REQUEST, Request), (RESPONSE, Response)):
        # FastAPI gives each to one parameter only: where the endpoint asks itself, there it is found.
        if not any(_is(parameter.annotation, kind) for parameter in parameters):
            asked = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind)
            at = len(parameters) - (bool(parameters) and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD)
            parameters.insert(at, asked)
    return signature.replace(parameters=parameters, return_annotation=Response)


def _is(annotation: Any, kind: type) -> bool:
    """Whether FastAPI takes a parameter of this annotation for a `kind`."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return isinstance(annotation, type) and issubclass(annotation, kind)


def _globals(endpoint: Any) -> dict[str, Any]:
    """The names that the annotations of a function mean, through what was put around it."""
    while (inner := getattr(endpoint, "__wrapped__", None) or getattr(endpoint, "func", None)) is not None:
        endpoint = inner  # what `functools.wraps` leaves, or a partial's
    return getattr(endpoint, "__globals__", {})
