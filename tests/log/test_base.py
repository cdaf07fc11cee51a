"""What all logs share: the check of what is appended, the settings, what the errors say."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from streamguard.core.cursor import cursor_zero, new_sid
from streamguard.core.frame import Frame
from streamguard.core.framing import FramedEncoder
from streamguard.log.base import (
    CursorMisfit,
    CursorTrimmed,
    LeaseHeld,
    LeaseLost,
    LogError,
    LogLost,
    LogUnavailable,
    Retention,
    StreamExists,
    StreamInfo,
    StreamSealed,
    UnknownStream,
    tail_of,
)

ZERO = cursor_zero(new_sid())


def test_the_tail_is_the_last_frames_position_with_its_status() -> None:
    encoder = FramedEncoder("native")
    tail = encoder.zero
    for _ in range(3):
        tail = tail_of(tail, [encoder.text("a"), *encoder.texts("b")])
        assert tail == encoder.cursor
    frames = [encoder.text("c"), *encoder.finish()]
    end = tail_of(tail, frames)
    assert end == encoder.cursor._replace(status="complete")
    assert tail_of(end, []) == encoder.cursor


@pytest.mark.parametrize(
    "frames",
    [
        [Frame(2, 1, 0, b"a")],
        [Frame(0, 1, 0, b"a")],
        [Frame(1, 2, 0, b"a")],
        [Frame(1, 0, 0, b"a")],
        [Frame(1, 1, 0, b"a"), Frame(3, 2, 0, b"b")],
        [Frame(1, 1, 0, b"a"), Frame(1, 2, 0, b"b")],
        [Frame(1, 1, 0, b"a"), Frame(2, 3, 0, b"b")],
        [Frame(2, 1, 0, b"a"), Frame(1, 2, 0, b"b")],
        [Frame(1, 1, 0, b"a", status="complete"), Frame(2, 2, 0, b"b")],
    ],
)
def test_frames_that_do_not_follow_are_refused(frames: list[Frame]) -> None:
    with pytest.raises(ValueError, match="frame"):
        tail_of(ZERO, frames)


@pytest.mark.parametrize(
    ("field", "value"),
    [*itertools.product(["after_end", "unsealed"], [0, -1, math.nan]), ("max_bytes", 0), ("max_bytes", -1)],
)
def test_a_limit_is_above_zero(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        Retention(**{field: value})  # type: ignore[arg-type]  # which is what is refused


def test_a_part_of_a_byte_is_no_limit() -> None:
    with pytest.raises(TypeError, match=r"^max_bytes is a whole number of at least 1, not 1\.5$"):
        Retention(max_bytes=1.5)  # type: ignore[arg-type]  # which is what is refused


def test_every_error_says_what_it_is_about_and_keeps_it() -> None:
    facts: dict[type[LogError], Any] = {
        UnknownStream: ZERO.sid, StreamExists: StreamInfo(ZERO.sid), StreamSealed: ZERO, LeaseLost: 2, LeaseHeld: 2,
        CursorMisfit: ZERO, CursorTrimmed: ZERO, LogLost: ZERO, LogUnavailable: "locked",
    }  # fmt: skip
    assert set(facts) == set(LogError.__subclasses__())
    for kind, fact in facts.items():
        error = kind(fact)
        assert fact in vars(error).values()
        assert "\n" not in str(error)
        assert len(str(error)) > 20
