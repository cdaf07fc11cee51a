"""What observing costs: the same answers with Prometheus and the records, and without.

Answers of two lengths, because what is told is told once a stream: a short answer pays for it with few tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry

from streamguard.adapters.starlette import GuardedResponse
from streamguard.observe.prometheus import Prometheus
from streamguard.observe.record import Recorder
from tests.benchmarks.paths import Way, serve, suspending
from tests.proofs.measure import ratio
from tests.proofs.registry import Result, Run, Table, proof

__all__ = ["MOST", "WAYS", "observing_per_token"]

MOST: Final = 1.25
LENGTHS: Final = (200, 2000)  # tokens of an answer
TOKENS: Final = 6_000  # of all answers of one measurement
PAIRS: Final = 7


def _ways() -> dict[str, Way]:
    metrics = Prometheus(CollectorRegistry())
    observers = {"nothing": None, "Prometheus": metrics, "Prometheus and Recorder": [metrics, Recorder()]}
    return {
        name: Way(name, lambda source, observe=observe: GuardedResponse(source, observe=observe))  # type: ignore[misc]
        for name, observe in observers.items()
    }


WAYS: Final = _ways()


def microseconds(way: Way, length: int, total: int = TOKENS) -> Callable[[], float]:
    """Measures what one token of such answers costs."""

    def measure() -> float:
        spent = 0.0
        for _ in range(total // length):
            served = serve(way.make(suspending(length)))
            assert served.sends == length + 2
            spent += served.seconds
        return spent / (total // length * length) * 1e6

    return measure


@proof(claim="With Prometheus on, a token costs at most 1.25 of what it costs without.", minutes=3)
def observing_per_token(run: Run) -> Result:
    rows, shown = [], True
    for name in list(WAYS)[1:]:
        for length in LENGTHS:
            run.say(f"{name}, {length} tokens")
            reference = microseconds(WAYS["nothing"], length)
            found = ratio(microseconds(WAYS[name], length), reference, pairs=PAIRS, say=run.say)
            shown = shown and found.median <= MOST
            within = f"{found.low:.3f} to {found.high:.3f}"
            rows.append((name, length, found.subject, found.reference, found.median, within, MOST))
    columns = ("observed by", "tokens an answer", "µs a token", "µs unobserved", "ratio", "of the pairs", "at most")
    notes = [
        "CPU time of the process for whole answers, divided by their tokens. The source gives the event loop a turn at "
        "each token, as one that waits for a model does."
    ]
    return Result(shown, [Table(columns, rows)], notes, ["prometheus-client", "starlette"])
