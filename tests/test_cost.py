"""Speed without a clock: the bytecodes of one more token on the direct path stay within their budget.

The budgets are what `count` found on each version of Python; 3 % above one fails. An unknown version is held
to the nearest one. Wall-clock ratios are in `python -m tests.benchmarks`.

For orientation, on Python 3.11: a hand-written StreamingResponse costs 46 bytecodes a token, sse-starlette
604, in the same count.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest

from streamguard.adapters.asgi_sink import AsgiSink
from streamguard.adapters.starlette import GuardedResponse
from streamguard.core.adaptive import Adaptive
from streamguard.core.pipeline import Pipeline
from tests.benchmarks.behind import counted
from tests.benchmarks.bytecode import Cost, count
from tests.benchmarks.paths import WAYS, Way

GUARDED = ["guarded", "guarded, openai", "guarded, EveryTokens(8)"]

# Bytecodes a token, by version of Python.
BUDGETS: dict[tuple[int, int], dict[str, float]] = {
    (3, 10): {"guarded": 201.0, "guarded, openai": 215.0, "guarded, EveryTokens(8)": 135.8},
    (3, 11): {"guarded": 218.9, "guarded, openai": 233.9, "guarded, EveryTokens(8)": 146.0},
    (3, 12): {"guarded": 204.0, "guarded, openai": 218.0, "guarded, EveryTokens(8)": 137.0},
    (3, 13): {"guarded": 203.0, "guarded, openai": 218.0, "guarded, EveryTokens(8)": 139.6},
}
SPARE = 1.03


def budget(way: str) -> float:
    """The budget of this version of Python, or of the nearest that has one."""
    here = sys.version_info[:2]
    nearest = min(BUDGETS, key=lambda version: abs(version[1] - here[1]))
    return BUDGETS[nearest][way]


@pytest.mark.parametrize("way", GUARDED)
def test_a_token_costs_no_more_bytecodes_than_its_budget(way: str) -> None:
    found = count(WAYS[way])
    assert found.bytecodes <= budget(way) * SPARE, found


def test_an_event_behind_the_middleware_costs_no_more_than_its_share() -> None:
    """Of what the same event costs unwrapped."""
    costs = {name: cost.bytecodes for name, cost in counted(11, 43).items()}
    assert costs["report"] <= 1.4 * costs["unwrapped"]
    assert costs["guard"] <= 2.5 * costs["unwrapped"]


def test_the_count_is_the_same_at_every_run() -> None:
    first, second = count(WAYS["guarded"]), count(WAYS["guarded"])
    assert first.bytecodes == pytest.approx(second.bytecodes, abs=0.1)
    assert first.calls == pytest.approx(second.calls, abs=0.01)


def test_nothing_that_is_called_per_token_belongs_to_the_event_loop() -> None:
    found: Cost = count(WAYS["guarded"])
    names = [name for name, share in found.functions if share >= 0.5]
    assert not [name for name in names if "Loop" in name or "Handle" in name or "Task" in name], names


def test_a_guarded_token_costs_less_than_one_of_sse_starlette() -> None:
    assert count(WAYS["guarded"]).bytecodes < 0.6 * count(WAYS["sse-starlette"]).bytecodes


def _counting_send(monkeypatch: pytest.MonkeyPatch) -> None:
    send = AsgiSink.send

    def slower(self: Any, data: bytes) -> Any:
        self.sent = getattr(self, "sent", 0) + len(data)
        return send(self, data)

    monkeypatch.setattr(AsgiSink, "send", slower)


def _checking_push(monkeypatch: pytest.MonkeyPatch) -> None:
    push = Pipeline.push

    def slower(self: Any, item: Any, now: float) -> bytes:
        assert item is not None
        return push(self, item, now)

    monkeypatch.setattr(Pipeline, "push", slower)


@pytest.mark.parametrize("slow_down", [_counting_send, _checking_push])
def test_a_little_more_work_per_token_breaks_the_budget(
    slow_down: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_down(monkeypatch)
    assert count(WAYS["guarded"]).bytecodes > budget("guarded") * SPARE


def test_adaptive_costs_no_bytecode_more_than_immediate_while_the_loop_keeps_up() -> None:
    adaptive = Way("guarded, Adaptive()", lambda source: GuardedResponse(source, flush=Adaptive()))
    assert count(adaptive).bytecodes == pytest.approx(count(WAYS["guarded"]).bytecodes, abs=0.1)
