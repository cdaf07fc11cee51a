"""The stages by hand: each alone, all of them joined, left early, and failed."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import runpy
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamguard.core.dialect import Native
from streamguard.core.errors import SourceFailed, StreamAborted, StreamClosed, failure_from
from streamguard.core.flush import EveryBytes, EveryTokens, FlushPolicy, HoldBack, Immediate, Within
from streamguard.core.framing import FramedEncoder
from streamguard.core.guard import CompletionGuard
from streamguard.core.items import Block, Finish
from streamguard.core.pipeline import Pipeline
from streamguard.core.receipt import Verdict
from streamguard.core.verify import StreamVerifier
from streamguard.core.wire import Binary, Ndjson, Sse, Wire
from streamguard.runtime.direct import DirectDriver
from streamguard.runtime.drain import Drain, Draining
from streamguard.runtime.source import TokenSource
from streamguard.runtime.stages import GuardedStream, StageStream, pipe
from streamguard.runtime.timing import Timing
from tests.runtime.fakes import SID, VARIABLE, Hook, Script, task_id, timing
from tests.runtime.virtual import BACKENDS, Interruption, VirtualLoop, run

pytestmark = pytest.mark.anyio

TOOL = Block("tool_call", {"id": "1", "name": "look", "arguments": "{}"})
EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "stages.py"


def encoder() -> FramedEncoder:
    return FramedEncoder(Native(), sid=SID)


def guarded(source: Any, policy: FlushPolicy | None = None, **options: Any) -> GuardedStream:
    options.setdefault("timing", timing())
    return GuardedStream(TokenSource(source), policy or Immediate(), encoder(), CompletionGuard(Sse()), **options)


async def drained(stream: StageStream[Any]) -> list[Any]:
    async with stream:
        return [item async for item in stream]


def read(body: bytes, wire: str = "sse") -> StreamVerifier:
    verifier = StreamVerifier(wire=wire, dialect="native")
    verifier.feed(body)
    verifier.end()
    return verifier


# ---- each alone ---------------------------------------------------------------------------------


async def test_a_source_alone_gives_its_items() -> None:
    script = Script("a", TOOL, Finish("stop"))
    async with pipe(TokenSource(script)) as items:
        assert [item async for item in items] == ["a", TOOL, Finish("stop")]
    assert script.closes == 1


async def test_a_policy_over_it_gives_text_and_what_is_not_text() -> None:
    stream = pipe(TokenSource(Script("a", "b", "c", TOOL, "d", Finish("stop"))), EveryTokens(2, first="policy"))
    assert await drained(stream) == ["ab", "c", TOOL, "d", Finish("stop")]
    assert stream.outcome is not None
    assert (stream.outcome.status, stream.outcome.items) == ("complete", 5)


async def test_a_policy_alone_keeps_its_deadlines() -> None:
    times: list[float] = []
    async with pipe(TokenSource(Script("a", "b", 9.0, "c")), Within(0.5, first="policy"), timing=timing()) as texts:
        async for _ in texts:
            times.append(anyio.current_time())
    assert times == [0.5, 9.0]


async def test_an_encoder_over_those_gives_frames_with_a_terminal_at_the_end() -> None:
    frames = await drained(pipe(TokenSource(Script("a", "b", "c")), EveryTokens(2, first="policy"), encoder()))
    assert [frame.data for frame in frames[:-1]] == [b'"ab"', b'"c"']
    assert [frame.status for frame in frames] == [None, None, "complete"]
    assert [frame.seq for frame in frames] == [1, 2, 3]


async def test_a_guard_over_those_gives_bytes_and_one_terminal() -> None:
    chunks = await drained(pipe(TokenSource(Script("a")), Immediate(), encoder(), CompletionGuard(Sse())))
    assert all(isinstance(chunk, bytes) for chunk in chunks)
    assert read(b"".join(chunks)).verdict is Verdict.COMPLETE


@pytest.mark.parametrize("wire", [Sse(), Ndjson(), Binary()])
async def test_any_carrier_will_do(wire: Wire) -> None:
    chunks = await drained(pipe(TokenSource(Script("a", TOOL)), Immediate(), encoder(), CompletionGuard(wire)))
    assert read(b"".join(chunks), wire.name).verdict is Verdict.COMPLETE


async def test_the_usage_that_a_source_reports_is_known_after_any_of_them() -> None:
    for stages in ([], [encoder()], [encoder(), CompletionGuard(Sse())]):
        stream: Any = pipe(TokenSource(Script("a", Finish("length", {"n": 1}))), Immediate(), *stages)
        await drained(stream)
        assert stream.outcome.usage == {"n": 1}
        assert stream.outcome.finish_reason == "length"


async def test_stages_are_given_in_their_order() -> None:
    with pytest.raises(TypeError, match="stands where a FramedEncoder belongs"):
        pipe(Script("a"), Immediate(), CompletionGuard(Sse()))  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="stands where a CompletionGuard belongs"):
        pipe(Script("a"), Immediate(), encoder(), encoder())  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="a source alone takes no timing"):
        pipe(Script("a"), timing=timing())  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"^Native\(\) stands where a FramedEncoder belongs"):
        GuardedStream(Script("a"), Immediate(), Native(), CompletionGuard(Sse()))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"timing": 5}, r"^timing is a Timing, for example Timing\(stall=60\), not 5$"),
        ({"drain": 5}, r"^drain is a Draining, for example Draining\(grace=20\), not 5$"),
        ({"on_end": 5}, "^on_end is a function, not 5$"),
        ({"on_end": lambda: None}, "^on_end is called with one argument, the Outcome, and "),
    ],
    ids=["a number for a timing", "a number for a drain", "a number for a hook", "a hook without an argument"],
)
async def test_what_a_stream_cannot_use_is_refused_when_it_is_made(option: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        pipe(Script("a"), Immediate(), **option)


async def test_a_producer_that_is_no_source_yet_becomes_one() -> None:
    assert await drained(pipe(Script("a", "b"), Immediate())) == ["a", "b"]
    async with pipe(Script("a", "b")) as items:
        assert [item async for item in items] == ["a", "b"]


async def test_stages_without_a_guard_have_no_sign_of_life_and_do_not_look_for_one_all_the_time() -> None:
    looks = 0

    def clock() -> float:
        nonlocal looks
        looks += 1
        return anyio.current_time()

    stream = pipe(Script("a", 30.5, "b"), Immediate(), timing=Timing(clock=clock, heartbeat=1.0))
    assert await drained(stream) == ["a", "b"]
    assert looks < 300  # ten for each of the thirty that fall due


async def test_a_fault_of_the_driver_itself_is_not_hidden(monkeypatch: Any) -> None:
    async def broken(self: Any) -> Any:
        raise AssertionError("a fault of ours")

    monkeypatch.setattr(DirectDriver, "run", broken)
    with pytest.raises(BaseException, match=r"TaskGroup|Exceptions from") as caught:
        await drained(guarded(Script("a")))
    assert isinstance(caught.value.exceptions[0], AssertionError)  # type: ignore[attr-defined]


POLICIES = st.sampled_from(
    [Immediate(), EveryTokens(3), EveryTokens(2, first="policy"), EveryBytes(5), HoldBack(["ab", "<s>"]), Within(9.0)]
)
ITEMS = st.lists(
    st.one_of(
        st.text("ab<s>é\r\n\u2028", max_size=5),
        st.binary(max_size=4),
        st.just(TOOL),
        st.builds(Finish, st.none(), st.dictionaries(st.sampled_from("nm"), st.integers(0, 9), max_size=1)),
        st.just(SourceFailed("overloaded", "later")),
        st.just(ValueError("secret")),
        st.just(object()),
    ),
    max_size=12,
)


@pytest.fixture(scope="module")
def loop() -> Iterator[VirtualLoop]:
    """One for all the examples of the property below: a loop costs more than a stream."""
    loop = VirtualLoop()
    yield loop
    loop.close()


@given(items=ITEMS, policy=POLICIES, wire=st.sampled_from([Sse(), Ndjson(), Binary()]))
def test_the_four_composed_by_hand_and_guarded_stream_give_the_same_bytes(
    loop: VirtualLoop, items: list[Any], policy: FlushPolicy, wire: Wire
) -> None:
    async def by_hand() -> bytes:
        """What anybody could write: items through the pipeline, one after the other."""
        pipeline = Pipeline(policy, encoder(), CompletionGuard(wire))
        body = pipeline.open()
        try:
            async with TokenSource(Script(*items)) as source:
                async for item in source:
                    body += pipeline.push(item, 0.0)
        except Exception as exc:
            return body + pipeline.fail(failure_from(exc), 0.0)
        return body + pipeline.finish(0.0)

    async def frame_by_frame() -> bytes:
        """The first three stages as an iterator, and a guard over what they give."""
        three = encoder()
        last = CompletionGuard(wire)
        body = last.open(three.zero, own_ids=three.own_ids)
        async with pipe(TokenSource(Script(*items)), policy, three, timing=timing()) as frames:
            async for frame in frames:
                body += last.admit(frame)
        return body

    async def joined(stream: StageStream[bytes]) -> bytes:
        body = b""
        try:
            async with stream:
                async for chunk in stream:
                    body += chunk
        except StreamAborted:
            assert read(body, wire.name).verdict is Verdict.FAILED
        else:
            assert read(body, wire.name).verdict is Verdict.COMPLETE
        return body

    async def test() -> list[bytes]:
        return [
            await by_hand(),
            await frame_by_frame(),
            await joined(pipe(TokenSource(Script(*items)), policy, encoder(), CompletionGuard(wire), timing=timing())),
            await joined(
                GuardedStream(TokenSource(Script(*items)), policy, encoder(), CompletionGuard(wire), timing=timing())
            ),
        ]

    bodies = loop.run_until_complete(test())
    assert bodies == [bodies[0]] * 4


# ---- ends ---------------------------------------------------------------------------------------


async def test_a_failed_stream_raises_after_its_terminal() -> None:
    body = b""
    stream = guarded(Script("a", SourceFailed("overloaded", "later")))
    with pytest.raises(StreamAborted) as caught:
        async with stream:
            async for chunk in stream:
                body += chunk
    assert caught.value.status == "failed"
    assert caught.value.failure is not None
    assert caught.value.failure.code == "overloaded"
    assert isinstance(caught.value.__cause__, SourceFailed)
    assert read(body).status == "failed"
    assert stream.outcome is not None
    assert stream.outcome.status == "failed"


@pytest.mark.parametrize("status", ["cancelled", "stalled"])
async def test_every_terminal_but_complete_raises(status: str) -> None:
    stream = guarded(Script("a", 50.0, "b"), timing=timing(stall=5.0, heartbeat=None))
    body = b""
    with pytest.raises(StreamAborted) as caught:
        async with stream:
            async for chunk in stream:
                body += chunk
                if status == "cancelled" and b'"a"' in chunk:
                    stream.cancel()
    assert caught.value.status == status
    assert read(body).status == status


@pytest.mark.parametrize(("grace", "status"), [(1.0, "shutdown"), (9.0, "complete")])
async def test_a_stream_that_outlasts_the_grace_of_its_process_ends_as_shutdown(grace: float, status: str) -> None:
    draining, body = Draining(on_sigterm=False), b""
    draining.draining = Drain(grace, clock=anyio.current_time)
    stream = guarded(Script("a", 5.0, "b"), timing=timing(heartbeat=None), drain=draining)
    with contextlib.suppress(StreamAborted):
        async with stream:
            async for chunk in stream:
                body += chunk
                if b'"a"' in chunk:
                    assert draining.draining.running == 1
                    draining.drain(grace)
    assert read(body).status == status
    assert (draining.ready, draining.draining.running) == (False, 0)


async def test_items_without_an_encoder_end_with_what_the_source_raised() -> None:
    error = SourceFailed("overloaded", "later")
    stream = pipe(TokenSource(Script("a", "b", error)), EveryTokens(9, first="policy"))
    found = []
    with pytest.raises(SourceFailed) as caught:
        async with stream:
            async for item in stream:
                found.append(item)
    assert caught.value is error
    assert found == ["ab"]


async def test_items_without_an_encoder_that_are_cancelled_raise_too() -> None:
    stream = pipe(TokenSource(Script("a", 50.0, "b")), Immediate(), timing=timing())
    with pytest.raises(StreamAborted) as caught:
        async with stream:
            async for _ in stream:
                stream.cancel()
    assert caught.value.status == "cancelled"
    assert caught.value.failure is not None


async def test_frames_say_themselves_how_they_end() -> None:
    frames = await drained(pipe(TokenSource(Script("a", ValueError())), Immediate(), encoder()))
    assert [frame.status for frame in frames] == [None, "failed"]


async def test_an_end_stays_the_end_however_often_it_is_asked_for() -> None:
    async with guarded(Script("a")) as stream:
        assert len([chunk async for chunk in stream]) == 3
        for _ in range(3):
            with pytest.raises(StopAsyncIteration):
                await stream.__anext__()
    with pytest.raises(StopAsyncIteration):
        await stream.__anext__()


async def test_a_stream_that_was_left_is_no_end() -> None:
    async with guarded(Script("a", "b", "c")) as stream:
        await stream.__anext__()
    with pytest.raises(StreamAborted) as caught:
        await stream.__anext__()
    assert caught.value.status == "gone"


async def test_a_stream_is_entered_before_it_is_iterated_and_once() -> None:
    stream = guarded(Script("a"))
    with pytest.raises(StreamClosed, match="async with"):
        await stream.__anext__()
    stream.cancel()  # nothing to cancel yet
    await drained(stream)
    with pytest.raises(StreamClosed, match="once"):
        await stream.__aenter__()


async def test_an_early_exception_in_peek_mode_comes_out_of_the_iterator_as_it_is() -> None:
    error = PermissionError("not yours")
    hook = Hook()
    stream = guarded(Script(1.0, error), timing=timing(peek=5.0), on_end=hook)
    with pytest.raises(PermissionError) as caught:
        async with stream:
            async for _ in stream:
                pytest.fail("nothing may come before it")
    assert caught.value is error
    assert stream.outcome is not None
    assert hook.outcomes == [stream.outcome]


async def test_heartbeats_come_as_chunks_of_their_own() -> None:
    chunks = await drained(guarded(Script("a", 3.5, "b"), timing=timing(heartbeat=1.0)))
    assert sum([b": hb " in chunk for chunk in chunks]) == 3
    assert read(b"".join(chunks)).verdict is Verdict.COMPLETE


# ---- left early ---------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 3, 4])
async def test_leaving_early_closes_the_source_in_the_task_that_drove_it(length: int) -> None:
    VARIABLE.set("request 7")
    script = Script(*["x", 0.001] * 10_000)
    stages = [Immediate(), encoder(), CompletionGuard(Sse())][: length - 1]
    taken = 0
    stream: Any = pipe(TokenSource(script), *stages)
    async with stream as iterator:
        async for _ in iterator:
            taken += 1
            if taken == 20:
                break
    assert script.steps <= 21
    assert script.closes == 1
    assert len(set(script.tasks)) == 1
    assert set(script.values) == {"request 7"}
    if length > 1:
        assert stream.outcome.status == "gone"
        assert stream.outcome.delivered == "no"


async def test_leaving_early_interrupts_a_pending_step() -> None:
    script = Script("a", 1000.0, "b")
    async with guarded(script) as stream:
        await stream.__anext__()
        await stream.__anext__()
        await anyio.sleep(1)
    assert script.cancels == script.closes == 1
    assert anyio.current_time() == 1


async def test_an_exception_in_the_callers_body_comes_out_as_it_is() -> None:
    script = Script("a", "b", "c")
    with pytest.raises(ZeroDivisionError):
        async with guarded(script) as stream:
            await stream.__anext__()
            await stream.__anext__()
            raise ZeroDivisionError
    assert script.closes == 1


async def test_a_cancellation_of_the_caller_comes_out_and_closes_the_source() -> None:
    script = Script("a", 1000.0, "b")
    hook = Hook()
    with anyio.move_on_after(1) as scope:
        await drained(guarded(script, on_end=hook))
    assert scope.cancelled_caught
    assert script.closes == 1
    assert len(hook.outcomes) == 1
    assert hook.outcomes[0].delivered == "no"


async def test_a_time_limit_on_the_next_chunk_loses_none() -> None:
    """People do that to get the clock back; what the driver offered stays until it is taken."""
    stream = guarded(Script(*["x", 0.3] * 20))
    body = b""
    async with stream:
        while True:
            try:
                with anyio.move_on_after(0.1):
                    body += await stream.__anext__()
            except StopAsyncIteration:
                break
    assert read(body).verdict is Verdict.COMPLETE


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_next_chunk_that_is_cancelled_at_any_point_is_the_next_one_again(backend: str) -> None:
    """Also where it was about to be handed out; by asyncio's own cancel too, which no scope announces."""
    at = 0
    done = True
    while done:
        at += 1
        interruption = Interruption(at)

        async def test(interruption: Interruption = interruption) -> bytes:
            body = b""
            async with guarded(Script("a", "b", 0.5, "c", "d")) as stream:
                while True:
                    try:
                        body += await interrupted(stream.__anext__, interruption, backend)
                    except StopAsyncIteration:
                        return body
                    except TimeoutError:
                        continue

        body = run(backend, test, interruption=interruption, seed=at)
        assert read(body).verdict is Verdict.COMPLETE, at
        done = interruption.done
    assert at > 20


async def interrupted(step: Callable[[], Awaitable[bytes]], interruption: Interruption, backend: str) -> bytes:
    """One step; TimeoutError if it was cancelled before it had anything."""
    if backend == "asyncio":
        task = asyncio.ensure_future(step())
        interruption.arm(task.cancel)
        try:
            return await task
        except asyncio.CancelledError:
            raise TimeoutError from None
    with anyio.CancelScope() as scope:
        interruption.arm(scope.cancel)
        return await step()
    raise TimeoutError


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_thousand_streams_that_are_left_leave_no_message_and_no_task_behind(backend: str, caplog: Any) -> None:
    scripts = [Script(*["x"] * 100) for _ in range(1000)]
    messages: list[Any] = []

    async def one(script: Script) -> None:
        async with guarded(script) as stream:
            for _ in range(21):
                await stream.__anext__()

    async def test() -> None:
        if backend == "asyncio":
            asyncio.get_running_loop().set_exception_handler(lambda loop, context: messages.append(context))
        before = anyio.get_running_tasks()
        async with anyio.create_task_group() as tasks:
            for script in scripts:
                tasks.start_soon(one, script)
        assert {task.id for task in anyio.get_running_tasks()} == {task.id for task in before}
        gc.collect()

    run(backend, test)
    assert max([script.steps for script in scripts]) <= 22
    assert {script.closes for script in scripts} == {1}
    assert messages == []
    assert "never retrieved" not in caplog.text


# ---- the example --------------------------------------------------------------------------------


def test_the_example_uses_each_stage_alone(capsys: Any) -> None:
    example = runpy.run_path(str(EXAMPLE))
    anyio.run(example["main"])
    shown = capsys.readouterr().out
    assert "the same from GuardedStream: True" in shown
    assert "COMPLETE: 'Guarded streams end whole, or say so.'" in shown
    assert "FAILED: 'Guarded ' | the stream ended as 'failed' (source_error)" in shown


async def test_the_driver_is_a_task_of_its_own_and_the_only_one_that_steps_the_source() -> None:
    script = Script("a", 1.0, "b")
    await drained(guarded(script, timing=timing(heartbeat=0.3)))
    assert len(set(script.tasks)) == 1
    assert task_id() not in script.tasks
