"""The requests: which, in what order, how many at once, and what became of each.

All cells of the table run mixed, in an order drawn from the seed, so that a slow moment of the machine
meets every one of them alike. When all are read, the servers' ledgers say what was generated.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import anyio
import attrs
import httpx

from streamguard.demo.model import Entry
from streamguard.demo.readers import READERS, Reading, new_http
from streamguard.demo.servers import Asked, LabError

__all__ = ["Job", "Verdict", "run_jobs"]


@attrs.frozen
class Job:
    """One request: where, by which reader, asking for what. `group` is the cell it counts in."""

    group: tuple[str, ...]
    server: str
    reader: str
    asked: Asked


@attrs.frozen
class Verdict:
    """What became of one answer."""

    group: tuple[str, ...]
    whole: bool
    """The reader has all of the text, and the model came to its end."""
    noticed: bool
    """The reader's library raised."""
    first: float | None


def _judge(job: Job, reading: Reading, made: Mapping[str, Entry]) -> Verdict:
    entry = made.get(job.asked.id)
    if entry is None:
        raise LabError(f"no record of {job.asked.id}: the reader had {reading.error or 'no error'}, {reading.text!r}")
    return Verdict(job.group, entry.over and reading.text == entry.text, reading.error is not None, reading.first)


async def run_jobs(
    jobs: Sequence[Job],
    addresses: Mapping[str, str],
    *,
    seed: int,
    concurrency: int,
    done: Callable[[], object],
    through: str | None = None,
) -> list[Verdict]:
    """Every job's verdict. `addresses` are base URLs by server; `done` is called as each answer ends.

    With `through`, the base URL of a proxy, answers come from there, each on a connection of its own.

    Raises LabError where a server does not do its part.
    """
    order = list(jobs)
    random.Random(seed).shuffle(order)
    waiting = iter(order)
    read: list[tuple[Job, Reading]] = []
    async with new_http(concurrency, keep=through is None) as http:

        async def work(waiting: Iterator[Job]) -> None:
            for job in waiting:
                url = f"{through or addresses[job.server]}/answer"
                read.append((job, await READERS[job.reader](http, url, job.asked.params())))
                done()

        async with anyio.create_task_group() as tasks:
            for _ in range(concurrency):
                tasks.start_soon(work, waiting)
        made = await _ledgers(http, addresses.values())
    return [_judge(job, reading, made) for job, reading in read]


async def _ledgers(http: httpx.AsyncClient, addresses: Iterable[str]) -> dict[str, Entry]:
    made: dict[str, Entry] = {}
    for address in addresses:
        try:
            answer = (await http.get(f"{address}/made")).raise_for_status()
        except httpx.HTTPError as exc:
            raise LabError(f"the server at {address} does not say what it generated: {exc!r}") from exc
        made.update({key: Entry(**entry) for key, entry in answer.json().items()})
    return made
