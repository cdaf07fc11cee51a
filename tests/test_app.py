"""StreamGuard without a framework: start, find, read, cancel, and an end for a stream that nobody generates."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from streamguard import anyone_with_the_id
from streamguard.app import StreamGuard
from streamguard.core.cursor import Cursor, cursor_zero
from streamguard.core.errors import Failure
from streamguard.log.base import Lease, LogUnavailable, Retention, StreamExists, StreamInfo, UnknownStream
from streamguard.log.memory import MemoryLog
from streamguard.runtime.readers import Busy, Reader, Readers
from streamguard.runtime.runs import Cancel, Detach, ReadOn
from streamguard.runtime.source import TokenSource
from tests.runtime.fakes import Script

pytestmark = pytest.mark.anyio


def a_guard(**options: Any) -> StreamGuard:
    return StreamGuard(**{"log": MemoryLog(), "authorize": anyone_with_the_id, **options})


async def read(guard: StreamGuard, after: Cursor) -> list[str]:
    """The texts of the frames behind a cursor, and the status at their end."""
    frames = [frame async for page in guard.pages(after) for frame in page]
    return [frame.data.decode() for frame in frames[:-1]] + [str(frames[-1].status)]


async def test_a_stream_goes_into_the_log_and_is_read_from_any_cursor() -> None:
    guard, source = a_guard(), Script("a", "b", "c")
    run = await guard.start(TokenSource(source), principal="ann")
    whole = await read(guard, cursor_zero(run.sid))
    assert whole == ['"a"', '"b"', '"c"', "complete"]
    first = (await guard.log.read(cursor_zero(run.sid)))[0]
    assert await read(guard, Cursor(run.sid, first.seq, first.offset, first.crc)) == whole[1:]
    run.leave()
    await run.over.wait()
    assert (source.closes, len(guard.runs)) == (1, 0)


async def test_each_frame_reaches_each_reader_once_whenever_it_came() -> None:
    guard, go = a_guard(), anyio.Event()
    run = await guard.start(TokenSource(Script("a", "b", go, "c", "d")), principal="ann")
    found: list[list[str]] = []

    async def reader() -> None:
        found.append(await read(guard, cursor_zero(run.sid)))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reader)
        await anyio.lowlevel.checkpoint()
        tasks.start_soon(reader)
        await anyio.wait_all_tasks_blocked()
        go.set()
        tasks.start_soon(reader)
    assert found == [['"a"', '"b"', '"c"', '"d"', "complete"]] * 3
    run.leave()


async def test_a_stream_is_found_by_its_principal_only() -> None:
    guard = a_guard()
    run = await guard.start(TokenSource(Script("a")), principal="ann", name="chat")
    assert (await guard.find(run.sid, "ann")).info.principal == "ann"
    assert (await guard.named("chat", "ann")).info.sid == run.sid
    for search in (guard.find(run.sid, "bob"), guard.named("chat", "bob"), guard.find("A" * 22, "ann")):
        with pytest.raises(UnknownStream):
            await search
    run.leave()
    await run.over.wait()


async def test_one_key_is_one_stream_and_the_second_source_is_not_started() -> None:
    guard, second = a_guard(), Script("b")
    run = await guard.start(TokenSource(Script("a")), principal="ann", key="k")
    with pytest.raises(StreamExists) as raised:
        await guard.start(TokenSource(second), principal="ann", key="k")
    assert raised.value.info.sid == run.sid
    assert (second.steps, len(guard.runs)) == (0, 1)
    run.leave()
    await run.over.wait()


@pytest.mark.parametrize("policy", [Cancel(), Detach(0.0), ReadOn(items=0), ReadOn(seconds=0.0)], ids=str)
async def test_the_last_readers_leaving_ends_the_stream(policy: Any) -> None:
    guard, source = a_guard(on_disconnect=policy), Script("a", anyio.Event())
    run = await guard.start(TokenSource(source), principal="ann")
    await anyio.wait_all_tasks_blocked()
    run.join()
    run.leave()
    await anyio.wait_all_tasks_blocked()
    assert not run.over.is_set()
    run.leave()
    await run.over.wait()
    assert await read(guard, cursor_zero(run.sid)) == ['"a"', "cancelled"]
    assert source.closes == 1


async def test_a_reader_that_comes_back_in_time_finds_it_running() -> None:
    guard, go = a_guard(on_disconnect=Detach(60.0)), anyio.Event()
    run = await guard.start(TokenSource(Script("a", go, "b")), principal="ann")
    run.leave()
    await anyio.wait_all_tasks_blocked()
    run.join()
    go.set()
    assert await read(guard, cursor_zero(run.sid)) == ['"a"', '"b"', "complete"]
    run.leave()


async def test_a_cancel_ends_a_stream_that_runs_here_and_one_that_nobody_generates() -> None:
    guard, source = a_guard(), Script("a", anyio.Event())
    run = await guard.start(TokenSource(source), principal="ann")
    await anyio.wait_all_tasks_blocked()
    await guard.cancel(run.sid)
    await run.over.wait()
    assert (await read(guard, cursor_zero(run.sid)))[-1] == "cancelled"
    assert source.closes == 1
    orphan = await guard.log.create(StreamInfo("B" * 22), 60.0)
    await guard.log.release(orphan)
    await guard.cancel(orphan.sid)
    assert await read(guard, cursor_zero(orphan.sid)) == ["cancelled"]
    with pytest.raises(UnknownStream):
        await guard.cancel("C" * 22)


async def test_a_stream_whose_process_is_gone_ends_as_failed_and_is_never_left_open() -> None:
    guard = a_guard()
    lease = await guard.log.create(StreamInfo("B" * 22), 60.0)
    await guard.log.release(lease)
    frames = [frame async for page in guard.pages(cursor_zero(lease.sid)) for frame in page]
    assert [frame.status for frame in frames] == ["failed"]
    assert b'"producer_lost"' in frames[0].data


async def test_who_reads_at_another_process_keeps_a_stream_going() -> None:
    log = MemoryLog()
    here = StreamGuard(log, authorize=anyone_with_the_id, on_disconnect=Detach(60.0))
    there = StreamGuard(log, authorize=anyone_with_the_id)
    go = anyio.Event()
    run = await here.start(TokenSource(Script("a", go, "b")), principal="ann")
    run.leave()
    found: list[str] = []

    async def reader() -> None:
        found.extend(await read(there, cursor_zero(run.sid)))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reader)
        await anyio.wait_all_tasks_blocked()
        assert [signal.kind for signal in await log.signals(run.sid, 0, 0.0)] == ["read"]
        go.set()
    assert found == ['"a"', '"b"', "complete"]


async def test_authorize_may_be_either_kind_of_function() -> None:
    async def later(request: Any, action: str) -> str | None:
        return None if action == "cancel" else str(request)

    guard = a_guard(authorize=later)
    assert (await guard.principal("ann", "read"), await guard.principal("ann", "cancel")) == ("ann", None)
    guard = a_guard(authorize=lambda request, action: f"{request} {action}")
    assert await guard.principal("ann", "read") == "ann read"


async def test_authorize_is_required() -> None:
    with pytest.raises(TypeError, match="authorize"):
        StreamGuard(MemoryLog())  # type: ignore[call-arg]


async def test_what_retention_says_is_forgotten_while_streams_are_started() -> None:
    now = [0.0]
    log = MemoryLog(Retention(after_end=10.0), clock=lambda: now[0])
    guard = StreamGuard(log, authorize=anyone_with_the_id)
    run = await guard.start(TokenSource(Script("a")), principal="ann")
    await read(guard, cursor_zero(run.sid))
    run.leave()
    await run.over.wait()
    now[0] = 20.0
    guard._sweeper.swept = -1000.0
    again = await guard.start(TokenSource(Script("a")), principal="ann")
    await read(guard, cursor_zero(again.sid))
    await anyio.wait_all_tasks_blocked()
    with pytest.raises(UnknownStream):
        await log.state(run.sid)
    again.leave()


async def test_a_sweep_of_a_log_that_is_away_is_one_line_of_warning(caplog: pytest.LogCaptureFixture) -> None:
    class Away(MemoryLog):
        async def sweep(self, limit: int = 100) -> int:
            raise LogUnavailable("it is away")

    guard = StreamGuard(Away(), authorize=anyone_with_the_id)
    guard._sweeper.swept = -1000.0
    run = await guard.start(TokenSource(Script("a")), principal="ann")
    await read(guard, cursor_zero(run.sid))
    run.leave()
    await run.over.wait()
    await anyio.wait_all_tasks_blocked()
    (told,) = [record for record in caplog.records if record.name == "streamguard"]
    assert (told.levelname, told.exc_info) == ("WARNING", None)
    assert told.getMessage() == "what is too old could not be forgotten now: the log is unavailable: it is away"


async def test_the_hook_is_told_of_a_cancel_with_its_reason() -> None:
    outcomes: list[Any] = []
    guard = a_guard()
    source = Script("a", anyio.Event())
    run = await guard.start(TokenSource(source), principal="ann", on_end=outcomes.append)
    await anyio.wait_all_tasks_blocked()
    run.producer.cancel(Failure("enough", "it is enough"))
    await run.over.wait()
    (outcome,) = outcomes
    assert (outcome.status, outcome.failure.code, outcome.items) == ("cancelled", "enough", 1)


# ---- readers ------------------------------------------------------------------------------------


class Line:
    """A connection, as Readers see one."""

    def __init__(self, sid: str = "A" * 22, client: str | None = None, seq: int = 0) -> None:
        self.gone = 0
        self.at = cursor_zero(sid)._replace(seq=seq)
        self.reader = Reader(self.at, lambda: self.at, self.replace, client)

    def replace(self) -> None:
        self.gone += 1


async def test_the_newest_reader_wins_and_the_oldest_goes_once() -> None:
    readers, lines = Readers(), [Line() for _ in range(4)]
    for line in lines:
        readers.join(line.reader, limit=2)
    assert [line.gone for line in lines] == [1, 1, 0, 0]
    assert list(readers) == [line.reader for line in lines[2:]]
    for line in lines:
        readers.leave(line.reader)
        readers.leave(line.reader)
    assert (len(readers), readers.count("A" * 22), sum(line.gone for line in lines)) == (0, 0, 2)


async def test_streams_do_not_count_for_one_another() -> None:
    readers, lines = Readers(), [Line("A" * 22), Line("B" * 22)]
    for line in lines:
        readers.join(line.reader, limit=1)
    assert [line.gone for line in lines] == [0, 0]
    assert readers.get(lines[1].reader.name) is lines[1].reader


async def test_an_exclusive_stream_lets_one_client_replace_itself() -> None:
    readers = Readers()
    first, other, nameless, again = Line(client="a"), Line(client="b"), Line(), Line(client="a")
    readers.join(first.reader, limit=8, exclusive=True)
    for refused in (other, nameless):
        with pytest.raises(Busy):
            readers.join(refused.reader, limit=8, exclusive=True)
    readers.join(again.reader, limit=8, exclusive=True)
    assert (first.gone, again.gone, len(readers)) == (1, 0, 1)


async def test_an_acknowledgement_never_goes_back() -> None:
    line = Line(seq=3)
    line.at = line.at._replace(seq=9)
    reader = line.reader
    positions = [line.at._replace(seq=seq) for seq in (2, 3, 9, 10)]
    assert [reader.was_given(at) for at in positions] == [False, True, True, False]
    assert not reader.was_given(cursor_zero("B" * 22)._replace(seq=5))
    for seq in (5, 4, 7):
        reader.acknowledge(line.at._replace(seq=seq))
    assert reader.acked is not None
    assert reader.acked.seq == 7


def test_readers_names_are_random_and_short() -> None:
    names = {Line().reader.name for _ in range(100)}
    assert (len(names), {len(name) for name in names}) == (100, {11})


async def endless() -> AsyncIterator[str]:
    while True:
        yield "a"
        await anyio.lowlevel.checkpoint()


async def test_a_reader_that_gives_up_in_the_middle_harms_no_other() -> None:
    guard = a_guard()
    run = await guard.start(TokenSource(endless()), principal="ann")
    pages = guard.pages(cursor_zero(run.sid))
    await pages.__anext__()
    await pages.aclose()
    assert not run.over.is_set()
    await guard.cancel(run.sid)
    assert (await read(guard, cursor_zero(run.sid)))[-1] == "cancelled"


class Unsure(MemoryLog):
    """Makes a stream, and does not come to say so: it breaks off, or its caller is cancelled."""

    def __init__(self, scope: anyio.CancelScope, hangs: bool) -> None:
        super().__init__()
        self.scope = scope
        self.hangs = hangs

    async def create(self, info: StreamInfo, ttl: float) -> Lease:
        await super().create(info, ttl)
        if self.hangs:
            self.scope.cancel()
            await anyio.sleep_forever()
        raise LogUnavailable("it broke off")


@pytest.mark.parametrize("hangs", [False, True], ids=["breaks off", "is cancelled"])
async def test_a_stream_whose_start_is_unsure_is_held_by_nobody(hangs: bool) -> None:
    """Else a request that asks again under its key would wait for a lease that nobody renews."""
    scope = anyio.CancelScope()
    guard, source = a_guard(log=Unsure(scope, hangs)), Script("a")
    with scope:
        with pytest.raises(LogUnavailable):
            await guard.start(TokenSource(source), principal="ann", key="k")
    assert scope.cancelled_caught == hangs
    info = await guard.log.find_key("k")
    assert info is not None
    assert not (await guard.log.state(info.sid)).held
    assert await read(guard, cursor_zero(info.sid)) == ["failed"]
    await guard.aclose()


@pytest.mark.parametrize("closed", [False, True])
async def test_a_reader_may_leave_at_any_step_of_a_streams_end(closed: bool) -> None:
    """Also once its tasks are over and it is not: a complete answer would end with an error in the application."""
    for steps in range(40):
        guard = a_guard()
        run = await guard.start(TokenSource(Script("a", *[anyio.Event()] * closed)), principal="ann")
        async with anyio.create_task_group() as tasks:
            if closed:
                await anyio.wait_all_tasks_blocked()
                tasks.start_soon(guard.aclose)
            for _ in range(steps):
                await anyio.lowlevel.checkpoint()
            run.leave()
            await run.over.wait()
