"""Bytecodes and calls per token: what a token costs, without a clock.

`count` serves the same answer at two lengths under `sys.settrace` and divides the difference by the tokens
between, so that everything that happens once an answer drops out. The source and the `send` that counts
are left out too: what remains is the way between. A fixed stream id, and a loop that is never given a turn
for the sake of fairness, make the count the same at every run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from types import CodeType, FrameType
from typing import Any, Final
from unittest import mock

import attrs

from streamguard.core import framing
from streamguard.runtime import direct, shortcut
from tests.benchmarks.paths import WAYS, Source, Way, serve, tokens
from tests.proofs.registry import Result, Run, Table, proof

__all__ = ["Cost", "bytecode_per_token", "count"]

SHORT: Final = 161  # tokens; one and whole eights, as is LONG
LONG: Final = 1761
_SID: Final = "A" * 22


@attrs.frozen
class Cost:
    """Bytecodes and calls of Python functions, a token; `functions` names the dearest, with their bytecodes."""

    bytecodes: float
    calls: float
    functions: tuple[tuple[str, float], ...] = ()


class _Counter:
    """A trace function that counts; it does not see the frames of `left_out`, nor what runs elsewhere."""

    def __init__(self, left_out: set[CodeType]) -> None:
        self.left_out = left_out
        self.bytecodes: dict[CodeType, int] = {}
        self.calls: dict[CodeType, int] = {}

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if code in self.left_out:
            return None
        self.calls[code] = self.calls.get(code, 0) + 1
        frame.f_trace_lines = False
        frame.f_trace_opcodes = True
        return self.step

    def step(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode":
            self.bytecodes[frame.f_code] = self.bytecodes.get(frame.f_code, 0) + 1
        return self.step


def _trace(way: Way, length: int, source: Source) -> _Counter:
    left_out: set[CodeType] = {source.__code__}
    counter = _Counter(left_out)

    def start(app: Callable[..., Any]) -> Callable[..., Any]:
        async def traced(scope: Any, receive: Any, send: Any) -> None:
            left_out.update({send.__code__, traced.__code__})
            before = sys.gettrace()
            sys.settrace(counter)
            try:
                await app(scope, receive, send)
            finally:
                sys.settrace(before)

        return traced

    with ExitStack() as patches:
        for module in (direct, shortcut):  # no turn of the loop that depends on time
            patches.enter_context(mock.patch.object(module, "SLICE", float("inf")))
        patches.enter_context(mock.patch.object(framing, "new_sid", return_value=_SID))
        serve(start(way.make(source(length))))
    return counter


def count(way: Way, first: int = SHORT, last: int = LONG, source: Source = tokens) -> Cost:
    """What one more token costs on `way`, counted from answers of `first` and of `last` tokens."""
    _trace(way, first, source)  # imports and caches
    short, long = _trace(way, first, source), _trace(way, last, source)
    more = last - first
    share = {code: (found - short.bytecodes.get(code, 0)) / more for code, found in long.bytecodes.items()}
    dearest = sorted(share.items(), key=lambda item: -item[1])
    return Cost(
        sum(share.values()),
        (sum(long.calls.values()) - sum(short.calls.values())) / more,
        tuple((code.co_name if sys.version_info < (3, 11) else code.co_qualname, each) for code, each in dearest[:12]),
    )


@proof(claim="The bytecodes that a token costs on each way, counted; `tests/test_cost.py` holds ours.", minutes=1)
def bytecode_per_token(run: Run) -> Result:
    costs = {name: count(way) for name, way in WAYS.items()}
    rows = [(name, f"{cost.bytecodes:.1f}", f"{cost.calls:.2f}") for name, cost in costs.items()]
    parts = [(name, f"{share:.1f}") for name, share in costs["guarded"].functions if share >= 1]
    tables = [
        Table(("way", "bytecodes a token", "calls of Python functions a token"), rows),
        Table(("function", "bytecodes a token"), parts, "The guarded way, function by function"),
    ]
    return Result(True, tables, ["The source and the counting `send` are left out."], ["starlette", "sse-starlette"])
