"""The contract of a flush policy, for a test of your own policy.

    def test_my_policy():
        check_flush_policy(lambda: MyPolicy(limit=10))

Scripts of pieces, ticks, waits until the deadline and drains are drawn from a seed and played to policies that
the factory makes, one call at a time, with every answer looked at. Then the same script is played again: to a
second policy beside the first, to copies, and at another time of day; the answers must be the same, because
a policy may know nothing but its own calls.

A policy that takes samples of pressure (SampledPolicy) is given some, drawn from the seed as well.

Pieces are whole characters, as a stream joins them first: no half of a surrogate pair reaches a policy.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs

from streamguard.core.adaptive import Pressure, SampledPolicy
from streamguard.core.flush import FlushPolicy, checked_policy
from streamguard.testing.contract import ContractBroken

__all__ = ["check_flush_policy"]

_PIECES: Final = (
    "a", " ", "\n", ".", "word", "word ", "End. ", "two words and ", "<", "</", "</s>", "é", "你好", "。", "🙂",
    "👩\u200d👩\u200d👧", "\u2028", "\0", "\ufeff", "\U0010ffff", "e\u0301", '"', "\\", "data: x\n\n",
)  # fmt: skip
_LONG: Final = ("x" * 1000, "你" * 3000, "word " * 2000, "🙂" * 5000)
_STEPS: Final = 60
_SHIFT: Final = 3600.0 * 1024  # seconds: exact in a float, and whole hours, for policies that round
_CLOSE: Final = 1e-6

# A step: a piece, seconds that pass before a tick, or one of these.
_DUE: Final = "until the deadline"
_DRAIN: Final = "drain"
_PRESSURE: Final = "pressure"
Step = tuple[str, Any]


def check_flush_policy(factory: Callable[[], FlushPolicy], *, seed: int = 0, rounds: int = 50) -> None:
    """Raise ContractBroken, an AssertionError, for the first rule that `factory`'s policies break.

    `factory` makes a new policy at each call. `rounds` scripts of 60 steps are drawn from `seed`; half a second
    for a policy that answers in microseconds.
    """
    name, sampled = _protocol(factory)
    for number in range(rounds):
        script = _script(random.Random(f"{seed}/{number}"))
        if sampled:
            script = _with_pressure(random.Random(f"{seed}/{number}/pressure"), script)
        alone = _play(_Player(name, _made(name, factory)), script)
        _same_beside_another(name, factory, script, alone)
        _same_as_a_copy(name, factory, script, alone)
        _same_at_another_time(name, factory, script, alone)


def _protocol(factory: Callable[[], FlushPolicy]) -> tuple[str, bool]:
    """The policy's name, if it is one, and whether it takes samples."""
    one, other = _made("the policy", factory), _made("the policy", factory)
    name = type(one).__name__
    try:
        checked_policy(one)
    except TypeError as exc:
        raise ContractBroken("the policy", "protocol", str(exc)) from exc
    if one is other:
        raise ContractBroken(name, "own state", "the factory gave the same policy twice; make a new one at each call")
    return name, isinstance(one, SampledPolicy)


def _made(name: str, factory: Callable[[], FlushPolicy]) -> FlushPolicy:
    try:
        return factory()
    except Exception as exc:
        raise ContractBroken(name, "protocol", f"the factory raised {exc!r}") from exc


def _script(draw: random.Random) -> list[Step]:
    """Steps of a stream. Waits are sixteenths of a second, so that all times are exact."""
    steps: list[Step] = []
    for _ in range(_STEPS):
        kind = draw.random()
        if kind < 0.65:
            piece = draw.choice(_LONG) if draw.random() < 0.03 else draw.choice(_PIECES)
            steps.append(("push", piece))
        elif kind < 0.80:
            steps.append(("tick", draw.choice((0.0, 0.0625, 0.5, 30.0))))
        elif kind < 0.93:
            steps.append((_DUE, None))
        else:
            steps.append((_DRAIN, None))
    return steps


def _with_pressure(draw: random.Random, steps: Sequence[Step]) -> list[Step]:
    """The same steps, with samples between them: of a time in which more and more presses, or less and less."""
    found: list[Step] = []
    pressing = False
    for step in steps:
        if draw.random() < 0.1:
            pressing = not pressing
        if draw.random() < 0.5:
            lag, unsent = draw.choice((0.0, 0.007, 0.2)), draw.choice((0, 10_000, 1_000_000))
            found.append((_PRESSURE, Pressure(lag, draw.random(), unsent) if pressing else Pressure()))
        found.append(step)
    return found


def _play(player: _Player, script: Sequence[Step]) -> list[Any]:
    for step in script:
        player.play(step)
    return player.trace


def _same_beside_another(
    name: str, factory: Callable[[], FlushPolicy], script: Sequence[Step], alone: list[Any]
) -> None:
    """Two policies, used in turn, one of them a few steps ahead: as two streams of one process are."""
    one, other = _Player(name, _made(name, factory)), _Player(name, _made(name, factory))
    for index in range(len(script) + 3):
        if index < len(script):
            one.play(script[index])
        if index >= 3:
            other.play(script[index - 3])
    for player in (one, other):
        _compare(name, "own state", "beside another policy of the same factory", alone, player.trace)


def _same_as_a_copy(name: str, factory: Callable[[], FlushPolicy], script: Sequence[Step], alone: list[Any]) -> None:
    """A stream copies the policy that it is given, which then serves the next one as if it were new."""
    original = _made(name, factory)
    copies = [_copied(name, original) for _ in range(2)]
    for copied in copies:
        _compare(name, "copy", "when it is a deep copy", alone, _play(_Player(name, copied), script))
    _compare(name, "copy", "when copies of it were used before", alone, _play(_Player(name, original), script))


def _copied(name: str, policy: FlushPolicy) -> FlushPolicy:
    try:
        return copy.deepcopy(policy)
    except Exception as exc:
        raise ContractBroken(
            name, "copy", f"copy.deepcopy raised {exc!r}; a stream copies the policy it is given"
        ) from exc


def _same_at_another_time(
    name: str, factory: Callable[[], FlushPolicy], script: Sequence[Step], alone: list[Any]
) -> None:
    shifted = _play(_Player(name, _made(name, factory), _SHIFT), script)
    _compare(name, "time", f"when every time is {_SHIFT:g} s later; use no clock but `now`", alone, shifted, _CLOSE)


def _compare(name: str, rule: str, when: str, expected: list[Any], found: list[Any], close: float = 1.0) -> None:
    """`close`: seconds by which deadlines may differ; a second, where only a clock of its own makes them."""
    for (call, answer, due), (_, other_answer, other_due) in zip(expected, found, strict=False):
        if answer != other_answer:
            raise ContractBroken(name, rule, f"{call} answered {answer}, and {other_answer} {when}")
        if (due is None) is not (other_due is None) or (due is not None and abs(due - other_due) > close):
            raise ContractBroken(name, rule, f"after {call} the deadline was {_in(due)}, and {_in(other_due)} {when}")
    if len(expected) != len(found):
        raise ContractBroken(name, rule, f"{len(expected)} calls were needed for a script, and {len(found)} {when}")


def _in(due: float | None) -> str:
    return "None" if due is None else f"in {due:g} s"


@attrs.define
class _Player:
    """Plays a script to one policy, as a stream would, and looks at every answer."""

    name: str
    policy: FlushPolicy
    now: float = 0.0
    held: int = 0
    trace: list[tuple[str, int, float | None]] = attrs.field(factory=list)
    """Each call, its answer, and in how many seconds the deadline then was."""

    def play(self, step: Step) -> None:
        kind, value = step
        if kind == "push":
            self.held += len(value)
            shown = repr(value) if len(value) < 30 else f"{value[:9]!r}… ({len(value)} characters)"
            self._ask(f"push({shown}, held={self.held})", lambda: self.policy.push(value, self.held, self.now))
        elif kind == "tick":
            self.now += value
            if self.held:  # a policy is asked nothing while nothing is held
                self._tick()
        elif kind == _DUE:
            self._until_due()
        elif kind == _PRESSURE:
            self._sample(value)
        else:
            self.held = 0  # all that is held leaves before a block, and the policy is not told

    def _sample(self, pressure: Pressure) -> None:
        policy: Any = self.policy
        try:
            policy.sample(pressure, self.now)
        except Exception as exc:
            raise ContractBroken(self.name, "raises nothing", f"sample({pressure}) raised {exc!r}") from exc

    def _tick(self) -> int:
        return self._ask(f"tick(held={self.held})", lambda: self.policy.tick(self.held, self.now))

    def _until_due(self) -> None:
        """Tick at the deadline, as the driver does: until nothing is held, or the next one is in the future."""
        while self.held and (due := self._deadline()) is not None:
            self.now = max(self.now, due)
            left = self._tick()
            after = self._deadline()
            if self.held and not left and after is not None and after <= self.now:
                what = f"tick at the deadline, with {self.held} characters held, let nothing leave and did not move it"
                raise ContractBroken(self.name, "tick", f"{what}: the driver would ask for ever")
            if after is not None and after > self.now:
                return

    def _ask(self, call: str, ask: Callable[[], Any]) -> int:
        try:
            answer = ask()
        except Exception as exc:
            raise ContractBroken(self.name, "raises nothing", f"{call} raised {exc!r}") from exc
        if type(answer) is not int or not 0 <= answer <= self.held:
            what = f"{call} answered {answer!r}, and only an int from 0 to {self.held} may leave"
            raise ContractBroken(self.name, "answer", what)
        self.held -= answer
        due = self._deadline()
        self.trace.append((call, answer, None if due is None else max(0.0, due - self.now)))
        return answer

    def _deadline(self) -> float | None:
        try:
            due: Any = self.policy.deadline()
        except Exception as exc:
            raise ContractBroken(self.name, "raises nothing", f"deadline() raised {exc!r}") from exc
        if due is None:
            return None
        if type(due) not in (int, float) or not math.isfinite(due):
            raise ContractBroken(self.name, "deadline", f"deadline() answered {due!r}, and only a time or None may be")
        return float(due)
