"""What gzip saves, costs and holds where each frame is flushed, from item to bytes, without a server.

The text is the licence of this library, a word a token, once: the ten words of other benchmarks, again and again, would
compress to next to nothing.
"""

from __future__ import annotations

import statistics
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Final

from streamguard.core.compress import Gzip
from streamguard.core.dialect import dialect_named
from streamguard.core.flush import EveryTokens, FlushPolicy, Immediate
from streamguard.core.framing import FramedEncoder
from streamguard.core.guard import CompletionGuard
from streamguard.core.pipeline import Pipeline
from streamguard.core.wire import Sse
from streamguard.runtime.compressed import CompressedStage
from streamguard.runtime.sink import Stage
from tests.benchmarks.paths import EVERY
from tests.modules import ROOT
from tests.proofs.measure import cpu_seconds
from tests.proofs.registry import Result, Run, Table, proof

__all__ = ["KINDS", "WINDOWS", "answer", "compression", "compression_window", "held"]

ROUNDS: Final = 5
PASSES: Final = 10  # answers of one measurement
MOST: Final = 60.0  # per cent
BESIDE: Final = 16384  # bytes

IMMEDIATE: Final = "`Immediate()`"
LARGER: Final = f"`EveryTokens({EVERY})`"
POLICIES: Final[dict[str, Callable[[], FlushPolicy]]] = {IMMEDIATE: Immediate, LARGER: partial(EveryTokens, EVERY)}
KINDS: Final = [(dialect, policy) for dialect in ("native", "openai") for policy in POLICIES]
WINDOWS: Final = (9, 12, 15)

_SID: Final = "AAECAwQFBgcICQoLDA0ODw"  # always the same, and so are the bytes
_TOKENS: Final = [f"{word} " for word in (ROOT / "LICENSE").read_text(encoding="utf-8").split()]


def answer(dialect: str, policy: str, gzip: Gzip | None) -> list[bytes]:
    """A whole answer, in the parts in which it is sent."""
    pipeline = Pipeline(POLICIES[policy](), FramedEncoder(dialect_named(dialect), sid=_SID), CompletionGuard(Sse()))
    body = None if gzip is None else gzip.body()
    stage: Stage[bytes] = pipeline if body is None else CompressedStage(pipeline, body)
    parts = [stage.open(), *(stage.push(token, 0.0) for token in _TOKENS), stage.finish(0.0)]
    return [part for part in parts if part] + ([] if body is None else [body.end()])


def held(gzip: Gzip) -> int:
    """Bytes of memory that the compressor of one body takes."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        body = gzip.body()
        body.write(b"something")
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def _size(dialect: str, policy: str, gzip: Gzip | None) -> float:
    """Bytes a token."""
    return sum(map(len, answer(dialect, policy, gzip))) / len(_TOKENS)


def _cost(dialect: str, policy: str, gzip: Gzip | None) -> float:
    """CPU microseconds a token."""

    def work() -> None:
        for _ in range(PASSES):
            answer(dialect, policy, gzip)

    return cpu_seconds(work) / PASSES / len(_TOKENS) * 1e6


@proof(claim=f"gzip leaves at most {MOST:g} % of an answer's bytes, though each frame is flushed by itself.", minutes=2)
def compression(run: Run) -> Result:
    costs: dict[tuple[str, str], list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    for number in range(ROUNDS):
        run.say(f"round {number + 1} of {ROUNDS}")
        for kind, pairs in costs.items():
            pairs.append((_cost(*kind, None), _cost(*kind, Gzip())))
    rows, shown = [], True
    for kind, pairs in costs.items():
        plain, small = _size(*kind, None), _size(*kind, Gzip())
        shown = shown and small <= plain * MOST / 100
        cpu = [statistics.median(column) for column in zip(*pairs, strict=True)]
        rows.append((f"`{kind[0]}`", kind[1], plain, small, small / plain * 100, *cpu))
    columns = ("dialect", "flush", "bytes a token", "with gzip", "%", "µs of CPU a token", "with gzip")
    notes = [
        f"{len(_TOKENS)} tokens, each a word of the licence, from item to bytes, without a server; `Gzip()` as it is.",
        f"CPU time is the median of {ROUNDS} rounds, in which all take turns.",
    ]
    return Result(shown, [Table(columns, rows)], notes)


@proof(
    claim=f"A compressed stream holds `4 * 2**window` bytes and at most {BESIDE // 1024} KiB beside them.", minutes=1
)
def compression_window(run: Run) -> Result:
    rows, shown = [], True
    for window in WINDOWS:
        gzip = Gzip(window=window)
        holds = held(gzip)
        shown = shown and holds <= 4 * 2**window + BESIDE
        sizes = [_size(*kind, gzip) for kind in KINDS]
        rows.append((f"{window}, the default" if gzip == Gzip() else str(window), holds / 1e3, *sizes))
    columns = ("`window`", "KB a stream", *(f"`{dialect}`, {policy}" for dialect, policy in KINDS))
    table = Table(columns, rows, "What a stream holds, and bytes a token")
    return Result(shown, [table], ["The text is that of `compression`; memory is what zlib asks for."])
