"""Cutters keep every byte; damage is damage, and a verifying reader notices each."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamguard.core.receipt import Verdict
from streamguard.core.verify import StreamVerifier
from streamguard.core.wire import Binary, Ndjson, Sse, Wire
from streamguard.testing.chunks import (
    byte_by_byte,
    cut,
    cuts,
    prefixes,
    random_sizes,
    rechunkings,
    sized,
    split,
)
from tests.scenarios.stacks import write

WIRES = pytest.mark.parametrize("wire", [Sse(), Sse(ids="id"), Ndjson(), Binary()], ids=lambda wire: wire.name)
TOKENS = ["The ", "quick ", "brown\n", "\n", "fox \u2028"]


def verdict(body: bytes, wire: Wire, *, clean: bool = True) -> Verdict | None:
    verifier = StreamVerifier(wire=wire, dialect="native")
    try:
        verifier.feed(body)
        verifier.end(clean=clean)
    except Exception:
        assert verifier.verdict is Verdict.CORRUPT
    return verifier.verdict


@given(st.binary(max_size=40), st.integers(0, 99), st.lists(st.integers(0, 40), max_size=4))
def test_no_rechunking_changes_a_byte(body: bytes, seed: int, at: list[int]) -> None:
    found = list(rechunkings(body, seed=seed, at=at))
    assert [b"".join(pieces) for _, pieces in found] == [body] * len(found)
    assert len({name for name, _ in found}) == len(found) - len(at) + len(set(at))
    assert found == list(rechunkings(body, seed=seed, at=at))


def test_the_rechunkings_are_what_their_names_say() -> None:
    body = bytes(range(256)) * 10
    found = dict(rechunkings(body, seed=3, rounds=2, at=[7]))
    assert list(found) == [
        "whole", "byte by byte", "up to 4 bytes, seed 3", "up to 64 bytes, seed 4", "cut at 7"
    ]  # fmt: skip
    assert found["whole"] == [body]
    assert {len(piece) for piece in found["byte by byte"]} == {1}
    assert {len(piece) for piece in found["up to 4 bytes, seed 3"]} == {1, 2, 3, 4}
    assert found["cut at 7"] == [body[:7], body[7:]]


def test_prefixes_and_cuts_are_all_of_them() -> None:
    assert list(prefixes(b"abc")) == [b"", b"a", b"ab"]
    assert list(prefixes(b"")) == []
    assert list(cuts(b"ab")) == [[b"", b"ab"], [b"a", b"b"], [b"ab", b""]]
    assert byte_by_byte(b"abc") == [b"a", b"b", b"c"]
    assert sized(b"abcdef", [1, 0, 2]) == [b"a", b"", b"bc", b"def"]
    assert cut("abc", [2, 1, 1]) == ["a", "", "b", "c"]
    assert cut(b"abc", []) == [b"abc"]


@given(st.binary(max_size=60), st.integers(), st.integers(1, 9), st.integers(0, 9))
def test_random_pieces_have_sizes_within_their_bounds(body: bytes, seed: int, low: int, more: int) -> None:
    pieces = random_sizes(body, seed, low, low + more)
    assert b"".join(pieces) == body
    assert all(low <= len(piece) <= low + more for piece in pieces[:-1])


@pytest.mark.parametrize(("low", "high"), [(0, 5), (-1, 5), (3, 2)])
def test_pieces_of_no_size_are_refused(low: int, high: int) -> None:
    with pytest.raises(ValueError, match="is needed"):
        random_sizes(b"abc", 0, low, high)


@WIRES
def test_a_body_is_taken_apart_at_its_frames(wire: Wire) -> None:
    chunks = write(TOKENS, wire=wire)
    parts = split(b"".join(chunks), wire)
    assert [parts.head, *parts.frames] == chunks
    assert parts.rest == b""


@WIRES
def test_what_is_behind_the_last_whole_frame_is_the_rest(wire: Wire) -> None:
    chunks = write(TOKENS, wire=wire)
    parts = split(b"".join(chunks)[:-1], wire)
    assert [parts.head, *parts.frames, parts.rest] == [*chunks[:-1], chunks[-1][:-1]]


def test_a_heartbeat_stands_with_the_frame_behind_it() -> None:
    opening, first, *rest = write(TOKENS)
    beat = b": hb AAAAAAAAAAAAAAAAAAAAAA.0.0.00000000\n"
    parts = split(b"".join([opening, beat, first, *rest]))
    assert parts.head == opening
    assert parts.frames == [beat + first, *rest]


@WIRES
def test_every_damage_is_noticed(wire: Wire) -> None:
    body = b"".join(write(TOKENS, wire=wire))
    assert verdict(body, wire) is Verdict.COMPLETE
    found = list(split(body, wire).damages())
    assert len(found) == 3 * 6 - 1
    names = [name for name, damaged in found if verdict(damaged, wire) is Verdict.COMPLETE]
    assert names == []
    assert all(damaged != body for _, damaged in found)
    assert len({damaged for _, damaged in found}) == len(found)


@WIRES
def test_no_proper_prefix_is_complete(wire: Wire) -> None:
    body = b"".join(write(TOKENS, wire=wire))
    for prefix in prefixes(body):
        assert verdict(prefix, wire) in (Verdict.TRUNCATED, None, Verdict.UNVERIFIED), prefix
        assert verdict(prefix, wire) is not Verdict.COMPLETE


def test_two_frames_of_any_distance_are_swapped() -> None:
    parts = split(b"".join(write(TOKENS)))
    for one, other in itertools.permutations(range(len(parts.frames)), 2):
        swapped = split(parts.swapped(one, other))
        assert swapped.frames[one] == parts.frames[other]
        assert swapped.frames[other] == parts.frames[one]
