"""A stream that was cut goes on in another connection, behind the last good frame and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamguard.core.cursor import Cursor, cursor_zero
from streamguard.core.dialect import Native, OpenAI
from streamguard.core.errors import CorruptStream, FailedStream, Failure, LocalProtocolError, StreamGap, TruncatedStream
from streamguard.core.flush import Immediate
from streamguard.core.frame import Frame
from streamguard.core.framing import FramedEncoder
from streamguard.core.items import Block, Finish, Item
from streamguard.core.pipeline import FrameStage
from streamguard.core.receipt import AnswerFrame, Verdict
from streamguard.core.verify import StreamVerifier
from streamguard.core.wire import Binary, Ndjson, Sse, Wire
from tests.core.wire.streams import FORMS, OTHER_SID, SID, Form

ZERO = cursor_zero(SID)
CARRIERS: Sequence[Wire] = (Sse(ids="id"), Sse(ids="comment"), Ndjson(), Binary())
carriers = pytest.mark.parametrize("wire", CARRIERS, ids=repr)
WORDS: Sequence[Item] = ("one ", "two ", "three ", "four ", "five", Finish("stop"))
TEXT = "one two three four five"


def frames_of(
    items: Sequence[Item] = WORDS, dialect: Any = None, *, sid: str = SID, negotiated: bool = True
) -> list[Frame]:
    stage = FrameStage(Immediate(), FramedEncoder(dialect or Native(), sid=sid, negotiated=negotiated))
    return [frame for item in items for frame in stage.push(item, 0.0)] + stage.finish(0.0)


FRAMES = frames_of()


def cursor_of(frame: Frame) -> Cursor:
    return Cursor(SID, frame.seq, frame.offset, frame.crc, frame.status)


class Reader:
    """One read over several connections."""

    def __init__(self, wire: Wire, dialect: Any = None, **options: Any) -> None:
        self.dialect = dialect or Native()
        self.verifier = StreamVerifier(wire=wire, dialect=self.dialect, **options)
        self.frames: list[AnswerFrame] = []

    @property
    def text(self) -> str:
        return "".join([frame.text for frame in self.frames])

    def feed(self, data: bytes) -> None:
        self.frames += self.verifier.feed(data)

    def cut(self) -> None:
        self.frames += self.verifier.end(clean=False)

    def connection(
        self, wire: Wire, frames: Sequence[Frame], *, at: Cursor | None = None, sid: str = SID, opened: bool = True
    ) -> None:
        """Frames as a server sends them in one connection."""
        encoder = wire.encoder(cursor_zero(sid), own_ids=self.dialect.own_ids)
        if opened:
            self.feed(encoder.opening(at=at))
        for frame in frames:
            self.feed(encoder.frame(frame))

    def resumed(self, wire: Wire, frames: Sequence[Frame], **options: Any) -> None:
        self.cut()
        self.verifier.resume(wire)
        self.connection(wire, frames, **options)

    def ended(self) -> tuple[Verdict | None, str | None]:
        self.cut()
        return self.verifier.verdict, self.verifier.receipt.code


def cut_after(seq: int, wire: Wire = CARRIERS[0]) -> Reader:
    reader = Reader(wire)
    reader.connection(wire, FRAMES[:seq])
    return reader


# ---- the joint holds ------------------------------------------------------------------------


@pytest.mark.parametrize("form", [form for form in FORMS if form.reader], ids=lambda form: form.name)
@carriers
def test_a_stream_cut_at_any_byte_goes_on_in_any_carrier(form: Form, wire: Wire) -> None:
    whole = form.bytes()
    frames = frames_of(form.items, form.dialect, negotiated=form.negotiated)
    expected = [(frame.name, frame.raw) for frame in form.read(whole).frames]
    for at in range(0, len(whole) + 1, 7):
        reader = Reader(form.wire, form.reader, zero=ZERO)
        reader.dialect = form.dialect
        reader.feed(whole[:at])
        reader.cut()
        if reader.verifier.verdict is Verdict.COMPLETE:
            continue
        cursor = reader.verifier.cursor
        assert cursor is not None
        reader.resumed(wire, frames[cursor.seq :], at=cursor)
        assert reader.ended() == (Verdict.COMPLETE, None), at
        assert [(frame.name, frame.raw) for frame in reader.frames] == expected
        receipt = reader.verifier.receipt
        assert (receipt.resumes, receipt.duplicates) == (1, 0)
        assert receipt.frames == len(frames)


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.sampled_from(CARRIERS), st.booleans()), max_size=8),
    st.sampled_from(CARRIERS),
)
def test_any_number_of_cuts_with_any_overlap_gives_the_same_text(
    cuts: list[tuple[int, int, Wire, bool]], last: Wire
) -> None:
    reader = Reader(CARRIERS[0], zero=ZERO)
    known = again = 0
    for begin, stop, wire, opened in [*cuts, (known, len(FRAMES), last, True)]:
        reader.cut()
        reader.verifier.resume(wire)
        begin = min(begin, known)
        reader.connection(wire, FRAMES[begin:stop], opened=opened or wire.name == "binary")
        again += max(0, min(stop, known) - begin)
        known = max(known, stop)
    assert reader.ended() == (Verdict.COMPLETE, None)
    assert reader.text == TEXT
    receipt = reader.verifier.receipt
    assert (receipt.duplicates, receipt.resumes) == (again, len(cuts) + 1)


@carriers
@pytest.mark.parametrize("begin", range(4))
def test_frames_that_come_again_are_dropped_and_counted(wire: Wire, begin: int) -> None:
    reader = cut_after(3)
    reader.resumed(wire, FRAMES[begin:])
    assert reader.ended() == (Verdict.COMPLETE, None)
    assert reader.text == TEXT
    assert reader.verifier.receipt.duplicates == 3 - begin


def test_an_unread_connection_can_be_left_for_another() -> None:
    """A silent connection has no end: the reader leaves it in the middle of a frame."""
    reader = cut_after(2)
    reader.feed(b"id: half of a fra")
    reader.verifier.resume(Sse())
    reader.connection(Sse(), FRAMES[2:])
    assert reader.ended() == (Verdict.COMPLETE, None)
    assert reader.text == TEXT


def test_the_dialect_that_the_stream_named_stays() -> None:
    reader = Reader(Sse())
    reader.verifier = StreamVerifier()
    reader.connection(Sse(), FRAMES[:2])
    reader.resumed(Ndjson(), FRAMES[2:])
    assert reader.ended() == (Verdict.COMPLETE, None)
    assert reader.verifier.finish_reason == "stop"


def test_what_a_provider_said_before_the_cut_counts_after_it() -> None:
    dialect = OpenAI(id="c", created=1, include_usage=True)
    frames = frames_of(("a", "b", Finish("length", {"n": 2})), dialect)
    reader = Reader(Ndjson(), dialect)
    reader.connection(Ndjson(), frames[:-1])
    reader.resumed(Sse(), frames[-1:])
    assert reader.ended() == (Verdict.COMPLETE, None)
    assert (reader.verifier.finish_reason, reader.verifier.usage) == ("length", {"n": 2})


# ---- the joint does not hold ----------------------------------------------------------------


def altered(frame: Frame, **changes: Any) -> Frame:
    return attrs.evolve(frame, **changes)


OTHERS = {
    "another offset": {"offset": 999},
    "another checksum": {"crc": 0xBADCAFE},
    "an end": {"status": "complete"},
}


@pytest.mark.parametrize("changes", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize(("begin", "which"), [(0, 0), (0, 1), (0, 2), (1, 2), (2, 2)])
def test_another_frame_of_a_number_that_was_there_is_corrupt(begin: int, which: int, changes: dict[str, Any]) -> None:
    reader = cut_after(3)
    frames = [altered(frame, **changes) if frame.seq == which + 1 else frame for frame in FRAMES]
    reader.resumed(Sse(ids="id"), frames[begin:])
    assert reader.ended() == (Verdict.CORRUPT, "seq")
    assert reader.text == "one two three "
    assert reader.verifier.receipt.cursor == cursor_of(FRAMES[2])
    assert reader.verifier.duplicates == which - begin
    assert "is another one" in str(reader.verifier.error())


def test_what_came_again_is_compared_by_its_data_too() -> None:
    reader = cut_after(3)
    reader.resumed(Sse(ids="id"), [FRAMES[0], altered(FRAMES[1], data=b'"too "'), *FRAMES[2:]])
    assert reader.ended() == (Verdict.CORRUPT, "seq")


def test_a_false_first_frame_is_found_when_the_others_do_not_lead_to_the_joint() -> None:
    """What it follows is not known, so only the last one can show it."""
    reader = cut_after(3)
    reader.resumed(Sse(ids="id"), [altered(FRAMES[1], crc=1), FRAMES[2]])
    assert reader.ended() == (Verdict.CORRUPT, "seq")
    assert reader.verifier.duplicates == 1


@pytest.mark.parametrize("begin", [0, 1])
def test_frames_that_break_off_before_the_joint_are_a_gap(begin: int) -> None:
    reader = cut_after(3)
    reader.resumed(Sse(ids="id"), [*FRAMES[begin:2], *FRAMES[3:]])
    assert reader.ended() == (Verdict.GAP, None)
    error = reader.verifier.error()
    assert isinstance(error, StreamGap)
    assert (error.expected, error.got) == (3, 4)
    assert error.cursor == cursor_of(FRAMES[2])
    assert reader.text == "one two three "


def test_frames_that_come_again_out_of_order_are_corrupt() -> None:
    reader = cut_after(3)
    reader.resumed(Sse(ids="id"), [FRAMES[1], FRAMES[0]])
    assert reader.ended() == (Verdict.CORRUPT, "seq")


@pytest.mark.parametrize("again", [2, 1])
def test_after_the_joint_a_new_frame_must_follow(again: int) -> None:
    reader = cut_after(3)
    reader.resumed(Sse(ids="id"), [FRAMES[2], FRAMES[again]])
    assert reader.ended() == (Verdict.CORRUPT, "seq")
    assert reader.verifier.duplicates == 1


def test_after_a_new_frame_none_may_come_again() -> None:
    reader = cut_after(3)
    reader.resumed(Sse(ids="id"), [FRAMES[3], FRAMES[2]])
    assert reader.ended() == (Verdict.CORRUPT, "seq")
    assert reader.text == "one two three four "
    assert "frame 3 came after frame 4" in str(reader.verifier.error())


def test_nothing_comes_again_after_a_bye() -> None:
    reader = cut_after(3)
    reader.resumed(Sse(ids="id"), [])
    reader.feed(Sse().encoder(ZERO, own_ids=True).bye(ZERO, "rotate"))
    reader.connection(Sse(ids="id"), FRAMES[:3], opened=False)
    assert reader.ended() == (Verdict.CORRUPT, "grammar")
    assert reader.verifier.duplicates == 0


@pytest.mark.parametrize("again", [0, 1])
def test_a_frame_that_is_missing_at_the_joint_is_a_gap(again: int) -> None:
    reader = cut_after(3)
    reader.resumed(Sse(ids="id"), [*FRAMES[3 - again : 3], FRAMES[4]])
    error = reader.verifier.error()
    assert isinstance(error, StreamGap)
    assert (error.expected, error.got, error.code) == (4, 5, None)


def test_frame_zero_is_none() -> None:
    reader = cut_after(3)
    reader.resumed(Sse(ids="id"), [altered(FRAMES[0], seq=0)])
    assert reader.ended() == (Verdict.CORRUPT, "seq")


def test_another_stream_is_corrupt_wherever_it_shows() -> None:
    other = frames_of(sid=OTHER_SID)
    reader = cut_after(1)
    reader.cut()
    reader.verifier.resume(Sse(), cursor_zero(OTHER_SID))
    reader.connection(Sse(), FRAMES[1:])
    assert reader.ended() == (Verdict.CORRUPT, "sid")
    assert reader.text == "one "
    for opened in (False, True):
        for begin in (0, 1):
            reader = cut_after(1)
            reader.resumed(Sse(ids="id"), other[begin:], sid=OTHER_SID, opened=opened)
            assert reader.ended() == (Verdict.CORRUPT, "sid")
            assert reader.text == "one "


def test_the_promise_of_the_same_stream_is_right() -> None:
    reader = cut_after(1)
    reader.cut()
    reader.verifier.resume(Sse(), ZERO)
    reader.connection(Sse(), FRAMES[1:])
    assert reader.ended() == (Verdict.COMPLETE, None)


@pytest.mark.parametrize("seq", [1, 3])
def test_an_opening_that_goes_on_elsewhere_is_corrupt(seq: int) -> None:
    reader = cut_after(2)
    reader.resumed(Sse(), [], at=cursor_of(FRAMES[seq - 1]))
    assert reader.ended() == (Verdict.CORRUPT, "checksum")


def test_only_the_open_event_names_a_place() -> None:
    reader = cut_after(2)
    reader.cut()
    reader.verifier.resume(Sse())
    reader.feed(b": streamguard 1 %b\n" % str(cursor_of(FRAMES[1])).encode())
    assert reader.ended() == (Verdict.CORRUPT, "checksum")
    reader = cut_after(2)
    reader.feed(b"event: open\nid: %b\ndata: {}\n\n" % str(cursor_of(FRAMES[1])).encode())
    assert reader.ended() == (Verdict.CORRUPT, "checksum")


def test_a_guard_that_is_missing_after_the_cut_was_stripped() -> None:
    reader = cut_after(2)
    reader.cut()
    reader.verifier.resume(Sse())
    reader.feed(b'data: "three "\n\n')
    assert reader.ended() == (Verdict.CORRUPT, "guard_stripped")


def test_a_stream_that_is_cut_again_is_truncated_again() -> None:
    reader = cut_after(2)
    reader.resumed(Ndjson(), FRAMES[2:4])
    assert reader.ended() == (Verdict.TRUNCATED, None)
    assert reader.text == "one two three four "
    assert reader.verifier.resumes == 1


def test_a_failure_after_the_cut_is_the_streams() -> None:
    reader = cut_after(3)
    stage = FrameStage(Immediate(), FramedEncoder(Native(), at=cursor_of(FRAMES[2])))
    reader.resumed(Sse(), stage.fail(Failure("producer_lost", "gone"), 0.0))
    assert reader.ended() == (Verdict.FAILED, "producer_lost")
    assert isinstance(reader.verifier.error(), FailedStream)


# ---- when, and what is known ----------------------------------------------------------------


def test_a_stream_without_a_cursor_cannot_go_on() -> None:
    verifier = StreamVerifier()
    with pytest.raises(LocalProtocolError, match="no cursor"):
        verifier.resume()
    verifier.end(clean=False)
    with pytest.raises(LocalProtocolError, match="no cursor"):
        verifier.resume()


def _corrupt(reader: Reader) -> None:
    reader.feed(b": hb x\nid: broken\ndata: 1\n\n")


def _gap(reader: Reader) -> None:
    reader.connection(Sse(ids="id"), FRAMES[3:4], opened=False)


def _complete(reader: Reader) -> None:
    reader.connection(Sse(ids="id"), FRAMES[2:], opened=False)


@pytest.mark.parametrize("end", [_corrupt, _gap, _complete])
@pytest.mark.parametrize("cut", [False, True])
def test_a_stream_that_has_its_verdict_does_not_go_on(end: Any, cut: bool) -> None:
    reader = cut_after(2, Sse(ids="id"))
    end(reader)
    if cut:
        reader.cut()
    verdict = reader.verifier.verdict
    with pytest.raises(LocalProtocolError, match="is over"):
        reader.verifier.resume()
    assert reader.verifier.verdict is verdict is not None
    assert reader.verifier.resumes == 0


def parting(reader: Reader) -> str | None:
    return reader.verifier.parting


@carriers
def test_a_bye_says_why_the_connection_ends(wire: Wire) -> None:
    reader = cut_after(2, wire)
    encoder = wire.encoder(ZERO, own_ids=True)
    reader.feed(encoder.heartbeat(cursor_of(FRAMES[1])))
    assert parting(reader) is None
    reader.feed(encoder.bye(cursor_of(FRAMES[1]), "rotate"))
    assert (parting(reader), reader.verifier.state) == ("rotate", "parted")
    reader.resumed(Ndjson(), FRAMES[2:])
    assert parting(reader) is None
    assert reader.ended() == (Verdict.COMPLETE, None)


def test_the_time_to_come_back_is_the_carriers() -> None:
    reader = cut_after(1, Sse())
    assert reader.verifier.retry == 2000
    assert cut_after(1, Ndjson()).verifier.retry is None


def test_giving_up_is_a_verdict() -> None:
    reader = cut_after(2)
    reader.cut()
    gap = StreamGap(3, None, cursor=reader.verifier.cursor, code="unknown_stream")
    reader.verifier.give_up(gap)
    assert reader.verifier.error("one two ") is gap
    assert gap.received == "one two "
    assert (reader.verifier.receipt.verdict, reader.verifier.receipt.code) == (Verdict.GAP, "unknown_stream")
    reader.verifier.give_up(CorruptStream("sid"))
    assert reader.verifier.verdict is Verdict.CORRUPT


# ---- each fed whole, byte by byte, and with the beginning of what would come next ------------

UNFINISHED = {"sse": b":", "ndjson": b'{"hb":', "binary": b"\x01\x00"}


def feedings(data: bytes, wire: Wire) -> list[list[bytes]]:
    return [[data], [data[at : at + 1] for at in range(len(data))], [data + UNFINISHED[wire.name]]]


def records(wire: Wire, frames: Sequence[Frame]) -> bytes:
    encoder = wire.encoder(ZERO, own_ids=True)
    return b"".join([encoder.opening(), *[encoder.frame(frame) for frame in frames]])


def without_its_end(wire: Wire, frame: Frame) -> bytes:
    """All of a record but the line end that would finish it."""
    return wire.encoder(ZERO, own_ids=True).frame(frame)[:-1]


feeding = pytest.mark.parametrize("feeding", range(3), ids=["whole", "byte by byte", "with what comes next"])


def returned(reader: Reader, wire: Wire, data: bytes, feeding: int, **options: Any) -> Reader:
    """`data` is what the next connection brings."""
    reader.verifier.resume(wire, **options)
    for chunk in feedings(data, wire)[feeding]:
        reader.feed(chunk)
    return reader


@feeding
def test_a_stream_goes_on_in_events_if_no_carrier_is_named(feeding: int) -> None:
    reader = cut_after(2)
    reader.cut()
    reader.verifier.resume()
    for chunk in feedings(records(Sse(), FRAMES[2:]), Sse())[feeding]:
        reader.feed(chunk)
    assert reader.ended() == (Verdict.COMPLETE, None)
    assert reader.text == TEXT


def test_what_cannot_go_on_says_both_reasons() -> None:
    with pytest.raises(LocalProtocolError) as raised:
        StreamVerifier().resume()
    assert str(raised.value) == "there is nothing to resume: the stream has no cursor, or is over"


@pytest.mark.parametrize("wire", CARRIERS[:3], ids=repr)  # of half a binary record nothing is known
@feeding
def test_an_event_that_the_cut_dropped_is_not_told_of_the_next_connection(wire: Wire, feeding: int) -> None:
    def detail() -> str:
        error = reader.verifier.error()
        assert isinstance(error, TruncatedStream)
        return error.detail

    reader = cut_after(1, wire)
    reader.feed(without_its_end(wire, FRAMES[1]))
    reader.cut()
    assert detail() == "an unfinished last event was dropped"
    returned(reader, wire, records(wire, FRAMES[1:3]), feeding)
    assert reader.ended() == (Verdict.TRUNCATED, None)
    assert detail() == ""
    returned(reader, wire, records(wire, FRAMES[3:4]) + without_its_end(wire, FRAMES[4]), feeding % 2)
    assert reader.ended() == (Verdict.TRUNCATED, None)
    assert detail() == "an unfinished last event was dropped"
    assert reader.text == "one two three four "


@carriers
@feeding
def test_an_answer_that_promises_another_stream_names_it_and_is_not_read(wire: Wire, feeding: int) -> None:
    reader = cut_after(1, wire)
    returned(reader, wire, records(wire, FRAMES[1:]), feeding, zero=cursor_zero(OTHER_SID))
    assert reader.ended() == (Verdict.CORRUPT, "sid")
    assert reader.text == "one "
    error = reader.verifier.error()
    assert isinstance(error, CorruptStream)
    assert error.detail == f"the answer goes on with stream {OTHER_SID}"
    assert error.cursor == cursor_of(FRAMES[0])


@carriers
@feeding
@pytest.mark.parametrize("begin", [0, 1])
def test_a_block_that_comes_again_is_known_by_its_name(wire: Wire, feeding: int, begin: int) -> None:
    frames = frames_of(("one ", Block("note", {"k": 1}), "two", Finish("stop")))
    reader = Reader(wire)
    reader.connection(wire, frames[:2])
    returned(reader, wire, records(wire, frames[begin:]), feeding)
    assert reader.ended() == (Verdict.COMPLETE, None)
    assert [frame.name for frame in reader.frames] == [None, "block", None]
    assert reader.verifier.duplicates == 2 - begin


def without_its_stream(frame: Frame, form: str) -> dict[Wire, bytes]:
    """The record of a frame whose cursor has lost its sid."""
    cursor = form % (frame.seq, frame.offset, frame.crc)
    data = frame.data.decode()
    return {
        Sse(ids="id"): f"id: {cursor}\ndata: {data}\n\n".encode(),
        Sse(ids="comment"): f": sg {cursor}\ndata: {data}\n\n".encode(),
        Ndjson(): json.dumps({"id": cursor, "data": data}).encode() + b"\n",
    }


@pytest.mark.parametrize("wire", CARRIERS[:3], ids=repr)
@pytest.mark.parametrize("form", ["%d.%d.%08x", ".%d.%d.%08x"])
@feeding
@pytest.mark.parametrize("again", [0, 1])
def test_after_a_cut_a_cursor_that_names_no_stream_is_none(wire: Wire, form: str, feeding: int, again: int) -> None:
    """Though its numbers and its checksum are right: which stream goes on is then not known."""
    reader = cut_after(3, wire)
    came = records(wire, FRAMES[3 - again : 3]) + without_its_stream(FRAMES[3], form)[wire]
    returned(reader, wire, came, feeding)
    assert reader.ended() == (Verdict.CORRUPT, "grammar")
    assert reader.text == "one two three "
    assert reader.verifier.cursor == cursor_of(FRAMES[2])
    assert reader.verifier.duplicates == again
