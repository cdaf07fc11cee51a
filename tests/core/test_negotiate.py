"""The `Streamguard` header, against a Structured Fields library and against what strangers send."""

from __future__ import annotations

import time
from datetime import datetime
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import http_sfv
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamguard.core.cursor import Cursor, cursor_zero, new_sid
from streamguard.core.errors import FieldRefused
from streamguard.core.negotiate import Answer, Request, parse_answer, parse_key, parse_request, write_answer

ZERO = cursor_zero("AAAAAAAAAAAAAAAAAAAAAA")


@pytest.mark.parametrize(
    ("field", "request_"),
    [
        ("v=1", Request()),
        ("  v=1  ", Request()),
        ("v=01", Request()),
        ("v=1;why=because", Request()),
        ("v=2, v=1", Request()),
        ("v=1, flush=token", Request(flush="token")),
        ("v=1 \t,\t flush=token", Request(flush="token")),
        ("v=1,compress=gzip", Request(compress="gzip")),
        ("v=1, resume", Request(resume=True)),
        ("v=1, resume;now", Request(resume=True)),
        ("v=1, resume=?1", Request(resume=True)),
        ("v=1, resume=?0", Request(resume=False)),
        ("v=1, credit=(64 65536)", Request(credit=(64, 65536))),
        ("v=1, credit=( 0;a   7;b=2 );d", Request(credit=(0, 7))),
        ('v=1, later=("x" 1.5);q, other=:aGk=:, when=@1700000000, *x.y-z=%"%c3%a9", on', Request()),
        (
            "v=1, flush=chunk, compress=gzip, resume=?1, credit=(1 2)",
            Request(flush="chunk", compress="gzip", resume=True, credit=(1, 2)),
        ),
    ],
)
def test_a_request_says_what_it_asks_for(field: str, request_: Request) -> None:
    assert parse_request(field, None) == request_


MALFORMED = [
    "",
    "   ",
    "v",
    "v=",
    "v=2",
    "v=1.0",
    "v=-1",
    'v="1"',
    "v=?1",
    "v=one",
    "v=1,",
    "v=1 flush=token",
    "v=1,, flush=token",
    ", v=1",
    "v=1; =2",
    "V=1",
    "v=1, é=2",
    "v=\u0661",
    "v=1, flush",
    'v=1, flush="token"',
    "v=1, flush=1",
    "v=1, resume=1",
    "v=1, resume=?2",
    "v=1, resume=true",
    "v=1, credit",
    "v=1, credit=64",
    "v=1, credit=(64)",
    "v=1, credit=(64 1 2)",
    "v=1, credit=(64 -1)",
    "v=1, credit=(64 1.0)",
    "v=1, credit=(64,65536)",
    "v=1, credit=(64 65536",
    "v=1, later=(",
    'v=1, later="unclosed',
    'v=1, later="\\a"',
    "v=1, later=1234567890123456",
    "v=1, later=1.2345",
    "v=1, later=1.",
    "v=1, later=:a:",
    "v=1, later=@1.5",
    'v=1, later=%"%C3"',
    'v=1, later=%"%c3"',
    'v=1, later=%"%ed%a0%80"',
    "v=1\n",
    "v=1, a=b\r\nc: d",
    "v=1, later=" + "a" * 5000,
]


@pytest.mark.parametrize("field", MALFORMED)
def test_a_malformed_request_is_ignored_as_a_whole(field: str) -> None:
    assert parse_request(field, None) is None


def test_no_header_and_no_query_ask_for_nothing() -> None:
    assert parse_request(None, None) is None
    assert parse_request(None, "") is None
    assert parse_request(None, "q=1&sgx=v%3D1") is None
    assert parse_request(None, "sg=") is None


def test_the_query_says_the_same_for_those_who_cannot_set_headers() -> None:
    asked = Request(flush="token", credit=(1, 2))
    assert parse_request(None, f"q=x&sg={quote('v=1, flush=token, credit=(1 2)')}") == asked
    assert parse_request(None, "sg=v=1,+flush=token,+credit=(1+2)&q=x") == asked


def test_a_header_wins_over_the_query_even_if_it_is_malformed() -> None:
    assert parse_request("v=1, flush=chunk", "sg=v%3D1%2C+flush%3Dtoken") == Request(flush="chunk")
    assert parse_request("v=9", "sg=v%3D1") is None
    assert parse_request("", "sg=v%3D1") is None


def test_reading_a_hostile_field_takes_linear_time() -> None:
    """A field at the limit, made of what the expression could try in many ways, is read once."""
    for unit in ("(" + "a " * 2000, "a;" * 2000, '"' + '\\"' * 2000, "=a;a" * 1000, " " * 4000 + ","):
        started = time.process_time()
        assert parse_request(f"v=1, x={unit}"[:4096], None) is None
        assert time.process_time() - started < 5  # quadratic reading would take minutes, this takes milliseconds


# ---- the answer -------------------------------------------------------------------------------


def test_an_answer_as_written() -> None:
    assert write_answer(Answer(ZERO, "native", "sse")) == f'v=1, cursor="{ZERO}", dialect=native, wire=sse'


tokens = st.from_regex(r"\A[A-Za-z*][A-Za-z0-9!#$%&'*+.^_`|~:/-]{0,12}\Z")
answers = st.builds(
    Answer,
    st.builds(lambda: cursor_zero(new_sid())),
    tokens,
    tokens,
    st.none() | tokens,
    st.none() | tokens,
    credit=st.none() | st.just(False) | st.tuples(st.integers(0, 10**15 - 1), st.integers(0, 10**15 - 1)),
    http10=st.booleans(),
)


@given(answers)
def test_an_answer_reads_as_it_was_written(answer: Answer) -> None:
    field = write_answer(answer)
    assert parse_answer(field) == answer
    theirs = http_sfv.Dictionary()
    theirs.parse(field.encode())
    assert theirs["cursor"].value == str(answer.cursor)
    assert theirs["dialect"].value == answer.dialect
    assert ("http10" in theirs and theirs["http10"].value) is answer.http10
    if answer.credit is False:
        assert theirs["credit"].value is False
    elif answer.credit is not None:
        assert tuple(item.value for item in theirs["credit"]) == answer.credit


@pytest.mark.parametrize(("value", "said"), [("?1", True), ("?0", False), ("1", False), ("yes", False)])
def test_that_it_was_asked_by_http_1_0_voids_nothing_whatever_its_type(value: str, said: bool) -> None:
    """The JavaScript client does not know the key, and both must read the same of a field."""
    field = f'v=1, cursor="{ZERO}", dialect=native, wire=sse, http10={value}'
    assert parse_answer(field) == Answer(ZERO, "native", "sse", http10=said)


def test_an_answer_may_have_keys_of_later_versions_and_escapes() -> None:
    escaped = f'v=1, cursor="{ZERO}", dialect=native, wire=sse, reader="AAAAAAAAAAA", resume="/a\\"b", credit=?0'
    assert parse_answer(escaped) == Answer(ZERO, "native", "sse", resume='/a"b', reader="AAAAAAAAAAA", credit=False)
    later = f'v=1, cursor="{ZERO}", dialect=native, wire=sse, later=(1 "x")'
    assert parse_answer(later) == Answer(ZERO, "native", "sse")


@pytest.mark.parametrize(
    ("credit", "field"), [(None, ""), (False, ", credit=?0"), ((64, 65536), ", credit=(64 65536)")]
)
def test_credit_is_granted_in_frames_and_bytes_or_refused_to_who_asked(credit: Any, field: str) -> None:
    answer = Answer(ZERO, "native", "sse", credit=credit)
    assert write_answer(answer) == write_answer(Answer(ZERO, "native", "sse")) + field
    assert parse_answer(write_answer(answer)) == answer


@pytest.mark.parametrize("credit", ["?1", "64", "(64)", "(1 2 3)", "(-1 2)", "token"])
def test_credit_of_another_type_voids_the_answer(credit: str) -> None:
    assert parse_answer(f'v=1, cursor="{ZERO}", dialect=native, wire=sse, credit={credit}') is None


@pytest.mark.parametrize("address", ["/streams", '/a"b', "/a\\b", "https://other.example/s?x=1"])
def test_an_address_to_resume_at_comes_back_as_it_was(address: str) -> None:
    answer = Answer(ZERO, "native", "sse", resume=address, reader="AAAAAAAAAAA")
    assert parse_answer(write_answer(answer)) == answer


@pytest.mark.parametrize("address", ["/str\u00e9ams", "/a\nb", "/a\x7f"])
def test_an_address_that_no_header_holds_is_refused(address: str) -> None:
    with pytest.raises(FieldRefused, match="resume"):
        write_answer(Answer(ZERO, "native", "sse", resume=address))


def test_an_address_of_another_type_voids_the_answer() -> None:
    assert parse_answer(f'v=1, cursor="{ZERO}", dialect=native, wire=sse, resume=/streams') is None


@pytest.mark.parametrize(
    "field",
    [
        None,
        "",
        "nonsense!",
        f'cursor="{ZERO}", dialect=native, wire=sse',
        f'v=2, cursor="{ZERO}", dialect=native, wire=sse',
        "v=1, dialect=native, wire=sse",
        f'v=1, cursor="{ZERO}", wire=sse',
        f'v=1, cursor="{ZERO}", dialect=native',
        f"v=1, cursor={str(ZERO)[:3]}, dialect=native, wire=sse",
        'v=1, cursor="no cursor", dialect=native, wire=sse',
        f'v=1, cursor="{ZERO._replace(seq=1)}", dialect=native, wire=sse',
        f'v=1, cursor="{ZERO._replace(crc=1)}", dialect=native, wire=sse',
        f'v=1, cursor="{ZERO}.complete", dialect=native, wire=sse',
        f'v=1, cursor="{ZERO}", dialect="native", wire=sse',
    ],
)
def test_an_answer_that_promises_nothing_is_none(field: str | None) -> None:
    assert parse_answer(field) is None


@pytest.mark.parametrize("name", ["", "a b", "a,b", 'a"', "1a", "é", "a\nb"])
def test_a_name_that_is_no_token_is_never_written(name: str) -> None:
    for answer in (Answer(ZERO, name, "sse"), Answer(ZERO, "native", name), Answer(ZERO, "native", "sse", name)):
        with pytest.raises(FieldRefused):
            write_answer(answer)


def test_credit_of_another_type_voids_the_answer_and_a_no_is_false() -> None:
    field = f'v=1, cursor="{ZERO}", dialect=native, wire=sse, credit='
    assert parse_answer(f"{field}(64 65536)") == Answer(ZERO, "native", "sse", credit=(64, 65536))
    assert parse_answer(f"{field}?0") == Answer(ZERO, "native", "sse", credit=False)
    assert parse_answer(f"{field}64") is None


def test_the_cursor_of_an_answer_is_a_cursor() -> None:
    answer = parse_answer(write_answer(Answer(ZERO, "native", "sse")))
    assert answer is not None
    assert isinstance(answer.cursor, Cursor)


# ---- against a library --------------------------------------------------------------------------

keys = st.from_regex(r"\A[a-z*][a-z0-9_.*-]{0,5}\Z") | st.sampled_from(["v", "flush", "compress", "resume", "credit"])
integers = st.integers(-(10**15) + 1, 10**15 - 1)
bare = st.one_of(
    integers,
    st.decimals(-(10**6), 10**6, places=2).map(Decimal),
    st.booleans(),
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=8),
    tokens.map(http_sfv.Token),
    st.binary(max_size=6),
    st.integers(0, 2**31).map(datetime.fromtimestamp),
    st.text(st.characters(min_codepoint=160, max_codepoint=0x2FF), min_size=1, max_size=4).map(http_sfv.DisplayString),
)


@st.composite
def members(draw: st.DrawFn) -> http_sfv.Item | http_sfv.InnerList:
    member: http_sfv.Item | http_sfv.InnerList
    if draw(st.booleans()):
        member = http_sfv.Item(draw(bare))
    else:
        member = http_sfv.InnerList([http_sfv.Item(value) for value in draw(st.lists(bare, max_size=3))])
    for key, value in draw(st.dictionaries(keys, bare, max_size=2)).items():
        member.params[key] = value
    return member


def expected(fields: dict[str, object]) -> Request | None:
    """What a parsed dictionary asks for, by the types that the library found."""

    def word(key: str) -> str | None:
        value = getattr(fields.get(key), "value", None)
        assert key not in fields or isinstance(value, http_sfv.Token)
        return None if value is None else str(value)

    try:
        version = fields["v"].value  # type: ignore[attr-defined]
        assert version == 1
        assert type(version) is int
        resume = fields["resume"].value if "resume" in fields else False  # type: ignore[attr-defined]
        assert type(resume) is bool
        credit = None
        if "credit" in fields:
            assert isinstance(fields["credit"], http_sfv.InnerList)
            frames, size = (item.value for item in fields["credit"])
            assert type(frames) is int
            assert type(size) is int
            assert frames >= 0
            assert size >= 0
            credit = (frames, size)
        return Request(1, word("flush"), word("compress"), resume, credit)
    except (AssertionError, KeyError, ValueError, AttributeError):
        return None


@given(st.dictionaries(keys, members(), min_size=1, max_size=5), st.sampled_from([1, 1, 1, 2, None]))
def test_whatever_a_library_writes_is_read_as_it_reads_it(fields: dict[str, object], version: int | None) -> None:
    dictionary = http_sfv.Dictionary()
    if version is not None:
        dictionary["v"] = version
    for key, member in fields.items():
        if key != "v":
            dictionary[key] = member
    if not dictionary.data:
        return
    text = str(dictionary)
    theirs = http_sfv.Dictionary()
    theirs.parse(text.encode())
    assert parse_request(text, None) == expected(theirs.data)


# Without "." and "%": the library takes `1.` for a decimal and `% 1` for an octet, which RFC 9651 does not.
alphabet = st.sampled_from([*"v=1,;() \t\"\\?:@abAZ*09-_/\x00é", "flush=", "credit=", "resume", "v=1, ", "=(1 2)"])


@given(st.lists(alphabet, max_size=24).map("".join), st.sampled_from(["", "v=1, "]))
@example("v=1, a=-0", "")
@example("v=1;v=2", "")
def test_whatever_a_stranger_writes_is_read_as_a_library_reads_it(text: str, head: str) -> None:
    theirs = http_sfv.Dictionary()
    try:
        theirs.parse((head + text).encode("latin-1"))
    except Exception:
        theirs.data = {}
    assert parse_request(head + text, None) == expected(theirs.data)


@pytest.mark.parametrize(
    ("query", "key"),
    [
        (None, None),
        ("", None),
        ("prompt=key=x", None),
        ("sg=v%3D1", None),
        ("sg=key=abc", "abc"),
        (f"sg={quote('v=1, key=abc')}", "abc"),
        ("a=b&sg=" + quote('key="550e8400-e29b"') + "&c=d", "550e8400-e29b"),
        ("sg=" + quote('key="a b"'), "a b"),
        ("sg=" + quote('key=""'), None),
    ],
)
def test_a_reader_that_sets_no_headers_has_its_key_in_the_query(query: str | None, key: str | None) -> None:
    assert parse_key(query) == key


@pytest.mark.parametrize("value", ["key=550e8400-e29b", "key=", "v=1 key=a", "key=?1", "key=(1 2)", 'key="a'])
def test_a_key_that_is_not_well_formed_is_told_and_not_ignored(value: str) -> None:
    """Ignored, it would start a generation at each attempt."""
    with pytest.raises(ValueError, match="quoted string"):
        parse_key(f"sg={quote(value)}")
