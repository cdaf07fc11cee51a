"""Whether a source that reads a model's server ever takes a part of a recorded stream for the whole.

Each stream that was recorded from a real server is what the server sends: cut at every edge of its events, and at two
hundred places anywhere, before its end. Each cut is tried as text and as events in a body that ends cleanly, which is
the harder case, and as events in one that breaks off.
"""

from __future__ import annotations

from random import Random

from tests.core.test_recorded import ROWS
from tests.cuts import COLUMNS, cut_everywhere
from tests.proofs.registry import Result, Run, Table, proof
from tests.upstream.recorded import cuts_that_pass

__all__ = ["recorded_upstreams"]

PLACES = 200


@proof(claim="No source that reads a model's server takes a part of a recorded stream for the whole.", minutes=20)
def recorded_upstreams(run: Run) -> Result:
    found = cut_everywhere(ROWS, Random(run.seed), cuts_that_pass, places=PLACES)
    for name, at, what in found.wrong[:20]:
        run.say(f"{name} at byte {at}: {what}")
    note = "Each cut is tried as text and as events in a body that ends cleanly, and as events in one that breaks off."
    return Result(not found.wrong, [Table(COLUMNS, found.rows)], [note], ["httpx"])
