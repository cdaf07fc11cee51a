"""Recorded streams behind the middleware, whole and cut: what each mode makes of them. The test's and the proof's."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

from streamguard.adapters.middleware import GuardMiddleware
from streamguard.core.dialect import Raw
from streamguard.core.dialect.provider import EndRule
from streamguard.core.receipt import Verdict
from streamguard.core.wire import SseDecoder
from tests.adapters.middleware_apps import QUICK, Sent, called, events, streaming

__all__ = ["cuts_of", "cuts_that_pass", "profile_of", "through"]

_MARKERS = ("response.completed", "response.incomplete", "message_stop")


def profile_of(row: dict[str, Any]) -> str:
    return "transformers" if row["server"].startswith("transformers") else "openai"


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


def _proved(row: dict[str, Any], cut: bytes) -> bool:
    """Whether a part of a recording is whole by its provider's own rule."""
    seen = Raw(profile=profile_of(row)).reader()
    for event in SseDecoder().feed(cut):
        seen.read(None if event.event == "message" else event.event, event.data)
    return seen.proof(False) is not None


def cuts_of(row: dict[str, Any], data: bytes, rng: Random, *, edges: int | None, places: int) -> list[int]:
    """Where to cut: at `edges` of its events' edges (None: all), and at `places` anywhere; before its end in each."""
    found = [at + 2 for at in range(len(data)) if data.startswith((b"\n\n", b"\r\n\r\n"), at)]
    if edges is not None:
        found = rng.sample(found, min(edges, len(found)))
    found += [rng.randrange(1, len(data)) for _ in range(places)]
    last = max(at for at, (_, text) in enumerate(events(data)) if text.strip())
    return [at for at in sorted({0, *found}) if len(events(data[:at])) <= last and not _proved(row, data[:at])]


async def cuts_that_pass(row: dict[str, Any], data: bytes, cuts: Iterable[int]) -> list[tuple[str, int, str]]:
    """The cuts that either mode takes for the whole, or that reach a reader as it; and what report mode changed.

    The application ends each cleanly. Before its first whole event nothing tells whose a stream is: there the
    provider's marker is asked for by name.
    """
    wrong = []
    for at in cuts:
        end: EndRule = "known" if events(data[:at]) else "provider"
        sent, verdict = await through(row, [data[:at]], "report", end)
        if verdict not in ("truncated", "failed"):
            wrong.append((row["file"], at, f"report: {verdict}"))
        if (sent.body, sent.clean) != (data[:at], True):
            wrong.append((row["file"], at, "report: changed"))
        sent, verdict = await through(row, [data[:at]], "guard", end)
        read = sent.verified(dialect="raw").verdict
        if sent.clean or verdict == "complete" or read is not Verdict.FAILED:
            wrong.append((row["file"], at, f"guard: {verdict}, read as {read}"))
    return wrong
