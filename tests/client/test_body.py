"""A body in pieces: of bounded size, all of it, in order, however it was compressed and cut."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamguard.client.body import PIECE, Body, coding_of, may_be_read


def bare(data: bytes) -> bytes:
    """Deflate without zlib's header, as some servers send it."""
    deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return deflate.compress(data) + deflate.flush()


CODINGS = {
    "identity": [lambda data: data],
    "gzip": [gzip.compress],
    "deflate": [zlib.compress, bare],
    "own": [lambda data: data],
}
EACH = [pytest.param(name, pack, id=f"{name}-{at}") for name in CODINGS for at, pack in enumerate(CODINGS[name])]


def pieces(body: Body, data: bytes, size: int) -> list[bytes]:
    out: list[bytes] = []
    for at in range(0, len(data), size):
        body.put(data[at : at + size])
        out += iter(body.take, None)
    return out


@pytest.mark.parametrize(("coding", "pack"), EACH)
@pytest.mark.parametrize("length", [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, 1_000_003])
def test_no_piece_is_larger_than_the_bound_and_none_is_lost(coding: str, pack, length: int) -> None:  # type: ignore[no-untyped-def]
    data = b"x" * length
    body = Body(coding)
    found = pieces(body, pack(data), 10_000_000)
    assert b"".join(found) == data
    assert max(map(len, found), default=0) <= PIECE
    assert body.whole


@given(st.binary(max_size=2000), st.integers(2, 50), st.sampled_from(["identity", "gzip", "deflate"]))
def test_any_cut_gives_the_same_bytes(data: bytes, size: int, coding: str) -> None:
    for pack in CODINGS[coding]:
        body = Body(coding)
        assert b"".join(pieces(body, pack(data), size)) == data
        assert body.whole


@pytest.mark.parametrize(("coding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_a_compressed_body_knows_whether_it_came_to_its_end(coding: str, pack) -> None:  # type: ignore[no-untyped-def]
    packed = pack(b"Hello")
    body = Body(coding)
    assert body.whole  # an answer without a body
    for at in range(len(packed)):
        body.put(packed[at : at + 1])
        list(iter(body.take, None))
        assert body.whole is (at == len(packed) - 1)


def test_what_follows_the_compressed_data_is_passed_over() -> None:
    body = Body("gzip")
    assert pieces(body, gzip.compress(b"Hello") + b"trailing", 10_000) == [b"Hello"]
    body.put(b"more")
    assert body.take() is None


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=4), st.integers(1, 60))
def test_several_members_are_one_body_however_they_are_cut(parts: list[bytes], size: int) -> None:
    body = Body("gzip")
    assert b"".join(pieces(body, b"".join(map(gzip.compress, parts)), size)) == b"".join(parts)
    assert body.whole


@pytest.mark.parametrize("rest", [b"trailing", b"\x1ftrailing", b"\x1f", b"\0\x1f\x8b"])
@pytest.mark.parametrize("size", [1, 10_000])
def test_only_what_begins_as_a_member_is_read_behind_one(rest: bytes, size: int) -> None:
    body = Body("gzip")
    assert b"".join(pieces(body, gzip.compress(b"Hello") + rest, size)) == b"Hello"
    assert body.whole
    if len(rest) > 1:
        assert pieces(body, gzip.compress(b"more"), size) == []


def test_a_further_member_that_was_cut_is_not_whole_and_one_that_is_none_raises() -> None:
    first, second = gzip.compress(b"Hello"), gzip.compress(b"World")
    body = Body("gzip")
    assert b"".join(pieces(body, first + second[:-1], 10_000)) == b"HelloWorld"
    assert not body.whole
    with pytest.raises(zlib.error):
        pieces(Body("gzip"), first + b"\x1f\x8bno member", 10_000)


def test_pieces_of_further_members_are_bounded_as_those_of_the_first() -> None:
    members = [b"x" * (3 * PIECE), *[b""] * 1000, b"y" * (2 * PIECE + 1), b"z"]
    body = Body("gzip")
    found = pieces(body, b"".join(map(gzip.compress, members)), 10_000_000)
    assert b"".join(found) == b"".join(members)
    assert max(map(len, found)) <= PIECE


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_damaged_data_raises(coding: str) -> None:
    body = Body(coding)
    body.put(b"\xff\xff\xff\xff")
    with pytest.raises(zlib.error):
        body.take()


def test_a_piece_that_holds_all_that_a_read_brought_is_that_read() -> None:
    body = Body()
    data = b"x" * 100
    body.put(data)
    assert body.take() is data


@pytest.mark.parametrize(
    ("header", "coding"),
    [("", "identity"), (" GZIP ", "gzip"), ("x-gzip", "gzip"), ("br", "br"), ("gzip, br", "gzip, br")],
)
def test_codings_have_one_name_each(header: str, coding: str) -> None:
    assert coding_of(header) == coding


@pytest.mark.parametrize(
    ("coding", "accept", "read"),
    [
        ("identity", "", True),
        ("gzip", "identity", True),
        ("br", "identity", False),
        ("br", "gzip, br;q=0.5", True),
        ("gzip, br", "br", False),
        ("gzip, br", "br, gzip", True),
    ],
)
def test_a_coding_without_a_bound_is_read_only_if_asked_for(coding: str, accept: str, read: bool) -> None:
    assert may_be_read(coding, accept) is read
