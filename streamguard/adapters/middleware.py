"""GuardMiddleware: a guard round an ASGI application that streams already, whose endpoints stay as they are.

    app = GuardMiddleware(app)                    # looks: changes no byte, and counts what it would refuse
    app = GuardMiddleware(app, mode="guard")      # guards: server-sent events, and one JSON object a line

What an answer is, its first message tells (`middleware_judge`). One that is no stream passes untouched, and so does one
that is guarded already, and every HEAD, websocket and lifespan. Server-sent events become the source of a guarded
answer of dialect `raw` (`middleware_body`): everything that a guarded endpoint has, they have. JSON lines have no place
for a cursor: they pass as they are, and have the rest (`middleware_lines`).

It is a seal too. Stand it outermost.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, Literal

import attrs
from typing_extensions import Unpack

from streamguard.adapters.admitting import until_gone
from streamguard.adapters.asgi import refuse, request_facts
from streamguard.adapters.endpoints import Endpoints, RootedSeal, require_path
from streamguard.adapters.inner_ends import look_inside
from streamguard.adapters.logged import Body, LoggedAnswer, make_claim, with_slot
from streamguard.adapters.middleware_body import SharedReceive, no_body
from streamguard.adapters.middleware_exchange import Guarded, Observed, Serving
from streamguard.adapters.middleware_report import Report
from streamguard.adapters.options import AnswerOptions, Options, StreamNames, StreamOptions
from streamguard.adapters.readiness import Readiness
from streamguard.adapters.same_key import LEFT, SameKey, nobody_waits
from streamguard.adapters.seal import ASGIApp, Message, Receive, Scope, SealMiddleware, Send, is_exposed
from streamguard.app import StreamGuard
from streamguard.core.arguments import shown
from streamguard.core.dialect import Raw
from streamguard.core.dialect.provider import EndRule
from streamguard.core.exchange import RequestFacts, refusal
from streamguard.core.negotiate import parse_key
from streamguard.runtime.drain import Draining

__all__ = ["GuardMiddleware", "Report"]

logger = logging.getLogger("streamguard")

Rule = Callable[[Scope], "Raw | None"]
Asks = Callable[[Scope, Body], Awaitable[bool]]

_FRAMEWORK: Final = ("starlette", "fastapi")  # whose applications have layers of their own, some of them outermost
# What a later connection has, too.
_RESUMED: Final = ("timing", "wire", "compress", "window", "abort", "unsealed", "http10")
_NOT_OUTERMOST: Final = (
    "GuardMiddleware is not outermost: %s outside of it, and what is done there to an answer is not guarded. Add it "
    "last, after every other add_middleware, or wrap the whole application: app = GuardMiddleware(app)"
)
_REMEDY: Final = (
    "Add GuardMiddleware last, after every other add_middleware, or wrap the whole application: "
    "app = GuardMiddleware(app)."
)
_OTHER_GUARD: Final = (
    "an endpoint of this application has a StreamGuard of its own, and requests that bear its cursors are refused "
    "here: give it to the middleware too, GuardMiddleware(app, guard=guard)"
)


_OWN_DRAIN: Final = (
    "sse-starlette ends its own streams as soon as the process is told to go, so that GuardMiddleware cannot let them "
    "finish, and they fail as `unended`. Where the application is made, add: "
    "from sse_starlette.sse import AppStatus; AppStatus.disable_automatic_graceful_drain()"
)


class GuardMiddleware:
    """Pure ASGI. `mode`: `report` looks, `guard` guards. `guard` is a StreamGuard, in whose log streams then outlive
    their connections; where the application has not installed it, its endpoints are served at `path`. `ready` is a path
    that answers 200, and 503 as soon as the process is told to go.

    `end` and `profile` are those of `Raw`; `known`, the default, asks the provider's marker of a stream whose API is
    known, and takes the application's own end for the end of any other. `rule(scope)` answers another Raw for a
    request, or None to leave that request alone. `asks(scope, read)` answers whether a request asks for a stream, by
    its body perhaps, which `read` reads: then a guard is asked who may, and for a slot, before the application is
    called, and not only at the head of its answer. `report` is a Report to count in. Options are those of
    AnswerOptions, and with a guard of StreamOptions; `grace` and `on_sigterm` those of SealMiddleware, where there is
    no guard.

    Raises TypeError and ValueError for an argument that is of another kind, or has no meaning here.
    """

    def __init__(
        self,
        app: ASGIApp,
        guard: StreamGuard | None = None,
        mode: Literal["report", "guard"] = "report",
        *,
        end: EndRule = "known",
        profile: str = "openai",
        rule: Rule | None = None,
        asks: Asks | None = None,
        report: Report | None = None,
        path: str = "/streams",
        ready: str | None = None,
        grace: float | None = None,
        on_sigterm: bool = True,
        **named: Unpack[StreamNames],
    ) -> None:
        if mode not in ("report", "guard"):
            raise ValueError(f"mode is 'report' or 'guard', not {mode!r}")
        if guard is not None and not isinstance(guard, StreamGuard):
            raise TypeError(f"guard is a StreamGuard, not {shown(guard)}")
        require_path(path)
        if ready is not None:
            require_path(ready)
        for name in ("dialect", "flush"):
            if name in named:
                raise TypeError(f"{name} is not the middleware's to choose: events stay as the application made them")
        self.app = app
        self.mode = mode
        self.guard = guard
        self.report = Report() if report is None else report
        self.path = path
        self._ready_at = ready
        self._rule = Raw(end, profile)
        self._rule_of = rule
        self._asks = asks
        self._options = _options(guard, named)
        resumed: Any = {name: value for name, value in named.items() if name in _RESUMED}
        self._resumed: Options = resumed  # how the endpoints serve
        draining: Any = {} if grace is None else {"grace": grace}
        self._seal = SealMiddleware(self._inside, on_sigterm=on_sigterm, **draining)
        self._seal.remedy = _REMEDY
        self._endpoints: Endpoints | None = None
        self._prepared = False
        self._looked = False  # inside, for what ends bodies there
        self._told: set[str] = set()  # what was said in the log, each once
        self._keys = SameKey()

    @property
    def draining(self) -> Draining:
        """What takes no new streams once the process goes: the guard, where there is one, else the seal's. `ready` says
        so, and `drain()` begins it by hand."""
        return self._seal.draining if self.guard is None or self.mode == "report" else self.guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._prepared:
            self._prepare()
        if scope["type"] == "lifespan":
            receive, send = self._watched(scope, receive), self._started(send)
        await self._seal(scope, receive, send)

    def _prepare(self) -> None:
        """At the first call: an application that installs the guard itself has done so by now."""
        self._prepared = True
        if self.mode == "report" or self.guard is None:
            return
        if self.guard.path is not None:
            self._seal.draining = self.guard
            return
        self._endpoints = Endpoints(self.guard, self.path, request_of=self.guard.request_of, **self._resumed)
        self._seal = RootedSeal(self._inside, self.guard)
        self._seal.remedy = _REMEDY

    def _watched(self, scope: Scope, receive: Receive) -> Receive:
        async def watched() -> Message:
            message = await receive()
            if message["type"] == "lifespan.startup":
                outside = _outside(scope.get("app"), self)
                if outside:
                    self._tell(_NOT_OUTERMOST, f"{', '.join(outside)} stand{'' if len(outside) > 1 else 's'}")
            elif message["type"] == "lifespan.shutdown":
                logger.info("%s %s", "guarded" if self.mode == "guard" else "looked at", self.report)
            return message

        return watched

    def _started(self, send: Send) -> Send:
        async def started(message: Message) -> None:
            if message["type"] == "lifespan.startup.complete":  # behind what the application itself does at its start
                self._look_at_drains()
            await send(message)

        return started

    def _look_at_drains(self) -> None:
        """Say, once, whether another library ends streams where ours would drain. It is not ours to switch off."""
        status = getattr(sys.modules.get("sse_starlette.sse"), "AppStatus", None)
        if self.mode == "guard" and getattr(status, "enable_automatic_graceful_drain", False):
            self._tell(_OWN_DRAIN, level=logging.WARNING)

    async def _inside(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What stands inside of the seal."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if not self._looked:  # behind the start, at which applications make their layers
            self._looked = True
            look_inside(self.app)
        if is_exposed(scope):
            self._tell(_NOT_OUTERMOST, "a middleware of `@app.middleware('http')` or BaseHTTPMiddleware stands")
        if self._ready_at is not None and _path(scope) == self._ready_at:
            await Readiness(self.draining)(scope, receive, send)
            return
        guard, facts = self.guard, request_facts(scope)
        preflight = facts.method == "OPTIONS" and "access-control-request-method" in facts.headers
        if self.mode == "guard" and guard is not None and f"{_path(scope)}/".startswith(f"{guard.path}/"):
            # Who may read across origins is the application's to say, also of addresses that it does not have.
            await (self.app if preflight or self._endpoints is None else self._endpoints)(scope, receive, send)
            return
        rule = self._rule if self._rule_of is None else self._rule_of(scope)
        if rule is None or facts.method == "HEAD" or preflight:
            await self.app(scope, receive, send)
        elif self.mode == "report":
            await Observed(self.report, rule, scope, receive, send).run(self.app)
        else:
            self._look_at_drains()  # where the server has no lifespans
            await self._guarded(rule, facts, SharedReceive(receive), scope, send)

    async def _guarded(
        self, rule: Raw, facts: RequestFacts, receive: SharedReceive, scope: Scope, send: Send
    ) -> None:
        stream, answer = self._options
        serving = Serving(self.report, rule, self.guard, (stream, attrs.evolve(answer, dialect=rule)))
        if self.guard is None:
            refused = refusal(facts)
            if refused is not None:  # a cursor is never a start
                await refuse(refused, scope, receive.driver, send, answer.timing.linger)
                return
        try:
            if self.guard is None or not await self._claimed(serving, facts, receive, scope, send):
                await self._passed(serving, scope, receive, send)
        finally:
            serving.begun()

    async def _passed(self, serving: Serving, scope: Scope, receive: SharedReceive, send: Send) -> None:
        """Let the application answer."""
        exchange = Guarded(serving, scope, receive, send if serving.begun is nobody_waits else _telling(serving, send))
        try:
            await exchange.run(self.app)
        finally:
            if serving.claim is not None and not exchange.streams:
                serving.claim.let_go()
        if exchange.resumes_elsewhere and self.guard is None:
            self._tell(_OTHER_GUARD)

    async def _claimed(
        self, serving: Serving, facts: RequestFacts, receive: SharedReceive, scope: Scope, send: Send
    ) -> bool:
        """Answer a request that needs no application: one that resumes, repeats another, or is refused. Whether it was
        one; any other has its claim with it, if it had to be asked for."""
        guard = self.guard
        assert guard is not None
        body: bytes | None = None

        async def read() -> bytes:
            nonlocal body
            if body is None:  # an empty one has been read too: to read on would be to wait for the client to leave
                body = await receive.body()
            return body

        resumes = facts.cursor is not None
        asks = not resumes and self._asks is not None and await self._asks(scope, read)
        if not resumes and not asks and not _has_key(facts):
            return False
        request = guard.request_of(scope, no_body)
        gone = functools.partial(until_gone, receive.driver)
        claim, serving.begun = await self._keys.claim(lambda: make_claim(guard, request, scope, read), gone)
        if asks:
            claim = await with_slot(guard, claim, request, receive.driver, read)
        # Where nothing says that it asks for a stream, what is refused may be none: its key is the application's own.
        if resumes or claim.found is not None or claim.refused is LEFT or (asks and claim.refused is not None):
            await LoggedAnswer(guard, _nothing, claim=claim, body=read, options=serving.options)(
                scope, receive.driver, send
            )
            return True
        serving.claim = claim
        return False

    def _tell(self, text: str, *what: str, level: int = logging.ERROR) -> None:
        if text not in self._told:
            self._told.add(text)
            logger.log(level, text, *what)


def _telling(serving: Serving, send: Send) -> Send:
    """`send`, for a request behind whose head others wait: a stream is in the log by then, under its key."""

    def telling(message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            serving.begun()
        return send(message)

    return telling


def _options(guard: StreamGuard | None, named: StreamNames) -> tuple[StreamOptions, AnswerOptions]:
    given: Any = {**named, "dialect": Raw()}
    return (StreamOptions(), AnswerOptions.of(None, given)) if guard is None else StreamOptions.split(given)


def _outside(app: Any, own: object) -> list[str]:
    """The middlewares that somebody added to a Starlette application outside of `own`."""
    layer, names = getattr(app, "middleware_stack", None), []
    added = [getattr(entry, "cls", None) for entry in getattr(app, "user_middleware", ())]
    while layer is not None and layer is not own:
        built_in = type(layer).__module__.partition(".")[0] in _FRAMEWORK and type(layer) not in added
        if not built_in and not isinstance(layer, SealMiddleware):
            names.append(type(layer).__name__)
        layer = getattr(layer, "app", None)
    return [] if layer is None else names


def _has_key(facts: RequestFacts) -> bool:
    """Whether a request may be the repetition of another."""
    try:
        return bool(facts.headers.get("idempotency-key") or parse_key(facts.query))
    except ValueError:
        return True  # a key that is none: the claim says so


def _path(scope: Scope) -> str:
    """The request's, below where the application is mounted."""
    asked, root = str(scope["path"]), str(scope.get("root_path", ""))
    return asked[len(root) :] if root and asked.startswith(root + "/") else asked


def _nothing() -> AsyncIterator[bytes]:
    raise AssertionError("the source of an answer that starts nothing was asked for")
