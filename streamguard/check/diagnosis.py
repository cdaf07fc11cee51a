"""The table of faults: what shows each of them, the setting to change, and the page that explains it.

    for finding in diagnose(evidence): ...        # the worst first

`ENDINGS` are looked at in order, and the first that fits is how an answer ended. `OTHERS` stand beside it, each by
itself. To name one more fault, write what shows it and put it into its table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal

import attrs

from streamguard.check.evidence import Evidence, enough, lumps
from streamguard.check.observation import Observation
from streamguard.core.receipt import Verdict

__all__ = ["CODES", "ENDINGS", "OTHERS", "Ending", "Finding", "Other", "Severity", "diagnose"]

Severity = Literal["fault", "warning", "note"]
Words = str | Callable[[Evidence], str]

_IDLE: Final = 1.0  # seconds of silence before an end from which on a limit is the likelier cause
_RHYTHM: Final = 3.0  # and so many times the usual gap
_BEAT: Final = 15.0  # seconds of silence that a heartbeat should have filled
_NEAR: Final = 0.05  # how far a limit may be missed, as a part of it
_IDLE_LIMITS: Final = {
    30: "CloudFront", 55: "Heroku", 60: "nginx and AWS load balancers", 120: "Cloudflare", 240: "Azure load balancers",
    300: "Envoy",
}  # fmt: skip
_WHOLE_LIMITS: Final = {15: "Envoy's routes", 29: "AWS API Gateway", 30: "Google Cloud's load balancers"}

_PROXY: Final = "docs/how-to/behind-a-proxy.md"
_CONVERT: Final = "docs/how-to/convert-an-endpoint.md"
_UPSTREAM: Final = "docs/how-to/read-a-model-server.md"
_GUARANTEES: Final = "docs/explanation/guarantees.md"


@attrs.frozen
class Finding:
    """One thing that was found. `words` say what, `setting` what to change, `page` where it is explained."""

    code: str
    severity: Severity
    words: str
    setting: str = ""
    page: str = ""


@attrs.frozen
class Ending:
    """A way in which an answer may have ended. `shown` answers words if it is this one."""

    code: str
    shown: Callable[[Observation], str | None]
    setting: Words
    page: Words
    severity: Severity = "fault"


@attrs.frozen
class Other:
    """Anything else that all that was seen may show."""

    code: str
    shown: Callable[[Evidence], str | None]
    setting: Words
    page: Words
    severity: Severity = "fault"


def diagnose(evidence: Evidence) -> list[Finding]:
    """What is wrong, faults first; nothing where there was no stream."""
    if not evidence.streams and not any(map(_idle_cut, evidence.runs)):
        return []
    found: dict[str, tuple[Ending, str, int]] = {}
    for run in evidence.runs:
        for ending in ENDINGS:
            if (words := ending.shown(run)) is not None:
                _, first, times = found.get(ending.code, (ending, words, 0))
                found[ending.code] = (ending, first, times + 1)
                break
    findings = []
    for ending, words, times in found.values():
        of = f" (in {times} of {len(evidence.runs)} answers)" if len(evidence.runs) > 1 else ""
        findings.append(_finding(ending, words + of, evidence))
    for other in OTHERS:
        if (said := other.shown(evidence)) is not None and other.code not in found:
            findings.append(_finding(other, said, evidence))
    rank: dict[Severity, int] = {"fault": 0, "warning": 1, "note": 2}
    return sorted(findings, key=lambda finding: rank[finding.severity])


def _finding(entry: Ending | Other, words: str, evidence: Evidence) -> Finding:
    setting, page = (part if isinstance(part, str) else part(evidence) for part in (entry.setting, entry.page))
    return Finding(entry.code, entry.severity, words[:1].upper() + words[1:] + ".", setting, page)


# ---- how an answer ended ------------------------------------------------------------------------


def _how(run: Observation) -> str:
    """What the end looks like to a client that counts bytes."""
    if run.clean:
        return "the connection ended cleanly, so the answer looks whole" if run.status is not None else "it was closed"
    return "the connection broke off"


def _verdict(run: Observation) -> Verdict | None:
    receipt = None if run.end is None else run.end.receipt
    return None if receipt is None else receipt.verdict


def _unended(run: Observation) -> bool:
    """Whether the answer stopped without an end and without an error, by the other side's doing."""
    if run.end is None or run.left or run.end.whole or run.end.error is not None:
        return False
    receipt = run.end.receipt
    return receipt.verdict is Verdict.TRUNCATED if receipt is not None else not run.end.marker


def _broken(run: Observation) -> str | None:
    return run.end.fault if run.end and _verdict(run) in (Verdict.CORRUPT, Verdict.GAP) else None


def _done_after_error(run: Observation) -> str | None:
    end = run.end
    if end is None or end.error is None or not end.marker or end.receipt is not None:
        return None
    return f"the stream reports an error ({_short(end.error.message)}), and then ends as if it were complete"


def _failed(run: Observation) -> str | None:
    end = run.end
    if end is None or (end.error is None and _verdict(run) is not Verdict.FAILED):
        return None
    error = end.error or (end.receipt.failure if end.receipt is not None else None)
    return f"the answer failed: {_short(error.message) if error is not None else 'its end says so'}"


def _idle_cut(run: Observation) -> str | None:
    if run.left or run.silent:
        return None
    silence = run.tail_silence
    if run.status in (408, 504, 524) and (run.head or 0.0) >= _IDLE:
        return f"nothing was sent for {run.head:.1f} s, and then a layer answered {run.status}"
    if run.status is None:
        early = run.ended is not None and silence >= _IDLE and run.version != "none"
        return f"after {silence:.1f} s without an answer the connection was closed" if early else None
    if not _unended(run) or silence < max(_IDLE, _RHYTHM * run.usual_gap):
        return None
    return f"after {silence:.1f} s without a byte {_how(run)}{_known(silence, _IDLE_LIMITS)}"


def _stalled(run: Observation) -> str | None:
    if not run.silent or (run.end is not None and run.end.whole):
        return None
    return f"nothing came for {run.tail_silence:.0f} s, with the connection open"


def _cut(run: Observation) -> str | None:
    if run.clean or not _unended(run):
        return None
    whole = _known(run.ended or 0.0, _WHOLE_LIMITS)
    return f"{_how(run)} in the middle of the answer, after {run.ended or 0.0:.2f} s{whole} ({_short(run.why)})"


def _undone(run: Observation) -> str | None:
    if not run.clean or not _unended(run) or run.end is None or run.end.receipt is None:
        return None
    return "the guarded stream stops before its end, and the connection ended cleanly: a layer undid the abort"


def _tail_lost(run: Observation) -> str | None:
    end = run.end
    if end is None or not run.clean or not _unended(run):
        return None
    if end.torn:
        return "the last bytes are the beginning of an event whose rest never came; the connection ended cleanly"
    if end.known and not end.finished:
        return (
            f"the answer stops in the middle ({end.api}: no finish reason and no end marker), and the connection "
            "ended cleanly, so it looks whole"
        )
    return None


def _no_reason(run: Observation) -> str | None:
    end = run.end
    if end is None or end.receipt is not None or not end.unproven:
        return None
    return f"the end marker came and proves nothing: {end.unproven}"


def _no_terminal(run: Observation) -> str | None:
    end = run.end
    if end is None or not run.clean or not _unended(run):
        return None
    if end.known:
        return f"the answer is finished, and its end marker never came ({end.api})"
    return f"nothing in the stream says that it is over ({end.api}): one that is cut looks the same"


def _known(seconds: float, limits: dict[int, str]) -> str:
    for limit, whose in limits.items():
        if abs(seconds - limit) <= _NEAR * limit:
            return f" ({limit} s is the limit of {whose}, if nobody changes it)"
    return ""


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 120 else line[:119] + "…"


def _limit_setting(evidence: Evidence) -> str:
    if evidence.front in ("nginx", "openresty"):
        return "proxy_read_timeout in nginx: at least twice the heartbeat; and a heartbeat (a guarded stream has one)"
    return "the idle limit of each layer: at least twice the heartbeat (HAProxy: timeout server); a guarded stream has one"


_DONE_SETTING: Final = (
    "in the server: send the end marker only after a finish reason, never from a `finally`; "
    "in front of one that you cannot change: a guarded relay, which fails such an answer"
)

ENDINGS: Final[Sequence[Ending]] = (
    Ending("damaged", _broken, "whatever rewrites the body on the way: pass it through unchanged", _GUARANTEES),
    Ending("done_after_error", _done_after_error, _DONE_SETTING, _UPSTREAM),
    Ending("failed", _failed, "none on the way: the server's own log says why", "docs/reference/errors.md"),
    Ending("idle_cut", _idle_cut, _limit_setting, _PROXY),
    Ending("stalled", _stalled, "Timing(stall=…) on a guarded stream ends one that hangs", "docs/how-to/fail-well.md"),
    Ending("cut", _cut, "the server's log, and each layer's limit on a whole answer (Envoy: timeout: 0s)", _PROXY),
    Ending("abort_lost", _undone, lambda evidence: _abort_setting(evidence), _PROXY),
    Ending("tail_lost", _tail_lost, "in the endpoint: send what is held before the body ends; @guarded does", _CONVERT),
    Ending("done_without_reason", _no_reason, _DONE_SETTING, _UPSTREAM),
    Ending(
        "missing_terminal", _no_terminal,
        "in the endpoint: one last event that says so; @guarded writes it (a server that never does: --profile)", _CONVERT,
    ),
)  # fmt: skip


# ---- all else -----------------------------------------------------------------------------------


def _held_back(evidence: Evidence) -> str | None:
    held = [words for run in evidence.streams if (words := lumps(run))]
    if evidence.blocked or not held or _held_by_compression(evidence) is not None:
        return None
    return f"{held[0]}: a layer holds them back, or the server makes them all at once"


def _held_by_compression(evidence: Evidence) -> str | None:
    coded = [words for run in evidence.streams if run.coding != "identity" and (words := lumps(run))]
    if evidence.blocked or not coded or evidence.plain is None or lumps(evidence.plain) is not None:
        return None
    coding = next(run.coding for run in evidence.streams if run.coding != "identity")
    return f"{coded[0]}; without {coding} they come one by one: what compresses does not flush"


def _blocking(evidence: Evidence) -> str | None:
    probe = evidence.probe
    if probe is None or not evidence.blocked:
        return None
    heard = probe.answered if probe.answered is not None else probe.gave_up or 0.0
    return (
        f"while it made this answer the server answered nobody: a small request beside it took {heard - probe.asked:.2f} s, "
        f"and {probe.alone or 0.0:.3f} s when nothing ran"
    )


def _abort_lost(evidence: Evidence) -> str | None:
    test = evidence.selftest
    if test is not None and test.streamed and test.clean and not test.left:
        return "the stream that the server fails on purpose arrived with a clean end: a layer undoes the abort"
    for run in evidence.streams:
        if _verdict(run) is Verdict.FAILED and run.clean and run.framed:
            return "the answer failed, and the connection ended cleanly: a layer undoes the abort"
    return None


def _abort_setting(evidence: Evidence) -> str:
    if any(run.version == "HTTP/2" for run in evidence.runs):
        return "HAProxy: alpn http/1.1 on its bind line (2.6 ends an aborted body cleanly over HTTP/2); nginx: proxy_http_version 1.1"
    if evidence.front in ("nginx", "openresty"):
        return 'nginx: proxy_http_version 1.1 and proxy_set_header Connection "" (its default before 1.29.7 is HTTP/1.0)'
    return "HTTP/1.1 between each two layers (nginx: proxy_http_version 1.1); SealMiddleware outermost in the application"


def _abort_page(evidence: Evidence) -> str:
    http2 = any(run.version == "HTTP/2" for run in evidence.runs)
    return _PROXY + ("#haproxy" if http2 else "#nginx" if evidence.front in ("nginx", "openresty") else "")


def _differing(evidence: Evidence) -> str | None:
    texts = sorted({run.text for run in evidence.streams if run.text and not run.left}, key=len)
    for index, text in enumerate(texts):
        if any(longer.startswith(text) for longer in texts[index + 1 :]):
            short = sum(run.text == text for run in evidence.streams)
            return f"{short} of {len(evidence.streams)} answers is the beginning of another, and none says that it is cut"
    return None


def _left(evidence: Evidence) -> str | None:
    leave = evidence.leave
    if leave is None or not leave.ignored:
        return None
    after = f"stopped {leave.stopped:.1f} s" if leave.stopped is not None else f"still ran {leave.waited:.0f} s"
    return f"the reader left, and the answer {after} after that, as one that is read to its end ({leave.by})"


def _unframed(evidence: Evidence) -> str | None:
    run = next((run for run in evidence.streams if not run.framed), None)
    return run and f"the end of the body is the end of the connection ({run.version}): a cut one looks whole"


def _silent(evidence: Evidence) -> str | None:
    longest = max((run.longest_silence for run in evidence.streams), default=0.0)
    return f"{longest:.0f} s passed without a byte: many layers end such a connection" if longest > _BEAT else None


def _cut_behind(evidence: Evidence) -> str | None:
    run = next((run for run in evidence.streams if run.end and run.end.whole and not run.clean and not run.left), None)
    if run is None or run.silent:
        return None
    return f"the answer is whole, and its connection broke off behind it ({_short(run.why)})"


def _unguarded(evidence: Evidence) -> str | None:
    whole = [run for run in evidence.streams if run.end is not None and run.end.whole]
    if not whole or any(run.guarded for run in evidence.streams):
        return None
    return "the answer's end is proven by its API's own marker; whether something in its middle is missing nobody can see"


def _too_short(evidence: Evidence) -> str | None:
    if any(map(enough, evidence.streams)) or not evidence.streams:
        return None
    return "the answer is too short to tell whether a layer holds tokens back: ask for a longer one"


def _untried(evidence: Evidence) -> str | None:
    tried = evidence.selftest is not None and evidence.selftest.streamed
    return None if tried or _abort_lost(evidence) else f"whether an abort arrives was not seen: {evidence.untried}"


def _unseen(evidence: Evidence) -> str | None:
    leave = evidence.leave
    if leave is None or leave.told:
        return None
    return f"whether the server stops when its reader leaves was not seen: {leave.why_not or 'the answer is too short'}"


def _http1(evidence: Evidence) -> str | None:
    return None if evidence.http2 else "HTTP/2 was not offered: what a layer does to HTTP/2 clients was not seen"


def _hold_setting(evidence: Evidence) -> str:
    if evidence.front in ("nginx", "openresty"):
        return "nginx: proxy_buffering off, or X-Accel-Buffering: no in the answer; and proxy_http_version 1.1"
    return "response buffering of each layer: off (nginx: proxy_buffering off); ask the server itself to see which"


_GZIP_SETTING: Final = (
    "the layer that compresses: leave event streams out (nginx: gzip off; an application's gzip middleware: exclude "
    "text/event-stream), or let streamguard compress, which flushes every event"
)
_LEAVE_SETTING: Final = (
    "the endpoint: stop the model when the reader is gone (@guarded closes its source); "
    "HAProxy: option abortonclose; nginx: proxy_ignore_client_abort off"
)
_THREADS: Final = "docs/how-to/guard-a-thread-or-a-callback.md"

OTHERS: Final[Sequence[Other]] = (
    Other("abort_lost", _abort_lost, _abort_setting, _abort_page),
    Other("tail_lost", _differing, "in the endpoint: send what is held before the body ends; @guarded does", _CONVERT),
    Other("blocking", _blocking, "the endpoint: run what blocks in a thread (a plain generator under @guarded is)", _THREADS),
    Other("held_back", _held_back, _hold_setting, _PROXY),
    Other("held_by_compression", _held_by_compression, _GZIP_SETTING, "docs/how-to/compress-answers.md"),
    Other("leave_ignored", _left, _LEAVE_SETTING, _PROXY),
    Other("unframed", _unframed, "HTTP/1.1 towards the client", _PROXY, "warning"),
    Other("silence", _silent, "heartbeats: a guarded stream has them (Timing(heartbeat=15))", _PROXY, "warning"),
    Other("cut_behind", _cut_behind, "the server's log says what closed the connection", _PROXY, "warning"),
    Other("unguarded", _unguarded, "@guarded on the endpoint", "docs/tutorial/first-stream.md", "note"),
    Other("too_short", _too_short, "", "", "note"),
    Other("abort_unseen", _untried, "", "docs/how-to/check-an-endpoint.md", "note"),
    Other("leave_unseen", _unseen, "--gauge URL#NAME", "docs/how-to/check-an-endpoint.md", "note"),
    Other("http1_only", _http1, 'pip install "streamguard-io[check]"', "", "note"),
)

CODES: Final = tuple(dict.fromkeys([entry.code for table in (ENDINGS, OTHERS) for entry in table]))
