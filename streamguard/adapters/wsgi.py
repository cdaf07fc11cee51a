"""WSGI: a guarded answer as an application, and a decorator for functions of the environ.

    @guarded
    def application(environ):
        yield "Hello"

No event loop is needed, and none of the application's own is met. The generator has a thread of its own, so that signs
of life can leave while it waits for a model; the server's thread frames and sends. A stream that did not complete
raises from its body, at which servers cut the connection without the end that a whole body has.

and the same for streams that outlive their connections:

    guard = StreamGuard(MemoryLog(), authorize=who)

    @guard.stream
    def tokens(environ): ...

    application = guard.install(application, "/streams")
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any, overload

from typing_extensions import Unpack

from streamguard.adapters.blocking import BlockingAnswer, Head
from streamguard.adapters.environ import Environ
from streamguard.adapters.logged import logged_endpoint
from streamguard.adapters.options import AnswerOptions, Options, StreamNames, StreamOptions, no_endpoint
from streamguard.adapters.pool import is_function
from streamguard.adapters.threaded import (
    Application,
    Guarding,
    Logging,
    ThreadGuard,
    bridged,
    drained,
    logged_head,
)
from streamguard.core.errors import Failure
from streamguard.observe.hooks import Outcome
from streamguard.runtime.source import Producer

__all__ = ["GuardedResponse", "StreamGuard", "drained", "guarded", "send_head"]

StartResponse = Callable[..., Any]
Streaming = Callable[[Environ], Any]


def send_head(head: Head, start_response: StartResponse) -> Iterable[bytes]:
    """Begin an answer, as WSGI does."""
    try:
        reason = HTTPStatus(head.status).phrase
    except ValueError:
        reason = "Unknown"
    start_response(f"{head.status} {reason}", head.headers)
    return head.body


class GuardedResponse:
    """A WSGI application that streams a source, guarded, to one request.

        return GuardedResponse(generate(prompt), dialect="openai")(environ, start_response)

    Options are those of AnswerOptions. It can be cancelled, and has its `outcome` at the end. Raises TypeError and
    ValueError for a source that is none, or is spent, as TokenSource does.
    """

    def __init__(
        self,
        source: Producer,
        status: int = 200,
        headers: Iterable[tuple[str, str]] = (),
        *,
        options: AnswerOptions | None = None,
        **named: Unpack[Options],
    ) -> None:
        self.answer = BlockingAnswer(source, status=status, headers=headers, options=options, **named)

    @property
    def outcome(self) -> Outcome | None:
        """How the stream ended; None before."""
        return self.answer.outcome

    def cancel(self, failure: Failure | None = None) -> None:
        """End the stream as `cancelled`. From any thread."""
        self.answer.cancel(failure)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        return send_head(self.answer.begin(environ), start_response)


@overload
def guarded(endpoint: Streaming, /) -> Application: ...
@overload
def guarded(**options: Unpack[Options]) -> Callable[[Streaming], Application]: ...
def guarded(endpoint: Streaming | None = None, /, **named: Unpack[Options]) -> Any:
    """Make a WSGI application of a function of the environ that yields, or that returns something to iterate. Options
    as in AnswerOptions:

        @guarded
        @guarded(dialect="openai", flush=EveryTokens(8))
    """
    guarding = Guarding(AnswerOptions.of(None, named))
    return functools.partial(_wrapped, guarding) if endpoint is None else _wrapped(guarding, endpoint)


def _wrapped(guarding: Guarding, endpoint: Streaming) -> Application:
    if not is_function(endpoint):
        raise TypeError(no_endpoint(endpoint, guarding.decorator))

    def application(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        head = guarding.answer(environ, environ, lambda: endpoint(environ), endpoint, _passes)
        return send_head(head, start_response)

    functools.update_wrapper(application, endpoint)
    del application.__wrapped__  # type: ignore[attr-defined]
    return application


def _passes(result: Any) -> bool:
    return False


class StreamGuard(ThreadGuard):
    """The application's object, for WSGI: `authorize(environ, action)` is given the environ, on a thread."""

    @overload
    def stream(self, endpoint: Streaming, /) -> Application: ...
    @overload
    def stream(self, /, **options: Unpack[StreamNames]) -> Callable[[Streaming], Application]: ...
    def stream(self, endpoint: Streaming | None = None, /, **named: Unpack[StreamNames]) -> Any:
        """Guard a function of the environ as `guarded` does, into the log. Options as in AnswerOptions and
        StreamOptions. A function that returns its source is called only for a request that starts a stream."""
        return logged_endpoint(self, endpoint, named, lambda view, both: _wrapped(Logging(self, both), view))

    def response(
        self,
        environ: Environ,
        source: Producer,
        status: int = 200,
        headers: Iterable[tuple[str, str]] = (),
        **named: Unpack[StreamNames],
    ) -> Application:
        """The answer of an application that was called already: `source` is opened only if the request starts a
        stream."""
        both = StreamOptions.split(named)

        def application(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
            head = logged_head(self, environ, environ, source, both=both, status=status, headers=headers)
            return send_head(head, start_response)

        return application

    def install(
        self,
        app: Application,
        path: str = "/streams",
        *,
        by_id: bool = True,
        close_log: bool = True,
        **named: Unpack[Options],
    ) -> Application:
        """`app` with the endpoints at `path` in front of it, `drained` with this guard. `by_id`: whether `<path>/<sid>`
        is served. At the process's end the streams that are generated here are let go of, and the log is closed, unless
        `close_log` is False. Options are how streams are served there. Raises RuntimeError for a guard that is
        installed already; TypeError and ValueError for what is no path."""
        endpoints = self._endpoints(path, by_id=by_id, close_log=close_log, **named)

        def application(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
            asked = environ.get("PATH_INFO", "")
            if asked != path and not asked.startswith(path + "/"):
                return app(environ, start_response)
            return send_head(bridged(endpoints, environ, environ, self, endpoints.options), start_response)

        return drained(application, self)
