"""Verdicts come from the servers' ledgers; a lab that does not work says so."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import anyio
import pytest

from streamguard.demo.load import Job, Verdict, run_jobs
from streamguard.demo.servers import Asked, LabError, serving
from streamguard.testing.proxy import HEAD, FaultProxy, Plan


def job(server: str, reader: str, number: int) -> Job:
    return Job((reader,), server, reader, Asked(f"{reader}/{number}", 1, number, 4, 0.0, pace=0.1))


@pytest.fixture(scope="module")
def addresses() -> Iterator[dict[str, str]]:
    with serving("unguarded", "guarded") as found:
        yield found


def run(jobs: list[Job], addresses: dict[str, str], through: str | None = None) -> list[Verdict]:
    async def go() -> list[Verdict]:
        return await run_jobs(jobs, addresses, seed=1, concurrency=3, done=lambda: counted.append(1), through=through)

    counted: list[int] = []
    verdicts = anyio.run(go)
    assert len(counted) == len(jobs)
    return verdicts


@pytest.mark.parametrize(
    ("server", "reader"), [("unguarded", "httpx"), ("unguarded", "httpx-sse"), ("guarded", "streamguard")]
)
def test_every_reader_has_the_whole_text_where_nothing_is_done_to_it(
    addresses: dict[str, str], server: str, reader: str
) -> None:
    verdicts = run([job(server, reader, number) for number in range(5)], addresses)
    assert len(verdicts) == 5
    for verdict in verdicts:
        assert verdict.whole
        assert not verdict.noticed
        assert verdict.first is not None


@pytest.mark.parametrize(
    ("server", "reader", "http10", "noticed"),
    [
        ("unguarded", "httpx", False, True),
        ("unguarded", "httpx", True, False),
        ("unguarded", "httpx-sse", True, False),
        ("guarded", "streamguard", False, True),
        ("guarded", "streamguard", True, True),
    ],
)
def test_who_notices_a_cut_depends_on_the_framing_unless_the_answer_is_guarded(
    addresses: dict[str, str], server: str, reader: str, http10: bool, noticed: bool
) -> None:
    host, _, port = addresses[server].removeprefix("http://").partition(":")

    async def go() -> list[Verdict]:
        async with FaultProxy(host, int(port), plan=Plan(cut_at=40, after=HEAD, http10=http10)) as proxy:
            jobs = [job(server, reader, number) for number in range(3)]
            return await run_jobs(jobs, addresses, seed=1, concurrency=3, done=lambda: None, through=proxy.url)

    for verdict in anyio.run(go):
        assert not verdict.whole
        assert verdict.noticed is noticed


def test_a_server_that_cannot_be_asked_for_its_ledger_is_an_error_of_the_lab() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        base = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(LabError, match="does not say what it generated"):
            run([job("unguarded", "httpx", 0)], {"unguarded": base})


def test_an_answer_that_its_server_has_no_record_of_is_an_error_of_the_lab(addresses: dict[str, str]) -> None:
    elsewhere = {"unguarded": addresses["guarded"]}
    with pytest.raises(LabError, match="no record of httpx/0"):
        run([job("unguarded", "httpx", 0)], elsewhere, through=addresses["unguarded"])
