"""Whether a source stops when its reader leaves, and whether anything is left of it.

On every server 250 readers leave in each of the four situations of `tests.adapters.leaving`, one after the
other on one server: 1,000 a server. Counted are tokens made after the server told that the reader was gone,
and tasks and generators that are still there at the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tests.adapters.leaving import MODES, Leavers, Run
from tests.adapters.servers import STACKS, serving
from tests.proofs.registry import Result, Table, proof
from tests.proofs.registry import Run as ProofRun

__all__ = ["leave", "leave_row"]

EACH = 250


def _tasks() -> int:
    return len(asyncio.all_tasks())


def leave_row(stack: tuple[str, str], each: int) -> tuple[bool, list[Sequence[object]]]:
    """Let `each` readers leave in each situation; whether all is as it should be, and the rows that show it."""
    leavers = Leavers()
    with serving(leavers.app, http=stack[0], loop=stack[1]) as server:
        before = server.call(_tasks)
        for mode in MODES:
            for _ in range(each):
                leavers.leave(server, mode)
        leavers.ends.wait(each * len(MODES))
        settled = server.call(leavers.settled, before)
        tasks = server.call(_tasks) - before
    generators = leavers.generators()
    rows = [
        ["+".join(stack), mode, *_of(leavers.runs[at * each : (at + 1) * each]), tasks, generators]
        for at, mode in enumerate(MODES)
    ]
    good = all(row[3] == each and isinstance(row[4], int) and row[4] <= 1 for row in rows)
    return good and settled and not generators, rows


def _of(runs: Sequence[Run]) -> tuple[int, int, int]:
    """Readers that left, sources closed once by the task that drove them, the most tokens made too many."""
    closed = sum(run.closed == 1 and run.closed_in is run.driven_in for run in runs)
    late = [run.made - run.at_disconnect if run.at_disconnect is not None else 10**6 for run in runs]
    return len(runs), closed, max(late)


@proof(claim="A source whose reader leaves stops within one token, and 1,000 such leave nothing behind.", minutes=10)
def leave(run: ProofRun) -> Result:
    shown, rows = True, []
    for stack in STACKS:
        good, more = leave_row(stack, EACH)
        shown &= good
        rows += more
        run.say(f"{'+'.join(stack)}: {'as claimed' if good else 'NOT as claimed'}")
    columns = ["server", "the driver was", "readers left", "closed once", "most tokens after", "tasks", "generators"]
    return Result(
        shown,
        [Table(columns, rows)],
        notes=["A task or generator that is left over is counted once for its server, at the end."],
        packages=["uvicorn", "h11", "httptools", "uvloop"],
    )
