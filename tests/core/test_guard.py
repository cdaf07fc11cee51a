"""The last gate: a legal stream whatever comes before it, and one terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamguard.core.cursor import Cursor, chain, cursor_zero
from streamguard.core.errors import FieldRefused, LocalProtocolError, StreamFinished
from streamguard.core.frame import Frame, TextFields, row_of
from streamguard.core.guard import CompletionGuard
from streamguard.core.states import FINAL_STATUSES
from streamguard.core.wire import Binary, Ndjson, Plain, Sse

SID = "AAECAwQFBgcICQoLDA0ODw"
ZERO = cursor_zero(SID)
CRC_1 = chain(ZERO.crc, None, None, b'"a"')
CRC_2 = chain(CRC_1, "end", "complete", b"{}")
ONE = Frame(1, 3, CRC_1, b'"a"')
END = Frame(2, 5, CRC_2, b"{}", "end", "complete")


class Notes:
    """A carrier that notes what it is asked to write, and refuses what it is told to."""

    name = "notes"
    content_type = "text/plain"

    def __init__(self) -> None:
        self.refuse = False
        self.calls: list[tuple[Any, ...]] = []

    def encoder(self, zero: Cursor, *, own_ids: bool) -> Notes:
        return self._note("encoder", zero, own_ids) and self

    def reader(self, *, own_ids: bool | None, max_frame: int = 0) -> Any:
        raise NotImplementedError

    def opening(self, *, resume: str | None = None, at: Cursor | None = None) -> bytes:
        return self._note("opening", resume, at)

    def frame(self, frame: Frame) -> bytes:
        return self._note("frame", frame)

    def text(self, fields: TextFields) -> bytes:
        return self._note("text", fields)

    def texts(self, rows: Sequence[TextFields]) -> bytes:
        return self._note("texts", *rows)

    def heartbeat(self, cursor: Cursor, *, blocked: bool = False) -> bytes:
        return self._note("heartbeat", cursor, blocked)

    def bye(self, cursor: Cursor, reason: str) -> bytes:
        return self._note("bye", cursor, reason)

    def _note(self, *call: Any) -> Any:
        if self.refuse:
            raise FieldRefused("data")
        self.calls.append(call)
        return b"%d;" % len(self.calls)


def opened(wire: Any = None) -> CompletionGuard:
    guard = CompletionGuard(wire or Notes())
    guard.open(ZERO, own_ids=True)
    return guard


def test_a_whole_stream_passes_and_is_counted() -> None:
    wire = Notes()
    guard = CompletionGuard(wire)
    assert (guard.state, guard.status, guard.bytes) == ("unopened", None, 0)
    assert guard.cursor == Cursor("", 0, 0, 0, None)
    assert guard.wire is wire
    assert CompletionGuard("ndjson").wire == Ndjson()
    with pytest.raises(ValueError, match="unknown carrier 'pigeon'"):
        CompletionGuard("pigeon")
    assert guard.open(ZERO, own_ids=True, resume="/streams") == b"2;"
    assert (guard.state, guard.cursor, guard.bytes) == ("open", ZERO, 2)
    assert guard.heartbeat() == b"3;"
    assert guard.admit(ONE) == b"4;"
    assert (guard.state, guard.cursor, guard.bytes) == ("open", Cursor(SID, 1, 3, CRC_1), 6)
    assert guard.heartbeat(blocked=True) == b"5;"
    assert guard.admit(END) == b"6;"
    assert (guard.state, guard.status, guard.bytes) == ("ended", "complete", 10)
    assert guard.cursor == Cursor(SID, 2, 5, CRC_2, "complete")
    assert wire.calls == [
        ("encoder", ZERO, True),
        ("opening", "/streams", None),
        ("heartbeat", ZERO, False),
        ("frame", ONE),
        ("heartbeat", Cursor(SID, 1, 3, CRC_1), True),
        ("frame", END),
    ]


def test_a_connection_may_end_before_its_stream() -> None:
    wire = Notes()
    guard = opened(wire)
    guard.admit(ONE)
    assert guard.bye("rotate") == b"4;"
    assert wire.calls[-1] == ("bye", Cursor(SID, 1, 3, CRC_1), "rotate")
    assert (guard.state, guard.status, guard.bytes) == ("parted", None, 6)


def test_a_connection_may_begin_in_the_middle_of_a_stream() -> None:
    wire = Notes()
    guard = CompletionGuard(wire)
    at = Cursor(SID, 7, 70, 0xABC)
    assert guard.open(at, own_ids=False) == b"2;"
    assert wire.calls == [("encoder", cursor_zero(SID), False), ("opening", None, at)]
    assert guard.cursor == at
    guard.admit(Frame(8, 73, 0xDEF, b"abc"))
    assert guard.cursor == Cursor(SID, 8, 73, 0xDEF)


ACTS: dict[str, Any] = {
    "opening": lambda guard: guard.open(ZERO, own_ids=True),
    "frame": lambda guard: guard.admit(Frame(guard.cursor.seq + 1, guard.cursor.offset + 3, 0, b'"b"')),
    "terminal": lambda guard: guard.admit(Frame(guard.cursor.seq + 1, guard.cursor.offset, 0, b"", "end", "failed")),
    "beat": lambda guard: guard.heartbeat(),
    "bye": lambda guard: guard.bye("rotate"),
}
IN_STATE: dict[str, list[str]] = {
    "unopened": [],
    "open": ["opening", "frame"],
    "ended": ["opening", "frame", "terminal"],
    "parted": ["opening", "frame", "bye"],
}
ALLOWED = {("unopened", "opening"): "open", ("open", "frame"): "open", ("open", "beat"): "open"} | {
    ("open", "terminal"): "ended",
    ("open", "bye"): "parted",
}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("state", IN_STATE)
def test_a_writer_may_do_what_the_table_allows_and_opens_first(state: str, act: str) -> None:
    wire = Notes()
    guard = CompletionGuard(wire)
    for before in IN_STATE[state]:
        ACTS[before](guard)
    assert guard.state == state
    cursor, written, calls = guard.cursor, guard.bytes, len(wire.calls)
    if (after := ALLOWED.get((state, act))) is not None:
        ACTS[act](guard)
        assert guard.state == after
        assert guard.bytes > written
        return
    with pytest.raises(LocalProtocolError) as caught:
        ACTS[act](guard)
    if state == "ended":
        assert type(caught.value) is StreamFinished
        assert caught.value.status == "failed"
    else:
        assert type(caught.value) is LocalProtocolError
        assert str(caught.value) == f"{act!r} cannot follow in state {state!r}"
    assert (guard.state, guard.cursor, guard.bytes, len(wire.calls)) == (state, cursor, written, calls)


@pytest.mark.parametrize("first", FINAL_STATUSES)
@pytest.mark.parametrize("second", FINAL_STATUSES)
def test_a_second_terminal_of_any_status_is_refused(first: str, second: str) -> None:
    guard = opened()
    guard.admit(Frame(1, 0, 0, b"", "end", first))
    with pytest.raises(StreamFinished) as caught:
        guard.admit(Frame(2, 0, 0, b"", "end", second))
    assert caught.value.status == guard.status == first


@pytest.mark.parametrize(
    "frame",
    [
        Frame(1, 3, 0, b'"b"'),
        Frame(3, 6, 0, b'"b"'),
        Frame(0, 6, 0, b'"b"'),
        Frame(2, 5, 0, b'"b"'),
        Frame(2, 7, 0, b'"b"'),
        Frame(2, 3, 0, b'"b"'),
        Frame(2, 7, 0, b"{}", "end", "complete"),
        Frame(3, 5, 0, b"{}", "end", "complete"),
    ],
)
def test_a_frame_that_does_not_stand_where_the_last_one_ended_is_refused(frame: Frame) -> None:
    guard = opened()
    guard.admit(ONE)
    with pytest.raises(LocalProtocolError) as caught:
        guard.admit(frame)
    at = f"{SID}.1.3.{CRC_1:08x}"
    assert str(caught.value) == f"frame {frame.seq} at offset {frame.offset} does not follow {at}"
    assert (guard.state, guard.status, str(guard.cursor)) == ("open", None, at)
    guard.admit(END)  # and nothing was lost by it


def test_a_frame_of_text_passes_as_a_tuple() -> None:
    wire = Notes()
    guard = opened(wire)
    assert guard.admit_text((1, 3, CRC_1, b'"a"')) == b"3;"
    assert (guard.cursor, guard.bytes) == (Cursor(SID, 1, 3, CRC_1), 4)
    assert guard.admit_text((2, 6, 9, b'"b"')) == b"4;"
    assert (guard.cursor, guard.bytes) == (Cursor(SID, 2, 6, 9), 6)
    assert wire.calls[2:] == [("text", (1, 3, CRC_1, b'"a"')), ("text", (2, 6, 9, b'"b"'))]
    wire.refuse = True
    with pytest.raises(FieldRefused):
        guard.admit_text((3, 7, 5, b"c"))
    assert (guard.cursor, guard.bytes, guard.state) == (Cursor(SID, 2, 6, 9), 6, "open")


@pytest.mark.parametrize("fields", [(1, 3), (3, 6), (2, 5), (2, 7), (2, 0), (3, 5)])
def test_a_tuple_that_does_not_stand_where_the_last_frame_ended_is_refused(fields: tuple[int, int]) -> None:
    wire = Notes()
    guard = opened(wire)
    guard.admit(ONE)
    before = (guard.cursor, guard.bytes, len(wire.calls))
    with pytest.raises(LocalProtocolError) as caught:
        guard.admit_text((*fields, 0, b'"b"'))
    at = f"{SID}.1.3.{CRC_1:08x}"
    assert str(caught.value) == f"frame {fields[0]} at offset {fields[1]} does not follow {at}"
    assert (guard.cursor, guard.bytes, len(wire.calls)) == before


@pytest.mark.parametrize("state", ["unopened", "ended", "parted"])
def test_a_tuple_passes_in_no_other_state_than_a_frame(state: str) -> None:
    wire = Notes()
    guard = CompletionGuard(wire)
    for before in IN_STATE[state]:
        ACTS[before](guard)
    at, calls = guard.cursor, len(wire.calls)
    with pytest.raises(StreamFinished if state == "ended" else LocalProtocolError):
        guard.admit_text((at.seq + 1, at.offset + 1, 0, b"a"))
    assert (guard.cursor, len(wire.calls)) == (at, calls)


@pytest.mark.parametrize("frame", [ONE, Frame(1, 2, 0, b"{}", "end", "complete")])
def test_what_the_carrier_refuses_was_not_written(frame: Frame) -> None:
    wire = Notes()
    guard = opened(wire)
    wire.refuse = True
    before = (guard.state, guard.status, guard.cursor, guard.bytes)
    with pytest.raises(FieldRefused):
        guard.admit(frame)
    with pytest.raises(FieldRefused):
        guard.heartbeat()
    with pytest.raises(FieldRefused):
        guard.bye("rotate")
    assert (guard.state, guard.status, guard.cursor, guard.bytes) == before
    wire.refuse = False
    guard.admit(Frame(1, 0, 9, b"", "end", "failed"))
    assert guard.cursor == Cursor(SID, 1, 0, 9, "failed")


def test_a_carrier_that_refuses_to_open_leaves_the_connection_unopened() -> None:
    wire = Notes()
    wire.refuse = True
    guard = CompletionGuard(wire)
    with pytest.raises(FieldRefused):
        guard.open(ZERO, own_ids=True)
    assert guard.state == "unopened"
    wire.refuse = False
    guard.open(ZERO, own_ids=True)
    assert (guard.state, guard.cursor) == ("open", ZERO)
    padded = CompletionGuard(Sse(heartbeat="ping"))
    with pytest.raises(ValueError, match="ping"):
        padded.open(ZERO, own_ids=False)
    assert (padded.state, padded.bytes) == ("unopened", 0)


@pytest.mark.parametrize("wire", [Sse(), Ndjson(), Binary(), Plain()], ids=lambda wire: wire.name)
def test_every_carrier_passes_through_it(wire: Any) -> None:
    guard = CompletionGuard(wire)
    out = guard.open(ZERO, own_ids=True)
    out += guard.heartbeat() + guard.admit(ONE) + guard.heartbeat(blocked=True) + guard.admit(END)
    encoder = wire.encoder(ZERO, own_ids=True)
    assert out == (
        encoder.opening()
        + encoder.heartbeat(ZERO)
        + encoder.frame(ONE)
        + encoder.heartbeat(Cursor(SID, 1, 3, CRC_1), blocked=True)
        + encoder.frame(END)
    )
    assert guard.bytes == len(out)


_frames = st.builds(
    Frame,
    st.integers(0, 4),
    st.integers(0, 8),
    st.just(0),
    st.sampled_from([b"", b"a", b"ab"]),
    st.sampled_from([None, "end"]),
    st.sampled_from([None, None, "complete", "failed"]),
)


@given(st.lists(_frames, max_size=30))
def test_whatever_is_offered_what_passes_is_contiguous_and_ends_once(frames: list[Frame]) -> None:
    wire = Notes()
    guard = opened(wire)
    for frame in frames:
        try:
            guard.admit(frame)
        except LocalProtocolError:
            pass  # refused, which is what the gate is for
    passed = [call[1] for call in wire.calls if call[0] == "frame"]
    assert [frame.seq for frame in passed] == list(range(1, len(passed) + 1))
    offset = 0
    for frame in passed:
        offset += len(frame.data)
        assert frame.offset == offset
    assert all(frame.status is None for frame in passed[:-1])
    assert guard.status == (passed[-1].status if passed else None)


def test_a_carrier_that_is_none_is_refused_when_the_guard_is_made() -> None:
    wrong: Any
    for wrong in (Sse, 7, None):
        with pytest.raises(TypeError, match=r"^wire is "):
            CompletionGuard(wrong)


# ---- what was stored ------------------------------------------------------------------------------

# Of each kind: plain, with what a carrier must escape, named, with an id of its own, large checksums and small ones.
_PIECES = st.tuples(
    st.one_of(st.text(max_size=6).map(str.encode), st.sampled_from([b"a\nb", b"", b"plain"])),
    st.sampled_from([None, None, None, "block"]),
    st.sampled_from([None, None, b"own"]),
    st.integers(0, 2**32 - 1),
)


def stored(pieces: list[tuple[bytes, str | None, bytes | None, int]], status: str | None) -> list[Frame]:
    frames: list[Frame] = []
    offset = 0
    for seq, (data, name, extra, crc) in enumerate(pieces, 1):
        offset += len(data)
        last = status if seq == len(pieces) else None
        frames.append(Frame(seq, offset, crc, data, name, last, extra))
    return frames


@pytest.mark.parametrize("wire", [Sse(), Sse(ids="comment"), Ndjson(), Binary(), Plain()], ids=str)
@given(
    pieces=st.lists(_PIECES, max_size=8),
    status=st.sampled_from([None, "complete"]),
    cut=st.integers(0, 8),
    rows=st.lists(st.booleans(), min_size=8, max_size=8),
)
def test_stored_frames_are_written_as_one_by_one_whether_rows_or_frames(
    wire: Any, pieces: list[Any], status: str | None, cut: int, rows: list[bool]
) -> None:
    """And where one of them is refused, none of them was written."""
    frames = stored(pieces, status)
    one, all_ = opened(wire), opened(wire)
    for page in (frames[:cut], frames[cut:]):
        mixed = [row_of(frame) if row else frame for frame, row in zip(page, rows, strict=False)]
        before = (all_.last, all_.bytes, all_.state, all_.status)
        try:
            wanted = b"".join(map(one.admit, page))
        except FieldRefused:
            with pytest.raises(FieldRefused):
                all_.admit_all(mixed)
            assert (all_.last, all_.bytes, all_.state, all_.status) == before
            return
        assert all_.admit_all(mixed) == wanted
        assert (all_.last, all_.bytes, all_.state, all_.status) == (one.last, one.bytes, one.state, one.status)


@pytest.mark.parametrize("as_rows", [True, False])
@pytest.mark.parametrize("wrong", [Frame(3, 9, 0, b"abc"), Frame(2, 7, 0, b"abc"), Frame(1, 3, 0, b'"a"')])
def test_stored_frames_that_do_not_follow_are_refused_with_those_before_them(wrong: Frame, as_rows: bool) -> None:
    guard = opened(Sse())
    guard.admit(ONE)
    before = (guard.cursor, guard.bytes)
    frames: list[Any] = [Frame(2, 6, 0, b"abc"), attrs.evolve(wrong, seq=wrong.seq + 1, offset=wrong.offset + 3)]
    with pytest.raises(LocalProtocolError, match="does not follow"):
        guard.admit_all([row_of(frame) for frame in frames] if as_rows else frames)
    assert (guard.cursor, guard.bytes) == before
    assert guard.admit_all([row_of(END)]) == guard.encoder.frame(END)
    assert guard.status == "complete"


@pytest.mark.parametrize("end", ["ended", "parted"])
def test_no_stored_text_comes_behind_the_end_of_a_stream_or_of_its_connection(end: str) -> None:
    guard = opened(Sse())
    if end == "ended":
        with pytest.raises(StreamFinished):
            guard.admit_all([row_of(ONE), row_of(END), (3, 8, 0, b"abc")])
        assert guard.state == "open"  # none of them was written
        guard.admit_all([row_of(ONE), END])
    else:
        guard.bye("rotate")
    seq, offset = guard.last[0] + 1, guard.last[1] + 3
    with pytest.raises(LocalProtocolError):
        guard.admit_all([(seq, offset, 0, b"abc")])
    assert guard.state == end
