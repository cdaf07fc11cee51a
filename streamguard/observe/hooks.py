"""The seam for metrics, traces and bills: what happens to a stream, told from outside of it.

Two ways to be told. `on_end` is given one `Outcome` a stream: every stream ends in exactly one, on every exit, an
instant disconnect included. An `Observer` is told of what happens on the way too, by a method for each kind of event:

    class Watch(Observer):
        def first_frame(self, event: FirstFrame) -> None:
            print(event.stream.part, event.seconds)

    @guarded(observe=Watch())

* An event is a frozen fact without content. It names a stream by what the log names it by, which grants nobody access;
  only the Outcome in `Closed` has a whole cursor, and what a failure's message says: keep those out of logs.
* A hook that raises harms no stream: it is logged, once. Hooks are plain functions, called where the event happens, on
  the event loop of the stream or on its thread; they must not block.
* No token calls a hook. `frames` tells how many came since it was called last, at the wakes of the stream's clock and
  at its end. Without observers a stream does nothing for their sake.
* `stream` is the same object in all events of one part of a stream, so that an observer may use it as a key. A stream
  in a log has a part that generates, and one for each connection that reads it.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import Context
from typing import Any, Final, Literal

import attrs

from streamguard.core.arguments import is_number, shown
from streamguard.core.codes import recorded
from streamguard.observe.stream import Counts, Delivered, Outcome, Part, Passing, RequestLabels, Sampled, StreamDetails

__all__ = [
    "AbortNotCarried",
    "Acknowledged",
    "Blocked",
    "Closed",
    "Counts",
    "Delivered",
    "FirstFrame",
    "Frames",
    "Observer",
    "Observers",
    "OnEnd",
    "Opened",
    "Outcome",
    "Part",
    "Passed",
    "Passing",
    "ReaderGone",
    "Refused",
    "RequestLabels",
    "Resumed",
    "Sampled",
    "SourceClosed",
    "Stalled",
    "StreamDetails",
    "TakenOver",
    "Terminal",
    "observers_of",
]

logger = logging.getLogger("streamguard")

OnEnd = Callable[[Outcome], Awaitable[None] | None]


# ---- events -----------------------------------------------------------------------------------


@attrs.frozen
class Opened:
    """A part of a stream begins: before its source is started, and before its headers. `count` answers how far it is,
    to whoever asks, at any time and from any thread, until it is closed."""

    stream: StreamDetails
    at: float
    count: Callable[[], Counts] = attrs.field(default=Counts, eq=False, repr=False)


@attrs.frozen
class FirstFrame:
    """The first frame with content was handed to the transport, `seconds` after the stream began."""

    stream: StreamDetails
    at: float
    seconds: float


@attrs.frozen
class Frames:
    """What came since the last event of this kind: items of the source, frames and bytes of their data, and `sent`
    bytes of the body. `lag` is how late the event loop was lately, `log_latency` how long the newest append took; None
    where that is not known. Seconds."""

    stream: StreamDetails
    at: float
    items: int
    frames: int
    bytes: int
    sent: int
    lag: float | None = None
    log_latency: float | None = None


@attrs.frozen
class Stalled:
    """The source was silent for `silent` seconds, the limit; the stream ends for it."""

    stream: StreamDetails
    at: float
    silent: float


@attrs.frozen
class Blocked:
    """Something waited for the reader, for `seconds`, and does no more. `by`: `transport` is a write that was under
    way when the stream's clock looked, or when its reader left, `credit` a reader that granted none, `lead` a source
    that was too far ahead. Under WSGI, where no clock looks at a write, only the one at which the reader left is told.
    """

    stream: StreamDetails
    at: float
    by: Literal["transport", "credit", "lead"]
    seconds: float


@attrs.frozen
class Resumed:
    """A reader came back, with the cursor of frame `frame`. `replayed` is how many frames behind it were stored by
    then: a lower bound of what an earlier connection may have been sent for nothing; None where that is not known."""

    stream: StreamDetails
    at: float
    frame: int
    replayed: int | None


@attrs.frozen
class TakenOver:
    """A stream whose process is gone was taken over here, behind frame `frame`, by lease `lease`, after `crashes`.
    Where nobody knew how to go on `gone_on` is False: it was given its end."""

    stream: StreamDetails
    at: float
    frame: int
    lease: int
    crashes: int
    gone_on: bool


@attrs.frozen
class Terminal:
    """The stream's terminal was made. `cause` is the failure's code, empty for `complete`."""

    stream: StreamDetails
    at: float
    status: str
    cause: str


@attrs.frozen
class Acknowledged:
    """A reader has everything up to frame `frame`. `rtt`: seconds from the frame's sending to this, where it was
    measured."""

    stream: StreamDetails
    at: float
    frame: int
    rtt: float | None


@attrs.frozen
class ReaderGone:
    """The reader left (`gone`), took nothing (`slow`), or was sent elsewhere (`replaced`, `shutdown`, …)."""

    stream: StreamDetails
    at: float
    cause: str


@attrs.frozen
class SourceClosed:
    """The source is closed, `seconds` after it was told; or `abandoned`, because it did not stop in time."""

    stream: StreamDetails
    at: float
    seconds: float
    abandoned: bool


@attrs.frozen
class Refused:
    """A request got no stream, or was told no by the endpoints of streams: `why` is the code of its answer, `status`
    that of HTTP. `unsealed`, 500, is one that was given up because its layers would hide a cut (UnsealedResponse). A
    proxy tells of every request that it answers itself, in place of its upstream."""

    why: str
    status: int
    labels: RequestLabels


@attrs.frozen
class Passed:
    """What became of a request that a proxy passed on. `status` is that of its upstream's answer, None where there was
    none; `cause` the code of how it failed, empty where it did not; `answered` the status that the client was given,
    None where that left before."""

    request: Passing
    status: int | None
    cause: str
    answered: int | None = None


@attrs.frozen
class AbortNotCarried:
    """A stream that did not complete was aborted where its reader cannot see that: `hop` is `http10`, or
    `base_middleware` where Starlette's BaseHTTPMiddleware stands outside. The terminal stands alone."""

    stream: StreamDetails
    at: float
    hop: str


@attrs.frozen
class Closed:
    """A part of a stream is over, and this is its last event. `lost` is how many frames were made and let through by
    no guard, or taken by no log. `lag` and `log_latency` as in Frames. `trace_id`: see Observer.trace_of."""

    stream: StreamDetails
    at: float
    outcome: Outcome
    lost: int = 0
    lag: float | None = None
    log_latency: float | None = None
    trace_id: str | None = None

    @property
    def whole(self) -> bool:
        """Whether nothing is to be said of it: its end was reached, and nobody is known to have missed any of it. A
        reader of a stream in a log that has its end is done, however the stream ended."""
        outcome = self.outcome
        if self.lost or outcome.abandoned or outcome.status == "parted":
            return False
        if self.stream.part == "reader" and outcome.status != "complete":
            return True  # it was told how its stream ended
        return outcome.status == "complete" and outcome.delivered != "no"

    @property
    def cause(self) -> str:
        """Why it ended: the failure's code, `own` for one of the application's that is a text. Empty for `complete`,
        and for a reader that was told its stream's end."""
        return "" if self.outcome.failure is None else recorded(self.outcome.failure.code)


class Observer:
    """What is told of streams: derive from it, and write the hooks that you need. None of these does anything.

    One token in `every` is timed on its way, for `sampled`; 0 is none, and costs nothing.
    """

    every: int = 0

    def attached(self, source: Any) -> None:
        """Something that says what the application does now was given to this observer: an Admission (`waiting`,
        `detached`), or what drains (`ready`). It may come again."""

    def began(self, labels: RequestLabels) -> str | None:
        """A stream in a log is about to be made. What this answers is kept with it there, and is the `origin` of all
        its parts, also where another process goes on with it: a `traceparent`, which must grant nobody anything."""

    def entered(self, stream: StreamDetails) -> None:
        """Called in the context that the source runs in, before it begins: what is set in a context variable here is
        seen by the source, and by what that calls. For one with a thread of its own in both contexts."""

    def passing(self, request: Passing) -> Mapping[str, str] | None:
        """A proxy is about to pass a request on, in the current context. What this answers is sent along, in place of
        the request's own headers of these names; one that is empty is left out. `passed` comes in the same context."""

    def trace_of(self, stream: StreamDetails) -> str | None:
        """A part of a stream is about to be closed: the id of the trace that it belongs to here, for `Closed`."""

    def opened(self, event: Opened) -> None: ...
    def first_frame(self, event: FirstFrame) -> None: ...
    def frames(self, event: Frames) -> None: ...
    def stalled(self, event: Stalled) -> None: ...
    def blocked(self, event: Blocked) -> None: ...
    def resumed(self, event: Resumed) -> None: ...
    def taken_over(self, event: TakenOver) -> None: ...
    def terminal(self, event: Terminal) -> None: ...
    def acknowledged(self, event: Acknowledged) -> None: ...
    def reader_gone(self, event: ReaderGone) -> None: ...
    def sampled(self, event: Sampled) -> None: ...
    def source_closed(self, event: SourceClosed) -> None: ...
    def refused(self, event: Refused) -> None: ...
    def passed(self, event: Passed) -> None: ...
    def abort_not_carried(self, event: AbortNotCarried) -> None: ...
    def closed(self, event: Closed) -> None: ...


_HOOKS: Final[dict[type, str]] = {
    Opened: "opened",
    FirstFrame: "first_frame",
    Frames: "frames",
    Stalled: "stalled",
    Blocked: "blocked",
    Resumed: "resumed",
    TakenOver: "taken_over",
    Terminal: "terminal",
    Acknowledged: "acknowledged",
    ReaderGone: "reader_gone",
    Sampled: "sampled",
    SourceClosed: "source_closed",
    Refused: "refused",
    Passed: "passed",
    AbortNotCarried: "abort_not_carried",
    Closed: "closed",
}


class Observers:
    """Several observers as one, each told of everything, in their order. Raises TypeError for a hook that is async."""

    def __init__(self, members: Iterable[Observer]) -> None:
        self.members = tuple({id(each): each for each in members}.values())  # those that are equal are two
        self._hooks = {kind: self._those_of(name) for kind, name in _HOOKS.items()}
        self._attached, self._began, self._entered = map(self._those_of, ("attached", "began", "entered"))
        self._passing, self._trace_of = map(self._those_of, ("passing", "trace_of"))
        self.every = min((each.every for each in self.members if is_number(each.every) and each.every > 0), default=0)
        self._told: set[int] = set()  # which hooks raised, and were logged

    def _those_of(self, name: str) -> list[Callable[[Any], object]]:
        unused = getattr(Observer, name)
        found = [getattr(each, name) for each in self.members]  # of the instance: it may have been set there
        hooks = [hook for hook in found if getattr(hook, "__func__", None) is not unused]
        for hook in hooks:
            if inspect.iscoroutinefunction(hook):
                raise TypeError(f"observe: {shown(hook)} is a coroutine function: write a plain `def`")
        return hooks

    def tell(self, event: Any) -> None:
        """Tell all of an event. Raises nothing but what ends the program."""
        for hook in self._hooks[type(event)]:
            self._call(hook, event)

    def attach(self, *sources: Any) -> None:
        """Tell all where to ask what the application does now. None is nothing."""
        for source in sources:
            for hook in self._attached if source is not None else ():
                self._call(hook, source)

    def began(self, labels: RequestLabels) -> str | None:
        """The origin of a stream that is about to be made: the first that any of them answers."""
        answers = [self._call(hook, labels) for hook in self._began]
        return next((answer for answer in answers if isinstance(answer, str)), None)

    def trace_of(self, stream: StreamDetails) -> str | None:
        """The id of its trace: the first that any of them answers."""
        return next((found for hook in self._trace_of if isinstance(found := self._call(hook, stream), str)), None)

    def passing(self, request: Passing) -> dict[str, str]:
        """The headers that all of them want to be sent along with a request, with names in lower case."""
        answers = [self._call(hook, request) for hook in self._passing]
        pairs = [pair for each in answers if isinstance(each, Mapping) for pair in each.items()]
        # What is no ASCII cannot be sent, and an observer must not fail the request.
        good = [pair for pair in pairs if all(isinstance(part, str) and part.isascii() for part in pair)]
        return {name.lower(): value for name, value in good}

    def enter(self, stream: StreamDetails, context: Context | None) -> None:
        """Tell all that the source runs in the current context; in `context`, if given."""
        for hook in self._entered:
            if context is None:
                self._call(hook, stream)
            else:
                context.run(self._call, hook, stream)

    def _call(self, hook: Callable[[Any], object], argument: Any) -> object:
        try:
            return hook(argument)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # a cancellation that a hook makes up must not pass for the stream's own
            if id(hook) not in self._told:
                self._told.add(id(hook))
                logger.exception("an observer raised, which is logged this once: %s", shown(hook))
        return None


def observers_of(value: Any) -> Observers | None:
    """What was given as `observe`: an Observer, a list of them, or None. Raises TypeError."""
    if value is None or isinstance(value, Observers):
        return value
    members = (value,) if isinstance(value, Observer) else value
    if isinstance(members, (list, tuple)) and all(isinstance(each, Observer) for each in members):
        return Observers(members) if members else None
    raise TypeError(f"observe is an Observer, or a list of them, for example Recorder(); not {shown(value)}")
