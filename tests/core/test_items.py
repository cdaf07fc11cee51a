"""What a source may yield, and how pieces of text become whole characters."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamguard.core.errors import Failure, FinishConflict, NotSerialisable
from streamguard.core.items import Block, Checkpoint, Ending, Event, Finish, Joined, TextIntake, tool_call
from tests.strategies import byte_cuts, texts, token_cuts, whole

# ---- items --------------------------------------------------------------------------------------


def test_a_block_is_a_type_and_fields() -> None:
    block = Block("image", {"url": "u"})
    assert (block.type, block.fields) == ("image", {"url": "u"})
    assert Block("break").fields == {}


def test_a_block_s_fields_cannot_hold_its_type() -> None:
    with pytest.raises(ValueError, match=r"^a block's type is its first argument; its fields hold no 'type'$"):
        Block("image", {"type": "video"})


@pytest.mark.parametrize(
    ("type_", "fields", "said"),
    [
        ("x", "y", "a block's fields are a mapping, for example Block('x', {'text': 'y'}), not 'y'"),
        ("x", [1], "a block's fields are a mapping, for example Block('x', {'text': [1]}), not [1]"),
        ({"url": "u"}, {}, "a block's type is text, for example 'image', not {'url': 'u'}"),
    ],
)
def test_a_block_is_refused_where_it_is_written(type_: Any, fields: Any, said: str) -> None:
    with pytest.raises(TypeError, match=f"^{re.escape(said)}$"):
        Block(type_, fields)


def test_a_tool_call_is_a_block() -> None:
    assert tool_call("c1", "f", "{}") == Block("tool_call", {"id": "c1", "name": "f", "arguments": "{}"})


def test_an_event_is_unnamed_and_without_an_id_unless_told() -> None:
    assert Event("x") == Event("x", None, None)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (({"a": 1}, "token"), "Event.data is text: json.dumps it; not {'a': 1}"),
        (("x", 7), "Event.event is text or None, not 7"),
        (("x", None, 7), "Event.id is text or None, not 7"),
    ],
)
def test_an_event_of_anything_but_text_is_refused_where_it_is_made(fields: Any, said: str) -> None:
    with pytest.raises(TypeError, match=f"^{re.escape(said)}$"):
        Event(*fields)


@pytest.mark.parametrize("fields", [{"reason": 1}, {"usage": [1]}, {"choice": "0"}, {"reason": b"stop"}])
def test_a_finish_refuses_fields_of_another_type(fields: dict[str, Any]) -> None:
    (name,) = fields
    with pytest.raises(TypeError, match=f"^{name} is ") as caught:
        Finish(**fields)
    assert len(caught.value.args) == 1


def test_usage_in_the_place_of_the_reason_is_told_its_name() -> None:
    usage: Any = {"total_tokens": 9}
    said = r"^reason is text or None, not a dict: usage is given by name, usage=\{…\}$"
    with pytest.raises(TypeError, match=said):
        Finish(usage)


def test_a_finish_may_say_nothing() -> None:
    assert Finish() == Finish(reason=None, usage=None, choice=0)


@pytest.mark.parametrize("item", [Block("a"), Event("a"), Finish(), Checkpoint(1)])
def test_an_item_cannot_be_changed_after_it_was_yielded(item: Any) -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        item.type = item.data = item.reason = item.state = 1


# ---- text ---------------------------------------------------------------------------------------


def test_half_a_character_waits_for_its_other_half() -> None:
    intake = TextIntake()
    assert intake.text("a\ud83d") == "a"
    assert intake.torn
    assert intake.text("\ude42b") == "🙂b"
    assert not intake.torn
    assert intake.end() == ""


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (["\ud83d", "\ud83d", "\ude42"], "\ufffd🙂"),
        (["\ud83d", "a"], "\ufffda"),
        (["\ude42"], "\ufffd"),
        (["\ud83d", ""], "\ufffd"),
        (["\ud83d", "", "\ude42"], "🙂"),
        (["\udbff", "\udfff"], "\U0010ffff"),
        (["\ud800", "\udc00"], "\U00010000"),
        (["\udc00", "\ud800"], "\ufffd\ufffd"),
        (["\ud7ff"], "\ud7ff"),
        (["\ue000"], "\ue000"),
    ],
)
def test_halves_over_several_pieces(pieces: list[str], text: str) -> None:
    intake = TextIntake()
    assert "".join([intake.text(piece) for piece in pieces]) + intake.end() == text


@pytest.mark.parametrize("code", [0xD800, 0xDBFF])
def test_every_high_half_is_held(code: int) -> None:
    intake = TextIntake()
    assert intake.text(chr(code)) == ""
    assert intake.torn


@pytest.mark.parametrize("code", [0xDC00, 0xD7FF, 0xE000, 0xDFFF])
def test_nothing_else_is_held(code: int) -> None:
    intake = TextIntake()
    assert intake.text(chr(code)) == whole(chr(code))
    assert not intake.torn


def test_an_incomplete_sequence_waits_for_its_rest() -> None:
    intake = TextIntake()
    first, rest = "a🙂".encode()[:3], "a🙂".encode()[3:]
    assert intake.bytes(first) == "a"
    assert intake.torn
    assert intake.bytes(rest) == "🙂"
    assert not intake.torn


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ([b"\xf0\x9f"], "\ufffd"),
        ([b"\xf0\x9f", "a"], "\ufffda"),
        ([b"\xf0\x9f", "\ud83d", b"\x99\x82"], "\ufffd\ufffd\ufffd\ufffd"),
        (["\ud83d", b"a"], "\ufffda"),
        (["\ud83d", b"\xf0\x9f", b"\x99\x82"], "\ufffd🙂"),
        (["\ud83d", b"\xf0\x9f"], "\ufffd\ufffd"),
        ([b"\xff"], "\ufffd"),
        ([b"\xef\xbb\xbf", "x"], "\ufeffx"),
        ([b"\xe4", b"", b"\xbd", b"\xa0"], "你"),
    ],
)
def test_pieces_of_both_kinds_in_one_stream(pieces: list[str | bytes], text: str) -> None:
    intake = TextIntake()
    out = [intake.text(piece) if isinstance(piece, str) else intake.bytes(piece) for piece in pieces]
    assert "".join(out) + intake.end() == text
    assert not intake.torn


def test_the_end_of_an_incomplete_character_is_one_replacement_and_then_nothing() -> None:
    intake = TextIntake()
    assert intake.torn is False
    intake.bytes(b"\xf0\x9f\x99")
    assert intake.torn is True
    assert intake.end() == "\ufffd"
    assert intake.torn is False
    assert intake.end() == ""
    assert intake.bytes(b"\x82") == "\ufffd"  # nothing of the first sequence is left
    assert intake.text("\ud83d") == ""
    assert intake.end() == "\ufffd"
    assert intake.end() == ""
    assert intake.text("\ude42") == "\ufffd"


@given(token_cuts())
def test_text_cut_anywhere_is_the_same_text(pieces: list[str]) -> None:
    intake = TextIntake()
    assert "".join([intake.text(piece) for piece in pieces]) + intake.end() == whole("".join(pieces))


@given(byte_cuts(st.one_of(st.binary(max_size=30), texts.map(lambda text: text.encode("utf-8", "surrogatepass")))))
def test_bytes_cut_anywhere_are_the_same_text(pieces: list[bytes]) -> None:
    intake = TextIntake()
    assert "".join([intake.bytes(piece) for piece in pieces]) + intake.end() == b"".join(pieces).decode(
        "utf-8", "replace"
    )


# ---- the books of the ending --------------------------------------------------------------------


def test_usage_after_the_reason_merges() -> None:
    ending = Ending()
    assert attrs.astuple(ending) == ("complete", {}, None, None, 0)
    ending.merge(Finish("stop"))
    assert (ending.reasons, ending.usage) == ({0: "stop"}, None)
    ending.merge(Finish(usage={"input": 3, "output": 4}))
    ending.merge(Finish(usage={"output": 5, "cached": 1}))
    assert (ending.reasons, ending.usage) == ({0: "stop"}, {"input": 3, "output": 5, "cached": 1})
    ending.merge(Finish("stop"))
    ending.merge(Finish("length", choice=2))
    assert ending.reasons == {0: "stop", 2: "length"}


def test_two_reasons_for_one_choice_conflict() -> None:
    ending = Ending()
    ending.merge(Finish("stop", choice=1))
    with pytest.raises(FinishConflict) as caught:
        ending.merge(Finish("length", {"output": 1}, choice=1))
    assert (caught.value.choice, caught.value.first, caught.value.second) == (1, "stop", "length")
    assert (ending.reasons, ending.usage) == ({1: "stop"}, None)


def test_usage_without_a_json_form_is_refused_while_the_stream_can_still_fail() -> None:
    ending = Ending()
    with pytest.raises(NotSerialisable):
        ending.merge(Finish(usage={"output": float("nan")}))
    assert ending.usage is None


def test_usage_may_be_any_mapping_and_is_a_copy() -> None:
    inner = {"cached": 1}
    usage = {"input": inner}
    ending = Ending()
    ending.merge(Finish(usage=MappingProxyType(usage)))
    inner["cached"] = float("nan")  # type: ignore[assignment]
    usage["output"] = inner
    assert ending.usage == {"input": {"cached": 1}}


@pytest.mark.parametrize(
    ("reasons", "finish_reason"),
    [
        ({}, None),
        ({0: "stop"}, "stop"),
        ({3: "stop"}, "stop"),
        ({2: "length", 0: "stop"}, {"0": "stop", "2": "length"}),
    ],
)
def test_the_finish_reason_of_one_choice_is_a_string_and_of_several_a_map(
    reasons: dict[int, str], finish_reason: object
) -> None:
    found = Ending(reasons=reasons).finish_reason
    assert found == finish_reason
    if isinstance(found, dict):
        assert list(found) == sorted(found)


def test_a_generation_that_its_engine_aborted_is_no_complete_one() -> None:
    aborted = Failure("generation_aborted", "the engine aborted the generation", retryable=True)
    assert Ending(reasons={0: "stop", 1: "abort"}).aborted() == aborted
    assert Ending(reasons={0: "stop"}).aborted() is None
    assert Ending().aborted() is None


@pytest.mark.parametrize("choice", [-1, 2**31, 10**5000], ids=["below", "above", "far above"])
def test_a_choice_is_a_small_number(choice: int) -> None:
    with pytest.raises(ValueError, match="a choice must be from 0 to 2147483647"):
        Finish("stop", choice=choice)
    assert Finish("stop", choice=2**31 - 1).choice == 2**31 - 1


def test_pieces_that_waited_together_are_one_text_and_are_counted() -> None:
    joined = Joined.of(["a", "", "bc"])
    assert (joined, joined.pieces) == ("abc", 2)


def test_a_checkpoint_keeps_what_the_state_was() -> None:
    tokens = [1, 2]
    checkpoint = Checkpoint({"tokens": tokens, "pair": (1, 2)})
    tokens.append(3)
    assert checkpoint == Checkpoint({"tokens": [1, 2], "pair": [1, 2]})
    with pytest.raises(NotSerialisable, match="set"):
        Checkpoint({1, 2})
