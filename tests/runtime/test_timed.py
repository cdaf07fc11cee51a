"""The slowest leg of a token's way, with a delay injected in each, in virtual time."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from streamguard.adapters.wsgi import GuardedResponse
from streamguard.core.credit import Credit, Grant
from streamguard.core.cursor import cursor_zero
from streamguard.core.flush import EveryTokens, Immediate, any_of
from streamguard.core.guard import CompletionGuard
from streamguard.core.wire import Sse
from streamguard.observe.hooks import Acknowledged, Blocked, Observer, Observers, RequestLabels, Sampled, StreamDetails
from streamguard.observe.legs import FLOOR, LEGS, Legs, Way
from streamguard.observe.metrics import LEGS as LABELS
from streamguard.runtime.buffer import Buffer
from streamguard.runtime.direct import DirectDriver
from streamguard.runtime.flow import Flow
from streamguard.runtime.push import PushSource
from streamguard.runtime.reader import ReplayStage, stored
from streamguard.runtime.seen import UNSEEN, seen_by
from streamguard.runtime.shortcut import NearSource
from streamguard.runtime.source import TokenSource
from streamguard.runtime.timing import Timing
from tests.adapters.wsgi_calls import called
from tests.conftest import real_loops
from tests.observe.noted import Noted
from tests.runtime.fakes import SID, Script, Wire, native, serve
from tests.runtime.logs import Store, make_producer

pytestmark = pytest.mark.anyio

DELAY = 0.5
STREAM = StreamDetails("direct", "AAAAAAAA", RequestLabels(), 0.0, 0.0)


class Late:
    """A clock that can be put forward, as by work that blocks the loop."""

    def __init__(self) -> None:
        self.more = 0.0

    def __call__(self) -> float:
        return anyio.current_time() + self.more

    def work(self) -> None:
        self.more += DELAY


def tokens(count: int, *between: Any) -> Script:
    return Script(*[part for number in range(count) for part in (f"t{number} ", *between)])


# ---- a delay in each leg ------------------------------------------------------------------------


async def slow_source(legs: Legs) -> None:
    await serve(tokens(9, DELAY), Wire(slow=0.01), observe=legs).run()


async def slow_transport(legs: Legs) -> None:
    await serve(tokens(9, 0.01), Wire(slow=DELAY), observe=legs).run()


async def slow_transport_with_the_source_ahead(legs: Legs) -> None:
    await sent_from(TokenSource(tokens(9, 0.01), buffer=Buffer()), Wire(slow=DELAY), anyio.current_time, legs)


async def holding_policy(legs: Legs) -> None:
    await serve(tokens(16, DELAY / 4), Wire(), policy=EveryTokens(8, first="policy"), observe=legs).run()


async def slow_encoding(legs: Legs) -> None:
    late = Late()

    class Working(Immediate):
        immediate = False

        def push(self, piece: str, held: int, now: float) -> int:
            late.work()
            return held

    await serve(tokens(9, 0.01), Wire(), policy=any_of(Working()), clock=late, observe=legs).run()


async def late_loop(legs: Legs) -> None:
    late = Late()
    await sent_from(TokenSource(tokens(9, late.work, 0.01), buffer=Buffer()), Wire(blocks=False), late, legs)


async def slow_append(legs: Legs) -> None:
    await logged(legs, Store(at=late_at("append", "append, done")), Wire())  # DELAY / 2 each


async def slow_read(legs: Legs) -> None:
    await logged(legs, Store(at=late_at("wait, done", "read")), Wire())


async def slow_connection_of_a_reader(legs: Legs) -> None:
    await logged(legs, Store(), Wire(slow=DELAY))


async def slow_credit(legs: Legs) -> None:
    await logged(legs, Store(), Wire(), credit=DELAY)


async def slow_reader(legs: Legs) -> None:
    await serve(tokens(9, 0.01), Wire(slow=0.02), observe=legs).run()
    legs.acknowledged(Acknowledged(STREAM, 1.0, 3, DELAY))
    legs.acknowledged(Acknowledged(STREAM, 1.0, 3, None))  # of which nobody knows when it was sent


INJECTED: list[tuple[str, int, Any]] = [
    ("generated", 1, slow_source),
    ("generated", 3, slow_source),
    ("buffered", 1, late_loop),
    ("held", 1, holding_policy),
    ("encoded", 1, slow_encoding),
    ("appended", 1, slow_append),
    ("read", 1, slow_read),
    ("read", 3, slow_read),
    ("credit", 1, slow_credit),
    ("sent", 1, slow_transport),
    ("sent", 3, slow_transport),
    ("sent", 1, slow_transport_with_the_source_ahead),
    ("sent", 1, slow_connection_of_a_reader),
    ("acknowledged", 1, slow_reader),
]


@pytest.mark.parametrize(("leg", "every", "delayed"), INJECTED)
async def test_the_leg_that_a_delay_is_injected_in_is_the_slowest(leg: str, every: int, delayed: Any) -> None:
    legs = Legs(every)
    await delayed(legs)
    slowest = legs.slowest()
    assert slowest is not None
    assert slowest.leg == leg
    assert slowest.seconds >= DELAY / 2
    assert slowest.share > 0.5
    assert slowest.change == LEGS[slowest.leg][1]
    assert str(slowest).startswith(f"{leg}: ")


def test_a_delay_is_injected_in_every_leg() -> None:
    assert {leg for leg, _, _ in INJECTED} == set(LEGS)


def late_at(*steps: str) -> Any:
    """An `at` of a Store: these steps take their time."""

    async def late() -> None:
        await anyio.sleep(DELAY / 2)

    return lambda step: late() if step in steps else None


async def logged(
    observer: Observer, store: Store, wire: Wire, *, credit: float | None = None, here: bool = True
) -> None:
    """Generate nine tokens into a log, and read them at once; `credit` is how many seconds each new frame waits for it.
    Unless `here`, they are generated elsewhere, as far as the reader knows."""
    observers = Observers([observer])
    producer = await make_producer(store, tokens(9, 0.1), observers=observers)
    zero = cursor_zero(SID)
    flow = None if credit is None else Flow(Credit(1, 10**6, zero), zero, limit=None, beats=False)
    stage = ReplayStage(CompletionGuard(Sse()), zero, own_ids=True, resume=None, flow=flow)
    seen = seen_by(observers, stage, anyio.current_time)
    seen.follows(producer.seen if here else None, credit=credit is not None)
    if flow is not None:
        flow.waited = functools.partial(seen.blocked, "credit")
    pages: Any = stored(store, zero, _nobody, flow=flow)
    reader = DirectDriver[bytes](TokenSource(pages), stage, wire, Timing(clock=anyio.current_time), seen=seen)

    async def grant() -> None:
        assert flow is not None
        assert credit is not None
        for frames in range(2, 12):
            while not flow.blocked:  # noqa: ASYNC110  # which nobody tells
                await anyio.sleep(0.01)
            await anyio.sleep(credit)
            flow.give(Grant(frames, 10**6))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(producer.run)
        if flow is not None:
            tasks.start_soon(grant)
        await reader.run()
        tasks.cancel_scope.cancel()


async def _nobody(state: Any) -> None:
    raise AssertionError("the stream was taken for lost")


async def sent_from(source: TokenSource, wire: Wire, clock: Any, observer: Observer) -> None:
    stage = native(Immediate(), "comment")
    seen = seen_by(Observers([observer]), stage, clock)
    await DirectDriver(source, stage, wire, Timing(clock=clock), seen=seen).run()


# ---- what is sampled --------------------------------------------------------------------------


async def test_one_token_in_so_many_is_sampled_and_never_the_first() -> None:
    noted = Noted()
    noted.every = 3
    await serve(tokens(10, 0.1), Wire(slow=0.2), observe=noted).run()
    sampled = noted.all(Sampled)
    assert [event.legs for event in sampled] == [
        {"generated": pytest.approx(0.1), "held": 0.0, "encoded": 0.0, "sent": pytest.approx(0.2)}
    ] * 3
    assert {event.stream for event in sampled} == {sampled[0].stream}


async def test_what_time_lets_go_of_was_held_until_then() -> None:
    noted = Noted()
    noted.every = 1
    policy = EveryTokens(8)  # of which the end lets go
    await serve(Script("a", "b", 3.0, "c"), observe=noted, policy=policy).run()
    held = [event.legs["held"] for event in noted.all(Sampled)]
    assert held == [pytest.approx(3.0), 0.0]


async def test_without_samples_nothing_stands_on_the_way() -> None:
    noted, wire, push = Noted(), Wire(), PushSource()
    served = serve(push, wire, observe=noted)
    assert served.driver.sink is wire
    assert not hasattr(served.driver.stage, "_timer")
    push.finish()
    await served.run()
    assert "put" not in vars(push._hand_over)
    assert noted.all(Sampled) == []
    assert UNSEEN.timed(served.driver.stage, wire) == (served.driver.stage, wire)


@pytest.mark.parametrize("every", [0, 1])
async def test_what_is_sent_is_the_same_with_samples(every: int) -> None:
    noted, plain = Noted(), Wire()
    noted.every = every
    await serve(tokens(9, 0.1), plain, observe=noted).run()
    assert bool(noted.all(Sampled)) == bool(every)
    other = Wire()
    await serve(tokens(9, 0.1), other).run()
    assert plain.chunks == other.chunks


@real_loops
async def test_a_source_on_a_thread_is_sampled_where_it_yields() -> None:
    noted = Noted()
    noted.every = 2
    stage = native(Immediate(), "comment")
    timing = Timing()
    seen = seen_by(Observers([noted]), stage, timing.clock)
    await DirectDriver(TokenSource(["a", "b", "c", "d"]), stage, Wire(), timing, seen=seen).run()
    assert 1 <= len(noted.all(Sampled)) <= 2  # what waits together is one piece, and one sample
    assert set(noted.all(Sampled)[0].legs) == {"generated", "buffered", "held", "encoded", "sent"}


async def test_items_that_go_past_the_queue_are_sampled_too() -> None:
    noted, near = Noted(), NearSource()
    noted.every = 1
    served = serve(near, Wire(blocks=False), observe=noted)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(served.run)
        for number in range(5):
            await anyio.sleep(DELAY)
            taken = False if near.shortcut is None else near.shortcut.take(f"t{number} ")
            if taken is False:
                near.put(f"t{number} ")
            elif taken is not True:
                await taken
        near.finish()
    legs = [event.legs for event in noted.all(Sampled)]
    assert legs == [{"generated": pytest.approx(DELAY), "held": 0.0, "encoded": 0.0, "sent": 0.0}] * 4


@pytest.mark.parametrize(("own_thread", "buffered"), [(False, set()), (True, {"buffered"})])
def test_an_answer_on_a_thread_is_sampled(own_thread: bool, buffered: set[str]) -> None:
    noted = Noted()
    noted.every = 1

    def source() -> Iterator[str]:
        yield from ("a", "b", "c")

    answer = GuardedResponse(source(), observe=noted, own_thread=own_thread, timing=Timing(linger=0.0))
    called(answer)
    sampled = noted.all(Sampled)
    assert sampled
    assert set(sampled[0].legs) == {"generated", "held", "encoded", "sent"} | buffered


async def test_of_a_stream_that_another_process_generates_it_is_not_known_how_long_the_log_had_it() -> None:
    for here, waited in ((True, {"read", "credit"}), (False, {"credit"})):
        noted = Noted()
        noted.every = 2
        await logged(noted, Store(), Wire(), credit=DELAY, here=here)
        legs = [event.legs for event in noted.all(Sampled) if event.stream.part == "reader"]
        assert legs
        assert {name for each in legs for name in each} == {"encoded", "sent", *waited}
        assert max(each["credit"] for each in legs) >= DELAY


async def test_a_frame_that_a_reader_has_before_the_append_returned_was_read_at_once() -> None:
    noted = Noted()
    noted.every = 1
    await logged(noted, Store(at=late_at("append, done")), Wire())
    legs = [event.legs for event in noted.all(Sampled) if event.stream.part == "reader"]
    assert len(legs) >= 6
    assert [each["read"] for each in legs] == pytest.approx([0.0] * len(legs))
    assert not any("credit" in each for each in legs)


async def test_a_wait_for_readers_is_not_the_logs() -> None:
    legs = Legs(1)
    store = Store()
    producer = await make_producer(store, tokens(5, 0.01), observers=Observers([legs]))

    def slow() -> None:  # as `Lead` tells of it
        producer.seen.blocked("lead", DELAY)

    producer.sink.taken = slow
    append = producer.sink.send

    async def appended(data: list[Any]) -> None:
        await append(data)
        await anyio.sleep(DELAY)

    producer._driver.sink._send = appended  # type: ignore[attr-defined]
    await producer.run()
    assert legs.way.means["appended"] == pytest.approx(0.0, abs=0.01)


def test_every_leg_of_a_sample_is_a_label_and_has_something_to_change() -> None:
    assert (*LABELS, "acknowledged") == tuple(LEGS)
    assert Legs().slowest() is None


@pytest.mark.parametrize(("every", "error"), [(0, ValueError), (True, TypeError), (1.5, TypeError)])
def test_how_many_are_sampled_is_a_whole_number(every: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="every is a whole number of at least 1"):
        Legs(every)


async def test_several_observers_have_the_samples_of_the_one_that_wants_most() -> None:
    assert Observers([Legs(100), Observer(), Legs(7)]).every == 7
    assert Observers([Observer()]).every == 0


@pytest.mark.parametrize(("by", "leg"), [("transport", "sent"), ("credit", "credit"), ("lead", "generated")])
def test_a_rare_wait_for_a_reader_counts_though_no_sample_was_in_it(by: Any, leg: str) -> None:
    legs = Legs(100)
    legs.blocked(Blocked(STREAM, 1.0, by, 30.0))
    assert legs.slowest() is None  # of a token's way nothing is known
    for _ in range(4):
        legs.sampled(Sampled(STREAM, 1.0, {"generated": 0.05, "sent": 0.001}))
    slowest = legs.slowest()
    assert slowest is not None
    assert (slowest.leg, slowest.seconds) == (leg, pytest.approx(0.05 if by == "lead" else 30.0 / 400))
    for _ in range(4):
        legs.sampled(Sampled(STREAM, 1.0, {"generated": 0.05, "sent": 0.001}))
    slowest = legs.slowest()
    assert slowest is not None
    assert slowest.leg == "generated"  # all in all it was


@pytest.mark.parametrize(("seconds", "advised"), [(0.000025, False), (FLOOR, True)])
def test_a_leg_that_nobody_would_notice_has_nothing_to_change(seconds: float, advised: bool) -> None:
    way = Way()
    way.add("encoded", seconds)
    way.add("sent", seconds / 5)
    slowest = way.slowest()
    assert slowest is not None
    assert (slowest.leg, slowest.change) == ("encoded", LEGS["encoded"][1] if advised else "")
    assert ("To change: " in str(slowest)) is advised
    assert str(slowest).endswith("Nothing is to be changed") is not advised
