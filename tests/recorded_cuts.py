"""What two suites share that read recordings, whole and cut: their log is quiet, and what finds cuts can fail."""

from __future__ import annotations

import logging
from random import Random
from typing import ClassVar

import anyio
import pytest

from tests.core.test_recorded import recorded
from tests.cuts import Passing, Row, cut_everywhere

__all__ = ["CutsAreFound", "pieces", "quiet"]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Without a line in the log for each recording that is refused; of every test of a module that imports it."""
    caplog.set_level(logging.CRITICAL, "streamguard")


def pieces(data: bytes) -> list[bytes]:
    """A recording, as it could come over a network."""
    return [data[at : at + 700] for at in range(0, len(data), 700)]


class CutsAreFound:
    """Of a way to read `rows`: that its proof finds what passes. `ways` are those in which one cut can."""

    rows: ClassVar[list[Row]]
    passing: ClassVar[Passing]
    ways: ClassVar[int]

    def test_the_proof_counts_its_cuts_and_finds_none_that_passes(self) -> None:
        found = cut_everywhere(self.rows[:2], Random(0), type(self).passing, places=1, edges=2)
        assert found.rows[-1][-1] == 0
        assert found.cuts >= 4

    def test_a_cut_that_passes_would_be_found(self) -> None:
        row = next(row for row in self.rows if row["verdict"] == "complete")
        data = recorded(row)
        assert len(anyio.run(type(self).passing, row, data, [len(data)])) == self.ways
