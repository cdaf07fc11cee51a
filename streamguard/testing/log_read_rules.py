"""The rules of a log about its readers: reading and waiting, L6, and what is trimmed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import anyio
import anyio.lowlevel

from streamguard.core.cursor import Cursor, cursor_zero, new_sid
from streamguard.log.base import PAGE, CursorMisfit, CursorTrimmed, LogLost, Retention, UnknownStream
from streamguard.testing.log_case import LONG, SHORT, LogCase, Rule, at_end, framed

__all__ = ["READ_RULES"]


async def _pages(case: LogCase) -> None:
    lease, zero = await case.start()
    stored = framed(zero, *(b"%d" % number for number in range(PAGE + 88)))
    tail = await case.log.append(lease, zero, stored)
    case.same(await case.other.read(zero), stored[:PAGE], "the first page")
    for limit in (1, 7, PAGE, 10 * PAGE):
        after = at_end(zero, stored[:580])
        case.same(await case.other.read(after, limit=limit), stored[580 : 580 + limit], f"read(limit={limit})")
    case.same(await case.read_on(zero, 97), stored, "all pages together")
    for index in (0, 1, 300, PAGE, len(stored) - 1, len(stored)):
        after = at_end(zero, stored[:index])
        case.same(await case.other.read(after), stored[index : index + PAGE], f"what is read behind frame {index}")
    case.same(await case.other.read(tail), [], "what is read at the tail")


async def _exact(case: LogCase) -> None:
    lease, zero = await case.start()
    stored = []
    tail = zero
    for name, data, status, extra in (
        (None, b"", None, None),
        (None, b'"text"', None, None),
        ("block", b'{"type": "image"}', None, b"their-id"),
        (None, b"", None, b""),
        ("content_block_delta", b"\x00\xff\r\n\n\x80", None, None),
        (None, bytes(range(256)) * 4096, None, None),
        ("n" * 255, "你好 🙂".encode(), None, "é".encode()),
        ("end", b"{}", "complete", b"\xff\x00 summary"),
    ):
        frames = framed(tail, data, name=name, status=status, extra=extra)
        tail = await case.log.append(lease, tail, frames)
        stored += frames
    found = await case.read_on(zero)
    case.same(len(found), len(stored), "how many frames are read")
    for got, put in zip(found, stored, strict=True):
        for part in ("seq", "offset", "crc", "name", "status", "extra", "data"):
            case.same(getattr(got, part), getattr(put, part), f"`{part}` of frame {put.seq}, as it is read")


async def _misfit(case: LogCase) -> None:
    lease, zero = await case.start()
    stored = framed(zero, b"a", b"bb", b"", b"dddd")
    tail = await case.log.append(lease, zero, stored)
    for index in range(5):
        at = at_end(zero, stored[:index])
        for wrong in (at._replace(crc=at.crc ^ 1), at._replace(offset=at.offset + 1)):
            misfit = await case.refused(CursorMisfit, case.other.read(wrong), f"read at {wrong} instead of {at}")
            case.same(misfit.tail, tail, "CursorMisfit.tail")
            case.same(await case.other.wait(wrong, LONG), True, "what wait answers where read raises CursorMisfit")
        case.same(await case.other.read(at._replace(status="complete")), stored[index:], "read behind a status")
    strange = cursor_zero(new_sid())
    await case.refused(UnknownStream, case.other.read(strange), "read of a stream that never was")
    case.same(await case.other.wait(strange, LONG), True, "what wait answers for a stream that never was")


async def _lost(case: LogCase) -> None:
    lease, zero = await case.start()
    stored = framed(zero, b"a", b"b")
    for count in (0, 2):
        tail = zero if not count else await case.log.append(lease, zero, stored)
        for ahead in (1, 2, 1000):
            beyond = Cursor(zero.sid, tail.seq + ahead, tail.offset + ahead, 7)
            lost = await case.refused(LogLost, case.other.read(beyond), f"read {ahead} beyond a tail at {count}")
            case.same(lost.tail, tail, "LogLost.tail")
            case.same(await case.other.wait(beyond, LONG), True, "what wait answers for a cursor beyond the tail")
    end = await case.log.append(lease, tail, framed(tail, b"", status="complete"))
    await case.refused(LogLost, case.other.read(end._replace(seq=end.seq + 1)), "read beyond a terminal")


async def _many(case: LogCase) -> None:
    """Many streams at once, each written and read at the same time."""
    told: dict[str, int] = {}

    async def write(index: int) -> None:
        lease, zero = await case.start()
        tasks.start_soon(read, zero, index)
        tail = zero
        for number in range(12):
            last = number == 11
            frames = framed(tail, b"%d of %d" % (number, index), status="complete" if last else None)
            tail = await case.log.append(lease, tail, frames)
            if number % 4 == index % 4:
                await anyio.lowlevel.checkpoint()

    async def read(zero: Cursor, index: int) -> None:
        after = zero
        texts: list[bytes] = []
        while after.status is None and len(texts) <= 12:
            page = await case.other.read(after)
            texts += [frame.data for frame in page]
            after = at_end(after, page)
            if not page:
                await case.other.wait(after, LONG)
                await anyio.lowlevel.checkpoint()  # else one that never waits would be asked for ever
        case.same(texts, [b"%d of %d" % (number, index) for number in range(12)], "what a reader got of one stream")
        told[zero.sid] = index

    async with anyio.create_task_group() as tasks:
        for index in range(24):
            tasks.start_soon(write, index)
    case.same(sorted(told.values()), list(range(24)), "the streams that were read to their ends")


async def _trimmed(case: LogCase) -> None:
    limit = 64 * 1024
    await case.open(Retention(max_bytes=limit))
    lease, zero = await case.start()
    stored = []
    tail = zero
    for number in range(48):
        frames = framed(tail, b"%4d" % number * 1024)
        tail = await case.log.append(lease, tail, frames)
        stored += frames
    await _kept(case, zero, tail, limit, "of a running stream")
    tail = await case.log.append(lease, tail, framed(tail, b"x" * 4096, b"", status="complete"))
    first = await _kept(case, zero, tail, limit, "of a sealed stream")
    at = at_end(zero, stored[: first.seq])
    case.same(first, at, "`first`: the position behind the last frame that is not kept")


async def _kept(case: LogCase, zero: Cursor, tail: Cursor, limit: int, what: str) -> Cursor:
    state = await case.other.state(zero.sid)
    case.same(state.tail, tail, f"the tail {what}, once it was trimmed")
    case.holds(state.first.seq > 0, f"nothing {what} was trimmed above {limit} bytes")
    for old in (zero, zero._replace(crc=1), Cursor(zero.sid, state.first.seq - 1, 1, 1)):
        trimmed = await case.refused(CursorTrimmed, case.other.read(old), f"read at {old.seq}, where it was trimmed,")
        case.same(trimmed.first, state.first, "CursorTrimmed.first")
        case.same(await case.other.wait(old, LONG), True, "what wait answers for a position that was trimmed")
    frames = await case.read_on(state.first)
    case.same([frame.seq for frame in frames], list(range(state.first.seq + 1, tail.seq + 1)), f"what is kept {what}")
    size = sum(len(frame.data) for frame in frames)
    case.holds(limit // 2 < size <= limit, f"of {limit} bytes that may be kept {what}, {size} are")
    return state.first


async def _too_large(case: LogCase) -> None:
    """A frame above the limit is not lost: who waits for it can read it."""
    await case.open(Retention(max_bytes=16 * 1024))
    lease, zero = await case.start()
    tail = await case.log.append(lease, zero, framed(zero, b"small"))
    large = framed(tail, b"x" * 40_000)
    end = await case.log.append(lease, tail, large)
    case.same(await case.other.read(tail), large, "the last frame, which alone is above max_bytes")
    case.same(await case.log.append(lease, tail, large), end, "what append answers where it is repeated")


async def _waits(case: LogCase) -> None:
    lease, zero = await case.start()
    case.same(await case.other.wait(zero, 0), False, "wait(zero, 0) of an empty stream")
    case.same(await case.other.wait(zero, SHORT), False, "wait at the tail, once its timeout passed")
    tail = await case.log.append(lease, zero, framed(zero, b"a"))
    case.same(await case.other.wait(zero, LONG), True, "wait behind the tail")
    case.same(await case.other.wait(tail, SHORT), False, "wait at the tail, once its timeout passed")
    end = await case.log.append(lease, tail, framed(tail, b"", status="failed"))
    for after in (zero, tail, end, Cursor(*end[:4])):
        case.same(await case.other.wait(after, LONG), True, "wait, where the stream is sealed")
    await case.log.purge(sid=lease.sid)
    case.same(await case.other.wait(end, LONG), True, "wait, where the stream is gone")


async def _woken(case: LogCase) -> None:
    for what in ("an append", "the terminal", "a purge"):
        lease, tail = await case.started(b"a")
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "an append": partial(case.log.append, lease, tail, framed(tail, b"b")),
            "the terminal": partial(case.log.append, lease, tail, framed(tail, b"", status="complete")),
            "a purge": partial(case.log.purge, sid=lease.sid),
        }
        answers: list[bool] = []

        async def wait(tail: Cursor = tail, answers: list[bool] = answers) -> None:
            answers.append(await case.other.wait(tail, LONG))

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(wait)
            await case.settle()
            case.same(answers, [], f"what those who wait were told before {what}")
            await calls[what]()
        case.same(answers, [True] * 3, f"what three who waited were told by {what}")


async def _left(case: LogCase) -> None:
    """One of several who wait is cancelled: the others are woken, and the next ones."""
    lease, tail = await case.started(b"a")
    answers: list[bool] = []

    async def wait(scope: anyio.CancelScope, after: Cursor) -> None:
        with scope:
            answers.append(await case.other.wait(after, LONG))

    for _ in range(2):
        answers.clear()
        before = tail
        scopes = [anyio.CancelScope() for _ in range(3)]
        async with anyio.create_task_group() as tasks:
            for scope in scopes:
                tasks.start_soon(wait, scope, before)
            await case.settle()
            scopes[1].cancel()
            await case.settle()
            case.same(answers, [], "what those who wait were told when another one was cancelled")
            tail = await case.log.append(lease, before, framed(before, b"b"))
        case.same(answers, [True, True], "what two were told who waited beside one that was cancelled")
        case.same(await case.other.wait(before, LONG), True, "wait behind the tail, after a cancelled one")


async def _quiet(case: LogCase) -> None:
    """What brings no frame wakes nobody: a reader that is woken for nothing asks again, for ever."""
    lease, tail = await case.started(b"a")
    other, there = await case.started(b"a")
    answers: list[bool] = []

    async def wait() -> None:
        answers.append(await case.other.wait(tail, 4 * SHORT))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await case.settle()
        await case.log.append(lease, tail, [], checkpoint=b"c")
        await case.log.renew(lease)
        await case.log.signal(lease.sid, "grant")
        await case.log.append(other, there, framed(there, b"b"))
    case.same(answers, [False], "what wait answers where no frame came, but other things did")


READ_RULES: Final[dict[str, Rule]] = {
    "read: page for page, in order": _pages,
    "read: frames come back as they were appended": _exact,
    "read: a position fits in all its parts": _misfit,
    "L6: a cursor beyond the tail is lost": _lost,
    "L2: many streams at once, each whole and in order": _many,
    "trim: older frames go above max_bytes": _trimmed,
    "trim: the last frame stays": _too_large,
    "wait: for frames, the end, or the timeout": _waits,
    "wait: woken by whatever comes": _woken,
    "wait: one that is cancelled leaves the others": _left,
    "wait: not woken by what brings no frame": _quiet,
}
