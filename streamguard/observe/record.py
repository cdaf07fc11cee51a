"""One record for each part of a stream that did not end complete and delivered: what to read first when somebody asks
why.

    @guarded(observe=Recorder())

Each record goes to the logger `streamguard.abnormal`, as a warning; with `JsonLines` as the formatter of its handler it
is one JSON object a line. It holds numbers, codes and the labels of the request, and the state of the process at that
moment; never content, nor the message of a failure, which the application may have written, nor an id that grants
access.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, Final

import attrs

from streamguard.core.arguments import one_line
from streamguard.observe.hooks import (
    AbortNotCarried,
    Acknowledged,
    Blocked,
    Closed,
    FirstFrame,
    Frames,
    Observer,
    Opened,
    Part,
    Resumed,
    SourceClosed,
    StreamDetails,
    TakenOver,
)
from streamguard.observe.system import Surroundings, System

__all__ = ["LOGGER", "JsonLines", "Record", "Recorder"]

LOGGER: Final = "streamguard.abnormal"

_logger = logging.getLogger(LOGGER)
_LONG: Final = 200  # characters of a label that came with a request: more would be a way to fill a log
_WORD: Final = re.compile(r"[\w.:/{}<>@+*~-]+", re.ASCII)  # what needs no quotes in a line
_ORDERLY: Final = ("replaced", "rotate", "shutdown")  # of a reader that was sent elsewhere: nothing is amiss


@attrs.frozen
class Record:
    """One stream, or one part of it, that did not end as it should.

    `time` is when it ended (UTC), `stream` the first characters of its id, as in the log. `status` and `cause` are
    those of its Outcome; a reader whose connection ended before its stream is `parted`. `items`, `frames`, `bytes` and
    `sent` are what was made, `lost` frames that no reader can have been given. `cursor` is where it stood,
    `seq.offset.crc`, `acked` the last frame that a reader is known to have, `resumed_at` the one that it came back
    with, `taken_over_at` the one behind which this process went on.

    Seconds from its beginning: `first_item`, `first_frame` and `ended`; `blocked` is how long it waited for its reader
    in all, `closing` how long its source took to close; None for what never happened. `hop` is what hid the abort from
    the reader. `trace_id` is that of the stream's span, where an observer makes one (`Traces`), else of the request's
    `traceparent`. `route` is that of the framework, of a proxy's request the path. `system` is the process then.
    """

    time: str
    part: Part
    stream: str
    status: str
    cause: str
    delivered: str
    abandoned: bool
    let_go: bool
    items: int
    frames: int
    bytes: int
    sent: int
    lost: int
    cursor: str
    acked: int | None
    resumed_at: int | None
    taken_over_at: int | None
    first_item: float | None
    first_frame: float | None
    ended: float
    blocked: float
    closing: float | None
    hop: str | None
    request_id: str | None
    trace_id: str | None
    route: str | None
    system: System

    def as_dict(self) -> dict[str, Any]:
        """The same, as JSON has it."""
        return attrs.asdict(self)

    def __str__(self) -> str:
        """One line, of what is not nothing."""
        facts = {name: value for name, value in self.as_dict().items() if value is not None and value is not False}
        head = f"stream {facts.pop('stream')} ({facts.pop('part')}) ended as {facts.pop('status')}"
        facts.pop("time")
        system = " ".join(f"{name}={value}" for name, value in facts.pop("system").items() if value is not None)
        return f"{head}: {' '.join(f'{name}={_field(value)}' for name, value in facts.items())}; process: {system}"


@attrs.define
class _Way:
    """What is remembered of a part while it is open."""

    first_frame: float | None = None
    acked: int | None = None
    resumed_at: int | None = None
    taken_over_at: int | None = None
    blocked: float = 0.0
    closing: float | None = None
    hop: str | None = None


class Recorder(Observer):
    """Makes the records, and gives each to `to`, by default the logger `streamguard.abnormal`.

    A reader that was sent elsewhere in order (`replaced`, `rotate`, `shutdown`) has none.
    """

    def __init__(self, to: Callable[[Record], object] | None = None) -> None:
        self._to = _logged if to is None else to
        self._around = Surroundings()
        self._lock = threading.Lock()
        self._open: dict[StreamDetails, _Way] = {}

    def attached(self, source: Any) -> None:
        self._around.attached(source)

    def opened(self, event: Opened) -> None:
        self._around.opened(event)
        with self._lock:
            self._open[event.stream] = _Way()

    def first_frame(self, event: FirstFrame) -> None:
        self._open[event.stream].first_frame = _rounded(event.seconds)

    def frames(self, event: Frames) -> None:
        self._around.noted(event)

    def acknowledged(self, event: Acknowledged) -> None:
        self._open[event.stream].acked = event.frame

    def resumed(self, event: Resumed) -> None:
        self._open[event.stream].resumed_at = event.frame

    def taken_over(self, event: TakenOver) -> None:
        if event.gone_on:
            self._open[event.stream].taken_over_at = event.frame

    def blocked(self, event: Blocked) -> None:
        self._open[event.stream].blocked += event.seconds

    def source_closed(self, event: SourceClosed) -> None:
        if not event.abandoned:
            self._open[event.stream].closing = _rounded(event.seconds)

    def abort_not_carried(self, event: AbortNotCarried) -> None:
        self._open[event.stream].hop = event.hop

    def closed(self, event: Closed) -> None:
        self._around.closed(event)
        with self._lock:
            way = self._open.pop(event.stream)
        orderly = event.outcome.status == "parted" and event.cause in _ORDERLY
        if not event.whole and not orderly:
            self._to(_record(event, way, self._around.look()))


def _record(event: Closed, way: _Way, system: System) -> Record:
    stream, outcome = event.stream, event.outcome
    ended = datetime.fromtimestamp(stream.wall + event.at - stream.started, timezone.utc)
    first = outcome.first_item
    return Record(
        time=ended.isoformat(timespec="milliseconds"),
        part=stream.part,
        stream=stream.name,
        status=outcome.status,
        cause=event.cause,
        delivered=outcome.delivered,
        abandoned=outcome.abandoned,
        let_go=outcome.let_go,
        items=outcome.items,
        frames=outcome.frames,
        bytes=outcome.bytes,
        sent=outcome.sent,
        lost=event.lost,
        cursor=f"{outcome.cursor.seq}.{outcome.cursor.offset}.{outcome.cursor.crc:08x}",
        acked=way.acked,
        resumed_at=way.resumed_at,
        taken_over_at=way.taken_over_at,
        first_item=None if first is None else _rounded(first - stream.started),
        first_frame=way.first_frame,
        ended=_rounded(event.at - stream.started),
        blocked=_rounded(way.blocked),
        closing=way.closing,
        hop=way.hop,
        request_id=_short(stream.labels.request_id),
        trace_id=event.trace_id or stream.labels.trace_id,
        route=_short(stream.labels.route or stream.labels.path),
        system=system,
    )


def _logged(record: Record) -> None:
    _logger.warning("%s", record, extra={"streamguard": record})


class JsonLines(logging.Formatter):
    """A formatter that writes a Record as one JSON object, and every other line as `{"time", "level", "message"}`."""

    def format(self, record: logging.LogRecord) -> str:
        found: Any = getattr(record, "streamguard", None)
        if isinstance(found, Record):
            return json.dumps(found.as_dict())
        made = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        return json.dumps({"time": made, "level": record.levelname, "message": record.getMessage()})


def _rounded(seconds: float) -> float:
    return round(seconds, 6)


def _short(text: str | None) -> str | None:
    return None if text is None else one_line(text[:_LONG])


def _field(value: Any) -> Any:
    """A value as a line has it. One that came with a request could otherwise end its field, and forge the next."""
    return value if not isinstance(value, str) or _WORD.fullmatch(value) else json.dumps(one_line(value))
