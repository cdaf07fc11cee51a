"""What a process does now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from streamguard.observe import system
from streamguard.observe.hooks import Closed, Frames, Opened, Outcome
from streamguard.observe.system import Surroundings, System, resident_bytes
from streamguard.runtime.admission import Admission
from streamguard.runtime.drain import Drain
from streamguard.runtime.slots import Limits
from tests.observe.test_hooks import FACTS, STREAM


def test_what_is_open_is_counted_by_part_and_the_newest_reading_stays() -> None:
    around, reader = Surroundings(), attrs.evolve(STREAM, part="reader")
    around.opened(Opened(STREAM, 0.0))
    around.opened(Opened(reader, 0.0))
    around.noted(Frames(STREAM, 0.0, 1, 1, 1, 1, lag=0.5, log_latency=None))
    around.closed(Closed(reader, 0.0, Outcome(**FACTS), log_latency=0.25))
    look = around.look()
    assert look.open == {"direct": 1, "producer": 0, "reader": 0}
    assert (look.lag, look.log_latency) == (0.5, 0.25)


def test_what_says_how_many_wait_counts_once_however_often_it_is_given() -> None:
    around, drain = Surroundings(), Drain()
    one, two = (Admission(Limits(max_streams=9)) for _ in range(2))
    for source in (one, one, two, drain, drain):
        around.attached(source)
    assert (around.waiting, around.detached, around.draining) == (0, 0, False)
    one._slots.waiting, two._slots.waiting = 2, 3
    assert around.waiting == 5
    drain.begin()
    assert around.draining
    assert around.look() == System(around.look().open, 5, 0, True, None, None, around.look().resident)


def test_a_process_knows_its_memory_where_the_system_tells(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found: Any = tmp_path / "statm"
    monkeypatch.setattr(system, "Path", lambda name: found)
    assert resident_bytes() is None
    found.write_text("nothing of it")
    assert resident_bytes() is None
    found.write_text("900 300 1 1 1 1 1")
    assert resident_bytes() in {300 * size for size in (4096, 16384, 65536)}
