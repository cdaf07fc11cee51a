"""The two experiments of the lab.

*The lagging sender.* Chunk sizes by variants of the endpoint. The sender lags `delay` seconds behind and
the end of generation ends the response: what is lost is lost by timing alone.

*The cut connection.* Each connection is cut at a random byte of the body by a proxy in between. The sender
lags by nothing here, so that a text can only be cut by the network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Final
from urllib.parse import urlsplit

import attrs

from streamguard.demo.load import Job, Verdict, run_jobs
from streamguard.demo.readers import available
from streamguard.demo.servers import Asked, serving
from streamguard.demo.stats import wilson
from streamguard.testing.proxy import HEAD, FaultProxy, Passage, Plan, RandomCut

__all__ = [
    "CHUNKS",
    "CUT_READERS",
    "DELAY",
    "FAULTS",
    "NAMED",
    "VARIANTS",
    "CutReader",
    "CutRow",
    "LagRow",
    "Result",
    "Settings",
    "cut_jobs",
    "cut_row",
    "lag_jobs",
    "lag_rows",
    "run",
]

CHUNKS: Final = (1, 2, 4, 8, 16, 32)
VARIANTS: Final = ("unguarded", "unguarded+flush", "guarded")

# Seconds. With the times in demo/model.py, about 12 % of the unguarded answers are cut at chunk size 8
# and 23 % at 16, as a published account measured.
DELAY: Final = 0.0025

REQUESTS: Final = 300  # answers in each cell of the chunk sizes that the account names ...
FEWER: Final = 100  # ... and of the others
NAMED: Final = (8, 16)
CUT_REQUESTS: Final = 60

# Answers at once. Twice as many change no rate: the load stays under half of one core.
CONCURRENCY: Final = 20
CUT_CONCURRENCY: Final = 8
CUT_PACE: Final = 0.1
CUT_CHUNK: Final = 4


@attrs.frozen
class Settings:
    """What `streamguard demo` can be asked for. `requests` is answers a cell, None for the lab's own numbers."""

    seed: int = 1
    requests: int | None = None
    delay: float = DELAY
    chunks: tuple[int, ...] = CHUNKS

    def answers(self, chunk: int) -> int:
        if self.requests is not None:
            return self.requests
        return REQUESTS if chunk in NAMED else FEWER

    @property
    def cuts(self) -> int:
        return CUT_REQUESTS if self.requests is None else min(self.requests, CUT_REQUESTS)


@attrs.frozen
class LagRow:
    """One cell of the first table. `ci` is of truncated / answers; `ttft_ms` the median to the first text."""

    chunk: int
    variant: str
    answers: int
    truncated: int
    noticed: int
    """Of the truncated: those whose reader was told."""
    ci: tuple[float, float]
    ttft_ms: float | None


@attrs.frozen
class CutRow:
    """One line of the second table. `ci` is of silent / cut."""

    fault: str
    reader: str
    cut: int
    incomplete: int
    """Of the cut: those whose reader lacks some of the text."""
    noticed: int
    """Of the incomplete: those whose reader was told."""
    ci: tuple[float, float]

    @property
    def silent(self) -> int:
        return self.incomplete - self.noticed


@attrs.frozen
class Result:
    """What was measured."""

    settings: Settings
    rows: tuple[LagRow, ...]
    cuts: tuple[CutRow, ...]

    @property
    def kept(self) -> bool:
        """Whether the promise was kept: no guarded answer lacked text without its reader being told."""
        return all(row.truncated == row.noticed for row in self.rows if row.variant == "guarded") and not any(
            row.silent for row in self.cuts if row.reader == "streamguard"
        )


# How a connection is cut, and what a reader behind nothing else sees of it.
FAULTS: Final[dict[str, Plan]] = {
    "FIN, HTTP/1.1": Plan(end="fin", after=HEAD),
    "RST, HTTP/1.1": Plan(end="reset", after=HEAD),
    "FIN, HTTP/1.0": Plan(end="fin", after=HEAD, http10=True),
}


@attrs.frozen
class CutReader:
    """Which server a reader reads, and within how many bytes of the body its connections are cut.

    The bodies are of different lengths for the same text; each number is about the shortest answers' own.
    """

    server: str
    within: int


CUT_READERS: Final = {
    "httpx": CutReader("unguarded", 150),
    "httpx-sse": CutReader("unguarded", 250),
    "streamguard": CutReader("guarded", 1200),
}


def lag_jobs(settings: Settings) -> list[Job]:
    """Every request of the first experiment. The variants of a chunk size get the same answers."""
    jobs = []
    for chunk in settings.chunks:
        for number in range(settings.answers(chunk)):
            for variant in VARIANTS:
                server = "guarded" if variant == "guarded" else "unguarded"
                asked = Asked(
                    f"lag/{chunk}/{variant}/{number}",
                    settings.seed,
                    number,
                    chunk,
                    settings.delay,
                    flush=variant == "unguarded+flush",
                )
                reader = "streamguard" if variant == "guarded" else "httpx"
                jobs.append(Job((str(chunk), variant), server, reader, asked))
    return jobs


def cut_jobs(settings: Settings, fault: str, reader: str) -> list[Job]:
    """The requests of one line of the second experiment."""
    return [
        Job(
            (fault, reader),
            CUT_READERS[reader].server,
            reader,
            Asked(f"cut/{fault}/{reader}/{number}", settings.seed, number, CUT_CHUNK, 0.0, pace=CUT_PACE, flush=True),
        )
        for number in range(settings.cuts)
    ]


def lag_rows(settings: Settings, verdicts: Sequence[Verdict]) -> tuple[LagRow, ...]:
    """The first table, from what became of each answer."""
    rows = []
    for chunk in settings.chunks:
        for variant in VARIANTS:
            cell = [verdict for verdict in verdicts if verdict.group == (str(chunk), variant)]
            lost = [verdict for verdict in cell if not verdict.whole]
            firsts = [verdict.first for verdict in cell if verdict.first is not None]
            rows.append(
                LagRow(
                    chunk,
                    variant,
                    len(cell),
                    len(lost),
                    sum(verdict.noticed for verdict in lost),
                    wilson(len(lost), len(cell)),
                    round(median(firsts) * 1000, 2) if firsts else None,
                )
            )
    return tuple(rows)


def cut_row(fault: str, reader: str, verdicts: Sequence[Verdict], passages: Sequence[Passage]) -> CutRow:
    """One line of the second table.

    Its rate is of the connections that the proxy did cut: a few answers are shorter than their cut's place.
    """
    cut = sum(passage.ended == "cut" for passage in passages)
    lost = [verdict for verdict in verdicts if not verdict.whole]
    noticed = sum(verdict.noticed for verdict in lost)
    return CutRow(fault, reader, cut, len(lost), noticed, wilson(len(lost) - noticed, cut))


async def run(settings: Settings, *, start: Callable[[str, int], Callable[[], object]]) -> Result:
    """Both experiments, on servers of their own.

    `start(title, total)` is called as each experiment begins; what it answers, as each answer ends.
    Raises LabError where the lab itself does not work.
    """
    with serving("unguarded", "guarded") as addresses:
        await _warm(settings, addresses)
        jobs = lag_jobs(settings)
        done = start("a sender that lags", len(jobs))
        verdicts = await run_jobs(jobs, addresses, seed=settings.seed, concurrency=CONCURRENCY, done=done)
        readers = [reader for reader in CUT_READERS if available(reader)]
        done = start("a connection that is cut", len(FAULTS) * len(readers) * settings.cuts)
        cuts = [await _cut(settings, fault, reader, addresses, done) for fault in FAULTS for reader in readers]
    return Result(settings, lag_rows(settings, verdicts), tuple(cuts))


async def _warm(settings: Settings, addresses: Mapping[str, str]) -> None:
    """A few answers that do not count: the first of a process also loads modules."""
    warm = attrs.evolve(settings, requests=2, chunks=(1, 8))
    await run_jobs(lag_jobs(warm), addresses, seed=0, concurrency=CONCURRENCY, done=lambda: None)


async def _cut(
    settings: Settings, fault: str, reader: str, addresses: Mapping[str, str], done: Callable[[], object]
) -> CutRow:
    server = CUT_READERS[reader].server
    target = urlsplit(addresses[server])
    assert target.hostname is not None
    assert target.port is not None
    plan = RandomCut(seed=settings.seed, low=0, high=CUT_READERS[reader].within, base=FAULTS[fault])
    async with FaultProxy(target.hostname, target.port, plan=plan) as proxy:
        verdicts = await run_jobs(
            cut_jobs(settings, fault, reader),
            addresses,
            through=proxy.url,
            seed=settings.seed,
            concurrency=CUT_CONCURRENCY,
            done=done,
        )
        return cut_row(fault, reader, verdicts, proxy.history)
