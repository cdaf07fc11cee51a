"""Chunks read by their text alone: the same answer as a parser's, or none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamguard.core.dialect.mould import Mould
from streamguard.core.dialect.provider import ProviderReader, ProviderStream


def chat(text: str, /, **fields: Any) -> dict[str, Any]:
    return {"id": "c", **fields, "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}


def learned(data: str, key: str = "content") -> Mould:
    mould = Mould()
    mould.learn(data, json.loads(data), key)
    return mould


@pytest.mark.parametrize("separators", [(",", ":"), (", ", " : ")])
def test_a_chunk_with_another_text_is_read(separators: tuple[str, str]) -> None:
    def data(payload: Any) -> str:
        return json.dumps(payload, separators=separators)

    mould = learned(data(chat("a")))
    for text in ("b", "", '\n"\\\u2028é👍', "a" * 5000):
        assert mould.text(data(chat(text))) == text
    legacy = {"object": "text_completion", "choices": [{"text": "a", "index": 0}]}
    assert learned(data(legacy), "text").text(data(legacy).replace('"a"', '"b"')) == "b"


@pytest.mark.parametrize(
    "other",
    [
        json.dumps(chat("b", id="d")),
        json.dumps(chat("b")).replace("null", '"stop"'),
        json.dumps(chat("b"))[:-1],
        json.dumps(chat("b")) + " ",
        json.dumps(chat("b")).replace('"b"', "null"),
        json.dumps(chat("b")).replace('"b"', '"\n"'),
        json.dumps(chat("b")).replace('"b"', '"b'),
        "",
        "[DONE]",
    ],
)
def test_any_other_difference_is_left_to_the_parser(other: str) -> None:
    assert learned(json.dumps(chat("a"))).text(other) is None


def test_nothing_is_read_before_a_chunk_was_learned() -> None:
    assert Mould().text("") is None
    assert Mould().text('\nabc"') is None


@pytest.mark.parametrize(
    "data",
    [
        '{"choices":[{"delta":{"content":"a"}}],"content":"a"}',  # the first of the two is the right one
        '{"content":"a","choices":[{"delta":{"content":"a"}}]}',
        '{"x\\"content":"a","choices":[{"delta":{"content":"a"}}]}',
        '{"id":"\\"content\\":\\"a","choices":[{"delta":{"content":"a"}}]}',
        '{"choices":[{"delta":{"content":"","text":"a","content":"a"}}]}',  # of two of one name the last counts
        '{"choices":[{"delta":{"content":"a","content":"a"}}]}',
        '{"choices":[{"text":"a","delta":{"content":"a"}}]}',
    ],
)
def test_the_text_is_found_among_look_alikes(data: str) -> None:
    mould = learned(data)
    at = mould._before
    assert at is not None
    other = at + 'b"' + mould._after
    assert json.loads(other)["choices"][0]["delta"]["content"] == "b"
    expected = json.loads(data)
    expected["choices"][0]["delta"]["content"] = "b"
    assert json.loads(other) == expected
    assert mould.text(other) == "b"


@pytest.mark.parametrize(
    "data",
    [
        '{"choices":[{"delta":{"c\\u006fntent":"a"}}]}',  # the key is spelled in another way
        json.dumps(chat("a" * 2048)),
    ],
)
def test_what_cannot_be_shown_is_not_learned(data: str) -> None:
    mould = learned(json.dumps(chat("z")))
    mould.learn(data, json.loads(data), "content")
    assert mould.text(data) is None
    assert mould.text(json.dumps(chat("b"))) is None  # the one before is forgotten


def test_the_largest_that_is_learned() -> None:
    shell = len(json.dumps(chat("")))
    fits = json.dumps(chat("a" * (2048 - shell)))
    assert learned(fits).text(fits) is not None
    assert learned(json.dumps(chat("a" * (2049 - shell)))).text(fits) is None


def test_a_stream_whose_chunks_all_differ_is_given_up_after_eight() -> None:
    mould = Mould()
    for count in range(8):
        data = json.dumps(chat("a", n=count))
        mould.learn(data, json.loads(data), "content")
        assert mould.text(data) == "a"
    data = json.dumps(chat("a", n=8))
    mould.learn(data, json.loads(data), "content")
    assert mould.text(data) is None


JSON_TEXT = st.one_of(st.text(), st.sampled_from(['"content":"', '","content":"', '\\"', "a", "ax", '"}']))


@given(st.lists(st.tuples(JSON_TEXT, JSON_TEXT, st.sampled_from(["content", "text", "x"])), max_size=6), st.booleans())
def test_a_stream_read_with_a_mould_says_what_it_says_without(events: list[tuple[str, str, str]], ascii: bool) -> None:
    with_mould, without = ProviderStream(), ProviderStream()
    without._mould.learn = lambda *_: None  # type: ignore[method-assign]
    for text, other, key in [event for event in events for _ in range(2)]:
        data = json.dumps(chat(text, **{key: other}), ensure_ascii=ascii)
        seen, reading = with_mould.observe(None, data)
        expected_seen, expected = without.observe(None, data)
        assert (seen, reading.text, reading.texts) == (expected_seen, expected.text, expected.texts)
    assert (with_mould.begun, with_mould.reasons, with_mould.api) == (without.begun, without.reasons, without.api)


def test_after_the_marker_a_usual_chunk_is_an_overrun() -> None:
    stream = ProviderStream()
    for data in (json.dumps(chat("a")), json.dumps(chat("b")), "[DONE]", json.dumps(chat("c"))):
        stream.observe(None, data)
    assert stream.overrun


def test_a_usual_chunk_under_the_name_of_an_error_is_an_error() -> None:
    stream = ProviderStream()
    data = json.dumps(chat("a"))
    assert [stream.observe(name, data)[0] for name in (None, None, "error")] == ["event", "event", "error"]


@pytest.mark.parametrize("fields", [{"usage": {"n": 1}}, {"usage": {"n": 2}}])
def test_a_chunk_that_says_more_than_its_text_is_never_learned(fields: dict[str, Any]) -> None:
    stream = ProviderStream()
    for _ in range(3):
        stream.observe(None, json.dumps(chat("a", **fields)))
    assert stream._mould._before is None
    stream.observe(None, json.dumps(chat("a")).replace("null", '"stop"'))
    assert stream._mould._before is None
    two = {"choices": [chat("a")["choices"][0], {"index": 1, "delta": {"content": "b"}}]}
    stream.observe(None, json.dumps(two))
    assert stream._mould._before is None
    stream.observe("named", json.dumps(chat("a")))
    assert stream._mould._before is None
    stream.observe(None, json.dumps(chat("a")))
    assert stream._mould._before is not None


def delta(text: str, /, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text, **fields}, "finish_reason": None}]}


def arguments(text: str) -> list[dict[str, Any]]:
    return [{"index": 0, "function": {"arguments": text}}]


def test_a_piece_of_a_call_beside_text_is_not_lost_where_it_repeats() -> None:
    reader = ProviderReader()
    begin = [{"index": 0, "id": "c", "function": {"name": "pay", "arguments": '{"eur":'}}]
    chunks = [delta("", tool_calls=begin), *[delta(text, tool_calls=arguments("1")) for text in "abc"]]
    chunks += [delta("", tool_calls=arguments("}")), {"choices": [{"index": 0, "finish_reason": "tool_calls"}]}]
    readings = [reader.read(None, json.dumps(chunk)) for chunk in chunks]
    blocks = [block for reading in readings if reading for block in reading.blocks]
    assert [(block.type, block.fields["arguments"]) for block in blocks] == [("tool_call", '{"eur":111}')]


BESIDE: list[dict[str, Any]] = [
    {},
    {"role": "assistant", "refusal": None, "tool_calls": []},
    {"reasoning": "hm"},
    {"reasoning_content": "hm"},
    {"refusal": "no"},
    {"tool_calls": arguments("1")},
    {"text": "t"},
]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(BESIDE), st.sampled_from([None, {}, {"n": 1}]))))
def test_blocks_and_usage_are_the_same_with_a_mould_and_without(
    events: list[tuple[str, dict[str, Any], dict[str, int] | None]],
) -> None:
    with_mould, without = ProviderReader(), ProviderReader()
    without._stream._mould.learn = lambda *_: None  # type: ignore[method-assign]
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
    chunks = [delta(text, **beside) | {"usage": usage} for text, beside, usage in events for _ in range(2)]
    for chunk in (*chunks, end):
        reading, expected = with_mould.read(None, json.dumps(chunk)), without.read(None, json.dumps(chunk))
        assert reading is not None
        assert expected is not None
        assert (reading.text, reading.blocks) == (expected.text, expected.blocks)
    assert with_mould.usage == without.usage


def test_a_legacy_chunk_with_pieces_of_a_call_in_it_is_never_learned() -> None:
    stream = ProviderStream()
    choice = {"text": "a", "delta": {"tool_calls": arguments("1")}}
    stream.observe(None, json.dumps({"object": "text_completion", "choices": [choice]}))
    assert stream._mould._before is None
