"""The lab's claims, on real servers in small: loss is a matter of lag, and guarded answers are never cut in silence."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import pytest

from streamguard.demo.lab import CHUNKS, NAMED, CutRow, LagRow, Result, Settings, cut_jobs, lag_jobs, lag_rows, run
from streamguard.demo.load import Verdict, run_jobs
from streamguard.demo.servers import serving

REQUESTS = 20
# Seconds. A chunk of 8 then waits 0.8 s for its tokens; storing takes longer than that for one answer in 4,000.
LAG = 0.1


@pytest.fixture(scope="module")
def without_lag() -> Result:
    begun: list[tuple[str, list[None]]] = []

    def start(title: str, total: int) -> Callable[[], object]:
        begun.append((title, [None] * total))

        def done() -> None:
            begun[-1][1].pop()

        return done

    settings = Settings(seed=5, requests=REQUESTS, delay=0.0, chunks=(8,))
    result = anyio.run(lambda: run(settings, start=start))
    assert [left for _, left in begun] == [[], []], "what was announced was done"
    return result


@pytest.fixture(scope="module")
def with_lag() -> Result:
    """The first experiment alone."""
    settings = Settings(seed=5, requests=REQUESTS, delay=LAG, chunks=(8,))

    async def go(addresses: dict[str, str]) -> list[Verdict]:
        return await run_jobs(lag_jobs(settings), addresses, seed=5, concurrency=20, done=lambda: None)

    with serving("unguarded", "guarded") as addresses:
        return Result(settings, lag_rows(settings, anyio.run(go, addresses)), ())


def row(result: Result, variant: str) -> LagRow:
    (found,) = [row for row in result.rows if row.variant == variant]
    assert found.answers == REQUESTS
    return found


@pytest.mark.parametrize("variant", ["unguarded", "unguarded+flush", "guarded"])
def test_without_lag_nothing_is_lost(without_lag: Result, variant: str) -> None:
    assert row(without_lag, variant).truncated == 0


def test_a_sender_that_lags_loses_tails_and_no_reader_is_told(with_lag: Result) -> None:
    assert row(with_lag, "unguarded").truncated > REQUESTS // 2
    assert row(with_lag, "unguarded").noticed == 0


def test_a_flush_at_the_end_helps_only_as_far_as_the_sender_gets(with_lag: Result) -> None:
    assert 0 < row(with_lag, "unguarded+flush").truncated <= row(with_lag, "unguarded").truncated


def test_guarded_answers_are_whole_under_the_same_lag(with_lag: Result) -> None:
    assert row(with_lag, "guarded").truncated == 0


def test_a_cut_is_noticed_by_the_guarded_reader_however_it_is_made(without_lag: Result) -> None:
    guarded = [row for row in without_lag.cuts if row.reader == "streamguard"]
    assert len(guarded) == 3
    for one in guarded:
        assert one.incomplete > 0
        assert one.silent == 0
    assert without_lag.kept


def test_a_cut_behind_an_http_1_0_hop_is_noticed_by_no_other_reader(without_lag: Result) -> None:
    others = [row for row in without_lag.cuts if "1.0" in row.fault and row.reader != "streamguard"]
    assert {row.reader for row in others} == {"httpx", "httpx-sse"}
    for one in others:
        assert one.incomplete > 0
        assert one.noticed == 0


def result(*rows: LagRow | CutRow) -> Result:
    lags = tuple(row for row in rows if isinstance(row, LagRow))
    return Result(Settings(), lags, tuple(row for row in rows if isinstance(row, CutRow)))


@pytest.mark.parametrize(
    ("kept", "one"),
    [
        (True, LagRow(8, "unguarded", 10, 3, 0, (0, 1), 1.0)),
        (True, LagRow(8, "guarded", 10, 3, 3, (0, 1), 1.0)),
        (False, LagRow(8, "guarded", 10, 3, 2, (0, 1), 1.0)),
        (True, CutRow("closed", "httpx", 10, 10, 0, (0, 1))),
        (True, CutRow("closed", "streamguard", 10, 10, 10, (0, 1))),
        (False, CutRow("closed", "streamguard", 10, 10, 9, (0, 1))),
    ],
)
def test_the_promise_is_kept_unless_a_guarded_reader_was_not_told(kept: bool, one: LagRow | CutRow) -> None:
    assert result(one).kept is kept


def test_the_chunk_sizes_that_the_account_names_get_300_answers() -> None:
    assert CHUNKS == (1, 2, 4, 8, 16, 32)
    jobs = lag_jobs(Settings())
    for chunk in NAMED:
        for variant in ("unguarded", "unguarded+flush", "guarded"):
            assert sum(job.group == (str(chunk), variant) for job in jobs) >= 300


def test_the_variants_of_a_chunk_size_get_the_same_answers_and_the_same_lag() -> None:
    jobs = lag_jobs(Settings(requests=3, chunks=(4,)))
    asked = [(job.asked.seed, job.asked.number, job.asked.chunk, job.asked.delay) for job in jobs]
    assert sorted(asked) == sorted(3 * asked[::3])
    assert len({job.asked.id for job in jobs}) == len(jobs)


def test_the_cut_experiment_has_no_lag() -> None:
    assert {job.asked.delay for job in cut_jobs(Settings(), "FIN, HTTP/1.1", "httpx")} == {0.0}
