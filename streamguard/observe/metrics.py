"""Every metric, as data: what it is called, what moves it, and how it is kept. No back end is imported here.

The back ends, the reference page, the alerts and the dashboard are all made from `METRICS`. Names are those of
Prometheus: base units, `_total` behind a counter. Every label has a bounded set of values, which stands here too: never
an id, an address, or a text of the application's. A failure's code that is not the library's own is `own`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Final, Literal

import attrs

__all__ = ["CAUSES", "LEVELS", "METRICS", "OWN", "PREFIX", "REFUSALS", "STATUSES", "Metric", "bounded"]

PREFIX: Final = "streamguard_"
OWN: Final = "own"  # for whatever the application named

Kind = Literal["counter", "gauge", "histogram"]
Level = Literal["connection", "request", "token", "system"]
# How a gauge of several processes is read as one: prometheus_client's names.
Across = Literal["livesum", "livemax"]

PARTS: Final = ("direct", "producer", "reader")
STATUSES: Final = ("complete", "failed", "cancelled", "stalled", "shutdown", "gone", "slow", "parted")
CAUSES: Final = (
    "", "cancelled", "diverged", "evicted", "field_refused", "finish_conflict", "generation_aborted", "gone",
    "internal", "item_too_large", "log", "lost", "not_serialisable", "policy_error", "producer_lost", "replaced",
    "rotate", "shutdown", "slow", "source_error", "stalled", "text_after_finish", "unended", "unproven_end",
    "unsupported_item", "upstream_broke", "upstream_error", "upstream_format", "upstream_silent", "upstream_status",
    "upstream_truncated", "upstream_unreachable", OWN,
)  # fmt: skip
REFUSALS: Final = (
    "bad_framing", "bad_key", "bad_request", "bad_target", "body_too_large", "body_too_slow", "busy", "ended",
    "forbidden", "full", "head_too_large", "http_1_0", "key_reused", "left", "log_lost", "log_unavailable",
    "method_not_allowed", "misfit", "no_stream", "no_such_endpoint", "not_here", "not_implemented", "not_json",
    "shutdown", "stream_required", "too_large", "trimmed", "unknown_stream", "unsealed", "upstream_broke",
    "upstream_silent", "upstream_unreachable", "waited_too_long", "weak_key", OWN,
)  # fmt: skip

LEGS: Final = ("generated", "buffered", "held", "encoded", "appended", "read", "credit", "sent")

_QUICK: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_FIRST: Final = (0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 6.0, 12.0, 25.0, 60.0)
_LONG: Final = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)


@attrs.frozen
class Metric:
    """One metric. `labels` are its labels, each with all the values that it can have. `known` says that all of their
    combinations are there from the start, as zero; `begins` are those that are, where not all could be. Else no alert
    would see the first fault: to Prometheus a series that begins above zero has not risen. `across` is how a gauge of
    several processes is read as one."""

    name: str
    kind: Kind
    level: Level
    help: str
    labels: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)
    unit: str = ""
    buckets: tuple[float, ...] = ()
    across: Across | None = None
    known: bool = False
    begins: tuple[tuple[str, ...], ...] = ()

    @property
    def initial(self) -> tuple[tuple[str, ...], ...]:
        """The values of the labels, in their order, of the series that are there from the start."""
        return tuple(itertools.product(*self.labels.values())) if self.known else self.begins


# How a stream can end, of all that the labels allow.
_NOT_FAILED: Final = ("", "cancelled", "gone", "replaced", "rotate", "shutdown", "slow", "stalled")
_ENDS: Final = (
    ("complete", ""),
    *((each, each) for each in ("cancelled", "gone", "shutdown", "slow", "stalled")),
    *(("cancelled", each) for each in ("gone", "evicted", OWN)),
    *(("failed", cause) for cause in CAUSES if cause not in _NOT_FAILED),
)
_READ: Final = (  # which was told the end, and not why, or was not there for it
    *((each, "") for each in ("complete", "failed", "cancelled", "stalled", "shutdown")),
    *(("parted", each) for each in ("gone", "slow")),
)

_PART: Final = {"part": PARTS}
_SOURCED: Final = {"part": PARTS[:2]}

_ALL: Final = (
    Metric(
        "streams_open", "gauge", "connection", "Parts of streams that are open now.", _PART,
        across="livesum", known=True,
    ),
    Metric("streams_opened_total", "counter", "connection", "Parts of streams that began.", _PART, known=True),
    Metric(
        "streams_closed_total", "counter", "connection",
        "Parts of streams that are over, by how they ended, and why: the failure's code. It is empty for complete, and "
        "for a reader that was given its stream's end, whatever that was: the producer's has why.",
        {"part": PARTS, "status": STATUSES, "cause": CAUSES},
        begins=tuple(
            (part, *end) for part, ends in zip(PARTS, (_ENDS, _ENDS, _READ), strict=True) for end in ends
        ),
    ),
    Metric(
        "stream_duration_seconds", "histogram", "connection", "From the beginning of a part to its end.",
        {"part": PARTS, "status": STATUSES}, "seconds", _LONG,
    ),
    Metric(
        "readers_gone_total", "counter", "connection",
        "Connections whose reader left, took nothing, or was sent elsewhere before the end.",
        {"part": PARTS, "cause": CAUSES},
    ),
    Metric("resumes_total", "counter", "connection", "Readers that came back with a cursor.", known=True),
    Metric(
        "takeovers_total", "counter", "connection",
        "Streams of a process that is gone: gone on with here, or given their end because nobody knew how to.",
        {"result": ("gone_on", "sealed")}, known=True,
    ),
    Metric(
        "requests_refused_total", "counter", "connection",
        "Requests that got no stream, or were told no by the endpoints of streams, by the code of the answer; of the "
        "proxy every request that it answered itself, in place of its upstream, whether it asked for a stream or not.",
        {"why": REFUSALS}, known=True,
    ),
    Metric(
        "aborts_not_carried_total", "counter", "connection",
        "Streams that did not complete, and whose abort no reader can see, by what is in the way.",
        {"hop": ("http10", "base_middleware")}, known=True,
    ),
    Metric("stalls_total", "counter", "connection", "Sources that were silent until the limit.", _PART, known=True),
    Metric(
        "sources_abandoned_total", "counter", "connection", "Sources that did not stop in time.", _SOURCED, known=True
    ),
    Metric(
        "source_close_seconds", "histogram", "connection", "How long a source took to close.", _SOURCED, "seconds",
        _QUICK,
    ),
    Metric(
        "time_to_first_frame_seconds", "histogram", "request",
        "From the beginning of a part to its first frame with content: the time to the first token.", _PART,
        "seconds", _FIRST, known=True,
    ),
    Metric(
        "time_per_item_seconds", "histogram", "request",
        "Mean time between two items of the source, of a stream with two or more: the time per output token.",
        _SOURCED, "seconds", _QUICK,
    ),
    Metric("items_total", "counter", "request", "Items that sources yielded: tokens.", _SOURCED, known=True),
    Metric(
        "items_undelivered_total", "counter", "request",
        "Items of streams that were ended because their reader left, or took nothing, and of streams in a log because "
        "nobody came back in time: at most so many were generated for nobody. Whether somebody reads one in a log that "
        "runs to its end is not known.",
        known=True,
    ),
    Metric("frames_total", "counter", "token", "Frames that were let through, or stored.", _PART, known=True),
    Metric("frame_bytes_total", "counter", "token", "Bytes of the data in those.", _PART, "bytes", known=True),
    Metric("sent_bytes_total", "counter", "token", "Bytes of bodies, as sent.", _PART, "bytes", known=True),
    Metric("ack_rtt_seconds", "histogram", "token", "From the sending of a frame to its acknowledgement.",
           unit="seconds", buckets=_QUICK),
    Metric(
        "token_leg_seconds", "histogram", "token",
        "The way of the tokens that are sampled (`every=`), by leg: where the most of it is, is what to change.",
        {"leg": LEGS}, "seconds", _QUICK,
    ),
    Metric("acknowledgements_total", "counter", "token", "Acknowledgements that were news.", known=True),
    Metric(
        "frames_replayed_total", "counter", "token",
        "Frames that were stored already when a reader came back for them.", known=True,
    ),
    Metric(
        "tokens_lost_total", "counter", "token",
        "Frames that were made, and let through by no guard or taken by no log: text that a reader was not given.",
        _PART, known=True,
    ),
    Metric(
        "blocked_seconds", "histogram", "token",
        "Waits for a reader, once they are over: of a write that was under way when the stream's clock looked or when "
        "its reader left, for credit, or of a source that was too far ahead.",
        {"by": ("transport", "credit", "lead")}, "seconds", _LONG, known=True,
    ),
    Metric("requests_waiting", "gauge", "system", "Requests that wait for a slot.", across="livesum"),
    Metric("streams_detached", "gauge", "system", "Streams that run on without a reader.", across="livesum"),
    Metric("draining", "gauge", "system", "1 while the process is told to go, else 0.", across="livemax"),
    Metric(
        "loop_lag_seconds", "histogram", "system", "How late the event loop was, at the wakes of streams.",
        unit="seconds", buckets=_QUICK,
    ),
    Metric(
        "log_append_seconds", "histogram", "system",
        "How long an append to the log took, of those that were the newest when a stream's clock woke.",
        unit="seconds", buckets=_QUICK,
    ),
)  # fmt: skip

METRICS: Final[dict[str, Metric]] = {each.name: attrs.evolve(each, name=PREFIX + each.name) for each in _ALL}
"""By their names without the prefix; each has its whole name."""

LEVELS: Final[dict[Level, str]] = {
    "connection": "Connections and streams",
    "request": "Requests",
    "token": "Tokens",
    "system": "The process",
}


def bounded(value: str, values: tuple[str, ...]) -> str:
    """A label's value: `value` where it is one of those there are, else the one for all others."""
    return value if value in values else OWN
