"""What observers are told that only an adapter knows: what a request is called, that it is refused, and whether an
abort of its answer would reach the reader."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from streamguard.adapters.seal import Receive, Scope, Send, is_sealed
from streamguard.core.arguments import one_line
from streamguard.core.exchange import Refusal, RequestFacts
from streamguard.observe.hooks import Observers, Refused, RequestLabels
from streamguard.runtime.seen import UNSEEN, Unseen, labels_of, seen_by
from streamguard.runtime.sink import Stage
from streamguard.runtime.timing import Timing

__all__ = ["BY_PATH", "asked_of", "hop_of", "request_labels", "tell_refused", "watched"]

BY_PATH: Final = "streamguard.by_path"  # set in a scope: who serves it has no routes, and names requests by paths
_LONGEST: Final = 200  # characters of a path that are logged
_SID: Final = re.compile(r"(?<=/)[A-Za-z0-9_-]{22}(?![^/])")  # a segment of a path that is as long as one


def request_labels(facts: RequestFacts, scope: Mapping[str, Any]) -> RequestLabels:
    """What a request is called. The route is told where the framework tells it as the application wrote it: an address
    may hold names. The path is told by who has no routes (BY_PATH)."""
    return labels_of(facts.headers, _route(scope), _path(facts) if scope.get(BY_PATH) else None)


def asked_of(facts: RequestFacts, scope: Mapping[str, Any]) -> str:
    """What was asked for, for the log of the process: the method, and the route where the framework tells it, else the
    path. Without the query, which may hold anything, and without a stream's id, which grants access to it."""
    route = _route(scope)
    return f"{facts.method} {_path(facts) if route is None else _SID.sub('…', route)}"


def _path(facts: RequestFacts) -> str:
    return one_line(_SID.sub("…", facts.path))[:_LONGEST]  # a path may have line ends in it


def _route(scope: Mapping[str, Any]) -> str | None:
    route = getattr(scope.get("route"), "path", None)
    return route if isinstance(route, str) else None


def hop_of(facts: RequestFacts, scope: Scope, receive: Receive, send: Send) -> str | None:
    """What is known to hide an abort from the reader; None where nothing is. An answer that is held has no scope, and
    becomes an error that shows."""
    if not scope:
        return None
    if facts.http_version == "1.0":
        return "http10"
    return None if is_sealed(scope, receive, send) else "base_middleware"


def watched(
    observers: Observers | None,
    stage: Stage[Any],
    timing: Timing,
    facts: RequestFacts,
    asgi: tuple[Scope, Receive, Send],
    origin: str | None = None,
) -> Unseen:
    """What the driver of one connection tells; nothing is found out where nobody observes."""
    if observers is None:
        return UNSEEN
    return seen_by(observers, stage, timing.clock, request_labels(facts, asgi[0]), hop_of(facts, *asgi), origin)


def tell_refused(
    observers: Observers | None, refused: Refusal, facts: RequestFacts, scope: Mapping[str, Any]
) -> None:
    """A request is answered with `refused`. One without a code says no more than that there is nothing to do."""
    if observers is not None and refused.code:
        observers.tell(Refused(refused.code, refused.status, request_labels(facts, scope)))
