"""The proxy as an ASGI application: what refuses, what guards, and what asks the upstream.

    app = proxy_app(Upstream.parse("http://127.0.0.1:8000"), MemoryLog())

Who asks is whom the principal's header names, which the proxy in front, or the application's own key, must vouch for.
What is kept of it is a digest: a log in Redis is no place for credentials.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import attrs

from streamguard.adapters.middleware import GuardMiddleware
from streamguard.adapters.seal import Scope
from streamguard.app import Action, StreamGuard, anyone_with_the_id
from streamguard.core.compress import Gzip
from streamguard.core.dialect import Raw
from streamguard.core.dialect.provider import EndRule
from streamguard.log.base import StreamLog
from streamguard.observe.hooks import Observer, Observers, observers_of
from streamguard.observe.live import Live
from streamguard.proxy.asking import asks_for_a_stream
from streamguard.proxy.front import Front
from streamguard.proxy.headers import values
from streamguard.proxy.pool import Pool
from streamguard.proxy.relay import Relay
from streamguard.proxy.upstream import Upstream
from streamguard.runtime.drain import GRACE
from streamguard.runtime.runs import Detach
from streamguard.runtime.slots import Limits
from streamguard.runtime.timing import Timing

__all__ = ["ProxySettings", "leaving", "proxy_app", "who_by"]

_MEGABYTE: Final = 1024 * 1024


@attrs.frozen(kw_only=True)
class ProxySettings:
    """How a proxy behaves; what the command's options say. Seconds and bytes."""

    principal_header: str | None = None
    end: EndRule = "known"
    profile: str = "openai"
    path: str = "/streams"
    upstream_streams: str | None = None
    ready: str | None = None
    dashboard: str | None = attrs.field(default=None, repr=False)  # the password of the live page
    heartbeat: float | None = 15.0
    stall: float | None = 600.0
    linger: float = 0.25
    detach: float = 60.0
    grace: float = GRACE
    limits: Limits | None = None
    compress: bool = True
    http10: Literal["warn", "buffer", "refuse"] = "warn"
    max_body: int = 64 * _MEGABYTE
    max_head: int = 64 * 1024
    body_silence: float = 60.0
    connect: float = 10.0
    cacert: str | None = None
    on_sigterm: bool = True


def proxy_app(
    upstream: Upstream,
    log: StreamLog,
    settings: ProxySettings | None = None,
    *,
    observe: Observer | Sequence[Observer] | Observers | None = None,
) -> Front:
    """The application. `observe` is an Observer, or several. Raises TypeError where it is none, OSError for a `cacert`
    that cannot be read, ValueError for a password that is short."""
    chosen = ProxySettings() if settings is None else settings
    observers = observers_of(observe)
    if chosen.dashboard is not None:
        observers = Observers((*(observers.members if observers else ()), Live(password=chosen.dashboard)))
    header = chosen.principal_header
    pool = Pool(upstream, connect=chosen.connect, silence=chosen.stall, cacert=chosen.cacert)
    guard = StreamGuard(
        log,
        authorize=anyone_with_the_id if header is None else who_by(header),
        on_disconnect=Detach(grace=chosen.detach),
        limits=chosen.limits,
        grace=chosen.grace,
        on_sigterm=chosen.on_sigterm,
        observe=observers,
    )
    guarded = GuardMiddleware(
        Relay(pool, kept=() if header is None else (header.lower().encode(),), observers=observers),
        guard,
        "guard",
        end=chosen.end,
        profile=chosen.profile,
        rule=None if chosen.upstream_streams is None else leaving(chosen.upstream_streams, chosen),
        path=chosen.path,
        ready=chosen.ready,
        asks=asks_for_a_stream,
        timing=Timing(heartbeat=chosen.heartbeat, stall=chosen.stall, linger=chosen.linger),
        compress=Gzip() if chosen.compress else None,
        http10=chosen.http10,
    )
    return Front(
        guarded,
        max_head=chosen.max_head,
        max_body=chosen.max_body,
        body_silence=chosen.body_silence,
        observers=observers,
    )


def leaving(path: str, settings: ProxySettings) -> Callable[[Scope], Raw | None]:
    """What is asked at `path` and below is the upstream's, which has streams of its own there; all else is guarded."""
    rule = Raw(settings.end, settings.profile)

    def guarded(scope: Scope) -> Raw | None:
        return None if f"{scope['path']}/".startswith(f"{path}/") else rule

    return guarded


def who_by(header: str) -> Callable[[Scope, Action], str | None]:
    """Who asks, by a header's value. Nobody, where it is missing, empty, or there more than once: then two layers could
    take two different ones for the one that counts."""
    name = header.lower().encode()

    def who(scope: Any, action: Action) -> str | None:
        found = values(scope["headers"], name)
        if len(found) != 1 or not found[0].strip():
            return None
        return hashlib.sha256(b"streamguard proxy\n" + found[0].strip()).hexdigest()

    return who
