"""Whether a reader ends with the same text, whatever happens to the process that generates it.

Two workers and more over one SQLite file, behind a router, tell a story that depends on all of its own past, with
checkpoints. The worker that tells it is killed (SIGKILL) once at each named step, some of them at several of their
occurrences, and at 50 moments that a seed decides. The reader asks again with its last cursor; whoever it asks takes
the stream over when the lease of the dead has ended.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from streamguard.testing.crash import POINTS
from tests.processes.crashes import Read, Troupe, crash, died, kill
from tests.processes.worker import LENGTH, TTL, text_of
from tests.proofs.registry import Result, Run, Table, proof

__all__ = ["crashes"]

EACH = 3  # of every step
MOMENTS = 50


def _row(name: str, found: list[tuple[int, Read, bool, float]]) -> tuple[bool, list[object]]:
    same = sum(read.status == "complete" and read.text == text_of(story) for story, read, _, _ in found)
    hit = sum(struck for _, _, struck, _ in found)
    doubles = sum(read.doubles for _, read, _, _ in found)
    requests = max(read.requests for _, read, _, _ in found)
    slowest = max(seconds for *_, seconds in found)
    good = same == hit == len(found) and doubles == 0
    return good, [name, len(found), hit, same, doubles, requests, round(slowest, 2)]


def _told(troupe: Troupe, act: Callable[[], tuple[Read, bool]]) -> tuple[Read, bool, float]:
    stay, since = list(troupe.workers), time.monotonic()
    read, struck = act()
    seconds = time.monotonic() - since
    for worker in [worker for worker in troupe.workers if worker not in stay]:
        troupe.dismiss(worker)
    return read, struck, seconds


@proof(claim="After kill -9 at any step or moment the reader ends with the text of an uninterrupted run.", minutes=15)
def crashes(run: Run) -> Result:
    shown, rows = True, []
    with tempfile.TemporaryDirectory() as place, Troupe(Path(place) / "streams.db") as troupe:
        troupe.hire()

        def at(point: str, story: int) -> tuple[Read, bool]:
            read, struck = crash(troupe, point, story)
            return read, died(struck)

        def any_time(story: int) -> tuple[Read, bool]:
            return kill(troupe, story)

        for index, point in enumerate(POINTS):
            stories = [run.seed * 100_000 + 1000 * (index + 1) + number for number in range(EACH)]
            found = [(story, *_told(troupe, partial(at, point, story))) for story in stories]
            good, row = _row(point, found)
            shown &= good
            rows.append(row)
            run.say(f"{point}: {'as claimed' if good else 'NOT as claimed'}")
        stories = [run.seed * 100_000 + number for number in range(MOMENTS)]
        found = [(story, *_told(troupe, partial(any_time, story))) for story in stories]
        good, row = _row("any moment", found)
        shown &= good
        rows.append(row)
        run.say(f"any moment: {'as claimed' if good else 'NOT as claimed'}")
    columns = ["killed at", "runs", "was killed", "same text", "frames twice", "most requests", "slowest (s)"]
    return Result(
        shown,
        [Table(columns, rows)],
        notes=[
            f"A story has {LENGTH} words, and a checkpoint every 5; a lease lasts {TTL:g} s.",
            "Frames twice: given to the reader again, which its cursor should prevent.",
            "In takeover: the worker that tells the story is killed, and the one that takes it over, too.",
        ],
        packages=["uvicorn", "httpx"],
    )
