"""Credit over one connection in virtual time: what is sent, what the beats say, and when a reader is given up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from streamguard.core.credit import Credit, Grant
from streamguard.core.cursor import Cursor, cursor_zero
from streamguard.core.errors import Failure
from streamguard.core.frame import Frame
from streamguard.core.framing import FramedEncoder
from streamguard.core.guard import CompletionGuard
from streamguard.core.wire import Ndjson
from streamguard.log.base import StreamState
from streamguard.runtime.direct import DirectDriver
from streamguard.runtime.flow import Flow
from streamguard.runtime.reader import ReplayStage, stored
from streamguard.runtime.source import TokenSource
from tests.runtime.fakes import SID, Wire, timing
from tests.runtime.logs import Store
from tests.runtime.test_reader import Writer

pytestmark = pytest.mark.anyio
LOTS = 10**6


async def nobody(state: StreamState) -> None:
    raise AssertionError("the stream was taken for lost")


class Sent:
    """A stream of `count` frames in a log, ended if `whole`, and a connection that reads it with `credit`."""

    def __init__(self, count: int, frames: int, size: int, *, whole: bool = True, **limits: Any) -> None:
        self.count, self.whole = count, whole
        self.wire = Wire()
        self.timing = timing(**{"heartbeat": 10.0, "write": 30.0, "linger": 0.0, **limits})
        zero = cursor_zero(SID)
        beats = self.timing.heartbeat is not None
        credit = Credit(frames, size, zero)
        self.flow = Flow(credit, zero, limit=self.timing.write, beats=beats, clock=anyio.current_time)
        self.stage = ReplayStage(CompletionGuard(Ndjson()), zero, own_ids=True, resume="/s", flow=self.flow)
        self.log = Store()
        self.leave: Callable[[], bool] | None = None
        self.told: list[float] = []  # when it was said that the stream is read

    async def run(self, *beside: Callable[[], Any]) -> None:
        writer = Writer(self.log)
        await writer.begin(self.count)
        if self.whole:
            await writer.end()

        async def reading() -> None:
            self.told.append(anyio.current_time())

        zero = cursor_zero(SID)
        pages = stored(self.log, zero, nobody, reading=reading, always=False, leave=self.leave, flow=self.flow)
        source: Any = TokenSource(pages)  # type: ignore[arg-type]
        driver = DirectDriver[bytes](source, self.stage, self.wire, self.timing)
        self.flow.gone = lambda: driver.drop(Failure("gone", "no answer"))
        async with anyio.create_task_group() as tasks:
            for act in beside:
                tasks.start_soon(act)
            await driver.run()
            self.ended = anyio.current_time()
            tasks.cancel_scope.cancel()

    @property
    def lines(self) -> list[str]:
        """What was written, in order: frames by their number, signs and ends by their names."""
        names = {b'{"op': "open", b'{"by': "bye"}
        found = []
        for line in self.wire.body.split(b"\n")[:-1]:
            if line.startswith(b'{"hb"'):
                found.append("blocked" if b"blocked" in line else "beat")
            elif line.startswith(b'{"id"'):
                found.append("end" if b'"end"' in line else line.split(b".")[1].decode())
            else:
                found.append(names[line[:4]])
        return found


def after(seconds: float, act: Callable[[], Any]) -> Callable[[], Any]:
    async def later() -> None:
        await anyio.sleep(seconds)
        act()

    return later


@pytest.mark.parametrize(("credit", "sent"), [((3, LOTS), 3), ((LOTS, 3), 3), ((LOTS, 1), 1), ((2, 5), 2)])
async def test_a_frame_starts_only_while_there_is_credit(credit: tuple[int, int], sent: int) -> None:
    """Each of these frames has three bytes, with its quotes, so a byte too few is one that may be overshot."""
    bytes_limit = credit[1] if credit[1] == LOTS else credit[1] * 3 - 2
    served = Sent(9, credit[0], bytes_limit, write=None, heartbeat=None)
    with anyio.move_on_after(100.0):
        await served.run()
    assert served.lines == ["open", *map(str, range(1, sent + 1)), "bye"]


@pytest.mark.parametrize("grants", [0, 100])
async def test_a_connection_that_is_to_end_for_its_age_does_so_blocked_or_not(grants: int) -> None:
    served = Sent(200, 2, LOTS, write=None)
    served.leave = lambda: anyio.current_time() >= 30.0

    async def trickle() -> None:
        for number in range(grants):
            await anyio.sleep(1.0)
            served.flow.answered()
            served.flow.give(Grant(3 + number, LOTS))

    async def alive() -> None:
        while True:
            await anyio.sleep(5.0)
            served.flow.answered()

    await served.run(trickle, alive)
    assert 30.0 <= served.ended <= 36.0
    assert served.lines[-1] == "bye"


async def test_a_grant_lets_exactly_so_many_more_go_and_an_older_one_changes_nothing() -> None:
    served = Sent(9, 2, LOTS, heartbeat=None)
    give = served.flow.give
    await served.run(
        after(1.0, lambda: give(Grant(5, LOTS))),
        after(2.0, lambda: give(Grant(3, LOTS))),
        after(3.0, lambda: give(Grant(9, LOTS))),
    )
    assert served.lines == ["open", *map(str, range(1, 10)), "end"]
    seen = [time for time, chunk in zip(served.wire.times, served.wire.chunks, strict=True) if b'"id"' in chunk]
    assert sorted(set(seen)) == [0.0, 1.0, 3.0]


async def test_a_terminal_needs_no_credit() -> None:
    served = Sent(2, 2, LOTS)
    await served.run()
    assert served.lines == ["open", "1", "2", "end"]
    assert "end" in served.wire.calls


async def test_a_blocked_sender_says_so_in_its_beats_and_one_that_waits_for_its_source_does_not() -> None:
    served = Sent(2, 1, LOTS, whole=False)

    async def reader() -> None:
        await anyio.sleep(15.0)
        served.flow.answered()
        served.flow.give(Grant(9, LOTS))
        await anyio.sleep(15.0)
        served.flow.answered()

    with anyio.move_on_after(36.0):
        await served.run(reader)
    assert served.lines == ["open", "1", "blocked", "2", "beat", "beat", "bye"]


async def test_three_beats_without_an_answer_are_a_reader_that_is_gone_though_all_writes_succeed() -> None:
    served = Sent(1, 9, LOTS, whole=False)
    await served.run()
    assert served.lines == ["open", "1", "beat", "beat", "beat"]
    assert served.ended == 40.0
    assert (served.wire.calls[-1], served.wire.drops) == ("abort", 1)


async def test_a_reader_that_answers_one_beat_in_three_stays() -> None:
    served = Sent(1, 9, LOTS, whole=False)

    async def reader() -> None:
        while True:
            await anyio.sleep(29.0)
            served.flow.answered()

    with anyio.move_on_after(600.0) as scope:
        await served.run(reader)
    assert scope.cancelled_caught


@pytest.mark.parametrize(("heartbeat", "ended"), [(10.0, 40.0), (None, 30.0)])
async def test_a_reader_that_grants_nothing_is_slow_a_while_after_it_was_asked(
    heartbeat: float | None, ended: float
) -> None:
    served = Sent(9, 2, LOTS, heartbeat=heartbeat)

    async def reader() -> None:
        while True:
            await anyio.sleep(5.0)
            served.flow.answered()

    await served.run(reader)
    assert served.ended == ended
    assert served.lines[:3] == ["open", "1", "2"]
    assert served.lines[-1] == "bye"
    assert b'"slow"' in served.wire.body
    assert set(served.lines[3:-1]) <= {"blocked"}
    assert served.wire.calls[-1] == "abort"


async def test_while_it_is_blocked_the_stream_is_known_to_be_read() -> None:
    served = Sent(9, 2, LOTS)
    await served.run()
    gaps = [b - a for a, b in zip([0.0, *served.told], [*served.told, served.ended], strict=True)]
    assert max(gaps) <= 5.0


async def test_an_acknowledgement_counts_if_its_cursor_was_sent_and_says_how_long_it_took() -> None:
    served = Sent(3, 2, LOTS)
    frames: list[Frame] = []
    rtts: list[float | None] = []

    async def reader() -> None:
        await anyio.sleep(2.0)
        frames.extend(await served.log.read(cursor_zero(SID)))
        sent, not_yet = (Cursor(SID, *attrs_of(frames[index])) for index in (1, 2))
        known = served.flow.acknowledge
        assert not known(not_yet)
        assert not known(sent._replace(crc=1))
        rtts.append(served.flow.rtt)
        assert known(sent)
        assert known(sent)
        rtts.append(served.flow.rtt)
        served.flow.give(Grant(9, LOTS))

    await served.run(reader)
    assert (served.lines[-1], rtts) == ("end", [None, 2.0])


def attrs_of(frame: Frame) -> tuple[int, int, int]:
    return frame.seq, frame.offset, frame.crc


@pytest.mark.parametrize("size", [1, 2, 5])
async def test_a_terminal_within_a_page_waits_for_the_frames_before_it(size: int) -> None:
    encoder = FramedEncoder("native", sid=SID)
    page = [*[frame for number in range(size) for frame in encoder.texts(str(number))], *encoder.finish()]
    zero = cursor_zero(SID)
    flow = Flow(Credit(1, LOTS, zero), zero, limit=1.0, beats=False)

    if size == 1:
        assert flow.free(page)
    else:
        assert not flow.free(page)
        assert await flow.some(page, None, None) == 1
        assert not flow.free(page[1:])
        assert await flow.some(page[1:], None, None) is None
    assert flow.slow == (size > 1)


@pytest.mark.parametrize(
    ("gap", "count", "asked"),
    [
        pytest.param(0.02, 500, (90, 110), id="fifty a second: ten samples a second"),
        pytest.param(0.0, 1000, (10, 40), id="a burst: one of many"),
        pytest.param(1.0, 50, (50, 51), id="one a second: each"),
    ],
)
def test_the_clock_is_asked_for_some_frames_only(gap: float, count: int, asked: tuple[int, int]) -> None:
    now, times = 0.0, 0

    def clock() -> float:
        nonlocal times
        times += 1
        return now

    zero = cursor_zero(SID)
    flow = Flow(Credit(LOTS, LOTS, zero), zero, limit=1.0, clock=clock)
    encoder = FramedEncoder("native", sid=SID)
    for number in range(count):
        now += gap
        assert flow.free(encoder.texts(str(number)))
    assert asked[0] <= times <= asked[1]
