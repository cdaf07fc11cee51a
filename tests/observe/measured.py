"""What OpenTelemetry's own SDK has measured."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from streamguard.observe.metrics import METRICS
from streamguard.observe.opentelemetry import instrument_name

__all__ = ["Measured"]


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
