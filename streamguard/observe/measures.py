"""Events into numbers: which metric moves at which event, for every back end alike.

A back end derives from `Measures` and says how a number is kept: `add` to a counter, `record` in a histogram, `put`
into a gauge. Metrics are named as in `METRICS`, labels are given in the order that stands there.
"""

from __future__ import annotations

from typing import Any

from streamguard.core.arguments import require_whole_number
from streamguard.observe.hooks import (
    AbortNotCarried,
    Acknowledged,
    Blocked,
    Closed,
    FirstFrame,
    Frames,
    Observer,
    Opened,
    ReaderGone,
    Refused,
    Resumed,
    Sampled,
    SourceClosed,
    Stalled,
    TakenOver,
)
from streamguard.observe.metrics import CAUSES, REFUSALS, bounded
from streamguard.observe.system import Surroundings

__all__ = ["Measures"]


def _undelivered(event: Closed) -> bool:
    """Whether a source was ended because nobody was there any more for what it generates."""
    if event.stream.part == "direct":
        return event.outcome.status in ("gone", "slow")
    return event.stream.part == "producer" and event.cause in ("gone", "evicted")


class Measures(Observer):
    """All metrics, moved by events. One token in `every` is timed on its way, for `token_leg_seconds`; 0: none."""

    def __init__(self, every: int = 0) -> None:
        require_whole_number("every", every, 0)
        self.every = every
        self.surroundings = Surroundings()

    def add(self, name: str, amount: float, *labels: str) -> None:
        """Count."""
        raise NotImplementedError

    def record(self, name: str, value: float, *labels: str) -> None:
        """Take one value into a distribution."""
        raise NotImplementedError

    def put(self, name: str, value: float, *labels: str) -> None:
        """Say what is so now."""
        raise NotImplementedError

    def shift(self, name: str, amount: float, *labels: str) -> None:
        """Say by how much what is so now has changed."""
        raise NotImplementedError

    def attached(self, source: Any) -> None:
        self.surroundings.attached(source)

    def opened(self, event: Opened) -> None:
        part = event.stream.part
        self.surroundings.opened(event)
        self.add("streams_opened_total", 1, part)
        self.shift("streams_open", 1, part)
        self._look()

    def first_frame(self, event: FirstFrame) -> None:
        self.record("time_to_first_frame_seconds", event.seconds, event.stream.part)

    def frames(self, event: Frames) -> None:
        part = event.stream.part
        if part != "reader":
            self.add("items_total", event.items, part)
        self.add("frames_total", event.frames, part)
        self.add("frame_bytes_total", event.bytes, part)
        self.add("sent_bytes_total", event.sent, part)
        self.surroundings.noted(event)
        self._sampled(event)
        self._look()

    def _sampled(self, event: Frames | Closed) -> None:
        if event.lag is not None:
            self.record("loop_lag_seconds", event.lag)
        if event.log_latency is not None:
            self.record("log_append_seconds", event.log_latency)

    def stalled(self, event: Stalled) -> None:
        self.add("stalls_total", 1, event.stream.part)

    def blocked(self, event: Blocked) -> None:
        self.record("blocked_seconds", event.seconds, event.by)

    def resumed(self, event: Resumed) -> None:
        self.add("resumes_total", 1)
        self.add("frames_replayed_total", event.replayed or 0)

    def taken_over(self, event: TakenOver) -> None:
        self.add("takeovers_total", 1, "gone_on" if event.gone_on else "sealed")

    def acknowledged(self, event: Acknowledged) -> None:
        self.add("acknowledgements_total", 1)
        if event.rtt is not None:
            self.record("ack_rtt_seconds", event.rtt)

    def sampled(self, event: Sampled) -> None:
        for leg, seconds in event.legs.items():
            self.record("token_leg_seconds", seconds, leg)

    def reader_gone(self, event: ReaderGone) -> None:
        self.add("readers_gone_total", 1, event.stream.part, bounded(event.cause, CAUSES))

    def source_closed(self, event: SourceClosed) -> None:
        part = event.stream.part
        self.add("sources_abandoned_total", int(event.abandoned), part)
        self.record("source_close_seconds", event.seconds, part)

    def refused(self, event: Refused) -> None:
        self.add("requests_refused_total", 1, bounded(event.why, REFUSALS))
        self._look()

    def abort_not_carried(self, event: AbortNotCarried) -> None:
        self.add("aborts_not_carried_total", 1, event.hop)

    def closed(self, event: Closed) -> None:
        part, outcome = event.stream.part, event.outcome
        self.surroundings.closed(event)
        self.add("streams_closed_total", 1, part, outcome.status, bounded(event.cause, CAUSES))
        self.shift("streams_open", -1, part)
        self.record("stream_duration_seconds", event.at - event.stream.started, part, outcome.status)
        self.add("tokens_lost_total", event.lost, part)
        if part != "reader" and outcome.items > 1 and outcome.first_item is not None:
            between = (outcome.ended - outcome.first_item) / (outcome.items - 1)
            self.record("time_per_item_seconds", between, part)
        if _undelivered(event):
            self.add("items_undelivered_total", outcome.items)
        self._sampled(event)
        self._look()

    def _look(self) -> None:
        """Where a back end cannot ask when it is asked itself, it is told at events."""
        around = self.surroundings
        self.put("requests_waiting", around.waiting)
        self.put("streams_detached", around.detached)
        self.put("draining", int(around.draining))
