"""The stages joined: nothing lost, one terminal, whatever source, policy and carrier do."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamguard.core.cursor import Cursor, cursor_zero
from streamguard.core.dialect import Native, OpenAI, Raw, Text
from streamguard.core.errors import (
    Failure,
    FieldRefused,
    FinishConflict,
    ItemTooLarge,
    LocalProtocolError,
    NotSerialisable,
    PolicyError,
    StreamFinished,
    TextAfterFinish,
    UnsupportedItem,
    failure_from,
)
from streamguard.core.flush import (
    AtBoundary,
    EveryBytes,
    EveryTokens,
    FlushPolicy,
    HoldBack,
    Immediate,
    Within,
    any_of,
)
from streamguard.core.frame import Frame
from streamguard.core.framing import FramedEncoder
from streamguard.core.guard import CompletionGuard
from streamguard.core.items import Block, Checkpoint, Event, Finish, Joined
from streamguard.core.pipeline import FrameStage, ItemStage, Pipeline
from streamguard.core.states import FINAL_STATUSES
from streamguard.core.wire import Binary, Ndjson, Plain, Sse
from tests.core.test_framing import Odd, assert_chained
from tests.strategies import (
    Incomparable,
    Liar,
    Scripted,
    byte_cuts,
    clocks,
    endings,
    honest,
    hostile,
    policies,
    texts,
    token_cuts,
    whole,
)

SID = "AAECAwQFBgcICQoLDA0ODw"
ZERO = cursor_zero(SID)
FAILURE = Failure("source_error", "RuntimeError")
NEVER = Scripted([0])  # a policy that would hold everything for ever
HELD: list[FlushPolicy] = [
    NEVER,
    EveryTokens(99, first="policy"),
    EveryBytes(999, first="policy"),
    Within(1e9, first="policy"),
    AtBoundary("z{3}"),
    HoldBack("abcdefgh"),
    any_of(EveryTokens(99, first="policy"), AtBoundary("z{3}")),
]


def stage_of(policy: FlushPolicy | None = None, dialect: Any = None, **limits: int) -> FrameStage:
    return FrameStage(policy or Immediate(), FramedEncoder(dialect or Native(), sid=SID, **limits))


def pipeline_of(policy: FlushPolicy | None = None, dialect: Any = None, wire: Any = None, **limits: int) -> Pipeline:
    encoder = FramedEncoder(dialect or Native(), sid=SID, **limits)
    return Pipeline(policy or Immediate(), encoder, CompletionGuard(wire or Ndjson()))


def said(frames: Sequence[Frame]) -> list[Any]:
    """What native frames say: text as strings, blocks as dicts, the terminal as its status."""
    out: list[Any] = []
    for frame in frames:
        data = json.loads(frame.data)
        if frame.status is not None:
            assert data["status"] == frame.status
            out.append(("end", frame.status))
        else:
            out.append(data)
    return out


def joined(parts: list[Any]) -> list[Any]:
    """The same with neighbouring text as one."""
    out: list[Any] = []
    for part in parts:
        if isinstance(part, str) and out and isinstance(out[-1], str):
            out[-1] += part
        elif part != "":
            out.append(part)
    return out


def lines(data: bytes) -> list[Any]:
    """What NDJSON bytes say, by `json` alone: frames as `said` has them, all else left out."""
    out: list[Any] = []
    for line in data.split(b"\n")[:-1]:
        record = json.loads(line)
        if "data" in record:
            value = json.loads(record["data"])
            ended = record.get("event") == "end"
            assert ended == (record["id"].count(".") == 4)
            out.append(("end", value["status"]) if ended else value)
    return out


# ---- reference streams --------------------------------------------------------------------------

VECTORS = json.loads((Path(__file__).parent.parent / "vectors" / "reference.json").read_text("utf-8"))
CALL = Block("tool_call", {"id": "c1", "name": "f", "arguments": "{}"})
SOURCES: dict[str, list[Any]] = {
    "native": ["Hello", " wörld\n", "你好\u2028", CALL, Finish("stop")],
    "native_empty": [],
    "native_failed": ["part"],
    "openai": ["Hello", " wörld\n"],
}
FORMS = [
    *[(name, form) for name in ("native", "native_empty", "native_failed") for form in ("sse", "ndjson", "binary_hex")],
    ("openai", "sse_comment_form"),
    ("openai", "sse_id_form"),
]
WIRES: dict[str, Any] = {
    "sse": Sse(),
    "ndjson": Ndjson(),
    "binary_hex": Binary(),
    "sse_comment_form": Sse(),
    "sse_id_form": Sse(ids="id"),
}


def _dialect(name: str) -> Any:
    return OpenAI(model="m", id="chatcmpl-1", created=1700000000) if name == "openai" else Native()


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_a_reference_stream_is_written_to_the_byte(name: str, form: str) -> None:
    pipeline = pipeline_of(dialect=_dialect(name), wire=WIRES[form])
    out = pipeline.open()
    for item in SOURCES[name]:
        out += pipeline.push(item, 0.0)
    out += pipeline.fail(FAILURE, 0.0) if name == "native_failed" else pipeline.finish(0.0)
    expected = VECTORS[name][form]
    assert out == (bytes.fromhex(expected) if form == "binary_hex" else expected.encode())
    assert pipeline.sent == len(out)
    assert str(pipeline.cursor) == VECTORS[name]["frames"][-1]["cursor"]


@pytest.mark.parametrize("name", SOURCES)
def test_a_reference_stream_s_frames_are_those_that_a_log_stores(name: str) -> None:
    stage = stage_of(dialect=_dialect(name))
    assert str(stage.encoder.zero) == VECTORS[name]["cursor_zero"]
    frames = [frame for item in SOURCES[name] for frame in stage.push(item, 0.0)]
    frames += stage.fail(FAILURE, 0.0) if name == "native_failed" else stage.finish(0.0)
    assert [
        {
            "event": frame.name,
            "status": frame.status,
            "data": frame.data.decode(),
            "cursor": str(Cursor(SID, frame.seq, frame.offset, frame.crc, frame.status)),
        }
        for frame in frames
    ] == [{key: frame[key] for key in ("event", "status", "data", "cursor")} for frame in VECTORS[name]["frames"]]
    extra = frames[-1].extra
    if name == "openai":
        end = VECTORS[name]["frames"][-1]
        assert extra == f"{end['summary_crc']} {end['summary']}".encode()
    else:
        assert extra is None


# ---- items in order -----------------------------------------------------------------------------


def test_an_item_stage_gives_items_in_their_order() -> None:
    stage = ItemStage(EveryTokens(2, first="policy"))
    finish, checkpoint = Finish("stop"), Checkpoint(1)
    mapping, event = MappingProxyType({"a": 1}), Event("x")
    assert stage.push("a", 0.0) == []
    assert stage.push("b", 0.0) == ["ab"]
    assert stage.push("c", 0.0) == []
    assert stage.push(CALL, 0.0) == ["c", CALL]
    assert stage.push("d", 0.0) == []
    assert stage.push(checkpoint, 0.0) == ["d", checkpoint]
    assert stage.push(mapping, 0.0) == [mapping]
    assert stage.push(event, 0.0) == [event]
    assert stage.push("e", 0.0) == []
    assert stage.push(finish, 0.0) == ["e", finish]
    assert stage.push(b"f", 0.0) == []
    assert stage.push(b"g", 0.0) == ["fg"]
    assert stage.items == 10
    assert stage.push("", 0.0) == stage.push(b"", 0.0) == []
    assert stage.items == 10
    assert (stage.drain(), stage.tick(0.0), stage.deadline()) == ("", [], None)


def test_an_item_stage_tells_time() -> None:
    stage = ItemStage(Within(1.0, first="policy"))
    assert stage.push("a", 5.0) == []
    assert stage.push(b"b", 5.5) == []
    assert stage.deadline() == 6.0
    assert stage.tick(5.9) == []
    assert stage.tick(6.0) == ["ab"]
    assert stage.deadline() is None
    assert stage.push("c", 7.0) == []
    assert stage.push("d", 8.0) == ["cd"]


def test_half_a_character_at_an_item_is_one_replacement_before_it() -> None:
    for half in ("\ud83d", "🙂".encode()[:2]):
        stage = ItemStage(Immediate())
        assert stage.push("a", 0.0) == ["a"]
        assert stage.push(half, 0.0) == []
        assert stage.push(CALL, 0.0) == ["\ufffd", CALL]
        assert (stage.items, stage.flush.taken) == (3, 2)
        assert stage.push("\ude42", 0.0) == ["\ufffd"]


def test_while_half_a_character_is_held_plain_text_waits_behind_it() -> None:
    stage = ItemStage(Immediate())
    assert stage.push("\ud83d", 0.0) == []
    assert stage.push("a", 0.0) == ["\ufffda"]
    assert stage.push(b"\xf0\x9f", 0.0) == []
    assert stage.push("b", 0.0) == ["\ufffdb"]
    assert stage.flush.taken == 4
    pipeline = pipeline_of()
    out = pipeline.open()
    for piece in ("\ud83d", "a", b"\xf0\x9f", "b", "\ud83d", "", "c", "d", "é"):
        out += pipeline.push(piece, 0.0)
    assert lines(out) == ["\ufffda", "\ufffdb", "\ufffdc", "d", "é"]
    assert pipeline.items == 8


def test_a_policy_is_not_asked_about_text_that_is_not_there_yet() -> None:
    stage = ItemStage(Scripted([RuntimeError()]))
    assert stage.push(b"\xf0\x9f", 0.0) == stage.push(b"\x99", 0.0) == []


@pytest.mark.parametrize("item", [1, 1.5, object(), ["a"], bytearray(b"a"), memoryview(b"a"), Exception()])
def test_anything_else_is_a_type_error_and_loses_no_text(item: Any) -> None:
    stage = ItemStage(NEVER)
    stage.push("a", 0.0)
    with pytest.raises(UnsupportedItem) as caught:
        stage.push(item, 0.0)
    assert isinstance(caught.value, TypeError)
    assert (caught.value.kind, caught.value.dialect) == (type(item).__name__, "")
    assert str(caught.value).endswith("no dialect can carry: yield text as str or UTF-8 bytes, or a Block or Finish")
    assert (stage.drain(), stage.items) == ("a", 1)


@pytest.mark.parametrize(
    ("item", "said"),
    [
        (None, "a source yielded None, which no dialect can carry: skip None; a PushSource ends with finish()"),
        (Finish, "a source yielded the class Finish, which no dialect can carry: yield an instance, Finish(…)"),
    ],
)
def test_a_usual_slip_is_told_what_to_do(item: Any, said: str) -> None:
    with pytest.raises(UnsupportedItem) as caught:
        ItemStage(NEVER).push(item, 0.0)
    assert str(caught.value) == said


class Token(str):
    """Text of a type of its own, as some engines give it."""

    __slots__ = ()


def test_text_of_a_subclass_is_text() -> None:
    pipeline = pipeline_of(EveryTokens(2, first="policy"))
    pipeline.open()
    out = pipeline.push(Token("a"), 0.0) + pipeline.push(Token("é"), 0.0) + pipeline.push(Token("c"), 0.0)
    assert lines(out + pipeline.finish(0.0)) == ["aé", "c", ("end", "complete")]


# ---- forced drain -------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", HELD, ids=lambda policy: type(policy).__name__)
@pytest.mark.parametrize(
    "item", [CALL, Finish("stop", {"output": 1}), Checkpoint({})], ids=["block", "finish", "checkpoint"]
)
def test_held_text_leaves_before_everything_that_is_not_text(policy: FlushPolicy, item: Any) -> None:
    stage = stage_of(policy)
    assert stage.push("ab", 0.0) == stage.push("c", 0.0) == []
    frames = stage.push(item, 0.0)
    assert said(frames)[0] == "abc"
    assert len(frames) == (2 if item is CALL else 1)
    assert stage.encoder.chars == 3


@pytest.mark.parametrize("policy", HELD, ids=lambda policy: type(policy).__name__)
@pytest.mark.parametrize("status", FINAL_STATUSES)
@pytest.mark.parametrize("half", ["", "\ud83d", b"\xf0\x9f"])
def test_held_text_leaves_at_every_ending(policy: FlushPolicy, status: str, half: Any) -> None:
    stage = stage_of(policy)
    assert stage.push("ab", 0.0) == stage.push("c", 0.0) == []
    assert stage.push(half, 0.0) == []
    frames = stage.finish(0.0) if status == "complete" else stage.fail(FAILURE, 0.0, status)
    assert said(frames) == ["abc\ufffd" if half else "abc", ("end", status)]
    assert_chained(frames)


@pytest.mark.parametrize("halves", [(b"\xe2", b"\x82\xac"), ("\ud83d", "\ude00"), ("ab", "c")])
def test_usage_on_the_way_drains_nothing_and_tears_no_character(halves: tuple[Any, Any]) -> None:
    stage = stage_of(EveryTokens(9, first="policy"))
    assert stage.push(halves[0], 0.0) == []
    assert stage.push(Finish(usage={"output": 1}), 0.0) == []
    assert stage.push(halves[1], 0.0) == []
    text = said(stage.finish(0.0))[0]
    assert text in ("€", "😀", "abc")
    assert stage.encoder.ending.usage == {"output": 1}


def test_a_held_stop_string_s_beginning_is_text_like_any_other_at_the_end() -> None:
    stage = stage_of(HoldBack(["<end>", "as"]))
    frames = [frame for piece in ("ple", "as", " <") for frame in stage.push(piece, 0.0)]
    assert joined(said(frames)) == ["pleas "]
    assert said(stage.finish(0.0)) == ["<", ("end", "complete")]


# ---- conservation -------------------------------------------------------------------------------


@attrs.define
class Run:
    """A source's acts, and what a reader must be given for them."""

    acts: list[tuple[str, Any]]
    expected: list[Any]


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """Stretches of `str` or of `bytes`, cut anywhere, with blocks, checkpoints, usage and ticks between."""
    acts: list[tuple[str, Any]] = []
    expected: list[Any] = []
    for number in range(draw(st.integers(0, 4))):
        if draw(st.booleans()):
            pieces: list[Any] = draw(token_cuts())
            expected.append(whole("".join(pieces)))
        else:
            pieces = draw(byte_cuts(st.one_of(st.binary(max_size=12), texts.map(lambda text: whole(text).encode()))))
            expected.append(b"".join(pieces))
        for piece in pieces:
            acts.append(("push", piece))
            if draw(st.integers(0, 3)) == 0:
                acts.append(("tick", draw(clocks)))
        between = draw(st.sampled_from(["block", "checkpoint", "usage"]))
        if between == "block":
            acts.append(("push", Block("image", {"n": number})))
            expected.append({"type": "image", "n": number})
        else:
            if between == "usage":
                acts.append(("push", Finish(usage={"output": number})))
            acts.append(("push", Checkpoint(number)))
    return Run(acts, joined(decoded(expected)))


def decoded(parts: list[Any]) -> list[Any]:
    """Bytes as text. What follows without a text or a block in between goes on with the same character."""
    found: list[Any] = []
    data = b""
    for part in [*parts, None]:
        if isinstance(part, bytes):
            data += part
        elif part != "":
            found += [data.decode("utf-8", "replace"), part]
            data = b""
    return [part for part in found if part not in ("", None)]


def test_a_character_that_is_cut_by_a_checkpoint_is_whole() -> None:
    stage = stage_of(Immediate())
    parts = [stage.push(item, 0.0) for item in (b"\xc2", Checkpoint(0), Finish(usage={"output": 1}), b"\x80")]
    assert joined(said([frame for frames in parts for frame in frames])) == ["\x80"]


def drive(stage: Any, run: Run, ending: str) -> tuple[list[Any], str | None]:
    """Play a run as a driver does; what left, in parts, and the code of the failure that it came to."""
    out: list[Any] = []
    now = 0.0
    try:
        for kind, value in run.acts:
            if kind == "tick":
                now += value
                out.append(stage.tick(now))
            else:
                out.append(stage.push(value, now))
        if ending == "raise":
            raise RuntimeError("a source's fault")
    except Exception as exc:
        failure = failure_from(exc)
        out.append(stage.fail(failure, now))
        return out, failure.code
    if ending == "return":
        out.append(stage.finish(now))
        return out, None
    out.append(stage.fail(FAILURE, now, ending))
    return out, FAILURE.code


@given(st.one_of(policies, honest), runs(), endings)
def test_every_character_is_framed_once_in_order_before_one_terminal(
    policy: FlushPolicy, run: Run, ending: str
) -> None:
    stage = stage_of(policy)
    parts, _ = drive(stage, run, ending)
    frames = [frame for part in parts for frame in part]
    status = {"return": "complete", "raise": "failed"}.get(ending, ending)
    assert joined(said(frames)) == [*run.expected, ("end", status)]
    assert_chained(frames)
    assert stage.source.flush.taken == stage.encoder.chars == sum(len(p) for p in run.expected if isinstance(p, str))
    assert stage.encoder.ending.items == sum(
        1
        for kind, item in run.acts
        if kind == "push" and item not in ("", b"") and not isinstance(item, (Finish, Checkpoint))
    )


@given(hostile, runs(), endings)
def test_a_hostile_policy_fails_the_stream_and_loses_nothing(policy: FlushPolicy, run: Run, ending: str) -> None:
    stage = stage_of(policy)
    pushed: list[tuple[str, Any]] = []

    class Noting:
        """What was pushed before the policy's fault is what must arrive."""

        def __getattr__(self, name: str) -> Any:
            return getattr(stage, name)

        def push(self, item: Any, now: float) -> Any:
            pushed.append(("push", item))
            return stage.push(item, now)

    parts, code = drive(Noting(), run, ending)
    frames = [frame for part in parts for frame in part]
    told = joined(said(frames))
    whole_run = len(pushed) == sum(1 for kind, _ in run.acts if kind == "push")
    if code is not None:
        assert code in ("policy_error", "source_error")
    assert told[-1][0] == "end"
    assert (told[-1][1] == "complete") == (code is None)
    if whole_run:
        assert told[:-1] == run.expected
    assert_chained(frames)
    # And always: as many characters left as came in, whatever was refused.
    assert stage.source.flush.taken == stage.encoder.chars
    assert sum(len(part) for part in told[:-1] if isinstance(part, str)) == stage.encoder.chars
    honest_stage = stage_of(Immediate())
    same = [frame for _, item in pushed for frame in honest_stage.push(item, 0.0)] + honest_stage.finish(0.0)
    assert told[:-1] == joined(said(same))[:-1]


@pytest.mark.parametrize(
    ("script", "code", "message"),
    [
        ([-1], "policy_error", "Scripted answered -1; 2 characters are held: answer an int from 0 to 2"),
        (["above"], "policy_error", "Scripted answered 3; 2 characters are held: answer an int from 0 to 2"),
        ([None], "policy_error", "Scripted answered a NoneType; 2 characters are held: answer an int from 0 to 2"),
        (["ab"], "policy_error", "Scripted answered a str; 2 characters are held: answer an int from 0 to 2"),
        ([Liar(1)], "policy_error", "Scripted answered a Liar; 2 characters are held: answer an int from 0 to 2"),
        (
            [Incomparable()],
            "policy_error",
            "Scripted answered a Incomparable; 2 characters are held: answer an int from 0 to 2",
        ),
        ([ValueError("a secret")], "source_error", "ValueError"),
    ],
)
def test_a_hostile_policy_s_fault_is_what_the_terminal_tells(script: list[Any], code: str, message: str) -> None:
    pipeline = pipeline_of(Scripted(script))
    out = pipeline.open()
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whichever it is, the terminal tells it
        pipeline.push("ab", 0.0)
    out += pipeline.fail(failure_from(caught.value), 0.0)
    assert lines(out) == ["ab", ("end", "failed")]
    error = json.loads(json.loads(out.split(b"\n")[-2])["data"])["error"]
    assert (error["code"], error["message"]) == (code, message)


@given(st.one_of(policies, honest, hostile), runs(), endings, st.sampled_from([Sse(), Ndjson(), Binary()]))
def test_the_direct_way_writes_what_a_log_would_store(policy: FlushPolicy, run: Run, ending: str, wire: Any) -> None:
    pipeline, stage = pipeline_of(policy, wire=wire), stage_of(policy)
    carrier = wire.encoder(ZERO, own_ids=True)
    opening = pipeline.open()
    assert opening == carrier.opening()
    direct, code = drive(pipeline, run, ending)
    logged, same = drive(stage, run, ending)
    assert code == same
    assert direct == [b"".join([carrier.frame(frame) for frame in frames]) for frames in logged]
    assert pipeline.sent == len(opening) + sum(map(len, direct))
    assert pipeline.status == pipeline.guard.status == logged[-1][-1].status
    assert pipeline.items == stage.encoder.ending.items
    with pytest.raises(StreamFinished):
        pipeline.finish(0.0)
    with pytest.raises(StreamFinished):
        pipeline.fail(FAILURE, 0.0)
    with pytest.raises(StreamFinished):
        pipeline.heartbeat()


@given(token_cuts(), st.one_of(policies, honest))
def test_any_cut_under_any_policy_is_the_same_text(pieces: list[str], policy: FlushPolicy) -> None:
    pipeline = pipeline_of(policy)
    out = pipeline.open() + b"".join([pipeline.push(piece, 0.0) for piece in pieces]) + pipeline.finish(0.0)
    assert joined(lines(out)) == joined([whole("".join(pieces)), ("end", "complete")])


# ---- one terminal -------------------------------------------------------------------------------


@pytest.mark.parametrize("first", FINAL_STATUSES)
def test_after_a_terminal_every_verb_says_so_and_changes_nothing(first: str) -> None:
    stage = stage_of()
    stage.finish(0.0) if first == "complete" else stage.fail(FAILURE, 0.0, first)
    at = stage.encoder.cursor
    for act in (
        lambda: stage.push("a", 0.0),
        lambda: stage.push(CALL, 0.0),
        lambda: stage.push(b"a", 0.0),
        lambda: stage.finish(0.0),
        lambda: stage.fail(FAILURE, 0.0, "slow"),
    ):
        with pytest.raises(StreamFinished) as caught:
            act()
        assert caught.value.status == first
    assert (stage.encoder.cursor, stage.encoder.ending.status) == (at, first)


def test_a_source_that_yields_nothing_is_complete_with_nothing() -> None:
    stage = stage_of()
    assert stage.push("", 0.0) == stage.push(b"", 0.0) == []
    (end,) = stage.finish(0.0)
    assert json.loads(end.data) == {
        "status": "complete",
        "finish_reason": "stop",
        "frames": 0,
        "bytes": 0,
        "items": 0,
        "usage": None,
        "error": None,
    }


def test_a_failure_is_told_with_its_status_and_its_facts() -> None:
    stage = stage_of()
    frames = stage.fail(Failure("quota", "none left", retryable=True), 0.0)
    assert frames[-1].status == "failed"
    assert json.loads(frames[-1].data)["error"] == {
        "code": "quota",
        "message": "none left",
        "retryable": True,
        "resumable": False,
    }


def test_a_terminal_is_never_complete_when_characters_are_missing() -> None:
    """The last comparison: something between the flush stage and the frames lost text."""
    stage = stage_of()
    stage.push("abc", 0.0)
    stage.encoder.chars = 2
    (end,) = stage.finish(0.0)
    assert end.status == "failed"
    error = json.loads(end.data)["error"]
    assert (error["code"], error["message"]) == ("internal", "3 characters came in and 2 were framed")


# ---- finish -------------------------------------------------------------------------------------


def test_a_finish_does_not_end_the_stream_and_a_second_one_merges() -> None:
    stage = stage_of()
    assert stage.push(Finish("length"), 0.0) == []
    assert stage.push(Finish(usage={"input": 1}), 0.0) == []
    assert stage.push(CALL, 0.0)[0].name == "block"
    assert stage.push(Finish("length", {"output": 2}), 0.0) == []
    (end,) = stage.finish(0.0)
    told = json.loads(end.data)
    assert (told["finish_reason"], told["usage"], told["items"]) == ("length", {"input": 1, "output": 2}, 1)


@pytest.mark.parametrize("policy", [Immediate(), *HELD], ids=lambda policy: type(policy).__name__)
def test_text_after_the_finish_fails_the_stream_under_every_policy(policy: FlushPolicy) -> None:
    """At once, or at the end where the policy delayed the text; the text before it has left."""
    pipeline = pipeline_of(policy)
    out = pipeline.open() + pipeline.push("abc", 0.0) + pipeline.push(Finish("stop"), 0.0)
    try:
        out += pipeline.push("d", 0.0)
    except TextAfterFinish as exc:
        out += pipeline.fail(failure_from(exc), 0.0)
    else:
        out += pipeline.finish(0.0)
    assert lines(out) == ["abc", ("end", "failed")]
    assert json.loads(json.loads(out.split(b"\n")[-2])["data"])["error"]["code"] == "text_after_finish"


def test_held_text_after_the_finish_cannot_hide_the_failure_that_came_first() -> None:
    stage = stage_of(NEVER)
    stage.push(Finish("stop"), 0.0)
    stage.push("late", 0.0)
    (end,) = stage.fail(Failure("first", "why"), 0.0, "stalled")
    assert (end.status, json.loads(end.data)["error"]["code"]) == ("stalled", "first")


def test_two_reasons_conflict_and_lose_no_text() -> None:
    stage = stage_of(NEVER)
    assert stage.push(Finish("stop"), 0.0) == []
    stage = stage_of(NEVER)
    stage.push("abc", 0.0)
    stage.encoder.ending.merge(Finish("stop", choice=1))
    with pytest.raises(FinishConflict) as caught:
        stage.push(Finish("length", choice=1), 0.0)
    assert said(stage.fail(failure_from(caught.value), 0.0)) == ["abc", ("end", "failed")]


# ---- checkpoints --------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [Immediate(), NEVER, EveryTokens(2)])
@pytest.mark.parametrize("pieces", [[*["é 🎉 世".encode()[at : at + 1] for at in range(11)]], [*"a\ud83c\udf89b"]])
def test_a_checkpoint_in_the_middle_of_a_character_tears_it_not(policy: FlushPolicy, pieces: list[Any]) -> None:
    pipeline = pipeline_of(policy)
    out = pipeline.open()
    for number, piece in enumerate(pieces):
        out += pipeline.push(piece, 0.0) + pipeline.push(Checkpoint(number), 0.0)
    out += pipeline.finish(0.0)
    *texts, end = lines(out)
    assert end == ("end", "complete")
    assert "".join(texts) == ("é 🎉 世" if isinstance(pieces[0], bytes) else "a🎉b")


# ---- items that raise ---------------------------------------------------------------------------

BAD: list[tuple[Any, type[Exception]]] = [
    (1, UnsupportedItem),
    (Event("x"), UnsupportedItem),
    ({"choices": []}, UnsupportedItem),
    (Block("big", {"x": "x" * 200}), ItemTooLarge),
    (Block("nan", {"x": float("nan")}), NotSerialisable),
    (Finish(usage={"x": float("inf")}), NotSerialisable),
]


@pytest.mark.parametrize(("item", "error"), BAD)
@pytest.mark.parametrize("policy", [Immediate(), NEVER])
def test_an_item_that_raises_takes_no_number_and_no_text_with_it(
    item: Any, error: type[Exception], policy: FlushPolicy
) -> None:
    pipeline = pipeline_of(policy, max_block=100)
    out = pipeline.open() + pipeline.push("abc", 0.0)
    with pytest.raises(error) as caught:
        pipeline.push(item, 0.0)
    out += pipeline.fail(failure_from(caught.value), 0.0)
    assert lines(out) == ["abc", ("end", "failed")]
    assert pipeline.cursor.seq == 2


@pytest.mark.parametrize(("item", "error"), BAD)
@pytest.mark.parametrize("then", ["str", "bytes", "block", "tick"])
def test_a_caller_may_leave_a_bad_item_out_and_go_on(item: Any, error: type[Exception], then: str) -> None:
    """What the item left behind goes first, in whatever way the next thing goes."""
    pipeline = pipeline_of(Scripted([0, 1.0]), max_block=100)
    out = pipeline.open() + pipeline.push("abc", 0.0)
    with pytest.raises(error):
        pipeline.push(item, 0.0)
    acts: dict[str, Any] = {
        "str": lambda: pipeline.push("def", 0.0),
        "bytes": lambda: pipeline.push(b"def", 0.0),
        "block": lambda: pipeline.push(CALL, 0.0),
        "tick": lambda: pipeline.tick(0.0),
    }
    next_ = {"str": ["def"], "bytes": ["def"], "block": [json.loads(CALL_JSON)], "tick": []}[then]
    out += acts[then]()
    out += pipeline.finish(0.0)
    assert joined(lines(out)) == joined(["abc", *next_, ("end", "complete")])


CALL_JSON = '{"type":"tool_call","id":"c1","name":"f","arguments":"{}"}'


# ---- large text ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "sizes"),
    [("ab", [2]), ("abc", [3]), ("abcdefgh", [8]), ("abcdefghi", [2, 2, 2, 2, 1]), ("🙂🙂🙂", [2, 1]), ("ééé", [3])],
)
@pytest.mark.parametrize("as_bytes", [False, True])
def test_large_text_is_split(text: str, sizes: list[int], as_bytes: bool) -> None:
    pipeline = pipeline_of(max_text=8)
    out = pipeline.open()
    out += pipeline.push(text.encode() if as_bytes else text, 0.0)
    out += pipeline.finish(0.0)
    told = lines(out)
    assert "".join(told[:-1]) == text
    assert [len(part) for part in told[:-1]] == sizes


def test_large_held_text_is_split_at_the_end_too() -> None:
    stage = stage_of(NEVER, max_text=8)
    for char in "abcdefghij":
        assert stage.push(char, 0.0) == []
    frames = stage.finish(0.0)
    assert said(frames) == ["ab", "cd", "ef", "gh", "ij", ("end", "complete")]
    assert_chained(frames)


# ---- time, heartbeats, facts --------------------------------------------------------------------


def test_short_texts_that_waited_together_are_split_where_they_are_too_long_for_a_frame() -> None:
    pipeline = pipeline_of(EveryTokens(5), max_text=8)
    out = pipeline.open()
    out += b"".join(pipeline.push(text, 0.0) for text in ["a", "bc", "de", "fg", "hi", "jk"])
    assert lines(out) == ["a", "bc", "de", "fg", "hi", "jk"]


def test_time_is_an_argument_and_a_deadline_an_answer() -> None:
    assert pipeline_of(Within(1.0)).timed
    assert not pipeline_of(Immediate()).timed
    for stage in (stage_of(Within(1.0, first="policy")), pipeline_of(Within(1.0, first="policy"))):
        if isinstance(stage, Pipeline):
            stage.open()
        assert stage.deadline() is None
        assert not stage.push("a", 10.0)
        assert stage.deadline() == 11.0
        assert not stage.tick(10.9)
        assert stage.tick(11.0)
        assert stage.deadline() is None
        assert not stage.tick(99.0)
        stage.push("b", 20.0)
        assert stage.push("c", 21.0)


def test_heartbeats_stand_at_frame_edges_and_change_no_cursor() -> None:
    pipeline = pipeline_of(wire=Sse())
    assert pipeline.cursor == ZERO
    pipeline.open(resume="/streams")
    assert pipeline.cursor == ZERO
    assert pipeline.heartbeat() == f": hb {ZERO}\n".encode()
    pipeline.push("a", 0.0)
    at = pipeline.cursor
    assert at == pipeline.encoder.cursor != ZERO
    assert pipeline.heartbeat(blocked=True) == f": hb {at} blocked\n".encode()
    assert pipeline.cursor == at
    assert (pipeline.status, pipeline.ending) == (None, pipeline.encoder.ending)
    pipeline.finish(0.0)
    assert pipeline.status == "complete"
    assert pipeline.cursor.status == "complete"


@pytest.mark.parametrize("policy", [Immediate(), EveryTokens(2), HoldBack("cd")])
def test_a_pipeline_tells_where_it_stands_after_each_of_many_texts(policy: FlushPolicy) -> None:
    """It tells the stages of texts that follow each other later; whoever asks must not see that."""
    asked = pipeline_of(policy, wire=Sse())  # at each of them; the other only at the end
    silent = pipeline_of(policy, wire=Sse())
    sent = len(asked.open())
    silent.open()
    pieces = ["a", "b", "c", "d", "é", "e", "\ud83d", "\ude00", "f", "g" * asked.encoder.max_text, "h", "i"]
    for number, piece in enumerate(pieces, 1):
        out = asked.push(piece, 0.0)
        sent += len(out)
        assert out == silent.push(piece, 0.0)
        assert (asked.sent, asked.items) == (silent.sent, silent.items) == (sent, number)
        assert asked.cursor == asked.encoder.cursor == asked.guard.cursor
    assert asked.finish(0.0) == silent.finish(0.0)
    assert asked.cursor == silent.cursor
    assert asked.status == "complete"


def test_an_opening_names_the_stream_and_where_to_resume() -> None:
    assert b'data: {"v":1,"resume":"/streams"}\n\n' in pipeline_of(wire=Sse()).open(resume="/streams")
    assert pipeline_of(dialect=OpenAI(), wire=Sse()).open() == f": streamguard 1 {ZERO}\n".encode()


def test_items_are_counted_as_they_come() -> None:
    pipeline = pipeline_of(NEVER)
    pipeline.open()
    for count, item in enumerate(["a", b"b", CALL, "c"], 1):
        pipeline.push(item, 0.0)
        assert pipeline.items == count
    pipeline.push("", 0.0)
    pipeline.push(Finish(), 0.0)
    assert pipeline.items == 4
    out = pipeline.finish(0.0)
    assert pipeline.items == 4
    assert json.loads(json.loads(out.split(b"\n")[-2])["data"])["items"] == 4


def test_a_policy_given_to_two_streams_is_not_shared() -> None:
    policy = EveryTokens(2)
    streams = [pipeline_of(policy), pipeline_of(policy)]
    outs = [stream.open() for stream in streams]
    for piece in "abc":
        outs = [out + stream.push(piece, 0.0) for out, stream in zip(outs, streams, strict=True)]
    assert [lines(out) for out in outs] == [["a", "bc"], ["a", "bc"]]


# ---- `raw` and `text` ---------------------------------------------------------------------------


def test_a_serialised_stream_is_reframed_from_pieces_of_either_kind() -> None:
    stage = stage_of(dialect=Raw("asgi"))
    assert stage.push("data: a\n", 0.0) == []
    frames = stage.push(b"\ndata: \xc3", 0.0) + stage.push(b"\xa9\n\n", 0.0) + stage.push("data: \ud800\n\n", 0.0)
    assert [frame.data.decode() for frame in frames] == ["a", "é", "\ufffd"]
    assert stage.push(Event("x", "n"), 0.0)[0].name == "n"
    frames = stage.finish(0.0)
    assert frames[-1].status == "complete"
    assert stage.encoder.ending.items == 4


def test_plain_text_is_text_and_nothing_else() -> None:
    pipeline = pipeline_of(EveryTokens(2), Text(), Plain())
    out = pipeline.open() + pipeline.push("a\r\n", 0.0) + pipeline.push("b", 0.0) + pipeline.finish(0.0)
    assert out == b"a\r\nb"
    assert pipeline.status == "complete"


# ---- a carrier that refuses ---------------------------------------------------------------------


class Picky:
    """NDJSON that refuses a frame whose data hold a word, and any terminal of the statuses given."""

    name = "picky"
    content_type = "application/x-ndjson"

    def __init__(self, word: bytes = b"bad", statuses: tuple[str, ...] = ()) -> None:
        self.word = word
        self.statuses = statuses

    def encoder(self, zero: Cursor, *, own_ids: bool) -> Any:
        inner = Ndjson().encoder(zero, own_ids=own_ids)
        write = inner.frame

        def frame(frame: Frame) -> bytes:
            if frame.status in self.statuses or (frame.status is None and self.word in frame.data):
                raise FieldRefused("data")
            return write(frame)

        inner.frame = frame  # type: ignore[method-assign]
        return inner

    def reader(self, *, own_ids: bool | None, max_frame: int = 0) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize("item", ["bad", b"bad", "bad" * 9, Block("bad")])
@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("policy", [Immediate(), EveryTokens(1)])
def test_after_a_frame_that_its_carrier_refused_the_stream_still_ends_and_not_as_complete(
    item: Any, goes_on: bool, policy: FlushPolicy
) -> None:
    pipeline = pipeline_of(policy, wire=Picky(), max_text=16)
    out = pipeline.open() + pipeline.push("a", 0.0)
    with pytest.raises(FieldRefused) as caught:
        pipeline.push(item, 0.0)
    if goes_on:
        out += pipeline.push("b", 0.0) + pipeline.finish(0.0)
    else:
        out += pipeline.fail(failure_from(caught.value), 0.0)
    assert lines(out) == ["a", *(["b"] if goes_on else []), ("end", "failed")]
    assert pipeline.status == "failed"


@pytest.mark.parametrize(
    ("items", "statuses", "lost"),
    [
        (["a", "b"], (), 0),
        (["a", "bad", "b"], (), 1),
        (["a", Block("bad"), "b", "bad"], (), 2),
        (["abcdbad!efghijklm"], (), 4),  # five pieces, of which the second is refused
        (["a"], ("complete",), 0),  # a terminal is no text
    ],
)
def test_what_the_guard_did_not_let_through_is_counted(items: list[Any], statuses: Any, lost: int) -> None:
    pipeline = pipeline_of(Immediate(), wire=Picky(statuses=statuses), max_text=16)
    pipeline.open()
    for item in items:
        with contextlib.suppress(FieldRefused):
            pipeline.push(item, 0.0)
    pipeline.finish(0.0)
    assert pipeline.lost == lost


def test_what_was_written_before_a_refused_frame_leaves_with_the_next_bytes() -> None:
    pipeline = pipeline_of(NEVER, wire=Picky())
    out = pipeline.open()
    pipeline.push("held", 0.0)
    with pytest.raises(FieldRefused) as caught:
        pipeline.push(Block("bad"), 0.0)
    assert pipeline.cursor.seq == 1
    out += pipeline.fail(failure_from(caught.value), 0.0)
    assert lines(out) == ["held", ("end", "failed")]
    assert pipeline.sent == len(out)


def test_what_time_releases_may_be_refused_too() -> None:
    pipeline = pipeline_of(Within(1.0, first="policy"), wire=Picky())
    out = pipeline.open() + pipeline.push("bad", 0.0)
    with pytest.raises(FieldRefused):
        pipeline.tick(1.0)
    out += pipeline.push("b", 2.0) + pipeline.finish(3.0)
    assert lines(out) == ["b", ("end", "failed")]


def test_what_time_released_before_a_refused_frame_leaves_before_the_next_text() -> None:
    pipeline = pipeline_of(Within(1.0, first="policy"), wire=Picky(), max_text=16)
    out = pipeline.open() + pipeline.push("abcdbad!efghijklm", 0.0)
    with pytest.raises(FieldRefused):
        pipeline.tick(1.0)
    assert pipeline.cursor.seq == 1
    out += pipeline.push("b", 2.0) + pipeline.push("c", 3.0) + pipeline.finish(3.0)
    assert lines(out) == ["abcd", "bc", ("end", "failed")]


def test_a_terminal_that_its_carrier_refuses_is_replaced_by_a_failure() -> None:
    pipeline = pipeline_of(NEVER, wire=Picky(statuses=("complete",)))
    out = pipeline.open() + pipeline.push("abc", 0.0) + pipeline.finish(0.0)
    assert lines(out) == ["abc", ("end", "failed")]
    assert json.loads(json.loads(out.split(b"\n")[-2])["data"])["error"]["code"] == "field_refused"
    assert pipeline.status == "failed"


def test_where_no_terminal_passes_the_driver_is_told() -> None:
    pipeline = pipeline_of(wire=Picky(statuses=("complete", "failed")))
    pipeline.open()
    with pytest.raises(FieldRefused):
        pipeline.finish(0.0)
    with pytest.raises(FieldRefused):
        pipeline.fail(FAILURE, 0.0)
    assert pipeline.status is None
    assert lines(pipeline.fail(FAILURE, 0.0, "stalled")) == [("end", "stalled")]


def test_a_connection_must_be_opened_first() -> None:
    pipeline = pipeline_of()
    with pytest.raises(LocalProtocolError):
        pipeline.push("lost", 0.0)
    out = pipeline.open() + pipeline.push("a", 0.0)
    assert pipeline.cursor == pipeline.encoder.cursor
    out += pipeline.finish(0.0)
    assert lines(out) == ["a", ("end", "failed")]
    assert json.loads(out.split(b"\n")[1])["id"] == str(Cursor(SID, 1, 3, FIRST_CRC))


FIRST_CRC = stage_of().push("a", 0.0)[0].crc


# ---- a dialect that misbehaves ------------------------------------------------------------------


@pytest.mark.parametrize("fault", [RuntimeError("secret"), PolicyError("x", 1, 0)])
@pytest.mark.parametrize("where", ["judges", "closes", "ends"])
def test_whatever_a_dialect_raises_at_the_end_there_is_one_terminal(fault: Exception, where: str) -> None:
    stage = stage_of(NEVER, Odd(**{where: fault}))
    stage.push("abc", 0.0)
    frames = stage.finish(0.0)
    assert_chained(frames)
    assert [frame.status for frame in frames] == [None, "failed"]
    assert frames[0].data == b"abc"
    assert stage.encoder.ending.failure == failure_from(fault)
    with pytest.raises(StreamFinished):
        stage.finish(0.0)


def test_text_that_a_dialect_refuses_at_the_end_fails_the_stream() -> None:
    for fault in (RuntimeError("secret"), FieldRefused("data")):
        for end in ("finish", "fail"):
            stage = stage_of(NEVER, Odd(texts=fault))
            stage.push("abc", 0.0)
            (last,) = stage.finish(0.0) if end == "finish" else stage.fail(FAILURE, 0.0)
            assert last.status == "failed"
            assert stage.encoder.ending.failure == (failure_from(fault) if end == "finish" else FAILURE)


def test_a_status_that_is_no_failure_s_is_refused_before_anything_is_written() -> None:
    stage = stage_of()
    with pytest.raises(ValueError, match="cannot end as 'complete'"):
        stage.fail(FAILURE, 0.0, "complete")
    assert said(stage.finish(0.0)) == [("end", "complete")]


def test_text_held_when_a_wrong_status_was_given_is_not_lost() -> None:
    stage = stage_of(NEVER)
    stage.push("abc", 0.0)
    with pytest.raises(ValueError, match="cannot end as 'over'"):
        stage.fail(FAILURE, 0.0, "over")
    assert said(stage.finish(0.0)) == ["abc", ("end", "complete")]


def test_pieces_that_waited_together_count_as_what_the_source_yielded() -> None:
    pipeline = Pipeline(Immediate(), FramedEncoder(Native()), CompletionGuard(Sse()))
    pipeline.open()
    pipeline.push(Joined.of(["a", "b", "c"]), 0.0)
    pipeline.push(Joined.of(["", ""]), 0.0)
    pipeline.push("d", 0.0)
    assert pipeline.items == 4
    assert b'"items":4' in pipeline.finish(0.0)


def test_stages_stand_where_they_belong() -> None:
    """Refused when they are joined: else the first token would fail, with the name of something inside."""
    pipeline: Any = Pipeline
    encoder, guard = FramedEncoder(Native()), CompletionGuard(Sse())
    with pytest.raises(TypeError, match=r"^Native\(\) stands where a FramedEncoder belongs: policy, encoder, guard$"):
        pipeline(Immediate(), Native(), guard)
    with pytest.raises(TypeError, match=r"^Sse\(.*\) stands where a CompletionGuard belongs: policy, encoder, guard$"):
        pipeline(Immediate(), encoder, Sse())
    with pytest.raises(TypeError, match=r"^the class FramedEncoder stands where a FramedEncoder belongs"):
        pipeline(Immediate(), FramedEncoder, guard)
    frames: Any = FrameStage
    with pytest.raises(TypeError, match=r"^Native\(\) stands where a FramedEncoder belongs"):
        frames(Immediate(), Native())


def test_a_stage_of_frames_splits_a_text_that_is_too_long_for_one() -> None:
    stage = stage_of(max_text=40)
    frames = [*stage.push("a" * 9, 0.0), *stage.push("b" * 45, 0.0)]
    assert [len(frame.data) - 2 for frame in frames] == [9, 10, 10, 10, 10, 5]
    assert "".join([frame.data.decode()[1:-1] for frame in frames]) == "a" * 9 + "b" * 45
