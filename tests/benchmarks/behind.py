"""What an application that streams already costs behind the middleware, beside the same application unwrapped.

The application is Starlette's StreamingResponse, which relays the chunks of a chat completion, an event a part, as most
do. It is served by uvicorn as it is, in report mode and in guard mode, each in a process of its own (`served` says how
its CPU is counted). Beside that the bytecodes of an event are counted, without a server, where the loop turns once an
event, as it does with a model behind a socket.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, Final, Literal

from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Route

from streamguard.adapters.middleware import GuardMiddleware
from tests.benchmarks.bytecode import Cost, count
from tests.benchmarks.paths import App, Way, suspending
from tests.benchmarks.served import PAIRS, RATE, READERS, STACKS, TOKENS, Served, answering, served, source_of
from tests.proofs.measure import ratio
from tests.proofs.registry import Result, Run, Table, proof

__all__ = ["MOST", "counted", "middleware_per_token"]

Mode = Literal["report", "guard"]

MOST: Final[dict[Mode, float]] = {"report": 1.4, "guard": 2.5}
_CHUNK: Final = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}


def _event(delta: dict[str, str], reason: str | None = None) -> str:
    chunk = {**_CHUNK, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
    return f"data: {json.dumps(chunk)}\n\n"


_BEFORE, _AFTER = _event({"content": "|"}).split("|")


async def _relayed(tokens: AsyncIterator[str]) -> AsyncIterator[str]:
    async for token in tokens:
        yield f"{_BEFORE}{token}{_AFTER}"
    yield _event({}, "stop")
    yield "data: [DONE]\n\n"


def _response(tokens: AsyncIterator[str]) -> StreamingResponse:
    return StreamingResponse(_relayed(tokens), media_type="text/event-stream")


def _site() -> Starlette:
    async def endpoint(request: Any) -> StreamingResponse:
        return _response(source_of(request.scope))

    return Starlette(routes=[Route(path, endpoint) for path in ("/stream", "/wait", "/brief")])


unwrapped = answering(_site())
report = answering(GuardMiddleware(_site(), on_sigterm=False))
guard = answering(GuardMiddleware(_site(), mode="guard", on_sigterm=False))


def _wrapped(mode: Mode) -> App:
    def make(tokens: AsyncIterator[str]) -> App:
        return GuardMiddleware(_response(tokens), mode=mode, on_sigterm=False)

    return make  # type: ignore[return-value]  # what a Way has


def counted(*lengths: int) -> dict[str, Cost]:
    """Bytecodes and calls of an event: unwrapped, and behind each mode."""
    ways = [Way("unwrapped", _response), *(Way(mode, _wrapped(mode)) for mode in MOST)]  # type: ignore[arg-type]
    return {way.name: count(way, *lengths, source=suspending) for way in ways}


@proof(
    claim="Behind the middleware an event costs uvicorn's process at most 1.4 times the CPU that it costs unwrapped in "
    "report mode, and 2.5 times in guard mode.",
    minutes=9,
)
def middleware_per_token(run: Run) -> Result:
    rows, shown = [], True
    for http, loop in STACKS:
        for mode, most in MOST.items():
            run.say(f"uvicorn with {http} and {loop}, {mode}")
            with served(mode, http, loop, __name__) as ours, served("unwrapped", http, loop, __name__) as theirs:
                mine, other = Served(ours), Served(theirs)
                found = ratio(mine, other, pairs=PAIRS, say=run.say)
            shown = shown and found.median <= most
            spread = f"{found.low:.3f} to {found.high:.3f}"
            row = (f"{http}, {loop}", mode, found.subject, found.reference, found.median, spread, most)
            rows.append((*row, mine.more[0], other.more[0]))
    costs = counted()
    bare = costs["unwrapped"].bytecodes
    per_event = [(name, cost.bytecodes, cost.calls, cost.bytecodes / bare) for name, cost in costs.items()]
    columns = ("uvicorn with", "mode", "µs an event", "µs unwrapped", "ratio", "of the pairs", "at most")
    return Result(
        shown,
        [
            Table((*columns, "bytes an event", "bytes unwrapped"), rows, title="CPU of the server"),
            Table(("way", "bytecodes an event", "calls", "ratio"), per_event, title="Without a server"),
        ],
        [f"{READERS} streams at {RATE} events a second, {TOKENS} events each."],
        ["uvicorn", "starlette", "h11", "httptools", "uvloop"],
    )
