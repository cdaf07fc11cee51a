"""The rules of a log about what is appended: L1, L2, L5."""

from __future__ import annotations

from functools import partial
from typing import Final

from streamguard.core.cursor import Cursor, cursor_zero, new_sid
from streamguard.log.base import (
    Checkpointed,
    CursorMisfit,
    Lease,
    LeaseLost,
    LogError,
    StreamSealed,
    UnknownStream,
)
from streamguard.testing.log_case import LONG, LogCase, Rule, at_end, framed

__all__ = ["APPEND_RULES"]


async def _appended(case: LogCase) -> None:
    lease, zero = await case.start()
    stored = []
    tail = zero
    for data in ([b"one"], [b"two", b"three", b"four"], [b""]):
        frames = framed(tail, *data)
        tail = await case.log.append(lease, tail, frames)
        stored += frames
        case.same(tail, at_end(zero, stored), "what append answers")
        await case.stands(zero, stored, "after an append")
    frames = framed(tail, b"five")
    await case.log.append(lease, tail, frames)
    stored += frames
    frames.clear()
    await case.stands(zero, stored, "after the caller emptied the list that it appended")


async def _unknown(case: LogCase) -> None:
    info = case.info()
    zero, lease = cursor_zero(info.sid), Lease(info.sid, 1, LONG)
    await case.refused(UnknownStream, case.log.append(lease, zero, framed(zero, b"a")), "an append to no stream")
    await case.refused(UnknownStream, case.log.append(lease, zero, [], checkpoint=b"c"), "a checkpoint for no stream")
    await case.refused(UnknownStream, case.other.state(info.sid), "state, after an append to no stream")
    lease, tail = await case.started(b"a")
    await case.log.purge(sid=lease.sid)
    await case.refused(UnknownStream, case.log.append(lease, tail, framed(tail, b"b")), "an append after a purge")
    await case.refused(UnknownStream, case.other.state(lease.sid), "state, after an append to a purged stream")


async def _epoch(case: LogCase) -> None:
    lease, zero = await case.start()
    frames = framed(zero, b"a")
    tail = await case.log.append(lease, zero, frames)
    await case.log.release(lease)
    newer = await case.log.take_over(lease.sid, 1, LONG)
    for stale in (lease, Lease(lease.sid, 3, LONG), Lease(lease.sid, 0, LONG)):
        doing = f"an append with epoch {stale.epoch}, where the log's is 2,"
        lost = await case.refused(LeaseLost, case.log.append(stale, tail, framed(tail, b"b")), doing)
        case.same(lost.epoch, 2, "LeaseLost.epoch")
        await case.refused(LeaseLost, case.log.append(stale, zero, framed(zero, b"b")), doing + " behind the tail")
        await case.refused(LeaseLost, case.log.append(stale, zero, frames), doing + " of what is stored already")
        await case.refused(LeaseLost, case.log.append(stale, tail, [], checkpoint=b"c"), doing + " of a checkpoint")
    await case.stands(zero, frames, "after appends with another epoch")
    case.same((await case.other.state(lease.sid)).checkpoint, None, "the checkpoint, after LeaseLost")
    end = await case.log.append(newer, tail, framed(tail, b"", status="complete"))
    await case.refused(LeaseLost, case.log.append(lease, end, framed(end, b"b")), "a stale append to a sealed stream")


async def _tail(case: LogCase) -> None:
    lease, zero = await case.start()
    one, two = framed(zero, b"a"), framed(zero, b"a", b"b")
    middle = at_end(zero, one)
    tail = await case.log.append(lease, zero, two)
    ahead = at_end(tail, framed(tail, b"c"))
    foreign = cursor_zero(new_sid())._replace(seq=2, offset=2)
    for where, after in {
        "behind the tail": middle,
        "at zero": zero,
        "ahead of the tail": ahead,
        "at the tail with another checksum": tail._replace(crc=tail.crc ^ 1),
        "at the tail with another offset": tail._replace(offset=tail.offset + 1),
        "at the tail with another number": tail._replace(seq=tail.seq + 1),
        "at another stream's position": foreign,
    }.items():
        misfit = await case.refused(
            CursorMisfit, case.log.append(lease, after, framed(after, b"x"), checkpoint=b"c"), f"an append {where}"
        )
        case.same(misfit.tail, tail, "CursorMisfit.tail")
        await case.refused(CursorMisfit, case.log.append(lease, after, [], checkpoint=b"c"), f"a checkpoint {where}")
    await case.stands(zero, two, "after appends elsewhere than at the tail")
    case.same((await case.other.state(lease.sid)).checkpoint, None, "the checkpoint, after CursorMisfit")


async def _sealed(case: LogCase) -> None:
    for status in ("complete", "failed", "cancelled", "stalled"):
        lease, zero = await case.start()
        frames = framed(zero, b"last words", b"{}", status=status, extra=b"summary")
        tail = await case.log.append(lease, zero, frames)
        case.same(tail, at_end(zero, frames), "what the append of a terminal answers")
        await case.stands(zero, frames, f"in a stream that ended as {status!r}")
        case.same((await case.other.state(lease.sid)).sealed, True, "`sealed`, after the terminal")
        bare = Cursor(*tail[:4])
        for after in (tail, bare, zero, at_end(zero, frames[:1])):
            for more in (framed(after, b"x"), framed(after, b"x", status="complete"), []):
                sealed = await case.refused(
                    StreamSealed, case.log.append(lease, after, more, checkpoint=b"c"), "an append to a sealed stream"
                )
                case.same(sealed.tail, tail, "StreamSealed.tail")
        await case.stands(zero, frames, "after appends to a sealed stream")
        case.same(await case.other.read(tail), [], "read, behind the terminal")
        case.same(await case.other.read(bare), [], "read, behind the terminal, without its status")


async def _repeated(case: LogCase) -> None:
    lease, zero = await case.start()
    stored = framed(zero, b"a", b"b", b"c")
    tail = await case.log.append(lease, zero, stored, checkpoint=b"here")
    for count in (3, 2, 1, 3):
        after = at_end(zero, stored[:-count])
        again = await case.log.append(lease, after, stored[-count:], checkpoint=b"here")
        case.same(again, tail, f"what append answers where the last {count} frames are those already")
    await case.stands(zero, stored, "after repeated appends")
    case.same((await case.other.state(lease.sid)).checkpoint, Checkpointed(tail, b"here"), "the checkpoint then")
    end = framed(tail, b"d", b"{}", status="complete", extra=b"x")
    sealed = await case.log.append(lease, tail, end)
    case.same(await case.log.append(lease, tail, end), sealed, "what append answers to a repeated terminal")
    await case.refused(StreamSealed, case.log.append(lease, zero, stored), "a repeat of what is not the tail any more")
    await case.stands(zero, stored + end, "after a repeated terminal")


async def _overlap(case: LogCase) -> None:
    lease, zero = await case.start()
    stored = framed(zero, b"a", b"b")
    tail = await case.log.append(lease, zero, stored)
    middle = at_end(zero, stored[:1])
    for what, after, frames in (
        ("of which some are stored", zero, framed(zero, b"a", b"b", b"c")),
        ("of which the first is stored", middle, framed(middle, b"b", b"c")),
        ("that are stored, but are not the tail", zero, stored[:1]),
        ("with other data in the tail's place", middle, framed(middle, b"x")),
        ("with another name in the tail's place", middle, framed(middle, b"b", name="block")),
        ("with another status in the tail's place", middle, framed(middle, b"b", status="complete")),
    ):
        misfit = await case.refused(CursorMisfit, case.log.append(lease, after, frames), f"an append of frames {what}")
        case.same(misfit.tail, tail, "CursorMisfit.tail")
        await case.stands(zero, stored, f"after an append of frames {what}")
    other = middle._replace(crc=middle.crc ^ 1)
    await case.refused(CursorMisfit, case.log.append(lease, other, stored[1:]), "a repeat behind another checksum")


async def _misnumbered(case: LogCase) -> None:
    lease, tail = await case.started(b"a")
    behind = at_end(tail, framed(tail, b"gap"))
    for what, frames in {
        "that leave one out": framed(behind, b"x"),
        "that leave one out in their middle": [*framed(tail, b"x"), *framed(behind._replace(seq=9), b"y")],
        "with a terminal before the last": [*framed(tail, b"x", status="complete"), *framed(behind, b"yyy")],
    }.items():
        call = case.log.append(lease, tail, frames, checkpoint=b"c")
        await case.refused(ValueError, call, f"an append of frames {what}")
    state = await case.other.state(lease.sid)
    case.same((state.tail, state.checkpoint), (tail, None), "tail and checkpoint, after frames that do not follow")


async def _append_race(case: LogCase) -> None:
    lease, tail = await case.started(b"a")
    ways = [framed(tail, b"way %d" % number, b"end") for number in range(8)]
    answers = await case.together([partial(case.log.append, lease, tail, frames) for frames in ways])
    won = [frames for frames, answer in zip(ways, answers, strict=True) if not isinstance(answer, LogError)]
    case.same(len(won), 1, "of eight appends at one tail at once, how many succeed")
    lost = {type(answer) for answer in answers if isinstance(answer, LogError)}
    case.same(lost, {CursorMisfit}, "what the others raise")
    case.same(await case.read_on(tail), won[0], "what is stored after eight appends at once")


async def _checkpoint(case: LogCase) -> None:
    lease, zero = await case.start()
    frames = framed(zero, b"a", b"b")
    tail = await case.log.append(lease, zero, frames, checkpoint=b"one")
    saved = Checkpointed(tail, b"one")
    case.same((await case.other.state(lease.sid)).checkpoint, saved, "the checkpoint that came with frames")
    tail = await case.log.append(lease, tail, framed(tail, b"c"))
    case.same((await case.other.state(lease.sid)).checkpoint, saved, "the checkpoint, after an append without one")
    for state in (b"two", b"", b"\x00\xff\r\n", bytes(range(256)) * 4096):
        case.same(await case.log.append(lease, tail, [], checkpoint=state), tail, "what append answers without frames")
        found = (await case.other.state(lease.sid)).checkpoint
        case.same(found, Checkpointed(tail, state), f"a checkpoint of {len(state)} bytes")
    case.same(await case.log.append(lease, tail, []), tail, "what append answers with nothing at all")
    await case.log.release(lease)
    await case.log.take_over(lease.sid, 1, LONG)
    found = (await case.other.state(lease.sid)).checkpoint
    case.holds(found is not None and found.at == tail, "a checkpoint is lost when the lease is taken over")


APPEND_RULES: Final[dict[str, Rule]] = {
    "L1: an append at the tail is stored": _appended,
    "L1: an append never creates": _unknown,
    "L1: only the log's epoch appends": _epoch,
    "L1: only at the tail": _tail,
    "L1, L2: the terminal seals": _sealed,
    "L1: an append may be repeated": _repeated,
    "L1: what overlaps does not fit": _overlap,
    "L1: frames follow their position": _misnumbered,
    "L1: of several appends at once, one": _append_race,
    "L5: a checkpoint is stored with its frames": _checkpoint,
}
