"""A source that is pushed to in its driver's loop: what is pushed is written there and then, and all else holds."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator
from typing import Any

import anyio
import pytest

from streamguard.core.errors import StreamClosed
from streamguard.core.flush import Within
from streamguard.core.receipt import Verdict
from streamguard.runtime.shortcut import NearSource
from streamguard.runtime.turns import SLICE
from tests.runtime.fakes import Served, Wire, serve, task_id
from tests.runtime.virtual import Interruption, backend_options, run

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> Any:
    return "asyncio", backend_options("asyncio")


class Pushing:
    """Pushes what it is given, sleeps for a number, and ends; with the stream that it feeds."""

    def __init__(self, *script: Any, wire: Wire | None = None, **options: Any) -> None:
        self.script = script
        self.closed = 0
        self.source = NearSource(on_close=self.close)
        self.served: Served = serve(self.source, wire or Wire(blocks=False), **options)
        self.wire = self.served.wire
        self.task = 0
        self.short = self.waited = self.long = 0  # items, by the way that they took; and the short ones that waited
        self.refused: list[Any] = []
        self.over = anyio.Event()
        self.scope = anyio.CancelScope()

    def close(self) -> None:
        self.closed += 1

    async def push(self, item: Any) -> None:
        taken = self.source.shortcut.take(item) if self.source.shortcut is not None else False
        if taken:
            self.short += 1
        if taken is True:
            return
        if taken:
            self.waited += 1
            await taken
        else:
            self.long += 1
            if not self.source.put(item):
                await self.source.room_made()

    async def pushes(self) -> None:
        self.task = task_id()
        with self.scope:
            for act in self.script:
                if isinstance(act, float):
                    await anyio.sleep(act)
                    continue
                try:
                    await self.push(act)
                except StreamClosed:
                    self.refused.append(act)
            self.source.finish()
        self.source.fail(RuntimeError("it was cancelled"))  # nothing, behind `finish`
        self.over.set()

    async def run(self, beside: Callable[[], Any] | None = None) -> Pushing:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.pushes)
            if beside is not None:
                tasks.start_soon(beside)
            await self.served.run()
            await self.over.wait()
            tasks.cancel_scope.cancel()
        return self

    @property
    def status(self) -> str:
        return self.served.outcome.status


async def test_what_is_pushed_while_the_driver_sleeps_is_written_where_it_is_pushed() -> None:
    tasks: list[int] = []
    pushing = Pushing("a", 1.0, "b", "c", 1.0, "d", wire=Wire(blocks=False, on_send=lambda *_: tasks.append(task_id())))
    await pushing.run()
    assert (pushing.long, pushing.short, pushing.wire.text, pushing.status) == (1, 3, "abcd", "complete")
    mine = [task == pushing.task for task in tasks]
    assert mine == [False, False, True, True, True, False]  # the opening and the first; and the end


async def test_a_burst_goes_through_the_queue_until_the_driver_sleeps_again() -> None:
    pushing = Pushing(*"abcdef", 1.0, "g")
    await pushing.run()
    assert (pushing.long, pushing.short, pushing.wire.text, pushing.status) == (6, 1, "abcdefg", "complete")


async def test_a_write_that_waits_is_the_only_one_and_the_rest_follows_it() -> None:
    wire = Wire(slow=lambda number, data: 3.0 if b'"b"' in data else 0.0, blocks=False)
    pushing = Pushing("a", 0.5, "b", "c", 5.0, "d", wire=wire, heartbeat=1.0)
    await pushing.run()  # which checks that no two writes overlapped
    assert (pushing.short, pushing.long, wire.text, pushing.status) == (2, 2, "abcd", "complete")
    assert wire.times[2:5] == [3.5, 3.5, 4.5]  # no sign of life in the write, and one a second after it


async def test_a_reader_that_leaves_ends_a_write_that_waits() -> None:
    pushing = Pushing("a", 1.0, "b", wire=Wire(slow=lambda number, data: 50.0 if b'"b"' in data else 0.0, blocks=False))

    async def leaves() -> None:
        await anyio.sleep(2.0)
        pushing.wire.left.set()

    await pushing.run(leaves)
    assert (pushing.refused, pushing.status, pushing.served.outcome.ended) == (["b"], "gone", 2.0)


async def test_a_reader_that_takes_nothing_is_dropped_in_a_write_too() -> None:
    wire = Wire(slow=lambda number, data: 50.0 if b'"b"' in data else 0.0, blocks=False)
    pushing = await Pushing("a", 0.25, "b", "c", wire=wire, write=2.0).run()  # before the clock rests
    assert (pushing.refused, pushing.status) == (["b", "c"], "slow")


@pytest.mark.parametrize("slow", [0.0, 1.0], ids=["at once", "late"])
async def test_a_transport_that_refuses_a_write_ends_the_stream_for_both(slow: float) -> None:
    def refuses(number: int, data: bytes) -> None:
        if b'"b"' in data:
            raise OSError("gone")

    wire = Wire(slow=lambda number, data: slow if b'"b"' in data else 0.0, blocks=False, on_send=refuses)
    pushing = await Pushing("a", 1.0, "b", "c", 1.0, wire=wire).run()
    assert (pushing.refused, pushing.status, pushing.closed) == (["b", "c"], "gone", 1)


async def test_what_cannot_be_sent_fails_the_stream_and_its_reader_is_told() -> None:
    pushing = await Pushing("a", 1.0, 3, "c").run()
    assert (pushing.refused, pushing.status, pushing.wire.text) == ([3, "c"], "failed", "a")
    assert pushing.wire.read().verdict is Verdict.FAILED


@pytest.mark.parametrize("begun", [True, False], ids=["while it waits", "as it begins"])
async def test_behind_a_write_that_was_cancelled_nothing_follows(begun: bool) -> None:
    scope = anyio.CancelScope()

    async def cancels(number: int, data: bytes) -> None:
        if b'"b"' in data:
            scope.cancel()
            if begun:
                await anyio.sleep(5.0)
            raise anyio.get_cancelled_exc_class()

    pushing = Pushing(wire=Wire(blocks=False, on_send=cancels))

    async def pushes() -> None:
        await pushing.push("a")
        await anyio.sleep(1.0)
        with scope:
            await pushing.push("b")
        with pytest.raises(StreamClosed):
            pushing.source.put("c")
        pushing.over.set()

    pushing.pushes = pushes  # type: ignore[method-assign]
    await pushing.run()
    assert (pushing.status, pushing.wire.calls[-1], pushing.wire.text) == ("failed", "abort", "a")
    assert pushing.served.outcome.failure is not None
    assert pushing.served.outcome.failure.code == "unended"


async def test_a_stream_that_is_cancelled_in_a_write_ends_behind_it() -> None:
    wire = Wire(slow=lambda number, data: 3.0 if b'"b"' in data else 0.0, blocks=False)
    pushing = Pushing("a", 1.0, "b", 9.0, "c", wire=wire)

    async def cancels() -> None:
        await anyio.sleep(2.0)
        pushing.served.cancel()

    await pushing.run(cancels)
    assert (wire.text, pushing.status, pushing.refused) == ("ab", "cancelled", ["c"])
    assert wire.times[-1] == 4.0


async def test_what_another_task_pushes_meanwhile_waits_behind_the_write() -> None:
    wire = Wire(slow=lambda number, data: 3.0 if b'"b"' in data else 0.0, blocks=False)
    pushing = Pushing("a", 1.0, "b", "d", wire=wire, heartbeat=1.0)

    async def pushes() -> None:
        await anyio.sleep(2.0)
        await pushing.push("c")

    await pushing.run(pushes)
    assert (wire.text, pushing.status) == ("abcd", "complete")


async def test_who_never_waits_gives_the_loop_its_turns() -> None:
    turns = 0
    ticks = itertools.count()

    async def counts() -> None:
        nonlocal turns
        await anyio.sleep(1.0)
        while not pushing.over.is_set():  # time stands still meanwhile
            await anyio.lowlevel.checkpoint()
            turns += 1

    many = ["x"] * 2000
    pushing = Pushing("a", 1.0, *many, clock=lambda: next(ticks) * SLICE / 10)
    await pushing.run(counts)
    assert (pushing.status, len(pushing.wire.text)) == ("complete", 2001)
    assert turns > 100
    assert pushing.short == 2000 > pushing.waited > 100


async def test_what_is_held_back_for_a_time_goes_through_the_queue() -> None:
    pushing = await Pushing("a", 1.0, "b", "c", policy=Within(0.4, first="policy")).run()
    assert (pushing.short, pushing.long, pushing.wire.text) == (0, 3, "abc")


@pytest.mark.parametrize("anyio_backend", [("trio", backend_options("trio"))])
async def test_on_trio_every_item_goes_through_the_queue() -> None:
    pushing = await Pushing("a", 1.0, "b", "c").run()
    assert (pushing.short, pushing.long, pushing.wire.text, pushing.status) == (0, 3, "abc", "complete")


async def test_a_transport_may_answer_with_any_awaitable() -> None:
    class Late:
        def __await__(self) -> Generator[Any, Any, None]:
            yield from anyio.sleep(0.5).__await__()

    class Odd(Wire):
        def send(self, data: bytes) -> Any:
            self.calls.append("send")
            self.chunks.append(data)
            return Late()

    pushing = await Pushing("a", 2.0, "b", "c", wire=Odd()).run()
    assert (pushing.waited, pushing.wire.text, pushing.status) == (2, "abc", "complete")


def scheduled(at: int, what: str) -> Interruption:
    interruption = Interruption(at)

    async def test() -> None:
        wire = Wire(slow=lambda number, data: 0.3 if b'"c"' in data else 0.0, blocks=False)
        pushing = Pushing("a", 0.5, "b", "c", 0.5, "d", wire=wire, heartbeat=0.2)
        with anyio.CancelScope() as scope:
            acts = {
                "cancel": pushing.served.cancel,
                "leave": wire.left.set,
                "all": scope.cancel,
                "pusher": pushing.scope.cancel,
            }
            interruption.arm(acts[what])
            await pushing.run()
            interruption.act = None
        pushing.served.check()
        assert "abcd".startswith(wire.text)
        assert (pushing.status == "complete") == (wire.text == "abcd" and "end" in wire.calls)

    run("asyncio", test, interruption=interruption)
    return interruption


@pytest.mark.parametrize("what", ["cancel", "leave", "all", "pusher"])
def test_whatever_happens_at_any_point_the_stream_ends_as_it_must(what: str) -> None:
    points = 0
    for at in itertools.count(1):
        interruption = scheduled(at, what)
        if not interruption.done:
            break
        points += 1
    assert points > 20
