"""The trace that a request belongs to: headers for the span that is current, by OpenTelemetry's API.

Nothing is imported for it: a program that has not imported the API itself has no span.
"""

from __future__ import annotations

import sys

__all__ = ["trace_headers"]


def trace_headers() -> dict[str, str]:
    """`traceparent`, and `tracestate` where there is one, of the span that is current; empty without one."""
    if "opentelemetry.trace" not in sys.modules:
        return {}
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier
