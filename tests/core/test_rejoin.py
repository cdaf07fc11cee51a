"""The joint of two connections, by itself: which frames are dropped, and what is said of those that are none."""

from __future__ import annotations

import pytest

from streamguard.core.cursor import Cursor, chain, cursor_zero
from streamguard.core.errors import CorruptStream, StreamGap
from streamguard.core.rejoin import Joint

SID = "A" * 22
ZERO = cursor_zero(SID)


def after(at: Cursor, data: bytes, name: str | None = None) -> Cursor:
    return Cursor(SID, at.seq + 1, at.offset + len(data), chain(at.crc, name, None, data))


FIRST = after(ZERO, b'"one"')
SECOND = after(FIRST, b'{"type":"image"}', "block")
THIRD = after(SECOND, b'"three"')


def test_frames_that_come_again_are_known_by_name_and_data() -> None:
    joint = Joint(THIRD)
    assert joint.repeats(FIRST, None, b'"one"') is True
    assert joint.repeats(SECOND, "block", b'{"type":"image"}') is True
    assert joint.repeats(THIRD, None, b'"three"') is True
    assert joint.repeats(after(THIRD, b'"four"'), None, b'"four"') is False


def test_a_frame_of_another_name_is_another_one() -> None:
    joint = Joint(THIRD)
    assert joint.repeats(FIRST, None, b'"one"')
    with pytest.raises(CorruptStream) as raised:
        joint.repeats(SECOND, None, b'{"type":"image"}')
    assert (raised.value.code, raised.value.cursor) == ("seq", THIRD)
    assert "frame 2 came again, and is another one" in str(raised.value)


def test_what_breaks_off_before_the_joint_is_a_gap_that_says_where() -> None:
    joint = Joint(THIRD)
    assert joint.repeats(FIRST, None, b'"one"')
    with pytest.raises(StreamGap) as raised:
        joint.repeats(after(THIRD, b'"four"'), None, b'"four"')
    assert raised.value.cursor == THIRD
    assert raised.value.detail == "among the frames that came again"
    assert (raised.value.expected, raised.value.got) == (2, 4)


def test_frames_behind_the_joint_that_follow_nothing_again_are_not_judged() -> None:
    joint = Joint(FIRST)
    assert joint.repeats(after(FIRST, b'"two"'), None, b'"two"') is False
    assert joint._begun is False
