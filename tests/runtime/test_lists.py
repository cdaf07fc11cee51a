"""Stages whose output are lists: of items, and of frames."""

from __future__ import annotations

from typing import Any

import pytest

from streamguard.core.errors import Failure
from streamguard.core.flush import EveryTokens, Immediate, Within
from streamguard.core.frame import Frame, row_of
from streamguard.core.framing import FramedEncoder
from streamguard.core.items import Block, Checkpoint, Finish
from streamguard.runtime.lists import FrameLists, ItemLists
from streamguard.runtime.producer import LoggedStage, Mark
from tests.runtime.fakes import SID


def frames_of(policy: EveryTokens | Immediate | Within) -> FrameLists:
    return FrameLists(policy, FramedEncoder("native", sid=SID))


def test_items_pass_a_policy_and_what_it_holds_leaves_at_the_end() -> None:
    stage = ItemLists(EveryTokens(3, first="policy"))
    block = Block("image")
    found = [stage.push("a", 0.0), stage.push(block, 0.0), stage.push(Finish("length"), 0.0), stage.push("b", 0.0)]
    assert found == [[], ["a", block], [Finish("length")], []]
    assert (stage.items, stage.status, stage.ending.finish_reason) == (3, None, "length")
    assert (stage.finish(0.0), stage.status) == (["b"], "complete")


def test_items_that_end_as_failed_leave_all_the_same() -> None:
    stage = ItemLists(EveryTokens(3, first="policy"))
    stage.push("a", 0.0)
    failure = Failure("x", "y")
    assert stage.fail(failure, 0.0, "stalled") == ["a"]
    assert (stage.status, stage.ending.status, stage.ending.failure) == ("stalled", "stalled", failure)
    assert stage.finish(0.0) == []


def test_frames_are_numbered_and_the_last_one_has_the_status() -> None:
    stage = frames_of(EveryTokens(2, first="policy"))
    assert stage.push("a", 0.0) == []
    assert [frame.data for frame in stage.push("b", 0.0)] == [b'"ab"']
    last = stage.finish(0.0)
    assert ([frame.seq for frame in last], stage.status, stage.items) == ([2], "complete", 2)


def test_frames_of_a_failure_begin_with_what_was_held() -> None:
    stage = frames_of(EveryTokens(2, first="policy"))
    stage.push("a", 0.0)
    assert [frame.status for frame in stage.fail(Failure("x", "y"), 0.0, "stalled")] == [None, "stalled"]
    assert stage.status == "stalled"


def test_what_is_held_can_leave_without_an_end() -> None:
    stage = frames_of(EveryTokens(2, first="policy"))
    stage.push("a", 0.0)
    assert [frame.data for frame in stage.drain()] == [b'"a"']
    assert (stage.status, stage.drain()) == (None, [])


@pytest.mark.parametrize("kind", [ItemLists, lambda policy: FrameLists(policy, FramedEncoder("native", sid=SID))])
def test_time_releases_what_is_held(kind: type[ItemLists]) -> None:
    stage = kind(Within(1.0, first="policy"))
    assert (stage.push("a", 5.0), stage.deadline(), stage.tick(5.5)) == ([], 6.0, [])
    assert len(stage.tick(6.0)) == 1


def test_there_is_nothing_to_open_and_no_sign_of_life() -> None:
    for stage in (ItemLists(Immediate()), frames_of(Immediate())):
        assert (stage.open(), stage.heartbeat(), stage.sent) == ([], [], 0)


def test_a_policy_that_knows_no_time_is_not_asked_for_a_deadline() -> None:
    assert [frames_of(policy).timed for policy in (Immediate(), EveryTokens(8), Within(1.0))] == [False, False, True]


def test_a_text_is_a_tuple_for_a_log_that_takes_it_so_and_all_else_a_frame() -> None:
    """Both count on in one chain."""
    encoder, plain = (FramedEncoder("native", sid=SID) for _ in range(2))
    stage, frames = LoggedStage(Immediate(), encoder, fields=True), LoggedStage(Immediate(), plain)
    for item in ("a", "\u00e9", Block("image", {"url": "x"}), "b"):
        (found,), (wanted,) = stage.push(item, 0.0), frames.push(item, 0.0)
        assert type(found) is (tuple if isinstance(item, str) else Frame)
        assert found == (row_of(wanted) if isinstance(item, str) else wanted)
    assert stage.finish(0.0) == frames.finish(0.0)


def test_a_logged_checkpoint_stands_behind_the_frames_before_it() -> None:
    stage = LoggedStage(EveryTokens(9, first="policy"), FramedEncoder("native", sid=SID))
    stage.push("a", 0.0)
    found: list[Any] = stage.push(Checkpoint({"at": 1}), 0.0)
    assert (found[0].data, found[1:]) == (b'"a"', [Mark(b'{"at":1}')])
    assert stage.cursor.seq == 1


def test_a_logged_stream_whose_server_goes_away_has_no_end() -> None:
    stage = LoggedStage(EveryTokens(9, first="policy"), FramedEncoder("native", sid=SID))
    stage.push("a", 0.0)
    assert [frame.status for frame in stage.fail(Failure("x", "y"), 0.0, "shutdown")] == [None]
    assert (stage.fail(Failure("x", "y"), 0.0, "shutdown"), stage.status) == ([], None)
    assert [frame.status for frame in stage.fail(Failure("x", "y"), 0.0)] == ["failed"]
