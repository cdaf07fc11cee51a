"""A server in trouble: calls say so with a reason and in time, no text is wrong, others go on, all works afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator, Awaitable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from streamguard.core.cursor import Cursor, cursor_zero, new_sid
from streamguard.log.base import (
    CursorMisfit,
    Lease,
    LeaseLost,
    LogLost,
    LogUnavailable,
    Retention,
    StreamInfo,
    UnknownStream,
)
from streamguard.log.redis import RedisLog
from streamguard.log.redis_lanes import Lane
from streamguard.log.redis_link import Link
from streamguard.testing.log_case import framed
from tests.log.redis_server import RedisServer, redis_server, stalling_proxy

pytestmark = pytest.mark.anyio

TTL = 60.0
ALWAYS: Any = {"appendonly": "yes", "appendfsync": "always"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


@pytest.fixture
async def log(server: RedisServer) -> AsyncIterator[RedisLog]:
    async with opened(server.url) as log:
        yield log


@contextlib.asynccontextmanager
async def opened(url: str, **settings: Any) -> AsyncIterator[RedisLog]:
    log = RedisLog(url, **settings)
    try:
        with anyio.fail_after(60):  # nothing here may hang
            yield log
    finally:
        await log.aclose()


async def started(log: RedisLog, *data: bytes) -> tuple[Lease, Cursor]:
    lease = await log.create(StreamInfo(new_sid()), TTL)
    zero = cursor_zero(lease.sid)
    return lease, await log.append(lease, zero, framed(zero, *data)) if data else zero


async def texts(log: RedisLog, sid: str) -> list[bytes]:
    return [frame.data for frame in await log.read(cursor_zero(sid), limit=100_000)]


async def said(call: Awaitable[Any]) -> str:
    """The reason of the LogUnavailable that a call must raise."""
    with pytest.raises(LogUnavailable) as unavailable:
        await call
    return unavailable.value.why


def ask(server: RedisServer, *command: Any) -> Any:
    with contextlib.closing(server.client()) as client:
        return client.execute_command(*command)  # type: ignore[no-untyped-call]


# ---- away, and back -------------------------------------------------------------------------------


async def test_a_server_that_is_away_is_said_so_at_once_and_used_again_once_it_is_back(server: RedisServer) -> None:
    async with opened(server.url) as log:
        lease, tail = await started(log, b"one")
        server.kill()
        for call in (
            log.append(lease, tail, framed(tail, b"two")), log.read(tail), log.wait(tail, 30.0), log.state(lease.sid),
            log.signals(lease.sid, 0, 30.0), log.find("x", None), log.sweep(),
        ):  # fmt: skip
            assert f"Redis at {server.path}" in await said(call)
        server.start()
        assert await texts(log, (await started(log, b"another"))[0].sid) == [b"another"]


async def test_without_persistence_a_stream_is_gone_and_nothing_makes_it_anew(server: RedisServer) -> None:
    async with opened(server.url) as log:
        lease, tail = await started(log, b"one")
        server.kill()
        server.start()
        for call in (log.append(lease, tail, framed(tail, b"two")), log.read(tail), log.state(lease.sid),
                     log.renew(lease), log.take_over(lease.sid, 1, TTL), log.signal(lease.sid, "cancel")):  # fmt: skip
            with pytest.raises(UnknownStream):
                await call
        assert await log.wait(tail, 30.0)
        assert ask(server, "DBSIZE") == 0


async def test_with_persistence_a_producer_goes_on_and_who_waited_is_woken(tmp_path: Path) -> None:
    with redis_server(tmp_path, **ALWAYS) as server:
        async with opened(server.url) as log, opened(server.url) as other:
            lease, tail = await started(log, b"one")
            waiting = asyncio.ensure_future(wait_through(other, tail))
            await asyncio.sleep(0.05)
            server.kill()
            server.start()
            tail = await log.append(lease, tail, framed(tail, b"two"))
            await waiting
            assert await texts(other, lease.sid) == [b"one", b"two"]


async def wait_through(log: RedisLog, after: Cursor) -> None:
    """As a reader does that has patience with a log in trouble."""
    while True:
        try:
            if await log.wait(after, 30.0):
                return
        except LogUnavailable:
            await asyncio.sleep(0.01)


async def test_a_tail_that_was_lost_is_never_continued_past_the_hole(server: RedisServer) -> None:
    async with opened(server.url) as log:
        lease, tail = await started(log, b"one")
        ask(server, "SAVE")
        lost = await log.append(lease, tail, framed(tail, b"two"), checkpoint=b"there")
        server.kill()
        server.start()
        with pytest.raises(CursorMisfit) as misfit:
            await log.append(lease, lost, framed(lost, b"three"))
        assert misfit.value.tail == tail
        with pytest.raises(LogLost) as log_lost:
            await log.read(lost)
        assert log_lost.value.tail == tail
        assert await log.wait(lost, 30.0)
        assert (await log.state(lease.sid)).checkpoint is None
        # Somebody else's text behind the tail: the reader of the lost part is not mixed with it.
        other = await log.append(lease, tail, framed(tail, b"other"))
        with pytest.raises(CursorMisfit):
            await log.read(lost)
        assert await texts(log, lease.sid) == [b"one", b"other"]
        assert (await log.state(lease.sid)).tail == other


@pytest.mark.parametrize("seed", range(3))
async def test_appends_that_are_repeated_through_kills_store_each_frame_once(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    with redis_server(tmp_path, **ALWAYS) as server:
        async with opened(server.url) as log:
            count, kills = 0, 0

            async def one(lease: Lease) -> Cursor:
                nonlocal count
                tail = cursor_zero(lease.sid)
                while kills < 3 or tail.seq < 20:
                    frames = framed(tail, *[b"%d" % (tail.seq + number) for number in range(1 + tail.seq % 3)])
                    try:
                        tail = await log.append(lease, tail, frames)
                        count += 1
                    except LogUnavailable:
                        await asyncio.sleep(0.01)
                return tail

            leases = [(await started(log))[0] for _ in range(12)]
            running = [asyncio.ensure_future(one(lease)) for lease in leases]
            for _ in range(3):
                goal = count + chance.randrange(10, 200)
                while count < goal:  # noqa: ASYNC110  # any moment between two appends may be the one
                    await asyncio.sleep(0)
                server.kill()
                await asyncio.to_thread(server.start)
                kills += 1
            for lease, tail in zip(leases, await asyncio.gather(*running), strict=True):
                assert await texts(log, lease.sid) == [b"%d" % number for number in range(tail.seq)]


# ---- refusals -------------------------------------------------------------------------------------


async def test_a_full_server_takes_all_of_an_append_or_nothing_and_can_still_be_read(
    log: RedisLog, server: RedisServer
) -> None:
    lease, tail = await started(log, b"one")
    ask(server, "CONFIG", "SET", "maxmemory", "1")
    frames = framed(tail, b"two", b"three")
    assert "full" in await said(log.append(lease, tail, frames, checkpoint=b"here"))
    assert "full" in await said(log.create(StreamInfo(new_sid()), TTL))
    assert await texts(log, lease.sid) == [b"one"]
    state = await log.state(lease.sid)
    assert (state.tail, state.checkpoint) == (tail, None)
    ask(server, "CONFIG", "SET", "maxmemory", "0")
    await log.append(lease, tail, frames)
    assert await texts(log, lease.sid) == [b"one", b"two", b"three"]


async def test_a_replica_is_neither_written_nor_read(server: RedisServer, tmp_path: Path) -> None:
    folder = tmp_path / "replica"
    folder.mkdir()
    with redis_server(folder, replicaof="127.0.0.1 1") as replica:
        async with opened(replica.url) as log:
            for call in (log.create(StreamInfo(new_sid()), TTL), log.read(cursor_zero(new_sid()))):
                assert "is a replica, not the primary" in await said(call)


async def test_a_primary_that_becomes_a_replica_is_left_and_used_again_once_it_is_one(
    log: RedisLog, server: RedisServer
) -> None:
    lease, tail = await started(log, b"one")
    assert await texts(log, lease.sid) == [b"one"]
    ask(server, "REPLICAOF", "127.0.0.1", "1")
    assert "replica" in await said(log.append(lease, tail, framed(tail, b"two")))
    await asyncio.sleep(1.1)  # for so long a primary is believed to be one
    assert "replica" in await said(log.read(tail))
    ask(server, "REPLICAOF", "NO", "ONE")
    await log.append(lease, tail, framed(tail, b"two"))
    assert await texts(log, lease.sid) == [b"one", b"two"]


async def test_a_login_that_is_refused_is_said_so_without_the_password(tmp_path: Path) -> None:
    with redis_server(tmp_path, requirepass="open-sesame") as server:
        path = server.url.removeprefix("unix://")
        for url in (server.url, f"unix://:wrong-word@{path}"):
            async with opened(url) as log:
                why = await said(log.create(StreamInfo(new_sid()), TTL))
                assert "refuses the login" in why
                assert "wrong-word" not in why
                assert "wrong-word" not in repr(log)
        async with opened(f"unix://:open-sesame@{path}") as log:
            assert await texts(log, (await started(log, b"one"))[0].sid) == [b"one"]
        async with opened(server.url, password="open-sesame") as log:
            await started(log, b"one")


async def test_one_append_that_is_refused_fails_none_that_goes_with_it(
    log: RedisLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    those = [await started(log, b"one") for _ in range(8)]
    stale = Lease(those[3][0].sid, 7, TTL)
    those[3] = (stale, those[3][1])
    sizes: list[int] = []
    take = Lane._take

    def counted(self: Lane) -> Any:
        found = take(self)
        sizes.append(len(found))
        return found

    monkeypatch.setattr(Lane, "_take", counted)
    calls = [log.append(lease, tail, framed(tail, b"two")) for lease, tail in those]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(answer) for answer in answers] == [Cursor] * 3 + [LeaseLost] + [Cursor] * 4
    assert sizes[0] == 8, "calls that wait together go in one round trip"


async def test_a_server_that_forgot_the_scripts_is_told_them_again(log: RedisLog, server: RedisServer) -> None:
    lease, tail = await started(log, b"one")
    ask(server, "SCRIPT", "FLUSH")
    await asyncio.gather(log.append(lease, tail, framed(tail, b"two")), log.state(lease.sid), started(log, b"x"))
    assert await texts(log, lease.sid) == [b"one", b"two"]


# ---- slow -----------------------------------------------------------------------------------------


async def test_a_server_that_stands_still_is_waited_for_so_long_and_no_longer(server: RedisServer) -> None:
    async with opened(server.url, timeout=1.0) as log:
        lease, tail = await started(log, b"one")
        frames = framed(tail, b"two")
        with server.stopped():
            before = asyncio.get_running_loop().time()
            calls: list[Any] = [log.append(lease, tail, frames) for _ in range(20)]
            calls += [log.read(tail), log.state(lease.sid)]
            answers: list[Any] = await asyncio.gather(*calls, return_exceptions=True)
            assert asyncio.get_running_loop().time() - before < 10
            for answer in answers:
                assert isinstance(answer, LogUnavailable)
                assert "did not answer within 1 s" in answer.why
            assert "did not answer" in await said(log.append(lease, tail, frames)), "of a new connection, too"
        # The first one may have been carried out meanwhile: it is repeated.
        await log.append(lease, tail, frames)
        assert await texts(log, lease.sid) == [b"one", b"two"]


async def test_who_waits_behind_a_call_without_an_answer_is_not_made_to_wait_again(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(server.url, timeout=1.0) as log:
        lease, tail = await started(log, b"one")
        monkeypatch.setattr(Link, "open", None)  # would be tried for whoever is made to wait again
        with server.stopped():
            first = asyncio.ensure_future(log.append(lease, tail, framed(tail, b"two")))
            await asyncio.sleep(0.01)
            second = asyncio.ensure_future(log.renew(lease))
            assert "did not answer" in await said(first)
            assert "did not answer" in await said(second)
        monkeypatch.undo()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are counted in /proc")
async def test_what_a_server_that_stands_still_has_not_taken_holds_no_socket(server: RedisServer) -> None:
    async with opened(server.url, timeout=1.0) as log:
        lease, tail = await started(log, b"one")
        before = len(os.listdir("/proc/self/fd"))
        with server.stopped():
            assert "did not answer" in await said(log.append(lease, tail, framed(tail, b"x" * 40_000_000)))
            await asyncio.sleep(0.01)
            assert len(os.listdir("/proc/self/fd")) < before


async def test_what_stalls_on_the_way_is_given_up_and_other_connections_are_made(tmp_path: Path) -> None:
    with redis_server(tmp_path, tcp=True) as server:
        async with stalling_proxy(server.port) as proxy, opened(proxy.url, timeout=1.0) as log:
            lease, tail = await started(log, b"one")
            proxy.all = True
            assert "did not answer" in await said(log.append(lease, tail, framed(tail, b"two")))
            proxy.all = False
            assert await log.append(lease, tail, framed(tail, b"two"))
            assert await texts(log, lease.sid) == [b"one", b"two"]


async def test_a_wake_up_that_is_lost_is_late_and_not_missed(tmp_path: Path) -> None:
    with redis_server(tmp_path, tcp=True) as server:
        async with stalling_proxy(server.port) as proxy, opened(proxy.url, timeout=1.0) as log:
            lease, tail = await started(log, b"one")
            assert not await log.wait(tail, 0.1)
            proxy.woken = True
            waiting = asyncio.ensure_future(log.wait(tail, 30.0))
            listening = asyncio.ensure_future(log.signals(lease.sid, 0, 30.0))
            await asyncio.sleep(0.05)
            tail = await log.append(lease, tail, framed(tail, b"two"))
            await log.signal(lease.sid, "cancel")
            assert await waiting
            assert [signal.kind for signal in await listening] == ["cancel"]


async def test_who_waits_is_woken_though_the_connection_that_wakes_breaks(log: RedisLog, server: RedisServer) -> None:
    lease, tail = await started(log, b"one")
    for number in range(5):
        waiting = asyncio.ensure_future(log.wait(tail, 30.0))
        await asyncio.sleep(0.05)
        ask(server, "CLIENT", "KILL", "TYPE", "pubsub")
        if number % 2:
            await asyncio.sleep(0.05)
        tail = await log.append(lease, tail, framed(tail, b"more"))
        assert await waiting
    assert ask(server, "PUBSUB", "CHANNELS") == [f"streamguard:{{{lease.sid}}}:frames".encode()]


# ---- bounds ---------------------------------------------------------------------------------------


async def test_connections_are_bounded_and_calls_wait_for_one(server: RedisServer) -> None:
    most = 0
    async with opened(server.url, max_connections=3) as log:

        async def one() -> None:
            nonlocal most
            lease, after = await started(log)
            reader = asyncio.ensure_future(read(lease.sid))
            for number in range(20):
                after = await log.append(lease, after, framed(after, b"x", status="complete" if number == 19 else None))
            assert len(await reader) == 20
            info: Any = ask(server, "CLIENT", "LIST")
            most = max(most, len(info if isinstance(info, list) else info.splitlines()) - 1)

        async def read(sid: str) -> list[bytes]:
            found: list[bytes] = []
            after = cursor_zero(sid)
            while after.status is None:
                for frame in await log.read(after):
                    found.append(frame.data)
                    after = Cursor(sid, frame.seq, frame.offset, frame.crc, frame.status)
                await log.wait(after, 30.0)
            return found

        await asyncio.gather(*(one() for _ in range(60)))
    assert most == 3


@pytest.mark.parametrize("wrong", ["frames away", "the last one away", "one in the middle away"])
async def test_a_stream_of_which_a_part_is_gone_is_gone(wrong: str, log: RedisLog, server: RedisServer) -> None:
    """As a server does that evicts, or whoever deletes by hand."""
    lease, tail = await started(log, b"one", b"two", b"three")
    key = f"streamguard:{{{lease.sid}}}:frames"
    if wrong == "frames away":
        ask(server, "DEL", key)
    else:
        ask(server, "XDEL", key, "3-1" if wrong == "the last one away" else "2-1")
    for call in (log.append(lease, tail, framed(tail, b"four")), log.state(lease.sid), log.renew(lease),
                 log.read(cursor_zero(lease.sid)) if wrong != "the last one away" else log.read(tail)):  # fmt: skip
        with pytest.raises(UnknownStream):
            await call
    assert await log.purge(sid=lease.sid) == 1
    assert ask(server, "DBSIZE") == 0


async def test_a_page_is_bounded_in_bytes(log: RedisLog) -> None:
    """A server that copies a hundred megabytes answers nobody else meanwhile."""
    lease, after = await started(log)
    for _ in range(40):
        after = await log.append(lease, after, framed(after, *[b"x" * 20_000] * 8))
    after, pages = cursor_zero(lease.sid), []
    while page := await log.read(after, limit=10_000):
        pages.append(len(page))
        after = Cursor(lease.sid, page[-1].seq, page[-1].offset, page[-1].crc)
    assert sum(pages) == 320
    assert max(pages) < 120


async def test_an_append_whose_caller_leaves_is_done_or_not_and_may_be_repeated(log: RedisLog) -> None:
    lease, tail = await started(log, b"one")
    for steps in range(12):
        frames = framed(tail, b"%d" % steps)
        task = asyncio.ensure_future(log.append(lease, tail, frames))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        tail = await log.append(lease, tail, frames)
    assert await texts(log, lease.sid) == [b"one", *(b"%d" % steps for steps in range(12))]


async def test_a_stream_expires_when_it_may(server: RedisServer) -> None:
    async with opened(server.url, retention=Retention(after_end=100, unsealed=1000)) as log:
        lease, tail = await started(log, b"one")
        await log.signal(lease.sid, "grant")
        keys = [f"streamguard:{{{lease.sid}}}:{part}" for part in ("meta", "frames", "signals")]
        for key in keys:
            assert 990_000 < ask(server, "PTTL", key) <= 1_060_000
        await log.renew(Lease(lease.sid, 1, 5000.0))
        for key in keys:
            assert 4_990_000 < ask(server, "PTTL", key) <= 5_060_000
        await log.append(lease, tail, framed(tail, b"", status="complete"))
        for key in keys:
            assert 90_000 < ask(server, "PTTL", key) <= 100_000


async def test_a_sweep_drops_what_names_streams_that_are_gone_and_nothing_else(server: RedisServer) -> None:
    async with opened(server.url, retention=Retention(after_end=0.01)) as log:
        for number in range(7):
            info = StreamInfo(new_sid(), name="chat", principal="me", key=f"key {number}")
            lease = await log.create(info, TTL)
            zero = cursor_zero(lease.sid)
            if number:
                await log.append(lease, zero, framed(zero, b"", status="complete"))
            else:
                alive = info
        while any(b"{" in key and alive.sid.encode() not in key for key in ask(server, "KEYS", "*")):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert await log.find("chat", "me") == alive
        assert await log.sweep(2) == 2
        counted = 2
        while count := await log.sweep(3):
            assert count <= 3
            counted += count
        assert counted >= 6, "each of six, in one index or another"
        assert len(ask(server, "KEYS", "*")) == 2 + 3, "the stream's own keys, its key's, its name's, its principal's"
        assert await log.find_key("key 0") == alive
        assert await log.purge(principal="me") == 1
        assert ask(server, "KEYS", "*") == []


async def test_a_key_whose_holder_is_gone_is_given_to_one_of_those_who_come(server: RedisServer) -> None:
    async with opened(server.url) as log:
        first = StreamInfo(new_sid(), key="k")
        await log.create(first, TTL)
        ask(server, "DEL", f"streamguard:{{{first.sid}}}:meta", f"streamguard:{{{first.sid}}}:frames")
        calls = [log.create(StreamInfo(new_sid(), key="k"), TTL) for _ in range(8)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(answer, Lease) for answer in answers) == 1
        assert len([key for key in ask(server, "KEYS", "*") if key.endswith(b"meta")]) == 1


async def test_closing_serves_who_calls_and_tells_who_waits(server: RedisServer) -> None:
    log = RedisLog(server.url)
    lease, tail = await started(log, b"one")
    waiting = asyncio.ensure_future(log.wait(tail, 30.0))
    await asyncio.sleep(0.05)
    calls = [asyncio.ensure_future(log.state(lease.sid)) for _ in range(3)]
    await asyncio.sleep(0)
    await log.aclose()
    assert {(await call).tail for call in calls} == {tail}
    assert await said(waiting) == "it was closed"
    assert await said(log.read(tail)) == "it was closed"
    await log.aclose()
    with anyio.fail_after(10):
        while len(ask(server, "CLIENT", "LIST").splitlines()) > 1:  # noqa: ASYNC110  # the server tells nobody
            await asyncio.sleep(0.01)
