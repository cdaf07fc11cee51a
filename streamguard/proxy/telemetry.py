"""OpenTelemetry's SDK for the command, which is the application here; all else of the library uses the API alone.

What is exported where is what OpenTelemetry's own variables say: `OTEL_TRACES_EXPORTER` and `OTEL_METRICS_EXPORTER`
name exporters (`otlp`, if not given; `console`, `none`, or one that another package brings),
`OTEL_EXPORTER_OTLP_ENDPOINT` an address, `OTEL_SERVICE_NAME` the service. Where a program round this one has set up
providers, as `opentelemetry-instrument` does, those are used.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, Final

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

__all__ = ["SERVICE", "set_up"]

SERVICE: Final = "streamguard-proxy"
_LAST: Final = 5.0  # seconds for what is not exported yet, at the end

# `otlp` is the name of two exporters, each a package.
_OTLP: Final = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}


def set_up() -> Callable[[], None]:
    """Set the providers up, unless there are some. What is answered exports the rest, and ends them. Raises ValueError
    for an exporter that is not installed."""
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return _nothing
    spans, numbers = _exporters("traces"), _exporters("metrics")
    resource = Resource.create(None if _is_named() else {"service.name": SERVICE})
    tracing = TracerProvider(resource=resource)
    for exporter in spans:
        tracing.add_span_processor(BatchSpanProcessor(exporter()))
    trace.set_tracer_provider(tracing)
    metering = MeterProvider([_reader(exporter()) for exporter in numbers], resource=resource)
    metrics.set_meter_provider(metering)

    def end() -> None:
        # On threads, since an exporter waits long for a server that does not answer.
        ends = [threading.Thread(target=each.shutdown, daemon=True) for each in (tracing, metering)]
        for thread in ends:
            thread.start()
        until = time.monotonic() + _LAST
        for thread in ends:
            thread.join(max(0.0, until - time.monotonic()))

    return end


def _nothing() -> None:
    """Whoever made the providers ends them."""


def _reader(made: Any) -> MetricReader:
    """That of Prometheus is asked for its numbers, and is a reader itself."""
    return made if isinstance(made, MetricReader) else PeriodicExportingMetricReader(made)


def _is_named() -> bool:
    said = os.environ.get
    return bool(said("OTEL_SERVICE_NAME")) or "service.name=" in said("OTEL_RESOURCE_ATTRIBUTES", "")


def _exporters(signal: str) -> list[Callable[[], Any]]:
    """Those of `traces` or `metrics`. Raises ValueError."""
    variable = f"OTEL_{signal.upper()}_EXPORTER"
    names = [name.strip() for name in os.environ.get(variable, "").split(",") if name.strip()] or ["otlp"]
    return [_exporter(signal, variable, name) for name in names if name != "none"]


def _exporter(signal: str, variable: str, name: str) -> Callable[[], Any]:
    installed = {each.name: each for each in entry_points(group=f"opentelemetry_{signal}_exporter")}
    for candidate in _called(signal, name):
        if candidate in installed:
            made: Callable[[], Any] = installed[candidate].load()
            return made
    package = "opentelemetry-exporter-" + {"otlp": "otlp-proto-http"}.get(name, name.replace("_", "-"))
    raise ValueError(
        f"--otel needs the exporter {name}: pip install {package}, or name another in {variable} (none, console)"
    )


def _called(signal: str, name: str) -> list[str]:
    """What an exporter may be called by the package that brings it."""
    if name != "otlp":
        return [name]
    protocol = "OTEL_EXPORTER_OTLP_PROTOCOL"
    said = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL") or os.environ.get(protocol)
    return [*_OTLP.values(), "otlp"] if not said else [_OTLP.get(said, said)]
