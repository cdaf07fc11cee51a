"""The meter of a loop, and adaptive flush over it: on asyncio and trio, in virtual time."""

from __future__ import annotations

import gc
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from streamguard.core.adaptive import LATE, Adaptive, Pressure
from streamguard.core.flush import EveryTokens, HoldBack, Immediate, any_of
from streamguard.core.framing import FramedEncoder
from streamguard.runtime import pressure as module
from streamguard.runtime.direct import DirectDriver
from streamguard.runtime.lists import FrameLists, ItemLists
from streamguard.runtime.pressure import PERIOD, LoopMeter, StreamPressure, loop_meter
from tests.runtime.fakes import SID, Script, Wire, serve
from tests.runtime.virtual import BACKENDS, run

backends = pytest.mark.parametrize("backend", BACKENDS)


class Loop:
    """A loop by hand: its time, and what it is to call back."""

    def __init__(self) -> None:
        self.now = 0.0
        self.worked = 0.0
        self.calls: list[Callable[[], object]] = []

    def meter(self, *, works: bool = False) -> LoopMeter:
        return LoopMeter(self.calls.append, lambda: self.now, (lambda: self.worked) if works else None)

    def turn(self, seconds: float) -> None:
        self.now += seconds
        calls, self.calls[:] = self.calls[:], []
        for call in calls:
            call()


# ---- the meter -----------------------------------------------------------------------------------


def test_the_time_until_the_loop_calls_back_is_how_late_it_is() -> None:
    loop = Loop()
    meter = loop.meter()
    assert meter.look(0.0) == Pressure()
    loop.turn(0.2)
    assert meter.look(0.2) == Pressure(lag=0.2)


def test_one_call_is_outstanding_whoever_looks_and_none_before_its_time() -> None:
    loop = Loop()
    meter = loop.meter()
    for now in (0.0, 0.001, 0.02):
        meter.look(now)
    assert len(loop.calls) == 1
    loop.turn(0.0)
    meter.look(PERIOD - 0.001)
    assert not loop.calls
    meter.look(PERIOD)
    assert len(loop.calls) == 1


def test_a_loop_that_has_not_called_back_is_as_late_as_that_already() -> None:
    loop = Loop()
    meter = loop.meter()
    meter.look(0.0)
    assert meter.look(1.5) == Pressure(lag=1.5)
    assert len(loop.calls) == 1


def test_how_much_a_loop_works_is_its_threads_share_of_the_time() -> None:
    loop = Loop()
    meter = loop.meter(works=True)
    for now, worked, busy in ((1.0, 5.0, 0.0), (1.5, 5.25, 0.5), (2.0, 5.75, 1.0), (3.0, 7.0, 1.0)):
        loop.worked = worked
        loop.now = now
        meter.look(now)
        loop.turn(0.0)
        assert meter.pressure == Pressure(busy=busy)


@backends
def test_the_streams_of_a_loop_share_a_meter_that_lives_while_one_of_them_does(backend: str) -> None:
    async def test() -> None:
        one, other = loop_meter(anyio.current_time), loop_meter(anyio.current_time)
        assert one is other
        assert loop_meter(time.monotonic) is not one  # in another time
        del one, other
        gc.collect()
        assert module._thread.meter() is None

    kept: list[LoopMeter] = []

    async def keep() -> None:
        kept.append(loop_meter(anyio.current_time))

    run(backend, test)
    run(backend, keep)
    run(backend, keep)
    assert kept[0] is not kept[1], "the meter of a loop that is over would never be called back"


@backends
@pytest.mark.parametrize(("tick", "late"), [(0.0, False), (0.05, True)])
def test_a_busy_loop_is_late_and_one_at_rest_is_not(backend: str, tick: float, late: bool) -> None:
    """`tick`: how long each turn of the loop takes."""

    async def test() -> None:
        meter = loop_meter(anyio.current_time)
        for _ in range(3):
            meter.look(anyio.current_time())
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
            await anyio.sleep(PERIOD)
        assert (meter.pressure.lag > LATE) is late

    run(backend, test, tick=tick)


class Stage:
    def __init__(self) -> None:
        self.seen: list[tuple[Pressure, float]] = []

    def sample(self, pressure: Pressure, now: float) -> bool:
        self.seen.append((pressure, now))
        return True


@backends
def test_a_stage_is_told_of_what_is_unsent_and_not_too_often(backend: str) -> None:
    async def test() -> None:
        stage = Stage()
        unsent: list[int | None] = [None, 0, 70_000]
        pressure = StreamPressure(stage, lambda: unsent.pop(0), anyio.current_time)
        looks = []
        for seconds in (1.0, PERIOD / 2, PERIOD, 0.0, 1.0):
            await anyio.sleep(seconds)
            looks.append(pressure.look(anyio.current_time()))
            await anyio.lowlevel.checkpoint()
        assert looks == [True, False, True, False, True]
        assert [seen for seen, _ in stage.seen] == [Pressure(), Pressure(), Pressure(unsent=70_000)]

    run(backend, test)


# ---- streams -------------------------------------------------------------------------------------


def paced(count: int, pause: float) -> Callable[[], AsyncIterator[str]]:
    async def source() -> AsyncIterator[str]:
        for number in range(count):
            await anyio.sleep(pause)
            yield f"{number} "

    return source


def text(count: int) -> str:
    return "".join(f"{number} " for number in range(count))


@backends
def test_while_the_loop_keeps_up_there_is_one_frame_a_token(backend: str) -> None:
    async def test() -> None:
        served = await serve(paced(200, 0.01), policy=Adaptive()).run()
        assert served.wire.parts == [f"{number} " for number in range(200)]
        assert served.outcome.status == "complete"

    run(backend, test)


@backends
@pytest.mark.parametrize(
    "policy",
    [Adaptive(), any_of(EveryTokens(1000), Adaptive()), HoldBack("<end>", flush=Adaptive())],
    ids=["alone", "any_of", "HoldBack"],
)
def test_a_late_loop_gets_fewer_frames_and_one_a_token_again_when_it_is_not(backend: str, policy: Any) -> None:
    """What presses is given by hand, as the meter of the loop would."""
    lag = 0.0

    async def test() -> None:
        nonlocal lag
        meter = loop_meter(anyio.current_time)
        meter.look = lambda now: Pressure(lag=lag)  # type: ignore[method-assign]

        def press(seconds: float) -> Callable[[], None]:
            def act() -> None:
                nonlocal lag
                lag = seconds

            return act

        def tokens() -> list[Any]:
            return [part for number in range(100) for part in (0.01, f"{number} ")]

        source = Script(*tokens(), press(0.5), *tokens(), press(0.0), *tokens(), *tokens())
        served = await serve(source, policy=policy).run()
        wire = served.wire
        assert wire.text == text(100) * 4
        seconds = [sum(1 for at in wire.times if begin < at <= begin + 1.0) for begin in (0.0, 1.0, 2.0, 3.0)]
        assert seconds[0] >= 98
        assert seconds[1] <= 30
        assert seconds[1] < seconds[2] < seconds[3]
        last = [f"{number} " for number in range(60, 100)]
        assert wire.parts[-40:] == last

    run(backend, test)


@backends
def test_no_text_is_held_longer_than_the_bound(backend: str) -> None:
    async def test() -> None:
        meter = loop_meter(anyio.current_time)
        meter.look = lambda now: Pressure(lag=0.5)  # type: ignore[method-assign]
        # Pieces of a second's pause each at the end: nothing comes after them that would release them.
        source = Script(*[part for _ in range(50) for part in (0.01, "a")], *(["b", 1.0] * 3), "c", 0.05, "d", 1.0)
        served = await serve(source, policy=Adaptive(0.2)).run()
        assert served.wire.text == "a" * 50 + "bbb" + "cd"
        gaps = [after - before for before, after in zip(served.wire.times, served.wire.times[1:], strict=False)]
        assert max(gaps[:-3]) <= 1.0 + 0.2 + 1e-6

    run(backend, test)


@backends
def test_a_connection_that_does_not_send_gets_fewer_frames(backend: str) -> None:
    async def test() -> None:
        wire = Wire()
        wire.backlog = 1_000_000
        served = await serve(paced(100, 0.01), wire, policy=Adaptive(), write=None).run()
        assert wire.text == text(100)
        assert len(wire.chunks) < 40
        assert served.outcome.status == "complete"

    run(backend, test)


@backends
@pytest.mark.parametrize("kind", [ItemLists, lambda policy: FrameLists(policy, FramedEncoder("native", sid=SID))])
def test_stages_that_make_lists_are_told_too(backend: str, kind: Any) -> None:
    async def test() -> None:
        stage = kind(Adaptive())
        assert (stage.sampled, stage.timed, kind(Immediate()).sampled) == (True, False, False)
        assert stage.sample(Pressure(lag=1.0), 0.0)
        assert (stage.timed, stage.push("a", 0.0), stage.deadline() is None) == (True, [], False)
        assert len(stage.tick(1.0)) == 1
        assert stage.sample(Pressure(), 9.0)
        assert (stage.timed, len(stage.push("b", 9.0))) == (False, 1)

    run(backend, test)


@backends
def test_a_policy_that_fails_on_a_sample_fails_the_stream_with_its_text(backend: str) -> None:
    class Broken(EveryTokens):
        def sample(self, pressure: Pressure, now: float) -> None:
            raise OSError("no")

    async def test() -> None:
        served = await serve(Script("a", 0.01, "b", 0.01, "c"), policy=Broken(100, first="policy")).run()
        assert served.outcome.status == "failed"
        assert served.wire.text == "ab"
        assert isinstance(served.driver.exception, OSError)

    run(backend, test)


@backends
def test_who_takes_no_samples_has_no_meter(backend: str) -> None:
    async def test() -> None:
        served = serve(paced(5, 0.01), policy=EveryTokens(2))
        await served.run()
        assert served.driver._pressure is None
        driver: DirectDriver[bytes] = serve(paced(5, 0.01), policy=Adaptive()).driver
        await driver.run()
        assert driver._pressure is not None

    run(backend, test)
