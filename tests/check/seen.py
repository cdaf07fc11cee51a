"""Answers as they could have been seen, without a socket: pieces with their times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streamguard.check.evidence import Evidence
from streamguard.check.observation import Observation
from streamguard.check.request import Request
from tests.check.faulty import DONE, chunk

__all__ = ["END", "SSE", "evidence", "paced", "seen"]

SSE = {"content-type": "text/event-stream", "transfer-encoding": "chunked"}
END = (chunk(reason="stop") + DONE).encode()


def seen(
    *pieces: tuple[float, bytes],
    head: float | None = 0.01,
    end: float | None = None,
    status: int = 200,
    version: str = "HTTP/1.1",
    headers: dict[str, str] = SSE,
    clean: bool = True,
    **over: Any,
) -> Observation:
    """An answer that began at 100 on the clock. `end` is just behind the last piece, if nothing is said."""
    run = Observation(100.0)
    if head is not None:
        run.opened(100.0 + head, status, version, headers, "gzip, deflate")
    for at, piece in pieces:
        run.fed(100.0 + at, piece)
    last = pieces[-1][0] if pieces else head or 0.0
    run.over(100.0 + (last + 0.001 if end is None else end), clean=clean, **over)
    return run


def paced(count: int = 24, pace: float = 0.05, ending: bytes = END, start: float = 0.05) -> list[tuple[float, bytes]]:
    """Tokens that come one by one."""
    pieces = [(start + number * pace, chunk(f"t{number} ").encode()) for number in range(count)]
    return [*pieces, (start + count * pace, ending)]


def evidence(*runs: Observation, headers: Sequence[tuple[str, str]] = (), **more: Any) -> Evidence:
    found = Evidence(Request("GET", "http://host/chat", tuple(headers)), list(runs), untried="nothing names one")
    for name, value in more.items():
        setattr(found, name, value)
    return found
