"""Whether the middleware ever takes a part of a recorded stream for the whole.

Each stream that was recorded from a real server is what an application sends: cut at every edge of its events, and at
two hundred places anywhere, before its end. The application ends each cut cleanly, as one does that swallows a fault.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

import anyio
import attrs

from tests.adapters.recorded_cuts import cuts_of, cuts_that_pass
from tests.core.test_recorded import ROWS, recorded
from tests.proofs.registry import Result, Run, Table, proof

__all__ = ["Found", "behind_the_middleware", "cut_everywhere"]

PLACES = 200


@attrs.frozen
class Found:
    """A row for each API, and one for all: cuts, and those that passed for the whole."""

    rows: Sequence[Sequence[object]]
    cuts: int
    wrong: Sequence[tuple[str, int, str]]


@contextmanager
def _quiet() -> Any:
    """Without a line in the log for each stream that was refused."""
    logger = logging.getLogger("streamguard")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def cut_everywhere(rows: Sequence[dict[str, Any]], rng: Random, *, places: int, edges: int | None = None) -> Found:
    cuts, passed, streams = Counter[str](), Counter[str](), Counter[str]()
    wrong: list[tuple[str, int, str]] = []
    with _quiet():
        for row in rows:
            data = recorded(row)
            found = cuts_of(row, data, rng, edges=edges, places=places)
            bad = anyio.run(cuts_that_pass, row, data, found)
            wrong += bad
            streams[row["api"]] += 1
            cuts[row["api"]] += len(found)
            passed[row["api"]] += len(bad)
    table = [[api, streams[api], cuts[api], passed[api]] for api in sorted(streams)]
    table.append(["all", streams.total(), cuts.total(), passed.total()])
    return Found(table, cuts.total(), wrong)


@proof(
    claim="The middleware takes no part of a recorded stream for the whole, and report mode changes none.", minutes=8
)
def behind_the_middleware(run: Run) -> Result:
    found = cut_everywhere(ROWS, Random(run.seed), places=PLACES)
    for name, at, what in found.wrong[:20]:
        run.say(f"{name} at byte {at}: {what}")
    columns = ("API", "streams", "cuts", "passed")
    return Result(not found.wrong, [Table(columns, found.rows)], ["Each cut is tried in both modes."])
