"""A dashboard for Grafana, made of the same metrics.

    python -m streamguard.observe dashboard > streamguard.json

Import the file, and choose the Prometheus that it asks for.
"""

from __future__ import annotations

import json
from typing import Any, Final

import attrs

from streamguard.observe.metrics import LEVELS, Level

__all__ = ["PANELS", "Panel", "dashboard"]

_WIDTH: Final = 24  # of Grafana's grid
_HEIGHT: Final = 8
_WINDOW: Final = "[$__rate_interval]"


@attrs.frozen
class Panel:
    """One graph; `queries` are pairs of an expression and its legend, `unit` is Grafana's name of it."""

    title: str
    level: Level
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"


def _rate(metric: str, by: str, selector: str = "") -> tuple[str, str]:
    return f"sum by ({by}) (rate({metric}{selector}{_WINDOW}))", f"{{{{{by}}}}}"


def _quantiles(metric: str, selector: str = "") -> tuple[tuple[str, str], ...]:
    bucket = f"sum by (le) (rate({metric}_bucket{selector}{_WINDOW}))"
    return tuple((f"histogram_quantile({share}, {bucket})", f"p{share * 100:g}") for share in (0.5, 0.95, 0.99))


_SOURCED: Final = '{part!="reader"}'

PANELS: Final = (
    Panel("Open", "connection", (("sum by (part) (streamguard_streams_open)", "{{part}}"),)),
    Panel("Opened a second", "connection", (_rate("streamguard_streams_opened_total", "part"),), "ops"),
    Panel("How streams end", "connection", (_rate("streamguard_streams_closed_total", "status", _SOURCED),), "ops"),
    Panel(
        "Why they do not complete",
        "connection",
        (_rate("streamguard_streams_closed_total", "cause", '{part!="reader",status!="complete"}'),),
        "ops",
    ),
    Panel("Readers gone", "connection", (_rate("streamguard_readers_gone_total", "cause"),), "ops"),
    Panel(
        "Duration",
        "connection",
        _quantiles("streamguard_stream_duration_seconds", _SOURCED),
        "s",
    ),
    Panel(
        "Resumed, taken over",
        "connection",
        (
            (f"sum(rate(streamguard_resumes_total{_WINDOW}))", "resumed"),
            _rate("streamguard_takeovers_total", "result"),
        ),
        "ops",
    ),
    Panel(
        "Refused, aborts not carried",
        "connection",
        (_rate("streamguard_requests_refused_total", "why"), _rate("streamguard_aborts_not_carried_total", "hop")),
        "ops",
    ),
    Panel(
        "Sources: stalled, abandoned, slow to close",
        "connection",
        (
            (f"sum(rate(streamguard_stalls_total{_WINDOW}))", "stalled"),
            (f"sum(rate(streamguard_sources_abandoned_total{_WINDOW}))", "abandoned"),
            (f"sum(rate(streamguard_source_close_seconds_sum{_WINDOW}))", "seconds of closing a second"),
        ),
    ),
    Panel(
        "Time to the first token", "request", _quantiles("streamguard_time_to_first_frame_seconds", _SOURCED), "s"
    ),
    Panel("Time per token", "request", _quantiles("streamguard_time_per_item_seconds"), "s"),
    Panel(
        "Tokens a second",
        "request",
        (
            (f"sum(rate(streamguard_items_total{_WINDOW}))", "generated"),
            (f"sum(rate(streamguard_items_undelivered_total{_WINDOW}))", "for readers who left"),
        ),
    ),
    Panel("Frames a second", "token", (_rate("streamguard_frames_total", "part"),)),
    Panel(
        "Bytes a second",
        "token",
        (
            _rate("streamguard_sent_bytes_total", "part"),
            (f"sum(rate(streamguard_frame_bytes_total{_WINDOW}))", "data of frames"),
        ),
        "Bps",
    ),
    Panel(
        "A token's way, where it is sampled",
        "token",
        (
            (
                f"sum by (leg) (rate(streamguard_token_leg_seconds_sum{_WINDOW})) "
                f"/ sum by (leg) (rate(streamguard_token_leg_seconds_count{_WINDOW}))",
                "{{leg}}",
            ),
        ),
        "s",
    ),
    Panel("From sending to acknowledgement", "token", _quantiles("streamguard_ack_rtt_seconds"), "s"),
    Panel(
        "Acknowledged, replayed, lost",
        "token",
        (
            (f"sum(rate(streamguard_acknowledgements_total{_WINDOW}))", "acknowledgements"),
            (f"sum(rate(streamguard_frames_replayed_total{_WINDOW}))", "replayed frames"),
            (f"sum(increase(streamguard_tokens_lost_total{_WINDOW}))", "lost"),
        ),
    ),
    Panel("Waiting for readers", "token", (_rate("streamguard_blocked_seconds_sum", "by"),), "percentunit"),
    Panel(
        "Waiting, detached, draining",
        "system",
        (
            ("sum(streamguard_requests_waiting)", "waiting"),
            ("sum(streamguard_streams_detached)", "detached"),
            ("sum(streamguard_draining)", "draining"),
        ),
    ),
    Panel("Lag of the event loop", "system", _quantiles("streamguard_loop_lag_seconds"), "s"),
    Panel("An append to the log", "system", _quantiles("streamguard_log_append_seconds"), "s"),
)


def dashboard() -> str:
    """The dashboard, in Grafana's JSON."""
    panels: list[dict[str, Any]] = []
    y = 0
    for level, title in LEVELS.items():
        panels.append({"type": "row", "title": title, "gridPos": _place(0, y, _WIDTH, 1), "collapsed": False})
        y += 1
        of_level = [panel for panel in PANELS if panel.level == level]
        for index, panel in enumerate(of_level):
            panels.append(_drawn(panel, _place(index % 3 * _HEIGHT, y + index // 3 * _HEIGHT, _HEIGHT, _HEIGHT)))
        y += -(-len(of_level) // 3) * _HEIGHT
    for number, each in enumerate(panels, 1):
        each["id"] = number
    made = {
        "__inputs": [
            {"name": "DS_PROMETHEUS", "label": "Prometheus", "type": "datasource", "pluginId": "prometheus"}
        ],
        "title": "streamguard",
        "uid": "streamguard",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "panels": panels,
    }
    return json.dumps(made, indent=2) + "\n"


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _drawn(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${DS_PROMETHEUS}"}
    return {
        "type": "timeseries",
        "title": panel.title,
        "datasource": source,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"datasource": source, "expr": expression, "legendFormat": legend, "refId": chr(ord("A") + index)}
            for index, (expression, legend) in enumerate(panel.queries)
        ],
    }
