"""Whether a source that reads a model's server ever takes a part of a recorded stream for the whole.

Each stream that was recorded from a real server is what the server sends: cut at every edge of its events, and at two
hundred places anywhere, before its end. Each cut is tried as text and as events in a body that ends cleanly, which is
the harder case, and as events in one that breaks off.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

import anyio
import attrs

from tests.core.test_recorded import ROWS, recorded
from tests.cuts import cuts_of
from tests.proofs.registry import Result, Run, Table, proof
from tests.upstream.recorded import cuts_that_pass

__all__ = ["Found", "cut_everywhere", "recorded_upstreams"]

PLACES = 200


@attrs.frozen
class Found:
    """A row for each API, and one for all: streams, cuts, and those that passed for the whole."""

    rows: Sequence[Sequence[object]]
    cuts: int
    wrong: Sequence[tuple[str, int, str]]


@contextmanager
def _quiet() -> Iterator[None]:
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


@proof(claim="No source that reads a model's server takes a part of a recorded stream for the whole.", minutes=20)
def recorded_upstreams(run: Run) -> Result:
    found = cut_everywhere(ROWS, Random(run.seed), places=PLACES)
    for name, at, what in found.wrong[:20]:
        run.say(f"{name} at byte {at}: {what}")
    columns = ("API", "streams", "cuts", "passed")
    note = "Each cut is tried as text and as events in a body that ends cleanly, and as events in one that breaks off."
    return Result(not found.wrong, [Table(columns, found.rows)], [note], ["httpx"])
