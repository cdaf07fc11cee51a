"""What the adapters for threads share: endpoints that are guarded, and a guard whose streams run in the loop thread.

    guarding.answer(environ, request, lambda: endpoint(request), passes=is_response)

First comes what the request may have, so that an endpoint that starts a model is called only for a request that starts
a stream; then its source; then the answer's head, which the framework sends.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import logging
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Final

import anyio
import attrs

from streamguard.adapters.blocking import BlockingAnswer, Head
from streamguard.adapters.bridge import Bridge
from streamguard.adapters.endpoints import Endpoints
from streamguard.adapters.environ import Environ, facts_of, gone_by, keep_body, scope_of
from streamguard.adapters.logged import Claim, LoggedAnswer, make_claim, with_slot
from streamguard.adapters.options import AnswerOptions, StreamOptions
from streamguard.adapters.reading import ROOT
from streamguard.adapters.returned import refuse_plain
from streamguard.adapters.seal import Message
from streamguard.adapters.shutdown import DRAIN, learn
from streamguard.app import Action, Authorize
from streamguard.app import StreamGuard as BaseGuard
from streamguard.core.exchange import Refusal
from streamguard.core.unstreamed import refuse_unstreamed
from streamguard.runtime.blocking import LOOK
from streamguard.runtime.configured import principal_of
from streamguard.runtime.drain import GRACE, Draining
from streamguard.runtime.loopthread import loop_thread, on_caller
from streamguard.runtime.source import Producer

__all__ = ["REQUEST", "Guarding", "Logging", "Passes", "ThreadGuard", "bridged", "drained", "logged_head"]

logger = logging.getLogger("streamguard")

REQUEST: Final = "streamguard.request"  # in a scope: what `authorize` is given
_LAST: Final = 5.0  # seconds that the streams of a process are given at its end
_ELSEWHERE: Final = "it from another application"  # what does not stream, of WSGI

Application = Callable[[Any, Any], Iterable[bytes]]
Passes = Callable[[Any], bool]
Dress = Callable[[Any], Any]


class Guarding:
    """What a guarded endpoint's request is answered with, on a thread. `dress` is what is done to a source before it is
    taken: the framework's own context around it; `whole` is what to return for an answer that does not stream."""

    decorator = "@guarded"

    def __init__(self, options: AnswerOptions, dress: Dress = lambda source: source, whole: str = _ELSEWHERE) -> None:
        self.options = options
        self.dress = dress
        self.whole = whole

    def answer(self, environ: Environ, request: Any, endpoint: Callable[[], Any], name: Any, passes: Passes) -> Any:
        """The Head of the answer, or what the endpoint returned, where that `passes` as a response of its own."""
        answer = BlockingAnswer(options=self.options)
        answer.request = request
        head = answer.look(environ)
        if head is not None:
            return head
        try:
            source = endpoint()
            if passes(source):
                answer.finish()
                return source
            refuse_plain(name, source, self.whole)
            answer.give(self.dress(source))
            answer.refused = self.unasked(environ)
        except BaseException:
            answer.finish()
            raise
        return answer.begin(environ)

    def unasked(self, environ: Environ) -> Refusal | None:
        """What the body says against a stream; of what an endpoint has read itself, nothing is known."""
        return refuse_unstreamed(facts_of(environ), self.options.dialect.name, keep_body(environ))


class Logging(Guarding):
    """The same into a guard's log."""

    decorator = "@guard.stream"

    def __init__(
        self,
        guard: ThreadGuard,
        both: tuple[StreamOptions, AnswerOptions],
        dress: Dress = lambda source: source,
        whole: str = _ELSEWHERE,
    ) -> None:
        super().__init__(both[1], dress, whole)
        self.guard = guard
        self.both = both

    def answer(self, environ: Environ, request: Any, endpoint: Callable[[], Any], name: Any, passes: Passes) -> Any:
        body, gone = keep_body(environ), gone_by(environ)
        claim: Claim = loop_thread().wait(self._claim, environ, request, body, gone)
        source: Any = _nothing
        if claim.starts:
            try:
                source = endpoint()
                if passes(source):
                    _let_go(claim)
                    return source
                refuse_plain(name, source, self.whole)
                source = self.dress(source)
            except BaseException:
                _let_go(claim)
                raise
        more: Any = {"claim": claim, "refused": self.unasked(environ)}
        return logged_head(self.guard, environ, request, source, both=self.both, **more)

    async def _claim(
        self, environ: Environ, request: Any, body: bytes, gone: Callable[[], bool] | None
    ) -> Claim:
        async def read() -> bytes:
            return body

        async def receive() -> Message:
            while gone is None or not gone():  # noqa: ASYNC110  # the server's socket can only be looked at
                await anyio.sleep(LOOK)
            return {"type": "http.disconnect"}

        claim = await make_claim(self.guard, request, _scope(environ, request, self.guard), read)
        return await with_slot(self.guard, claim, request, receive, read)


def _let_go(claim: Claim) -> None:
    """Release its slot, if it has one, where slots are counted."""
    loop_thread().call(claim.let_go)


def _nothing() -> Iterable[str]:
    raise AssertionError("the source of an answer that starts nothing was asked for")


def _scope(environ: Environ, request: Any, guard: BaseGuard) -> dict[str, Any]:
    """A request's scope, as the seal of an ASGI application would hand it on."""
    scope = scope_of(environ, facts_of(environ))
    scope[ROOT] = scope["root_path"]
    scope[DRAIN] = guard.draining
    scope[REQUEST] = request
    return scope


def logged_head(
    guard: ThreadGuard,
    environ: Environ,
    request: Any,
    source: Producer,
    *,
    both: tuple[StreamOptions, AnswerOptions],
    claim: Claim | None = None,
    refused: Refusal | None = None,
    status: int = 200,
    headers: Iterable[tuple[str, str]] = (),
) -> Head:
    """The Head of an answer from a guard's log."""
    asked: Any = {"request": request, "body": keep_body(environ), "claim": claim, "options": both}
    answer = LoggedAnswer(guard, source, status=status, headers=headers, **asked)
    answer.refused = refused
    return bridged(answer, environ, request, guard, both[1])


def bridged(app: Any, environ: Environ, request: Any, guard: ThreadGuard, options: AnswerOptions) -> Head:
    """The Head of what an ASGI application of this library answers."""
    guard.threaded = True
    bridge = Bridge(app, environ, write=options.timing.write)
    return bridge.begin(_scope(environ, request, guard))


@attrs.define(eq=False)
class ThreadGuard(BaseGuard):
    """A guard whose streams run in the process's loop thread, whoever serves their readers."""

    threaded: bool = attrs.field(init=False, default=False)  # once they do: a framework may have a loop of its own

    async def principal(self, request: Any, action: Action, by: Authorize | None = None) -> str | None:
        # Not on the loop, where it would stop every stream, and where ORMs refuse to work.
        found = await on_caller(by or self.authorize, request, action)
        return principal_of(await found if inspect.isawaitable(found) else found)

    def _endpoints(self, path: str, *, by_id: bool, close_log: bool, **named: Any) -> Endpoints:
        """The endpoints of all streams, which are installed once. At the process's end its streams are let go of."""
        if self.path is not None:
            raise RuntimeError(f"this guard is installed already, at {self.path}")
        endpoints = Endpoints(self, path, by_id=by_id, request_of=lambda scope, receive: scope[REQUEST], **named)
        if self.on_sigterm:
            learn(self.draining)
        atexit.register(functools.partial(_at_exit, weakref.ref(self), close_log))
        return endpoints

    def close(self, *, close_log: bool = True) -> None:
        """Let go of every stream that is generated here, then close the log; at a process's end, without you."""
        loop_thread().wait(functools.partial(self.aclose, close_log=close_log))


def drained(app: Application, guard: Draining | None = None, *, grace: float = GRACE) -> Application:
    """`app`, a WSGI application, whose streams are ended in order when the process is told to go: new ones are refused
    from then on, and those that run have `grace` seconds to end by themselves. With a `guard` it is that one's drain,
    and grace. To be called where applications are loaded, on the main thread: elsewhere no signal can be learned of."""
    draining = Draining(grace=grace) if guard is None else guard
    if draining.on_sigterm:
        learn(draining.draining)

    def application(environ: Environ, start_response: Any) -> Iterable[bytes]:
        environ.setdefault(DRAIN, draining.draining)
        return app(environ, start_response)

    return application


def _at_exit(found: weakref.ref[ThreadGuard], close_log: bool) -> None:
    guard = found()
    if guard is None or not guard.threaded:
        return
    future = loop_thread().start(functools.partial(guard.aclose, close_log=close_log))
    try:
        future.result(_LAST)
    except Exception as exc:
        logger.warning("the streams of a process that ends could not be let go of: %r", exc)
