"""Whether the middleware ever takes a part of a recorded stream for the whole.

Each stream that was recorded from a real server is what an application sends: cut at every edge of its events, and at
two hundred places anywhere, before its end. The application ends each cut cleanly, as one does that swallows a fault.
"""

from __future__ import annotations

from random import Random

from tests.adapters.recorded_cuts import cuts_that_pass
from tests.core.test_recorded import ROWS
from tests.cuts import COLUMNS, cut_everywhere
from tests.proofs.registry import Result, Run, Table, proof

__all__ = ["behind_the_middleware"]

PLACES = 200


@proof(
    claim="The middleware takes no part of a recorded stream for the whole, and report mode changes none.", minutes=8
)
def behind_the_middleware(run: Run) -> Result:
    found = cut_everywhere(ROWS, Random(run.seed), cuts_that_pass, places=PLACES)
    for name, at, what in found.wrong[:20]:
        run.say(f"{name} at byte {at}: {what}")
    return Result(not found.wrong, [Table(COLUMNS, found.rows)], ["Each cut is tried in both modes."])
