"""Each log against the model, and wrong logs, which the model finds out."""

from __future__ import annotations

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from streamguard.core.cursor import cursor_zero
from streamguard.core.frame import Frame
from streamguard.log.base import LogError, StreamLog
from streamguard.log.memory import MemoryLog
from streamguard.testing.log_case import at_end
from tests.log.machine import Store, machine_of, machine_test
from tests.log.test_contract import (
    AnyEpoch,
    Anywhere,
    Clock,
    Doubling,
    EagerCheckpoint,
    ForgetsCancel,
    Greedy,
    NoNames,
    Oldest,
    Once,
    Patient,
    ReleasesAny,
    SweepsAll,
    Trusting,
)


def lose(log: StreamLog, sid: str, count: int) -> None:
    """As a store that is restarted from an older copy of itself."""
    assert isinstance(log, MemoryLog)
    stream = log._streams[sid]
    del stream.rows[-count:]
    stream.tail = at_end(cursor_zero(sid), [Frame(*row) for row in stream.rows])
    stream.checkpoint = None


def memory(kind: type[MemoryLog] = MemoryLog) -> Store:
    clock = Clock()
    return Store(lambda retention: kind(retention, clock=clock), clock.advance, lose)


TestMemoryLog = machine_test(memory)

FOUND_OUT = [
    AnyEpoch, Anywhere, Doubling, EagerCheckpoint, ForgetsCancel, Greedy, NoNames, Oldest, Once, Patient,
    ReleasesAny, SweepsAll, Trusting,
]  # fmt: skip


@pytest.mark.parametrize("wrong", FOUND_OUT)
def test_the_model_finds_a_wrong_log_out(wrong: type[MemoryLog]) -> None:
    settings_ = settings(max_examples=300, phases=[Phase.generate], report_multiple_bugs=False)
    with pytest.raises((AssertionError, LogError)):
        run_state_machine_as_test(machine_of(lambda: memory(wrong)), settings=settings_)
