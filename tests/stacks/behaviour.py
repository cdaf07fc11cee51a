"""What a server does with a guarded answer, measured one question at a time. The tests' and the proof's.

disconnect      when the application is told that its reader left, and what the source made after that
back_pressure   how much `send` takes for a reader that does not read
head            what HEAD starts and answers
shutdown        what SIGTERM does to an open stream
abort_lines     what the server itself prints when a stream of ours is aborted
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import attrs
import httpx

from tests.adapters.servers import DEADLINE
from tests.stacks.connections import Http2, connected
from tests.stacks.processes import Process

__all__ = [
    "BLOCKED",
    "MODES",
    "Left",
    "Shutdown",
    "abort_lines",
    "back_pressure",
    "books",
    "disconnect",
    "eventually",
    "head",
    "shutdown",
]

BLOCKED: Final = "blocked on a write"
MODES: Final = {
    "idle": "count=20&silent=1",
    "producing": "pace=0.001",
    "flat out": "",
    BLOCKED: f"count=1024&silent=1&size={64 * 1024}",
}
MEGABYTE: Final = 1024 * 1024
_ASKED: Final = 64 * MEGABYTE  # bytes of the stream that nobody reads: more than any buffer on the way should take
_WAITS: Final = 0.5  # seconds after which a source that made nothing more waits for its reader
_LABELS = itertools.count()


@contextmanager
def _client(process: Process, seconds: float = DEADLINE) -> Iterator[httpx.Client]:
    with httpx.Client(http1=not process.http2, http2=process.http2, base_url=process.url, timeout=seconds) as client:
        yield client


def books(process: Process, label: str) -> list[dict[str, Any]]:
    """The books of the streams with this label; see `tests.stacks.sources.Books`."""
    with _client(process) as client:
        found: list[dict[str, Any]] = client.get(f"/counters/{label}").json()
        return found


def eventually(
    process: Process, label: str, check: Callable[[list[dict[str, Any]]], bool], seconds: float = DEADLINE
) -> list[dict[str, Any]]:
    """Ask for the books until `check` holds, or for so long; what they say then."""
    until = time.monotonic() + seconds
    while not check(found := books(process, label)) and time.monotonic() < until:
        time.sleep(0.02)
    return found


def _label(process: Process) -> str:
    return f"{process.stack}-{next(_LABELS)}"


def _over(found: list[dict[str, Any]]) -> bool:
    return bool(found) and all(one["status"] is not None and one["closed"] for one in found)


@attrs.frozen
class Left:
    """A stream whose reader left. `late` is the number of tokens made after the application was told of it."""

    waited: bool
    told: bool
    late: int
    closed: int
    elsewhere: int
    status: str | None

    @property
    def right(self) -> bool:
        """Whether the source stopped within one token, was closed once and where it was driven."""
        return self.told and self.late <= 1 and self.closed == 1 and not self.elsewhere and self.status == "gone"


def disconnect(
    process: Process, kind: str, mode: str, *, more: str = "", reset: bool = False, seconds: float = DEADLINE
) -> Left:
    """Leave a stream, by closing the connection, or by resetting the stream of HTTP/2. `more` is asked behind what the
    mode asks, and stands for it."""
    label = _label(process)
    with connected(process, reading=mode != BLOCKED) as reader:
        reader.get(f"/stream/{label}/{kind}?{MODES[mode]}{more}")
        waited = False
        if mode == BLOCKED:
            reader.until(b"xxx")
            waited = _waits(process, label) is not None
        else:
            reader.until(b"t19 ")
        if reset:
            assert isinstance(reader, Http2)
            reader.reset()
            found = eventually(process, label, _over, seconds)
    if not reset:
        found = eventually(process, label, _over, seconds)
    (one,) = found
    told = one["made_at_disconnect"]
    late = one["made"] - told if told is not None else 0
    return Left(waited, told is not None, late, one["closed"], one["elsewhere"], one["status"])


def _waits(process: Process, label: str) -> int | None:
    """The bytes that were taken of a stream that waits for its reader: its source makes no more. None if all were."""
    made, since = -1, 0.0

    def settled(found: list[dict[str, Any]]) -> bool:
        nonlocal made, since
        one = found[0]
        if one["made"] != made:
            made, since = one["made"], time.monotonic()
        return one["taken"] >= _ASKED or time.monotonic() - since > _WAITS

    (one,) = eventually(process, label, settled)
    return one["taken"] if one["taken"] < _ASKED else None


def back_pressure(process: Process, kind: str = "async-generator") -> int | None:
    """The bytes that are taken of a stream that nobody reads before its source waits; None if it never does."""
    label = _label(process)
    with connected(process, reading=False) as reader:
        reader.get(f"/stream/{label}/{kind}?{MODES[BLOCKED]}")
        reader.until(b"xxx")
        return _waits(process, label)


def head(process: Process) -> tuple[int, int, int]:
    """HEAD of a stream: the status, the bytes of the body, the items that the source made."""
    label = _label(process)
    with _client(process) as client:
        answer = client.head(f"/stream/{label}/async-generator?count=3")
        return answer.status_code, len(answer.content), sum(one["made"] for one in books(process, label))


@attrs.frozen
class Shutdown:
    """What an open stream and its server did after SIGTERM: `status` of the terminal that the reader got (None:
    it got none), `end` of the answer as `Reader.end` has it, and the seconds until the process ended (None: it
    did not in the time that was given)."""

    status: str | None
    end: str | None
    seconds: float | None


def shutdown(process: Process, seconds: float) -> Shutdown:
    """Stop the server while a reader reads a stream that does not end by itself. Ends the process."""
    with connected(process) as reader:
        reader.get(f"/stream/{_label(process)}/async-generator?pace=0.02")
        reader.until(b"t3 ")
        start = time.monotonic()
        process.terminate()
        body = reader.rest(seconds)
        code = process.wait(max(0.1, seconds - (time.monotonic() - start)))
        took = None if code is None else time.monotonic() - start
        statuses = re.findall(rb"event: end\nid: \S+\.([a-z]+)\n", body)
        return Shutdown(statuses[-1].decode() if statuses else None, reader.end, took)


def abort_lines(process: Process, ask: Callable[[], object]) -> list[str]:
    """The lines that come into the log when `ask` has a stream end badly, streamguard's own line left out. It is
    asked twice: what is said once a process is no part of it."""
    ask()
    time.sleep(_WAITS)
    before = len(process.log())
    ask()
    time.sleep(_WAITS)  # a server's line comes after ours, if it comes
    lines = process.log()[before:].splitlines()
    return [line for line in lines if line.strip() and not re.search(r"\bstream \S+ of \S+ \S+ ended as ", line)]
