"""What an application itself said of its answer's end, under a BaseHTTPMiddleware inside of GuardMiddleware.

That middleware runs the application in a task of its own and ends the body as soon as this task is over, however it
went: also where it was cancelled, which Starlette passes on to nobody. So a layer of ours stands directly inside of
each one that can be found: in the `app` of a layer, in the stack of an application, and in its routes. What that layer
saw stands in the scope, for the GuardMiddleware outside.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import attrs

from streamguard.adapters.seal import ASGIApp, Message, Receive, Scope, Send

__all__ = ["InnerEnds", "look_inside"]

_KEY: Final = "streamguard.inner_ends"
_INNER: Final = ("app", "router", "middleware_stack")  # where an application, a layer and a route keep what is inside
_MAX_FOUND: Final = 100_000  # objects looked at; a large application has a few thousand routes


@attrs.define(eq=False)
class _Answer:
    """One answer, as it came out of the application inside of one middleware."""

    begun: bool = False
    ended: bool = False  # its last part was sent
    over: bool = False  # the application has returned, or was cancelled: no last part will come
    raised: bool = False  # it has raised what that middleware raises too, behind the end


class InnerEnds:
    """The answers of one request: one for each such middleware that it came through."""

    def __init__(self, scope: Scope) -> None:
        self._answers: list[_Answer] = []
        scope[_KEY] = self._answers  # one list, though a layer may copy the scope

    @property
    def sent(self) -> bool:
        """Whether every application inside has sent its own end: what it raises now, it raises behind that."""
        begun = [answer for answer in self._answers if answer.begun]
        return bool(begun) and all(answer.ended for answer in begun)

    @property
    def missing(self) -> bool:
        """Whether one of them is over, has not sent its end, and raised nothing that would say so."""
        return any(answer.begun and answer.over and not answer.ended for answer in self._answers)


class _Inside:
    """Pure ASGI, directly inside of a BaseHTTPMiddleware, and else the application that stands there."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["app"], name)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answers: list[_Answer] | None = scope.get(_KEY)
        if scope["type"] != "http" or answers is None:
            await self.app(scope, receive, send)
            return
        answer = _Answer()
        answers.append(answer)

        def seen(message: Message) -> Any:  # no coroutine: it would be one more at every token
            kind = message["type"]
            if kind == "http.response.start":
                answer.begun = True
            elif kind == "http.response.pathsend" or (kind == "http.response.body" and not message.get("more_body")):
                answer.ended = True
            return send(message)

        try:
            await self.app(scope, receive, seen)
        except Exception:
            answer.raised = True
            raise
        finally:
            answer.over = not answer.raised


def look_inside(app: ASGIApp) -> None:
    """Stand inside of every BaseHTTPMiddleware of the application that is not looked into yet."""
    base = getattr(sys.modules.get("starlette.middleware.base"), "BaseHTTPMiddleware", None)
    if base is None:
        return
    seen: set[int] = set()
    waiting: list[Any] = [app]
    while waiting and len(seen) < _MAX_FOUND:
        found = waiting.pop()
        fields = getattr(found, "__dict__", None)
        if id(found) in seen or isinstance(found, type) or not isinstance(fields, dict):
            continue
        seen.add(id(found))
        if fields.get("middleware_stack", found) is None and hasattr(found, "build_middleware_stack"):
            found.middleware_stack = found.build_middleware_stack()  # as it would at the call that follows
        if isinstance(found, base) and not isinstance(found.app, _Inside):
            found.app = _Inside(found.app)
        waiting += [fields[name] for name in _INNER if name in fields]
        waiting += fields.get("routes") or ()
