"""All that was seen of an endpoint: its answers, and what was tried beside them. No I/O."""

from __future__ import annotations

from statistics import median
from typing import Final

import attrs

from streamguard.check.observation import Observation
from streamguard.check.request import Request

__all__ = ["WAIT", "Evidence", "Leave", "Probe", "enough", "lumps"]

WAIT: Final = 0.3  # seconds: what takes longer than this did wait for something
_TIMES: Final = 5.0  # and longer than this many times what it takes when nothing else runs
_LUMP: Final = 8.0  # tokens at once, on average, that no model makes
_ENOUGH: Final = 16  # tokens from which on it can be told how they come
_LONG: Final = 0.4  # seconds that the answer must take for that
_AT_ONCE: Final = WAIT / 3  # seconds within which what comes is no stream


@attrs.define
class Probe:
    """A small request of another connection, made while the first answer ran; `asked` and `answered` as in
    Observation, `alone` is how long the same takes when nothing runs."""

    asked: float
    answered: float | None = None
    gave_up: float | None = None
    alone: float | None = None

    def waited_for(self, run: Observation) -> bool:
        """Whether it was answered only when the answer had ended, though there was time."""
        end, heard = run.ended, self.answered if self.answered is not None else self.gave_up
        if end is None or heard is None or self.alone is None or end - self.asked < WAIT:
            return False
        took = heard - self.asked
        early = self.answered is not None and self.answered < end - WAIT / 3
        return not early and took >= max(WAIT, _TIMES * self.alone)


@attrs.define
class Leave:
    """What became of an answer whose reader left. `by` says what it was seen by; `stopped` is seconds after leaving,
    None if it ran on for the `waited` seconds; `rest` is how long a whole answer would have gone on."""

    by: str
    rest: float
    waited: float
    stopped: float | None = None
    why_not: str = ""
    """Why nothing can be said."""
    resumable: bool = False
    """Whether its reader may come back, so that it may run on."""

    @property
    def told(self) -> bool:
        """Whether there was an answer to stop."""
        return not self.why_not and self.rest >= WAIT

    @property
    def ignored(self) -> bool:
        """Whether it ran on to about its end."""
        return self.told and (self.stopped is None or (self.stopped >= WAIT and self.stopped >= 0.7 * self.rest))


@attrs.define
class Evidence:
    """`runs` are the answers to the request, in order; `plain` is one more, without compression; `selftest` the stream
    that the server fails on purpose, or else `untried` says why there is none."""

    request: Request
    runs: list[Observation] = attrs.field(factory=list)
    probe: Probe | None = None
    plain: Observation | None = None
    selftest: Observation | None = None
    untried: str = ""
    leave: Leave | None = None
    offered_http2: bool = True
    """Or nobody wanted it."""

    @property
    def streams(self) -> list[Observation]:
        return [run for run in self.runs if run.streamed]

    @property
    def nothing(self) -> str:
        """Why there was no stream to check; empty where there was one."""
        if self.streams:
            return ""
        return next((run.refusal or run.why for run in self.runs), "nothing was asked")

    @property
    def http2(self) -> bool:
        """Whether an answer came over HTTP/2."""
        return any(run.version == "HTTP/2" for run in self.runs)

    @property
    def nginx(self) -> bool:
        """Whether nginx is known to stand in between."""
        return any(run.nginx for run in self.runs)

    @property
    def abort_came(self) -> bool:
        """Whether a guarded stream that failed was seen to break off."""
        test = self.selftest
        return test is not None and test.streamed and not (test.clean or test.left or test.silent)

    @property
    def blocked(self) -> bool:
        """Whether the server answered nobody else while it made the first answer."""
        return self.probe is not None and bool(self.runs) and self.probe.waited_for(self.runs[0])


def lumps(run: Observation) -> str | None:
    """How the tokens came, in words, if they came in lumps."""
    bursts, count, end = run.bursts, len(run.arrivals), run.ended
    if not enough(run) or count / len(bursts) < _LUMP or end is None:
        return None
    first = run.first_token or 0.0
    if run.arrivals[-1] - first <= _AT_ONCE:  # a hop that held them passes on what it has in one piece, or in a few
        if first < WAIT:
            return None
        head = run.head or 0.0
        alone = f", though the headers had come after {head:.2f} s" if first - head >= WAIT else ""
        pieces = "one piece" if len(bursts) == 1 else f"{len(bursts)} pieces, all of them"
        return f"all {count} tokens came in {pieces} after {first:.2f} s{alone}"
    pauses = [gap for gap in run.gaps if gap > _AT_ONCE]
    if not pauses:
        return None
    return f"{count} tokens came in {len(bursts)} lumps, {median(pauses):.2f} s apart"


def enough(run: Observation) -> bool:
    """Whether the answer is long enough to tell how its tokens come."""
    return len(run.arrivals) >= _ENOUGH and (run.ended or 0.0) >= _LONG


