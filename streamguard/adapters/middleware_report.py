"""What a middleware saw: the summary that a team reads after a week, one log line a stream that would be refused,
and one an endpoint of which some streams lack the last event of the others.

Everything in it is bounded, whatever paths and codes a server meets.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, Literal

import attrs

from streamguard.core.arguments import one_line
from streamguard.core.errors import Failure

__all__ = ["Ends", "Refused", "Report", "Verdict"]

logger = logging.getLogger("streamguard")

Verdict = Literal["complete", "failed", "left"]

_MAX_NAMES: Final = 200  # endpoints, and codes, that are counted apart
_MAX_RECENT: Final = 100  # refused streams that are kept
_MAX_LAST: Final = 8  # last events of an endpoint that are counted apart
_MAX_HINTS: Final = 3  # in the line
_OTHERS: Final = "(others)"


@attrs.frozen
class Refused:
    """One stream that was, or would have been, refused a clean end."""

    endpoint: str
    verdict: Verdict
    code: str
    message: str
    request_id: str | None = None


@attrs.define
class Ends:
    """What ended the complete streams of an endpoint: a marker that they had to have, by their API or by `end=`; else
    the application's own end. `last` counts the last events of the latter, each as the rule that knows it again; the
    rarest give way to new ones."""

    marker: int = 0
    own: int = 0
    last: dict[str, int] = attrs.field(factory=dict)
    _told: bool = attrs.field(default=False, init=False, eq=False, repr=False)

    def add(self, last: str | None) -> None:
        """One more: by a marker, or by the application's own end behind its `last` event."""
        if last is None:
            self.marker += 1
            return
        self.own += 1
        if last not in self.last and len(self.last) >= _MAX_LAST:
            del self.last[min(self.last, key=self.last.__getitem__)]
        self.last[last] = self.last.get(last, 0) + 1

    @property
    def hint(self) -> str:
        """What to do about streams that stopped where most others had one more event; empty where none did."""
        event, count = max(self.last.items(), key=lambda pair: pair[1], default=("", 0))
        if not event or not self.own / 2 < count < self.own:
            return ""
        return (
            f"{count} of {self.own} streams that may end as they like had `{event}` last, and {self.own - count} had "
            f"not: if that is their end, say end=lambda event: {event}"
        )

    def hint_to_log(self) -> str:
        """The hint, the first time that there is one: whoever reads no summary would not learn of it."""
        hint = "" if self._told else self.hint
        self._told = self._told or bool(hint)
        return hint


@attrs.define(eq=False)
class Report:
    """Counts of the streams that ended, in one process.

    `complete` ended with proof; `refused` did not; of `left` the reader left before the end, which proves nothing about
    the application. `unjudged` are answers beside them that came in parts, without a length, and are of no kind that is
    judged, plain text say: their end proves nothing. `codes` says why, `endpoints` where (streams, and refused ones, by
    method and route), `recent` has the last hundred that were refused. `ends` says, by endpoint, what ended those that
    a middleware in report mode saw complete.
    """

    streams: int = 0
    complete: int = 0
    refused: int = 0
    left: int = 0
    unjudged: int = 0
    codes: dict[str, int] = attrs.field(factory=dict)
    endpoints: dict[str, list[int]] = attrs.field(factory=dict)
    recent: deque[Refused] = attrs.field(factory=lambda: deque(maxlen=_MAX_RECENT))
    ends: dict[str, Ends] = attrs.field(factory=dict)

    def add(self, endpoint: str, verdict: Verdict, failure: Failure | None, request_id: str | None = None) -> None:
        """Count one stream."""
        self.streams += 1
        counts = self.endpoints.setdefault(_known(endpoint, self.endpoints), [0, 0])
        counts[0] += 1
        if verdict == "complete":
            self.complete += 1
        elif verdict == "left":
            self.left += 1
        else:
            counts[1] += 1
            self.refused += 1
            failure = failure or Failure(verdict, "")
            code = _known(failure.code, self.codes)
            self.codes[code] = self.codes.get(code, 0) + 1
            self.recent.append(Refused(endpoint, verdict, failure.code, failure.message, request_id))

    def ended(self, endpoint: str, last: str | None) -> None:
        """Of a stream that is counted as complete, what ended it: see `Ends.add`. One log line an endpoint, where that
        says what to do."""
        endpoint = _known(endpoint, self.ends)
        ends = self.ends.setdefault(endpoint, Ends())
        ends.add(last)
        if hint := ends.hint_to_log():
            early = "until then one that stops early is complete, in guard mode too"
            logger.warning("%s: %s; %s", one_line(endpoint), one_line(hint), early)

    @property
    def hints(self) -> list[str]:
        """What to do, by endpoint."""
        return [f"{endpoint}: {ends.hint}" for endpoint, ends in self.ends.items() if ends.hint]

    def as_dict(self) -> dict[str, Any]:
        """The same, as JSON has it."""
        return {
            "streams": self.streams,
            "complete": self.complete,
            "refused": self.refused,
            "left": self.left,
            "unjudged": self.unjudged,
            "codes": dict(self.codes),
            "endpoints": {
                endpoint: {"streams": streams, "refused": refused, **_ended(self.ends.get(endpoint))}
                for endpoint, (streams, refused) in self.endpoints.items()
            },
            "recent": [attrs.asdict(refused) for refused in self.recent],
        }

    def __str__(self) -> str:
        own = sum(ends.own for ends in self.ends.values())
        alone = f" ({own} of them by the application's own end alone)" if own else ""
        whole = f"{self.streams} streams: {self.complete} complete{alone}, {self.refused} refused, {self.left} left"
        if self.unjudged:
            whole += f", {self.unjudged} unjudged"
        if self.refused:
            whole += f" ({', '.join([f'{code} {count}' for code, count in _largest(self.codes)])})"
        return one_line("; ".join([whole, *self.hints[:_MAX_HINTS]]))

    def log(self, refused: Refused) -> None:
        """One line for a stream that would have been refused."""
        logger.warning(
            "a stream of %s would be refused a clean end: %s: %s: %s%s",
            one_line(refused.endpoint),
            refused.verdict,
            one_line(refused.code),
            one_line(refused.message),
            f" (request {one_line(refused.request_id[:64])})" if refused.request_id else "",
        )


def _ended(ends: Ends | None) -> dict[str, Any]:
    return {} if ends is None else {"by_marker": ends.marker, "by_own_end": ends.own, "hint": ends.hint}


def _known(name: str, counted: Mapping[str, Any]) -> str:
    return name if name in counted or len(counted) < _MAX_NAMES else _OTHERS


def _largest(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
