"""What the observers of a stream are told, at each way to its end, in virtual time."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from streamguard.core.errors import Failure
from streamguard.core.flush import EveryTokens
from streamguard.core.items import Block
from streamguard.core.pipeline import FrameStage
from streamguard.log.memory import MemoryLog
from streamguard.observe.hooks import (
    AbortNotCarried,
    Blocked,
    Closed,
    Counts,
    FirstFrame,
    Frames,
    Observers,
    Opened,
    ReaderGone,
    RequestLabels,
    SourceClosed,
    Stalled,
    StreamDetails,
    TakenOver,
    Terminal,
    observers_of,
)
from streamguard.runtime.direct import DirectDriver
from streamguard.runtime.runs import Detach, Runs
from streamguard.runtime.seen import NO_LABELS, UNSEEN, Seen, labels_of, seen_by, tell_sealed
from streamguard.runtime.source import TokenSource
from tests.observe.noted import Noted
from tests.runtime.fakes import SID, Script, Wire, native, serve, timing
from tests.runtime.logs import make_producer
from tests.runtime.test_blocking import played
from tests.runtime.test_lead import Setting

pytestmark = pytest.mark.anyio

WHOLE = ["opened", "first_frame", "terminal", "source_closed", "frames", "closed"]


async def test_a_whole_stream_tells_of_its_way_in_order_and_once() -> None:
    noted = Noted()
    await serve(Script(1.0, "a", "b", 2.0, "c"), observe=noted).run()
    assert noted.names() == WHOLE
    assert len({id(event.stream) for event in noted.events}) == 1
    stream = noted.one(Opened).stream
    assert (stream.part, stream.name, stream.hop) == ("direct", SID[:8], None)
    assert noted.one(FirstFrame).seconds == pytest.approx(1.0)
    assert noted.one(Terminal).cause == ""
    closed = noted.one(Closed)
    assert (closed.outcome.status, closed.whole, closed.lost) == ("complete", True, 0)
    frames = noted.one(Frames)
    assert (frames.items, frames.frames, frames.bytes) == (3, 4, closed.outcome.bytes)
    assert frames.sent == closed.outcome.sent


async def test_tokens_are_counted_on_the_way_and_all_counts_add_up() -> None:
    noted = Noted()
    script = [part for number in range(60) for part in (f"t{number}", 0.5)]
    await serve(Script(*script), observe=noted, heartbeat=2.0, write=8.0).run()
    told = noted.all(Frames)
    assert 5 < len(told) < 60  # at the wakes of the clock, and not at each token
    outcome = noted.one(Closed).outcome
    assert sum(each.items for each in told) == 60
    assert sum(each.frames for each in told) == outcome.frames
    assert sum(each.bytes for each in told) == outcome.bytes
    assert sum(each.sent for each in told) == outcome.sent
    assert all(each.lag is not None for each in told)


async def test_whoever_asks_is_told_how_far_a_stream_is_and_for_how_long_it_waits_for_its_source() -> None:
    noted = Noted()
    found: list[Counts] = []

    def ask(*write: Any) -> float:
        found.append(noted.one(Opened).count())
        return 0.0

    wire = Wire(slow=ask)
    await serve(Script(ask, 1.5, ask, "a", ask, 2.5, ask, "b"), wire, observe=noted).run()
    ask()
    outcome = noted.one(Closed).outcome
    in_source = [(each.items, each.frames, each.waits) for each in found if each.waits is not None]
    assert in_source == [(0, 0, 0.0), (0, 0, 1.5), (1, 1, 0.0), (1, 1, 2.5)]
    in_writes = [each.items for each in found[:-1] if each.waits is None]
    assert set(in_writes) == {0, 1, 2}
    assert (found[-1].items, found[-1].frames, found[-1].sent) == (2, 2, outcome.sent)
    assert found[-1].bytes == outcome.bytes


def test_on_a_thread_too() -> None:
    noted = Noted()
    found: list[Counts] = []
    played("a", 2.0, lambda: found.append(noted.one(Opened).count()), "b", observe=noted).serve()
    assert [(each.items, each.frames, each.waits) for each in found] == [(1, 1, 2.0)]
    assert noted.one(Opened).count() == Counts(2, 2, noted.one(Closed).outcome.bytes, noted.one(Closed).outcome.sent)


async def test_the_first_frame_is_the_one_that_leaves_and_not_the_item_that_is_held() -> None:
    noted = Noted()
    policy = EveryTokens(3, first="policy")
    await serve(Script(1.0, "a", 1.0, "b", 1.0, "c", 1.0, "d"), policy=policy, observe=noted).run()
    assert noted.one(FirstFrame).seconds == pytest.approx(3.0)
    held = Noted()
    await serve(Script(1.0, "a", 1.0), policy=EveryTokens(3, first="policy"), observe=held).run()
    assert held.one(FirstFrame).seconds == pytest.approx(2.0)  # with the terminal


async def test_a_stream_without_content_has_no_first_frame() -> None:
    noted = Noted()
    await serve(Script(1.0), observe=noted).run()
    assert noted.all(FirstFrame) == []
    assert noted.one(Frames).frames == 1


async def test_a_source_that_raises_is_told_with_its_code() -> None:
    noted = Noted()
    await serve(Script("a", ValueError("no")), observe=noted).run()
    terminal, closed = noted.one(Terminal), noted.one(Closed)
    assert (terminal.status, terminal.cause) == ("failed", "source_error")
    assert (closed.cause, closed.whole) == ("source_error", False)


async def test_a_silence_that_ends_its_stream_is_told_with_its_length() -> None:
    noted = Noted()
    await serve(Script("a", 99.0), observe=noted, stall=5.0).run()
    assert noted.one(Stalled).silent == pytest.approx(5.0)
    assert noted.one(Closed).outcome.status == "stalled"


async def test_a_reader_that_leaves_is_told() -> None:
    noted = Noted()
    wire = Wire()
    await serve(Script("a", wire.left.set, 1.0), wire, observe=noted).run()
    assert noted.one(ReaderGone).cause == "gone"
    assert noted.all(Terminal) == []
    assert noted.one(Closed).whole is False


async def test_a_write_that_waits_is_told_with_its_length_once_it_is_over() -> None:
    noted = Noted()
    wire = Wire(slow=lambda number, data: 10.0 if number == 3 else 0.0)
    await serve(Script("a", "b", 1.0, "c"), wire, observe=noted, write=16.0).run()
    blocked = noted.one(Blocked)
    assert (blocked.by, blocked.seconds) == ("transport", pytest.approx(10.0))


async def test_a_reader_that_takes_nothing_is_blocked_until_the_limit_and_gone_as_slow() -> None:
    noted = Noted()
    wire = Wire(slow=lambda number, data: 99.0 if number == 3 else 0.0)
    await serve(Script("a", "b", "c"), wire, observe=noted, write=8.0).run()
    assert noted.one(Blocked).seconds == pytest.approx(8.0)
    assert noted.one(ReaderGone).cause == "slow"


@pytest.mark.parametrize("cleanup", [0.0, 3.0])
async def test_a_write_that_waited_until_its_reader_left_is_told_though_no_wake_met_it(cleanup: float) -> None:
    noted = Noted()
    wire = Wire(slow=lambda number, data: 1000.0 if number == 3 else 0.0)

    async def leave() -> None:
        await anyio.sleep(4.0)
        wire.left.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(leave)
        await serve(Script("a", "b", "c", cleanup=lambda: anyio.sleep(cleanup)), wire, observe=noted, write=100.0).run()
    blocked = noted.one(Blocked)
    assert (blocked.by, blocked.seconds) == ("transport", pytest.approx(4.0))
    assert noted.one(Closed).outcome.status == "gone"


async def test_a_write_that_a_wake_met_and_whose_reader_then_left_is_told_once() -> None:
    noted = Noted()
    wire = Wire(slow=lambda number, data: 1000.0 if number == 3 else 0.0)

    async def leave() -> None:
        await anyio.sleep(30.0)
        wire.left.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(leave)
        await serve(Script("a", "b", "c", cleanup=lambda: anyio.sleep(3.0)), wire, observe=noted, write=40.0).run()
    assert noted.one(Blocked).seconds == pytest.approx(30.0)


async def test_a_write_that_breaks_by_itself_is_told_with_its_wait() -> None:
    noted = Noted()

    def breaks(number: int, data: bytes) -> None:
        if number == 3:
            raise ConnectionResetError

    wire = Wire(slow=lambda number, data: 4.0 if number == 3 else 0.0, on_send=breaks)
    await serve(Script("a", "b", "c"), wire, observe=noted, write=100.0).run()
    assert noted.one(Blocked).seconds == pytest.approx(4.0)


async def test_a_source_that_is_abandoned_is_told_once_and_nothing_follows_the_end() -> None:
    noted = Noted()

    async def cleanup() -> None:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(50.0)

    await serve(Script("a", 99.0, cleanup=cleanup), observe=noted, stall=1.0, close=2.0).run()
    assert [event.abandoned for event in noted.all(SourceClosed)] == [True]
    assert noted.names()[-1] == "closed"
    assert noted.one(Closed).outcome.abandoned


async def test_how_long_a_source_took_to_close_is_told() -> None:
    noted = Noted()

    async def cleanup() -> None:
        await anyio.sleep(1.5)

    def refuse(number: int, data: bytes) -> None:
        if number == 3:
            raise OSError("the connection is gone")

    await serve(Script("a", "b", "c", cleanup=cleanup), Wire(on_send=refuse), observe=noted).run()
    assert noted.one(SourceClosed).seconds == pytest.approx(1.5)


@pytest.mark.parametrize(("script", "told"), [(("a", ValueError()), ["http10"]), (("a",), [])])
async def test_only_an_abort_is_not_carried(script: tuple[Any, ...], told: list[str]) -> None:
    noted, stage = Noted(), native(EveryTokens(1))
    seen = seen_by(observers_of(noted), stage, anyio.current_time, hop="http10")
    await DirectDriver(TokenSource(Script(*script)), stage, Wire(), timing(linger=0.0), seen=seen).run()
    assert [event.hop for event in noted.all(AbortNotCarried)] == told


async def test_a_frame_that_is_dropped_between_encoder_and_guard_is_counted_as_lost(monkeypatch: Any) -> None:
    push, blocks = FrameStage.push, [Block("image", {"number": number}) for number in range(4)]

    def dropping(self: FrameStage, item: Any, now: float) -> list[Any]:
        frames = push(self, item, now)
        return [] if item is blocks[1] else frames

    monkeypatch.setattr(FrameStage, "push", dropping)
    noted = Noted()
    served = await serve(Script(*blocks), observe=noted).run()
    assert (served.outcome.status, served.wire.parts) == ("failed", blocks[:1])
    closed = noted.one(Closed)
    assert (closed.lost, closed.whole) == (2, False)  # the one that was dropped, and the next, which then does not fit


async def test_a_hook_that_raises_harms_no_stream_and_is_logged_once(caplog: Any) -> None:
    class Broken(Noted):
        def opened(self, event: Any) -> None:
            raise anyio.get_cancelled_exc_class()  # no cancellation of anybody's

        def closed(self, event: Any) -> None:
            raise ValueError("no")

    broken, noted = Broken(), Noted()
    observers = Observers([broken, noted])
    for _ in range(2):
        served = await serve(Script("a", "b"), observe=observers).run()
        assert served.outcome.status == "complete"
    assert noted.names() == WHOLE * 2
    assert caplog.text.count("an observer raised") == 2


async def test_without_observers_nothing_is_made() -> None:
    assert seen_by(None, native(EveryTokens(1)), anyio.current_time) is UNSEEN


# ---- streams in a log ---------------------------------------------------------------------------


async def test_a_producer_tells_as_its_own_part_and_how_long_appends_take() -> None:
    class Slow(MemoryLog):
        text_append = None  # type: ignore[assignment]

        async def append(self, *args: Any, **named: Any) -> Any:
            await anyio.sleep(0.25)
            return await super().append(*args, **named)

    noted = Noted()
    log = Slow(clock=anyio.current_time)
    producer = await make_producer(log, Script("a", "b"), observers=observers_of(noted))
    await producer.run()
    assert noted.names("producer") == WHOLE
    closed = noted.one(Closed)
    assert closed.log_latency == pytest.approx(0.25)
    assert (closed.lost, closed.outcome.frames) == (0, 3)


async def test_a_stream_that_is_let_go_of_says_so() -> None:
    noted = Noted()
    log = MemoryLog(clock=anyio.current_time)

    def told_to_go() -> None:
        producer.shut_down()

    producer = await make_producer(log, Script("a", told_to_go, 9.0), observers=observers_of(noted))
    await producer.run()
    closed = noted.one(Closed)
    assert (closed.outcome.status, closed.outcome.let_go, closed.lost, closed.whole) == ("shutdown", True, 0, False)


async def test_what_no_log_took_is_lost() -> None:
    noted = Noted()
    log = MemoryLog(clock=anyio.current_time)

    async def purge() -> None:
        await log.purge(sid=SID)

    producer = await make_producer(log, Script("a", purge, "b", "c"), observers=observers_of(noted))
    await producer.run()
    closed = noted.one(Closed)
    assert closed.lost == 1  # `b` was made; `c` never came
    assert not closed.whole


async def test_a_source_that_is_too_far_ahead_is_told_when_it_goes_on() -> None:
    noted, setting = Noted(), Setting(800, count=300)
    at = setting.reader()
    producer = await make_producer(setting.log, setting.source, stall=None, observers=observers_of(noted))
    Runs(None, setting.readers, 800).start(producer, Detach(1000.0))
    await anyio.sleep(5.0)
    assert noted.all(Blocked) == []
    at[0] = 10**9
    await anyio.sleep(2.0)
    blocked = noted.all(Blocked)[0]
    assert (blocked.by, blocked.stream.part) == ("lead", "producer")
    assert blocked.seconds == pytest.approx(5.0, abs=0.2)


async def test_what_is_known_before_a_stream_begins_is_told_behind_its_beginning() -> None:
    noted = Noted()
    log = MemoryLog(clock=anyio.current_time)
    producer = await make_producer(log, Script("a"), observers=observers_of(noted))
    producer.seen.taken_over(7, 2, 1)
    await producer.run()
    assert noted.names() == ["opened", "taken_over", *WHOLE[1:]]
    taken = noted.one(TakenOver)
    assert (taken.frame, taken.lease, taken.crashes, taken.gone_on) == (7, 2, 1, True)


async def test_a_stream_that_is_given_its_end_is_told_without_having_begun() -> None:
    noted = Noted()
    tail = native(EveryTokens(1)).cursor._replace(seq=4)
    tell_sealed(observers_of(noted), tail, 3, 1)
    tell_sealed(None, tail, 3, 1)
    taken = noted.one(TakenOver)
    assert (taken.gone_on, taken.frame, taken.stream.name) == (False, 4, SID[:8])


# ---- on a thread --------------------------------------------------------------------------------


def test_a_stream_on_a_thread_tells_the_same() -> None:
    noted = Noted()
    played(1.0, "one ", 3.0, "two", 3.0, "three", observe=noted).serve()
    assert [name for name in noted.names() if name != "frames"] == [name for name in WHOLE if name != "frames"]
    assert noted.one(FirstFrame).seconds == pytest.approx(1.0)
    assert sum(each.items for each in noted.all(Frames)) == 3
    assert noted.one(Closed).lag is None  # it has no loop


def test_a_stall_and_an_abort_on_a_thread_are_told() -> None:
    noted = Noted()
    played("one", 9.0, stall=5.0, observe=noted).serve()
    assert noted.one(Stalled).silent == pytest.approx(5.0)
    assert noted.one(Closed).cause == "stalled"


# ---- what a request is called -------------------------------------------------------------------

TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.mark.parametrize(
    ("traceparent", "found"),
    [
        (f"00-{TRACE}-b7ad6b7169203331-01", TRACE),
        (f"cc-{TRACE}-b7ad6b7169203331-01-later", TRACE),
        (f"00-{TRACE.upper()}-b7ad6b7169203331-01", None),
        (f"00-{'0' * 32}-b7ad6b7169203331-01", None),
        (TRACE, None),
        ("00-short-b7ad6b7169203331-01", None),
        ("", None),
    ],
)
def test_a_trace_is_known_by_a_header_that_is_well_formed(traceparent: str, found: str | None) -> None:
    labels = labels_of({"traceparent": traceparent, "x-request-id": "r"}, "/chat")
    assert (labels.trace_id, labels.request_id, labels.route) == (found, "r", "/chat")


def test_a_request_without_names_has_none() -> None:
    assert labels_of({}) == NO_LABELS == RequestLabels()


def test_a_part_is_a_key_of_its_own_and_never_a_whole_id() -> None:
    stage = native(EveryTokens(1))
    one, two = (Seen(Observers([Noted()]), stage, lambda: 0.0) for _ in range(2))
    assert len({one.stream: 1, two.stream: 2}) == 2
    assert isinstance(one.stream, StreamDetails)
    assert SID not in repr(one.stream)


async def test_a_cancel_by_the_application_is_told_with_its_code() -> None:
    noted = Noted()
    served = serve(Script("a", lambda: served.cancel(Failure("mine", "enough")), "b", 1.0), observe=noted)
    await served.run()
    assert (noted.one(Terminal).status, noted.one(Closed).cause) == ("cancelled", "mine")
