"""What OpenTelemetry's own SDK has measured, and what spans it was given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import attrs
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from streamguard.observe.metrics import METRICS
from streamguard.observe.opentelemetry import Metrics, Traces, instrument_name
from tests.observe.mixed import expected_of
from tests.observe.pages import unequal
from tests.observe.processes import in_processes

__all__ = ["Exported", "Measured", "Traced", "exported", "exported_by"]


class Measured:
    """A meter, and its numbers."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader])

    def all(self) -> dict[str, Any]:
        data = self.reader.get_metrics_data()
        assert data is not None
        scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics]
        return {metric.name: metric for scope in scopes for metric in scope.metrics}

    def samples(self) -> dict[str, float]:
        """As a page of Prometheus has them."""
        found: dict[str, float] = {}
        names = {instrument_name(metric): metric for metric in METRICS.values()}
        for name, kept in self.all().items():
            for point in kept.data.data_points if name in names else ():
                metric = names[name]
                labels = ",".join(f'{key}="{value}"' for key, value in sorted(point.attributes.items()))
                called = metric.name + ("_count" if metric.kind == "histogram" else "")
                value = point.count if metric.kind == "histogram" else point.value
                found[called + (f"{{{labels}}}" if labels else "")] = value
        return found


class Traced:
    """A tracer, and its spans."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")

    def spans(self, name: str = "") -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name.startswith(name)]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.spans(name)
        return span

    def samples(self) -> dict[str, float]:
        """How many of each kind there are, by how the streams ended."""
        return Counter(_named(span.name, (span.attributes or {}).get("streamguard.status")) for span in self.spans())


def _named(name: str, status: object) -> str:
    return f'spans{{name="{name}",status="{status or ""}"}}'


def _spans_of(expected: Mapping[str, float]) -> dict[str, float]:
    """The spans of streams that moved these numbers."""
    found = Counter[str]()
    for name, value in expected.items():
        if name.startswith("streamguard_streams_closed_total{"):
            labels = dict(part.replace('"', "").split("=") for part in name.partition("{")[2].rstrip("}").split(","))
            found[_named(f"streamguard {labels['part']}", labels["status"])] += value
    sealed, gone_on = (
        expected.get(f'streamguard_takeovers_total{{result="{result}"}}', 0) for result in ("sealed", "gone_on")
    )
    generated = expected.get('streamguard_streams_opened_total{part="producer"}', 0)
    found[_named("streamguard producer", None)] += sealed
    found[_named("streamguard stream", None)] += generated - gone_on  # which began elsewhere
    return {name: value for name, value in found.items() if value}


@attrs.frozen
class Exported:
    """Numbers and spans of one process, or of several: what was expected, and what OpenTelemetry was told."""

    expected: dict[str, float]
    found: dict[str, float]

    @property
    def wrong(self) -> dict[str, tuple[float, float]]:
        return unequal(self.expected, self.found)


def exported(count: int, seed: int) -> Exported:
    """Have so many mixed streams."""
    measured, traced = Measured(), Traced()
    expected = expected_of(count, seed, [Metrics(measured.provider), Traces(traced.provider)])
    return Exported({**expected, **_spans_of(expected)}, {**measured.samples(), **traced.samples()})


def exported_by(count: int, seeds: tuple[int, ...]) -> Exported:
    """So many in each of several processes at once, each of which exports its own."""
    expected, found = Counter[str](), Counter[str]()
    for told in in_processes(count, seeds, "opentelemetry"):
        expected.update(told["expected"])
        found.update(told["found"])
    return Exported(dict(expected), dict(found))
