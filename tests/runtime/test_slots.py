"""Slots against a plain model: never over a limit, nobody waits in vain, taken in turn, all given back."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from streamguard.runtime.slots import Limits, Slot, Slots, Waiter

PRINCIPALS = st.sampled_from(["ann", "bob", "cid", ""])
KEYS = st.sampled_from([None, "x", "y"])
ROOM = "max_waiting is a whole number of at least 0"
NO_KEY = "max_per_key needs to know the key: Limits(key=lambda request: …, max_per_key=…)"
COUNTS = st.none() | st.integers(1, 3)


def key_of(request: Any) -> str | None:
    return None


class Fair(RuleBasedStateMachine):
    """One process's slots under any order of calls; the model is the lists of who has what."""

    def __init__(self) -> None:
        super().__init__()
        self.running: list[Slot] = []
        self.room: list[Waiter] = []
        self.told: list[Slot] = []  # to end
        self.unread: list[Slot] = []
        self.passed: dict[str, Counter[str]] = defaultdict(Counter)  # who was served while this one waited

    @initialize(
        streams=st.integers(1, 4), principal=COUNTS, key=COUNTS, detached=COUNTS, waiting=st.integers(0, 4)
    )
    def limits(
        self, streams: int, principal: int | None, key: int | None, detached: int | None, waiting: int
    ) -> None:
        self.limit = Limits(
            max_streams=streams, max_per_principal=principal, max_per_key=key, max_detached=detached,
            key=key_of, max_waiting=waiting,
        )  # fmt: skip
        self.slots = Slots(self.limit)

    # ---- the model ----------------------------------------------------------------------------

    def count(self, principal: str) -> int:
        return sum(slot.principal == principal for slot in self.running)

    def own(self, principal: str, key: str | None) -> bool:
        """Whether its own streams are too many."""
        per_principal, per_key = self.limit.max_per_principal, self.limit.max_per_key
        if per_principal is not None and self.count(principal) >= per_principal:
            return True
        same = sum(slot.key == key for slot in self.running)
        return per_key is not None and key is not None and same >= per_key

    def blocked(self, principal: str, key: str | None) -> bool:
        assert self.limit.max_streams is not None
        return len(self.running) >= self.limit.max_streams or self.own(principal, key)

    def given(self, slot: Slot) -> None:
        assert not self.blocked(slot.principal, slot.key), "over a limit"
        self.running.append(slot)

    def woken(self, waiter: Waiter) -> None:
        self.room.remove(waiter)
        if waiter.turned_away:
            assert waiter.slot is None
            return
        assert waiter.slot is not None
        could = {other.principal for other in self.room if not self.own(other.principal, other.key)}
        for principal in could - {waiter.principal}:
            self.passed[principal][waiter.principal] += 1
            assert self.passed[principal][waiter.principal] < 2, "served twice while another could have been"
        self.passed.pop(waiter.principal, None)
        self.given(waiter.slot)

    # ---- what may happen ------------------------------------------------------------------------

    @rule(principal=PRINCIPALS, key=KEYS)
    def ask(self, principal: str, key: str | None) -> None:
        blocked, before = self.blocked(principal, key), len(self.room)
        if principal not in {waiter.principal for waiter in self.room}:
            self.passed.pop(principal, None)
        got = self.slots.ask(principal, key)
        if isinstance(got, Slot):
            assert not blocked
            self.given(got)
        elif isinstance(got, Waiter):
            assert blocked
            assert len(self.room) <= self.limit.max_waiting + len(self.told)
            self.room.append(got)
            got.wake = lambda: self.woken(got)
        else:
            assert blocked
            assert before >= self.limit.max_waiting
            waiting = Counter(waiter.principal for waiter in self.room)
            assert not waiting or max(waiting.values()) < waiting[principal] + 2

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if self.running:
            slot = data.draw(st.sampled_from(self.running))
            self.over(slot)

    @rule()
    def end_what_was_told(self) -> None:
        for slot in list(self.told):
            self.over(slot)

    def over(self, slot: Slot) -> None:
        self.running.remove(slot)
        for some in (self.told, self.unread):
            if slot in some:
                some.remove(slot)
        slot.release()
        slot.release()

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        if self.room:
            waiter = data.draw(st.sampled_from(self.room))
            self.room.remove(waiter)
            waiter.leave()
            waiter.leave()

    @rule(data=st.data())
    def lose_the_reader(self, data: st.DataObject) -> None:
        if self.running:
            slot = data.draw(st.sampled_from(self.running))
            if slot not in self.unread and slot not in self.told:
                self.unread.append(slot)

                def evict() -> None:
                    self.unread.remove(slot)
                    self.told.append(slot)

                slot.detach(evict)

    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        if self.running:
            slot = data.draw(st.sampled_from(self.running))
            slot.attach()
            if slot in self.unread:
                self.unread.remove(slot)

    # ---- what holds -----------------------------------------------------------------------------

    @invariant()
    def the_books_agree(self) -> None:
        if hasattr(self, "slots"):
            books = (self.slots.used, self.slots.waiting, self.slots.detached, self.slots.evicting)
            assert books == (len(self.running), len(self.room), len(self.unread), len(self.told))

    @invariant()
    def nobody_waits_who_could_have_a_slot(self) -> None:
        for waiter in self.room:
            assert self.blocked(waiter.principal, waiter.key)

    @invariant()
    def no_stream_without_a_reader_stands_in_the_way_of_one_who_waits(self) -> None:
        for slot in [] if self.told else self.unread:  # what was told to end leaves its slot to somebody
            self.running.remove(slot)
            stands = [
                waiter for waiter in self.room
                if not waiter.relieved and not self.blocked(waiter.principal, waiter.key)
            ]  # fmt: skip
            self.running.append(slot)
            assert not stands

    @invariant()
    def nobody_has_more_streams_without_a_reader_than_may_be(self) -> None:
        if hasattr(self, "slots") and self.limit.max_detached is not None:
            unread = Counter(slot.principal for slot in self.unread)
            assert all(count <= self.limit.max_detached for count in unread.values())

    def teardown(self) -> None:
        for waiter in list(self.room):
            waiter.leave()
        self.room.clear()
        for slot in list(self.running):
            self.over(slot)
        self.the_books_agree()
        if hasattr(self, "slots"):
            left = [self.slots._by_principal, self.slots._by_key, self.slots._room, self.slots._in_room]
            assert left == [{}, {}, {}, {}]


TestSlots = pytest.mark.filterwarnings("error")(Fair.TestCase)


def waiting(slots: Slots, principal: str, key: str | None = None) -> Waiter:
    got = slots.ask(principal, key)
    assert isinstance(got, Waiter)
    return got


def served(waiter: Waiter) -> bool:
    return waiter.slot is not None


def having(slots: Slots, principal: str, key: str | None = None) -> Slot:
    got = slots.ask(principal, key)
    assert isinstance(got, Slot)
    return got


def test_two_thousand_who_wait_do_not_delay_anothers_first() -> None:
    slots = Slots(Limits(max_streams=1, max_waiting=2001))
    first = having(slots, "many")
    many = [waiting(slots, "many") for _ in range(2000)]
    other = waiting(slots, "other")
    first.release()
    assert many[0].slot is not None
    many[0].slot.release()
    assert other.slot is not None
    other.slot.release()
    assert many[1].slot is not None


def test_waiters_that_are_forgotten_pass_the_slot_on_however_many_they_are() -> None:
    slots = Slots(Limits(max_streams=1, max_waiting=5000))
    first = having(slots, "many")
    for _ in range(5000):
        waiting(slots, "many")
    last = waiting(slots, "other")
    first.release()
    assert last.slot is not None
    last.slot.release()
    assert (slots.used, slots.waiting) == (0, 0)


def test_a_room_full_of_one_has_a_place_for_another() -> None:
    slots = Slots(Limits(max_streams=1, max_waiting=3))
    first = having(slots, "many")
    many = [waiting(slots, "many") for _ in range(3)]
    assert slots.ask("many", None) is None
    others = [waiting(slots, "other")]
    assert [waiter.turned_away for waiter in many] == [False, False, True]
    assert slots.ask("other", None) is None, "it would have as many as the one it takes a place from"
    others.append(waiting(slots, "third"))
    assert slots.ask("fourth", None) is None, "nobody has two more than it would"
    first.release()
    assert many[0].slot is not None
    assert others[0].slot is None


def test_who_waits_for_its_own_limit_holds_up_nobody() -> None:
    slots = Slots(Limits(max_streams=3, max_per_principal=1, key=key_of, max_per_key=1))
    ann = having(slots, "ann", "x")
    own = waiting(slots, "ann", "y")
    same_key = waiting(slots, "bob", "x")
    other = having(slots, "cid", "z")
    assert not served(own)
    assert not served(same_key)
    assert slots.own_limit("ann", None)
    assert slots.own_limit("dan", "x")
    assert not slots.own_limit("dan", None)
    ann.release()
    assert served(own)
    assert served(same_key)
    other.release()


def test_the_run_that_was_left_first_ends_first_and_its_slot_is_free_at_its_end() -> None:
    slots = Slots(Limits(max_streams=2, max_waiting=0))
    told: list[str] = []
    old, new = having(slots, "ann"), having(slots, "ann")
    assert slots.ask("bob", None) is None, "both are read, and nobody may wait"
    new.detach(lambda: told.append("new"))
    old.detach(lambda: told.append("old"))
    waiter = waiting(slots, "bob")
    assert told == ["new"]
    assert not served(waiter)
    assert slots.used == 2
    new.release()
    assert served(waiter)
    old.attach()
    assert slots.ask("cid", None) is None
    assert told == ["new"], "one that is read again is left alone"


def test_a_run_that_loses_its_reader_ends_for_one_who_waits_already() -> None:
    slots = Slots(Limits(max_streams=1))
    told: list[str] = []
    run, waiter = having(slots, "ann"), waiting(slots, "bob")
    run.detach(lambda: told.append("ann"))
    run.detach(lambda: told.append("again"))
    assert told == ["ann"]
    run.release()
    assert served(waiter)


def test_no_run_ends_in_vain() -> None:
    slots = Slots(Limits(max_streams=3, max_per_principal=1))
    told: list[str] = []
    read, unread = having(slots, "ann"), having(slots, "bob")
    unread.detach(lambda: told.append("bob"))
    waiting(slots, "ann")
    assert told == [], "ann waits for her own stream, which somebody reads"
    read.release()


def test_two_runs_end_where_one_is_not_enough() -> None:
    slots = Slots(Limits(max_per_principal=1, key=key_of, max_per_key=1))
    told: list[str] = []
    slot, other = having(slots, "ann", "x"), having(slots, "bob", "y")
    slot.detach(lambda: told.append("ann"))
    other.detach(lambda: told.append("bob"))
    waiter = waiting(slots, "ann", "y")
    assert sorted(told) == ["ann", "bob"]
    slot.release()
    assert not served(waiter)
    other.release()
    assert served(waiter)


def test_no_more_than_so_many_of_one_principal_run_without_a_reader() -> None:
    slots = Slots(Limits(max_detached=1))
    told: list[int] = []
    for number in range(3):
        having(slots, "ann").detach(lambda number=number: told.append(number))  # type: ignore[misc]
    having(slots, "bob").detach(lambda: told.append(9))
    assert told == [0, 1]


def test_a_stream_of_elsewhere_is_counted_and_not_refused() -> None:
    slots = Slots(Limits(max_streams=1))
    own, moved = having(slots, "ann"), slots.take("bob", None)
    waiter = waiting(slots, "cid")
    own.release()
    assert not served(waiter), "there are still as many as may be"
    moved.release()
    assert served(waiter)


def test_a_slot_that_is_forgotten_is_free_again() -> None:
    slots = Slots(Limits(max_streams=1))
    having(slots, "ann")
    having(slots, "bob")


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({}, ValueError, "these Limits limit nothing: say for example Limits(max_streams=200)"),
        ({"max_streams": 0}, ValueError, "max_streams is a whole number of at least 1, not 0"),
        ({"max_streams": 2.0}, TypeError, "max_streams is a whole number of at least 1, not 2.0"),
        ({"max_streams": 2, "max_waiting": -1}, ValueError, f"{ROOM}, not -1"),
        ({"max_streams": 2, "max_waiting": None}, TypeError, f"{ROOM}, not None"),
        ({"max_streams": 2, "max_wait": 0}, ValueError, "max_wait is a number above zero, not 0"),
        ({"max_per_key": 2}, ValueError, NO_KEY),
        ({"max_streams": 2, "key": "x"}, TypeError, "key is a function, not 'x'"),
    ],
)  # fmt: skip
def test_limits_that_make_no_sense_are_refused(given: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error) as caught:
        Limits(**given)
    assert str(caught.value) == said
