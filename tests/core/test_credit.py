"""A sender goes as far as it was allowed, whatever becomes of the grants on their way; acknowledgements are believed
only of what was sent."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamguard.core.credit import Credit, Grant, Granter, Sent
from streamguard.core.cursor import MAX_NUMBER, Cursor, cursor_zero

SID = "A" * 22


def at(seq: int, offset: int, status: str | None = None) -> Cursor:
    return Cursor(SID, seq, offset, seq * 7919, status)


def test_it_counts_from_where_the_connection_begins() -> None:
    credit = Credit(2, 100, at(10, 1000))
    assert credit.limit == (12, 1100)
    assert credit.allows(at(11, 1099))
    assert not credit.allows(at(12, 1001))
    assert not credit.allows(at(10, 1100))


def test_one_frame_may_overshoot_so_that_none_is_ever_stuck() -> None:
    credit = Credit(5, 10, at(0, 0))
    assert credit.allows(at(0, 0))  # however long the frame is
    assert not credit.allows(at(1, 5000))
    assert credit.give(Grant(6, 5010))
    assert credit.allows(at(1, 5000))


def test_a_grant_that_comes_twice_or_late_changes_nothing() -> None:
    credit = Credit(5, 50, at(0, 0))
    assert credit.give(Grant(9, 90))
    assert not credit.give(Grant(9, 90))
    assert not credit.give(Grant(7, 70))
    assert credit.limit == (9, 90)


def test_either_limit_may_move_alone() -> None:
    credit = Credit(5, 50, at(0, 0))
    assert credit.give(Grant(4, 60))
    assert credit.limit == (5, 60)
    assert credit.give(Grant(6, 10))
    assert credit.limit == (6, 60)


grants = st.lists(st.builds(Grant, st.integers(0, 1000), st.integers(0, 100_000)), max_size=20)


@given(grants, st.randoms())
def test_neither_order_nor_repetition_of_grants_matters(told: list[Grant], order: random.Random) -> None:
    one, other = Credit(1, 1, at(0, 0)), Credit(1, 1, at(0, 0))
    shuffled = told + told[::2]
    order.shuffle(shuffled)
    for grant in told:
        one.give(grant)
    for grant in shuffled:
        other.give(grant)
    assert one.limit == other.limit


@given(
    st.integers(1, 50),
    st.integers(1, 500),
    st.lists(st.integers(0, 300), min_size=1, max_size=200),
    st.lists(st.booleans(), min_size=1, max_size=7),
)
def test_a_sender_and_a_reader_never_wait_for_each_other(
    frames: int, size: int, lengths: list[int], lost: list[bool]
) -> None:
    """Grants may be lost as long as the newest is repeated: what is on its way never is more than was allowed."""
    credit, granter = Credit(frames, size, at(0, 0)), Granter(frames, size, at(0, 0))
    here, read = at(0, 0), at(0, 0)
    for turn, length in enumerate(lengths):
        if not credit.allows(here):
            read = here
            granter.used(read)
            credit.give(granter.grant)  # a blocked sender is told again
        assert credit.allows(here)
        assert here.seq - read.seq < frames
        assert here.offset - read.offset < size
        here = at(here.seq + 1, here.offset + length)
        if turn % 3 == 0:
            read = here
            grant = granter.used(read)
            if grant is not None and not lost[turn % len(lost)]:
                credit.give(grant)


def test_a_reader_grants_anew_once_half_is_used() -> None:
    granter = Granter(10, 1000, at(0, 0))
    assert granter.used(at(4, 100)) is None
    assert granter.used(at(5, 100)) == (15, 1100)
    assert granter.used(at(6, 599)) is None
    assert granter.used(at(6, 600)) == (16, 1600)


def test_limits_stay_numbers_that_a_browser_can_count() -> None:
    assert Credit(10, 10, Cursor(SID, MAX_NUMBER - 1, MAX_NUMBER - 1, 0)).limit == (MAX_NUMBER, MAX_NUMBER)


@pytest.mark.parametrize(("frames", "size"), [(0, 1), (1, 0), (-1, 5)])
@pytest.mark.parametrize("kind", [Credit, Granter])
def test_credit_is_for_one_frame_and_one_byte_at_least(kind: type[Credit | Granter], frames: int, size: int) -> None:
    with pytest.raises(ValueError, match=rf"^credit is for one frame and one byte at least, not \({frames} {size}\)$"):
        kind(frames, size, cursor_zero(SID))


# ---- acknowledgements ---------------------------------------------------------------------------


def test_an_acknowledgement_says_how_long_the_way_took() -> None:
    sent = Sent(SID)
    sent.add(*at(1, 10)[1:4], 1.0)
    sent.add(*at(2, 20)[1:4], 2.0)
    assert sent.ack(at(2, 20), 2.5) == 0.5
    assert sent.acked == at(2, 20)


def test_one_of_what_was_acknowledged_already_is_no_news() -> None:
    sent = Sent(SID)
    sent.add(*at(1, 10)[1:4], 1.0)
    sent.add(*at(2, 20)[1:4], 2.0)
    assert sent.ack(at(2, 20), 3.0) == 1.0
    assert sent.ack(at(2, 20), 4.0) is None
    assert sent.ack(at(1, 10), 4.0) is None
    assert sent.acked == at(2, 20)


@pytest.mark.parametrize(
    "wrong", [at(3, 30), Cursor(SID, 1, 11, 7919), Cursor(SID, 1, 10, 1), Cursor("B" * 22, 1, 10, 7919)]
)
def test_one_of_what_was_never_sent_is_not_believed(wrong: Cursor) -> None:
    sent = Sent(SID)
    sent.add(*at(1, 10)[1:4], 1.0)
    assert sent.ack(wrong, 2.0) is None
    assert sent.acked is None
    assert sent.ack(at(1, 10), 2.0) == 1.0


def test_what_waits_is_bounded() -> None:
    sent, known = Sent(SID), 0
    for seq in range(1, 100_001):
        sent.add(*at(seq, seq)[1:4], float(seq))
    assert len(sent) <= 512
    for seq in range(1, 100_001):
        known += sent.ack(at(seq, seq), 200_000.0) is not None
    assert 200 < known <= 512


def test_a_connection_that_caught_up_remembers_every_frame_again() -> None:
    sent = Sent(SID)
    for seq in range(1, 2001):
        sent.add(*at(seq, seq)[1:4], 0.0)
    assert any(sent.ack(at(seq, seq), 1.0) for seq in range(2000, 0, -1))  # the newest that it remembers
    for seq in range(2002, 2010):
        sent.add(*at(seq, seq)[1:4], 2.0)
    assert [sent.ack(at(seq, seq), 3.0) for seq in range(2002, 2010)] == [1.0] * 8
