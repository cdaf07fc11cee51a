"""The hand-over from stored to live frames: each frame once and in order, whenever it is appended."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import anyio
import pytest

from streamguard.core.cursor import Cursor, cursor_zero
from streamguard.core.dialect import dialect_named
from streamguard.core.errors import Failure, SourceFailed, failure_from
from streamguard.core.frame import Frame
from streamguard.core.framing import FramedEncoder
from streamguard.core.guard import CompletionGuard
from streamguard.core.items import Event
from streamguard.core.receipt import Verdict
from streamguard.core.verify import StreamVerifier
from streamguard.core.wire import Sse
from streamguard.log.base import LogUnavailable, StreamInfo, StreamState
from streamguard.log.memory import MemoryLog
from streamguard.runtime.reader import ReplayStage, stored
from tests.runtime.fakes import SID
from tests.runtime.logs import Store
from tests.runtime.virtual import BACKENDS, run

anyio_test = pytest.mark.anyio


class Writer:
    """Appends to a new stream, in no time. Frame n holds the text n, unless told otherwise."""

    def __init__(self, log: Store) -> None:
        self.log = log
        self.encoder = FramedEncoder("native", sid=SID)
        self.lease: Any = None

    async def begin(self, count: int) -> None:
        self.lease = await MemoryLog.create(self.log, StreamInfo(SID), 1000.0)
        for _ in range(count):
            await self.text()

    async def text(self, text: str | None = None) -> None:
        at = self.encoder.cursor
        await MemoryLog.append(self.log, self.lease, at, self.encoder.texts(text or str(at.seq + 1)))

    async def end(self) -> None:
        at = self.encoder.cursor
        await MemoryLog.append(self.log, self.lease, at, self.encoder.finish())


async def nobody(state: StreamState) -> None:
    raise AssertionError("the stream was taken for lost")


async def read(log: Store, after: Cursor, **options: Any) -> list[Frame]:
    return [frame async for page in stored(log, after, nobody, **options) for frame in page]


def hand_over(backend: str, steps: dict[int, str], start: int, count: int) -> tuple[list[int], int]:
    """Read from frame `start` of `count` stored ones; at the steps of the log that are numbered from 0 a text is
    appended, or the end. The numbers of the frames that came, and how many steps there were."""
    seen = 0

    async def test() -> list[int]:
        log = Store()
        writer = Writer(log)
        await writer.begin(count)
        before = (await MemoryLog.read(log, cursor_zero(SID)))[:start]
        after = Cursor(SID, before[-1].seq, before[-1].offset, before[-1].crc) if before else cursor_zero(SID)

        def at(step: str) -> Awaitable[None] | None:
            nonlocal seen
            act = steps.pop(seen, None)
            seen += 1
            return None if act is None else writer.text() if act == "text" else writer.end()

        log.at = at
        frames: list[Frame] = []
        with anyio.move_on_after(50.0) as unended:
            frames = await read(log, after)
        assert not unended.cancelled_caught, "it waited for frames that were there"
        return [frame.seq for frame in frames]

    return run(backend, test), seen


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("start", [0, 2])
def test_each_frame_comes_once_whichever_step_of_the_hand_over_it_is_appended_at(backend: str, start: int) -> None:
    """All pairs of steps: a frame at one, the terminal at another, or the same."""
    points = 0
    for text in range(12):
        for end in range(text, 14):
            steps = {text: "text", end + (end == text): "end"}
            found, seen = hand_over(backend, steps, start, 2)
            assert found == [1, 2, 3, 4][start:], (text, end)
            points = max(points, seen)
    assert points >= 12, "the hand-over has fewer steps than were tried"


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_stream_that_ends_at_any_step_of_the_hand_over_ends_for_its_reader(backend: str) -> None:
    for end in range(14):
        found, _ = hand_over(backend, {end: "end"}, 0, 2)
        assert found == [1, 2, 3], end


@anyio_test
async def test_more_than_a_page_comes_in_pages() -> None:
    log = Store()
    writer = Writer(log)
    await writer.begin(1200)
    await writer.end()
    pages = [len(page) async for page in stored(log, cursor_zero(SID), nobody)]
    assert pages == [512, 512, 177]


@anyio_test
async def test_a_stream_that_nobody_generates_is_noticed_within_a_look_and_not_before() -> None:
    log = Store()
    writer = Writer(log)
    await writer.begin(1)
    asked: list[float] = []

    async def orphaned(state: StreamState) -> None:
        asked.append(anyio.current_time())
        if len(asked) == 2:  # the first time somebody else was faster, and failed
            await writer.end()

    async with anyio.create_task_group() as tasks:

        async def release() -> None:
            await anyio.sleep(5.5)
            await MemoryLog.release(log, writer.lease)

        tasks.start_soon(release)
        frames = [frame async for page in stored(log, cursor_zero(SID), orphaned, look=1.0) for frame in page]
    assert [frame.seq for frame in frames] == [1, 2]
    assert asked == [6.0, 7.0]


@anyio_test
@pytest.mark.parametrize("always", [True, False])
async def test_whoever_waits_says_so(always: bool) -> None:
    log, said = Store(), list[float]()
    writer = Writer(log)
    await writer.begin(1)

    async def reading() -> None:
        said.append(anyio.current_time())

    async def go_on() -> None:
        for _ in range(4):  # frames more often than every look
            await anyio.sleep(0.5)
            await writer.text()
        await anyio.sleep(2.5)
        await writer.end()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(go_on)
        await read(log, cursor_zero(SID), look=1.0, reading=reading, always=always)
    assert said == ([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0] if always else [3.0, 4.0])


@anyio_test
async def test_a_log_that_says_no_is_a_failure_that_may_pass() -> None:
    log = Store()
    await Writer(log).begin(1)

    def at(step: str) -> None:
        raise LogUnavailable("it is away")

    log.at = at
    with pytest.raises(SourceFailed, match="it is away") as raised:
        await read(log, cursor_zero(SID))
    failure = failure_from(raised.value)
    assert (failure.code, failure.retryable) == ("log", True)
    log.at = None
    with pytest.raises(SourceFailed, match="it lost frames"):
        await read(log, Cursor(SID, 9, 9, 9))


# ---- the stage ----------------------------------------------------------------------------------


def a_stage(at: Cursor) -> ReplayStage:
    return ReplayStage(CompletionGuard(Sse()), at, own_ids=True, resume="/streams")


def verdict(*chunks: bytes) -> StreamVerifier:
    reader = StreamVerifier()
    for chunk in chunks:
        reader.feed(chunk)
    reader.end(clean=False)
    return reader


def test_pages_become_bytes_that_a_reader_verifies_and_the_end_is_the_streams() -> None:
    encoder = FramedEncoder("native", sid=SID)
    frames = [*encoder.texts("a"), *encoder.texts("b"), *encoder.finish()]
    stage = a_stage(cursor_zero(SID))
    reader = verdict(stage.open(), stage.push(frames[:1], 0.0), stage.push(frames[1:], 0.0), stage.finish(0.0))
    assert reader.verdict is Verdict.COMPLETE
    assert (stage.items, stage.status, stage.cursor[:2]) == (3, "complete", (SID, 3))
    assert stage.fail(Failure("late", "it is too late"), 0.0) == b""


@anyio_test
@pytest.mark.parametrize("rows", [False, True])
async def test_the_pages_end_where_their_reader_is_to_leave(rows: bool) -> None:
    log = Store() if not rows else MemoryLog(clock=anyio.current_time)
    writer = Writer(log)  # type: ignore[arg-type]
    await writer.begin(2)
    asked: list[float] = []

    def leave() -> bool:
        asked.append(anyio.current_time())
        return anyio.current_time() >= 2.5

    pages = [page async for page in stored(log, cursor_zero(SID), nobody, rows=rows, leave=leave)]
    assert sum(map(len, pages)) == 2
    assert 2.5 <= anyio.current_time() <= 3.5
    assert asked


@pytest.mark.parametrize(("status", "reason"), [("failed", b"lost"), ("shutdown", b"shutdown")])
def test_an_end_that_is_not_the_streams_is_a_bye_said_once(status: str, reason: bytes) -> None:
    encoder = FramedEncoder("native", sid=SID)
    stage = a_stage(cursor_zero(SID))
    opening = stage.open() + stage.push(encoder.texts("a"), 0.0)
    bye = stage.fail(Failure("x", "y"), 0.0, status)
    assert reason in bye
    assert verdict(opening, bye).verdict is Verdict.TRUNCATED
    assert (stage.status, stage.fail(Failure("x", "y"), 0.0), stage.finish(0.0)) == (None, b"", b"")


GOING = Failure("shutdown", "the server is going away", retryable=True)
CHUNK = '{"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}'


def told(dialect: str, item: str | Event | None, failure: Failure | None, *, tells: bool = True) -> StreamVerifier:
    """What a reader of a foreign dialect makes of a connection that ends before its stream."""
    tongue = dialect_named(dialect)
    encoder = FramedEncoder(tongue, sid=SID)
    guard, zero = CompletionGuard(Sse(ids="comment")), cursor_zero(SID)
    stage = ReplayStage(guard, zero, own_ids=False, resume=None, tells=tongue if tells else None)
    received = stage.open()
    if item is not None:
        received += stage.push(encoder.texts(item) if isinstance(item, str) else encoder.item(item), 0.0)
    last = stage.finish(0.0) if failure is None else stage.fail(failure, 0.0, failure.code)
    assert b": bye " in last
    assert b"/var/log.db" not in last
    assert (stage.status, stage.fail(GOING, 0.0), stage.finish(0.0)) == (None, b"", b"")
    assert stage.sent == len(received + last)
    reader = StreamVerifier(dialect=dialect)
    reader.feed(received + last)
    reader.end(clean=True)
    return reader


FOREIGN = [
    ("openai", "a"), ("openai-responses", "a"), ("anthropic", "a"), ("ui", "a"), ("ag-ui", "a"), ("raw", Event(CHUNK)),
    ("openai", None), ("raw", None),
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "item"), FOREIGN)
@pytest.mark.parametrize(
    ("failure", "code"),
    [(GOING, "shutdown"), (Failure("log", "no /var/log.db"), "cut"), (None, "cut")],
    ids=["shutdown", "log", "pages over"],
)
def test_a_reader_for_whom_a_bye_says_nothing_is_told_in_its_dialect(
    dialect: str, item: Any, failure: Failure | None, code: str
) -> None:
    reader = told(dialect, item, failure)
    assert (reader.verdict, reader.failure and reader.failure.code) == (Verdict.FAILED, code)


def test_one_that_comes_back_is_not_told_that_its_stream_failed() -> None:
    assert told("openai", "a", GOING, tells=False).verdict is Verdict.TRUNCATED


def test_a_reader_that_is_replaced_is_told_so() -> None:
    stage = a_stage(cursor_zero(SID))
    stage.open()
    stage.parting = "replaced"
    assert b"replaced" in stage.finish(0.0)


def test_a_stage_has_no_clock_but_signs_of_life() -> None:
    stage = a_stage(cursor_zero(SID))
    assert stage.cursor == cursor_zero(SID)
    stage.open()
    assert (stage.tick(0.0), stage.timed) == (b"", False)
    stage.deadline()
    assert stage.heartbeat()
    assert stage.sent > 0


