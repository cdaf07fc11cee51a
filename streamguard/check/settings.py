"""The settings to change: where they depend on what stands in front, by what that says of itself."""

from __future__ import annotations

from typing import Final

from streamguard.check.evidence import Evidence
from streamguard.check.fault import PAGES

__all__ = ["DONE", "GZIP", "LEAVE", "PROXY", "TAIL", "abort", "abort_page", "hold", "idle", "terminal"]

_NGINX: Final = ("nginx", "openresty")

PROXY: Final = "or `streamguard proxy` in front of the server"
TAIL: Final = f"in the endpoint: send what is held before the body ends; @guarded does, {PROXY}"
DONE: Final = (
    "in the server: send the end marker only after a finish reason, never from a `finally`; "
    "in front of one that you cannot change: a guarded relay, which fails such an answer"
)
GZIP: Final = (
    "the layer that compresses: leave event streams out (nginx: gzip off; an application's gzip middleware: exclude "
    "text/event-stream), or let streamguard compress, which flushes every event"
)
LEAVE: Final = (
    "the endpoint: stop the model when the reader is gone (@guarded closes its source); "
    "HAProxy: option abortonclose; nginx: proxy_ignore_client_abort off"
)


def idle(evidence: Evidence) -> str:
    if evidence.front in _NGINX:
        return "nginx: proxy_read_timeout of at least twice the heartbeat; and a heartbeat, which a guarded stream has"
    return (
        "the idle limit of each layer: at least twice the heartbeat (HAProxy: timeout server; nginx: "
        "proxy_read_timeout); and a heartbeat, which a guarded stream has"
    )


def hold(evidence: Evidence) -> str:
    if evidence.front in _NGINX:
        return "nginx: proxy_buffering off, or X-Accel-Buffering: no in the answer; and proxy_http_version 1.1"
    return "response buffering of each layer: off (nginx: proxy_buffering off); ask the server itself to see which"


def terminal(evidence: Evidence) -> str:
    again = "" if len(evidence.runs) > 1 else "; --repeat 5 shows whether answers differ in length"
    if any(run.end is not None and run.end.api == "text" for run in evidence.streams):
        return (
            "in the endpoint: plain text has no place for an end; text/event-stream and JSON lines have; @guarded "
            f"writes them{again}"
        )
    return (
        "in the endpoint: one last event that says so; @guarded writes it "
        f"(a server that never does: --profile), {PROXY}{again}"
    )


def abort(evidence: Evidence) -> str:
    if evidence.http2:
        return (
            "HAProxy: alpn http/1.1 on its bind line (2.6 ends an aborted body cleanly over HTTP/2); "
            "nginx: proxy_http_version 1.1"
        )
    if evidence.front in _NGINX:
        return "nginx: proxy_http_version 1.1 (before 1.29.7 its default is HTTP/1.0, which cannot carry an abort)"
    return "HTTP/1.1 between layers (nginx: proxy_http_version 1.1); in the application: SealMiddleware, outermost"


def abort_page(evidence: Evidence) -> str:
    return PAGES["proxy"] + ("#haproxy" if evidence.http2 else "#nginx" if evidence.front in _NGINX else "")
