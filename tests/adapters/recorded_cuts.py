"""Recorded streams behind the middleware, whole and cut: what each mode makes of them. The test's and the proof's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from streamguard.adapters.middleware import GuardMiddleware
from streamguard.core.dialect.provider import EndRule
from streamguard.core.receipt import Verdict
from tests.adapters.middleware_apps import QUICK, Sent, called, events, streaming
from tests.cuts import profile_of

__all__ = ["cuts_that_pass", "through"]

async def through(
    row: dict[str, Any], pieces: Iterable[bytes], mode: Any, end: EndRule = "known", ends: bool = True
) -> tuple[Sent, str]:
    """The answer of an application that sends `pieces`, and the verdict that the middleware counts it by."""
    middleware = GuardMiddleware(
        streaming(pieces, ends=ends), None, mode, end=end, profile=profile_of(row), timing=QUICK, on_sigterm=False
    )
    sent = await called(middleware)
    report = middleware.report
    return sent, "complete" if report.complete else report.recent[-1].verdict


async def cuts_that_pass(row: dict[str, Any], data: bytes, cuts: Iterable[int]) -> list[tuple[str, int, str]]:
    """The cuts that either mode takes for the whole, or that reach a reader as it; and what report mode changed.

    The application ends each cleanly. Before its first whole event nothing tells whose a stream is: there the
    provider's marker is asked for by name.
    """
    wrong = []
    for at in cuts:
        end: EndRule = "known" if events(data[:at]) else "provider"
        sent, verdict = await through(row, [data[:at]], "report", end)
        if verdict != "failed":
            wrong.append((row["file"], at, f"report: {verdict}"))
        if (sent.body, sent.clean) != (data[:at], True):
            wrong.append((row["file"], at, "report: changed"))
        sent, verdict = await through(row, [data[:at]], "guard", end)
        read = sent.verified(dialect="raw").verdict
        if sent.clean or verdict == "complete" or read is not Verdict.FAILED:
            wrong.append((row["file"], at, f"guard: {verdict}, read as {read}"))
    return wrong
