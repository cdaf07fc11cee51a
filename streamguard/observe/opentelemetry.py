"""Traces and metrics for OpenTelemetry, by its API alone (`pip install "streamguard-io[opentelemetry]"`).

    @guarded(observe=[Traces(), Metrics()])

Where they go is the SDK's business, which the application sets up. Without one, both do nothing.

* A part of a stream is a span: `streamguard direct`, `producer`, `reader`. It belongs to the trace of its request: to
  the span that is current there, as of an instrumented framework, else to the request's `traceparent`. The source runs
  in it, on whatever thread, so that spans which the source makes, and requests that it sends, are below it.
* A stream in a log has a span `streamguard stream` as well, which is over at once: its context is kept in the log with
  the stream. Whoever generates the stream is below it, also at another process after a takeover, when the span of the
  one that is gone was never exported; and whoever reads it, the first time or again, is linked to it.
* A request that a proxy passes on is a span, `streamguard proxy`, until its answer is over; its context goes to the
  upstream in place of the client's, and the streams of its answer are below it.
* Names of metrics are those of the conventions for generative AI, and our own (`METRICS`) as OpenTelemetry writes them:
  `streamguard.stream_duration` in `s`, from which an exporter for Prometheus makes the names that are documented.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextvars import Token
from typing import Any, Final

import attrs

from streamguard.core.arguments import require_whole_number
from streamguard.extras import needs
from streamguard.observe.hooks import (
    AbortNotCarried,
    Acknowledged,
    Blocked,
    Closed,
    FirstFrame,
    Observer,
    Opened,
    Outcome,
    Passed,
    Passing,
    ReaderGone,
    Refused,
    RequestLabels,
    Resumed,
    Sampled,
    SourceClosed,
    Stalled,
    StreamDetails,
    TakenOver,
    Terminal,
)
from streamguard.observe.legs import Way
from streamguard.observe.measures import Measures
from streamguard.observe.metrics import CAUSES, METRICS, PREFIX, Metric, bounded

with needs("opentelemetry", __name__):
    from opentelemetry import context, metrics, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

__all__ = ["GEN_AI", "Metrics", "Traces", "instrument_name"]

_SCOPE: Final = "streamguard"

# The names and buckets of https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-metrics/.
GEN_AI: Final[dict[str, tuple[str, tuple[float, ...]]]] = {
    "gen_ai.server.request.duration": (
        "Generative AI server request duration such as time-to-last byte or last output token.",
        (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92),
    ),
    "gen_ai.server.time_to_first_token": (
        "Time to generate first token for successful responses.",
        (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    ),
    "gen_ai.server.time_per_output_token": (
        "Time per output token generated after the first token for successful responses.",
        (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
    ),
}
_NAMED: Final = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": _SCOPE}
_UNITS: Final = {"seconds": "s", "bytes": "By", "": "1"}
_METHODS: Final = ("CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE")
_LEFT: Final = ("cancelled", "gone", "parted", "shutdown")  # abnormal, and no error of the server's


# ---- metrics ----------------------------------------------------------------------------------


def instrument_name(metric: Metric) -> str:
    """A metric's name as OpenTelemetry writes it: without its unit, and without `_total`."""
    name = metric.name.removeprefix(PREFIX).removesuffix("_total").removesuffix("_seconds")
    return f"{_SCOPE}.{name}"


class Metrics(Measures):
    """An observer that keeps every metric of `METRICS`, and those of the conventions for generative AI.

    `attributes` are added to the latter: `gen_ai.request.model` where there is one, `gen_ai.provider.name` (default
    `streamguard`), `gen_ai.operation.name` (default `chat`). `provider` is a MeterProvider, by default the global one.
    One token in `every` is timed on its way; 0: none. One of these is enough for a process.
    """

    def __init__(
        self,
        provider: metrics.MeterProvider | None = None,
        *,
        attributes: Mapping[str, str] | None = None,
        every: int = 0,
    ) -> None:
        super().__init__(every)
        meter = metrics.get_meter(_SCOPE, meter_provider=provider)
        self._attributes = {**_NAMED, **(attributes or {})}
        self._kept: dict[str, Any] = {name: self._made(name, metric, meter) for name, metric in METRICS.items()}
        self._gen_ai = {
            name: meter.create_histogram(name, "s", help, explicit_bucket_boundaries_advisory=list(buckets))
            for name, (help, buckets) in GEN_AI.items()
        }

    def _made(self, name: str, metric: Metric, meter: metrics.Meter) -> Any:
        called, unit = instrument_name(metric), _UNITS[metric.unit]
        if metric.kind == "counter":
            return meter.create_counter(called, unit, metric.help)
        if metric.kind == "histogram":
            advice = list(metric.buckets)
            return meter.create_histogram(called, unit, metric.help, explicit_bucket_boundaries_advisory=advice)
        if metric.labels:
            return meter.create_up_down_counter(called, unit, metric.help)
        around, field = self.surroundings, _GAUGES[name]

        def look(options: metrics.CallbackOptions) -> Iterable[metrics.Observation]:
            return [metrics.Observation(int(getattr(around, field)))]

        return meter.create_observable_gauge(called, [look], unit, metric.help)

    def add(self, name: str, amount: float, *labels: str) -> None:
        if amount:
            self._kept[name].add(amount, _labelled(name, labels))

    def record(self, name: str, value: float, *labels: str) -> None:
        self._kept[name].record(value, _labelled(name, labels))

    def put(self, name: str, value: float, *labels: str) -> None:
        """Nothing: what is so now is asked when it is exported."""

    def shift(self, name: str, amount: float, *labels: str) -> None:
        self._kept[name].add(amount, _labelled(name, labels))

    def closed(self, event: Closed) -> None:
        super().closed(event)
        outcome = event.outcome
        if event.stream.part == "reader":
            return  # who generates has been counted, once
        error = bounded(event.cause or outcome.status, (*CAUSES, "gone", "slow"))
        named = self._attributes if event.whole else {**self._attributes, "error.type": error}
        self._gen_ai["gen_ai.server.request.duration"].record(outcome.ended - outcome.started, named)
        first = outcome.first_item
        if not event.whole or first is None:
            return
        self._gen_ai["gen_ai.server.time_to_first_token"].record(first - outcome.started, named)
        tokens = _tokens(outcome)
        if tokens > 1:
            each = (outcome.ended - first) / (tokens - 1)
            self._gen_ai["gen_ai.server.time_per_output_token"].record(each, named)


_GAUGES: Final = {"requests_waiting": "waiting", "streams_detached": "detached", "draining": "draining"}


def _labelled(name: str, values: tuple[str, ...]) -> dict[str, str]:
    return dict(zip(METRICS[name].labels, values, strict=True))


def _tokens(outcome: Outcome) -> int:
    """How many tokens there were: as the source says, else its items."""
    said = (outcome.usage or {}).get("completion_tokens")
    return said if isinstance(said, int) and said > 0 else outcome.items


# ---- traces -----------------------------------------------------------------------------------


@attrs.define
class _Open:
    span: Span
    way: Way
    acked: int | None = None


class Traces(Observer):
    """An observer that makes spans. `attributes` are added to those of `direct` and `producer`, as in `Metrics`;
    `provider` is a TracerProvider, by default the global one.

    One token in `every` is timed on its way; 0: none. Then a span says at its end how long each leg took on the mean
    (`streamguard.leg.sent`), which was the slowest (`streamguard.slowest_leg`), and what to change in that case
    (`streamguard.change`), unless even that one took less than a millisecond, or is the source of a stream that is
    well. One that waited for its reader until that was given up, or most of its time, names the leg of that wait.
    """

    def __init__(
        self,
        provider: trace.TracerProvider | None = None,
        *,
        attributes: Mapping[str, str] | None = None,
        every: int = 0,
    ) -> None:
        require_whole_number("every", every, 0)
        self.every = every
        self._tracer = trace.get_tracer(_SCOPE, tracer_provider=provider)
        self._attributes = {**_NAMED, **(attributes or {})}
        self._open: dict[StreamDetails, _Open] = {}
        self._passing: dict[Passing, tuple[Span, Token[Context]]] = {}

    def passing(self, request: Passing) -> Mapping[str, str]:
        above, kind = _above(request.labels)
        method = request.method if request.method in _METHODS else "_OTHER"  # a client may write any
        attributes = {"http.request.method": method, "url.scheme": request.scheme, **_request(request.labels)}
        if request.labels.path is not None:
            attributes["url.path"] = request.labels.path
        span = self._tracer.start_span("streamguard proxy", above, kind, attributes)
        within = trace.set_span_in_context(span)
        self._passing[request] = span, context.attach(within)
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, within)
        # A state that belongs to another trace must not go along. Without an SDK there may be no trace at all.
        return {"tracestate": "", **carrier} if carrier else {}

    def passed(self, event: Passed) -> None:
        span, token = self._passing.pop(event.request)
        context.detach(token)
        error = event.cause
        if event.answered is not None:
            span.set_attribute("http.response.status_code", event.answered)
            error = error or (str(event.answered) if event.answered >= 500 else "")
        if error:
            span.set_attribute("error.type", error)
            span.set_status(Status(StatusCode.ERROR, error))
        span.end()

    def began(self, labels: RequestLabels) -> str | None:
        above, kind = _above(labels)
        span = self._tracer.start_span("streamguard stream", above, kind, _request(labels))
        span.end()
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, trace.set_span_in_context(span, Context()))
        return carrier.get("traceparent")

    def opened(self, event: Opened) -> None:
        self._open[event.stream] = _Open(self._started(event.stream), Way(self.every))

    def _started(self, stream: StreamDetails) -> Span:
        origin = _remote(stream.origin)
        above, kind = _above(stream.labels)
        if stream.part == "producer" and origin is not None:
            above, kind = trace.set_span_in_context(trace.NonRecordingSpan(origin), Context()), SpanKind.INTERNAL
        links = [Link(origin, {"streamguard.link": "stream"})] if stream.part == "reader" and origin else []
        attributes = {"streamguard.part": stream.part, "streamguard.stream": stream.name, **_request(stream.labels)}
        if stream.part != "reader":
            attributes.update(self._attributes)
        return self._tracer.start_span(f"streamguard {stream.part}", above, kind, attributes, links)

    def trace_of(self, stream: StreamDetails) -> str | None:
        found = self._open[stream].span.get_span_context()
        return trace.format_trace_id(found.trace_id) if found.is_valid else None

    def entered(self, stream: StreamDetails) -> None:
        context.attach(trace.set_span_in_context(self._open[stream].span))  # of a context that is the source's own

    def first_frame(self, event: FirstFrame) -> None:
        self._event(event.stream, "first_frame", seconds=event.seconds)

    def stalled(self, event: Stalled) -> None:
        self._event(event.stream, "stall", silent=event.silent)

    def blocked(self, event: Blocked) -> None:
        self._open[event.stream].way.blocked(event)
        self._event(event.stream, "blocked", by=event.by, seconds=event.seconds)

    def resumed(self, event: Resumed) -> None:
        self._event(event.stream, "resumed", frame=event.frame, replayed=event.replayed)

    def taken_over(self, event: TakenOver) -> None:
        known = event.stream in self._open
        if not known:  # it was given its end, and has no part that runs
            self._open[event.stream] = _Open(self._started(event.stream), Way(self.every))
        facts = {"frame": event.frame, "lease": event.lease, "crashes": event.crashes, "gone_on": event.gone_on}
        self._event(event.stream, "taken_over", **facts)
        if not known:
            self._open.pop(event.stream).span.end()

    def terminal(self, event: Terminal) -> None:
        self._event(event.stream, "terminal", status=event.status, cause=event.cause)

    def acknowledged(self, event: Acknowledged) -> None:
        found = self._open[event.stream]
        found.acked = event.frame  # no event of its own: there is one for each in a tenth of a second
        found.way.acknowledged(event)

    def sampled(self, event: Sampled) -> None:
        self._open[event.stream].way.sampled(event)

    def reader_gone(self, event: ReaderGone) -> None:
        self._event(event.stream, "reader_gone", cause=event.cause)

    def source_closed(self, event: SourceClosed) -> None:
        self._event(event.stream, "source_closed", seconds=event.seconds, abandoned=event.abandoned)

    def abort_not_carried(self, event: AbortNotCarried) -> None:
        self._event(event.stream, "abort_not_carried", hop=event.hop)

    def refused(self, event: Refused) -> None:
        facts: dict[str, Any] = {"streamguard.why": event.why, "http.response.status_code": event.status}
        trace.get_current_span().add_event("streamguard.refused", facts)  # of who serves the request

    def closed(self, event: Closed) -> None:
        found, outcome = self._open.pop(event.stream), event.outcome
        span, slowest = found.span, found.way.ended(event) if self.every else None
        facts: dict[str, Any] = {
            "streamguard.status": outcome.status,
            "streamguard.cause": event.cause,
            "streamguard.delivered": outcome.delivered,
            "streamguard.frames": outcome.frames,
            "streamguard.sent": outcome.sent,
            "streamguard.lost": event.lost,
        }
        if event.stream.part != "reader":
            facts["streamguard.items"] = outcome.items
        if found.acked is not None:
            facts["streamguard.acked"] = found.acked
        if slowest is not None:
            facts.update({f"streamguard.leg.{leg}": mean for leg, mean in found.way.means.items()})
            facts["streamguard.slowest_leg"] = slowest.leg
            if slowest.change:
                facts["streamguard.change"] = slowest.change
        span.set_attributes(facts)
        if not event.whole and outcome.status not in _LEFT:
            why = event.cause or outcome.status
            span.set_attribute("error.type", why)
            span.set_status(Status(StatusCode.ERROR, why))
        span.end()

    def _event(self, stream: StreamDetails, name: str, **facts: Any) -> None:
        known = {f"streamguard.{key}": value for key, value in facts.items() if value is not None}
        self._open[stream].span.add_event(f"streamguard.{name}", known)


_PROPAGATOR: Final = TraceContextTextMapPropagator()


def _above(labels: RequestLabels) -> tuple[Context, SpanKind]:
    """What a request's spans belong to, and what kind they are: those of a server, where nothing else is here."""
    if trace.get_current_span().get_span_context().is_valid:
        return context.get_current(), SpanKind.INTERNAL
    carrier = {"traceparent": labels.traceparent or "", "tracestate": labels.tracestate or ""}
    return _PROPAGATOR.extract(carrier, context.get_current()), SpanKind.SERVER


def _remote(origin: str | None) -> SpanContext | None:
    """The context that is kept in the log; None where there is none, or none that is well-formed."""
    found = trace.get_current_span(_PROPAGATOR.extract({"traceparent": origin or ""}, Context())).get_span_context()
    return found if found.is_valid else None


def _request(labels: RequestLabels) -> dict[str, str]:
    named = {"http.route": labels.route, "streamguard.request_id": (labels.request_id or "")[:200]}
    return {key: value for key, value in named.items() if value}
