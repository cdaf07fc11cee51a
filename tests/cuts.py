"""Recorded streams cut in the middle: where, and whether any cut passes for the whole. For tests and proofs."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

import anyio
import attrs

from streamguard.core.dialect import Raw
from streamguard.core.wire import SseDecoder
from tests.core.test_recorded import recorded

__all__ = ["COLUMNS", "CutsFound", "Passing", "Row", "Wrong", "cut_everywhere", "cuts_of", "profile_of"]

Row = dict[str, Any]
Wrong = tuple[str, int, str]  # a file, where it was cut, and what was made of that
Passing = Callable[[Row, bytes, Iterable[int]], Awaitable[list[Wrong]]]  # the cuts that pass for the whole
COLUMNS = ("API", "streams", "cuts", "passed")


def profile_of(row: Row) -> str:
    """The profile of the server that a row of the index names."""
    return "transformers" if row["server"].startswith("transformers") else "openai"


def cuts_of(row: Row, data: bytes, rng: Random, *, edges: int | None, places: int) -> list[int]:
    """Where to cut: at `edges` of its events' edges (None: all), and at `places` anywhere; before its end in each."""
    found = [at + 2 for at in range(len(data)) if data.startswith((b"\n\n", b"\r\n\r\n"), at)]
    if edges is not None:
        found = rng.sample(found, min(edges, len(found)))
    found += [rng.randrange(1, len(data)) for _ in range(places)]
    last = max(at for at, event in enumerate(SseDecoder().feed(data)) if event.data.strip())
    return [at for at in sorted({0, *found}) if _count(data[:at]) <= last and not _proved(row, data[:at])]


def _count(data: bytes) -> int:
    return len(SseDecoder().feed(data))


def _proved(row: Row, cut: bytes) -> bool:
    """Whether a part of a recording is whole by its provider's own rule."""
    seen = Raw(profile=profile_of(row)).reader()
    for event in SseDecoder().feed(cut):
        seen.read(None if event.event == "message" else event.event, event.data)
    return seen.proof(False) is not None


@attrs.frozen
class CutsFound:
    """A row for each API, and one for all: streams, cuts, and those that passed for the whole."""

    rows: Sequence[Sequence[object]]
    cuts: int
    wrong: Sequence[Wrong]


def cut_everywhere(
    rows: Sequence[Row], rng: Random, passing: Passing, *, places: int, edges: int | None = None
) -> CutsFound:
    """Cut each recording, and ask `passing` which of the cuts pass."""
    cuts, passed, streams = Counter[str](), Counter[str](), Counter[str]()
    wrong: list[Wrong] = []
    with _quiet():
        for row in rows:
            data = recorded(row)
            found = cuts_of(row, data, rng, edges=edges, places=places)
            bad = anyio.run(passing, row, data, found)
            wrong += bad
            streams[row["api"]] += 1
            cuts[row["api"]] += len(found)
            passed[row["api"]] += len(bad)
    table = [[api, streams[api], cuts[api], passed[api]] for api in sorted(streams)]
    table.append(["all", streams.total(), cuts.total(), passed.total()])
    return CutsFound(table, cuts.total(), wrong)


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
