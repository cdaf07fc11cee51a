"""The reference page of all metrics and alerts, in Markdown.

    python -m streamguard.observe reference
"""

from __future__ import annotations

from streamguard.observe.alerts import ALERTS
from streamguard.observe.metrics import LEVELS, METRICS, OWN, Metric

__all__ = ["reference"]

_HEAD = f"""# Metrics

All that [`streamguard.observe.prometheus`](../how-to/watch-with-prometheus.md) keeps, and all that its alerts say. This
page is made by `python -m streamguard.observe reference`. [OpenTelemetry](../how-to/trace-with-opentelemetry.md) is
given the same, by names of which an exporter makes these.

A stream without a log is one part, `direct`. A stream in a log has a part that generates, `producer`, and a `reader`
for each connection that reads it. Labels have no other values than those below: `{OWN}` stands for every code that the
application or a provider chose.
"""


def reference() -> str:
    """The page."""
    lines = [_HEAD]
    for level, title in LEVELS.items():
        lines += [f"## {title}", "", "| metric | kind | labels | what |", "| --- | --- | --- | --- |"]
        lines += [_row(metric) for metric in METRICS.values() if metric.level == level]
        lines.append("")
    lines += ["## Labels", "", "| label | values |", "| --- | --- |", *_labels(), ""]
    lines += ["## Buckets", "", "| metric | upper bounds |", "| --- | --- |"]
    lines += [
        f"| `{metric.name}` | {', '.join(f'{each:g}' for each in metric.buckets)} |"
        for metric in METRICS.values()
        if metric.buckets
    ]
    lines += ["", "## Alerts", "", "`python -m streamguard.observe rules` prints them for Prometheus.", ""]
    lines += ["| alert | severity | when | what to look at |", "| --- | --- | --- | --- |"]
    lines += [
        f"| `{alert.name}` | {alert.severity} | {alert.summary}: `{_cell(alert.expression)}`, for {alert.lasting} "
        f"| {alert.description} |"
        for alert in ALERTS
    ]
    return "\n".join(lines) + "\n"


def _row(metric: Metric) -> str:
    kind = metric.kind if metric.across is None else f"{metric.kind}, `{metric.across}`"
    labels = ", ".join(f"`{name}`" for name in metric.labels)
    return f"| `{metric.name}` | {kind} | {labels} | {metric.help} |"


def _labels() -> list[str]:
    found: dict[str, tuple[str, ...]] = {}
    for metric in METRICS.values():
        for name, values in metric.labels.items():
            found[name] = max(found.get(name, ()), values, key=len)
    return [f"| `{name}` | {', '.join(f'`{value}`' for value in values if value)} |" for name, values in found.items()]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
