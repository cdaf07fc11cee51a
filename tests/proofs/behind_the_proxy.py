"""Whether the proxy ever passes a part of a recorded stream for the whole, over real sockets.

Each stream that was recorded from a real server is played by a server behind the proxy: as it was, whole and broken off
as its own server did it; then cut at every edge of its events, and at places anywhere, before its end, where the server
ends each cut cleanly.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from random import Random

from streamguard.core.receipt import Verdict
from tests.adapters.middleware_apps import events
from tests.core.test_recorded import ROWS, recorded
from tests.cuts import COLUMNS, Row, Wrong, cut_everywhere
from tests.proofs.registry import Result, Run, Table, proof
from tests.proxy.replayed import Replay, replayed

__all__ = ["behind_the_proxy", "whole_and_broken"]

PLACES = 50


def whole_and_broken(replay: Replay, rows: Sequence[Row]) -> list[Wrong]:
    """The recordings that do not come as the index has them: whole, each event of them, or failed."""
    wrong: list[Wrong] = []
    for row in rows:
        whole = row["verdict"] == "complete"
        answer = replay.read(row, ends=row["http_end"] == "clean")
        verdict = Verdict.COMPLETE if whole else Verdict.FAILED
        if (answer.clean, answer.verdict) != (whole, verdict):
            wrong.append((row["file"], row["bytes"], f"{answer.verdict}, clean: {answer.clean}"))
        elif whole and events(answer.body) != events(recorded(row)):
            wrong.append((row["file"], row["bytes"], "changed"))
    return wrong


@proof(
    claim="Through the proxy every recorded stream has the verdict that its bytes deserve, each event of a whole one "
    "comes as it was, and no part of one passes for the whole.",
    minutes=20,
)
def behind_the_proxy(run: Run) -> Result:
    logging.getLogger("streamguard").setLevel(logging.CRITICAL)  # else a line for each stream that was refused
    with replayed("known", "provider") as replay:
        wrong = whole_and_broken(replay, ROWS)
        run.say(f"{len(ROWS)} as they were recorded")
        found = cut_everywhere(ROWS, Random(run.seed), replay.cuts_that_pass, places=PLACES)
    for name, at, what in [*wrong, *found.wrong][:20]:
        run.say(f"{name} at byte {at}: {what}")
    notes = [f"{len(ROWS)} streams as they were recorded, of which {len(wrong)} came otherwise; then their cuts."]
    return Result(not wrong and not found.wrong, [Table(COLUMNS, found.rows)], notes, ["uvicorn", "httpcore", "h11"])
