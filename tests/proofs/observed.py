"""Every number of many mixed streams, held against what was done to them, in one process and in two.

The streams are those of `tests/observe/mixed.py`: complete, failed, cancelled, stalled, slow, left, refused, with a
frame dropped on its way, and in a log: complete, cut and resumed, taken over, sealed. They run in virtual time.
"""

from __future__ import annotations

import logging
import os
import tempfile
from typing import Final

from prometheus_client import CollectorRegistry

from streamguard.observe.prometheus import Prometheus
from tests.observe.measured import exported, exported_by
from tests.observe.mixed import worked
from tests.observe.pages import differences
from tests.observe.processes import in_workers
from tests.proofs.registry import Result, Run, Table, proof

__all__ = ["compared", "observed"]

STREAMS: Final = 504


def compared(streams: int, seed: int) -> tuple[list[tuple[object, ...]], bool]:
    """Rows for one process, and for two: back end, streams, numbers that are expected, and those that differ."""
    one = worked(streams, seed, Prometheus(CollectorRegistry()))
    wrong = differences(one.expected, one.page)
    rows: list[tuple[object, ...]] = [("Prometheus", "1", streams, len(one.expected), len(wrong))]
    with tempfile.TemporaryDirectory() as folder:
        before = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        try:
            told = in_workers(streams // 2, (seed + 1, seed + 2))
            both = differences(told, Prometheus(CollectorRegistry()).page())
        finally:
            del os.environ["PROMETHEUS_MULTIPROC_DIR"]
            if before is not None:
                os.environ["PROMETHEUS_MULTIPROC_DIR"] = before
    rows.append(("Prometheus", "2", streams // 2 * 2, len(told), len(both)))
    alone, together = exported(streams, seed), exported_by(streams // 2, (seed + 1, seed + 2))
    rows.append(("OpenTelemetry", "1", streams, len(alone.expected), len(alone.wrong)))
    rows.append(("OpenTelemetry", "2", streams // 2 * 2, len(together.expected), len(together.wrong)))
    return rows, not (wrong or both or alone.wrong or together.wrong)


@proof(claim="Every number that a back end is told of 504 mixed streams equals what was done to them.", minutes=2)
def observed(run: Run) -> Result:
    logging.disable(logging.CRITICAL)  # a line for each stream that fails on purpose
    try:
        rows, shown = compared(STREAMS, run.seed)
    finally:
        logging.disable(logging.NOTSET)
    table = Table(("back end", "processes", "streams", "numbers that are expected", "that differ"), rows)
    notes = [
        "Every number that is not expected must be zero; bytes, and what a clock samples, are left out. Those of "
        "OpenTelemetry are its metrics, and its spans by name and by how their streams ended."
    ]
    return Result(shown, [table], notes, ["prometheus-client", "opentelemetry-sdk"])
