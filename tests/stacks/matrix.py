"""Every ending from every kind of source on a server, read by unmodified clients: what each reports, and the books.

Right is: an error and a beginning of the text for a failure, no error and the whole text otherwise. A client that
only waits for bytes that never come is right too, and is marked: its user's patience decides, not the answer.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import attrs

from tests.adapters.endings import ENDINGS, TEXT
from tests.adapters.readers import Reading
from tests.stacks.behaviour import books, eventually
from tests.stacks.processes import Process
from tests.stacks.readers import READERS, Asked, only_timed_out, readers_of
from tests.stacks.sources import KINDS

__all__ = ["HANGS", "STATUSES", "TOLD", "Cell", "Stream", "ask", "streams"]

# Where an aborted answer stays open: clients that do not read the terminal wait as long as they like to.
TOLD: Final = ("openai", "openai, async", "streamguard")  # the readers that raise at the terminal
HANGS: Final[tuple[str, ...]] = ()
STATUSES: Final = dict.fromkeys(ENDINGS, "failed") | {
    "finished": "complete",
    "cancelled": "cancelled",
    "stalled": "stalled",
}
_RUNS = itertools.count()
_LONG: Final = 30.0  # seconds that no answer takes, on a busy machine either
_AT_ONCE: Final = 12  # requests; of two cores most of them wait


def _waits(stack: str, ending: str, reader: str) -> bool:
    """Whether this reader may wait for bytes that never come: not one that understands the terminal."""
    return stack in HANGS and ending != "finished" and reader not in TOLD


@attrs.frozen
class Cell:
    """One request, and what its reader had at the end."""

    stack: str
    kind: str
    ending: str
    dialect: str
    reader: str
    reading: Reading

    @property
    def waited(self) -> bool:
        return only_timed_out(self.reading)

    @property
    def right(self) -> bool:
        if self.ending == "finished":
            return self.reading == Reading(TEXT, None)
        if self.waited and not _waits(self.stack, self.ending, self.reader):
            return False
        return self.reading.error is not None and TEXT.startswith(self.reading.text)


@attrs.frozen
class Stream:
    """What became of one stream: its ending, and its books."""

    stack: str
    kind: str
    ending: str
    books: dict[str, Any]

    @property
    def right(self) -> bool:
        """Whether it ended as it must, and its source was closed once, where its steps were. A model that does not
        load has no source."""
        closes = 0 if self.ending == "not-loading" else 1
        found = (self.books["status"], self.books["closed"], self.books["elsewhere"], self.books["abandoned"])
        return found == (STATUSES[self.ending], closes, 0, False)


def ask(
    process: Process,
    *,
    kinds: Iterable[str] = tuple(KINDS),
    endings: Iterable[str] = tuple(ENDINGS),
    dialects: Iterable[str] = ("openai", "native"),
    readers: Iterable[str] | None = None,
    patience: float = 10.0,
) -> tuple[list[Cell], list[Stream]]:
    """Let the readers (all that can, if none is named) read each; what they report, and what became of the streams."""
    run = next(_RUNS)
    asked = [
        (kind, ending, dialect, reader)
        for kind in kinds
        for ending in endings
        for dialect in dialects
        for reader in readers_of(dialect, process.http2)
        if readers is None or reader in readers
    ]

    def read(one: tuple[str, str, str, str]) -> Cell:
        kind, ending, dialect, reader = one
        url = f"{process.url}/{run}-{kind}-{ending}/{kind}/{ending}/{dialect}"
        # Whoever waits for an answer that stays open is let off soon; nobody else's limit is met on a busy machine.
        limit = patience if _waits(process.stack, ending, reader) else _LONG
        return Cell(process.stack, *one, READERS[reader](Asked(url, dialect, process.http2, limit)))

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        cells = list(pool.map(read, asked))
    return cells, streams(process, run, cells)


def streams(process: Process, run: int, cells: Sequence[Cell]) -> list[Stream]:
    """The books of all streams that were asked for, once each has ended and its source is closed."""
    found = []
    for kind, ending in dict.fromkeys((cell.kind, cell.ending) for cell in cells):
        label = f"{run}-{kind}-{ending}"
        number = sum((cell.kind, cell.ending) == (kind, ending) for cell in cells)

        def settled(those: list[dict[str, Any]], kind: str = kind, ending: str = ending, number: int = number) -> bool:
            return len(those) == number and all(Stream(process.stack, kind, ending, one).right for one in those)

        eventually(process, label, settled)
        found += [Stream(process.stack, kind, ending, one) for one in books(process, label)]
    assert len(found) == len(cells), f"{len(cells)} requests were made and {len(found)} streams started"
    return found
