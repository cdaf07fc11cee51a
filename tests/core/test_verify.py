"""A reader is told COMPLETE only of what it was given whole, in every form in which a stream travels."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import Mock
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamguard.core.cursor import Cursor, chain, cursor_zero
from streamguard.core.dialect import Native, OpenAI, Raw, Text
from streamguard.core.errors import (
    CorruptStream,
    FailedStream,
    Failure,
    FrameTooLarge,
    StreamGap,
    TruncatedStream,
)
from streamguard.core.frame import Frame
from streamguard.core.items import Block, Event, Finish
from streamguard.core.receipt import Verdict
from streamguard.core.verify import StreamVerifier
from streamguard.core.wire import Binary, Ndjson, Sse, SseDecoder
from tests.core.wire.streams import FAILURE, FORMS, OTHER_SID, SID, Form, chat_events, chunkings, read, written
from tests.strategies import byte_cuts, clean_texts, cut, policies, token_cuts, whole

# Positions apart at which a byte is changed: all of them, but where the sweep runs again for every mutant.
STEP = 9 if os.environ.get("HYPOTHESIS_PROFILE") == "few" else 1

ZERO = cursor_zero(SID)
FORM = {form.name: form for form in FORMS}
forms = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)


def promise(form: Form) -> dict[str, Any]:
    """The header's promise, where the end rule would let a clean end before the first byte pass."""
    return {"zero": ZERO} if "asgi" in form.name else {}


# ---- whole streams --------------------------------------------------------------------------


@forms
def test_a_whole_stream_is_complete_and_the_same_in_any_chunking(form: Form) -> None:
    data = form.bytes()
    answer = form.read(data)
    assert (answer.verdict, answer.code, answer.error, answer.text) == (Verdict.COMPLETE, None, None, form.text)
    receipt = answer.receipt
    assert (receipt.status, receipt.frames) == ("complete", len(form.blocks()) - 1)
    assert receipt.cursor is not None
    assert (receipt.cursor.seq, receipt.cursor.offset, receipt.cursor.crc, receipt.cursor.status) == (
        receipt.frames, receipt.bytes, receipt.crc, "complete",
    )  # fmt: skip
    assert [frame.seq for frame in answer.frames] == list(range(1, len(answer.frames) + 1))
    for chunks in chunkings(data):
        again = form.read(chunks)
        assert (again.receipt, again.content) == (receipt, answer.content)


@forms
def test_what_was_noted_at_the_end_is_told(form: Form) -> None:
    receipt = form.read(form.bytes()).receipt
    if "asgi" in form.name:
        assert (receipt.finish_reason, receipt.usage) == (None, None)
    else:
        assert receipt.usage == {"n": 2}
        assert receipt.finish_reason == ("stop" if "raw" in form.name else "length")


@forms
@pytest.mark.parametrize("status", ["failed", "cancelled", "stalled", "slow", "shutdown"])
def test_a_stream_that_did_not_complete_is_failed_with_its_status(form: Form, status: str) -> None:
    answer = form.read(form.bytes(fail=FAILURE, status=status))
    assert (answer.verdict, answer.receipt.status, answer.text) == (Verdict.FAILED, status, form.text)
    error = answer.error
    assert isinstance(error, FailedStream)
    assert (error.status, error.code, error.received, error.cursor) == (
        status, "source_error", form.text, answer.receipt.cursor,
    )  # fmt: skip
    assert answer.receipt.failure is not None
    assert (answer.receipt.failure.code, answer.receipt.failure.message) == ("source_error", "RuntimeError")
    assert answer.receipt.failure.retryable is ("raw" not in form.name)  # a provider's form has no place for it


@forms
def test_heartbeats_between_frames_change_nothing(form: Form) -> None:
    blocks = form.blocks()
    encoder = form.wire.encoder(ZERO, own_ids=form.dialect.own_ids)
    beats = [encoder.heartbeat(ZERO), encoder.heartbeat(ZERO, blocked=True)]
    data = b"".join([part for block in blocks[:-1] for part in (block, *beats)] + blocks[-1:])
    for chunks in chunkings(data):
        assert form.read(chunks).content == form.read(form.bytes()).content
        assert form.read(chunks).verdict is Verdict.COMPLETE


def test_a_frame_is_handed_out_with_its_place_its_data_and_what_it_says() -> None:
    text, block, _ = FORM["native-sse"].read(FORM["native-sse"].bytes()).frames
    assert (text.seq, text.name, text.raw, text.text, text.item, text.texts) == (
        1, None, '"Hé"'.encode(), "Hé", None, None,
    )  # fmt: skip
    assert (block.seq, block.name, block.raw, block.text, block.item, block.texts) == (
        2, "block", b'{"type":"note","k":1}', "", Block("note", {"k": 1}), None,
    )  # fmt: skip
    chunk = FORM["raw-sse"].read(FORM["raw-sse"].bytes()).frames[0]
    item = {"id": "c", "choices": [{"index": 0, "delta": {"content": "Hé"}}]}
    assert (chunk.seq, chunk.name, chunk.text, chunk.item, chunk.texts) == (1, None, "Hé", item, {0: "Hé"})
    assert json.loads(chunk.raw) == item


# ---- prefixes -------------------------------------------------------------------------------


@forms
@pytest.mark.parametrize("fail", [None, FAILURE], ids=["complete", "failed"])
def test_every_proper_prefix_is_truncated(form: Form, fail: Failure | None) -> None:
    data = form.bytes(fail=fail)
    frames = form.read(data).frames
    for size in range(len(data)):
        for chunks in (data[:size], [data[at : at + 1] for at in range(size)] if size % 7 == 0 else []):
            answer = form.read(chunks or b"", **promise(form))
            assert answer.verdict is Verdict.TRUNCATED, size
            assert isinstance(answer.error, TruncatedStream)
            assert [frame.raw for frame in answer.frames] == [frame.raw for frame in frames[: len(answer.frames)]]
            assert answer.receipt.status is None


@forms
def test_a_prefix_with_lenient_is_complete_only_if_the_terminal_is_whole(form: Form) -> None:
    data = form.bytes()
    good = form.read(data)
    verdicts = []
    for size in range(len(data)):
        answer = form.read(data[:size], lenient=True, **promise(form))
        verdicts.append(answer.verdict)
        if answer.verdict is Verdict.COMPLETE:
            assert (answer.content, answer.receipt) == (good.content, good.receipt)
        else:
            assert answer.verdict is Verdict.TRUNCATED
    line_ends = {"sse": 1 if form.name == "raw-asgi" else 2, "ndjson": 1, "binary": 0}[form.wire.name]
    assert verdicts.count(Verdict.COMPLETE) == line_ends


# ---- changes of a byte ----------------------------------------------------------------------


def changed(form: Form, values: Any, rng: random.Random) -> Iterator[bytes]:
    data = form.bytes()
    for at in range(0, len(data), STEP):
        old = data[at]
        for value in values(old, rng):
            if value != old:
                yield data[:at] + bytes([value]) + data[at + 1 :]


def every_value(old: int, rng: random.Random) -> Sequence[int]:
    return range(256)


def telling_values(old: int, rng: random.Random) -> Sequence[int]:
    """Each bit by itself, what has a meaning in a carrier, and some at random."""
    return [*(old ^ 1 << bit for bit in range(8)), *b'\n\r\0 :"', *rng.sample(range(256), 3)]


def few_values(old: int, rng: random.Random) -> Sequence[int]:
    return [old ^ 1 << rng.randrange(8), *rng.sample(b'\n\r\0 :"', 2), *rng.sample(range(256), 2)]


SHORT = (
    Form("native-sse", Native(), Sse(), ("é",), None),
    Form("native-ndjson", Native(), Ndjson(), ("é",), "native"),
    Form("native-binary", Native(), Binary(), ("é",), "native"),
    Form("raw-sse", Raw(), Sse(), (Event('{"choices":[{"finish_reason":"stop"}]}'), Event("[DONE]")), "raw"),
)


SAME_BYTES = ("native-sse-named", "native-ping")  # as `native-sse`


def assert_refused_or_the_same(form: Form, data: bytes, good: Any, **options: Any) -> None:
    answer = form.read(data, **promise(form), **options)
    if answer.verdict in (Verdict.COMPLETE, Verdict.UNVERIFIED):
        assert answer.content == good.content
        assert answer.verdict is Verdict.COMPLETE
    else:
        assert answer.error is not None
        assert [frame.raw for frame in answer.frames] == [frame.raw for frame in good.frames[: len(answer.frames)]]


@pytest.mark.parametrize("form", SHORT, ids=lambda form: form.name)
def test_no_change_of_a_byte_to_any_other_is_taken_for_the_whole(form: Form) -> None:
    good = form.read(form.bytes())
    assert good.verdict is Verdict.COMPLETE
    for data in changed(form, every_value, random.Random(0)):
        assert_refused_or_the_same(form, data, good)


@forms
def test_no_telling_change_of_a_byte_is_taken_for_the_whole(form: Form) -> None:
    good = form.read(form.bytes())
    for data in changed(form, few_values if form.name in SAME_BYTES else telling_values, random.Random(1)):
        assert_refused_or_the_same(form, data, good)
    for data in changed(form, few_values, random.Random(2)):
        assert_refused_or_the_same(form, data, good, lenient=True)


@forms
def test_a_damaged_stream_has_the_same_verdict_and_code_in_any_chunking(form: Form) -> None:
    rng = random.Random(2)
    damaged = list(changed(form, few_values, rng))
    for data in rng.sample(damaged, min(100, len(damaged))):
        first = form.read(data)
        for chunks in chunkings(data):
            again = form.read(chunks)
            assert (again.verdict, again.code, again.content) == (first.verdict, first.code, first.content)


@pytest.mark.parametrize("bad", [b"\0", b"\xff", b" ", b"\r"])
def test_a_damaged_large_frame_has_the_same_code_in_any_chunking(bad: bytes) -> None:
    """A frame above two kilobytes takes another way through the reader."""
    data = b"".join(written(["first", "x" * 3000], Native(), Sse()))
    at = data.rindex(b".", 0, data.index(b"xxx"))
    data = data[:at] + bad + data[at + 1 :]
    first = read(data)
    assert first.verdict is Verdict.CORRUPT
    for chunks in chunkings(data):
        assert (read(chunks).verdict, read(chunks).code) == (first.verdict, first.code)


# ---- changes of a frame ---------------------------------------------------------------------


@forms
def test_a_frame_that_is_dropped_is_missed(form: Form) -> None:
    blocks = form.blocks()
    for at in range(1, len(blocks)):
        answer = form.read(b"".join(blocks[:at] + blocks[at + 1 :]))
        assert answer.verdict is (Verdict.TRUNCATED if at == len(blocks) - 1 else Verdict.GAP)
        assert len(answer.frames) == at - 1
        if answer.verdict is Verdict.GAP:
            assert isinstance(answer.error, StreamGap)
            assert (answer.error.expected, answer.error.got) == (at, at + 1)


@forms
def test_a_frame_that_is_doubled_is_refused(form: Form) -> None:
    blocks = form.blocks()
    for at in range(1, len(blocks)):
        for later in range(at, len(blocks)):
            answer = form.read(b"".join([*blocks[: later + 1], blocks[at], *blocks[later + 1 :]]))
            assert (answer.verdict, answer.code) == (Verdict.CORRUPT, "seq")


@forms
def test_frames_that_are_swapped_are_refused(form: Form) -> None:
    blocks = form.blocks()
    for at in range(1, len(blocks) - 1):
        swapped = [*blocks[:at], blocks[at + 1], blocks[at], *blocks[at + 2 :]]
        answer = form.read(b"".join(swapped))
        assert answer.verdict is Verdict.GAP
        assert len(answer.frames) == at - 1


@forms
def test_without_its_opening_a_stream_is_complete_with_the_same_content_or_refused(form: Form) -> None:
    answer = form.read(b"".join(form.blocks()[1:]))
    if form.name == "native-sse":  # nothing says that it is `native`, so its text was not understood
        assert (answer.verdict, answer.code) == (Verdict.CORRUPT, "guard_stripped")
    elif form.wire.name == "binary":
        assert (answer.verdict, answer.code) == (Verdict.CORRUPT, "grammar")
    else:
        assert (answer.verdict, answer.content) == (Verdict.COMPLETE, form.read(form.bytes()).content)


@forms
def test_nothing_may_follow_the_terminal(form: Form) -> None:
    data = form.bytes()
    encoder = form.wire.encoder(ZERO, own_ids=form.dialect.own_ids)
    last = form.read(data).receipt.cursor
    assert last is not None
    frame = Sequel(last).frame(b'"more"')
    trailing = {
        "frame": encoder.frame(frame),
        "beat": encoder.heartbeat(last),
        "bye": encoder.bye(last, "rotate"),
        "terminal": form.blocks()[-1],
        "opening": encoder.opening(),
    }
    if form.wire.name == "binary":
        del trailing["opening"]  # 25 bytes that end before they could be a record
    for kind, more in trailing.items():
        for chunks in chunkings(data + more):
            answer = form.read(chunks)
            assert answer.verdict is Verdict.CORRUPT, kind
            assert answer.code == ("seq" if kind == "terminal" else "grammar")
            assert answer.text == form.text
    for harmless in (b"\n\n", b"") if form.wire.name != "binary" else (b"",):
        assert form.read(data + harmless).verdict is Verdict.COMPLETE
    failed = form.bytes(fail=FAILURE)
    for chunks in chunkings(failed + trailing["beat"]):
        assert form.read(chunks).verdict is Verdict.FAILED  # it is over: nothing more is read


# ---- each check alone -----------------------------------------------------------------------


class Sequel:
    """Frames that follow `at`, each right in every respect but those that are asked to be wrong."""

    def __init__(self, at: Cursor = ZERO) -> None:
        self.at = at

    def cursor(self, data: bytes, name: str | None = None, status: str | None = None, **wrong: Any) -> Cursor:
        crc = chain(self.at.crc, name, status, data)
        self.at = Cursor(self.at.sid, self.at.seq + 1, self.at.offset + len(data), crc, status)
        return self.at._replace(**wrong)

    def block(self, data: bytes, name: str | None = None, status: str | None = None, **wrong: Any) -> bytes:
        event = f"event: {name}\n" if name else ""
        return f"{event}id: {self.cursor(data, name, status, **wrong)}\n".encode() + b"data: " + data + b"\n\n"

    def frame(self, data: bytes) -> Frame:
        cursor = self.cursor(data)
        return Frame(cursor.seq, cursor.offset, cursor.crc, data)

    def end(self, **summary: Any) -> bytes:
        fields = {"status": "complete", "finish_reason": "stop", "frames": self.at.seq, "bytes": self.at.offset}
        return self.block(json.dumps({**fields, "usage": None, "error": None, **summary}).encode(), "end", "complete")


def test_a_stream_put_together_by_hand_is_complete() -> None:
    sequel = Sequel()
    answer = read(sequel.block(b'"a"') + sequel.block(b'"b"') + sequel.end(), dialect="native")
    assert (answer.verdict, answer.text) == (Verdict.COMPLETE, "ab")
    assert [frame.seq for frame in answer.frames] == [1, 2]


@pytest.mark.parametrize("last", [False, True], ids=["frame", "terminal"])
@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"sid": OTHER_SID}, "sid"),
        ({"seq": 1}, "seq"),
        ({"seq": 0}, "seq"),
        ({"offset": 7}, "length"),
        ({"offset": 0}, "length"),
        ({"crc": 0}, "checksum"),
        ({"sid": OTHER_SID, "seq": 1, "offset": 7, "crc": 0}, "sid"),
        ({"seq": 1, "offset": 7, "crc": 0}, "seq"),
        ({"offset": 7, "crc": 0}, "length"),
    ],
)
def test_each_check_alone_refuses_a_frame_and_the_first_names_the_fault(
    wrong: dict[str, Any], code: str, last: bool
) -> None:
    sequel = Sequel()
    first = sequel.block(b'"a"')
    at = sequel.at
    data = b'{"status":"complete","frames":1,"bytes":3}'
    if last:
        stream = first + sequel.block(data, "end", "complete", **wrong)
    else:
        stream = first + sequel.block(b'"b"', **wrong) + sequel.end()
    for chunks in chunkings(stream):
        answer = read(chunks, dialect="native")
        assert (answer.verdict, answer.code, answer.text) == (Verdict.CORRUPT, code, "a")
        assert isinstance(answer.error, CorruptStream)
        assert (answer.error.cursor, answer.error.received, answer.receipt.cursor) == (at, "a", at)
        assert answer.error.detail == {
            "sid": f"it belongs to stream {OTHER_SID}",
            "seq": f"frame {wrong.get('seq')} came after frame 1",
            "length": f"{len(data) if last else 3} bytes came, {wrong.get('offset', 0) - 3} were sent",
            "checksum": "",
        }[code]  # fmt: skip
        assert (answer.receipt.frames, answer.receipt.bytes, answer.receipt.crc) == (1, 3, at.crc)


@pytest.mark.parametrize(("seq", "got"), [(3, 3), (99, 99)])
def test_the_sequence_alone_shows_a_gap(seq: int, got: int) -> None:
    sequel = Sequel()
    answer = read(sequel.block(b'"a"') + sequel.block(b'"b"', seq=seq) + sequel.end(), dialect="native")
    assert (answer.verdict, answer.code, answer.text) == (Verdict.GAP, None, "a")
    assert isinstance(answer.error, StreamGap)
    assert (answer.error.expected, answer.error.got, answer.error.received) == (2, got, "a")


def test_the_terminal_alone_shows_a_cut() -> None:
    sequel = Sequel()
    answer = read(sequel.block(b'"a"') + sequel.block(b'"b"'), dialect="native")
    assert (answer.verdict, answer.code, answer.text) == (Verdict.TRUNCATED, None, "ab")
    assert isinstance(answer.error, TruncatedStream)
    assert (answer.error.cursor, answer.error.received, answer.error.detail) == (sequel.at, "ab", "")


@pytest.mark.parametrize("wrong", [{"frames": 2}, {"bytes": 4}, {"frames": None}, {"bytes": "3"}])
def test_the_summary_alone_shows_other_counts(wrong: dict[str, Any]) -> None:
    sequel = Sequel()
    answer = read(sequel.block(b'"a"') + sequel.end(**wrong), dialect="native")
    assert (answer.verdict, answer.code, answer.text) == (Verdict.CORRUPT, "length", "a")


@pytest.mark.parametrize("data", [b"[]", b"x", b"[" * 100_000, b"{}", b'{"status":"complete","frames":1}'])
def test_a_terminal_of_native_without_a_summary_is_refused(data: bytes) -> None:
    sequel = Sequel()
    answer = read(sequel.block(b'"a"') + sequel.block(data, "end", "complete"), dialect="native")
    assert (answer.verdict, answer.code) == (Verdict.CORRUPT, "grammar")


def test_a_terminal_of_native_under_another_name_is_stripped() -> None:
    for name in (None, "block"):
        answer = read(Sequel().block(b'"a"', name, "complete"), dialect="native")
        assert (answer.verdict, answer.code) == (Verdict.CORRUPT, "guard_stripped")


@pytest.mark.parametrize(
    "cursor",
    ["", "x", "+1", f"{SID}.+1.3.00000000", f"{SID}.1.3.0000000g", f"{SID}.01.3.00000000", f"{SID}.1.3.ABCDEF01", "é",
     f"{SID}.9007199254740992.3.00000000", f" {ZERO}", f"{ZERO} "],
)  # fmt: skip
def test_a_cursor_outside_its_grammar_is_refused(cursor: str) -> None:
    stream = f": streamguard 1 {ZERO}\nid: {cursor}\ndata: x\n\n".encode()
    for chunks in chunkings(stream):
        assert (read(chunks).verdict, read(chunks).code) == (Verdict.CORRUPT, "grammar")


def test_data_that_holds_but_is_not_the_dialects_is_refused() -> None:
    for data, name in ((b"1", None), (b'"a" ', None), (b"[]", "block"), (b"{}", "block"), (b"x", "block")):
        answer = read(Sequel().block(data, name), dialect="native")
        assert (answer.verdict, answer.code, answer.frames) == (Verdict.CORRUPT, "grammar", [])


def test_text_under_a_name_keeps_its_name() -> None:
    """No dialect of ours has any, but a caller's own may."""

    class Named(Text):
        name = "named"

    sequel = Sequel()
    answer = read(sequel.block(b"a", "token") + sequel.end(), dialect=Named())
    assert [(frame.seq, frame.name, frame.text) for frame in answer.frames] == [(1, "token", "a")]


def test_a_frame_of_an_unknown_name_is_chained_and_not_handed_out() -> None:
    sequel = Sequel()
    answer = read(sequel.block(b"anything", "later") + sequel.block(b'"a"') + sequel.end(), dialect="native")
    assert (answer.verdict, answer.text, answer.receipt.frames) == (Verdict.COMPLETE, "a", 3)
    assert [frame.seq for frame in answer.frames] == [2]


# ---- openings, promises, strangers ----------------------------------------------------------


def test_a_promised_guard_that_is_stripped_is_corrupt() -> None:
    plain = b"data: x\n\ndata: [DONE]\n\n"
    sequel = Sequel()
    opening = f": streamguard 1 {ZERO}\n".encode()
    for stream, options, text in (
        (plain, {"zero": ZERO}, ""),
        (chat_events(), {"zero": ZERO, "dialect": "openai"}, ""),
        (opening + plain, {}, ""),
        (sequel.block(b'"a"') + b'data: "b"\n\n' + sequel.end(), {"dialect": "native"}, "a"),
        (FORM["native-sse"].blocks()[0] + b'data: "b"\n\n', {}, ""),
    ):
        for chunks in chunkings(stream):
            answer = read(chunks, **options)
            assert (answer.verdict, answer.code, answer.text) == (Verdict.CORRUPT, "guard_stripped", text)


def test_a_promised_guard_that_never_came_is_truncated() -> None:
    answer = read(b"", zero=ZERO)
    assert (answer.verdict, answer.receipt.cursor, answer.receipt.crc) == (Verdict.TRUNCATED, ZERO, None)
    assert read(b": hello\n\n", zero=ZERO).verdict is Verdict.TRUNCATED


def test_plain_text_has_no_place_for_the_promise() -> None:
    answer = read(b"x\xc3", zero=ZERO, dialect="text", wire="plain")
    assert (answer.verdict, answer.text) == (Verdict.UNVERIFIED, "x\ufffd")


@forms
def test_two_streams_never_mix(form: Form) -> None:
    assert form.read(form.bytes(), zero=cursor_zero(OTHER_SID)).verdict is Verdict.CORRUPT
    if form.wire.name == "binary":
        return  # there the opening alone names the stream
    assert form.read(form.bytes(), zero=cursor_zero(OTHER_SID)).code == "sid"
    mine = form.blocks()
    theirs = b"".join(form.parts(sid=OTHER_SID))[len(b"".join(mine[:1])) :]
    answer = form.read(b"".join(mine[:2]) + theirs)
    assert (answer.verdict, answer.code, len(answer.frames)) == (Verdict.CORRUPT, "sid", 1)


@pytest.mark.parametrize(
    ("zero", "code"),
    [
        (str(ZERO._replace(crc=0)), "checksum"),
        (str(ZERO._replace(seq=1)), "checksum"),
        (f"{ZERO}.complete", "checksum"),
        (str(cursor_zero(OTHER_SID)), "sid"),
        ("x", "grammar"),
    ],
)
def test_an_opening_is_cursor_zero_of_this_stream(zero: str, code: str) -> None:
    wires = (f": streamguard 1 {zero}\n".encode(), "sse"), (f'{{"open":"{zero}"}}\n'.encode(), "ndjson")
    for data, wire in wires:
        answer = read(data, wire=wire, zero=ZERO)
        assert (answer.verdict, answer.code) == (Verdict.CORRUPT, code)


def test_an_opening_whose_sid_is_none_is_refused() -> None:
    answer = read(b"SG\x01" + b"!" * 22, wire="binary", dialect="native")
    assert (answer.verdict, answer.code) == (Verdict.CORRUPT, "grammar")
    answer = read(b"SG\x01" + b"\xff" * 22, wire="binary", dialect="native")
    assert (answer.verdict, answer.code) == (Verdict.CORRUPT, "grammar")


def test_an_opening_may_be_said_twice_before_the_end() -> None:
    form = FORM["native-sse"]
    opening, *rest = form.blocks()
    assert form.read(opening + opening + b"".join(rest[:2]) + opening + b"".join(rest[2:])).text == form.text


def test_after_a_bye_nothing_comes_and_the_stream_is_truncated() -> None:
    form = FORM["openai-comment"]
    opening, first, *rest = form.blocks()
    bye = f": bye {ZERO} rotate\n".encode()
    for chunks in chunkings(opening + first + bye):
        assert form.read(chunks).verdict is Verdict.TRUNCATED
    for more in (rest[0], f": hb {ZERO}\n".encode(), bye, opening):
        answer = form.read(opening + first + bye + more)
        assert (answer.verdict, answer.code) == (Verdict.CORRUPT, "grammar")


@pytest.mark.parametrize("indent", [None, 1])
def test_data_that_something_between_wrote_anew_is_reframed(indent: int | None) -> None:
    form = FORM["openai-comment"]
    out = b""
    for block in form.blocks():
        head, _, data = block.partition(b"data: {")
        lines = json.dumps(json.loads(b"{" + data), indent=indent).split("\n") if data else []
        out += head + b"".join([f"data: {line}\n".encode() for line in lines]) + b"\n" * bool(data)
    for chunks in chunkings(out):
        answer = form.read(chunks)
        assert (answer.verdict, answer.code, answer.frames) == (Verdict.CORRUPT, "reframed", [])


@pytest.mark.parametrize(("name", "status"), [("block", None), ("end", "complete"), (None, None)])
def test_any_frame_can_be_reframed(name: str | None, status: str | None) -> None:
    sent = b'{"status":"complete","frames":0,"bytes":0}'
    block = Sequel().block(sent, name, status).replace(b'":', b'": ')
    answer = read(block, dialect="native")
    assert (answer.verdict, answer.code) == (Verdict.CORRUPT, "reframed")


def test_other_json_is_not_reframed_but_changed() -> None:
    for sent, came, code in (
        (b'{"a":1}', b'{"a": 2}', "length"),
        (b'{"a":1}', b'{"a":2}', "checksum"),
        (b'{"a":1}', b'{"a": 1 }x', "length"),
        (b"[1,2]", b"[" * 100_000, "length"),
        (b'{"a":NaN}', b'{"a": NaN}', "length"),
        (b'"a"', b'"b"', "checksum"),
    ):
        cursor = Sequel().cursor(sent, "block")
        answer = read(f"event: block\nid: {cursor}\ndata: {came.decode()}\n\n".encode(), dialect="native")
        assert (answer.verdict, answer.code) == (Verdict.CORRUPT, code)


@pytest.mark.parametrize("seen", [0, 1])
@pytest.mark.parametrize("dialect", ["native", "openai", "raw", None])
def test_a_stream_that_the_server_lost_is_a_gap(seen: int, dialect: str | None) -> None:
    sequel = Sequel()
    stream = sequel.block(b'"a"') if seen and dialect == "native" else b""
    lost = f"event: end\nid: {ZERO}.lost\ndata: {{}}\n\n".encode()
    for chunks in chunkings(stream + lost):
        answer = read(chunks, dialect=dialect)
        assert answer.verdict is Verdict.GAP
        assert isinstance(answer.error, StreamGap)
        assert (answer.error.got, answer.error.expected) == (None, 1 + bool(stream))
    answer = read(lost, dialect=dialect, zero=cursor_zero(OTHER_SID))
    assert (answer.verdict, answer.code) == (Verdict.CORRUPT, "sid")


def test_an_unknown_status_is_a_failure() -> None:
    sequel = Sequel()
    data = b'{"status":"complete","finish_reason":"stop","frames":0,"bytes":0}'
    answer = read(sequel.block(data, "end", "vanished"), dialect="native")
    assert (answer.verdict, answer.receipt.status) == (Verdict.FAILED, "vanished")
    assert answer.receipt.failure == Failure("unknown_status", "the terminal's status is 'vanished'")


def test_parts_after_the_status_are_ignored_in_a_frame_and_in_the_terminal() -> None:
    sequel = Sequel()
    frame = sequel.block(b'"a"')
    end = sequel.end()
    stream = frame.replace(b"\ndata", b"..later-1~\ndata") + end.replace(b".complete\n", b".complete.x.y_z\n")
    for chunks in chunkings(stream):
        answer = read(chunks, dialect="native")
        assert (answer.verdict, answer.text, answer.receipt.status) == (Verdict.COMPLETE, "a", "complete")


def test_an_end_of_openai_without_its_summary_or_with_another_is_refused() -> None:
    form = FORM["openai-comment"]
    *blocks, last = form.blocks()
    summary, _, rest = last.partition(b"\n")
    check, text = summary[6:14], summary[15:]
    for other, code in (
        (b"", "guard_stripped"),
        (b": end " + check + b" " + text.replace(b"length", b"stopxx") + b"\n", "checksum"),
        (b": end " + check.upper() + b"  " + text + b"\n", "checksum"),
        (b": end 00000000 " + text + b"\n", "checksum"),
        (b": end\n", "checksum"),
    ):
        answer = form.read(b"".join(blocks) + other + rest)
        assert (answer.verdict, answer.code) == (Verdict.CORRUPT, code)
    crc = form.read(form.bytes()).receipt.crc
    assert crc is not None
    for odd in ("[]", "x", "{}"):
        made = f": end {crc32(odd.encode(), crc):08x} {odd}\n".encode()
        answer = form.read(b"".join(blocks) + made + rest)
        assert (answer.verdict, answer.code) == (Verdict.CORRUPT, "grammar")
    counted = text.replace(b'"frames":4', b'"frames":5')
    assert counted != text
    made = f": end {crc32(counted, crc):08x} ".encode() + counted + b"\n"
    assert form.read(b"".join(blocks) + made + rest).code == "length"


def test_without_a_dialect_nothing_is_taken_from_a_summary_that_could_be_lost_unseen() -> None:
    parts = written(["a", Finish("length", {"n": 2})], OpenAI(model="m", id="c", created=1), Sse())
    data = b"".join(parts)
    with_it, without = read(data), read(data.replace(b": end ", b": eNd "))
    assert (with_it.verdict, without.verdict) == (Verdict.COMPLETE, Verdict.COMPLETE)
    assert with_it.content == without.content
    assert with_it.receipt.finish_reason == "length"
    failed = read(b"".join(written(["a"], OpenAI(), Sse(), fail=FAILURE)))
    assert failed.receipt.failure == FAILURE


def test_an_event_named_as_our_end_is_the_sources_own_where_it_is() -> None:
    rule = Raw(end=lambda event: event.event == "end")
    for own in ('{"n":1}', "bye", '["frames"]'):
        data = b"".join(written([Event("x"), Event(own, "end")], rule, Sse()))
        for dialect in (rule, "raw", None):
            assert read(data, dialect=dialect).verdict is Verdict.COMPLETE
    opened = b"".join(written([Event("x", "open"), Event("y", "ping")], Raw(end="asgi"), Sse(ids="id")))
    answer = read(opened)
    assert (answer.verdict, [frame.name for frame in answer.frames]) == (Verdict.COMPLETE, ["open", "ping"])


SUMMARY = b'{"status":"complete","finish_reason":"stop","frames":0,"bytes":0}'


@pytest.mark.parametrize(
    ("stream", "dialect", "code", "detail"),
    [
        (Sequel().block(b'{"a": 1}', "block", crc=Sequel().cursor(b'{"a":1}', "block").crc, offset=7), "native",
         "reframed", "something between rewrote the data: pass it through unchanged"),
        (Sequel().block(b'"a', None), "native",
         "grammar", "the data is not the dialect's: Unterminated string starting at: line 1 column 1 (char 0)"),
        (f": streamguard 1 {cursor_zero(OTHER_SID)}\n".encode(), "native",
         "sid", f"the opening names stream {OTHER_SID}"),
        (f": streamguard 1 {ZERO._replace(crc=0)}\n".encode(), "native",
         "checksum", "the opening's cursor is not cursor zero"),
        (Sequel().end(frames=1), "native", "length", "the summary counts other frames than came"),
        (Sequel().block(b"x", "end", "complete"), "native", "grammar", "the terminal's summary is none"),
        (Sequel().block(b"x", None, "complete"), "native",
         "guard_stripped", "the terminal came without its summary"),
        (Sequel().block(b"[DONE]", None, "complete"), "openai",
         "guard_stripped", "the terminal came without its summary"),
        (b": end 0 {}\n" + Sequel().block(b"[DONE]", None, "complete"), "openai",
         "checksum", "the summary beside the terminal does not match its checksum"),
        (Sequel().end(), None, "guard_stripped", "a stream of `native` came without its `open` event"),
        (b"data: x\n\n", "native", "guard_stripped", "a block came without its cursor"),
        (b"id: x\ndata: x\n\n", "native", "grammar", "not a cursor: 'x'"),
        (Sequel().block(b'"a"'), "openai", "grammar", "the data is text of `native`, and no provider's event"),
        (f": bye {ZERO} rotate\n".encode() + Sequel().block(b'"a"'), "native",
         "grammar", "frame cannot follow in state 'parted'"),
    ],
)  # fmt: skip
def test_a_fault_says_what_was_wrong(stream: bytes, dialect: str | None, code: str, detail: str) -> None:
    answer = read(stream, dialect=dialect, zero=ZERO)
    assert isinstance(answer.error, CorruptStream)
    assert (answer.error.code, answer.error.detail, answer.error.cursor) == (code, detail, ZERO)


def test_a_gap_bears_the_last_good_cursor() -> None:
    sequel = Sequel()
    first = sequel.block(b'"a"')
    at = sequel.at
    for rest in (sequel.block(b'"b"', seq=3), f"id: {at}.lost\ndata: x\n\n".encode()):
        error = read(first + rest, dialect="native").error
        assert isinstance(error, StreamGap)
        assert error.cursor == at
    assert error.detail == "the server no longer has what follows"


def test_the_smallest_summary_is_one() -> None:
    answer = read(Sequel().block(b'{"status":"complete","frames":0,"bytes":0}', "end", "complete"), dialect="native")
    assert (answer.verdict, answer.receipt.finish_reason, answer.receipt.usage) == (Verdict.COMPLETE, None, None)


def test_a_summary_beside_the_terminal_of_native_is_not_looked_at() -> None:
    assert read(b": end 0 {}\n" + Sequel().end(), dialect="native").verdict is Verdict.COMPLETE


def test_a_summary_may_hold_spaces_and_characters_of_any_kind() -> None:
    sequel = Sequel()
    done = sequel.block(b"[DONE]", None, "complete")
    summary = SUMMARY[:-1] + ',"usage":{"a b":"é \ufffd"}}'.encode()
    made = f": end {crc32(summary, sequel.at.crc):08x} ".encode() + summary + b"\n"
    answer = read(made + done, dialect="openai")
    assert (answer.verdict, answer.receipt.usage) == (Verdict.COMPLETE, {"a b": "é \ufffd"})
    assert read(made.replace("é".encode(), b"\xff\xff") + done, dialect="openai").code == "checksum"


def test_a_summary_with_a_lone_surrogate_is_refused() -> None:
    """JSON can spell one, and no summary of ours holds it."""
    cursor = Sequel().cursor(b"[DONE]", None, "complete")
    line = f'{{"id":"{cursor}","data":"[DONE]","end":"00000000 \\ud800"}}\n'.encode()
    answer = read(line, wire="ndjson", dialect="openai")
    assert (answer.verdict, answer.code) == (Verdict.CORRUPT, "checksum")


@pytest.mark.parametrize("flag", [True, False])
def test_a_failure_is_told_in_full(flag: bool) -> None:
    failure = Failure("c", "m", retryable=flag, resumable=not flag)
    for dialect in ("native", "openai", None):
        kind = OpenAI() if dialect == "openai" else Native()
        answer = read(written(["a"], kind, Sse(), fail=failure), dialect=dialect)
        assert answer.receipt.failure == failure


def test_data_that_is_no_utf8_and_holds_is_read_with_replacement_characters() -> None:
    sequel = Sequel()
    stream = sequel.block(b'"\xff"')
    stream += sequel.block(b'{"status":"complete","frames":1,"bytes":3,"x":"\xff"}', "end", "complete")
    answer = read(stream, dialect="native")
    assert (answer.verdict, answer.text) == (Verdict.COMPLETE, "\ufffd")
    rule = Raw(end=lambda event: event.data == "\ufffd")
    answer = read(Sequel().block(b"\xff", "done", "complete"), dialect=rule)
    assert answer.verdict is Verdict.COMPLETE


def test_the_event_of_a_raw_terminal_is_read_under_its_name() -> None:
    error = {"message": "died", "code": "c"}
    answer = read(Sequel().block(json.dumps(error).encode(), "error", "failed"), dialect="raw")
    assert (answer.verdict, answer.receipt.failure) == (Verdict.FAILED, Failure("c", "died"))


# ---- without cursors ------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", [None, "raw", "openai"])
def test_a_providers_stream_is_unverified_and_says_what_proved_its_end(dialect: str | None) -> None:
    for chunks in chunkings(chat_events()):
        answer = read(chunks, dialect=dialect)
        assert (answer.verdict, answer.receipt.proved_by, answer.text) == (Verdict.UNVERIFIED, "marker+reason", "Hello")
        receipt = answer.receipt
        assert (receipt.finish_reason, receipt.usage, receipt.crc, receipt.frames) == ("stop", {"n": 2}, None, 0)
        assert (receipt.cursor, receipt.status, answer.error) == (None, None, None)
        assert [frame.seq for frame in answer.frames] == [0] * 4


@pytest.mark.parametrize(
    ("data", "verdict", "code"),
    [
        (chat_events(done=False), Verdict.TRUNCATED, None),
        (chat_events(reason=None), Verdict.FAILED, "unproven_end"),
        (chat_events(reason="abort"), Verdict.FAILED, "generation_aborted"),
        (chat_events(reason="abort", done=False), Verdict.TRUNCATED, None),
        (chat_events() + b"data: x\n\n", Verdict.FAILED, "unproven_end"),
        (chat_events(done=False) + b'data: {"error":"died"}\n\n', Verdict.FAILED, "upstream_error"),
        (b'data: {"error":"died"}\n\n' + chat_events(), Verdict.FAILED, "upstream_error"),
        (b"", Verdict.TRUNCATED, None),
        (b": hb\n\n", Verdict.TRUNCATED, None),
    ],
)
def test_a_providers_stream_that_does_not_prove_its_end(data: bytes, verdict: Verdict, code: str | None) -> None:
    for chunks in chunkings(data):
        answer = read(chunks, dialect="raw")
        assert (answer.verdict, answer.code, answer.receipt.proved_by) == (verdict, code, None)
        assert answer.error is not None
        assert getattr(answer.error, "status", "failed") == "failed"


@pytest.mark.parametrize("clean", [True, False])
def test_by_framing_only_a_clean_end_proves(clean: bool) -> None:
    answer = read(b"data: x\n\n", dialect=Raw(end="asgi"), clean=clean)
    assert answer.verdict is (Verdict.UNVERIFIED if clean else Verdict.TRUNCATED)
    assert answer.receipt.proved_by == ("framing" if clean else None)
    answer = FORM["raw-asgi"].read(FORM["raw-asgi"].bytes(), clean=clean)
    assert answer.verdict is Verdict.COMPLETE  # the terminal was seen, whatever the connection did then


@pytest.mark.parametrize("torn", [b"data: y", b"data: y\n", b"id: 1\ndata: y\n", b"da", b"event: z"])
def test_framing_proves_nothing_that_ends_inside_an_event(torn: bytes) -> None:
    for chunks in chunkings(b"data: x\n\n" + torn):
        answer = read(chunks, dialect=Raw(end="asgi"))
        assert (answer.verdict, answer.text, answer.receipt.proved_by) == (Verdict.TRUNCATED, "", None)


@pytest.mark.parametrize("rest", [b": ping", b": ping\n", b": sg"])
def test_a_comment_that_is_cut_off_is_no_event(rest: bytes) -> None:
    for chunks in chunkings(b"data: x\n\n" + rest):
        assert read(chunks, dialect=Raw(end="asgi")).verdict is Verdict.UNVERIFIED


def test_an_end_is_clean_unless_it_is_said_not_to_be() -> None:
    verifier = StreamVerifier(dialect=Raw(end="asgi"))
    verifier.feed(b"data: x\n\n")
    verifier.end()
    assert (verifier.verdict, verifier.proved_by) == (Verdict.UNVERIFIED, "framing")


def test_every_choice_has_its_reason_in_the_receipt() -> None:
    two = b'data: {"choices":[{"index":0,"finish_reason":"stop"},{"index":1,"finish_reason":"length"}]}\n\n'
    answer = read(two + b"data: [DONE]\n\n")
    assert answer.receipt.finish_reason == {"0": "stop", "1": "length"}


def test_ids_of_others_are_no_cursors() -> None:
    stream = b"id: 17\n" + chat_events()
    assert read(stream).verdict is Verdict.UNVERIFIED
    assert read(stream.replace(b"17", SID.encode())).verdict is Verdict.UNVERIFIED
    assert read(stream.replace(b"17", "é".encode())).verdict is Verdict.UNVERIFIED


def test_a_native_stream_without_cursors_proves_nothing() -> None:
    answer = read(b'data: "a"\n\nevent: end\ndata: {"status":"complete"}\n\n', dialect="native")
    assert answer.verdict is Verdict.TRUNCATED


# ---- last lines without their end: strict and lenient ----------------------------------------

TERMINALS = [form for form in FORMS if form.wire.name != "binary" and form.name != "raw-asgi"]


@pytest.mark.parametrize("form", TERMINALS, ids=lambda form: form.name)
@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_terminal_without_its_line_ends_is_complete_only_when_that_is_asked_for(form: Form, missing: int) -> None:
    data = form.bytes()
    if form.wire.name == "ndjson":
        missing = min(missing, 1)
    cut_off = data[: len(data) - missing]
    for chunks in chunkings(cut_off):
        strict, lenient = form.read(chunks), form.read(chunks, lenient=True)
        assert strict.verdict is (Verdict.TRUNCATED if missing else Verdict.COMPLETE)
        assert lenient.verdict is Verdict.COMPLETE
        assert (lenient.receipt.finish_reason, lenient.receipt.usage) == (
            form.read(data).receipt.finish_reason, form.read(data).receipt.usage,
        )  # fmt: skip
        if missing:
            assert isinstance(strict.error, TruncatedStream)
            assert strict.error.detail == "an unfinished last event was dropped"


@pytest.mark.parametrize("missing", [1, 2])
def test_a_failed_terminal_without_its_line_ends_is_failed_when_lenient(missing: int) -> None:
    data = FORM["native-sse"].bytes(fail=FAILURE)[:-missing]
    assert read(data).verdict is Verdict.TRUNCATED
    answer = read(data, lenient=True)
    assert (answer.verdict, answer.code) == (Verdict.FAILED, "source_error")


def test_half_an_event_is_never_handed_out() -> None:
    form = FORM["native-sse"]
    opening, first, second, *_ = form.blocks()
    for size in range(1, len(second)):
        for lenient in (False, True):
            answer = form.read(opening + first + second[:size], lenient=lenient)
            assert (answer.verdict, len(answer.frames)) == (Verdict.TRUNCATED, 1)
            assert isinstance(answer.error, TruncatedStream)
            assert answer.error.cursor is not None
            assert answer.error.cursor.seq == 1


def test_a_whole_last_frame_without_its_blank_line_is_no_terminal() -> None:
    form = FORM["native-sse"]
    opening, first, *_ = form.blocks()
    for missing in (1, 2):
        answer = form.read((opening + first)[:-missing], lenient=True)
        assert (answer.verdict, answer.frames) == (Verdict.TRUNCATED, [])


def test_a_last_terminal_that_does_not_fit_is_a_cut_when_lenient() -> None:
    form = FORM["native-sse"]
    blocks = form.blocks()
    answer = form.read(b"".join(blocks[:2]) + blocks[-1][:-2], lenient=True)
    assert answer.verdict is Verdict.TRUNCATED
    bad = blocks[-1][:-2].replace(b"length", b"stopxx")
    assert form.read(b"".join(blocks[:-1]) + bad, lenient=True).verdict is Verdict.TRUNCATED


@pytest.mark.parametrize("lenient", [False, True])
def test_of_a_plain_stream_a_last_event_without_its_blank_line_is_not_handed_out(lenient: bool) -> None:
    for missing in (1, 2):
        answer = read(chat_events()[:-missing], lenient=lenient)
        assert (answer.verdict, answer.text) == (Verdict.TRUNCATED, "Hello")
        assert isinstance(answer.error, TruncatedStream)
        assert answer.error.detail == "an unfinished last event was dropped"


# ---- what a good frame costs ------------------------------------------------------------------


@pytest.mark.parametrize("wire", [Sse(), Ndjson(), Binary()], ids=lambda wire: wire.name)
def test_a_good_frame_is_never_taken_apart(wire: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named or not, whether its checksum has leading zeros or none: only the terminal is. Text costs one checksum."""
    items: list[Any] = [item for at in range(100) for item in (f"token {at}", Block("note", {"at": at}))]
    opening, *frames = Form("native", Native(), wire, items, "native").blocks()
    verifier = StreamVerifier(wire=wire, dialect="native")
    verifier.feed(opening)
    slowly, step, chained = Mock(wraps=verifier._take_slowly), Mock(wraps=verifier._step), Mock(wraps=chain)
    monkeypatch.setattr(verifier, "_take_slowly", slowly)
    monkeypatch.setattr(verifier, "_step", step)
    monkeypatch.setattr("streamguard.core.verify.chain", chained)
    wide = set()
    for frame in frames[:-1]:
        assert len(verifier.feed(frame)) == 1
        assert verifier.cursor is not None
        wide.add(verifier.cursor.crc > 0x0FFFFFFF)
    assert (wide, slowly.call_count, step.call_count) == ({True, False}, 0, 0)
    assert [call.args[1] for call in chained.call_args_list] == ["block"] * 100
    verifier.feed(frames[-1])
    assert (verifier.verdict, slowly.call_count, step.call_count) == (Verdict.COMPLETE, 1, 1)


# ---- limits, order of calls ------------------------------------------------------------------


@pytest.mark.parametrize(
    "form", [FORM["native-sse"], FORM["native-ndjson"], FORM["native-binary"]], ids=lambda f: f.name
)
def test_a_frame_above_the_limit_ends_the_reading_with_both_sizes(form: Form) -> None:
    parts = written(["a", "x" * 2998, "b"], form.dialect, form.wire)
    for chunks in chunkings(b"".join(parts)):
        answer = form.read(chunks, max_frame=3000)
        assert (answer.verdict, len(answer.text)) == (Verdict.COMPLETE, 3000)
        answer = form.read(chunks, max_frame=2999)
        assert (answer.verdict, answer.code, answer.text) == (Verdict.CORRUPT, "too_large", "a")
        assert isinstance(answer.error, FrameTooLarge)
        assert (answer.error.size, answer.error.limit) == (3000, 2999)


def test_bytes_that_are_not_the_carriers_are_corrupt_and_say_why() -> None:
    answer = read(b"nonsense\n", wire="ndjson", dialect="native")
    assert (answer.verdict, answer.code) == (Verdict.CORRUPT, "grammar")
    assert isinstance(answer.error, CorruptStream)
    assert answer.error.detail == "a line that is no record of this carrier: b'nonsense'"


def test_nothing_is_handed_out_after_a_fault() -> None:
    form = FORM["native-sse"]
    blocks = form.blocks()
    verifier = StreamVerifier()
    verifier.feed(blocks[0])
    assert verifier.feed(blocks[2] + blocks[1]) == []
    assert verifier.verdict is Verdict.GAP
    assert verifier.feed(blocks[1]) == verifier.end() == []
    assert verifier.verdict is Verdict.GAP


def test_what_is_good_is_handed_out_before_the_fault_in_the_same_bytes() -> None:
    blocks = FORM["native-sse"].blocks()
    verifier = StreamVerifier()
    assert [frame.text for frame in verifier.feed(b"".join(blocks[:2]) + blocks[3])] == ["Hé"]
    assert verifier.verdict is Verdict.GAP


def test_there_is_no_verdict_before_the_end_and_the_receipt_says_truncated() -> None:
    form = FORM["native-sse"]
    blocks = form.blocks()
    verifier = StreamVerifier()
    assert (verifier.verdict, verifier.cursor, verifier.receipt.verdict) == (None, None, Verdict.TRUNCATED)
    for said in (verifier, verifier.receipt):
        assert (said.status, said.finish_reason, said.usage, said.failure, said.proved_by) == (None,) * 5
    verifier.feed(blocks[0])
    assert (verifier.cursor, verifier.receipt.crc, verifier.state) == (ZERO, None, "open")
    verifier.feed(b"".join(blocks[1:]))
    assert (verifier.verdict, verifier.state, verifier.error()) == (Verdict.COMPLETE, "ended", None)
    assert verifier.frames == len(blocks) - 1


def test_an_end_may_be_told_twice() -> None:
    for data in (FORM["native-sse"].bytes(), chat_events()):
        verifier = StreamVerifier()
        verifier.feed(data)
        verifier.end()
        first = verifier.receipt
        assert verifier.end() == []
        assert verifier.receipt == first


def test_the_receipt_of_an_error_has_its_code_and_the_error_what_was_received() -> None:
    verifier = StreamVerifier(zero=ZERO)
    verifier.feed(b"data: x\n\n")
    error = verifier.error()
    assert isinstance(error, CorruptStream)
    assert error.received == ""
    assert verifier.error("some text") is error
    assert (error.received, error.code, verifier.receipt.code) == ("some text", "guard_stripped", "guard_stripped")


# ---- round trip -----------------------------------------------------------------------------

CARRIERS = st.sampled_from([Sse(), Sse(ids="id"), Ndjson(), Binary()])


@given(
    tokens=token_cuts(),
    in_bytes=st.booleans(),
    policy=policies,
    dialect=st.sampled_from([Native(), OpenAI(model="m", id="c", created=1)]),
    wire=CARRIERS,
    ending=st.sampled_from(["complete", "failed", "cancelled", "stalled"]),
    data=st.data(),
)
def test_any_text_comes_back_in_any_cut_policy_carrier_and_ending(
    tokens: list[str], in_bytes: bool, policy: Any, dialect: Any, wire: Any, ending: str, data: st.DataObject
) -> None:
    text = whole("".join(tokens))
    items: list[Any] = list(tokens)
    if in_bytes:
        raw = text.encode()
        items = cut(raw, data.draw(st.lists(st.integers(0, len(raw)), max_size=9)))
    fail = None if ending == "complete" else FAILURE
    parts = written(items, dialect, wire, flush=policy, fail=fail, status=ending)
    chunks = data.draw(byte_cuts(st.just(b"".join(parts))))
    answer = read(chunks, wire=wire, dialect=dialect)
    assert answer.text == text
    assert answer.verdict is (Verdict.COMPLETE if ending == "complete" else Verdict.FAILED)
    assert answer.receipt.status == ending


@given(clean_texts, clean_texts, CARRIERS)
def test_blocks_and_text_come_back_in_order(text: str, inside: str, wire: Any) -> None:
    block = Block("image", {"alt": inside, "n": [1.5, None, True]})
    answer = read(written([text, block, text], Native(), wire), wire=wire, dialect="native")
    assert answer.verdict is Verdict.COMPLETE
    assert answer.text == text + text
    assert [frame.item for frame in answer.frames if frame.item] == [block]
    assert [bool(frame.item) for frame in answer.frames] == ([False, True, False] if text else [True])


@given(st.lists(clean_texts.filter(bool), max_size=4), st.sampled_from(["native", "openai"]))
def test_no_text_makes_a_second_event(pieces: list[str], name: str) -> None:
    """Model output is untrusted: as many events come as were sent, for any conforming client."""
    dialect: Any = Native() if name == "native" else OpenAI(model="m", id="c", created=1)
    events = SseDecoder().feed(b"".join(written(pieces, dialect, Sse())))
    assert len(events) == len(pieces) + 2
    assert {event.event for event in events} <= {"message", "open", "end"}
    for split in (str.splitlines, lambda text: text.split("\n")):  # clients that cut at Unicode's line ends
        lines = split(b"".join(written(pieces, dialect, Sse())).decode())
        assert sum(line.startswith("data: ") for line in lines) == len(pieces) + 2


@given(
    st.binary(max_size=200),
    st.sampled_from(["sse", "ndjson", "binary"]),
    st.sampled_from(["native", "openai", "raw", None]),
)
def test_strangers_bytes_never_raise_and_are_never_complete(noise: bytes, wire: str, dialect: str | None) -> None:
    for data in (noise, b"SG\x01" + noise, FORM["openai-comment"].blocks()[0] + noise):
        answer = read(data, wire=wire, dialect=dialect)
        assert answer.verdict is not Verdict.COMPLETE


def test_a_name_that_json_spells_with_half_a_character_is_a_fault_of_the_frame() -> None:
    line = f'{{"id":"{SID}.1.1.00000000","event":"\\ud800","data":"x"}}\n'.encode()
    answer = read(line, wire="ndjson", dialect="native", zero=ZERO)
    assert (answer.verdict, answer.code) == (Verdict.CORRUPT, "checksum")


@pytest.mark.parametrize(
    "rest", [b"id: y\n", b"event: x\n", b"id: y\nevent: x\n", b"id: y\r\n", b"id", b"event: x\nid: y"]
)
def test_a_body_that_ends_inside_an_event_is_no_proof_however_it_is_cut(rest: bytes) -> None:
    for chunks in ([b"data: a\n\n" + rest], [b"data: a\n\n", rest], *chunkings(b"data: a\n\n" + rest)):
        assert read(chunks, dialect=Raw(end="asgi")).verdict is Verdict.TRUNCATED
    for harmless in (b"", b": sg x\n", b": hb", b"retry: 5\n", b"\n"):
        for chunks in chunkings(b"data: a\n\n" + harmless):
            assert read(chunks, dialect=Raw(end="asgi")).verdict is Verdict.UNVERIFIED


# ---- a dialect that the reader guessed ------------------------------------------------------


@pytest.mark.parametrize("wire", ["sse", "ndjson", "binary"])
def test_plain_text_is_read_over_no_other_carrier_since_the_end_of_bytes_would_prove_its_end(wire: str) -> None:
    for zero in (None, ZERO):
        with pytest.raises(ValueError, match="plain"):
            StreamVerifier(wire=wire, dialect="text", zero=zero)


@pytest.mark.parametrize("wire", [Ndjson(), Binary()], ids=["ndjson", "binary"])
@pytest.mark.parametrize("dialect", ["openai", "raw"])
def test_native_text_is_no_providers_event(wire: Ndjson | Binary, dialect: str) -> None:
    """Its text would be dropped, and its terminal accepted."""
    for items, code in ((["a"], "grammar"), ([], None if dialect == "raw" else "guard_stripped")):
        answer = read(written(items, Native(), wire), wire=wire, dialect=dialect)
        assert (answer.code, answer.frames) == (code, [])


@pytest.mark.parametrize("wire", [Ndjson(), Binary()], ids=["ndjson", "binary"])
def test_a_strangers_strings_pass_through_raw_if_the_server_says_that_it_is_raw(wire: Ndjson | Binary) -> None:
    stream = written([Event('"a"')], Raw(end="asgi"), wire, negotiated=True)
    assert read(stream, wire=wire, dialect=Raw(end="asgi"), zero=ZERO).verdict is Verdict.COMPLETE
    assert read(stream, wire=wire, dialect=Raw(end="asgi")).code == "grammar"


@pytest.mark.parametrize("wire", [Ndjson(), Binary()], ids=["ndjson", "binary"])
def test_a_strangers_string_under_a_name_cannot_be_native_text(wire: Ndjson | Binary) -> None:
    stream = written([Event('"a"', "note")], Raw(end="asgi"), wire, negotiated=True)
    answer = read(stream, wire=wire, dialect=Raw(end="asgi"))
    assert (answer.verdict, [(frame.name, frame.raw) for frame in answer.frames]) == (
        Verdict.COMPLETE, [("note", b'"a"')],
    )  # fmt: skip


@pytest.mark.parametrize("dialect", ["raw", "openai"])
def test_a_native_stream_read_as_another_dialect_is_refused_at_its_opening(dialect: str) -> None:
    """Its `open` event is a frame there, and no frame's cursor is at zero. Otherwise `raw` would drop its text."""
    answer = read(FORM["native-sse"].bytes(), dialect=dialect)
    assert isinstance(answer.error, CorruptStream)
    assert (answer.code, answer.error.detail, answer.frames) == ("seq", "frame 0 came after frame 0", [])


def test_a_native_stream_whose_dialect_is_told_needs_no_open_event_for_its_signs() -> None:
    sequel = Sequel()
    first = sequel.block(b'"a"')
    ping = f'event: ping\ndata: {{"cursor":"{sequel.at}"}}\n\n'.encode()
    answer = read(first + ping + sequel.end(), dialect="native")
    assert (answer.verdict, answer.text) == (Verdict.COMPLETE, "a")
