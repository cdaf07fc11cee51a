"""A process that appends to a log in a file, for the tests that kill it, stop it, or read beside it.

    python -m tests.log.sqlite_child FILE told         one stream; a frame for each line of its input
    python -m tests.log.sqlite_child FILE many COUNT   so many streams, as fast as it can, until it is killed
    python -m tests.log.sqlite_child FILE timed COUNT PAUSE

Prints what was acknowledged, at once: a sid and the number of its last frame. `told` answers each line with that, or
with the name of the error. `timed` makes one stream whose frames hold the time of their append (monotonic, the same
clock in all processes), and ends it.
"""

from __future__ import annotations

import asyncio
import sys
import time

from streamguard.core.cursor import Cursor, cursor_zero, new_sid
from streamguard.log.base import LogError, StreamInfo
from streamguard.log.sqlite import SQLiteLog
from streamguard.testing.log_case import framed

TTL = 0.5
TOLD = 1.5  # of one that is asked for more behind its end: a busy machine has to look at its lease before the next


def say(*words: object) -> None:
    print(*words, flush=True)


def text(sid: str, number: int) -> bytes:
    """What frame `number` of a stream holds, so that a reader knows what must be there."""
    return f"<{sid}:{number}>".encode() * (1 + number % 7)


async def told(log: SQLiteLog) -> None:
    lease = await log.create(StreamInfo(new_sid()), TOLD)
    tail = cursor_zero(lease.sid)
    say(lease.sid, 0)
    while await asyncio.to_thread(sys.stdin.readline):
        try:
            tail = await log.append(lease, tail, framed(tail, text(lease.sid, tail.seq + 1)))
            say(lease.sid, tail.seq)
        except LogError as exc:
            say(lease.sid, type(exc).__name__)
    await log.aclose()


async def many(log: SQLiteLog, count: int) -> None:
    async def one() -> None:
        lease = await log.create(StreamInfo(new_sid()), TTL)
        tail = cursor_zero(lease.sid)
        say(lease.sid, 0)
        while True:
            pieces = [text(lease.sid, tail.seq + 1 + more) for more in range(1 + tail.seq % 3)]
            tail = await log.append(lease, tail, framed(tail, *pieces), checkpoint=b"%d" % (tail.seq + len(pieces)))
            say(lease.sid, tail.seq)

    await asyncio.gather(*(one() for _ in range(count)))


async def timed(log: SQLiteLog, count: int, pause: float) -> None:
    lease = await log.create(StreamInfo(new_sid()), 60.0)
    tail: Cursor = cursor_zero(lease.sid)
    say(lease.sid, 0)
    for number in range(count):
        await asyncio.sleep(pause)
        status = "complete" if number == count - 1 else None
        tail = await log.append(lease, tail, framed(tail, b"%.6f" % time.monotonic(), status=status))
    await log.aclose()


if __name__ == "__main__":
    opened = SQLiteLog(sys.argv[1])
    if sys.argv[2] == "told":
        asyncio.run(told(opened))
    elif sys.argv[2] == "many":
        asyncio.run(many(opened, int(sys.argv[3])))
    else:
        asyncio.run(timed(opened, int(sys.argv[3]), float(sys.argv[4])))
