"""A stream whose process is gone goes on with the same text, or says that it does not."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamguard import anyone_with_the_id
from streamguard.app import OWN, Endpoint, StreamGuard
from streamguard.core.cursor import cursor_zero
from streamguard.core.dialect import AgUi, Anthropic, Dialect, OpenAI, OpenAIResponses, Ui, dialect_named
from streamguard.core.errors import SourceFailed, failure_from
from streamguard.core.flush import EveryTokens, Immediate
from streamguard.core.frame import Frame
from streamguard.core.framing import FramedEncoder
from streamguard.core.guard import CompletionGuard
from streamguard.core.items import Block, Checkpoint, Finish, TextIntake, tool_call
from streamguard.core.receipt import Verdict
from streamguard.core.verify import StreamVerifier
from streamguard.core.wire import Sse
from streamguard.log.base import Checkpointed, Lease, Retention, StreamInfo, StreamState
from streamguard.log.memory import MemoryLog
from streamguard.runtime.runs import PRESENCE, Cancel, Detach
from streamguard.runtime.source import TokenSource
from streamguard.runtime.takeover import Continue, Orphan, Replay, frames_of, orphan, taken_up
from streamguard.runtime.timing import Timing
from tests.runtime.fakes import SID, Script
from tests.runtime.logs import Store, away, frames_in, text_in
from tests.runtime.orphans import TTL, died

anyio_test = pytest.mark.anyio

WORDS = [f"w{number} " for number in range(20)]
WHOLE = "".join(WORDS)


# ---- what a replay is compared with -------------------------------------------------------------

PIECES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
CALLS = st.builds(tool_call, id=st.sampled_from("ab"), name=st.just("f"), arguments=st.sampled_from(["", "{}"]))
ITEMS = st.lists(st.one_of(PIECES, PIECES, CALLS), max_size=8)
DIALECTS = st.sampled_from([dialect_named("native"), OpenAI(id="chatcmpl-1", created=1)])


def logged(items: Sequence[Any], dialect: Dialect) -> list[Frame]:
    encoder = FramedEncoder(dialect, sid=SID)
    frames: list[Frame] = []
    for item in items:
        frames += encoder.texts(item) if isinstance(item, str) else encoder.item(item)
    return frames


def state_of(frames: Sequence[Frame], checkpoint: Any = None) -> StreamState:
    tail = cursor_zero(SID)
    if frames:
        tail = tail._replace(seq=frames[-1].seq, offset=frames[-1].offset, crc=frames[-1].crc)
    return StreamState(StreamInfo(SID), tail, cursor_zero(SID), 1, False, False, 0.0, checkpoint)


class Frames(MemoryLog):
    """A log of one stream that has these frames."""

    def __init__(self, frames: Sequence[Frame]) -> None:
        super().__init__()
        self.frames = list(frames)

    async def read(self, after: Any, *, limit: int = 3) -> list[Frame]:
        return self.frames[after.seq : after.seq + limit]


async def gone_on(answer: Any, frames: Sequence[Frame], dialect: Dialect, checkpoint: Any = None) -> list[Any]:
    """What is yielded behind the log's tail."""
    found, whole = await orphan(Frames(frames), state_of(frames, checkpoint), dialect)
    async with taken_up(answer, found, whole, dialect) as source:
        return [item async for item in source]


def joined(items: Sequence[Any]) -> list[Any]:
    """Adjacent text as one piece."""
    parts: list[Any] = []
    for item in items:
        if isinstance(item, str) and parts and isinstance(parts[-1], str):
            parts[-1] += item
        else:
            parts.append(item)
    return parts


def ran(test: Callable[[], Any]) -> Any:
    return anyio.run(test)


@given(items=ITEMS, kept=st.integers(0, 8), dialect=DIALECTS, data=st.data())
def test_a_replay_gives_what_lies_behind_the_log_however_its_text_is_cut(
    items: list[Any], kept: int, dialect: Dialect, data: st.DataObject
) -> None:
    again: list[Any] = []
    for part in joined(items):
        if isinstance(part, str) and data.draw(st.booleans()):
            body = part.encode()
            cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=4)))
            again += [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
        elif isinstance(part, str):
            cut = data.draw(st.integers(0, len(part)))
            again += [part[:cut], part[cut:]]
        else:
            again.append(part)
    frames = logged(items, dialect)[:kept]

    async def test() -> list[Any]:
        return await gone_on(Replay(iter_of(again)), frames, dialect)

    found = ran(test)
    intake = TextIntake()
    rest = [intake.bytes(item) if isinstance(item, bytes) else item for item in found]
    assert joined([*items[:kept], *filter(None, rest)]) == joined(items)
    assert not intake.torn


IN_PIECES = [Anthropic(id="m"), OpenAIResponses(id="r", created=1), Ui("m"), AgUi("t", "r")]


@pytest.mark.parametrize("dialect", IN_PIECES, ids=lambda dialect: dialect.name)
def test_where_a_text_is_several_frames_text_and_blocks_are_compared(dialect: Dialect) -> None:
    """The events around them are another encoder's, and no source yields them."""
    items: list[Any] = ["ab", tool_call("c", "f", "{}"), Block("reasoning", {"text": "so"}), "cd", "e"]
    again: list[Any] = ["a", "b", *items[1:3], "cde"]
    for kept in range(len(items) + 1):
        frames = logged(items[:kept], dialect)
        found = ran(lambda: gone_on(Replay(iter_of(again)), frames, dialect))  # noqa: B023
        assert joined([*items[:kept], *found]) == joined(items)
        for wrong in ([*again[:2], tool_call("c", "g", "{}")], ["b"], [tool_call("c", "f", "{}")]):
            if kept > 1:
                with pytest.raises(SourceFailed, match="another text"):
                    ran(lambda: gone_on(Replay(iter_of(wrong)), frames, dialect))  # noqa: B023


@given(items=ITEMS.filter(bool), dialect=DIALECTS, data=st.data())
def test_a_replay_that_differs_within_the_log_is_found_out(
    items: list[Any], dialect: Dialect, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(items) - 1))
    other: Any = Block("tool_call", {"id": "c", "name": "g", "arguments": ""})
    if isinstance(items[at], str):
        place = data.draw(st.integers(0, len(items[at]) - 1))
        letter = "x" if items[at][place] != "x" else "y"
        other = items[at][:place] + letter + items[at][place + 1 :]
    again = [*items[:at], other, *items[at + 1 :]]

    async def test() -> None:
        await gone_on(Replay(iter_of(again)), logged(items, dialect), dialect)

    with pytest.raises(SourceFailed) as raised:
        ran(test)
    assert failure_from(raised.value).code == "diverged"


@given(items=ITEMS.filter(bool), dialect=DIALECTS, data=st.data())
def test_a_replay_that_ends_within_the_log_is_found_out(
    items: list[Any], dialect: Dialect, data: st.DataObject
) -> None:
    again = items[: data.draw(st.integers(0, len(items) - 1))]

    async def test() -> None:
        await gone_on(Replay(iter_of(again)), logged(items, dialect), dialect)

    with pytest.raises(SourceFailed):
        ran(test)


def iter_of(items: Sequence[Any]) -> AsyncIterator[Any]:
    async def generate() -> AsyncIterator[Any]:
        for item in items:
            yield item

    return generate()


NATIVE = dialect_named("native")


@anyio_test
async def test_a_block_is_the_same_where_json_makes_it_the_same() -> None:
    items = ["a", Block("image", {"size": (1, 2)}), "b"]
    assert await gone_on(Replay(iter_of([*items, "c"])), logged(items, NATIVE), NATIVE) == ["c"]


@anyio_test
async def test_usage_and_reasons_of_a_replay_are_not_lost_and_checkpoints_before_the_tail_are() -> None:
    usage, reason, late = Finish(usage={"prompt_tokens": 3}), Finish("length"), Checkpoint(2)
    again = [usage, Checkpoint(0), "a", Checkpoint(1), "bc", late, "d", reason]
    assert await gone_on(Replay(iter_of(again)), logged(["ab"], NATIVE), NATIVE) == [usage, "c", late, "d", reason]


@anyio_test
async def test_a_reason_before_the_tail_is_not_lost() -> None:
    items = ["a", Block("image")]
    again = ["a", Finish("length"), Block("image"), "b"]
    assert await gone_on(Replay(iter_of(again)), logged(items, NATIVE), NATIVE) == [Finish("length"), "b"]


@anyio_test
async def test_a_replay_may_bring_a_checkpoint_in_the_middle_of_a_character() -> None:
    """Where the first run was in the middle of another, since the pieces need not be the same."""
    again = ["a", b"\xc3", Checkpoint(1), b"\xa9", "b"]
    assert await gone_on(Replay(iter_of(again)), logged(["aé"], NATIVE), NATIVE) == ["b"]


@anyio_test
async def test_a_checkpoint_at_the_tail_is_kept() -> None:
    again = ["ab", Checkpoint(2), "c"]
    assert await gone_on(Replay(iter_of(again)), logged(["ab"], NATIVE), NATIVE) == [Checkpoint(2), "c"]


@anyio_test
async def test_half_a_character_at_the_tail_is_not_lost() -> None:
    again = [b"a\xc3", b"\xa9", "b"]
    assert await gone_on(Replay(iter_of(again)), logged(["a"], NATIVE), NATIVE) == ["é", "b"]
    torn = [b"a\xc3"]
    assert await gone_on(Replay(iter_of(torn)), logged(["a"], NATIVE), NATIVE) == ["\ufffd"]


@anyio_test
async def test_a_replay_of_what_cannot_be_compared_is_refused_and_its_source_closed() -> None:
    script = Script("a", {"choices": []}, "b")
    with pytest.raises(TypeError, match="yielded dict"):
        await gone_on(Replay(script), logged(["ab"], NATIVE), NATIVE)
    assert script.closes == 1


@anyio_test
@pytest.mark.parametrize("dialect", [NATIVE, OpenAI(id="x", created=1)], ids=["native", "openai"])
async def test_a_replay_from_a_checkpoint_is_compared_with_what_stands_behind_it(dialect: Dialect) -> None:
    call = tool_call("1", "f", "{}")
    frames = logged(["a", call, "b", call, "c"], dialect)
    at = state_of(frames[:2]).tail
    mark = Checkpointed(at, b'{"made":2}')
    found, whole = await orphan(Frames(frames), state_of(frames, mark), dialect)
    assert (found.checkpoint, found.since, len(whole)) == ({"made": 2}, at, 5)
    assert (found.text, found.text_after) == ("abc", "bc")
    again = ["b", call, "cd"]
    assert await gone_on(Replay(iter_of(again), from_checkpoint=True), frames, dialect, mark) == ["d"]
    with pytest.raises(SourceFailed):  # all of it, though only the rest was asked for
        await gone_on(Replay(iter_of(["a", call, *again]), from_checkpoint=True), frames, dialect, mark)


@anyio_test
async def test_without_a_checkpoint_all_of_it_is_compared() -> None:
    frames = logged(["a", "b"], NATIVE)
    assert await gone_on(Replay(iter_of(["abc"]), from_checkpoint=True), frames, NATIVE) == ["c"]


@anyio_test
@pytest.mark.parametrize("answer", [None, "text", iter, ["a"]], ids=repr)
async def test_an_answer_that_does_not_say_where_it_begins_is_refused(answer: Any) -> None:
    with pytest.raises(TypeError, match=r"answers Continue\(source\) or Replay\(source\)"):
        await gone_on(answer, [], NATIVE)


@anyio_test
async def test_frames_come_from_as_many_pages_as_there_are_and_not_beyond_the_log() -> None:
    frames = logged(WORDS, NATIVE)
    assert await frames_of(Frames(frames), cursor_zero(SID), state_of(frames).tail) == frames
    assert await frames_of(Frames(frames[:5]), cursor_zero(SID), state_of(frames).tail) == frames[:5]


# ---- a guard that takes over --------------------------------------------------------------------


def guard_of(log: MemoryLog, resumer: Any = None, dialect: str | Dialect = "native", **options: Any) -> StreamGuard:
    guard = StreamGuard(log, **{"authorize": anyone_with_the_id, "ttl": TTL, **options})
    if resumer is not None:
        guard.resumers["r"] = Endpoint(
            resumer, dialect_named(dialect), Immediate(), Timing(clock=anyio.current_time), None
        )
    return guard


async def read(guard: StreamGuard) -> tuple[Verdict | None, str, list[Frame]]:
    """The verdict of a reader from the start, and what it was given."""
    frames = [frame async for page in guard.pages(cursor_zero(SID)) for frame in page]
    gate = CompletionGuard(Sse())
    dialect = (await guard.log.state(SID)).info.dialect
    verifier = StreamVerifier(dialect=dialect)
    text = ""
    native = dialect == "native"
    for chunk in [gate.open(cursor_zero(SID), own_ids=native, resume=None), *map(gate.admit, frames)]:
        text += "".join([frame.text for frame in verifier.feed(chunk)])
    verifier.end(clean=True)
    return verifier.verdict, text, frames


async def words(start: int = 0) -> AsyncIterator[Any]:
    for number in range(start, len(WORDS)):
        yield WORDS[number]
        if number % 5 == 4:
            yield Checkpoint({"at": number + 1})


def goes_on(found: Orphan) -> Continue:
    return Continue(words(len(found.text.split())))


def again(found: Orphan) -> Replay:
    return Replay(words())


def from_checkpoint(found: Orphan) -> Replay:
    return Replay(words(found.checkpoint["at"]), from_checkpoint=True)


async def later(found: Orphan) -> Replay:
    await anyio.sleep(1.0)
    return Replay(words())


FIRST = [*WORDS[:5], Checkpoint({"at": 5}), *WORDS[5:8]]


@anyio_test
@pytest.mark.parametrize("resumer", [goes_on, again, from_checkpoint, later])
@pytest.mark.parametrize("dialect", ["native", "openai"])
async def test_a_reader_ends_with_the_text_of_an_uninterrupted_run(resumer: Any, dialect: str) -> None:
    log = Store()
    await died(log, *FIRST, dialect=dialect, negotiated=True)
    guard = guard_of(log, resumer, dialect)
    verdict, text, frames = await read(guard)
    assert (verdict, text) == (Verdict.COMPLETE, WHOLE)
    assert anyio.current_time() >= TTL
    assert [frame.seq for frame in frames] == list(range(1, len(frames) + 1))


@anyio_test
async def test_a_taken_over_stream_keeps_the_settings_of_its_dialect() -> None:
    log = Store()
    await died(log, *FIRST, dialect=OpenAI(model="m", id="chatcmpl-7", created=7))
    _, _, frames = await read(guard_of(log, again, OpenAI(model="another")))
    chunks = [json.loads(frame.data) for frame in frames[:-1]]
    assert {(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks} == {("chatcmpl-7", 7, "m")}
    assert sum(["role" in chunk["choices"][0]["delta"] for chunk in chunks]) == 1


@anyio_test
async def test_a_lease_that_was_let_go_is_taken_at_once() -> None:
    log = Store()
    lease = await died(log, *FIRST)
    await MemoryLog.release(log, lease)
    assert (await read(guard_of(log, again)))[1] == WHOLE
    assert anyio.current_time() <= 1.5


@anyio_test
async def test_a_stream_without_a_resumer_ends_as_failed_in_its_own_dialect() -> None:
    dialect: str | Dialect
    for dialect, resumer in (("native", None), (OpenAI(id="chatcmpl-7", created=7), None), ("native", again)):
        log = Store()
        await died(log, "a", dialect=dialect)
        other = "openai" if resumer else dialect  # an endpoint that has changed its dialect cannot go on
        _, text, frames = await read(guard_of(log, resumer, other))
        assert (text, frames[-1].status) == ("a", "failed")
        assert b'"producer_lost"' in frames[-1].data
        assert frames[-1].name == ("end" if dialect == "native" else None)


@anyio_test
async def test_a_dialect_that_this_process_does_not_know_is_no_reason_to_leave_a_stream_open() -> None:
    log = Store()
    lease = await MemoryLog.create(log, StreamInfo(SID, "their own"), TTL)
    await MemoryLog.release(log, lease)
    await guard_of(log).lost(await log.state(SID))
    assert (await text_in(log)) == ([], "failed")


@anyio_test
async def test_a_stream_that_was_cancelled_is_sealed_as_cancelled_and_never_gone_on_with() -> None:
    log, asked = Store(), list[Orphan]()
    lease = await died(log, *FIRST)
    await log.signal(SID, "cancel")
    await MemoryLog.release(log, lease)
    guard = guard_of(log, asked.append)
    assert (await read(guard))[2][-1].status == "cancelled"
    assert asked == []


@anyio_test
async def test_a_cancel_that_comes_in_the_middle_of_a_takeover_ends_it() -> None:
    log, script = Store(), Script("x", anyio.Event())

    async def resumer(found: Orphan) -> Continue:
        await log.signal(SID, "cancel")
        return Continue(script)

    await died(log, "a")
    assert (await read(guard_of(log, resumer)))[2][-1].status == "cancelled"
    assert script.closes == (1 if script.tasks else 0)


@anyio_test
@pytest.mark.parametrize("most", [0, 1, 2])
async def test_a_stream_is_taken_over_so_many_times_and_then_ends_as_failed(
    most: int, caplog: pytest.LogCaptureFixture
) -> None:
    log, made = Store(), list[int]()

    def dying(found: Orphan) -> Continue:
        made.append(1)
        return Continue(Script("x", lambda: log.lose(SID), anyio.Event()))

    await died(log, "a")
    guard = guard_of(log, dying, max_takeovers=most)
    _, text, frames = await read(guard)
    assert (len(made), text, frames[-1].status) == (most, "a" + "x" * most, "failed")
    assert f"its process was lost {most + 1} times (max_takeovers={most})" in caplog.text


@anyio_test
@pytest.mark.parametrize("most", [0, 1])
async def test_a_stream_that_is_handed_over_in_order_goes_on_however_often(most: int) -> None:
    """As at a rolling deployment: each process lets go of it at its shutdown, and the next one goes on."""
    log = Store()
    await log.release(await died(log, "a"))
    for _ in range(5):
        guard = guard_of(log, lambda found: Continue(Script("x", anyio.Event())), max_takeovers=most)
        state = await log.state(SID)
        await guard.lost(state)
        while (await log.state(SID)).tail.seq == state.tail.seq:  # noqa: ASYNC110  # it has no reader
            await anyio.sleep(0.1)
        await guard.aclose(close_log=False)
    for _ in range(most):
        guard = guard_of(log, lambda found: Continue(Script("y", lambda: log.lose(SID), anyio.Event())))
        guard.max_takeovers = most
        await guard.lost(await log.state(SID))
        while (await log.state(SID)).held:  # noqa: ASYNC110  # a lease ends silently
            await anyio.sleep(0.1)
    _, text, frames = await read(guard_of(log, lambda found: Continue(Script("z")), max_takeovers=most))
    state = await log.state(SID)
    assert (text, frames[-1].status) == ("axxxxx" + "y" * most + "z", "complete")
    assert (state.epoch, state.crashes) == (7 + most, most)


async def hangs(found: Orphan) -> None:
    await anyio.sleep_forever()


def raises(found: Orphan) -> None:
    raise ValueError("no such model")


def nonsense(found: Orphan) -> AsyncIterator[Any]:
    return words()


@anyio_test
@pytest.mark.parametrize("resumer", [hangs, raises, nonsense])
async def test_a_resumer_that_is_of_no_use_costs_the_stream_and_nobody_waits(resumer: Any) -> None:
    log = Store()
    await died(log, "a")
    _, text, frames = await read(guard_of(log, resumer))
    assert (text, frames[-1].status) == ("a", "failed")
    assert b'"producer_lost"' in frames[-1].data
    assert anyio.current_time() <= TTL + 1.5 + TTL / 2


@anyio_test
async def test_another_text_than_before_is_not_appended() -> None:
    log = Store()
    await died(log, *FIRST)
    _, text, frames = await read(guard_of(log, lambda found: Replay(words(1))))
    assert (text, frames[-1].status) == ("".join(WORDS[:8]), "failed")
    assert b'"diverged"' in frames[-1].data


@anyio_test
async def test_frames_that_are_not_kept_any_more_cannot_be_gone_on_from() -> None:
    log = MemoryLog(Retention(max_bytes=1000), clock=anyio.current_time)
    await died(log, *WORDS[:10])
    assert (await log.state(SID)).first.seq > 0
    await anyio.sleep(TTL)
    await guard_of(log, again).lost(await log.state(SID))
    assert (await log.state(SID)).tail.status == "failed"


# ---- who reads while it is taken over -----------------------------------------------------------


@anyio_test
async def test_a_reader_that_leaves_in_the_middle_of_a_takeover_does_not_stop_it() -> None:
    log, asked = Store(), list[float]()

    async def slowly(found: Orphan) -> Replay:
        asked.append(anyio.current_time())
        await anyio.sleep(5.0)
        return Replay(words())

    await died(log, *FIRST)
    guard = guard_of(log, slowly)
    with anyio.move_on_after(TTL + 3.0):
        await read(guard)
    assert len(asked) == 1
    assert (await read(guard))[1] == WHOLE
    assert len(asked) == 1


@anyio_test
async def test_of_many_readers_in_two_processes_one_takes_over_and_each_gets_all() -> None:
    log, asked, found = Store(), list[str](), list[str]()

    def guarded(name: str) -> StreamGuard:
        def resumer(orphaned: Orphan) -> Replay:
            asked.append(name)
            return Replay(words())

        return guard_of(log, resumer)

    async def reader(guard: StreamGuard) -> None:
        found.append((await read(guard))[1])

    await died(log, *FIRST)
    guards = [guarded("here"), guarded("there")]
    async with anyio.create_task_group() as tasks:
        for guard in guards * 3:
            tasks.start_soon(reader, guard)
    assert (len(asked), found) == (1, [WHOLE] * 6)
    assert (await log.state(SID)).epoch == 2


@anyio_test
@pytest.mark.parametrize("policy", [Cancel(), Detach(30.0)], ids=str)
async def test_a_stream_that_was_taken_over_goes_on_while_it_is_read_and_not_much_longer(policy: Any) -> None:
    log = Store()
    script = Script(*["x", 5.0] * 1000)
    lease = await died(log, "a")
    await MemoryLog.release(log, lease)
    guard = guard_of(log, lambda found: Continue(script), on_disconnect=policy)
    with anyio.move_on_after(200.0):
        await read(guard)
    assert 38 <= script.steps <= 42
    with anyio.fail_after(PRESENCE + policy.grace + 6.0):
        while (await log.state(SID)).tail.status is None:  # noqa: ASYNC110  # which tells nobody
            await anyio.sleep(1.0)
    assert (await text_in(log))[1] == "cancelled"


@anyio_test
async def test_a_silent_stream_at_another_process_is_known_to_be_read() -> None:
    """Signs are given while nothing comes, not only with the frames."""
    log = Store()
    here, there = guard_of(log, on_disconnect=Detach(30.0)), guard_of(log)
    run = await here.start(
        TokenSource(Script("a", 300.0, "b")),
        principal="",
        timing=Timing(stall=None, clock=anyio.current_time),
        flush=EveryTokens(1),
    )
    run.leave()
    frames = [frame async for page in there.pages(cursor_zero(run.sid)) for frame in page]
    assert [frame.status for frame in frames] == [None, None, "complete"]


@anyio_test
async def test_a_stream_that_never_pauses_is_known_to_be_read_at_another_process() -> None:
    log = Store()
    here, there = guard_of(log, on_disconnect=Detach(5.0)), guard_of(log)
    run = await here.start(TokenSource(Script(*["a", 0.5] * 200)), principal="")
    run.leave()
    frames = [frame async for page in there.pages(cursor_zero(run.sid)) for frame in page]
    assert (len(frames), frames[-1].status) == (201, "complete")


@anyio_test
async def test_a_stream_that_was_taken_over_has_time_to_be_read() -> None:
    log, script = Store(), Script(*["x", 1.0] * 1000)
    lease = await died(log, "a")
    await MemoryLog.release(log, lease)
    guard = guard_of(log, lambda found: Continue(script), on_disconnect=Cancel())
    await guard.lost(await log.state(SID))
    run = guard.runs.get(SID)
    assert run is not None
    await run.over.wait()
    assert PRESENCE <= script.steps <= PRESENCE + 2


@anyio_test
async def test_whoever_read_a_run_that_lost_its_lease_counts_for_the_one_that_took_over() -> None:
    """In one process: the run that the reader had joined is over, and the new one learns of it by signs."""
    log = Store()
    guard = guard_of(log, lambda found: Continue(Script(*["x", 5.0] * 40)), on_disconnect=Detach(5.0))
    run = await guard.start(
        TokenSource(Script("a", anyio.Event())),
        principal="",
        timing=Timing(stall=None, clock=anyio.current_time),
        options={OWN: {"resumer": "r"}},
    )

    async def lose() -> None:
        await anyio.sleep(2.0)
        run.producer.sink.leave("its lease is lost")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lose)
        frames = [frame async for page in guard.pages(cursor_zero(run.sid)) for frame in page]
    run.leave()
    assert (len(frames), frames[-1].status) == (42, "complete")


@anyio_test
@pytest.mark.parametrize(("own", "texts"), [({}, ["ab", "c"]), ({"flush": "token"}, ["a", "b", "c"])])
async def test_a_stream_that_was_taken_over_is_flushed_as_its_first_request_was_granted(
    own: dict[str, str], texts: list[str]
) -> None:
    log = Store()
    await MemoryLog.release(log, await died(log, "first ", **own))
    guard = guard_of(log)
    two = EveryTokens(2, first="policy")
    guard.resumers["r"] = Endpoint(
        lambda found: Continue(Script("a", "b", "c")), dialect_named("native"), two, Timing(), None
    )
    await read(guard)
    assert (await text_in(log))[0][1:] == [f'"{text}"' for text in texts]


# ---- a log in trouble ---------------------------------------------------------------------------


@anyio_test
@pytest.mark.parametrize("step", ["state", "read", "renew", "renew, done"])
async def test_trouble_in_a_takeover_frees_the_lease_and_it_is_tried_again(step: str) -> None:
    log = Store()
    lease = await died(log, *FIRST)
    await MemoryLog.release(log, lease)
    guard = guard_of(log, again)
    state = await log.state(SID)
    log.at = away(step, times=1)
    await guard.lost(state)
    after = await MemoryLog.state(log, SID)
    assert (after.epoch, after.held, after.sealed) == (2, False, False)
    assert (await read(guard))[1] == WHOLE


class Closable:
    """A source that is open from the start, as a response of a server is."""

    closes = 0

    def __aiter__(self) -> Closable:
        return self

    async def __anext__(self) -> str:
        raise AssertionError("it was read")

    async def aclose(self) -> None:
        self.closes += 1


@anyio_test
async def test_a_lease_that_is_lost_in_the_takeover_itself_appends_nothing() -> None:
    log, source = Store(), Closable()

    async def slow(found: Orphan) -> Continue:
        await MemoryLog.release(log, Lease(SID, 2, TTL))
        await MemoryLog.take_over(log, SID, 2, 1000.0)
        return Continue(source)

    await died(log, "a")
    await anyio.sleep(TTL)
    guard = guard_of(log, slow)
    await guard.lost(await log.state(SID))
    assert (await text_in(log)) == (['"a"'], None)
    assert (await MemoryLog.state(log, SID)).held
    assert (source.closes, len(guard.runs)) == (1, 0)


@anyio_test
async def test_a_stream_that_somebody_else_took_sealed_or_purged_is_left_alone() -> None:
    for act in ("take", "seal", "purge"):
        log = Store()
        lease = await died(log, "a")
        state = await log.state(SID)
        if act == "purge":
            await MemoryLog.purge(log, sid=SID)
        elif act == "seal":
            encoder = FramedEncoder("native", at=state.tail)
            await MemoryLog.append(log, lease, state.tail, encoder.finish())
        guard = guard_of(log, again)
        await guard.lost(state)
        assert len(guard.runs) == 0
        if act != "purge":
            assert (await log.state(SID)).epoch == 1
            assert len(await frames_in(log)) == (2 if act == "seal" else 1)


def test_a_name_is_the_same_in_every_process_and_tells_dialects_apart() -> None:
    class Callable_:
        def __call__(self, found: Orphan) -> Replay:
            return again(found)

    guard = StreamGuard(MemoryLog(), authorize=anyone_with_the_id)

    def endpoint(resumer: Any, dialect: str) -> Endpoint:
        return Endpoint(resumer, dialect_named(dialect), Immediate(), Timing(), None)

    pairs = [(resumer, dialect) for resumer in (again, Callable_()) for dialect in ("native", "openai")]
    names = [guard.register(endpoint(*pair)) for pair in pairs]
    assert names[0] == "tests.runtime.test_takeover.again in native"
    assert len(set(names)) == len(guard.resumers) == 4
