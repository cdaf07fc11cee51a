"""Whether a reader ends with the same text, whatever happens to the process that generates it.

Two workers and more over one SQLite file, and over one Redis, behind a router, tell a story that depends on all of its
own past, with checkpoints. The worker that tells it is killed (SIGKILL) once at each named step, some of them at
several of their occurrences, and at 50 moments that a seed decides. The reader asks again with its last cursor; whoever
it asks takes the stream over when the lease of the dead has ended. Then it is Redis that is killed, and started again.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from streamguard.testing.crash import POINTS
from tests.log.redis_server import redis_server
from tests.processes.crashes import REDIS_POINTS, Read, Troupe, crash, died, kill, restart
from tests.processes.worker import LENGTH, TTL, text_of
from tests.proofs.registry import Result, Run, Table, proof

__all__ = ["crashes"]

EACH = 3  # of every step
MOMENTS = 50
RESTARTS: list[tuple[str, dict[str, Any], int | None, str]] = [
    ("all (`appendonly yes`)", {"appendonly": "yes"}, None, "complete"),
    ("nothing", {}, None, "unknown_stream"),
    ("less (a snapshot)", {}, 10, "log_lost"),
]


def _row(
    name: str, found: list[tuple[int, Read, bool, float]], say: Callable[[str], None]
) -> tuple[bool, list[object]]:
    same = sum(read.status == "complete" and read.text == text_of(story) for story, read, _, _ in found)
    hit = sum(struck for _, _, struck, _ in found)
    doubles = sum(read.doubles for _, read, _, _ in found)
    requests = max(read.requests for _, read, _, _ in found)
    slowest = max(seconds for *_, seconds in found)
    good = same == hit == len(found) and doubles == 0
    for story, read, _, seconds in found:
        if read.status != "complete" or read.text != text_of(story):
            say(f"{name}, story {story}: {read.status or read.refused} after {seconds:.1f} s and {read.frames} frames")
    return good, [name, len(found), hit, same, doubles, requests, round(slowest, 2)]


def _told(troupe: Troupe, act: Callable[[], tuple[Read, bool]]) -> tuple[Read, bool, float]:
    stay, since = list(troupe.workers), time.monotonic()
    read, struck = act()
    seconds = time.monotonic() - since
    for worker in [worker for worker in troupe.workers if worker not in stay]:
        troupe.dismiss(worker)
    return read, struck, seconds


def _killed(run: Run, log: str, place: object, points: Sequence[str]) -> tuple[bool, list[list[object]]]:
    """Workers over one log, killed at every step and moment."""
    shown, rows = True, []
    with Troupe(place) as troupe:
        troupe.hire()

        def at(point: str, story: int) -> tuple[Read, bool]:
            read, struck = crash(troupe, point, story)
            return read, died(struck)

        def any_time(point: str, story: int) -> tuple[Read, bool]:
            return kill(troupe, story)

        for index, point in enumerate([*points, "any moment"], 1):
            act, count, first = (any_time, MOMENTS, 0) if point == "any moment" else (at, EACH, 1000 * index)
            stories = [run.seed * 100_000 + first + number for number in range(count)]
            found = [(story, *_told(troupe, partial(act, point, story))) for story in stories]
            good, row = _row(point, found, run.say)
            shown &= good
            rows.append([log, *row])
            run.say(f"{log}, {point}: {'as claimed' if good else 'NOT as claimed'}")
    return shown, rows


def _restarted(run: Run, place: Path) -> tuple[bool, list[list[object]]]:
    """A Redis that is killed in the middle of streams, and started again with what it kept."""
    shown, rows = True, []
    for index, (kept, settings, snapshot, answer) in enumerate(RESTARTS):
        folder = place / str(index)
        folder.mkdir()
        with redis_server(folder, **settings) as server, Troupe(server.url) as troupe:
            troupe.hire()
            stories = [run.seed * 100_000 + 50_000 + number for number in range(EACH)]
            found = [(story, restart(troupe, server, story, snapshot=snapshot)) for story in stories]
        answers = sum((read.refused or read.status) == answer for _, read in found)
        right = sum(text_of(story).startswith(read.text) for story, read in found)
        same = sum(read.text == text_of(story) for story, read in found)
        good = answers == right == len(found) and same == (len(found) if answer == "complete" else 0)
        shown &= good
        rows.append([kept, len(found), answer, answers, right, same])
        run.say(f"Redis that kept {kept}: {'as claimed' if good else 'NOT as claimed'}")
    return shown, rows


@proof(claim="After kill -9 at any step or moment the reader ends with the text of an uninterrupted run.", minutes=20)
def crashes(run: Run) -> Result:
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
        shown, rows = _killed(run, "SQLite", Path(folder) / "streams.db", POINTS)
        with redis_server(Path(other)) as server:
            good, more = _killed(run, "Redis", server.url, REDIS_POINTS)
        fine, restarts = _restarted(run, Path(folder))
    columns = ["log", "killed at", "runs", "was killed", "same text", "frames twice", "most requests", "slowest (s)"]
    kept = ["Redis was killed, and kept", "runs", "the answer", "got it", "no wrong text", "whole text"]
    return Result(
        shown and good and fine,
        [Table(columns, rows + more), Table(kept, restarts)],
        notes=[
            f"A story has {LENGTH} words, and a checkpoint every 5; a lease lasts {TTL:g} s.",
            "Frames twice: given to the reader again, which its cursor should prevent.",
            "In takeover: the worker that tells the story is killed, and the one that takes it over, too.",
            "Nothing, less: of a stream that its Redis lost, or lost the end of, a reader is told so.",
        ],
        packages=["uvicorn", "httpx", "redis"],
    )
