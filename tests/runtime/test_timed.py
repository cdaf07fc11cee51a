"""The slowest leg of a token's way, with a delay injected in each, in virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from streamguard.adapters.wsgi import GuardedResponse
from streamguard.core.flush import EveryTokens, Immediate, any_of
from streamguard.observe.hooks import Acknowledged, Observer, Observers, RequestLabels, Sampled, StreamDetails
from streamguard.observe.legs import LEGS, Legs
from streamguard.observe.metrics import LEGS as LABELS
from streamguard.runtime.buffer import Buffer
from streamguard.runtime.direct import DirectDriver
from streamguard.runtime.push import PushSource
from streamguard.runtime.seen import UNSEEN, seen_by
from streamguard.runtime.shortcut import NearSource
from streamguard.runtime.source import TokenSource
from streamguard.runtime.timing import Timing
from tests.adapters.wsgi_calls import called
from tests.observe.noted import Noted
from tests.runtime.fakes import Script, Wire, native, serve
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


def expect(legs: Legs, leg: str) -> None:
    slowest = legs.slowest()
    assert slowest is not None
    assert slowest.leg == leg
    assert slowest.seconds >= DELAY / 2
    assert slowest.share > 0.5
    assert slowest.change == LEGS[slowest.leg][1]
    assert str(slowest).startswith(f"{leg}: ")


@pytest.mark.parametrize("every", [1, 3])
async def test_a_source_that_is_slow_is_the_slowest(every: int) -> None:
    legs = Legs(every)
    await serve(tokens(9, DELAY), Wire(slow=0.01), observe=legs).run()
    expect(legs, "generated")


@pytest.mark.parametrize("every", [1, 3])
async def test_a_transport_that_is_slow_is_the_slowest(every: int) -> None:
    legs = Legs(every)
    await serve(tokens(9, 0.01), Wire(slow=DELAY), observe=legs).run()
    expect(legs, "sent")


async def test_a_transport_that_is_slow_is_the_slowest_also_where_the_source_is_ahead_of_it() -> None:
    legs = Legs(1)
    await sent_from(TokenSource(tokens(9, 0.01), buffer=Buffer()), Wire(slow=DELAY), anyio.current_time, legs)
    expect(legs, "sent")


async def test_a_policy_that_holds_is_the_slowest() -> None:
    legs = Legs(1)
    policy = EveryTokens(8, first="policy")
    await serve(tokens(16, DELAY / 4), Wire(), policy=policy, observe=legs).run()
    expect(legs, "held")


async def test_what_encodes_slowly_is_the_slowest() -> None:
    legs, late = Legs(1), Late()

    class Working(Immediate):
        immediate = False

        def push(self, piece: str, held: int, now: float) -> int:
            late.work()
            return held

    await serve(tokens(9, 0.01), Wire(), policy=any_of(Working()), clock=late, observe=legs).run()
    expect(legs, "encoded")


async def test_a_loop_that_is_late_for_what_is_there_is_the_slowest() -> None:
    legs, late = Legs(1), Late()
    await sent_from(TokenSource(tokens(9, late.work, 0.01), buffer=Buffer()), Wire(blocks=False), late, legs)
    expect(legs, "buffered")


async def test_a_log_that_is_slow_is_the_slowest() -> None:
    legs = Legs(1)
    store = Store(slow=DELAY / 2)  # and as much behind it
    producer = await make_producer(store, tokens(9, 0.01), observers=Observers([legs]))
    await producer.run()
    expect(legs, "appended")


async def test_a_reader_that_is_slow_to_say_what_it_has_is_the_slowest() -> None:
    legs = Legs(1)
    await serve(tokens(9, 0.01), Wire(slow=0.02), observe=legs).run()
    legs.acknowledged(Acknowledged(STREAM, 1.0, 3, DELAY))
    legs.acknowledged(Acknowledged(STREAM, 1.0, 3, None))  # of which nobody knows when it was sent
    expect(legs, "acknowledged")


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
