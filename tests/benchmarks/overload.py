"""More tokens than one process can send one by one: what `Adaptive` makes of that, over real sockets on uvicorn.

Where a process saturates is found first, in the same run: streams are offered more than it can send with one frame a
token, and what came in a second, while all of them ran, is the rate. Then three times as many tokens come.

Tokens come when they are due, whatever the server does: each bears the time at which it was, and those that came while
the server was busy are read together, as from a socket. So the delay of a token is all of its time in the process.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from bisect import bisect
from collections.abc import AsyncIterator
from typing import Any, Final

from sse_starlette.sse import EventSourceResponse
from starlette.applications import Starlette
from starlette.routing import Route

from streamguard.adapters.starlette import GuardedResponse, SealMiddleware
from streamguard.core.adaptive import Adaptive
from tests.benchmarks.load import Load, ask, stream
from tests.benchmarks.served import answering, served
from tests.proofs.registry import Result, Run, Table, proof

__all__ = ["MOST", "READERS", "TIMES", "WAYS", "arriving", "overload", "saturation"]

READERS: Final = 200
TIMES: Final = 3  # the rate that is offered, by the one at which a process saturates
SECONDS: Final = 5.0  # of one stream
BEGUN: Final = 1.5  # seconds in which they begin, and are not looked at: to begin costs much more than a token
ROUNDS: Final = 3
MOST: Final = 250.0  # milliseconds
OFFERED: Final = 120_000  # tokens a second: more than any process sends one by one
WAYS: Final = {"adaptive": "Adaptive()", "guarded": "Immediate()", "sse-starlette": "sse-starlette"}

_turns = itertools.cycle(range(READERS))


async def arriving(rate: float, seconds: float) -> AsyncIterator[str]:
    """Tokens that come `rate` times a second, for so many seconds. The streams of one run begin one after the other."""
    due = time.monotonic() + (1 + next(_turns) / READERS) / rate
    rest = round(rate * seconds)
    while rest:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        now = time.monotonic()
        while rest and due <= now:
            yield f"@{round(due * 1e9):020d}@"
            due += 1 / rate
            rest -= 1


def _endpoint(make: Any) -> Any:
    async def endpoint(request: Any) -> Any:
        return make(arriving(float(request.path_params["rate"]), float(request.path_params["seconds"])))

    app = Starlette(routes=[Route("/{rate:float}/{seconds:float}", endpoint)])
    app.add_middleware(SealMiddleware)
    return answering(app)


guarded = _endpoint(GuardedResponse)
adaptive = _endpoint(lambda source: GuardedResponse(source, flush=Adaptive()))
sse_starlette = _endpoint(EventSourceResponse)


def _offer(port: int, rate: float, seconds: float) -> Load:
    """What came of so many tokens a second in all."""
    each = round(rate / READERS, 3)
    load = stream(port, f"/{each}/{seconds}", READERS)
    wanted = READERS * round(each * seconds)
    assert load.tokens == wanted, f"{load.tokens} of {wanted} tokens came"
    return load


def saturation(port: int) -> float:
    """Tokens that a server sends in a second when it is offered more: in its best one."""
    load = _offer(port, OFFERED, 2.0)
    came = sorted(at / 1e9 + delay / 1e6 for at, delay in zip(load.yielded, load.delays, strict=True))
    return float(max(bisect(came, at + 1.0) - index for index, at in enumerate(came)))


def _percentile(load: Load) -> float:
    """Milliseconds within which 99 of 100 tokens came, of those that were due once all streams had begun."""
    begun = min(load.yielded) + BEGUN * 1e9
    return statistics.quantiles(
        [delay for at, delay in zip(load.yielded, load.delays, strict=True) if at >= begun], n=100
    )[98] / 1e3


@proof(
    claim="At 3 times the rate at which a process saturates with one frame a token, with `Adaptive()` 99 of 100 tokens "
    "are on their way for less than 250 ms, and all arrive.",
    minutes=8,
)
def overload(run: Run) -> Result:
    rows, shown = [], True
    for http, loop in (("h11", "asyncio"), ("httptools", "uvloop")):
        with served("guarded", http, loop, __name__) as port:
            rate = statistics.median(saturation(port) for _ in range(ROUNDS))
        run.say(f"uvicorn with {http} and {loop}: {rate:,.0f} tokens a second")
        for way, name in WAYS.items():
            late, busy, size = [], [], []
            with served(way, http, loop, __name__) as port:
                for _ in range(ROUNDS if way == "adaptive" else 1):
                    before = ask(port, "/cpu")
                    load = _offer(port, TIMES * rate, SECONDS)
                    busy.append((ask(port, "/cpu") - before) / load.tokens * 1e6)
                    late.append(_percentile(load))
                    size.append(load.received / load.tokens)
                    run.say(f"{name}: {late[-1]:.0f} ms, {busy[-1]:.1f} µs a token")
            if way == "adaptive":
                shown = shown and statistics.median(late) < MOST
            middle = [statistics.median(column) for column in (late, busy, size)]
            row = (f"{http}, {loop}", name, f"{rate:,.0f}", f"{TIMES * rate:,.0f}", *middle)
            rows.append((*row, MOST if way == "adaptive" else "-"))
    columns = ("uvicorn with", "way", "saturated at, tokens a second", "offered", "p99, ms", "µs of CPU a token")
    return Result(
        shown,
        [Table((*columns, "bytes a token", "at most, ms"), rows)],
        [
            f"{READERS} streams of {SECONDS:g} s; tokens of the first {BEGUN:g} s, in which they begin, are not timed.",
            "What is not sent while tokens come is sent later, and counted too.",
        ],
        ["uvicorn", "starlette", "sse-starlette", "h11", "httptools", "uvloop"],
    )
