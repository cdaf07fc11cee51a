"""The rules of a log about a stream's life: who starts it, holds it, signals to it, finds it; how it is forgotten."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import anyio

from streamguard.core.cursor import Cursor, cursor_zero, new_sid
from streamguard.log.base import (
    MAX_SIGNALS,
    Lease,
    LeaseHeld,
    LeaseLost,
    LogError,
    Retention,
    Signal,
    StreamExists,
    StreamInfo,
    StreamSealed,
    UnknownStream,
)
from streamguard.testing.log_case import LONG, SHORT, LogCase, Rule, framed

__all__ = ["LIFE_RULES"]


async def _created(case: LogCase) -> None:
    options: dict[str, Any] = {"a": [1, None, {"b": "é"}], "flush": "token"}
    full = case.info(
        dialect="openai",
        principal=case.word("me"),
        name=case.word("chat"),
        key=case.word("key"),
        fingerprint="f" * 64,
        options=options,
    )
    before = copy.deepcopy(full)
    for info in (full, case.info()):
        lease = await case.log.create(info, LONG)
        case.same(lease, Lease(info.sid, 1, LONG), "the lease that create gives")
        state = await case.other.state(info.sid)
        zero = cursor_zero(info.sid)
        case.same(state.info, info, "`info`, as it comes back")
        case.same((state.tail, state.first), (zero, zero), "`tail` and `first` of a new stream")
        case.same((state.epoch, state.held), (1, True), "`epoch` and `held` of a new stream")
        more = (state.sealed, state.cancelled, state.checkpoint)
        case.same(more, (False, False, None), "`sealed`, `cancelled` and `checkpoint` of a new stream")
        case.holds(0 <= state.age < LONG, f"the age of a new stream is {state.age} s")
        case.same(await case.other.read(zero), [], "what is read from a new stream")
    await case.pass_time(SHORT)
    case.holds((await case.other.state(full.sid)).age >= SHORT / 2, "`age` does not grow")
    options["a"].append("by its owner")
    case.same((await case.other.state(full.sid)).info, before, "`info`, once its caller changed the options")


async def _one_sid(case: LogCase) -> None:
    info = case.info(name="first")
    lease = await case.log.create(info, LONG)
    again = StreamInfo(info.sid, name="second")
    exists = await case.refused(StreamExists, case.other.create(again, LONG), "create under a sid that is taken")
    case.same(exists.info, info, "StreamExists.info")
    tail = await case.log.append(lease, cursor_zero(info.sid), framed(cursor_zero(info.sid), b"", status="failed"))
    await case.refused(StreamExists, case.other.create(again, LONG), "create under the sid of a sealed stream")
    case.same((await case.other.state(info.sid)).tail, tail, "the tail, after another create under its sid")
    info = case.info()
    answers = await case.together([partial(case.log.create, info, LONG) for _ in range(8)])
    case.same(sum(isinstance(answer, Lease) for answer in answers), 1, "of eight creates of one sid, how many succeed")


async def _one_key(case: LogCase) -> None:
    key = case.word("key")
    case.same(await case.other.find_key(key), None, "find_key of a key that nobody used")
    infos = [case.info(key=key, fingerprint=str(number)) for number in range(8)]
    logs = [case.log, case.other]
    answers = await case.together([partial(logs[index % 2].create, info, LONG) for index, info in enumerate(infos)])
    won = [info for info, answer in zip(infos, answers, strict=True) if isinstance(answer, Lease)]
    case.same(len(won), 1, "of eight creates under one key at once, how many succeed")
    for info, answer in zip(infos, answers, strict=True):
        if info not in won:
            winner = answer.info if isinstance(answer, StreamExists) else answer
            case.same(winner, won[0], "whose info StreamExists gives to a create that came late")
            await case.refused(UnknownStream, case.other.state(info.sid), "state of a stream that was not made")
    case.same(await case.other.find_key(key), won[0], "find_key, while a stream holds it")
    case.same(await case.other.find_key(case.word("key")), None, "find_key of another key")
    for _ in range(2):
        lease, _ = await case.start()
        case.same(lease.epoch, 1, "the epoch of streams without a key, of which there may be several")


async def _key_released(case: LogCase) -> None:
    key = case.word("key")
    for status in ("failed", "cancelled"):
        lease, zero = await case.start(key=key)
        await case.log.append(lease, zero, framed(zero, b"", status=status))
        case.same(await case.other.find_key(key), None, f"find_key, once its stream ended as {status!r}")
    last = case.info(key=key)
    older, zero = lease, cursor_zero(last.sid)
    lease = await case.log.create(last, LONG)
    await case.log.purge(sid=older.sid)
    case.same(await case.other.find_key(key), last, "find_key, once an older stream of that key was purged")
    await case.log.signal(last.sid, "cancel")
    late = case.info(key=key)
    await case.refused(StreamExists, case.log.create(late, LONG), "create under the key of a running stream")
    await case.log.append(lease, zero, framed(zero, b"", status="complete"))
    exists = await case.refused(StreamExists, case.log.create(late, LONG), "create under a complete one's key")
    case.same(exists.info, last, "StreamExists.info")
    await case.log.purge(sid=last.sid)
    case.same(await case.other.find_key(key), None, "find_key, once its stream was purged")
    await case.start(key=key)


async def _held(case: LogCase) -> None:
    lease, tail = await case.started(b"a")
    for epoch in (0, 1, 2):
        call = case.other.take_over(lease.sid, epoch, LONG)
        held = await case.refused(LeaseHeld, call, f"take_over of epoch {epoch}, where the lease of 1 holds,")
        case.same(held.epoch, 1, "LeaseHeld.epoch")
    short, tail = await case.started(b"a", ttl=SHORT)
    await case.lapse(short.sid)
    for epoch in (0, 2):
        call = case.other.take_over(short.sid, epoch, LONG)
        await case.refused(LeaseHeld, call, f"take_over of epoch {epoch}, where the log's is 1,")
    answers = await case.together([partial(case.other.take_over, short.sid, 1, LONG) for _ in range(8)])
    won = [answer for answer in answers if not isinstance(answer, LogError)]
    case.same(won, [Lease(short.sid, 2, LONG)], "what eight got who took a lease over at once")
    lost = [(type(answer), answer.epoch) for answer in answers if isinstance(answer, LeaseHeld)]
    case.same(lost, [(LeaseHeld, 2)] * 7, "what the others got")
    await case.refused(LeaseLost, case.log.append(short, tail, framed(tail, b"b")), "an append of who slept too long")
    await case.refused(LeaseLost, case.log.renew(short), "a renewal of who slept too long")
    state = await case.other.state(short.sid)
    case.same((state.epoch, state.held, state.tail), (2, True, tail), "epoch, held and tail after a takeover")
    await case.log.append(won[0], tail, framed(tail, b"b"))


async def _renewed(case: LogCase) -> None:
    """A lease holds for its ttl from each renewal; one that ended is still its holder's until somebody takes it."""
    for how in ("renew", "append"):
        lease, tail = await case.started(b"a", ttl=SHORT)
        await case.lapse(lease.sid)
        longer = Lease(lease.sid, 1, LONG)
        if how == "renew":
            await case.log.renew(longer)
        else:
            await case.log.append(longer, tail, framed(tail, b"b"))
        await case.pass_time(2 * SHORT)
        case.same((await case.other.state(lease.sid)).held, True, f"`held`, within the ttl of {how}")
        await case.refused(LeaseHeld, case.other.take_over(lease.sid, 1, LONG), f"take_over, within the ttl of {how}")
        await case.log.renew(lease)
        await case.lapse(lease.sid)


async def _renewal_refused(case: LogCase) -> None:
    await case.refused(UnknownStream, case.log.renew(Lease(new_sid(), 1, LONG)), "renew for no stream")
    lease, tail = await case.started(b"a")
    for epoch in (0, 2):
        lost = await case.refused(LeaseLost, case.log.renew(Lease(lease.sid, epoch, LONG)), f"renew with epoch {epoch}")
        case.same(lost.epoch, 1, "LeaseLost.epoch")
    end = await case.log.append(lease, tail, framed(tail, b"", status="complete"))
    sealed = await case.refused(StreamSealed, case.log.renew(lease), "renew, once the stream is sealed")
    case.same(sealed.tail, end, "StreamSealed.tail")
    await case.refused(LeaseLost, case.log.renew(Lease(lease.sid, 2, LONG)), "renew with another epoch of a sealed one")
    await case.refused(UnknownStream, case.log.take_over(new_sid(), 1, LONG), "take_over of no stream")
    sealed = await case.refused(StreamSealed, case.log.take_over(lease.sid, 1, LONG), "take_over of a sealed stream")
    case.same(sealed.tail, end, "StreamSealed.tail")


async def _released(case: LogCase) -> None:
    lease, _ = await case.started(b"a")
    await case.log.release(lease)
    case.same((await case.other.state(lease.sid)).held, False, "`held`, after release")
    newer = await case.other.take_over(lease.sid, 1, LONG)
    case.same(newer, Lease(lease.sid, 2, LONG), "what take_over gives after release")
    await case.log.release(lease)
    await case.log.release(Lease(new_sid(), 1, LONG))
    state = await case.other.state(lease.sid)
    case.same((state.epoch, state.held), (2, True), "epoch and `held`, after a release by who lost the lease")


async def _crashes(case: LogCase) -> None:
    """A producer was lost whose lease ran out, and was taken over."""
    lease, tail = await case.started(b"a", ttl=SHORT)
    for lost, count in ((False, 0), (True, 1), (False, 1), (True, 2)):
        await (case.lapse(lease.sid) if lost else case.log.release(lease))
        case.same((await case.other.state(lease.sid)).crashes, count - lost, "`crashes`, before a takeover")
        newer = await case.other.take_over(lease.sid, lease.epoch, SHORT)
        await case.log.release(lease)
        await case.refused(LeaseHeld, case.log.take_over(lease.sid, lease.epoch, LONG), "take_over of an older epoch")
        lease, what = newer, "ran out" if lost else "was released"
        case.same((await case.log.state(lease.sid)).crashes, count, f"`crashes`, after a takeover of what {what}")
    await case.log.append(lease, tail, framed(tail, b"", status="complete"))
    case.same((await case.other.state(lease.sid)).crashes, 2, "`crashes`, once the stream is sealed")


async def _cancelled(case: LogCase) -> None:
    lease, tail = await case.started(b"a")
    await case.other.signal(lease.sid, "grant", b"64")
    case.same((await case.log.state(lease.sid)).cancelled, False, "`cancelled`, after a grant")
    await case.other.signal(lease.sid, "cancel", b"by its reader")
    case.same((await case.log.state(lease.sid)).cancelled, True, "`cancelled`, after a cancel")
    await case.log.release(lease)
    newer = await case.log.take_over(lease.sid, 1, LONG)
    case.same((await case.other.state(lease.sid)).cancelled, True, "`cancelled`, after a takeover")
    kinds = [signal.kind for signal in await case.log.signals(lease.sid, 0, LONG)]
    case.same(kinds, ["grant", "cancel"], "the signals that a second producer gets from 0 on")
    await case.log.append(newer, tail, framed(tail, b"", status="cancelled"))
    case.same((await case.other.state(lease.sid)).cancelled, True, "`cancelled`, once the stream is sealed")
    await case.refused(UnknownStream, case.other.signal(new_sid(), "cancel"), "a cancel of no stream")


async def _cancelled_late(case: LogCase) -> None:
    """One that is recorded comes before the end: else who cancels would be told so of an answer that was whole."""
    for status in ("complete", "failed", "cancelled"):
        lease, zero = await case.start()
        end = await case.log.append(lease, zero, framed(zero, b"", status=status))
        for kind in ("read", "grant"):
            await case.other.signal(lease.sid, kind)
        sealed = await case.refused(
            StreamSealed, case.other.signal(lease.sid, "cancel"), f"a cancel of a stream that ended as {status!r}"
        )
        case.same(sealed.tail, end, "StreamSealed.tail")
        case.same((await case.other.state(lease.sid)).cancelled, False, "`cancelled`, after a cancel that was refused")
        numbers = [signal.number for signal in await case.log.signals(lease.sid, 0, 0)]
        case.same(numbers, [1, 2], "the numbers of the signals, after a cancel that was refused")


async def _signals(case: LogCase) -> None:
    lease, _ = await case.start()
    case.same(await case.log.signals(lease.sid, 0, 0), [], "signals, where there are none")
    case.same(await case.log.signals(lease.sid, 0, SHORT), [], "signals, once the timeout passed")
    sent = [Signal(1, "grant", b"\x00\xff"), Signal(2, "read"), Signal(3, "cancel", b"why"), Signal(4, "grant", b"")]
    for signal in sent:
        await case.other.signal(lease.sid, signal.kind, signal.payload)
    for after in range(5):
        case.same(await case.log.signals(lease.sid, after, 0), sent[after:], f"signals after {after}")
    got: list[Signal] = []

    async def listen() -> None:
        got.extend(await case.log.signals(lease.sid, 4, LONG))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listen)
        await case.settle()
        case.same(got, [], "the signals after the last one")
        await case.other.signal(lease.sid, "grant", b"5")
    case.same(got, [Signal(5, "grant", b"5")], "what wakes who listens for signals")


async def _signals_gone(case: LogCase) -> None:
    await case.refused(UnknownStream, case.log.signals(new_sid(), 0, LONG), "signals of no stream")
    lease, _ = await case.start()

    async def listen() -> None:
        await case.refused(UnknownStream, case.log.signals(lease.sid, 0, LONG), "signals, where the stream is purged")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listen)
        await case.settle()
        await case.other.purge(sid=lease.sid)


async def _signals_bounded(case: LogCase) -> None:
    lease, _ = await case.start()
    await case.other.signal(lease.sid, "cancel")
    for _ in range(9):
        await case.together([partial(case.other.signal, lease.sid, "grant") for _ in range(MAX_SIGNALS // 8)])
    numbers = [signal.number for signal in await case.log.signals(lease.sid, 0, 0)]
    count = 1 + 9 * (MAX_SIGNALS // 8)
    case.same(numbers, sorted(set(numbers)), "the numbers of many signals, which should grow")
    case.same(numbers[:1], [1], "the oldest signal, which is a cancel")
    case.same(numbers[1 - MAX_SIGNALS :], list(range(count - MAX_SIGNALS + 2, count + 1)), "the newest signals")


async def _found(case: LogCase) -> None:
    name, me, you = case.word("chat"), case.word("me"), case.word("you")
    case.same(await case.other.find(name, me), None, "find, before there is one")
    infos = []
    for principal in (me, me, you, None):
        infos.append(case.info(name=name, principal=principal))
        await case.log.create(infos[-1], LONG)
    await case.log.create(case.info(name=case.word("chat"), principal=me), LONG)
    await case.log.create(case.info(principal=me), LONG)
    for principal, newest in ((me, infos[1]), (you, infos[2]), (None, infos[3]), (case.word("x"), None)):
        case.same(await case.other.find(name, principal), newest, "the newest stream of a name and a principal")
    zero = cursor_zero(infos[1].sid)
    await case.log.append(Lease(infos[1].sid, 1, LONG), zero, framed(zero, b"", status="failed"))
    case.same(await case.other.find(name, me), infos[1], "find, where the newest one is sealed")
    await case.log.purge(sid=infos[1].sid)
    case.same(await case.other.find(name, me), infos[0], "find, once the newest one was purged")
    await case.log.purge(sid=infos[0].sid)
    case.same(await case.other.find(name, me), None, "find, once all were purged")


async def _purged(case: LogCase) -> None:
    me, you, name = case.word("me"), case.word("you"), case.word("chat")
    mine = [await case.started(b"text", principal=me, name=name, key=case.word("key")) for _ in range(3)]
    yours, there = await case.started(b"text", principal=you, name=name)
    nobodys, tail = await case.started(b"text")
    case.same(await case.log.purge(sid=new_sid()), 0, "how many purge of no stream forgets")
    case.same(await case.log.purge(principal=case.word("x")), 0, "how many purge of an unknown principal forgets")
    case.same(await case.log.purge(sid=mine[0][0].sid), 1, "how many purge of a stream forgets")
    case.same(await case.log.purge(sid=mine[0][0].sid), 0, "how many purge of a purged stream forgets")
    case.same(await case.log.purge(principal=me), 2, "how many purge of a principal with two streams forgets")
    for lease, end in mine:
        for doing, call in _each(case, lease, end).items():
            await case.refused(UnknownStream, call(), f"{doing} of a purged stream")
        await case.log.release(lease)
    case.same(await case.other.find(name, me), None, "find, once the principal was purged")
    for lease, end in ((yours, there), (nobodys, tail)):
        case.same((await case.other.state(lease.sid)).tail, end, "the tail of a stream that was not purged")


def _each(case: LogCase, lease: Lease, tail: Cursor) -> dict[str, Callable[[], Awaitable[object]]]:
    """A call of each method that needs a stream."""
    sid = lease.sid
    return {
        "append": partial(case.log.append, lease, tail, framed(tail, b"b")),
        "read": partial(case.other.read, tail),
        "state": partial(case.other.state, sid),
        "renew": partial(case.log.renew, lease),
        "take_over": partial(case.log.take_over, sid, lease.epoch, LONG),
        "signal": partial(case.other.signal, sid, "cancel"),
        "signals": partial(case.log.signals, sid, 0, LONG),
    }


async def _swept(case: LogCase) -> None:
    await case.open(Retention(after_end=SHORT, unsealed=SHORT))
    key, name = case.word("key"), case.word("chat")
    sealed, _ = await case.started(b"a", b"", status="complete", key=key, name=name)
    given_up, _ = await case.started(b"a", ttl=SHORT)
    held, tail = await case.started(b"a")
    await case.pass_time(3 * SHORT)
    await case.swept(sealed.sid, given_up.sid)
    case.same(await case.other.find_key(key), None, "find_key, once its stream was swept")
    case.same(await case.other.find(name, None), None, "find, once the stream was swept")
    case.same((await case.other.state(held.sid)).tail, tail, "the tail of a stream whose lease holds, after a sweep")


async def _kept(case: LogCase) -> None:
    await case.open(Retention(after_end=LONG, unsealed=LONG))
    sealed, end = await case.started(b"a", b"", status="complete")
    idle, tail = await case.started(b"a", ttl=SHORT)
    await case.lapse(idle.sid)
    await case.log.sweep()
    for lease, expected in ((sealed, end), (idle, tail)):
        case.same((await case.other.state(lease.sid)).tail, expected, "the tail, after a sweep before its time")


async def _sweeps_some(case: LogCase) -> None:
    await case.open(Retention(after_end=SHORT))
    sids = [(await case.started(b"", status="complete"))[0].sid for _ in range(5)]
    await case.pass_time(3 * SHORT)
    count = await case.log.sweep(2)
    case.holds(0 <= count <= 2, f"sweep(2) forgot {count} streams")
    await case.swept(*sids)


async def _stays(case: LogCase) -> None:
    """Needs a store that outlives a log: `shared`."""
    lease, tail = await case.started(b"a", b"b")
    if case.shared:
        log = await case.opened()
        await log.create(case.info(), LONG)
        await log.aclose()
        log = await case.opened()
        case.same((await log.state(lease.sid)).tail, tail, "the tail, once a log of the store was closed")
        end = await log.append(lease, tail, framed(tail, b"", status="complete"))
        case.same((await case.other.state(lease.sid)).tail, end, "the tail, after an append by another log")


LIFE_RULES: Final[dict[str, Rule]] = {
    "create: what a new stream is": _created,
    "create: one stream of a sid": _one_sid,
    "create: one stream of a key": _one_key,
    "create: who failed or was cancelled frees its key": _key_released,
    "L3: one takes over, once the lease ended": _held,
    "L3: a lease holds for its ttl": _renewed,
    "L3: what renew and take_over refuse": _renewal_refused,
    "release: another need not wait": _released,
    "L3: a lease that ran out is a crash, one that was released is none": _crashes,
    "L7: a cancel is recorded for good": _cancelled,
    "L7: a cancel of a stream that ended is refused": _cancelled_late,
    "signals: numbered, kept, waited for": _signals,
    "signals: of a stream that is gone": _signals_gone,
    "signals: bounded, and a cancel stays": _signals_bounded,
    "find: the newest of a name and a principal": _found,
    "purge: a stream, or all of a principal's": _purged,
    "sweep: what is too old": _swept,
    "sweep: nothing before its time": _kept,
    "sweep: some at a time": _sweeps_some,
    "aclose: stored streams stay": _stays,
}
