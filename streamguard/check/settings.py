"""The settings to change: where they depend on what stands in front, by what that says of itself."""

from __future__ import annotations

from typing import Final

from streamguard.check.evidence import Evidence
from streamguard.check.fault import PAGES

__all__ = [
    "DONE", "GZIP", "LEAVE", "TAIL", "abort", "abort_page", "guard", "hold", "http10", "idle", "tail", "tail_page",
    "terminal",
]  # fmt: skip

_PROXY: Final = "or `streamguard proxy` in front of the server"
TAIL: Final = f"in the endpoint: send what is held before the body ends; @guarded does, {_PROXY}"
_HTTP_1_1: Final = "nginx: proxy_http_version 1.1 (before 1.29.7 its default is HTTP/1.0, which cannot carry an abort)"
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
    if evidence.nginx:
        return "nginx: proxy_read_timeout of at least twice the heartbeat; and a heartbeat, which a guarded stream has"
    return (
        "the idle limit of each layer: at least twice the heartbeat (HAProxy: timeout server; nginx: "
        "proxy_read_timeout); and a heartbeat, which a guarded stream has"
    )


def hold(evidence: Evidence) -> str:
    if evidence.nginx:
        return (
            "nginx: either proxy_buffering off, or the header X-Accel-Buffering: no in the answer; beside it, in any "
            "case, proxy_http_version 1.1, so that a cut answer does not look whole"
        )
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
        f"(a server that never does: --profile), {_PROXY}{again}"
    )


def abort(evidence: Evidence) -> str:
    if evidence.http2:
        return (
            "HAProxy: alpn http/1.1 on its bind line (2.6 ends an aborted body cleanly over HTTP/2); "
            "nginx: proxy_http_version 1.1"
        )
    if evidence.nginx:
        return _HTTP_1_1
    return "HTTP/1.1 between layers (nginx: proxy_http_version 1.1); in the application: SealMiddleware, outermost"


def abort_page(evidence: Evidence) -> str:
    return PAGES["proxy"] + ("#haproxy" if evidence.http2 else "#nginx" if evidence.nginx else "")


def http10(evidence: Evidence) -> str:
    return f"{'' if evidence.nginx else 'the layer that asks the server: HTTP/1.1; '}{_HTTP_1_1}"


def _may_be_a_crash(evidence: Evidence) -> bool:
    """Whether what looks like a lost tail may be a server that broke off, which nginx then made a clean end."""
    return evidence.nginx and not any(run.guarded for run in evidence.streams)


def tail(evidence: Evidence) -> str:
    if not _may_be_a_crash(evidence):
        return TAIL
    return f"{_HTTP_1_1}, by which a server that breaks off shows as a cut; if it does not break off, {TAIL}"


def tail_page(evidence: Evidence) -> str:
    return PAGES["proxy"] + "#nginx" if _may_be_a_crash(evidence) else PAGES["convert"]


def guard(evidence: Evidence) -> str:
    lines = any(run.end is not None and run.end.api == "lines of JSON" for run in evidence.streams)
    return "@guarded on the endpoint" if lines else f"@guarded on the endpoint, {_PROXY}"
