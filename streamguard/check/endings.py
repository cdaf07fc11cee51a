"""How an answer ended: the rows are looked at in order, and the first that fits is it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from streamguard.check import settings
from streamguard.check.fault import PAGES, Fault
from streamguard.check.observation import Observation
from streamguard.core.receipt import Verdict

__all__ = ["ENDINGS", "short", "verdict_of"]

_IDLE: Final = 0.8  # seconds of silence before an end from which on a limit is the likelier cause
_RHYTHM: Final = 3.0  # and so many times the usual gap
_NEAR: Final = 0.05  # how far a limit may be missed, as a part of it
_IDLE_LIMITS: Final = {
    30: "CloudFront", 55: "Heroku", 60: "nginx and AWS load balancers", 120: "Cloudflare", 240: "Azure load balancers",
    300: "Envoy",
}  # fmt: skip
_WHOLE_LIMITS: Final = {15: "Envoy's routes", 29: "AWS API Gateway", 30: "Google Cloud's load balancers"}


def _how(run: Observation) -> str:
    """What the end looks like to a client that counts bytes."""
    if run.clean:
        return "the connection ended cleanly, so the answer looks whole" if run.status is not None else "it was closed"
    return "the connection broke off"


def verdict_of(run: Observation) -> Verdict | None:
    """What its verification says of a guarded answer."""
    receipt = None if run.end is None else run.end.receipt
    return None if receipt is None else receipt.verdict


def _unended(run: Observation) -> bool:
    """Whether the answer stopped without an end and without an error, by the other side's doing."""
    if run.end is None or run.left or run.end.whole or run.end.error is not None:
        return False
    receipt = run.end.receipt
    return receipt.verdict is Verdict.TRUNCATED if receipt is not None else not run.end.marker


def _broken(run: Observation) -> str | None:
    return run.end.fault if run.end and verdict_of(run) in (Verdict.CORRUPT, Verdict.GAP) else None


def _done_after_error(run: Observation) -> str | None:
    end = run.end
    if end is None or end.error is None or not end.marker or end.receipt is not None:
        return None
    return f"the stream reports an error ({short(end.error.message)}), and then ends as if it were complete"


def _failed(run: Observation) -> str | None:
    end = run.end
    if end is None or (end.error is None and verdict_of(run) is not Verdict.FAILED):
        return None
    error = end.error or (end.receipt.failure if end.receipt is not None else None)
    return f"the answer failed: {short(error.message) if error is not None else 'its end says so'}"


def _idle_cut(run: Observation) -> str | None:
    if run.left or run.silent:
        return None
    silence = run.tail_silence
    if run.status in (408, 504, 524) and (run.head or 0.0) >= _IDLE:
        return f"nothing was sent for {run.head:.1f} s, and then a layer answered {run.status}"
    if run.status is None:
        early = run.ended is not None and silence >= _IDLE
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
    return f"{_how(run)} in the middle of the answer, after {run.ended or 0.0:.2f} s{whole} ({short(run.why)})"


def _undone(run: Observation) -> str | None:
    if not run.clean or not _unended(run) or run.end is None or run.end.receipt is None:
        return None
    return "the guarded stream stops before its end, and the connection ended cleanly: a layer undid the abort"


def _tail_lost(run: Observation) -> str | None:
    end = run.end
    if end is None or not run.clean or not _unended(run):
        return None
    if end.torn:
        return (
            "the last bytes are the beginning of an event whose rest never came; the connection ended cleanly"
            f"{_undone_by_nginx(run)}"
        )
    if end.known and not end.finished:
        return (
            f"the answer stops in the middle ({end.api}: no finish reason and no end marker), and the connection "
            f"ended cleanly, so it looks whole{_undone_by_nginx(run)}"
        )
    return None


def _undone_by_nginx(run: Observation) -> str:
    if not run.nginx or run.guarded:
        return ""
    return ": its tail was held and never sent, or the server broke off, and nginx made that a clean end"


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


def short(text: str) -> str:
    """One line of what somebody else said."""
    line = " ".join(text.split())
    return line if len(line) <= 120 else line[:119] + "…"


ENDINGS: Final[Sequence[Fault[Observation]]] = (
    Fault("damaged", _broken, "whatever rewrites the body on the way: pass it through unchanged", PAGES["guarantees"]),
    Fault("done_after_error", _done_after_error, settings.DONE, PAGES["upstream"]),
    Fault("failed", _failed, "none on the way: the server's own log says why", PAGES["errors"]),
    Fault("idle_cut", _idle_cut, settings.idle, PAGES["proxy"]),
    Fault("stalled", _stalled, "the server; Timing(stall=…) on a guarded stream ends one that hangs", PAGES["stall"]),
    Fault("cut", _cut, "the server's log; a limit on whole answers on the way (Envoy: timeout: 0s)", PAGES["proxy"]),
    Fault("abort_lost", _undone, settings.abort, settings.abort_page),
    Fault("tail_lost", _tail_lost, settings.tail, settings.tail_page),
    Fault("done_without_reason", _no_reason, settings.DONE, PAGES["upstream"]),
    Fault("missing_terminal", _no_terminal, settings.terminal, PAGES["convert"]),
)  # fmt: skip
