"""A log in Redis: what it costs beside script calls pipelined by hand, and how late it makes a token elsewhere.

By hand is what one would write without it, with redis-py's own pipeline: a script that looks at the epoch and the
tail, adds the frames to a stream, moves the tail and publishes it; as many calls in a round trip as the log's batches
had. The log does the same for as many callers, who await each append, and keeps leases, expiry and each stream's bound.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import redis.asyncio

from streamguard.core.cursor import Cursor, cursor_zero, new_sid
from streamguard.core.frame import Frame
from streamguard.log.base import Lease, StreamInfo
from streamguard.log.redis import RedisLog
from streamguard.log.redis_lanes import Lane
from streamguard.testing.log_case import framed
from tests.log.redis_server import RedisServer, redis_server
from tests.modules import ROOT
from tests.proofs.measure import ratio
from tests.proofs.registry import Result, Run, Table, proof

__all__ = ["redis_against_script_calls", "redis_between_processes"]

STREAMS: Final = 200
FRAMES: Final = 19_200  # of all streams together
TOGETHER: Final = (1, 4, 16)  # frames of one append
MOST: Final = 1.6
TTL: Final = 600.0
DATA: Final = b'"token "'
LATE: Final = (5.0, 25.0)  # ms: p50, p99

BY_HAND: Final = """
local found = redis.call('HMGET', KEYS[1], 'epoch', 'tail')
if found[1] ~= ARGV[1] then return redis.error_reply('another epoch') end
if found[2] ~= ARGV[2] then return redis.error_reply('another tail') end
for index = 4, #ARGV, 2 do
  redis.call('XADD', KEYS[2], 'NOMKSTREAM', ARGV[index], 'f', ARGV[index + 1])
end
redis.call('HSET', KEYS[1], 'tail', ARGV[3])
redis.call('PUBLISH', KEYS[2], ARGV[3])
return 1
"""


@contextlib.contextmanager
def _server() -> Iterator[RedisServer]:
    with tempfile.TemporaryDirectory(prefix="streamguard-") as folder, redis_server(Path(folder), tcp=True) as server:
        yield server


def _used(server: RedisServer) -> float:
    """CPU seconds of the server, so far."""
    with contextlib.closing(server.client()) as client:
        found: Any = client.info("cpu")
        return float(found["used_cpu_sys"] + found["used_cpu_user"])


async def _ours(url: str, together: int, sizes: list[float]) -> float:
    """CPU seconds of this process; how many appends a round trip had is noted in `sizes`."""
    log = RedisLog(url)
    each = FRAMES // STREAMS
    leases = [await log.create(StreamInfo(new_sid()), TTL) for _ in range(STREAMS)]
    frames = [framed(cursor_zero(lease.sid), *[DATA] * each) for lease in leases]
    batches = 0
    take = Lane._take

    def counted(self: Lane) -> Any:
        nonlocal batches
        found = take(self)
        batches += bool(found)
        return found

    async def one(lease: Lease, frames: list[Frame]) -> None:
        tail = cursor_zero(lease.sid)
        for at in range(0, each, together):
            tail = await log.append(lease, tail, frames[at : at + together])

    Lane._take = counted  # type: ignore[method-assign]
    try:
        start = time.process_time()
        await asyncio.gather(*map(one, leases, frames))
        seconds = time.process_time() - start
    finally:
        Lane._take = take  # type: ignore[method-assign]
        await log.aclose()
    sizes.append(FRAMES / together / batches)
    return seconds


async def _by_hand(url: str, together: int, size: int) -> float:
    """The same, with `size` calls in a round trip."""
    client: Any = redis.asyncio.Redis.from_url(url, protocol=2)
    sha = await client.script_load(BY_HAND)
    sids = [new_sid() for _ in range(STREAMS)]
    for sid in sids:
        await client.hset(f"{{{sid}}}:meta", mapping={"epoch": "1", "tail": "0"})
        await client.xadd(f"{{{sid}}}:frames", {"f": ""}, id="0-1")
    calls = []
    for at in range(0, FRAMES // STREAMS, together):
        entries: list[Any] = []
        for seq in range(at + 1, at + 1 + together):
            entries += [f"{seq}-1", b"%d.%d.12345678 %b" % (seq, seq * len(DATA), DATA)]
        calls += [(sha, 2, f"{{{sid}}}:meta", f"{{{sid}}}:frames", 1, at, at + together, *entries) for sid in sids]
    start = time.process_time()
    for at in range(0, len(calls), size):
        pipeline = client.pipeline(transaction=False)
        for call in calls[at : at + size]:
            pipeline.evalsha(*call)
        await pipeline.execute()
    seconds = time.process_time() - start
    await client.aclose()
    return seconds


@proof(
    claim=f"RedisLog costs at most {MOST:g} times what as many pipelined script calls cost, in round trips of the same "
    "size: this process, and this process and Redis together.",
    minutes=3,
)
def redis_against_script_calls(run: Run) -> Result:
    columns = (
        "frames an append", "appends a round trip", "CPU of", "µs a frame", "µs by hand", "ratio", "of the pairs",
        "at most",
    )  # fmt: skip
    rows: list[tuple[object, ...]] = []
    shown = True
    with _server() as server:
        for together in TOGETHER:
            for whose in ("this process", "both"):
                run.say(f"{together} frames an append, {whose}")
                sizes: list[float] = []

                def cost(work: Callable[[], Any], whose: str = whose) -> float:
                    with contextlib.closing(server.client()) as client:
                        client.flushall()
                    before = _used(server)
                    seconds: float = asyncio.run(work())
                    if whose == "both":
                        seconds += _used(server) - before
                    return seconds / FRAMES * 1e6

                found = ratio(
                    lambda: cost(lambda: _ours(server.url, together, sizes)),  # noqa: B023  # called within the turn
                    lambda: cost(lambda: _by_hand(server.url, together, round(sizes[-1]))),  # noqa: B023
                    pairs=7, attempts=10, say=run.say,
                )  # fmt: skip
                shown = shown and found.median <= MOST
                spread = f"{found.low:.2f} to {found.high:.2f}"
                size = round(statistics.median(sizes))
                rows.append((together, size, whose, found.subject, found.reference, found.median, spread, MOST))
    return Result(
        shown,
        [Table(columns, rows)],
        [
            f"{STREAMS} streams append as fast as they can, each awaiting each. By hand, nobody awaits anything, and "
            "nothing expires, is bounded or can be taken over.",
        ],
        ["redis"],
    )


# ---- how late a token is --------------------------------------------------------------------------


async def _from_elsewhere(url: str, count: int, pause: float) -> list[float]:
    """ms from before the append of each frame, in another process, until its reader here has it."""
    log = RedisLog(url)
    command = [sys.executable, "-m", "tests.log.redis_child", url, "timed", str(count), str(pause)]
    child = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=subprocess.PIPE)
    assert child.stdout is not None
    after = cursor_zero((await child.stdout.readline()).decode().split()[0])
    late: list[float] = []
    while after.status is None:
        await log.wait(after, 30.0)
        for frame in await log.read(after):
            late.append((time.monotonic() - float(frame.data)) * 1e3)
            after = Cursor(after.sid, frame.seq, frame.offset, frame.crc, frame.status)
    await child.wait()
    await log.aclose()
    return sorted(late)


BY_HAND_CHILD: Final = """
import asyncio, sys, time
import redis.asyncio

async def main(url, count, pause):
    client = redis.asyncio.Redis.from_url(url, protocol=2)
    for _ in range(int(count)):
        await asyncio.sleep(float(pause))
        await client.publish("by hand", b"%.6f" % time.monotonic())
    await client.aclose()

asyncio.run(main(*sys.argv[1:]))
"""


async def _from_elsewhere_by_hand(url: str, count: int, pause: float) -> list[float]:
    """The same for a message that is published, and one command once it is there: what the machine itself needs."""
    client: Any = redis.asyncio.Redis.from_url(url, protocol=2)
    hears = client.pubsub()
    await hears.subscribe("by hand")
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", BY_HAND_CHILD, url, str(count), str(pause))
    late: list[float] = []
    async for message in hears.listen():
        if message["type"] == "message":
            await client.ping()
            late.append((time.monotonic() - float(message["data"])) * 1e3)
            if len(late) == count:
                break
    await child.wait()
    await hears.aclose()
    await client.aclose()
    return sorted(late)


async def _both(url: str, count: int, pause: float) -> list[tuple[float, float]]:
    """p50 and p99 of both, at the same time: whatever slows the machine slows both."""
    return [_percentiles(late) for late in await asyncio.gather(
        _from_elsewhere(url, count, pause), _from_elsewhere_by_hand(url, count, pause)
    )]  # fmt: skip


def _percentiles(late: list[float]) -> tuple[float, float]:
    p50, p99 = (late[min(len(late) - 1, int(len(late) * part))] for part in (0.5, 0.99))
    return p50, p99


@proof(claim="A frame reaches a reader in another process within 5 ms (p50) and 25 ms (p99).", minutes=5)
def redis_between_processes(run: Run) -> Result:
    rows: list[tuple[object, ...]] = []
    shown = True
    with _server() as server:
        for count, pause in ((500, 0.02), (30, 0.5)):
            for _ in range(5):
                ours, by_hand = asyncio.run(_both(server.url, count, pause))
                run.say(f"every {pause * 1e3:g} ms: p50 {ours[0]:.2f} ms, p99 {ours[1]:.2f} ms")
                if by_hand[0] <= LATE[0] / 2 and by_hand[1] <= LATE[1] / 2:
                    break
                run.say(f"too noisy: by hand p50 {by_hand[0]:.2f} ms, p99 {by_hand[1]:.2f} ms; again")
            shown = shown and ours[0] <= LATE[0] and ours[1] <= LATE[1]
            rows.append((count, pause * 1e3, *ours, *by_hand))
    columns = ("frames", "one every so many ms", "p50, ms", "p99, ms", "by hand: p50, ms", "p99, ms ")
    return Result(
        shown,
        [Table(columns, rows), Table(("p50, at most, ms", "p99, at most, ms"), [LATE])],
        [
            "From before the append in one process until the read in another has answered. By hand: from before a "
            "message is published in one process until another that has heard it has done one command. Repeated while "
            "that alone needs more than half of what is allowed.",
        ],
        ["redis"],
    )
