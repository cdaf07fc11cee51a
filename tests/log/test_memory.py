"""MemoryLog: what is its own. The contract is in `test_contract`, the model in `test_machine`."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from streamguard.core.cursor import Cursor, cursor_zero, new_sid
from streamguard.core.frame import Frame, row_of, status_of
from streamguard.log.base import (
    MAX_SIGNALS,
    CursorMisfit,
    CursorTrimmed,
    Lease,
    LogLost,
    LogUnavailable,
    Retention,
    StreamExists,
    StreamInfo,
    UnknownStream,
    tail_of,
)
from streamguard.log.kept import FRAME_COST, cost
from streamguard.log.memory import MemoryLog
from streamguard.testing.log_case import framed
from tests.log.test_contract import Clock

pytestmark = pytest.mark.anyio

TTL = 10.0


async def start(log: MemoryLog, **fields: Any) -> tuple[Lease, Cursor]:
    sid = new_sid()
    return await log.create(StreamInfo(sid, **fields), TTL), cursor_zero(sid)


async def ended(log: MemoryLog, *data: bytes, status: str = "complete", **fields: Any) -> Cursor:
    lease, zero = await start(log, **fields)
    return await log.append(lease, zero, framed(zero, *data, b"", status=status))


def framed_at(after: Cursor, *data: bytes) -> Cursor:
    """The cursor behind these frames."""
    return tail_of(after, framed(after, *data))


async def kept(log: MemoryLog, *tails: Cursor) -> list[bool]:
    """Which of the streams are there."""
    found = []
    for tail in tails:
        try:
            await log.state(tail.sid)
            found.append(True)
        except UnknownStream:
            found.append(False)
    return found


# ---- bounds ---------------------------------------------------------------------------------------


async def test_sealed_streams_make_room_in_the_order_in_which_they_ended() -> None:
    log = MemoryLog(max_streams=3)
    lease, zero = await start(log)
    first = await ended(log, b"a")
    second = await log.append(lease, zero, framed(zero, b"", status="failed"))  # older, but it ended later
    running = await start(log)
    await start(log)
    assert await kept(log, first, second, running[1]) == [False, True, True]
    await start(log)
    assert await kept(log, first, second, running[1]) == [False, False, True]
    assert log.streams == 3


@pytest.mark.parametrize("bound", [{"max_streams": 4}, {"max_bytes": 4 * 30_000 - 1}], ids=["streams", "bytes"])
async def test_who_needs_room_pays_with_its_own_ended_streams_before_all_others(bound: dict[str, Any]) -> None:
    log = MemoryLog(**bound)
    anns = [await ended(log, b"x" * 30_000, principal="ann") for _ in range(2)]
    bobs = [await ended(log, b"x" * 30_000, principal="bob") for _ in range(5)]
    assert await kept(log, *anns) == [True, True]
    assert await kept(log, *bobs[:3], bobs[-1]) == [False, False, False, True]
    await ended(log, b"x" * 30_000, principal="eve")  # who has none: then the one that ended first
    assert await kept(log, *anns) == [False, True]
    await log.purge(principal="bob")
    await log.purge(principal="ann")
    await log.purge(principal="eve")
    assert (log.bytes, log.streams, log._sealed_of) == (0, 0, {})


async def test_running_streams_are_never_forgotten_for_a_new_one() -> None:
    log = MemoryLog(max_streams=2)
    streams = [await start(log), await start(log)]
    for _ in range(2):
        with pytest.raises(LogUnavailable, match="full: 2 streams are running"):
            await start(log)
    for lease, zero in streams:
        await log.append(lease, zero, framed(zero, b"a"))
    await log.purge(sid=streams[0][0].sid)
    await start(log)


async def test_a_taken_name_is_told_before_a_lack_of_room() -> None:
    log = MemoryLog(max_streams=1)
    await start(log, key="k")
    with pytest.raises(StreamExists):
        await start(log, key="k")


async def test_bytes_are_made_room_for_by_sealed_streams_then_new_ones_are_refused_and_running_ones_go_on() -> None:
    log = MemoryLog(max_bytes=100_000)
    first, second = await ended(log, b"x" * 30_000), await ended(log, b"x" * 30_000)
    lease, tail = await start(log)
    for number in range(8):
        tail = await log.append(lease, tail, framed(tail, b"x" * 20_000))
        # 60,000 sealed: the first goes when 60,000 stand beside it, the second 20,000 later
        assert await kept(log, first, second) == [number < 1, number < 3]
    assert len(await log.read(cursor_zero(lease.sid))) == 8
    with pytest.raises(LogUnavailable, match="full: running streams hold 16"):
        await start(log)
    await log.append(lease, tail, framed(tail, b"", status="complete"))
    await start(log)
    assert await kept(log, tail) == [False]


async def test_a_last_frame_is_not_trimmed_whatever_its_size() -> None:
    log = MemoryLog(Retention(max_bytes=1_000))
    lease, zero = await start(log)
    frames = framed(zero, b"x" * 2_000)
    await log.append(lease, zero, frames)
    assert await log.read(zero) == frames
    assert (await log.state(lease.sid)).first == zero


async def test_a_stream_that_just_ended_is_there_for_its_readers_whatever_its_size() -> None:
    log = MemoryLog(max_bytes=10_000)
    tail = await ended(log, b"x" * 20_000)
    assert len(await log.read(cursor_zero(tail.sid))) == 2
    later = await ended(log, b"y")
    assert await kept(log, tail, later) == [False, True]


async def test_the_bytes_of_all_streams_are_known_at_every_moment() -> None:
    log = MemoryLog(Retention(max_bytes=5_000), max_streams=3)
    held: dict[str, int] = {}
    for number in range(40):
        lease, tail = await start(log)
        for size in range(number % 7):
            tail = await log.append(lease, tail, framed(tail, b"x" * 300 * size, b"y", name="block", extra=b"12"))
        if number % 3:
            await log.append(lease, tail, framed(tail, b"", status="complete", extra=b"{}"))
        elif number % 2:
            await log.purge(sid=lease.sid)
        else:
            await log.append(lease, tail, framed(tail, b"", status="cancelled"))
        held = {sid: sum(map(cost, stream.rows)) for sid, stream in log._streams.items()}
        assert {sid: stream.bytes for sid, stream in log._streams.items()} == held
        assert log.bytes == sum(held.values())
        assert max(held.values(), default=0) <= 5_000
    assert held


async def test_a_frame_costs_what_python_needs_for_it() -> None:
    frame = Frame(1, 5, 7, b"12345", extra=b"678")
    assert cost(row_of(frame)) == FRAME_COST + 8
    assert cost(row_of(Frame(1, 0, 7, b""))) == FRAME_COST


async def test_trimming_leaves_room_so_that_not_every_append_trims() -> None:
    log = MemoryLog(Retention(max_bytes=100 * (FRAME_COST + 10)))
    lease, tail = await start(log)
    firsts = []
    for _ in range(200):
        tail = await log.append(lease, tail, framed(tail, b"0123456789"))
        firsts.append((await log.state(lease.sid)).first.seq)
    assert firsts[:100] == [0] * 100
    assert firsts[100] == 14  # to seven eighths: 87 of 101 are left
    assert len(set(firsts)) == 9


async def test_an_append_whose_frames_were_trimmed_by_itself_can_be_repeated() -> None:
    log = MemoryLog(Retention(max_bytes=2_000))
    lease, zero = await start(log)
    frames = framed(zero, *[b"x" * 500] * 6)
    tail = await log.append(lease, zero, frames)
    with pytest.raises(CursorTrimmed):
        await log.read(zero)
    assert await log.append(lease, zero, frames) == tail
    with pytest.raises(CursorMisfit):
        await log.append(lease, zero, framed(zero, *[b"y" * 500] * 6))
    assert (await log.state(lease.sid)).tail == tail


async def test_ages_are_retentions_and_sweep_forgets_some_at_a_time() -> None:
    clock = Clock()
    log = MemoryLog(Retention(after_end=60, unsealed=120), clock=clock)
    tails = [await ended(log, b"a") for _ in range(5)]
    lease, tail = await start(log)
    await log.release(lease)
    clock.advance(59.9)
    assert await log.sweep() == 0
    clock.advance(0.1)
    assert [await log.sweep(2) for _ in range(4)] == [2, 2, 1, 0]
    assert await kept(log, *tails, tail) == [False] * 5 + [True]
    clock.advance(60)
    assert await log.sweep(0) == 0
    assert await log.sweep() == 1
    assert (log.streams, log.bytes) == (0, 0)


async def test_a_stream_whose_lease_holds_or_that_is_appended_to_is_not_given_up() -> None:
    clock = Clock()
    log = MemoryLog(Retention(unsealed=5), clock=clock)
    lease, tail = await start(log)
    clock.advance(9)
    assert await log.sweep() == 0  # held for one second more
    tail = await log.append(lease, tail, framed(tail, b"a"))
    await log.release(lease)
    clock.advance(4)
    assert await log.sweep() == 0
    clock.advance(1)
    assert await log.sweep() == 1


async def test_signals_are_bounded_and_the_first_cancel_stays() -> None:
    log = MemoryLog()
    lease, _ = await start(log)
    for kind in ("grant", "cancel", "cancel"):
        await log.signal(lease.sid, kind)
    for _ in range(2 * MAX_SIGNALS):
        await log.signal(lease.sid, "read")
    signals = await log.signals(lease.sid, 0, 0)
    assert len(signals) == MAX_SIGNALS
    assert [signal.number for signal in signals[:2]] == [2, MAX_SIGNALS + 5]
    assert signals[-1].number == 2 * MAX_SIGNALS + 3


# ---- what is left behind --------------------------------------------------------------------------


async def test_nothing_is_left_of_streams_that_are_forgotten() -> None:
    log = MemoryLog()
    for number in range(50):
        await ended(log, b"text", name=f"chat {number % 3}", principal=f"p {number % 4}", key=f"key {number}")
    for number in range(4):
        await log.purge(principal=f"p {number}")
    emptied: list[Any] = [log._streams, log._sealed, log._keys, log._names, log._principals]
    assert [len(index) for index in emptied] == [0] * 5
    assert log.bytes == 0


async def test_a_purged_text_is_gone_from_memory() -> None:
    gone: list[bool] = []

    class Data(bytes):
        def __del__(self) -> None:
            gone.append(True)

    log = MemoryLog()
    lease, tail = await start(log)
    await log.append(lease, tail, framed(tail, Data(b"secret")))
    gc.collect()
    assert not gone
    await log.purge(sid=lease.sid)
    gc.collect()
    assert gone


async def test_who_waits_leaves_nothing_behind_woken_late_or_cancelled() -> None:
    log = MemoryLog()
    lease, tail = await start(log)
    stream = log._streams[lease.sid]

    async def wait() -> None:
        await log.wait(tail, 60)

    async def listen() -> None:
        await log.signals(lease.sid, 0, 60)

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(wait)
            tasks.start_soon(listen)
        await anyio.wait_all_tasks_blocked()
        assert (len(stream.readers), len(stream.listeners)) == (5, 5)
        tasks.cancel_scope.cancel()
    assert (stream.readers, stream.listeners) == ([], [])
    assert await log.wait(tail, 0.001) is False
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        await log.append(lease, tail, framed(tail, b"a"))
        await log.append(lease, tail_of(tail, framed(tail, b"a")), framed(tail_of(tail, framed(tail, b"a")), b"b"))
    assert (stream.readers, stream.listeners) == ([], [])


@pytest.mark.parametrize("timeout", [0.0, -1.0])
async def test_a_wait_without_time_answers_at_once(timeout: float) -> None:  # noqa: ASYNC109
    log = MemoryLog()
    lease, zero = await start(log)
    assert await log.wait(zero, timeout) is False
    assert await log.signals(lease.sid, 0, timeout) == []


async def test_a_wait_may_be_for_ever() -> None:
    log = MemoryLog()
    lease, zero = await start(log)

    async def wait() -> None:
        assert await log.wait(zero, float("inf"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        await log.append(lease, zero, framed(zero, b"a"))


async def test_an_append_lets_no_other_task_run() -> None:
    """The hot path: a producer that has text goes on, and its readers get all of it as one page."""
    log = MemoryLog()
    lease, zero = await start(log)
    pages = []

    async def read() -> None:
        await log.wait(zero, 60)
        pages.append(len(await log.read(zero)))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        tail = zero
        for _ in range(20):
            tail = await log.append(lease, tail, framed(tail, b"a"))
        assert pages == []
    assert pages == [20]


async def test_what_is_stored_is_nothing_to_the_garbage_collector() -> None:
    """Else each of its full runs looks at every frame of every stream."""
    log = MemoryLog()
    lease, zero = await start(log)
    tail = await log.append(lease, zero, framed(zero, b"a", b"b"))
    await log.append(lease, tail, framed(tail, b"", name="end", status="complete", extra=b"{}"))
    gc.collect()
    rows = log._streams[lease.sid].rows
    assert [len(row) for row in rows] == [4, 4, 7]
    assert not any(map(gc.is_tracked, rows))


# ---- who follows ----------------------------------------------------------------------------------


async def test_who_follows_gets_what_is_there_then_what_comes_and_nothing_twice() -> None:
    log = MemoryLog()
    lease, zero = await start(log)
    tail = await log.append(lease, zero, framed(zero, b"a", b"b"))
    follower = log.follow(framed_at(zero, b"a"))
    assert follower is not None
    assert [row[3] for row in await follower.next(60)] == [b"b"]
    assert await follower.next(0.001) == []
    pages: list[list[bytes]] = []

    async def read() -> None:
        pages.append([row[3] for row in await follower.next(60)])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        for piece in (b"c", b"d"):
            tail = await log.append(lease, tail, framed(tail, piece))
    assert pages == [[b"c", b"d"]]
    await log.append(lease, tail, framed(tail, b"", status="complete"))
    assert status_of((await follower.next(60))[0]) == "complete"
    assert await follower.next(60) == []  # at the end nothing is waited for


async def test_who_follows_is_told_what_became_of_its_place() -> None:
    log = MemoryLog(Retention(max_bytes=2_000))
    lease, zero = await start(log)
    for wrong, error in (
        (Cursor(lease.sid, 1, 1, 7), LogLost),
        (zero._replace(crc=7), CursorMisfit),
        (cursor_zero(new_sid()), UnknownStream),
    ):
        with pytest.raises(error):
            log.follow(wrong)
    slow, lost, gone = log.follow(zero), log.follow(zero), log.follow(zero)
    assert slow is not None and lost is not None and gone is not None  # noqa: PT018
    tail = await log.append(lease, zero, framed(zero, b"x" * 500, b"y"))
    assert len(await lost.next(0)) == 2
    tail = await log.append(lease, tail, framed(tail, *[b"x" * 500] * 6))
    with pytest.raises(CursorTrimmed):
        await slow.next(0)
    assert len(log._streams[lease.sid].rows) < 6
    stream = log._streams[lease.sid]
    stream.tail, stream.first, stream.rows[:] = zero, zero, []  # as a store that lost them
    with pytest.raises(LogLost):
        await lost.next(0)

    async def read() -> None:
        with pytest.raises(UnknownStream):
            await gone.next(60)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        await log.purge(sid=lease.sid)


async def test_a_log_that_reads_or_waits_in_its_own_way_is_not_followed() -> None:
    class Reads(MemoryLog):
        async def read(self, after: Cursor, *, limit: int = 512) -> list[Frame]:
            return []

    class Waits(MemoryLog):
        async def wait(self, after: Cursor, timeout: float) -> bool:  # noqa: ASYNC109
            return True

    for kind in (Reads, Waits):
        log = kind()
        _, zero = await start(log)
        assert log.follow(zero) is None


# ---- sleeping and waking --------------------------------------------------------------------------


async def test_a_sleep_ends_in_time_though_an_earlier_one_had_another_end() -> None:
    """A timer of an earlier sleep is moved when it goes off, and is brought forward where it would be late."""
    log = MemoryLog()
    lease, tail = await start(log)
    for seconds in (0.05, 60, 0.02, 0.05, 0.001):
        begun = anyio.current_time()
        if seconds == 60:  # woken, so that its timer stays
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(log.wait, tail, seconds)
                await anyio.wait_all_tasks_blocked()
                tail = await log.append(lease, tail, framed(tail, b"a"))
        else:
            assert await log.wait(tail, seconds) is False
            assert anyio.current_time() - begun >= seconds - 0.002


@pytest.mark.parametrize("imported", [False, True])
def test_a_sleeper_is_used_again_in_its_own_loop_and_in_no_other(
    imported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where trio was only imported, as httpcore does wherever it is installed: a timer for each sleep costs more
    than the token that it waits for."""
    if imported:
        pytest.importorskip("trio")
    else:
        monkeypatch.delitem(sys.modules, "trio", raising=False)
    log = MemoryLog()

    async def sleeps(lease: Lease, tail: Cursor) -> list[object]:
        stream = log._streams[lease.sid]
        spares: list[object] = []
        for _ in range(3):
            assert await log.wait(tail, 0.001) is False
            spares.append(stream.readers.spare)
        return spares

    async def first() -> tuple[Lease, Cursor]:
        return await start(log)

    lease, tail = asyncio.run(first())
    one, two = asyncio.run(sleeps(lease, tail)), asyncio.run(sleeps(lease, tail))
    assert len(set(map(id, one))) == len(set(map(id, two))) == 1
    assert one[0] is not two[0]


async def test_many_changes_wake_a_sleeper_once_and_each_its_own() -> None:
    log = MemoryLog()
    lease, zero = await start(log)
    stream = log._streams[lease.sid]
    woken: list[int] = []

    async def wait(number: int) -> None:
        assert await log.wait(zero, 60)
        woken.append(number)

    async with anyio.create_task_group() as tasks:
        for number in range(3):
            tasks.start_soon(wait, number)
        await anyio.wait_all_tasks_blocked()
        tail = await log.append(lease, zero, framed(zero, b"a"))
        assert stream.readers == []
        await log.append(lease, tail, framed(tail, b"b"))
    assert sorted(woken) == [0, 1, 2]


# ---- loops and arguments --------------------------------------------------------------------------


def test_one_loop_after_another_may_use_it() -> None:
    log = MemoryLog()
    lease, zero = anyio.run(start, log)

    async def left_waiting() -> None:
        task = asyncio.ensure_future(log.wait(zero, 60))
        await asyncio.sleep(0)
        assert not task.done()  # the loop ends, and cancels it

    asyncio.run(left_waiting())
    assert log._streams[lease.sid].readers == []

    async def append() -> None:
        await log.append(lease, zero, framed(zero, b"a"))
        assert await log.wait(zero, 60)

    anyio.run(append, backend="trio")


async def test_another_thread_is_refused_while_somebody_waits_and_changes_nothing() -> None:
    log = MemoryLog()
    lease, zero = await start(log)
    refused: list[str] = []

    def elsewhere() -> None:
        async def all_calls() -> None:
            for call in (
                log.append(lease, zero, framed(zero, b"a"), checkpoint=b"c"),
                log.signal(lease.sid, "cancel"),
                log.purge(sid=lease.sid),
                log.sweep(),
                log.wait(zero, 60),
                start(log),
            ):
                try:
                    await call
                except RuntimeError as exc:
                    refused.append(str(exc))

        asyncio.run(all_calls())

    async def wait() -> None:
        await log.wait(zero, 60)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        tasks.cancel_scope.cancel()
    assert len(refused) == 6
    assert "one event loop at a time" in refused[0]
    state = await log.state(lease.sid)
    assert (state.tail, state.checkpoint, state.cancelled, log.streams) == (zero, None, False, 1)


def test_trio_as_a_guest_of_asyncio_can_wait() -> None:
    trio = pytest.importorskip("trio")
    log = MemoryLog()

    async def inside() -> bool:
        lease, zero = await start(log)
        async with trio.open_nursery() as nursery:
            answers: list[bool] = []

            async def wait() -> None:
                answers.append(await log.wait(zero, 60))

            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            await log.append(lease, zero, framed(zero, b"a"))
        return answers == [True]

    async def host() -> bool:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        trio.lowlevel.start_guest_run(
            inside, run_sync_soon_threadsafe=loop.call_soon_threadsafe, done_callback=done.set_result
        )
        return bool((await done).unwrap())

    assert asyncio.run(host())


async def test_purge_of_nothing_named_is_refused_and_of_both_must_fit_both() -> None:
    log = MemoryLog()
    lease, zero = await start(log, principal="me")
    with pytest.raises(ValueError, match="forget everything"):
        await log.purge()
    assert await log.purge(sid=lease.sid, principal="you") == 0
    assert await log.purge(principal="") == 0
    assert await kept(log, zero) == [True]
    assert await log.purge(sid=lease.sid, principal="me") == 1


async def test_closing_keeps_the_streams() -> None:
    log = MemoryLog()
    tail = await ended(log, b"a")
    await log.aclose()
    assert await kept(log, tail) == [True]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"retention": 600}, TypeError),
        ({"max_streams": 0}, ValueError),
        ({"max_streams": 1.5}, TypeError),
        ({"max_bytes": -1}, ValueError),
        ({"clock": 5}, TypeError),
        ({"clock": lambda now: now}, TypeError),
    ],
)
def test_a_wrong_argument_is_refused_where_it_is_written(arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(arguments))):
        MemoryLog(**arguments)
