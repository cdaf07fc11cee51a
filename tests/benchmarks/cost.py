"""CPU per token on the way from a source to `send`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

from tests.benchmarks.paths import WAYS, Source, Way, serve, suspending, tokens
from tests.proofs.measure import Ratio, ratio
from tests.proofs.registry import Result, Run, Table, proof

__all__ = ["LIMITS", "check", "cost_per_token"]

COUNT: Final = 20_001  # tokens of an answer: one, and whole eights, so that no text waits for the ending
PAIRS: Final = 7


@attrs.frozen
class Limit:
    """At most `most` times the reference; `aim` is what we would like."""

    subject: str
    reference: str
    most: float | None = None
    aim: float | None = None


LIMITS: Final = (
    Limit("guarded", "sse-starlette", 0.30, 0.20),
    Limit("guarded", "hand-written", 3.0, 2.0),
    Limit("guarded, EveryTokens(8)", "sse-starlette", 0.12),
    Limit("guarded, openai", "sse-starlette"),
    Limit("guarded, openai", "hand-written"),
)


def check(way: Way, count: int = COUNT) -> tuple[int, int]:
    """Count what one answer sends: a frame and a `send` a token, no less and no more."""
    served = serve(way.make(tokens(count)), keep=True)
    frames, sends = served.frames(), served.sends
    wanted = way.frames(count)
    ending = 1 if way.name == "guarded, openai" else 0  # the chunk with the finish reason
    assert frames == wanted + ending, f"{way.name}: {frames} frames for {wanted}"
    extra = 2 if way.name.startswith("guarded") else 0  # the opening and the ending have sends of their own
    assert sends == wanted + extra, f"{way.name}: {sends} sends for {wanted} frames"
    return frames - ending, sends - extra


def _microseconds(way: Way, source: Source) -> Callable[[], float]:
    expected = way.frames(COUNT) + (2 if way.name.startswith("guarded") else 0)

    def measure() -> float:
        served = serve(way.make(source(COUNT)))
        assert served.sends == expected
        return served.seconds / COUNT * 1e6

    return measure


def _row(limit: Limit, found: Ratio) -> tuple[object, ...]:
    return (
        limit.subject,
        limit.reference,
        found.subject,
        found.reference,
        found.median,
        f"{found.low:.3f} to {found.high:.3f}",
        "" if limit.most is None else limit.most,
        "" if limit.aim is None else limit.aim,
    )


@proof(
    claim="A guarded token costs at most 0.30 of what it costs in sse-starlette, and 3.0 times a hand-written one.",
    minutes=3,
)
def cost_per_token(run: Run) -> Result:
    columns = ("way", "against", "µs a token", "µs of the other", "ratio", "of the pairs", "at most", "aim")
    counted = [(name, COUNT, *check(way)) for name, way in WAYS.items()]
    tables = [Table(("way", "tokens", "frames", "sends"), counted, "What is sent")]
    shown = True
    for source, title in (
        (tokens, "A source that never waits"),
        (suspending, "The loop turns once a token, which costs all ways the same (for orientation)"),
    ):
        rows = []
        for limit in LIMITS if source is tokens else [Limit(each.subject, each.reference) for each in LIMITS]:
            run.say(f"{limit.subject} against {limit.reference}, {source.__name__}")
            subject, reference = WAYS[limit.subject], WAYS[limit.reference]
            found = ratio(_microseconds(subject, source), _microseconds(reference, source), pairs=PAIRS, say=run.say)
            shown = shown and (limit.most is None or found.median <= limit.most)
            rows.append(_row(limit, found))
        tables.append(Table(columns, rows, title))
    return Result(
        shown,
        tables,
        ["CPU time of the process for the whole answer, its opening and ending included, divided by its tokens."],
        ["starlette", "sse-starlette"],
    )
