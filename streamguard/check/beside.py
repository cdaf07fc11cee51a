"""What else may be wrong, or is to be known, whatever way the answers ended. Each row stands by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from streamguard.check import settings
from streamguard.check.endings import short, verdict_of
from streamguard.check.evidence import Evidence, enough, lumps
from streamguard.check.fault import PAGES, Fault
from streamguard.core.receipt import Verdict

__all__ = ["BESIDE"]

_BEAT: Final = 15.0  # seconds of silence that a heartbeat should have filled


def _held_back(evidence: Evidence) -> str | None:
    held = [words for run in evidence.streams if (words := lumps(run))]
    if not held:
        return None
    return f"{held[0]}: a layer holds them back, or the server makes them all at once"


def _held_by_compression(evidence: Evidence) -> str | None:
    coded = [words for run in evidence.streams if run.coding != "identity" and (words := lumps(run))]
    if not coded or evidence.plain is None or lumps(evidence.plain) is not None:
        return None
    coding = next(run.coding for run in evidence.streams if run.coding != "identity")
    return f"{coded[0]}; without {coding} they come one by one: what compresses does not flush"


def _blocking(evidence: Evidence) -> str | None:
    probe = evidence.probe
    if probe is None or not evidence.blocked:
        return None
    heard = probe.answered if probe.answered is not None else probe.gave_up or 0.0
    return (
        f"while it made this answer the server answered nobody: a small request beside it took "
        f"{heard - probe.asked:.2f} s, and {probe.alone or 0.0:.3f} s when nothing ran"
    )


def _abort_lost(evidence: Evidence) -> str | None:
    test = evidence.selftest
    if test is not None and test.streamed and test.clean and not test.left:
        return "the stream that the server fails on purpose arrived with a clean end: a layer undoes the abort"
    for run in evidence.streams:
        if verdict_of(run) is Verdict.FAILED and run.clean and run.framed:
            return "the answer failed, and the connection ended cleanly: a layer undoes the abort"
    return None


def _http10(evidence: Evidence) -> str | None:
    """Some servers send chunks even so, and what asked reads them: where an abort was seen to arrive, it does."""
    if evidence.abort_came or not any(run.http10 for run in evidence.streams):
        return None
    return (
        "the server was asked by HTTP/1.0, by a layer in front of it: that has no form in which a cut body shows, so "
        "that an answer that fails may look whole here"
    )


def _differing(evidence: Evidence) -> str | None:
    texts = sorted({run.text for run in evidence.streams if run.text and not run.left}, key=len)
    for index, text in enumerate(texts):
        if any(longer.startswith(text) for longer in texts[index + 1 :]):
            count = sum(run.text == text for run in evidence.streams)
            return f"{count} of {len(evidence.streams)} answers stop where another goes on, and none says so"
    return None


def _left(evidence: Evidence) -> str | None:
    leave = evidence.leave
    if leave is None or leave.resumable or not leave.ignored:
        return None
    after = f"stopped {leave.stopped:.1f} s" if leave.stopped is not None else f"still ran {leave.waited:.0f} s"
    return f"the reader left, and the answer {after} after that, as one that is read to its end ({leave.by})"


def _runs_on(evidence: Evidence) -> str | None:
    leave = evidence.leave
    if leave is None or not leave.resumable or not leave.ignored:
        return None
    return "the reader left, and the answer ran on for one that comes back: it can be resumed"


def _unframed(evidence: Evidence) -> str | None:
    run = next((run for run in evidence.streams if not run.framed), None)
    if run is None:
        return None
    return f"the end of the body is the end of the connection ({run.version}): a cut answer looks whole"


def _silent(evidence: Evidence) -> str | None:
    longest = max((run.longest_silence for run in evidence.streams), default=0.0)
    return f"{longest:.0f} s passed without a byte: many layers end such a connection" if longest > _BEAT else None


def _cut_behind(evidence: Evidence) -> str | None:
    run = next((run for run in evidence.streams if run.end and run.end.whole and not run.clean and not run.left), None)
    if run is None or run.silent:
        return None
    return f"the answer is whole, and its connection broke off behind it ({short(run.why)})"


def _refused(evidence: Evidence) -> str | None:
    no = [run for run in evidence.runs if not run.streamed]
    return f"{len(no)} of {len(evidence.runs)} answers were no stream: {no[0].refusal or no[0].why}" if no else None


def _mislabelled(evidence: Evidence) -> str | None:
    found = any(run.mislabelled for run in evidence.streams)
    return "events come as text/plain: EventSource refuses them, and layers may look at them first" if found else None


def _unguarded(evidence: Evidence) -> str | None:
    whole = [run for run in evidence.streams if run.end is not None and run.end.whole]
    if not whole or any(run.guarded for run in evidence.streams):
        return None
    return "the end is proven by the API's own marker; whether something in the middle is missing nobody can see"


def _too_short(evidence: Evidence) -> str | None:
    if any(map(enough, evidence.streams)) or not evidence.streams:
        return None
    return "the answer is too short to tell whether a layer holds tokens back: ask for a longer one"


def _untried(evidence: Evidence) -> str | None:
    tried = evidence.selftest is not None and evidence.selftest.streamed
    return None if tried else f"whether an abort arrives was not seen: {evidence.untried}"


def _unseen(evidence: Evidence) -> str | None:
    leave = evidence.leave
    if leave is None or leave.told:
        return None
    return f"whether the server stops when its reader leaves was not seen: {leave.why_not or 'the answer is too short'}"


def _end_unseen(evidence: Evidence) -> str | None:
    left = [run for run in evidence.streams if run.left and run.end and not run.end.whole and run.end.error is None]
    if not left:
        return None
    count = len(evidence.runs)
    times = f" (in {len(left)} of {count} answers)" if count > 1 else ""
    return f"the answer was left after {left[0].ended or 0.0:.3g} s: its end was not seen{times}"


def _http1(evidence: Evidence) -> str | None:
    return None if evidence.offered_http2 else "HTTP/2 was not offered: what HTTP/2 clients get was not seen"


BESIDE: Final[Sequence[Fault[Evidence]]] = (
    Fault("refused", _refused, "the server's log, and its limits", PAGES["limits"]),
    Fault("abort_lost", _abort_lost, settings.abort, settings.abort_page),
    Fault("http10", _http10, settings.http10, settings.abort_page, unless=("abort_lost",)),
    Fault("tail_lost", _differing, settings.TAIL, PAGES["convert"]),
    Fault(
        "blocking", _blocking,
        "in the endpoint: run what blocks in a thread (a plain generator under @guarded runs in one)", PAGES["threads"],
    ),
    Fault("held_by_compression", _held_by_compression, settings.GZIP, PAGES["compress"], unless=("blocking",)),
    Fault("held_back", _held_back, settings.hold, PAGES["proxy"], unless=("blocking", "held_by_compression")),
    Fault("leave_ignored", _left, settings.LEAVE, PAGES["proxy"]),
    Fault("runs_on", _runs_on, "on_disconnect on the endpoint, if it should not", PAGES["resume"], "note"),
    Fault("mislabelled", _mislabelled, "Content-Type: text/event-stream", PAGES["convert"], "warning"),
    Fault("unframed", _unframed, "HTTP/1.1 towards the client", PAGES["proxy"], "warning"),
    Fault("silence", _silent, "heartbeats; a guarded stream has them (Timing.heartbeat)", PAGES["proxy"], "warning"),
    Fault("cut_behind", _cut_behind, "the server's log says what closed the connection", PAGES["proxy"], "warning"),
    Fault("unguarded", _unguarded, settings.guard, PAGES["first"], "note"),
    Fault("end_unseen", _end_unseen, "a longer --max-time", PAGES["check"], "note", ("failed",)),
    Fault("too_short", _too_short, "", PAGES["check"], "note"),
    Fault("abort_unseen", _untried, "", PAGES["check"], "note", ("abort_lost", "http10")),
    Fault("leave_unseen", _unseen, "--gauge URL#NAME", PAGES["check"], "note"),
    Fault("http1_only", _http1, 'pip install "streamguard-io[check]"', PAGES["check"], "note"),
)  # fmt: skip
