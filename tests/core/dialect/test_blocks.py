"""The fields of blocks, and when a tool call may be run."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamguard.core.dialect import blocks
from streamguard.core.dialect.blocks import (
    Pieces,
    as_call,
    as_index,
    as_key,
    call_read,
    call_written,
    image_url,
    json_text,
    text_of,
)
from streamguard.core.errors import UnsupportedItem
from streamguard.core.items import Block, tool_call

_texts = st.text(max_size=8)
_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), _texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_texts, inner, max_size=3)),
    max_leaves=5,
)


@given(st.dictionaries(_texts, _values, max_size=3), st.booleans())
def test_no_part_of_arguments_is_ever_a_call(arguments: dict[str, object], cut: bool) -> None:
    text = json.dumps(arguments)
    assert call_read("c", "f", text, cut=cut) == tool_call("c", "f", text)
    for at in range(1, len(text)):
        assert call_read("c", "f", text[:at], cut=cut).type == "invalid_tool_call"


@pytest.mark.parametrize("text", ["[1]", '"a"', "1", "null", "{}{}", '{"a": NaN}', "[" * 100_000])
def test_arguments_that_are_no_object_are_no_call(text: str) -> None:
    assert call_read("c", "f", text) == Block("invalid_tool_call", {"id": "c", "name": "f", "arguments": text})


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f'{{"a":{"[" * 255}{"]" * 255}}}', "tool_call"),
        (f'{{"a":{"[" * 256}{"]" * 256}}}', "invalid_tool_call"),
        (f'{{"a":[{",".join(["[{}]"] * 300)}]}}', "tool_call"),
        (f'{{"a":-{"1" * 4300}}}', "tool_call"),
        (f'{{"a":-{"1" * 4301}}}', "invalid_tool_call"),
        (f'{{"a":{"1" * 4301}.0}}', "tool_call"),
        (f'{{"a":"{"1" * 4301}{"[" * 300}\\"{"{" * 300}"}}', "tool_call"),
    ],
)
def test_what_some_languages_do_not_read_is_no_call_in_any(text: str, kind: str) -> None:
    assert call_read("c", "f", text).type == kind
    assert as_call(tool_call("c", "f", text)).type == kind


def test_an_index_is_a_whole_number_as_every_language_has_them() -> None:
    assert [as_index(value) for value in (1, 1.0, -1, 1.5, float("inf"), True, "1", None)] == [1, 1, -1, *[None] * 5]
    assert [as_key(value) for value in (1.0, "1", False, [1])] == [1, "1", None, None]


def test_a_call_without_arguments_has_none_unless_it_was_cut() -> None:
    assert call_read("c", "f", "") == tool_call("c", "f", "{}")
    assert call_read("c", "f", "", cut=True).type == "invalid_tool_call"
    assert call_read("c", "f", "", choice=2).fields["choice"] == 2


def test_a_whole_block_is_a_call_by_the_same_rule() -> None:
    for text in ('{"a": 1}', '{"a": ', "[1]", ""):
        assert as_call(tool_call("c", "f", text)) == call_read("c", "f", text)
    assert as_call(Block("tool_call", {"id": "c", "name": "f"})) == tool_call("c", "f", "{}")
    given = Block("tool_call", {"id": "c", "arguments": {"a": 1}, "own": 2})  # `native` carries any fields
    assert as_call(given) == given
    assert as_call(Block("tool_call", {"arguments": [1]})) == Block("invalid_tool_call", {"arguments": [1]})
    assert as_call(Block("image", {"url": "u"})) == Block("image", {"url": "u"})


def test_the_parts_of_a_call_are_text() -> None:
    assert tuple(call_written(Block("tool_call", {"id": "c", "name": "f"}), "d")) == ("c", "f", "")
    assert call_written(tool_call("c", "f", '{"a":1}'), "d").input == {"a": 1}
    assert call_written(tool_call("c", "f", ""), "d").input == {}
    assert call_written(tool_call("c", "f", "{"), "d").input is None
    with pytest.raises(UnsupportedItem, match="a tool call whose arguments is no text, which dialect 'd'"):
        call_written(Block("tool_call", {"id": "c", "name": "f", "arguments": {}}), "d")


def test_an_image_is_an_address_and_its_type() -> None:
    assert image_url(Block("image", {"url": "u"}), "d") == ("u", "image/png")
    assert image_url(Block("image", {"data": "AA==", "media_type": "image/gif"}), "d") == (
        "data:image/gif;base64,AA==",
        "image/gif",
    )
    with pytest.raises(UnsupportedItem, match="an image without url or data"):
        image_url(Block("image", {"url": 1}), "d")


def test_text_and_json() -> None:
    assert text_of(Block("reasoning", {"text": "a"}), "d") == "a"
    assert (json_text("a"), json_text({"a": 1})) == ("a", '{"a":1}')


def test_pieces_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "MAX_HELD", 3)
    pieces = Pieces("a")
    assert not Pieces()
    for _ in range(2):
        pieces.add("b")
        pieces.add("")
    assert str(pieces) == str(pieces) == "abb"
    with pytest.raises(ValueError, match="a block has more than 3 characters"):
        pieces.add("c")
