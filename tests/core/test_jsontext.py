"""JSON as one line of UTF-8 that no reader can cut in two."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamguard.core.errors import NotSerialisable
from streamguard.core.jsontext import dumps, object_in, quote, whole_text
from tests.strategies import clean_texts, texts, whole


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("", b'""'),
        ("Hello", b'"Hello"'),
        ('a"b\\c/', b'"a\\"b\\\\c/"'),
        ("\r\n\t\0\x1f\x7f", b'"\\r\\n\\t\\u0000\\u001f\x7f"'),
        ("\x85", b'"\\u0085"'),
        ("\u2028\u2029", b'"\\u2028\\u2029"'),
        ("你好\u2028", b'"' + "你好".encode() + b'\\u2028"'),
        ("🙂\ufeff", '"🙂\ufeff"'.encode()),
    ],
)
def test_a_text_is_one_json_string(text: str, data: bytes) -> None:
    assert quote(text) == data
    assert dumps(text) == data


@given(clean_texts)
def test_a_quoted_text_is_one_line_for_every_reader_and_reads_as_it_was(text: str) -> None:
    data = quote(text)
    line = data.decode()
    assert json.loads(line) == text
    assert not set(line) & set("\r\n\0\x85\u2028\u2029\x0b\x0c\x1c\x1d\x1e")
    assert len(line.splitlines()) == 1
    assert dumps(text) == data


@given(texts)
@example("\ud83d\ude42")
@example("\ud83d")
@example("\ude42\ud83d")
def test_halves_of_characters_are_joined_or_replaced(text: str) -> None:
    assert whole_text(text) == whole(text)
    assert json.loads(dumps([text])) == [whole(text)]


def test_a_text_without_halves_is_the_same_object() -> None:
    text = "a" * 100 + "🙂"
    assert whole_text(text) is text


def test_whole_text_sees_the_first_and_the_last_half() -> None:
    for code in (0xD800, 0xDBFF, 0xDC00, 0xDFFF):
        assert whole_text(f"a{chr(code)}b") == "a\ufffdb"
    assert whole_text("\ud7ff\ue000") == "\ud7ff\ue000"


@pytest.mark.parametrize(
    ("value", "data"),
    [
        ({"b": 1, "a": [True, None, 1.5]}, b'{"b":1,"a":[true,null,1.5]}'),
        ({"é": "\u2028"}, b'{"\xc3\xa9":"\\u2028"}'),
        ({"\u2029": "\x85"}, b'{"\\u2029":"\\u0085"}'),
        ("\ud800", b'"\xef\xbf\xbd"'),
        (MappingProxyType({"a": MappingProxyType({"b": 1})}), b'{"a":{"b":1}}'),
        ([], b"[]"),
        (None, b"null"),
    ],
)
def test_a_value_is_compact_json_with_its_keys_in_order(value: object, data: bytes) -> None:
    assert dumps(value) == data


def _deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


_ROUND: list[Any] = []
_ROUND.append(_ROUND)


@pytest.mark.parametrize(
    ("value", "cause", "why"),
    [
        (math.nan, ValueError, "not JSON compliant"),
        ({"a": [math.inf]}, ValueError, "not JSON compliant"),
        (-math.inf, ValueError, "not JSON compliant"),
        (object(), TypeError, "object is not JSON serialisable"),
        ({"a": {1, 2}}, TypeError, "set is not JSON serialisable"),
        (b"bytes", TypeError, "bytes is not JSON serialisable"),
        ({(1, 2): 3}, TypeError, "tuple"),
        (_ROUND, ValueError, "Circular"),
        (_deep(), RecursionError, ""),
    ],
    ids=["nan", "inf", "-inf", "object", "set", "bytes", "tuple key", "circular", "deep"],
)
def test_a_value_without_a_json_form_is_a_typed_error(value: object, cause: type, why: str) -> None:
    with pytest.raises(NotSerialisable) as caught:
        dumps(value)
    assert isinstance(caught.value.__cause__, cause)
    assert str(caught.value).startswith("JSON has no form for this value: ")
    assert why in str(caught.value)
    assert caught.value.code == "not_serialisable"


_values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), clean_texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(clean_texts, inner, max_size=3)),
    max_leaves=8,
)


@given(_values)
def test_a_value_reads_as_it_was_and_is_one_line(value: object) -> None:
    line = dumps(value).decode()
    assert json.loads(line) == value
    assert len(line.splitlines()) == 1


class _Lazy(Mapping[str, int]):
    """A mapping that is no dict."""

    def __getitem__(self, key: str) -> int:
        return 1

    def __iter__(self) -> Any:
        return iter(["a"])

    def __len__(self) -> int:
        return 1


def test_any_mapping_is_an_object() -> None:
    assert dumps({"usage": _Lazy()}) == b'{"usage":{"a":1}}'


def test_what_a_value_of_the_applications_own_raises_is_not_told() -> None:
    class Secret(Mapping[str, Any]):
        def __getitem__(self, key: str) -> Any:
            raise ValueError("postgres://user:secret@db")

        def __iter__(self) -> Iterator[str]:
            raise ValueError("postgres://user:secret@db")

        def __len__(self) -> int:
            return 1

    with pytest.raises(NotSerialisable) as raised:
        dumps({"nested": Secret()})
    assert str(raised.value) == "JSON has no form for this value: ValueError"
    with pytest.raises(NotSerialisable, match="set is not JSON serialisable"):
        dumps({"nested": {1}})


@pytest.mark.parametrize("text", ["", "[]", "1", '"text"', "{", '{"a": NaN}', '{"a": -Infinity}', "[" * 100_000])
def test_only_an_object_is_one(text: str) -> None:
    assert object_in(text) is None


def test_an_object_is_read() -> None:
    assert object_in('{"a": [1]}') == {"a": [1]}
