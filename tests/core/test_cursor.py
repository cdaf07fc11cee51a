"""The cursor's exact grammar and the chain, against the protocol's own words."""

from __future__ import annotations

import base64
import re
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamguard.core.cursor import (
    MAX_CURSOR,
    Cursor,
    chain,
    chain_start,
    cursor_zero,
    looks_like_cursor,
    new_sid,
)
from streamguard.core.errors import CursorError, WireError
from streamguard.core.states import FINAL_STATUSES
from tests.strategies import clean_texts

SID = "AAECAwQFBgcICQoLDA0ODw"
TOP = 2**53 - 1

GOOD = [
    (f"{SID}.0.0.82ec9484", Cursor(SID, 0, 0, 0x82EC9484, None)),
    (f"{SID}.1.7.6fb73295", Cursor(SID, 1, 7, 0x6FB73295, None)),
    (f"{SID}.5.192.965d12b3.complete", Cursor(SID, 5, 192, 0x965D12B3, "complete")),
    (f"{SID}.5.192.965d12b3.later", Cursor(SID, 5, 192, 0x965D12B3, "later")),
    (f"{SID}.10.20.00000000", Cursor(SID, 10, 20, 0, None)),
    (f"{SID}.{TOP}.{TOP}.ffffffff", Cursor(SID, TOP, TOP, 0xFFFFFFFF, None)),
    ("-_-_-_-_-_-_-_-_-_-_-_.1.1.0123abcd", Cursor("-_" * 11, 1, 1, 0x0123ABCD, None)),
    # Parts that a later version may add, with and without a status before them.
    (f"{SID}.1.7.6fb73295.failed.x", Cursor(SID, 1, 7, 0x6FB73295, "failed")),
    (f"{SID}.1.7.6fb73295..x", Cursor(SID, 1, 7, 0x6FB73295, None)),
    (f"{SID}.1.7.6fb73295.failed.x.y~z-0_A", Cursor(SID, 1, 7, 0x6FB73295, "failed")),
    (f"{SID}.1.7.6fb73295.", Cursor(SID, 1, 7, 0x6FB73295, None)),
]

BAD = [
    "",
    ".",
    SID,
    f"{SID}.1.7",
    f"{SID[1:]}.1.7.6fb73295",
    f"{SID}A.1.7.6fb73295",
    f"{SID[:-1]}+.1.7.6fb73295",
    f"{SID[:-1]}é.1.7.6fb73295",
    f"{SID}.01.7.6fb73295",
    f"{SID}.1.07.6fb73295",
    f"{SID}.+1.7.6fb73295",
    f"{SID}.-1.7.6fb73295",
    f"{SID}.1_0.7.6fb73295",
    f"{SID}.\u0661.7.6fb73295",
    f"{SID}.1.\u0661.6fb73295",
    f"{SID}..7.6fb73295",
    f"{SID}.1..6fb73295",
    f"{SID}.{TOP + 1}.7.6fb73295",
    f"{SID}.1.{TOP + 1}.6fb73295",
    f"{SID}.10000000000000000.7.6fb73295",
    f"{SID}.1.7.6FB73295",
    f"{SID}.1.7.6fb7329",
    f"{SID}.1.7.6fb732950",
    f"{SID}.1.7.6fb7329g",
    f"{SID}.1.7.0x6fb732",
    f"{SID}.1.7.6fb73295.Complete",
    f"{SID}.1.7.6fb73295.c0mplete",
    f"{SID}.1.7.6fb73295.complete.!",
    f"{SID}.1.7.6fb73295.complete.\u00e9",
    f" {SID}.1.7.6fb73295",
    f"{SID}.1.7.6fb73295 ",
    f"{SID}.1.7.6fb73295\n",
    f"{SID}.1.7.6fb73295\0",
    f"{SID} 1 7 6fb73295",
]


@pytest.mark.parametrize(("text", "cursor"), GOOD)
def test_a_cursor_is_read(text: str, cursor: Cursor) -> None:
    assert Cursor.parse(text) == cursor
    assert looks_like_cursor(text)


@pytest.mark.parametrize(("text", "cursor"), GOOD[:7])
def test_a_cursor_is_written_as_it_is_read(text: str, cursor: Cursor) -> None:
    assert str(cursor) == text


@pytest.mark.parametrize("text", BAD)
def test_anything_outside_the_grammar_is_refused(text: str) -> None:
    with pytest.raises(CursorError) as caught:
        Cursor.parse(text)
    assert caught.value.text == text[:128]
    assert isinstance(caught.value, WireError)
    assert not looks_like_cursor(text)


def test_a_cursor_has_128_characters_at_most() -> None:
    head = f"{SID}.1.7.6fb73295.complete."
    longest = head + "x" * (128 - len(head))
    assert MAX_CURSOR == 128 == len(longest)
    assert Cursor.parse(longest).status == "complete"
    with pytest.raises(CursorError):
        Cursor.parse(longest + "x")


@given(
    st.from_regex(r"[A-Za-z0-9_-]{22}", fullmatch=True),
    st.integers(0, TOP),
    st.integers(0, TOP),
    st.integers(0, 2**32 - 1),
    st.sampled_from([None, *FINAL_STATUSES]),
)
def test_every_cursor_survives_the_round_trip(sid: str, seq: int, offset: int, crc: int, status: str | None) -> None:
    cursor = Cursor(sid, seq, offset, crc, status)
    text = str(cursor)
    assert Cursor.parse(text) == cursor
    assert len(text) <= MAX_CURSOR
    assert re.fullmatch(r"[A-Za-z0-9._~-]+", text)


@given(st.text(st.sampled_from(f"{SID}.0123456789abcdefg+_\n \u0661"), max_size=60))
def test_what_is_read_is_written_the_same(text: str) -> None:
    try:
        cursor = Cursor.parse(text)
    except CursorError:
        return
    assert text.startswith(str(cursor))


def test_a_new_sid_is_128_random_bits() -> None:
    sids = {new_sid() for _ in range(100)}
    assert len(sids) == 100
    for sid in sids:
        assert re.fullmatch(r"[A-Za-z0-9_-]{22}", sid)
        bits = base64.urlsafe_b64decode(sid + "==")
        assert len(bits) == 16
        assert base64.urlsafe_b64encode(bits) == f"{sid}==".encode()  # and no bit of it is unused


def test_cursor_zero_names_the_stream() -> None:
    assert chain_start(SID) == zlib.crc32(b"streamguard/1 AAECAwQFBgcICQoLDA0ODw") == 0x82EC9484
    assert cursor_zero(SID) == Cursor(SID, 0, 0, 0x82EC9484, None)


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([None, "", "block", "wörld"]),
    st.sampled_from([None, *FINAL_STATUSES]),
    st.one_of(st.binary(max_size=40), clean_texts.map(str.encode)),
)
def test_the_chain_runs_over_name_status_and_data(crc: int, name: str | None, status: str | None, data: bytes) -> None:
    """The clause as it stands: `name LF status LF data LF`, one pass."""
    clause = (name or "").encode() + b"\n" + (status or "").encode() + b"\n" + data + b"\n"
    assert chain(crc, name, status, data) == zlib.crc32(clause, crc)
