"""What the live page shows: the streams that are open now, how the last ones went wrong, and how long things take.

    guard = StreamGuard(MemoryLog(), authorize=who, observe=Live(password=os.environ["STREAMGUARD_PASSWORD"]))
    guard.install(app, "/streams")                      # the page is at /streams/dashboard

* Nothing is computed while nobody looks: `newest` makes a picture when it is asked, at most one a period, and all who
  look share it. How far a stream is, is asked of it then (`Opened.count`), so that no stream does anything for it.
* A picture comes whole, and as what is different from the one before it. Who missed one takes the newest whole: there
  is no queue, so a reader that is slow costs no memory.
* What is kept is bounded: an entry for each open stream, the last records of abnormal ones, and counts. A picture has
  at most `rows` streams, those first of which nothing was heard for longest.
* A picture has no content, no message of a failure, and of a stream's id the first characters, as the log has them.
"""

from __future__ import annotations

import hmac
import math
import os
import threading
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from streamguard.core.arguments import require_whole_number, shown
from streamguard.observe.hooks import (
    Acknowledged,
    Blocked,
    Closed,
    Counts,
    FirstFrame,
    Observer,
    Observers,
    Opened,
    Resumed,
    Stalled,
    StreamDetails,
    Terminal,
)
from streamguard.observe.measures import Measures
from streamguard.observe.metrics import METRICS
from streamguard.observe.record import Record, Recorder

__all__ = ["HISTOGRAMS", "PAGE", "Live", "Picture"]

PAGE: Final = Path(__file__).with_name("page")
"""Where the page's files are."""

HISTOGRAMS: Final = (
    "time_to_first_frame_seconds",
    "time_per_item_seconds",
    "stream_duration_seconds",
    "blocked_seconds",
)
"""The metrics whose distributions are shown."""

_MIN_PASSWORD: Final = 16  # characters: it is asked for as often as somebody likes
_LONG: Final = 80  # characters of what came with a request
_SLACK: Final = 0.25  # seconds by which two looks may disagree about one moment


@attrs.frozen
class Picture:
    """One look at the process: `whole` is all of it, `step` what differs from the picture before, `number - 1`."""

    number: int
    whole: Mapping[str, Any]
    step: Mapping[str, Any]


class _Numbers(Measures):
    """Counts, over all labels but the status; and the distributions that are shown."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()  # else the streams of several threads would lose counts
        self.counts = Counter[str]()
        self.statuses = Counter[str]()
        self.bounds = {name: METRICS[name].buckets for name in HISTOGRAMS}
        self.histograms = {name: [0] * (len(bounds) + 1) for name, bounds in self.bounds.items()}

    def add(self, name: str, amount: float, *labels: str) -> None:
        with self._lock:
            self.counts[name] += int(amount)
            if name == "streams_closed_total":
                self.statuses[labels[1]] += 1

    def record(self, name: str, value: float, *labels: str) -> None:
        if name in self.histograms:
            with self._lock:
                self.histograms[name][bisect_left(self.bounds[name], value)] += 1

    def put(self, name: str, value: float, *labels: str) -> None:
        """Nothing: what is so now is asked when somebody looks."""

    def shift(self, name: str, amount: float, *labels: str) -> None:
        """Likewise."""


@attrs.define(eq=False)
class _Entry:
    """An open part of a stream, and how far it was at the last look."""

    number: int
    stream: StreamDetails
    count: Callable[[], Counts]
    at: float
    heard: float  # when its source last gave something, as far as is known
    state: str = "starting"
    blocked: float = 0.0
    acked: int | None = None
    resumed_at: int | None = None
    far: Counts = attrs.field(factory=Counts)
    rate: float = 0.0

    def look(self, now: float) -> None:
        """Ask how far it is. A rate is that since the last look."""
        far = self.count()
        items = far.items - self.far.items
        self.rate = items / (now - self.at) if now > self.at else self.rate
        heard = now - far.waits if far.waits is not None else now if items else self.heard
        if items or abs(heard - self.heard) > _SLACK:
            self.heard = heard
        self.at, self.far = now, far

    @property
    def shown_state(self) -> str:
        """`reader` where the source gives nothing and the driver does not wait for it: it waits for its reader."""
        if self.state != "streaming" or self.rate or self.far.waits is not None:
            return self.state
        return "reader"


@attrs.define
class _Last:
    """What the newest picture was made of, for the next one's difference."""

    number: int = 0
    due: float = -math.inf
    rows: dict[str, list[Any]] = attrs.field(factory=dict)
    records: int = 0
    histograms: dict[str, list[int]] = attrs.field(factory=dict)
    picture: Picture | None = None


class Live(Observer):
    """An observer that keeps the picture, and who may see it: whoever gives `password`, by HTTP Basic, under any name;
    or whom `authorize(request, "dashboard")` answers a name for, sync or async, as that of a guard. It is no guard's
    own: who may read streams of their own need not be one who sees everybody's.

    A guard that has it among its observers serves the page. Give it to everything else that streams too. `period` is
    how many seconds are between two pictures; `rows` how many streams one shows, `abnormal` how many records.

    Raises TypeError where neither password nor authorize is given, or both; ValueError for a password that is short.
    """

    def __init__(
        self,
        *,
        password: str | None = None,
        authorize: Callable[[Any, Any], Any] | None = None,
        period: float = 1.0,
        rows: int = 500,
        abnormal: int = 50,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        _require_who(password, authorize)
        require_whole_number("rows", rows)
        require_whole_number("abnormal", abnormal)
        if not 0.05 <= period <= 60:
            raise ValueError(f"period is from 0.05 to 60 seconds, not {shown(period)}")
        self._password = None if password is None else password.encode()
        self.authorize = authorize
        self.period = period
        self._rows, self._clock = rows, clock
        self._lock = threading.Lock()
        self._wall = time.time() - clock()  # what makes seconds since 1970 of the clock
        self._open: dict[StreamDetails, _Entry] = {}
        self._ended_items = 0
        self._records: deque[tuple[int, dict[str, Any]]] = deque(maxlen=abnormal)
        self._recorded = 0
        self._entries = 0
        self._numbers = _Numbers()
        self._parts = Observers((self._numbers, Recorder(self._recorded_one)))
        self._last = _Last()

    def admits(self, password: bytes) -> bool:
        """Whether it is the password; False where there is none. How long it takes tells nothing."""
        return self._password is not None and hmac.compare_digest(self._password, password)

    # ---- what happens -------------------------------------------------------------------------------

    def attached(self, source: Any) -> None:
        self._parts.attach(source)

    def opened(self, event: Opened) -> None:
        self._parts.tell(event)
        now = self._clock()
        with self._lock:
            self._entries += 1
            self._open[event.stream] = _Entry(self._entries, event.stream, event.count, now, now)

    def first_frame(self, event: FirstFrame) -> None:
        self._parts.tell(event)
        self._open[event.stream].state = "streaming"

    def stalled(self, event: Stalled) -> None:
        self._parts.tell(event)
        self._open[event.stream].state = "stalled"

    def terminal(self, event: Terminal) -> None:
        self._open[event.stream].state = "ending"

    def blocked(self, event: Blocked) -> None:
        self._parts.tell(event)
        self._open[event.stream].blocked += event.seconds

    def acknowledged(self, event: Acknowledged) -> None:
        self._parts.tell(event)
        self._open[event.stream].acked = event.frame

    def resumed(self, event: Resumed) -> None:
        self._parts.tell(event)
        self._open[event.stream].resumed_at = event.frame

    def closed(self, event: Closed) -> None:
        with self._lock:
            self._open.pop(event.stream)
            if event.stream.part != "reader":
                self._ended_items += event.outcome.items
        self._parts.tell(event)

    def _pass(self, event: Any) -> None:
        self._parts.tell(event)

    frames = taken_over = reader_gone = source_closed = refused = abort_not_carried = _pass

    def _recorded_one(self, record: Record) -> None:
        shown = record.as_dict()
        del shown["system"]
        for name in ("request_id", "route"):
            shown[name] = _short(shown[name])
        with self._lock:
            self._recorded += 1
            self._records.append((self._recorded, shown))

    # ---- what is shown ------------------------------------------------------------------------------

    @property
    def pause(self) -> float:
        """Seconds until the next picture may be made. All who look share these moments."""
        return max(0.0, self._last.due - self._clock())

    @property
    def number(self) -> int:
        """That of the newest picture; zero before the first."""
        return self._last.number

    def newest(self) -> Picture:
        """The picture of this period, which is made if nobody has asked for it yet."""
        with self._lock:
            now, last = self._clock(), self._last
            if last.picture is None or now >= last.due:
                last.picture = self._made(now)
                due = (now // self.period + 1) * self.period
                last.due = due if due > now else due + self.period  # which rounding may make of it
            return last.picture

    def _made(self, now: float) -> Picture:
        last, entries = self._last, list(self._open.values())
        for entry in entries:
            entry.look(now)
        listed = entries
        if len(entries) > self._rows:
            listed = sorted(sorted(entries, key=_heard)[: self._rows], key=_number)
        rows = {str(entry.number): self._row(entry) for entry in listed}
        records = [{"number": number, **record} for number, record in self._records]
        histograms = {name: list(counts) for name, counts in self._numbers.histograms.items()}
        before, last.number = last.rows, last.number + 1
        common = {"number": last.number, "head": self._head(now, entries)}
        bounds = {name: list(values) for name, values in self._numbers.bounds.items()}
        whole = {
            **common, "whole": True, "rows": rows, "gone": [], "records": records, "histograms": histograms,
            "bounds": bounds, "process": {"pid": os.getpid(), "period": self.period},
        }  # fmt: skip
        step = {
            **common,
            "whole": False,
            "rows": {number: row for number, row in rows.items() if before.get(number) != row},
            "gone": [number for number in before if number not in rows],
            "records": [record for record in records if record["number"] > last.records],
            "histograms": {name: each for name, each in histograms.items() if last.histograms.get(name) != each},
        }
        last.rows, last.records, last.histograms = rows, self._recorded, histograms
        return Picture(last.number, whole, step)

    def _row(self, entry: _Entry) -> list[Any]:
        """In the order in which the page shows it: what it is, then how it stands."""
        stream, far = entry.stream, entry.far
        labels = stream.labels
        return [
            stream.name, stream.part, _short(labels.route or labels.path), _short(labels.request_id),
            round(stream.wall, 1), entry.shown_state, round(entry.heard + self._wall, 1), far.items,
            round(entry.rate, 1), far.frames,
            far.sent, round(entry.blocked, 1), entry.acked, entry.resumed_at,
        ]  # fmt: skip

    def _head(self, now: float, entries: list[_Entry]) -> dict[str, Any]:
        counts, around = self._numbers.counts, self._numbers.surroundings.look()
        sourced = [entry for entry in entries if entry.stream.part != "reader"]
        return {
            "now": round(now + self._wall, 1),
            "open": dict(around.open),
            "waiting": around.waiting,
            "detached": around.detached,
            "draining": around.draining,
            "lag": around.lag,
            "log_latency": around.log_latency,
            "resident": around.resident,
            "items": self._ended_items + sum(entry.far.items for entry in sourced),
            "rate": round(sum(entry.rate for entry in sourced), 1),
            "opened": counts["streams_opened_total"],
            "closed": dict(self._numbers.statuses),
            "refused": counts["requests_refused_total"],
            "stalls": counts["stalls_total"],
            "resumes": counts["resumes_total"],
            "takeovers": counts["takeovers_total"],
            "lost": counts["tokens_lost_total"],
            "abnormal": self._recorded,
        }


def _heard(entry: _Entry) -> float:
    return entry.heard


def _number(entry: _Entry) -> int:
    return entry.number


def _short(text: str | None) -> str | None:
    return None if text is None else text[:_LONG]


def _require_who(password: object, authorize: object) -> None:
    if (password is None) == (authorize is None):
        raise TypeError(
            "Live shows the streams of everybody, so it must be told who may see them: Live(password=…), which a "
            "browser asks for, or Live(authorize=…), a function of (request, action) that answers a name, or None"
        )
    if authorize is not None:
        return  # it is looked at where there are endpoints, as that of a guard is
    if not isinstance(password, str):
        raise TypeError(f"password is a text, not {shown(password)}")
    if len(password) < _MIN_PASSWORD:
        raise ValueError(f"the password has at least {_MIN_PASSWORD} characters: {_EXAMPLE}")


_EXAMPLE: Final = 'python -c "import secrets; print(secrets.token_urlsafe())" makes one'
