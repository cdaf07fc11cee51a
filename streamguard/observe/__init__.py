"""Seen from outside: what an application, a metric or a bill is told of a stream."""

from __future__ import annotations

from streamguard.observe.hooks import Delivered, Observer, OnEnd, Outcome

__all__ = ["Delivered", "Observer", "OnEnd", "Outcome"]
