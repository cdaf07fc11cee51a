"""A slow reader of a server that is a process of its own, at a small size: `python -m tests.proofs slow-readers`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.proofs.slow_readers import AHEAD, BUFFER, MARGIN, Slow, beside, slow


@pytest.mark.parametrize(("way", "bound"), [("buffered", BUFFER), ("logged, in memory", AHEAD)])
def test_a_source_waits_for_its_slow_reader_and_memory_stays_within_its_bound(
    way: str, bound: int, tmp_path: Path
) -> None:
    found = slow("uvicorn", way, 1.0, str(tmp_path))
    assert found.good, found
    assert bound < found.made - found.taken < bound + MARGIN  # it did run ahead, and did stop
    assert 0 < found.taken < 20_000


def test_a_source_that_did_not_wait_would_be_found() -> None:
    ahead = Slow("direct", made=10_000_000, taken=10_000, half=(5_000_000, 5_000))
    assert not ahead.good
    assert not Slow("direct", grown=MARGIN + 1).good
    assert not Slow("logged, in memory", made=10_000_000, taken=10_000, half=(5_000_000, 5_000)).good
    assert Slow("logged, without max_ahead", made=10_000_000, taken=10_000, half=(5_000_000, 5_000)).good


def test_readers_are_measured_without_and_beside_one_that_stalls() -> None:
    alone, with_one = beside("uvicorn", "direct", count=3, rounds=1, seconds=1.0)
    assert alone > 0
    assert with_one > 0
