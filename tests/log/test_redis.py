"""RedisLog on a real server: the contract, the model, what lies in Redis."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import random
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import anyio
import pytest
import trio

from streamguard.core.cursor import Cursor, cursor_zero, new_sid
from streamguard.core.frame import Frame
from streamguard.log import redis_hub
from streamguard.log.base import Lease, LogUnavailable, Retention, StreamInfo, StreamLog
from streamguard.log.redis import AsyncioOnly, RedisLog
from streamguard.log.redis_frames import frame_of, pack
from streamguard.log.redis_link import Address
from streamguard.log.redis_scripts import FRAME_COST
from streamguard.testing.log_case import framed
from streamguard.testing.log_contract import LOG_RULES, check_log_rule
from tests.log.machine import Store, machine_test
from tests.log.redis_server import RedisServer, redis_server
from tests.log.sqlite_child import text
from tests.modules import ROOT

ZERO = cursor_zero("a" * 22)

SERVERS: list[RedisServer] = []  # the one of this module, for the machine, which takes no fixture


@pytest.fixture(scope="module", autouse=True)
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        SERVERS.append(server)
        yield server
        SERVERS.clear()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module", autouse=True)
def no_second_look() -> Iterator[None]:
    """Who waits is woken by what is published, or not at all: else a wake-up that is missing would only be late."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(redis_hub, "_FLOOR", 1000.0)
        yield


# ---- the contract and the model -------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize("shared", [False, True], ids=["one log", "two logs on one server"])
@pytest.mark.parametrize("rule", LOG_RULES)
async def test_a_log_in_redis_keeps_every_rule(rule: str, shared: bool, server: RedisServer) -> None:
    logs = itertools.count()

    def factory(retention: Retention) -> StreamLog:
        prefix = "shared:" if shared else f"{next(logs)}:"
        return RedisLog(server.url, retention=retention, prefix=prefix)

    await check_log_rule(rule, factory, shared=shared)


def lose(server: RedisServer, sid: str, count: int) -> None:
    """As a server does that is started again with an older file."""
    key = f"streamguard:{{{sid}}}:"
    with contextlib.closing(server.client()) as client:
        entries: Any = client.xrevrange(key + "frames", count=count + 1)
        client.xdel(key + "frames", *[number for number, _ in entries[:count]])
        number, fields = entries[count]
        client.execute_command("XSETID", key + "frames", number)  # type: ignore[no-untyped-call]
        client.hset(key + "meta", "tail", fields[b"f"].replace(b"+", b" ").split(b" ")[0])
        client.hdel(key + "meta", "at", "state")
        client.client_kill_filter(_type="pubsub")  # a server that was away has lost its connections


def store() -> Store:
    (server,) = SERVERS

    def remove() -> None:
        with contextlib.closing(server.client()) as client:
            assert client.keys("*{*") == [], "a stream that was purged left a key"
            client.flushdb()

    return Store(
        lambda retention: RedisLog(server.url, retention=retention),
        lose=lambda log, sid, count: lose(server, sid, count),
        persistent=True,
        remove=remove,
    )


TestRedisLog = machine_test(store, max_examples=20)


@pytest.mark.anyio
async def test_where_a_stream_stood_before_its_server_was_away_is_not_believed(server: RedisServer) -> None:
    log = RedisLog(server.url)
    lease = await log.create(StreamInfo(new_sid()), 60.0)
    one = await log.append(lease, cursor_zero(lease.sid), framed(cursor_zero(lease.sid), b"one"))
    two = await log.append(lease, one, framed(one, b"two"))
    assert not await log.wait(two, 0.1)
    lose(server, lease.sid, 1)
    for _ in range(2):  # until the loop knows that the connection is closed, and who reads from it does not
        await asyncio.sleep(0)
    assert not await log.wait(one, 0.1), "a frame that is lost is nothing to read"
    assert await log.wait(two, 30.0), "nor is it waited for"
    await log.purge(sid=lease.sid)
    await log.aclose()


@pytest.mark.anyio
async def test_what_was_asked_before_a_channel_was_open_is_asked_again(server: RedisServer) -> None:
    """What changed between the answer and the opening was published to nobody."""
    hub = redis_hub.Hub(Address(server.url, {}), 5.0, asyncio.get_running_loop())
    asked = 0

    async def ask() -> bytes:
        nonlocal asked
        asked += 1
        if asked > 1:
            return b"new"
        while not hub._channels[b"channel"].confirmed:  # noqa: ASYNC110  # the answer was on its way for so long
            await asyncio.sleep(0.001)
        return b"old"

    with anyio.fail_after(30):
        assert await hub.wait(b"channel", ask, lambda stands: stands == b"new", 1000.0)
    await hub.aclose()


# ---- loops ----------------------------------------------------------------------------------------


def test_on_trio_the_first_call_says_that_redis_py_is_asyncio_only(server: RedisServer) -> None:
    log = RedisLog(server.url)
    for call in (log.create, log.append, log.read, log.wait, log.state, log.signals, log.purge, log.sweep):
        arguments: Any = {
            log.create: (StreamInfo(new_sid()), 1.0), log.append: (Lease("a" * 22, 1, 1.0), ZERO, []),
            log.read: (ZERO,), log.wait: (ZERO, 1.0), log.state: ("a" * 22,), log.signals: ("a" * 22, 0, 1.0),
        }  # fmt: skip
        keywords: Any = {"sid": "a" * 22} if call == log.purge else {}
        with pytest.raises(AsyncioOnly, match="asyncio only"):
            trio.run(partial(call, *arguments.get(call, ()), **keywords))
    trio.run(log.aclose)


def test_loops_may_use_a_log_one_after_the_other_but_not_at_once(server: RedisServer) -> None:
    log = RedisLog(server.url)
    sid = new_sid()

    async def create() -> None:
        await log.create(StreamInfo(sid), 60.0)
        assert not await log.wait(cursor_zero(sid), 0.01)

    async def elsewhere() -> None:
        with pytest.raises(RuntimeError, match="one event loop at a time"):
            await asyncio.to_thread(asyncio.run, log.state(sid))

    async def close() -> None:
        assert (await log.state(sid)).tail == cursor_zero(sid)
        await log.aclose()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # a loop that is closed under its connections
        loop = asyncio.new_event_loop()
        loop.run_until_complete(create())
        loop.run_until_complete(elsewhere())
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.01))
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
        asyncio.run(close())
        gc.collect()


# ---- what lies in Redis ---------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_purge_leaves_no_key_and_no_byte_in_the_database(server: RedisServer) -> None:
    log = RedisLog(server.url, prefix="purged:")
    secret = b"the secret"
    for number in range(3):
        info = StreamInfo(new_sid(), principal="Ann", name="chat", key=f"{number}", options={"text": "the secret"})
        lease = await log.create(info, 60.0)
        tail = await log.append(lease, cursor_zero(info.sid), framed(cursor_zero(info.sid), secret), checkpoint=secret)
        await log.append(lease, tail, framed(tail, secret, name="block", extra=secret))
        await log.signal(info.sid, "cancel", secret)
    with contextlib.closing(server.client()) as client:
        keys: Any = client.keys("purged:*")
        assert len(keys) == 3 * 4 + 2
        assert not [key for key in keys if b"Ann" in key or b"chat" in key]
        assert await log.purge(principal="Ann") == 3
        assert client.keys("purged:*") == []
    await log.aclose()


@pytest.mark.anyio
async def test_the_keys_of_a_stream_share_a_hash_slot_and_begin_with_the_prefix(server: RedisServer) -> None:
    log = RedisLog(server.url, prefix="app:")
    info = StreamInfo(new_sid())
    await log.create(info, 60.0)
    await log.signal(info.sid, "grant")
    with contextlib.closing(server.client()) as client:
        keys: Any = client.keys("app:*")
        assert sorted(keys) == [f"app:{{{info.sid}}}:{part}".encode() for part in ("frames", "meta", "signals")]
    await log.purge(sid=info.sid)
    await log.aclose()


@pytest.mark.parametrize(
    ("sizes", "limit"), [([1] * 500, 4000), ([100, 1, 3000, 7, 7, 900] * 30, 9000), ([50_000, 1, 1, 50_000], 60_000)]
)
@pytest.mark.anyio
async def test_trimming_keeps_as_much_as_it_may(sizes: list[int], limit: int, server: RedisServer) -> None:
    log = RedisLog(server.url, retention=Retention(max_bytes=limit))
    lease = await log.create(StreamInfo(new_sid()), 60.0)
    places = [cursor_zero(lease.sid)]

    def weight(first: Cursor) -> int:
        return places[-1].offset - first.offset + FRAME_COST * (places[-1].seq - first.seq)

    first = places[0]
    for size in sizes:
        places.append(await log.append(lease, places[-1], framed(places[-1], b"x" * size)))
        if weight(first) > limit:
            first = next(place for place in places[:-1] if weight(place) <= limit * 7 / 8 or place is places[-2])
        assert (await log.state(lease.sid)).first == first
    assert first.seq > 0
    assert [frame.seq for frame in await log.read(first, limit=1000)] == list(range(first.seq + 1, len(sizes) + 1))
    with contextlib.closing(server.client()) as client:
        assert client.xlen(f"streamguard:{{{lease.sid}}}:frames") == len(sizes) - first.seq + 1
    await log.purge(sid=lease.sid)
    await log.aclose()


@pytest.mark.anyio
async def test_an_append_that_trims_what_it_stood_behind_may_be_repeated(server: RedisServer) -> None:
    log = RedisLog(server.url, retention=Retention(max_bytes=1000))
    lease = await log.create(StreamInfo(new_sid()), 60.0)
    zero = cursor_zero(lease.sid)
    frames = framed(zero, *[b"x" * 100] * 20)
    tail = await log.append(lease, zero, frames)
    assert (await log.state(lease.sid)).first.seq > 0
    assert await log.append(lease, zero, frames) == tail
    await log.purge(sid=lease.sid)
    await log.aclose()


@pytest.mark.anyio
async def test_what_leads_to_an_older_stream_of_a_sid_does_not_lead_to_a_newer_one(server: RedisServer) -> None:
    log = RedisLog(server.url, prefix="twice:")
    old = StreamInfo(new_sid(), name="chat", principal="Ann", key="k")
    new = StreamInfo(old.sid, name="other", principal="Bob", key="l")
    await log.create(old, 60.0)
    with contextlib.closing(server.client()) as client:
        client.delete(*[f"twice:{{{old.sid}}}:{part}" for part in ("meta", "frames")])  # as by eviction
    await log.create(new, 60.0)
    assert await log.find("chat", "Ann") is None
    assert await log.find_key("k") is None
    assert await log.purge(principal="Ann") == 0
    assert await log.find("other", "Bob") == await log.find_key("l") == new
    assert await log.purge(principal="Bob") == 1
    await log.aclose()


@pytest.mark.parametrize("word", [None, "", "n" * 255, "é"])
@pytest.mark.parametrize("data", [b"", b" ", b"7.7.00000000+", bytes(range(256))])
def test_a_frame_is_read_as_it_was_written(word: str | None, data: bytes) -> None:
    for status, extra in ((None, None), ("complete", b""), ("failed", b"\xff" * 300), (None, b"x")):
        frame = Frame(7, 1234567890123, 0xFE, data, word, status, extra)
        assert frame_of(pack(frame)) == frame


@pytest.mark.parametrize("entry", [b"", b"7", b"7.7", b"7.7.0000000 x"[:6], b"a.b.0000000c x", b"7.7.0000000c+x"])
def test_an_entry_that_no_log_wrote_is_said_to_be_none(entry: bytes) -> None:
    with pytest.raises(LogUnavailable, match="no log has written"):
        frame_of(entry)


def test_a_name_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="too long a name"):
        pack(Frame(1, 0, 0, b"", "n" * 70_000))


# ---- arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"url": "http://localhost"}, ValueError, "redis://"),
        ({"url": None}, TypeError, "url"),
        ({"retention": 60}, TypeError, "retention"),
        ({"prefix": "{x}"}, ValueError, "prefix"),
        ({"prefix": b"x"}, TypeError, "prefix"),
        ({"max_connections": 2}, ValueError, "at least 3"),
        ({"max_connections": "4"}, TypeError, "max_connections"),
        ({"timeout": 0}, ValueError, "timeout"),
        ({"timeout": "5"}, ValueError, "timeout"),
        ({"socket_timeout": 1}, ValueError, "`timeout`"),
        ({"url": "redis://localhost?decode_responses=1"}, ValueError, "decode_responses"),
        ({"sockets": 1}, TypeError, "sockets"),
        ({"ssl_ca_certs": "ca.pem"}, TypeError, "ssl_ca_certs"),
    ],
)
def test_wrong_arguments_are_refused_where_they_are_written(
    arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        RedisLog(**arguments)


def test_settings_of_redis_py_are_passed_on() -> None:
    RedisLog("rediss://user:word@localhost:1/2", ssl_ca_certs="ca.pem", client_name="app")
    RedisLog("unix:///run/redis.sock?db=3")


# ---- several processes ----------------------------------------------------------------------------


@contextlib.contextmanager
def child(server: RedisServer, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.log.redis_child", server.url, *map(str, arguments)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


async def heard(process: subprocess.Popen[str]) -> list[str]:
    """The next line of a child: a sid, and what of it."""
    assert process.stdout is not None
    line = (await asyncio.to_thread(process.stdout.readline)).split()
    assert line, "it has ended"
    return line


async def lapsed(log: RedisLog, sid: str) -> None:
    with anyio.fail_after(30):
        while (await log.state(sid)).held:  # noqa: ASYNC110  # a lease ends on the store's clock, silently
            await asyncio.sleep(0.02)


@pytest.mark.anyio
async def test_a_reader_gets_each_frame_of_another_process_once_and_is_woken(server: RedisServer) -> None:
    log = RedisLog(server.url)
    with child(server, "timed", 40, 0.005) as producer:
        after = cursor_zero((await heard(producer))[0])
        seen = []
        with anyio.fail_after(60):
            while after.status is None:
                assert await log.wait(after, 30.0)
                for frame in await log.read(after):
                    seen.append(frame.seq)
                    after = Cursor(after.sid, frame.seq, frame.offset, frame.crc, frame.status)
    assert seen == list(range(1, 41))
    await log.aclose()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.anyio
async def test_what_was_acknowledged_outlives_a_kill_of_its_producer(seed: int, server: RedisServer) -> None:
    """And what was not is there as a whole or not at all; another process goes on from there."""
    chance = random.Random(seed)
    log = RedisLog(server.url)
    acknowledged: dict[str, int] = {}
    with child(server, "many", 12) as producer:
        for _ in range(chance.randrange(12, 900)):
            sid, number = await heard(producer)
            acknowledged[sid] = int(number)
        producer.kill()
    for sid, count in acknowledged.items():
        state = await log.state(sid)
        found = [frame.data for frame in await log.read(cursor_zero(sid), limit=1_000_000)]
        assert len(found) == state.tail.seq >= count
        assert found == [text(sid, number) for number in range(1, len(found) + 1)]
        assert (state.checkpoint and state.checkpoint.state) == (b"%d" % len(found) if found else None)
        await lapsed(log, sid)
        lease = await log.take_over(sid, 1, 60.0)
        await log.append(lease, state.tail, framed(state.tail, b"the end", status="complete"))
    await log.aclose()


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="this system stops processes in other ways")
@pytest.mark.anyio
async def test_a_producer_that_slept_through_a_takeover_appends_nothing(server: RedisServer) -> None:
    log = RedisLog(server.url)
    with child(server, "told") as producer:
        assert producer.stdin is not None
        sid, _ = await heard(producer)
        producer.send_signal(signal.SIGSTOP)
        producer.stdin.write("\n")
        producer.stdin.flush()
        await lapsed(log, sid)
        lease = await log.take_over(sid, 1, 60.0)
        await log.append(lease, cursor_zero(sid), framed(cursor_zero(sid), b"from another process"))
        producer.send_signal(signal.SIGCONT)
        assert await heard(producer) == [sid, "LeaseLost"]
    assert [frame.data for frame in await log.read(cursor_zero(sid))] == [b"from another process"]
    await log.aclose()
