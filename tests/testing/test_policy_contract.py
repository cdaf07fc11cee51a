"""Every policy of the library keeps the contract; for each rule there is a policy that breaks it and is told so."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import attrs
import pytest
from hypothesis import given, settings

from streamguard.core.adaptive import Adaptive, Pressure
from streamguard.core.flush import (
    AtBoundary,
    EveryBytes,
    EveryTokens,
    FlushPolicy,
    HoldBack,
    Immediate,
    Within,
    any_of,
)
from streamguard.testing.contract import ContractBroken
from streamguard.testing.policy_contract import check_flush_policy
from streamguard.testing.strategies import flush_policies


@pytest.mark.parametrize(
    "factory",
    [
        Immediate,
        lambda: EveryTokens(3),
        lambda: EveryBytes(20, first="policy"),
        lambda: Within(0.04),
        lambda: AtBoundary("sentence"),
        lambda: HoldBack(["</s>", "word"], flush=any_of(EveryTokens(4), Within(0.1))),
        lambda: any_of(EveryTokens(8), Within(0.04)),
        Adaptive,
    ],
)
def test_the_librarys_policies_keep_the_contract(factory: Callable[[], FlushPolicy]) -> None:
    check_flush_policy(factory)


class _Sampled(Immediate):
    """One that takes samples."""

    def sample(self, pressure: Pressure, now: float) -> None:
        pass


class _Refusing(_Sampled):
    def sample(self, pressure: Pressure, now: float) -> None:
        if pressure.unsent:
            raise OSError("no")


def test_a_policy_that_takes_samples_is_given_some() -> None:
    check_flush_policy(_Sampled, rounds=2)
    with pytest.raises(ContractBroken, match=r"raises nothing': sample\(Pressure\(.*raised OSError\('no'\)"):
        check_flush_policy(_Refusing, rounds=2)


class _Sleepy(Immediate):
    """One whose window depends on how often the class was told."""

    told = 0

    def sample(self, pressure: Pressure, now: float) -> None:
        type(self).told += 1

    def push(self, piece: str, held: int, now: float) -> int:
        return held if self.told % 3 else 0


def test_samples_are_a_policys_own_too() -> None:
    with pytest.raises(ContractBroken, match="own state"):
        check_flush_policy(_Sleepy, rounds=2)


@settings(max_examples=50)
@given(flush_policies())
def test_all_of_them_do(policy: FlushPolicy) -> None:
    import copy

    check_flush_policy(lambda: copy.deepcopy(policy), rounds=2)


class Base:
    """A policy that lets everything leave."""

    def push(self, piece: str, held: int, now: float) -> Any:
        return held

    def tick(self, held: int, now: float) -> Any:
        return held

    def deadline(self) -> Any:
        return None


def answering(**answers: Any) -> Any:
    """A factory of policies with these methods."""
    return type("Mine", (Base,), answers)


class Shared(Base):
    count = 0

    def push(self, piece: str, held: int, now: float) -> int:
        Shared.count += 1
        return held if Shared.count % 3 == 0 else 0


class SharedList(Base):
    """Deep copies share what is the class's."""

    seen: list[str] = []  # noqa: RUF012

    def push(self, piece: str, held: int, now: float) -> int:
        self.seen.append(piece)
        return held if len(self.seen) % 2 else 0


class Locked(Base):
    def __init__(self) -> None:
        self.lock = threading.Lock()


@attrs.define
class Kept(Base):
    """Copies keep the list of the original, because it says how it is copied."""

    seen: list[str] = attrs.field(factory=list)

    def __deepcopy__(self, memo: Any) -> Kept:
        return Kept(self.seen)

    def push(self, piece: str, held: int, now: float) -> int:
        self.seen.append(piece)
        return held if len(self.seen) % 2 else 0


class OwnClock(Base):
    def __init__(self) -> None:
        self.due: float | None = None

    def push(self, piece: str, held: int, now: float) -> int:
        self.due = time.monotonic() + 0.04
        return 0

    def tick(self, held: int, now: float) -> int:
        self.due = None
        return held

    def deadline(self) -> float | None:
        return self.due


class Absolute(OwnClock):
    """Holds text until a time of day."""

    def push(self, piece: str, held: int, now: float) -> int:
        return held if now > 100_000 else 0


class Counter(Base):
    """Counts what it let leave, and does not learn of a drain."""

    def __init__(self) -> None:
        self.mine = 0

    def push(self, piece: str, held: int, now: float) -> int:
        self.mine += len(piece)
        if self.mine < 10:
            return 0
        out, self.mine = self.mine, 0
        return out


class Stuck(Base):
    def push(self, piece: str, held: int, now: float) -> int:
        return 0

    def tick(self, held: int, now: float) -> int:
        return 0

    def deadline(self) -> float:
        return 0.0


class Creeping(Stuck):
    """One character a tick, and the deadline never moves."""

    def tick(self, held: int, now: float) -> int:
        return 1


def fail(*args: Any) -> int:
    raise LookupError("mine")


SAME = Immediate()


@pytest.mark.parametrize(
    ("factory", "rule", "message"),
    [
        (object, "protocol", "is no flush policy"),
        (lambda: Immediate, "protocol", "give an instance"),
        (lambda: EveryTokens(0), "protocol", "the factory raised ValueError"),
        (lambda: SAME, "own state", "the same policy twice"),
        (answering(push=lambda *_: -1), "answer", "answered -1, and only an int from 0 to"),
        (answering(push=lambda self, piece, held, now: held + 1), "answer", "only an int from 0 to"),
        (answering(push=lambda self, piece, held, now: len(piece.encode())), "answer", "only an int"),
        (answering(push=lambda *_: True), "answer", "answered True"),
        (answering(push=lambda *_: None), "answer", "answered None"),
        (answering(push=lambda *_: 0, tick=lambda *_: 0.5), "answer", r"tick\(held=\d+\) answered 0.5"),
        (Counter, "answer", r"push\(.*\) answered \d+, and only an int from 0 to"),
        (answering(push=fail), "raises nothing", r"push\('.*\) raised LookupError"),
        (answering(push=lambda *_: 0, tick=fail), "raises nothing", r"tick\(held=\d+\) raised"),
        (answering(deadline=fail), "raises nothing", r"deadline\(\) raised"),
        (answering(push=lambda self, piece, held, now: [*piece.encode("ascii")] and held), "raises nothing", "Unicode"),
        (answering(deadline=lambda self: float("nan")), "deadline", "answered nan"),
        (answering(deadline=lambda self: float("inf")), "deadline", "answered inf"),
        (answering(deadline=lambda self: "soon"), "deadline", "answered 'soon'"),
        (answering(deadline=lambda self: False), "deadline", "answered False"),
        (Stuck, "tick", "let nothing leave and did not move it"),
        (Shared, "own state", "beside another policy of the same factory"),
        (SharedList, "own state", "beside another policy"),
        (Locked, "copy", "copy.deepcopy raised TypeError"),
        (Kept, "copy", "when"),
        (OwnClock, "time", "use no clock but `now`"),
        (Absolute, "time", r"answered 0, and \d+ when every time is 3.6864e\+06 s later"),
    ],
)
def test_a_broken_rule_is_named(factory: Any, rule: str, message: str) -> None:
    with pytest.raises(ContractBroken, match=message) as caught:
        check_flush_policy(factory)
    assert caught.value.rule == rule
    assert isinstance(caught.value, AssertionError)
    assert f"breaks the rule {rule!r}" in str(caught.value)


def test_a_policy_that_creeps_is_none_that_is_stuck() -> None:
    """It makes progress at each tick; the driver limits how often it asks."""
    check_flush_policy(Creeping, rounds=3)


def test_the_same_seed_finds_the_same_fault() -> None:
    def message(seed: int) -> str:
        with pytest.raises(ContractBroken) as caught:
            check_flush_policy(Counter, seed=seed)
        return str(caught.value)

    assert message(1) == message(1)
    assert len({message(seed) for seed in range(20)}) > 1
