"""Slots: who may stream now, who waits, and who is next. Counting only: no loop, no clock, no I/O.

A stream has one slot from before its start to its end. A request that finds none waits in a room of bounded size. What
holds at rest, after every call:

* Nobody waits who could have a slot. So whoever asks and finds one free overtakes nobody.
* Slots go round the principals, and within one of them round its keys: however many of one wait, another's first is
  next or the one after.
* The room is shared in the same way: where it is full, whoever has the most in it gives up its newest place to one who
  has at least two fewer.
* A run that nobody reads (`detach`) is told to end where its slot is what somebody waits for; the one that was left
  first goes first. Its slot is free when it has ended, not before, and for so long one more may wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import attrs

from streamguard.core.arguments import number as a_number
from streamguard.core.arguments import require_callable, whole_number, whole_number_from

__all__ = ["Limits", "Slot", "Slots", "Waiter"]

_COUNT: Final = attrs.validators.optional(whole_number)

Keyed = Callable[[Any], "str | None"]


def _asked(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value is not None:
        require_callable(attribute.name, value, "the request")


@attrs.frozen(kw_only=True)
class Limits:
    """How many streams may run in this process, and how many requests may wait for one that ends. None: any number.

    `max_streams`: in all. `max_per_principal`: of one who asks, whom a guard's `authorize` tells; for an endpoint
    without a guard `principal`, a function of the request, does. Those of whom nobody can tell count as one.
    `max_per_key`: of one `key`, a function of the request that answers a text, or None for no key (a tenant, a model).
    `max_detached`: of one principal's streams that run on without a reader; the one that was left first ends.

    `max_waiting`: how many requests may wait, and `max_wait` for how long, in seconds. `retry_after`: what a refused
    one is told to wait at least, in whole seconds; it is told up to twice that, so that not all come back at once.

    Raises TypeError for what is of another kind, ValueError for a number out of range, and where nothing is limited.
    """

    max_streams: int | None = attrs.field(default=None, validator=_COUNT)
    max_per_principal: int | None = attrs.field(default=None, validator=_COUNT)
    max_per_key: int | None = attrs.field(default=None, validator=_COUNT)
    max_detached: int | None = attrs.field(default=None, validator=_COUNT)
    principal: Keyed | None = attrs.field(default=None, validator=_asked)
    key: Keyed | None = attrs.field(default=None, validator=_asked)
    max_waiting: int = attrs.field(default=100, validator=whole_number_from(0))
    max_wait: float = attrs.field(default=10.0, validator=a_number(above=0))
    retry_after: int = attrs.field(default=2, validator=whole_number)

    def __attrs_post_init__(self) -> None:
        if self.max_per_key is not None and self.key is None:
            raise ValueError("max_per_key needs to know the key: Limits(key=lambda request: …, max_per_key=…)")
        if self.max_streams is self.max_per_principal is self.max_per_key is self.max_detached is None:
            raise ValueError("these Limits limit nothing: say for example Limits(max_streams=200)")


class Slot:
    """One stream's, until it is released. What happens to one that is forgotten is the business of `Slots.lost`."""

    __slots__ = ("_slots", "evict", "evicting", "key", "principal", "released")

    def __init__(self, slots: Slots, principal: str, key: str | None) -> None:
        self.principal = principal
        self.key = key
        self.evict: Callable[[], object] | None = None  # while nobody reads its stream
        self.evicting = False
        self.released = False
        self._slots = slots

    def release(self) -> None:
        """Give it back; harmless once it is."""
        if not self.released:
            self.released = True
            self._slots._free(self)

    def detach(self, evict: Callable[[], object]) -> None:
        """Nobody reads its stream any more: `evict` is called, once, where the slot is needed."""
        if not self.released and not self.evicting and self.evict is None:
            self._slots._detach(self, evict)

    def attach(self) -> None:
        """Its stream is read again."""
        if self.evict is not None:
            self._slots._attach(self)

    def __del__(self) -> None:
        if not self.released:
            self._slots.lost(self)


class Waiter:
    """A request in the room. `wake` is called when it has its `slot`, or was `turned_away` for another's sake."""

    __slots__ = ("_slots", "key", "principal", "relieved", "slot", "turned_away", "wake")

    def __init__(self, slots: Slots, principal: str, key: str | None) -> None:
        self.principal = principal
        self.key = key
        self.slot: Slot | None = None
        self.turned_away = False
        self.relieved = False  # a run was told to end for its sake
        self.wake: Callable[[], object] | None = None
        self._slots = slots

    def leave(self) -> None:
        """Give up the place in the room. What it was given meanwhile is not taken back."""
        if self.slot is None and not self.turned_away:
            self._slots._leave(self)
            self.turned_away = True


Group = dict[Waiter, None]  # in the order in which they came


class Slots:
    """All of one process. To be called from one thread, and never from within `wake` or `evict`."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.used = 0
        self.evicting = 0  # told to end, and not over yet
        self.waiting = 0
        self._by_principal: dict[str, int] = {}
        self._by_key: dict[str, int] = {}
        self._room: dict[str, dict[str | None, Group]] = {}  # whose turn it is stands first
        self._in_room: dict[str, int] = {}
        self._detached: dict[Slot, None] = {}  # whoever was left first stands first
        self.lost: Callable[[Slot], object] = Slot.release
        self._serving = False

    @property
    def detached(self) -> int:
        """Streams that run without a reader, and were not told to end."""
        return len(self._detached)

    def of_principal(self, principal: str) -> int:
        """How many of its streams run."""
        return self._by_principal.get(principal, 0)

    def of_key(self, key: str) -> int:
        """The same of a key."""
        return self._by_key.get(key, 0)

    def own_limit(self, principal: str, key: str | None) -> bool:
        """Whether the asker's own streams are too many, whatever else runs."""
        return self._principal_full(principal) or self._key_full(key)

    def free(self, principal: str, key: str | None) -> Slot | None:
        """A slot, if there is one now."""
        return None if self._blocked(principal, key) else self.take(principal, key)

    def take(self, principal: str, key: str | None) -> Slot:
        """A slot whether there is one or not: for a stream that runs already, elsewhere. New ones wait the longer."""
        self.used += 1
        self._by_principal[principal] = self.of_principal(principal) + 1
        if key is not None:
            self._by_key[key] = self.of_key(key) + 1
        return Slot(self, principal, key)

    def ask(self, principal: str, key: str | None) -> Slot | Waiter | None:
        """A slot; else a place in the room, where a slot may come at any call that follows; else None."""
        slot = self.free(principal, key)
        if slot is not None:
            return slot
        ending = self._relief(principal, key)
        displaced = None
        if not ending and self.waiting >= self.limits.max_waiting + self.evicting:
            displaced = self._longest(principal)
            if displaced is None:
                return None
            self._leave(displaced)
            displaced.turned_away = True
        waiter = Waiter(self, principal, key)
        waiter.relieved = bool(ending)
        self._room.setdefault(principal, {}).setdefault(key, {})[waiter] = None
        self._in_room[principal] = self._in_room.get(principal, 0) + 1
        self.waiting += 1
        if displaced is not None and displaced.wake is not None:
            displaced.wake()
        self._end(ending)
        return waiter

    # ---- what is full -------------------------------------------------------------------------

    def _blocked(self, principal: str, key: str | None) -> bool:
        return self._full() or self._principal_full(principal) or self._key_full(key)

    def _full(self) -> bool:
        return self.limits.max_streams is not None and self.used >= self.limits.max_streams

    def _principal_full(self, principal: str) -> bool:
        limit = self.limits.max_per_principal
        return limit is not None and self.of_principal(principal) >= limit

    def _key_full(self, key: str | None) -> bool:
        limit = self.limits.max_per_key
        return limit is not None and key is not None and self.of_key(key) >= limit

    # ---- the room -----------------------------------------------------------------------------

    def _longest(self, principal: str) -> Waiter | None:
        """The newest of those who wait for the one that has most in the room, if `principal` has two fewer."""
        if not self._in_room:
            return None
        most = max(self._in_room, key=self._in_room.__getitem__)
        if self._in_room[most] < self._in_room.get(principal, 0) + 2:
            return None
        groups: list[Group] = list(self._room[most].values())
        longest = max(groups, key=len)
        return next(reversed(longest))

    def _leave(self, waiter: Waiter) -> None:
        groups = self._room[waiter.principal]
        group = groups[waiter.key]
        del group[waiter]
        if not group:
            del groups[waiter.key]
        if not groups:
            del self._room[waiter.principal]
        self.waiting -= 1
        left = self._in_room[waiter.principal] - 1
        if left:
            self._in_room[waiter.principal] = left
        else:
            del self._in_room[waiter.principal]

    def _next(self) -> Waiter | None:
        """Whose turn it is, of those who can have a slot."""
        if self._full():
            return None
        for principal, groups in self._room.items():
            if not self._principal_full(principal):
                for key, group in groups.items():
                    if not self._key_full(key):
                        return next(iter(group))
        return None

    def _serve(self) -> None:
        """Give slots to those who wait, as long as there are any."""
        if self._serving:  # a waiter was dropped with what it was just given: that is given on here, not deeper down
            return
        self._serving = True
        try:
            while (waiter := self._next()) is not None:
                self._give(waiter)
                del waiter  # the last one that knows of it, perhaps
        finally:
            self._serving = False

    def _give(self, waiter: Waiter) -> None:
        principal, key = waiter.principal, waiter.key
        self._leave(waiter)
        if principal in self._room:  # to the end of the round; and so its key
            groups = self._room.pop(principal)
            if key in groups:
                groups[key] = groups.pop(key)
            self._room[principal] = groups
        waiter.slot = self.take(principal, key)
        if waiter.wake is not None:
            waiter.wake()

    def _free(self, slot: Slot) -> None:
        self.used -= 1
        _one_less(self._by_principal, slot.principal)
        if slot.key is not None:
            _one_less(self._by_key, slot.key)
        self.evicting -= slot.evicting
        self._detached.pop(slot, None)
        slot.evict = None
        self._serve()

    # ---- streams without a reader -----------------------------------------------------------------

    def _detach(self, slot: Slot, evict: Callable[[], object]) -> None:
        slot.evict = evict
        self._detached[slot] = None
        self._relieve()
        limit = self.limits.max_detached
        if limit is not None:
            own = [other for other in self._detached if other.principal == slot.principal]
            self._end(own[: max(0, len(own) - limit)])

    def _attach(self, slot: Slot) -> None:
        del self._detached[slot]
        slot.evict = None

    def _relieve(self) -> None:
        """Tell runs to end for those who wait, as long as that helps one of them. Not when a slot was given: whoever
        was overtaken then gets the one that was to come."""
        while self._detached:
            for waiter in self._unrelieved():
                ending = self._relief(waiter.principal, waiter.key)
                if ending:
                    waiter.relieved = True
                    self._end(ending)
                    break
            else:
                return

    def _unrelieved(self) -> Iterator[Waiter]:
        """One of each group that waits, in their turn: what is blocked for one is for all of its group."""
        for groups in self._room.values():
            for group in groups.values():
                first = next((waiter for waiter in group if not waiter.relieved), None)
                if first is not None:
                    yield first

    def _relief(self, principal: str, key: str | None) -> list[Slot]:
        """Which runs have to end for one who is blocked: none where that would not be enough."""
        needs: list[Callable[[Slot], bool]] = []
        if self._key_full(key):
            needs.append(lambda slot: slot.key == key)
        if self._principal_full(principal):
            needs.append(lambda slot: slot.principal == principal)
        both = next((slot for slot in self._detached if all(need(slot) for need in needs)), None)
        if both is not None:
            return [both]
        found = [next((slot for slot in self._detached if need(slot)), None) for need in needs]
        ending = [slot for slot in found if slot is not None]
        return ending if ending and len(ending) == len(needs) else []

    def _end(self, ending: Iterable[Slot]) -> None:
        """Tell runs to end."""
        for slot in ending:
            del self._detached[slot]
            evict, slot.evict = slot.evict, None
            slot.evicting = True
            self.evicting += 1
            if evict is not None:
                evict()


def _one_less(counts: dict[str, int], name: str) -> None:
    left = counts[name] - 1
    if left:
        counts[name] = left
    else:
        del counts[name]
