"""What is wrong with an endpoint, from all that was seen. The rows are in `endings` and `beside`.

To name one more fault, write what shows it and put a row into one of the two.
"""

from __future__ import annotations

from typing import Final

from streamguard.check.beside import BESIDE
from streamguard.check.endings import ENDINGS
from streamguard.check.evidence import Evidence
from streamguard.check.fault import Fault, Finding, Severity
from streamguard.check.observation import Observation

__all__ = ["CODES", "diagnose"]

CODES: Final = tuple(dict.fromkeys([*(row.code for row in ENDINGS), *(row.code for row in BESIDE)]))
_RANK: Final[dict[Severity, int]] = {"fault": 0, "warning": 1, "note": 2}


def diagnose(evidence: Evidence) -> list[Finding]:
    """Everything that was found, faults first. Of an answer that is no stream that is at most how it ended."""
    ends: dict[str, tuple[Fault[Observation], str, int]] = {}
    for run in evidence.runs:
        for row in ENDINGS:
            if (words := row.shown(run)) is not None:
                _, first, times = ends.get(row.code, (row, words, 0))
                ends[row.code] = (row, first, times + 1)
                break
    count = len(evidence.runs)
    findings = [
        row.found(f"{words} (in {times} of {count} answers)" if count > 1 else words, evidence)
        for row, words, times in ends.values()
    ]
    for other in BESIDE if evidence.streams else ():
        before = {finding.code for finding in findings}
        if before.isdisjoint((other.code, *other.unless)) and (said := other.shown(evidence)) is not None:
            findings.append(other.found(said, evidence))
    return sorted(findings, key=lambda finding: _RANK[finding.severity])
