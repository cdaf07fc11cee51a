"""Alerts for Prometheus, as data, and the file of rules that it loads.

    python -m streamguard.observe rules > streamguard-rules.yml

Each is made of metrics of `METRICS`, is zero as long as nothing happens, and says what to look at. The limits are where
to begin: write your own into the file.
"""

from __future__ import annotations

import json
from typing import Final, Literal

import attrs

__all__ = ["ALERTS", "Alert", "rules"]


@attrs.frozen
class Alert:
    """One alert. It fires once `expression` has been true for `lasting`."""

    name: str
    expression: str
    lasting: str
    severity: Literal["critical", "warning"]
    summary: str
    description: str


_ENDED: Final = 'streamguard_streams_closed_total{part!="reader"}'
_ABNORMAL: Final = 'streamguard_streams_closed_total{part!="reader",status=~"failed|stalled|slow|shutdown"}'
_REFUSED: Final = 'streamguard_requests_refused_total{why=~"%s"}'

ALERTS: Final = (
    Alert(
        "StreamguardAbnormalEnds",
        f"sum(rate({_ABNORMAL}[5m])) / sum(rate({_ENDED}[5m])) > 0.05",
        "5m",
        "warning",
        "More than one stream in twenty does not complete",
        "Look at streamguard_streams_closed_total by cause, and at the records of abnormal streams.",
    ),
    Alert(
        "StreamguardTokensLost",
        "sum(increase(streamguard_tokens_lost_total[10m])) > 0",
        "0m",
        "critical",
        "Text was made that no reader was given",
        "The streams were not told to be complete, so their readers know. The logger streamguard has the reason.",
    ),
    Alert(
        "StreamguardReadersBlocked",
        "sum(rate(streamguard_blocked_seconds_sum[5m])) / clamp_min(sum(streamguard_streams_open), 1) > 0.2",
        "10m",
        "warning",
        "Streams wait for their readers for a fifth of their time",
        "By label by: transport is the network or a proxy, credit the client itself, lead a source that runs ahead.",
    ),
    Alert(
        "StreamguardSlowFirstFrame",
        "histogram_quantile(0.95, sum by (le) "
        '(rate(streamguard_time_to_first_frame_seconds_bucket{part!="reader"}[5m]))) > 5',
        "10m",
        "warning",
        "One stream in twenty waits longer than 5 s for its first token",
        "Look at the source first, then at streamguard_loop_lag_seconds and streamguard_requests_waiting.",
    ),
    Alert(
        "StreamguardUndelivered",
        "sum(rate(streamguard_items_undelivered_total[30m])) "
        "/ sum(rate(streamguard_items_total[30m])) > 0.2",
        "15m",
        "warning",
        "A fifth of what is generated is for readers who leave",
        "Make the streams resumable, or look for a proxy that cuts them: streamguard check. Of streams in a log only "
        "those count that were ended because nobody came back: one that runs to its end unread is not known as such.",
    ),
    Alert(
        "StreamguardTakeovers",
        "sum(increase(streamguard_takeovers_total[10m])) > 0",
        "0m",
        "warning",
        "A process that generated streams is gone",
        "result is gone_on where the streams live on here, and sealed where nobody knew how to go on: a resumer is "
        "missing.",
    ),
    Alert(
        "StreamguardAbortsNotCarried",
        "sum(increase(streamguard_aborts_not_carried_total[10m])) > 0",
        "0m",
        "warning",
        "Readers cannot see that a stream was cut",
        "hop is http10 for a proxy that speaks HTTP/1.0, base_middleware where the seal is missing.",
    ),
    Alert(
        "StreamguardRefusals",
        f"sum(increase({_REFUSED % 'full|waited_too_long|log_unavailable|unsealed'}[10m])) > 10",
        "5m",
        "warning",
        "Requests for streams are refused",
        "why is full or waited_too_long where the Limits are reached, log_unavailable where the log is in trouble, "
        "unsealed where SealMiddleware is missing, or is not outermost.",
    ),
    Alert(
        "StreamguardUpstreamDown",
        f"sum(increase({_REFUSED % 'upstream_unreachable|upstream_silent|upstream_broke'}[5m])) > 5",
        "1m",
        "critical",
        "The proxy's upstream gives no answer",
        "why is upstream_unreachable where nobody listens, upstream_silent where no answer began in time, and "
        "upstream_broke where the connection broke before one did. What began to answer and broke off is in "
        "streamguard_streams_closed_total.",
    ),
)


def rules() -> str:
    """The file of rules, in YAML. A text in YAML may be one in JSON."""
    lines = ["groups:", "  - name: streamguard", "    rules:"]
    for alert in ALERTS:
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {json.dumps(alert.expression)}",
            f"        for: {alert.lasting}",
            "        labels:",
            f"          severity: {alert.severity}",
            "        annotations:",
            f"          summary: {json.dumps(alert.summary)}",
            f"          description: {json.dumps(alert.description)}",
        ]
    return "\n".join(lines) + "\n"
