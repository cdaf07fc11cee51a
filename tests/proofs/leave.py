"""Whether a source stops when its reader leaves, and whether anything is left of it.

Of each kind of source 250 readers leave in each of the four situations of `tests.adapters.leaving`, one after the
other on one server: 1,000 a row. Counted are tokens that the source made after it could know that the reader was
gone, and the tasks, threads, generators and descriptors that are still there at the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tests.adapters.kinds import KINDS
from tests.adapters.leaving import MODES, Leavers, Left, Run
from tests.adapters.servers import STACKS, serving
from tests.proofs.registry import Result, Table, proof
from tests.proofs.registry import Run as ProofRun

__all__ = ["leave", "leave_row"]

EACH = 250
PLAN = [("async generator", stack) for stack in STACKS] + [
    (kind, stack) for kind in KINDS[1:] for stack in (STACKS[0], STACKS[-1])
]


def _tasks() -> int:
    return len(asyncio.all_tasks())


def leave_row(kind: str, stack: tuple[str, str], each: int) -> tuple[bool, Sequence[object]]:
    """Let `each` readers leave in each situation; whether all is as it should be, and the row that shows it."""
    leavers = Leavers()
    with serving(leavers.app, http=stack[0], loop=stack[1]) as server:
        tasks = server.call(_tasks)
        leavers.leave(server, MODES[0], kind)  # what is made once is there from now on
        leavers.ends.wait(1)
        before = leavers.left(server, tasks)
        for mode in MODES:
            for _ in range(each):
                leavers.leave(server, mode, kind)
        leavers.ends.wait(each * len(MODES) + 1)
        after = leavers.left(server, tasks)
    runs = leavers.runs[1:]
    closed, late = _of(runs)
    row = [kind, "+".join(stack), len(runs), closed, late, *_more(after, before)]
    return (closed, late <= 1, after) == (len(runs), True, Left(tasks, 0, 0, before.descriptors)), row


def _of(runs: Sequence[Run]) -> tuple[int, int]:
    """Sources closed once where they were driven, and the most tokens that one made too many."""
    closed = sum(run.closed_once for run in runs)
    return closed, max(run.after for run in runs)


def _more(after: Left, before: Left) -> list[int]:
    return [
        after.tasks - before.tasks,
        after.threads - before.threads,
        after.generators - before.generators,
        after.descriptors - before.descriptors,
    ]


@proof(claim="A source whose reader leaves stops within one token, and 1,000 such leave nothing behind.", minutes=20)
def leave(run: ProofRun) -> Result:
    shown, rows = True, []
    for kind, stack in PLAN:
        good, row = leave_row(kind, stack, EACH)
        shown &= good
        rows.append(row)
        run.say(f"{kind}, {'+'.join(stack)}: {'as claimed' if good else 'NOT as claimed'}")
    columns = ["source", "server", "readers left", "closed once", "most tokens after"]
    return Result(
        shown,
        [Table([*columns, "tasks", "threads", "generators", "descriptors"], rows)],
        notes=[
            f"{EACH} of the readers of each row leave while the stream is {', '.join(MODES[:-1])}, and {MODES[-1]}.",
            "Tokens after: for the first two kinds, after the server told that the reader is gone; for those that "
            "run ahead, in a thread or a task, after their buffer was closed. Closed once: in the task or on the "
            "thread that took the steps; a push source by its `on_close`, in a task of the event loop.",
        ],
        packages=["uvicorn", "h11", "httptools", "uvloop"],
    )
