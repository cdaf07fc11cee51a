"""Text and items in, frames out: every number right, and none taken by what cannot leave."""

from __future__ import annotations

import gc
import json
import weakref
import zlib
from collections.abc import Mapping
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamguard.core.cursor import Cursor, cursor_zero
from streamguard.core.dialect import Native, OpenAI, Payload, Raw, Text
from streamguard.core.errors import (
    Failure,
    FieldRefused,
    ItemTooLarge,
    LocalProtocolError,
    NotSerialisable,
    SourceFailed,
    StreamFinished,
    TextAfterFinish,
    UnsupportedItem,
)
from streamguard.core.frame import Frame
from streamguard.core.framing import MAX_BLOCK, MAX_TEXT, FramedEncoder
from streamguard.core.items import Block, Ending, Event, Finish
from streamguard.core.states import FINAL_STATUSES
from streamguard.core.wire import Binary, Ndjson, Sse
from tests.strategies import clean_texts

SID = "AAECAwQFBgcICQoLDA0ODw"
ZERO = cursor_zero(SID)
FAILURE = Failure("source_error", "RuntimeError")


def assert_chained(frames: list[Frame], at: Cursor = ZERO) -> None:
    """Each frame's number, offset and checksum by the protocol's own words, computed anew."""
    seq, offset, crc = at.seq, at.offset, at.crc
    for frame in frames:
        seq += 1
        offset += len(frame.data)
        crc = zlib.crc32(f"{frame.name or ''}\n{frame.status or ''}\n".encode() + frame.data + b"\n", crc)
        assert (frame.seq, frame.offset, frame.crc) == (seq, offset, crc)


class Turns:
    """Answers to be given in turn, the last one for ever after."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def next(self) -> Any:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


FIN = Payload(b"fin", "end")


@attrs.define
class Odd:
    """A dialect that does as it is told: its own setting, its own encoder. An exception is raised."""

    items: list[Payload] = attrs.field(factory=list)
    closes: Any = attrs.field(factory=list)
    ends: Any = attrs.field(factory=lambda: FIN)
    judges: Any = None
    texts: Any = None
    calls: list[Any] = attrs.field(factory=list)

    name = "odd"
    own_ids = True
    takes_text = True

    def encoder(self, *, negotiated: bool = False) -> Odd:
        self.calls.append(negotiated)
        return self

    def reader(self) -> Any:
        raise NotImplementedError

    def text(self, text: str) -> bytes:
        if self.texts is not None:
            raise self.texts
        return text.encode()

    def item(self, item: Block | Event | Mapping[str, Any], ending: Ending) -> list[Payload]:
        return self.items

    def wire(self, piece: bytes, ending: Ending) -> list[Payload]:
        return self.items

    def judge(self, ending: Ending) -> Any:
        return self._told(self.judges)

    def closing(self, ending: Ending) -> Any:
        return self._told(self.closes)

    def terminal(self, ending: Ending, frames: int, size: int) -> Any:
        self.calls.append((frames, size, ending.status))
        return self._told(self.ends)

    def _told(self, answer: Any) -> Any:
        if isinstance(answer, Turns):
            answer = answer.next()
        if isinstance(answer, BaseException):
            raise answer
        return answer


# ---- the chain ----------------------------------------------------------------------------------


def test_an_encoder_begins_at_cursor_zero() -> None:
    encoder = FramedEncoder(Native(), sid=SID)
    assert encoder.zero == encoder.cursor == ZERO
    assert (encoder.sid, encoder.chars, encoder.finished) == (SID, 0, False)
    assert (encoder.own_ids, encoder.takes_text) == (True, True)
    assert (encoder.max_text, encoder.max_block) == (MAX_TEXT, MAX_BLOCK) == (1_048_576, 16_777_216)
    assert FramedEncoder("native", sid=SID).texts("a") == encoder.texts("a")
    raw = FramedEncoder(Raw())
    assert (raw.own_ids, raw.takes_text) == (False, False)
    assert raw.sid != FramedEncoder(Raw()).sid


def test_a_dialect_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown dialect 'klingon'"):
        FramedEncoder("klingon")


@pytest.mark.parametrize("negotiated", [False, True])
def test_the_dialect_is_told_whether_its_reader_verifies(negotiated: bool) -> None:
    dialect = Odd()
    FramedEncoder(dialect, negotiated=negotiated)
    FramedEncoder(dialect)
    assert dialect.calls == [negotiated, False]


@pytest.mark.parametrize("sid", ["", "short", SID + "x", SID[1:] + "\n", SID[1:] + "é", SID[1:] + "."])
def test_a_sid_that_no_cursor_can_hold_is_refused(sid: str) -> None:
    with pytest.raises(ValueError, match=r"^a sid is 22 characters of base64url, not "):
        FramedEncoder(Native(), sid=sid)


def test_frames_of_every_kind_are_chained() -> None:
    encoder = FramedEncoder(Native(), sid=SID)
    frames = [encoder.text("Hello")]
    frames += encoder.texts(" wörld\n")
    frames += encoder.item(Block("image", {"url": "u"}))
    assert encoder.cursor == Cursor(SID, 3, frames[-1].offset, frames[-1].crc)
    frames += encoder.finish()
    assert_chained(frames)
    assert [(frame.name, frame.status) for frame in frames] == [
        (None, None),
        (None, None),
        ("block", None),
        ("end", "complete"),
    ]
    assert frames[0] == Frame(1, 7, 0x6FB73295, b'"Hello"')
    assert encoder.chars == 12
    assert encoder.finished


@given(st.lists(st.one_of(clean_texts, st.just(None)), max_size=8), st.sampled_from([None, *FINAL_STATUSES[1:]]))
def test_any_frames_are_chained(pieces: list[str | None], status: str | None) -> None:
    encoder = FramedEncoder(OpenAI(model="m"), sid=SID)
    frames: list[Frame] = []
    for piece in pieces:
        frames += encoder.item(Block("tool_call", {"id": "c", "name": "f"})) if piece is None else [encoder.text(piece)]
    frames += encoder.finish() if status is None else encoder.fail(FAILURE, status)
    assert_chained(frames)
    assert encoder.chars == sum(map(len, filter(None, pieces)))
    assert [frame.status for frame in frames if frame.status] == [status or "complete"] == [frames[-1].status]


def test_the_summary_beside_a_terminal_has_a_checksum_of_its_own() -> None:
    encoder = FramedEncoder(OpenAI(), sid=SID)
    end = encoder.finish()[-1]
    assert end.extra is not None
    crc, _, summary = end.extra.partition(b" ")
    assert crc == b"%08x" % zlib.crc32(summary, end.crc)
    assert json.loads(summary)["status"] == "complete"


def test_an_event_s_own_id_travels_as_it_is() -> None:
    encoder = FramedEncoder(Odd(items=[Payload(b"x", "e", b"their id")]), sid=SID)
    (frame,) = encoder.item({})
    assert (frame.name, frame.extra) == ("e", b"their id")
    assert_chained([frame])


# ---- text ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("max_text", "text", "sizes"),
    [
        (8, "", [0]),
        (8, "ab", [2]),
        (8, "abc", [3]),
        (8, "abcdefgh", [8]),
        (8, "abcdefghi", [2, 2, 2, 2, 1]),
        (8, "ééé", [3]),
        (8, "éééé", [4]),
        (8, "ééééé", [2, 2, 1]),
        (8, "🙂🙂", [2]),
        (8, "🙂🙂🙂", [2, 1]),
        (4, "🙂🙂", [1, 1]),
        (3, "abcd", [1, 1, 1, 1]),
        (1, "🙂a", [1, 1]),
        (11, "a" * 12, [2] * 6),
        (12, "a" * 13, [3, 3, 3, 3, 1]),
    ],
)
def test_large_text_is_split_between_characters(max_text: int, text: str, sizes: list[int]) -> None:
    encoder = FramedEncoder(Native(), sid=SID, max_text=max_text)
    frames = encoder.texts(text)
    parts = [json.loads(frame.data) for frame in frames]
    assert "".join(parts) == text
    assert [len(part) for part in parts] == sizes
    assert_chained(frames)
    assert encoder.chars == len(text)


@given(clean_texts, st.integers(4, 40))
def test_no_frame_of_text_is_above_the_limit(text: str, max_text: int) -> None:
    frames = FramedEncoder(Native(), sid=SID, max_text=max_text).texts(text)
    parts = [json.loads(frame.data) for frame in frames]
    assert "".join(parts) == text
    assert all(len(part.encode()) <= max_text for part in parts)


def test_text_after_its_choice_s_reason_is_refused_and_takes_no_number() -> None:
    encoder = FramedEncoder(Native(), sid=SID)
    encoder.text("a")
    encoder.ending.merge(Finish("length", choice=1))
    encoder.text("b")
    encoder.ending.merge(Finish("stop"))
    before = (encoder.cursor, encoder.chars)
    for push in (encoder.text, encoder.texts):
        with pytest.raises(TextAfterFinish) as caught:
            push("c")
        assert (caught.value.choice, caught.value.reason) == (0, "stop")
    assert (encoder.cursor, encoder.chars) == before


def test_text_that_a_dialect_refuses_takes_no_number() -> None:
    encoder = FramedEncoder(Odd(texts=UnicodeError()), sid=SID)
    with pytest.raises(UnicodeError):
        encoder.text("a")
    assert (encoder.cursor, encoder.chars) == (ZERO, 0)


# ---- items --------------------------------------------------------------------------------------

REFUSED = [
    (Payload(b"x" * 21), ItemTooLarge(21, 20)),
    (Payload(b"a\rb"), FieldRefused("data")),
    (Payload(b"a\0b"), FieldRefused("data")),
    (Payload(b"a", "n\nm"), FieldRefused("event")),
    (Payload(b"a", "n\rm"), FieldRefused("event")),
    (Payload(b"a", "n\0m"), FieldRefused("event")),
    (Payload(b"a", "\ud800"), FieldRefused("event", "holds half a character")),
    (Payload(b"a", "n" * 256), FieldRefused("event", "is longer than 255 bytes")),
    (Payload(b"a", "é" * 128), FieldRefused("event", "is longer than 255 bytes")),
    (Payload(b"a", None, b"i\nd"), FieldRefused("id")),
    (Payload(b"a", None, b"i\rd"), FieldRefused("id")),
    (Payload(b"a", None, b"i\0d"), FieldRefused("id")),
]
TAKEN = [
    Payload(b"x" * 20),
    Payload(b""),
    Payload(b"a\nb\n"),
    Payload(b"a", ""),
    Payload(b"a", "n" * 255),
    Payload(b"a", None, b""),
]


@pytest.mark.parametrize("payload", TAKEN)
@pytest.mark.parametrize("wire", [Sse(), Ndjson(), Binary()], ids=lambda wire: wire.name)
def test_what_is_taken_every_carrier_can_write(payload: Payload, wire: Any) -> None:
    (frame,) = FramedEncoder(Odd(items=[payload]), sid=SID, max_block=20).item({})
    assert wire.encoder(ZERO, own_ids=True).frame(frame)
    assert_chained([frame])


@pytest.mark.parametrize(("payload", "error"), REFUSED)
@pytest.mark.parametrize("by", ["item", "wire"])
def test_what_is_refused_takes_no_number(payload: Payload, error: Exception, by: str) -> None:
    encoder = FramedEncoder(Odd(items=[payload]), sid=SID, max_block=20)
    first = encoder.text("a")
    before = encoder.cursor
    with pytest.raises(type(error)) as caught:
        encoder.item({}) if by == "item" else encoder.wire(b"")
    assert str(caught.value) == str(error)
    assert vars(caught.value) == vars(error)
    assert encoder.cursor == before
    assert_chained([first, *encoder.fail(FAILURE)])


@pytest.mark.parametrize("then", ["text", "item", "wire", "finish", "fail"])
def test_frames_before_a_refused_one_leave_with_the_next_call(then: str) -> None:
    dialect = Odd(items=[Payload(b"1"), Payload(b"2", "n"), Payload(b"\0"), Payload(b"3")])
    encoder = FramedEncoder(dialect, sid=SID)
    with pytest.raises(FieldRefused):
        encoder.item({})
    dialect.items = [Payload(b"4")]
    calls: dict[str, Any] = {
        "text": lambda: encoder.texts("4"),
        "item": lambda: encoder.item({}),
        "wire": lambda: encoder.wire(b""),
        "finish": encoder.finish,
        "fail": lambda: encoder.fail(FAILURE),
    }
    frames = calls[then]()
    assert [frame.data for frame in frames] == [b"1", b"2", b"fin" if then in ("finish", "fail") else b"4"]
    assert_chained(frames)
    if not encoder.finished:
        at = encoder.cursor
        assert_chained(encoder.finish(), at)


def test_a_block_above_the_limit_is_named_with_it() -> None:
    encoder = FramedEncoder(Native(), sid=SID, max_block=100)
    block = Block("image", {"data": "x" * 100})
    size = len(b'{"type":"image","data":""}') + 100
    with pytest.raises(ItemTooLarge) as caught:
        encoder.item(block)
    assert (caught.value.size, caught.value.limit) == (size, 100)
    assert encoder.cursor == ZERO


@pytest.mark.parametrize(
    ("dialect", "item", "error"),
    [
        (Native(), Block("a", {"x": float("nan")}), NotSerialisable),
        (Native(), Block("a", {"x": object()}), NotSerialisable),
        (Native(), Event("x"), UnsupportedItem),
        (Native(), {"choices": []}, UnsupportedItem),
        (OpenAI(), {"choices": [], "x": float("inf")}, NotSerialisable),
        (OpenAI(), Block("image"), UnsupportedItem),
        (OpenAI(), {"error": {"message": "no"}}, SourceFailed),
        (Raw(), Block("image"), UnsupportedItem),
        (Text(), Block("image"), UnsupportedItem),
    ],
)
def test_an_item_that_its_dialect_refuses_takes_no_number(dialect: Any, item: Any, error: type[Exception]) -> None:
    encoder = FramedEncoder(dialect, sid=SID)
    with pytest.raises(error):
        encoder.item(item)
    assert encoder.cursor == ZERO
    assert_chained(encoder.fail(FAILURE))


@pytest.mark.parametrize("dialect", [Native(), OpenAI(), Text()])
def test_only_raw_takes_a_serialised_stream(dialect: Any) -> None:
    with pytest.raises(UnsupportedItem):
        FramedEncoder(dialect).wire(b"data: x\n\n")
    assert [frame.data for frame in FramedEncoder(Raw("endless")).wire(b"data: x\n\ndata: y\n\n")] == [b"x", b"y"]


# ---- endings ------------------------------------------------------------------------------------


def test_a_stream_that_completed() -> None:
    dialect = Odd(closes=[Payload(b"12"), Payload(b"345", "c")])
    encoder = FramedEncoder(dialect, sid=SID)
    first = encoder.text("a")
    frames = encoder.finish()
    assert dialect.calls[1:] == [(3, 6, "complete")]
    assert [(frame.data, frame.name, frame.status) for frame in frames] == [
        (b"12", None, None),
        (b"345", "c", None),
        (b"fin", "end", "complete"),
    ]
    assert_chained([first, *frames])
    assert (encoder.ending.status, encoder.ending.failure, encoder.finished) == ("complete", None, True)


def test_a_stream_whose_dialect_finds_it_unproven_failed() -> None:
    encoder = FramedEncoder(Odd(judges=FAILURE), sid=SID)
    (end,) = encoder.finish()
    assert end.status == encoder.ending.status == "failed"
    assert encoder.ending.failure == FAILURE


@pytest.mark.parametrize("status", FINAL_STATUSES[1:])
def test_a_stream_that_did_not_complete_says_how(status: str) -> None:
    encoder = FramedEncoder(Native(), sid=SID)
    (end,) = encoder.fail(FAILURE, status)
    assert end.status == status == json.loads(end.data)["status"]
    assert (encoder.ending.status, encoder.ending.failure) == (status, FAILURE)
    assert FramedEncoder(Native()).fail(FAILURE)[-1].status == "failed"


@pytest.mark.parametrize("status", ["complete", "", "done", "Failed"])
def test_a_failure_never_ends_as_anything_else(status: str) -> None:
    encoder = FramedEncoder(Native(), sid=SID)
    with pytest.raises(ValueError, match=f"^a stream that failed cannot end as '{status}'$"):
        encoder.fail(FAILURE, status)
    assert (encoder.finished, encoder.cursor) == (False, ZERO)


@pytest.mark.parametrize("dialect", [Native(), OpenAI(), Odd()])
@pytest.mark.parametrize("end", ["finish", "fail"])
def test_nothing_follows_a_terminal(dialect: Any, end: str) -> None:
    encoder = FramedEncoder(dialect, sid=SID)
    encoder.text("a")
    encoder.finish() if end == "finish" else encoder.fail(FAILURE, "stalled")
    at = encoder.cursor
    status = "complete" if end == "finish" else "stalled"
    after: list[Any] = [
        lambda: encoder.text("b"),
        lambda: encoder.texts("b" * 9),
        lambda: encoder.item(Block("tool_call")),
        lambda: encoder.wire(b"data: x\n\n"),
        encoder.finish,
        lambda: encoder.fail(FAILURE, "slow"),
    ]
    for act in after:
        with pytest.raises(StreamFinished) as caught:
            act()
        assert caught.value.status == status
    assert (encoder.cursor, encoder.chars, encoder.ending.status) == (at, 1, status)


@pytest.mark.parametrize(
    ("closes", "ends", "code", "kept"),
    [
        ((RuntimeError("secret"), []), (FIN,), "source_error", []),
        (([Payload(b"\0")], []), (FIN,), "field_refused", []),
        (([Payload(b"ok"), Payload(b"a", "\n")], [Payload(b"c")]), (FIN,), "field_refused", [b"ok", b"c"]),
        (([],), (KeyError("secret"), FIN), "source_error", []),
        (([],), (NotSerialisable("nan"), FIN), "not_serialisable", []),
        (([],), (Payload(b"fin", "e\nnd"), FIN), "field_refused", []),
        (([],), (Payload(b"fi\rn", "end"), FIN), "field_refused", []),
        (([],), (Payload(b"fin", "end", b"\n"), FIN), "field_refused", []),
        (([],), (Payload(b"x" * (MAX_BLOCK + 1), "end"), FIN), "item_too_large", []),
        (([Payload(b"c")], []), (RuntimeError(), FIN), "source_error", [b"c"]),
    ],
)
def test_an_ending_that_cannot_be_written_is_told_as_a_failure(
    closes: Any, ends: Any, code: str, kept: list[bytes]
) -> None:
    """The dialect is asked once more, for a failure without what was in the way; `complete` is not written.

    What it gave the first time, before what was refused, may be an event of the source: it leaves too.
    """
    encoder = FramedEncoder(Odd(closes=Turns(*closes), ends=Turns(*ends)), sid=SID)
    encoder.ending.usage = {"output": 1}
    first = encoder.text("a")
    frames = encoder.finish()
    assert_chained([first, *frames])
    assert (frames[-1].data, frames[-1].name, frames[-1].status) == (b"fin", "end", "failed")
    assert [frame.data for frame in frames[:-1]] == kept
    ending = encoder.ending
    assert ending.failure is not None
    assert (ending.status, ending.failure.code, ending.usage) == ("failed", code, None)
    assert "secret" not in ending.failure.message
    assert encoder.finished


def test_a_failure_that_its_dialect_cannot_write_stays_the_failure_that_it_was() -> None:
    encoder = FramedEncoder(Odd(ends=Turns(RuntimeError(), FIN)), sid=SID)
    (end,) = encoder.fail(FAILURE, "stalled")
    assert (end.status, encoder.ending.failure) == ("stalled", FAILURE)


@pytest.mark.parametrize("fault", [RuntimeError(), Payload(b"\0"), Payload(b"x", "\n")])
def test_an_ending_that_no_form_of_its_dialect_fits_is_a_bare_error(fault: Any) -> None:
    encoder = FramedEncoder(Odd(closes=Turns([Payload(b"c")], []), ends=fault), sid=SID)
    first = encoder.text("a")
    frames = encoder.fail(Failure("code", "why \ud800"), "stalled")
    assert_chained([first, *frames])
    before, end = frames
    assert before.data == b"c"
    assert (end.name, end.status, end.extra) == (None, "stalled", None)
    assert json.loads(end.data) == {"error": {"code": "code", "message": "why \ufffd", "type": "stalled"}}


def test_a_complete_stream_that_cannot_say_so_in_any_form_is_a_bare_error() -> None:
    encoder = FramedEncoder(Odd(ends=NotSerialisable("no form")), sid=SID)
    (end,) = encoder.finish()
    assert end.status == "failed"
    assert json.loads(end.data)["error"] == {"code": "not_serialisable", "message": "no form", "type": "failed"}


@pytest.mark.parametrize(("size", "name"), [(MAX_BLOCK, "end"), (MAX_BLOCK + 1, None)])
def test_a_small_limit_on_blocks_is_none_on_the_ending(size: int, name: str | None) -> None:
    encoder = FramedEncoder(Odd(closes=[Payload(b"c" * 100)], ends=Payload(b"x" * size, "end")), sid=SID, max_block=10)
    frames = encoder.fail(FAILURE)
    assert frames[-1].name == name


def test_a_larger_limit_on_blocks_is_the_ending_s_too() -> None:
    encoder = FramedEncoder(Odd(ends=Payload(b"x" * (MAX_BLOCK + 1), "end")), sid=SID, max_block=MAX_BLOCK + 1)
    assert encoder.fail(FAILURE)[-1].name == "end"


def test_usage_that_json_has_no_form_for_fails_the_stream_and_loses_it_nothing_else() -> None:
    """A provider's own event may hold NaN; the terminal that sums it up cannot."""
    encoder = FramedEncoder(Native(), sid=SID)
    encoder.ending.usage = {"output": float("nan")}
    (end,) = encoder.finish()
    told = json.loads(end.data)
    assert (end.name, end.status, told["status"], told["usage"]) == ("end", "failed", "failed", None)
    assert told["error"]["code"] == "not_serialisable"


@pytest.mark.parametrize("dialect", [Native(), OpenAI(), Raw(), Text()])
def test_whatever_a_source_puts_into_its_failure_the_terminal_can_carry(dialect: Any) -> None:
    hostile = SourceFailed({"a": 1}, ValueError("\ud800\r\n\0" * 10_000))  # type: ignore[arg-type]
    frames = FramedEncoder(dialect, sid=SID).fail(hostile.failure)
    assert_chained(frames)
    assert frames[-1].status == "failed"
    for wire in (Sse(), Ndjson(), Binary()):
        encoder = wire.encoder(ZERO, own_ids=dialect.own_ids)
        assert all(encoder.frame(frame) for frame in frames)


@pytest.mark.parametrize(
    "event",
    [
        Event("[DONE]\r"),
        Event('{"error":"no"}', "err\nor"),
        Event('{"error":"no"}', "e" * 300),
        Event('{"error":"\0"}'),
    ],
)
def test_a_provider_s_last_event_that_no_carrier_can_write_ends_as_a_failure(event: Event) -> None:
    """`raw` holds the event that may be the last: it is first looked at when it is the terminal."""
    encoder = FramedEncoder(Raw(), sid=SID)
    frames: list[Frame] = []
    frames += encoder.item({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    try:
        frames += encoder.item(event)
    except LocalProtocolError:
        pass  # refused as it came: as good
    frames += encoder.finish()
    assert_chained(frames)
    assert frames[-1].status == "failed"
    for wire in (Sse(), Ndjson(), Binary()):
        carrier = wire.encoder(ZERO, own_ids=False)
        assert all(carrier.frame(frame) for frame in frames)


# ---- after a carrier's refusal ------------------------------------------------------------------


@pytest.mark.parametrize("end", ["finish", "fail"])
def test_after_a_rewind_frames_follow_the_last_that_left_and_the_stream_is_not_complete(end: str) -> None:
    encoder = FramedEncoder(Native(), sid=SID)
    first = encoder.text("a")
    at = encoder.cursor
    encoder.text("lost")
    encoder.item(Block("lost"))
    encoder.rewind(at)
    assert encoder.cursor == at
    frames = encoder.finish() if end == "finish" else encoder.fail(FAILURE)
    assert_chained([first, *frames])
    assert frames[-1].status == "failed"
    if end == "finish":
        assert encoder.ending.failure == Failure("internal", "a frame was refused by its carrier")


def test_a_judgement_outranks_a_rewind() -> None:
    encoder = FramedEncoder(Odd(judges=FAILURE), sid=SID)
    encoder.rewind(ZERO)
    encoder.finish()
    assert encoder.ending.failure == FAILURE


def test_after_the_terminal_itself_was_refused_another_may_be_made() -> None:
    encoder = FramedEncoder(Odd(), sid=SID)
    encoder.finish()
    encoder.rewind(ZERO)
    assert encoder.finished is False
    frames = [encoder.text("a"), *encoder.fail(FAILURE)]
    assert_chained(frames)
    with pytest.raises(StreamFinished):
        encoder.text("b")


def test_an_encoder_is_freed_without_the_collector() -> None:
    """No reference leads back to it, before or after its end: streams leave nothing for a pause to collect."""
    gc.disable()
    try:
        encoder = FramedEncoder(Native())
        encoder.text("a")
        encoder.finish()
        gone = weakref.ref(encoder)
        del encoder
        assert gone() is None
    finally:
        gc.enable()
