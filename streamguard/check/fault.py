"""What the tables of faults are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, Literal, TypeVar

import attrs

from streamguard.check.evidence import Evidence
from streamguard.core.arguments import one_line

__all__ = ["PAGES", "Fault", "Finding", "Severity", "Words"]

T = TypeVar("T")
Severity = Literal["fault", "warning", "note"]
Words = str | Callable[[Evidence], str]


@attrs.frozen
class Finding:
    """One thing that was found. `words` say what, `setting` what to change, `page` where it is explained."""

    code: str
    severity: Severity
    words: str
    setting: str = ""
    page: str = ""


@attrs.frozen
class Fault(Generic[T]):
    """A row. `shown` looks at what was seen, and answers words if it shows this fault; nothing is said of it where one
    of the faults `unless` was found before."""

    code: str
    shown: Callable[[T], str | None]
    setting: Words = ""
    page: Words = ""
    severity: Severity = "fault"
    unless: tuple[str, ...] = ()

    def found(self, words: str, evidence: Evidence) -> Finding:
        setting, page = (part if isinstance(part, str) else part(evidence) for part in (self.setting, self.page))
        said = one_line(words)  # which may hold what a server said
        return Finding(self.code, self.severity, said[:1].upper() + said[1:] + ".", setting, page)


PAGES: Final = {
    "check": "docs/how-to/check-an-endpoint.md",
    "compress": "docs/how-to/compress-answers.md",
    "convert": "docs/how-to/convert-an-endpoint.md",
    "errors": "docs/reference/errors.md",
    "first": "docs/tutorial/first-stream.md",
    "guarantees": "docs/explanation/guarantees.md",
    "limits": "docs/how-to/protect-the-server.md",
    "proxy": "docs/how-to/behind-a-proxy.md",
    "resume": "docs/how-to/resume-streams.md",
    "stall": "docs/how-to/fail-well.md",
    "threads": "docs/how-to/guard-a-thread-or-a-callback.md",
    "upstream": "docs/how-to/read-a-model-server.md",
}
"""The pages of the docs."""
