"""What can happen to a stream that is no cut and no changed byte: frames that are missing, twice, swapped or another's,
each check alone, ends and openings, data that was written anew. One generator for every carrier and dialect.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any
from zlib import crc32

import attrs

from streamguard.core.cursor import Cursor, chain, cursor_zero
from streamguard.core.flush import Immediate
from streamguard.core.frame import Frame
from streamguard.core.framing import FramedEncoder
from streamguard.core.pipeline import FrameStage
from streamguard.core.wire.base import WireEncoder
from tests.core.wire.streams import FAILURE, OTHER_SID, SID, Form, chat_events

__all__ = ["Case", "Pieces", "bye", "cases", "frames_of"]

Pieces = Sequence["int | bytes"]  # a part of the stream by its number, or bytes

_ZERO = cursor_zero(SID)
_STATUSES = ("failed", "cancelled", "stalled", "slow", "shutdown")
_ODD_CURSORS = (
    "", "x", "+1", f"{SID}.+1.3.00000000", f"{SID}.1.3.0000000g", f"{SID}.01.3.00000000", f"{SID}.1.3.ABCDEF01", "é",
    f"{SID}.9007199254740992.3.00000000", f" {_ZERO}", f"{_ZERO} ", f"{SID}.1_0.3.00000000", f"{SID}.١.3.00000000",
)  # fmt: skip


@attrs.frozen
class Case:
    """A stream with one fault, or none: its name says which."""

    name: str
    pieces: Pieces
    options: dict[str, Any] = attrs.field(factory=dict)  # of its reader


def frames_of(form: Form, sid: str = SID) -> list[Frame]:
    stage = FrameStage(Immediate(), FramedEncoder(form.dialect, sid=sid, negotiated=form.negotiated))
    return [frame for item in form.items for frame in stage.push(item, 0.0)] + stage.finish(0.0)


def bye(encoder: WireEncoder) -> bytes:
    """A bye, with the same time to come back in each run: it is drawn."""
    return re.sub(rb"retry: [0-9]+", b"retry: 1500", encoder.bye(_ZERO, "rotate"))


def _encoder(form: Form, sid: str = SID) -> WireEncoder:
    return form.wire.encoder(cursor_zero(sid), own_ids=form.dialect.own_ids)


def cases(form: Form, *, every: bool) -> Iterator[Case]:
    """The cases of a form. The parts are its opening and its frames. Those of one frame each are of the carrier, and
    the same in each of its dialects, so that not every form needs them."""
    encoder, frames = _encoder(form), frames_of(form)
    parts = list(range(len(frames) + 1))
    yield Case("whole", parts)
    yield Case("whole, promised", parts, {"zero": _ZERO})
    yield Case("another stream was promised", parts, {"zero": cursor_zero(OTHER_SID)})
    yield Case("a frame above the limit", parts, {"max_frame": 3})
    yield from _ends(form)
    yield from _signs(encoder, frames, parts)
    yield from _orders(parts)
    yield from _others(form, parts)
    if every:
        yield from _checks(encoder, frames, parts)
    yield from _chained(form, encoder, frames, parts)
    yield from _rewritten(encoder, frames, parts)
    if form.wire.name != "binary":
        yield from _openings(form, parts)
    if form.wire.name == "sse":
        yield from _of_sse(form, parts)


def _ends(form: Form) -> Iterator[Case]:
    good = form.blocks()
    for status in _STATUSES:
        data = form.bytes(fail=FAILURE, status=status)
        pieces: list[int | bytes] = []
        while len(pieces) < len(good) and data.startswith(good[len(pieces)]):
            data = data[len(good[len(pieces)]) :]
            pieces.append(len(pieces))
        yield Case(f"it ended as {status}", [*pieces, data])


def _signs(encoder: WireEncoder, frames: Sequence[Frame], parts: Sequence[int]) -> Iterator[Case]:
    beats = [encoder.heartbeat(_ZERO), encoder.heartbeat(_ZERO, blocked=True)]
    between: list[int | bytes] = [0]
    for part in parts[1:]:
        between += [*beats, part]
    yield Case("heartbeats between frames", between)
    last = frames[-1]
    at = Cursor(SID, last.seq, last.offset, last.crc, last.status)
    parting = bye(encoder)
    data = b'"more"'
    more = Frame(at.seq + 1, at.offset + len(data), chain(at.crc, None, None, data), data)
    trailing = {
        "a frame": encoder.frame(more), "a heartbeat": encoder.heartbeat(at), "a bye": parting,
        "an opening": encoder.opening(), "nothing": b"",
    }  # fmt: skip
    for name, after in trailing.items():
        yield Case(f"{name} after the terminal", [*parts, after])
    yield Case("the terminal twice", [*parts, parts[-1]])
    yield Case("a bye", [0, 1, parting])
    for name, after in {"a frame": 2, "a heartbeat": beats[0], "a bye": parting, "an opening": 0}.items():
        yield Case(f"{name} after a bye", [0, 1, parting, after])  # type: ignore[list-item]


def _orders(parts: Sequence[int]) -> Iterator[Case]:
    for at in parts[1:]:
        yield Case(f"part {at} is missing", [*parts[:at], *parts[at + 1 :]])
        for later in sorted({at, parts[-2], parts[-1]} - set(range(at))):
            yield Case(f"part {at} again after {later}", [*parts[: later + 1], at, *parts[later + 1 :]])
    for at in parts[1:-1]:
        yield Case(f"part {at} and the next are swapped", [*parts[:at], at + 1, at, *parts[at + 2 :]])
    yield Case("no opening", parts[1:])
    yield Case("two openings", [0, *parts])
    yield Case("nothing", [])


def _others(form: Form, parts: Sequence[int]) -> Iterator[Case]:
    theirs = _encoder(form, OTHER_SID)
    opening, *others = [theirs.opening(), *map(theirs.frame, frames_of(form, OTHER_SID))]
    for at in parts[1:]:
        yield Case(f"from part {at} on another stream's", [*parts[:at], *others[at - 1 :]])
    yield Case("the opening is another stream's", [opening, *parts[1:]])


def _checks(encoder: WireEncoder, frames: Sequence[Frame], parts: Sequence[int]) -> Iterator[Case]:
    """Each check by itself, and several at once: the first one names the fault."""
    for at, frame in enumerate(frames, 1):
        wrongs: list[dict[str, Any]] = [
            {"seq": at - 1}, {"seq": 0}, {"seq": at + 1}, {"seq": 99}, {"offset": frame.offset + 1}, {"offset": 0},
            {"crc": frame.crc ^ 1}, {"seq": at - 1, "offset": 0, "crc": 0}, {"offset": 0, "crc": 0},
            {"seq": at + 1, "crc": 0},
        ]  # fmt: skip
        for wrong in wrongs:
            said = ", ".join(f"{key} {value}" for key, value in wrong.items())
            changed = encoder.frame(attrs.evolve(frame, **wrong))
            yield Case(f"part {at} with {said}", [*parts[:at], changed, *parts[at + 1 :]])


def _after(frame: Frame | None) -> Cursor:
    return _ZERO if frame is None else Cursor(SID, frame.seq, frame.offset, frame.crc)


def _next(at: Cursor, data: bytes, name: str | None = None, status: str | None = None) -> Frame:
    return Frame(at.seq + 1, at.offset + len(data), chain(at.crc, name, status, data), data, name, status)


def _chained(form: Form, encoder: WireEncoder, frames: Sequence[Frame], parts: Sequence[int]) -> Iterator[Case]:
    """Frames whose checks hold, and that are wrong all the same."""
    at = _after(frames[0])
    odd = [(None, b"1"), (None, b'"a" '), (None, b'"a'), ("block", b"[]"), ("block", b"{}"), ("block", b"x")]
    for name, data in odd:
        yield Case(f"data {data!r} named {name}", [0, 1, encoder.frame(_next(at, data, name))])
    later = _next(at, b"anything", "later")
    yield Case("a frame of an unknown name", [0, 1, encoder.frame(later)])
    *before, last = frames
    at = _after(before[-1] if before else None)
    head = parts[:-1]
    counts = b'{"status":"complete","frames":%d,"bytes":%d}'
    summaries = [b"[]", b"x", b"{}", b'{"status":"complete"}', counts % (99, 0), counts % (at.seq, at.offset)]
    for summary in summaries:
        inside = encoder.frame(_next(at, summary, "end", "complete"))
        yield Case(f"the end named `end` with {summary!r}", [*head, inside])
        beside = _next(at, b"[DONE]", None, "complete")
        for check in (crc32(summary, beside.crc), 0):
            extra = b"%08x %b" % (check, summary)
            told = encoder.frame(attrs.evolve(beside, extra=extra))
            yield Case(f"[DONE] with {summary!r} beside it, check {'good' if check else 'bad'}", [*head, told])
    yield Case("[DONE] with no summary", [*head, encoder.frame(_next(at, b"[DONE]", None, "complete"))])
    if last.extra is not None:
        yield Case("the terminal without its summary", [*head, encoder.frame(attrs.evolve(last, extra=None))])
        altered = last.extra.replace(b'"complete"', b'"failed"').replace(b'"length"', b'"stop"')
        yield Case("the terminal with another summary", [*head, encoder.frame(attrs.evolve(last, extra=altered))])


def _rewritten(encoder: WireEncoder, frames: Sequence[Frame], parts: Sequence[int]) -> Iterator[Case]:
    for at, frame in enumerate(frames, 1):
        try:
            value = json.loads(frame.data)
        except ValueError:
            continue
        forms = {
            "with spaces": json.dumps(value, ensure_ascii=False), "in ASCII": json.dumps(value, separators=(",", ":")),
            "on lines": json.dumps(value, indent=1),
        }  # fmt: skip
        for name, text in forms.items():
            if text.encode() != frame.data:
                changed = encoder.frame(attrs.evolve(frame, data=text.encode()))
                yield Case(f"part {at} written anew {name}", [*parts[:at], changed, *parts[at + 1 :]])
        other = encoder.frame(attrs.evolve(frame, data=frame.data + b" "))
        yield Case(f"part {at} with a space more", [*parts[:at], other, *parts[at + 1 :]])


def _openings(form: Form, parts: Sequence[int]) -> Iterator[Case]:
    opening = b'{"open":"%b"}\n' if form.wire.name == "ndjson" else b": streamguard 1 %b\n"
    zeros = (_ZERO._replace(crc=0), _ZERO._replace(seq=1), f"{_ZERO}.complete", cursor_zero(OTHER_SID), "x")
    for zero in map(str, zeros):
        yield Case(f"the opening says {zero}", [opening % zero.encode(), *parts[1:]], {"zero": _ZERO})
    ids = b'{"id":"%b","data":"x"}\n' if form.wire.name == "ndjson" else b"id: %b\ndata: x\n\n"
    for cursor in _ODD_CURSORS:
        yield Case(f"a frame's cursor is {cursor!r}", [0, ids % cursor.encode()])
    bare = b'{"data":"x"}\n' if form.wire.name == "ndjson" else b"data: x\n\n"
    for at in parts[1:]:
        yield Case(f"a block without a cursor before part {at}", [*parts[:at], bare, *parts[at:]])
    yield Case("a block without a cursor, promised", [bare], {"zero": _ZERO})
    yield Case("a block without a cursor and no promise", [bare])


def _of_sse(form: Form, parts: Sequence[int]) -> Iterator[Case]:
    good = form.blocks()
    yield Case("lines end in CRLF", [part.replace(b"\n", b"\r\n") for part in good])
    yield Case("lines end in CR", [part.replace(b"\n", b"\r") for part in good])
    yield Case("it begins with a byte-order mark", [b"\xef\xbb\xbf", *parts])
    lost = f"event: end\nid: {_ZERO}.lost\ndata: {{}}\n\n".encode()
    yield Case("the server has no more", [0, 1, lost])
    yield Case("the server lost another stream", [lost], {"zero": cursor_zero(OTHER_SID)})
    yield Case("the server has no more, from the start", [lost])
    last = good[-1].replace(b".complete\n", b".vanished\n")
    yield Case("a status changed to an unknown one", [*parts[:-1], last])
    longer = [part.replace(b".complete\n", b".complete.x.y_z\n") for part in good]
    yield Case("parts after the status", [*parts[:-1], longer[-1]])
    at = _after(frames_of(form)[-2]) if len(parts) > 2 else _ZERO
    summary = b'{"status":"complete","finish_reason":"stop","frames":%d,"bytes":%d}' % (at.seq, at.offset)
    frame = _next(at, summary, "end", "vanished")
    block = f"event: end\nid: {SID}.{frame.seq}.{frame.offset}.{frame.crc:08x}.vanished\ndata: ".encode() + summary
    yield Case("an unknown status", [*parts[:-1], block + b"\n\n"])
    if form.name == "raw-sse":
        yield from _strangers()


def _strangers() -> Iterator[Case]:
    """Streams that nobody guards: their provider's own end is all there is to go by."""
    chunk = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'
    done = b"data: [DONE]\n\n"
    reason = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"%b"}]}\n\n'
    stream = chat_events()
    yield Case("chat, whole", [stream])
    for at in range(0, len(stream), 5):
        yield Case(f"chat, cut at {at}", [stream[:at]])
    yield Case("chat without a reason", [chat_events(reason=None)])
    yield Case("chat without [DONE]", [chat_events(done=False)])
    yield Case("chat with two choices", [chunk, chunk.replace(b":0,", b":1,"), reason % b"stop", done])
    for name, block in {
        "an error": b'data: {"error":{"message":"no","code":"busy"}}\n\n',
        "a named error": b"event: error\ndata: no\n\n",
        "a bare string": b'data: "no"\n\n',
        "an empty error": b'data: {"error":{}}\n\n',
        "a type": b'data: {"type":"error"}\n\n',
    }.items():
        yield Case(f"chat with {name}", [chunk, block, reason % b"stop", done])
    yield Case("chat aborted", [chunk, reason % b"abort", done])
    yield Case("chat ended by an error", [chunk, reason % b"error", done])
    yield Case("[DONE] alone", [b"data:\n\n", done])
    yield Case("[DONE] behind events of another API", [b'data: {"token":"x"}\n\n', done])
    yield Case("chat with more after the end", [stream, chunk])
    yield Case("chat with a sign of life after the end", [stream, b"data:\n\n"])
    text = b'{"type":"content_block_delta","delta":{"type":"text_delta","text":"x"}}'
    delta = b"event: content_block_delta\ndata: " + text + b"\n\n"
    stop = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    why = b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"}}\n\n'
    yield Case("Anthropic, whole", [delta, why, stop])
    yield Case("Anthropic, without a reason", [delta, stop])
    yield Case("Anthropic, cut", [delta])
    said = b'data: {"type":"response.output_text.delta","delta":"x"}\n\n'
    for kind in ("completed", "incomplete", "failed"):
        end = b'data: {"type":"response.%b","response":{"status":"%b"}}\n\n' % (kind.encode(), kind.encode())
        yield Case(f"Responses, {kind}", [said, end])
    for state in (b'"status":"failed"', b'"status":"cancelled"', b'"status":"completed","error":{"code":"x"}'):
        end = b'data: {"type":"response.completed","response":{%b}}\n\n' % state
        yield Case(f"Responses, completed with {state.decode()}", [said, end])
    yield Case("noise", [b"\0\xff\xfe noise\n\ndata: {\n\n: hb x\n\n"])
