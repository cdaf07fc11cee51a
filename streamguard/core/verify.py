"""The same stream seen from its reader: bytes in, frames out, and a verdict.

Each frame is compared with the only cursor that could stand beside it. The verifier computes that
cursor from the frame's data and its own chain and compares texts, so a good frame costs one checksum
and one comparison; only a frame that differs is taken apart, to say which check failed (`check`).

`feed` hands out what is good and never raises: a fault ends the reading and stands in `verdict` and
`error()`. Nothing is handed out after a fault, since a client that acts on the second half of an
answer without its middle is worse off than one that stops. A stream that was cut may go on in another
connection (`resume`): the same checks then hold across the cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from zlib import crc32

from streamguard.core.check import check_frame
from streamguard.core.cursor import Cursor, chain, chain_start, cursor_zero, looks_like_cursor
from streamguard.core.dialect import Dialect, DialectReader, Native, Raw, Reading, dialect_named
from streamguard.core.errors import (
    CorruptStream,
    FailedStream,
    Failure,
    FrameTooLarge,
    LocalProtocolError,
    RemoteProtocolError,
    StreamGap,
    TruncatedStream,
    VerdictError,
    WireError,
)
from streamguard.core.items import Ending
from streamguard.core.receipt import AnswerFrame, CorruptCode, Receipt, Verdict
from streamguard.core.rejoin import Joint
from streamguard.core.states import FINAL_STATUSES, TABLE, Input, State
from streamguard.core.terminal import SUMMARY_BESIDE, failure_in, last_frames, read_summary
from streamguard.core.wire import Received, Wire, wire_named
from streamguard.core.wire.base import MAX_FRAME, WireReader

__all__ = ["StreamVerifier"]


class StreamVerifier:
    """Reads one stream from its bytes.

    `wire` and `dialect` say what the bytes are (`dialect=None`: `native` if the stream says so, else a
    provider's events); `zero` is the cursor zero that the `Streamguard` header promised; `lenient`
    accepts a last frame whose checks hold though its line end is missing.
    """

    def __init__(
        self,
        *,
        wire: str | Wire = "sse",
        dialect: str | Dialect | None = None,
        zero: Cursor | None = None,
        lenient: bool = False,
        max_frame: int = MAX_FRAME,
    ) -> None:
        self.lenient = lenient
        self.state: State = "unopened"
        self.verdict: Verdict | None = None
        self.frames = 0
        self.status: str | None = None
        self.finish_reason: str | dict[str, str] | None = None
        self.usage: Mapping[str, Any] | None = None
        self.failure: Failure | None = None
        self.proved_by: str | None = None
        self.parting: str | None = None  # why the server ended this connection, if it said so: a bye's reason
        self.resumes = self.beats = 0  # and signs of life, of all connections
        self.duplicates = 0  # frames that came again, and were dropped
        self._error: RemoteProtocolError | None = None
        self._dialect = None if dialect is None else dialect_named(dialect)
        self.reader: DialectReader = (self._dialect or Raw()).reader()
        self._read = self.reader.read
        self._max_frame = max_frame
        self._wire = self._carrier(wire)
        self._joint: Joint | None = None  # until the first new frame after a resume
        self._sid: str | None = None
        # The cursor of a frame that is no terminal, to be filled with its numbers; None: each frame is taken apart.
        self._usual: bytes | None = None
        self._wide: bytes  # the same for a checksum of eight digits; set with the sid
        self._seq = self._offset = 0
        self._crc: int  # set with the sid, which it holds
        self._promised = False  # a cursor, or the promise of one, was seen
        self._dropped = False  # an unfinished last record was
        carrier = wire_named(wire).name
        if self._dialect_name == "text" and carrier != "plain":  # the end of bytes would prove the end of the stream
            raise ValueError(f"dialect 'text' is read over carrier 'plain' only, not over {carrier!r}")
        # These carriers name no dialect in band: without the server's word the caller's is a guess.
        self._guessed = zero is None and self._dialect_name == "raw" and carrier in ("ndjson", "binary")
        if zero is not None and carrier != "plain":  # which has no place for cursors
            self._promise(zero)

    @property
    def cursor(self) -> Cursor | None:
        """The last cursor whose checks held; None before any."""
        return Cursor(self._sid, self._seq, self._offset, self._crc, self.status) if self._sid else None

    @property
    def retry(self) -> int | None:
        """Milliseconds after which the server wants to be asked again, where its carrier has a place for that."""
        return getattr(self._wire, "retry", None)

    @property
    def receipt(self) -> Receipt:
        """What is known so far; final once `end` was called."""
        guarded = self._seq > 0
        return Receipt(
            verdict=self.verdict or Verdict.TRUNCATED,
            status=self.status,
            code=self._code,
            frames=self._seq,
            bytes=self._offset,
            crc=self._crc if guarded else None,
            cursor=self.cursor,
            finish_reason=self.finish_reason,
            usage=self.usage,
            failure=self.failure,
            proved_by=self.proved_by if self.verdict is Verdict.UNVERIFIED else None,
            resumes=self.resumes,
            duplicates=self.duplicates,
        )

    def error(self, received: str = "") -> RemoteProtocolError | None:
        """The error for this verdict, or None for COMPLETE and UNVERIFIED. `received` is what to attach."""
        if isinstance(self._error, VerdictError):
            self._error.received = received
        return self._error

    def feed(self, data: bytes) -> list[AnswerFrame]:
        """The frames that `data` completes and that hold; nothing after a fault."""
        if self._error is not None:
            return []
        frames: list[AnswerFrame] = []
        try:
            for record in self._wire.feed(data):
                self._take(record, frames)
        except RemoteProtocolError as exc:
            self._fault(exc)
        return frames

    def end(self, *, clean: bool = True) -> list[AnswerFrame]:
        """End of bytes. `clean` says whether the connection's own framing ended as it should."""
        frames: list[AnswerFrame] = []
        if self._error is None and self.state not in ("closed", "cut"):
            try:
                torn = getattr(self._wire, "unfinished", False)
                for record in self._wire.end():
                    self._take_partial(record, frames)
                self._step("eof")
                self._conclude(clean and not torn, frames)  # framing proves nothing that ends inside an event
            except RemoteProtocolError as exc:
                self._fault(exc)
        return frames

    def resume(self, wire: str | Wire = "sse", zero: Cursor | None = None) -> None:
        """Read on behind `cursor` in another connection, over `wire`; `zero` is what its header promised.

        Raises LocalProtocolError for a stream that has no cursor yet, or has its verdict for good.
        """
        at = self.cursor
        if at is None or self.verdict not in (None, Verdict.TRUNCATED):
            raise LocalProtocolError("there is nothing to resume: the stream has no cursor, or is over")
        self.state = "unopened"
        self.verdict = self._error = self.parting = None
        self._dropped = False
        self._wire = self._carrier(wire)
        self._joint = Joint(at)
        self._usual = None  # the joint looks at each frame, up to the first new one
        self.resumes += 1
        if zero is not None and zero.sid != at.sid:
            self.give_up(self._corrupt("sid", f"the answer goes on with stream {zero.sid}"))

    def give_up(self, error: RemoteProtocolError) -> None:
        """End the reading with `error`, for what was learnt beside the stream's own bytes."""
        self._fault(error)

    # ---- one record -------------------------------------------------------------------------

    def _take(self, record: Received, frames: list[AnswerFrame]) -> None:
        if record.kind != "frame":
            self._take_sign(record)
            return
        if record.cursor is not None and self._usual is not None:
            data = record.data
            name = record.name
            seq = self._seq + 1
            offset = self._offset + len(data)
            crc = crc32(b"\n\n%b\n" % data, self._crc) if name is None else chain(self._crc, name, None, data)
            # Padding costs a quarter of the line, and fifteen of sixteen checksums need none.
            if record.cursor == (self._wide if crc > 0x0FFFFFFF else self._usual) % (seq, offset, crc):
                if self.state != "open":
                    self._step("frame")
                self._hand_out(seq, name, data, frames)
                self._seq = seq
                self._offset = offset
                self._crc = crc
                return
        self._take_slowly(record, frames)

    def _take_sign(self, record: Received) -> None:
        """What is no frame: an opening, a heartbeat, a bye."""
        if record.kind == "opening":
            self._opening(record)
        elif record.kind == "beat":
            self._step("beat")
            self.beats += 1
        else:
            self._step("bye")
            self.parting = record.reason

    def _take_slowly(self, record: Received, frames: list[AnswerFrame]) -> None:
        """Everything but the usual frame: the first, the terminal, one without a cursor, a wrong one."""
        if record.cursor is None or not (self._promised or looks_like_cursor(_ascii(record.cursor))):
            if self._promised:
                raise self._corrupt("guard_stripped", "a block came without its cursor")
            self._hand_out(0, record.name, record.data, frames)
            return
        cursor = Cursor.parse(_ascii(record.cursor))
        at = self._promise(cursor_zero(cursor.sid))
        if cursor.status == "lost" and cursor.sid == self._sid:  # no frame: it repeats the cursor that was sent
            raise StreamGap(self._seq + 1, None, cursor=self.cursor, detail="the server no longer has what follows")
        if self._joint is not None and self._joint.repeats(cursor, record.name, record.data):
            self._step("frame")
            self.duplicates += 1
            return
        check_frame(at, cursor, record.name, record.data)
        if cursor.status is None:
            self._step("frame")
            self._hand_out(cursor.seq, record.name, record.data, frames)
            self._advance(cursor.seq, cursor.offset, cursor.crc)
            if self._joint is not None:
                self._joint = None
                self._expect(cursor.sid)
        else:
            self._terminal(cursor, record, frames)

    def _take_partial(self, record: Received, frames: list[AnswerFrame]) -> None:
        """A last record whose line end is missing: accepted only if asked to, and only as a good terminal."""
        if not record.partial:
            self._take(record, frames)
            return
        self._dropped = True
        if not (self.lenient and self._promised and record.kind == "frame" and record.cursor):
            return
        try:
            if Cursor.parse(_ascii(record.cursor)).status is not None:
                self._take_slowly(record, frames)
        except FailedStream:
            raise
        except RemoteProtocolError:
            return  # cut inside it: the end of bytes will say that the stream is truncated

    def _advance(self, seq: int, offset: int, crc: int) -> None:
        self._seq, self._offset, self._crc = seq, offset, crc

    def _hand_out(self, seq: int, name: str | None, data: bytes, frames: list[AnswerFrame]) -> None:
        """Before the frame counts as good: a cursor never stands after a frame that was not handed out."""
        try:
            reading = self._read(name, data.decode("utf-8", "replace"))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
            raise self._corrupt("grammar", f"the data is not the dialect's: {exc}") from exc
        if self._promised and isinstance(reading, Reading) and reading.item is None and self._is_native(name, data):
            raise self._corrupt("grammar", "the data is text of `native`, and no provider's event")
        self.frames += 1
        if type(reading) is str:
            frames.append(AnswerFrame(seq, name, data, reading))
        elif isinstance(reading, Reading):  # an unknown name is chained, and not handed out
            frames.append(AnswerFrame(seq, name, data, reading.text, reading.item, reading.texts, reading.blocks))

    def _is_native(self, name: str | None, data: bytes) -> bool:
        """Whether data that is no provider's event can only be `native` text. In `raw` a server may vouch for it."""
        return name is None and data[:1] == b'"' and (self._guessed or self._dialect_name in SUMMARY_BESIDE)

    # ---- beginnings and ends ----------------------------------------------------------------

    def _promise(self, zero: Cursor) -> Cursor:
        """The last good cursor, now that the stream is known to have some."""
        self._promised = True
        if self._sid is None:
            self._sid = zero.sid
            self._crc = chain_start(zero.sid)
            self._expect(zero.sid)
        return Cursor(self._sid, self._seq, self._offset, self._crc)

    def _expect(self, sid: str) -> None:
        self._usual = sid.encode() + b".%d.%d.%08x"
        self._wide = sid.encode() + b".%d.%d.%x"

    def _opening(self, record: Received) -> None:
        # The binary carrier names the stream by its sid alone.
        text = str(cursor_zero(_ascii(record.data))) if record.cursor is None else _ascii(record.cursor)
        zero = Cursor.parse(text)
        self._promise(zero)
        if zero.sid != self._sid:
            raise self._corrupt("sid", f"the opening names stream {zero.sid}")
        # native's `open` event names the place where the connection goes on.
        goes_on = self._joint is not None and record.name == "open" and zero == self._joint.at
        if zero != cursor_zero(zero.sid) and not goes_on:
            raise self._corrupt("checksum", "the opening's cursor is not cursor zero")
        if record.name == "open" and self._dialect is None:
            self._dialect = Native()
            self.reader = self._dialect.reader()
            self._read = self.reader.read
        if self.state != "open":  # the comment and native's `open` event are one opening
            self._step("opening")

    def _terminal(self, cursor: Cursor, record: Received, frames: list[AnswerFrame]) -> None:
        summary = read_summary(record, cursor, self._dialect_name, self.cursor)
        if summary is not None and (summary.get("frames"), summary.get("bytes")) != (self._seq, self._offset):
            raise self._corrupt("length", "the summary counts other frames than came")
        self._step("terminal")
        self._advance(cursor.seq, cursor.offset, cursor.crc)
        self.frames += 1
        self.status = cursor.status
        self._read_ending(record, summary)
        if self.status == "complete":
            self.verdict = Verdict.COMPLETE
            frames += last_frames(self.reader, cursor.seq, record.name, record.data)
            return
        if self.status not in FINAL_STATUSES:
            self.failure = Failure("unknown_status", f"the terminal's status is {self.status!r}")
        raise FailedStream(str(self.status), self.failure, cursor=self.cursor)

    def _read_ending(self, record: Received, summary: Mapping[str, Any] | None) -> None:
        if summary is None or self._dialect is None:
            # Without a dialect a summary's loss would not be seen, so nothing is taken from it but an error.
            if record.data:
                self._read(record.name, record.data.decode("utf-8", "replace"))
            self._read_reader()
        else:
            self.finish_reason = summary.get("finish_reason")
            self.usage = summary.get("usage")
        self.failure = failure_in(summary) or self.failure

    def _read_reader(self) -> None:
        self.finish_reason = Ending(reasons=self.reader.reasons).finish_reason
        self.usage = self.reader.usage
        self.failure = self.reader.error

    def _conclude(self, clean: bool, frames: list[AnswerFrame]) -> None:
        """The verdict of a stream whose bytes have ended."""
        if self.state == "closed":
            return  # the terminal said it
        detail = "an unfinished last event was dropped" if self._dropped else ""
        if self._promised:
            raise TruncatedStream(cursor=self.cursor, detail=detail)
        # No cursors: the provider's own end is all there is to go by.
        self.proved_by = self.reader.proof(clean)
        self._read_reader()
        if self.proved_by is None and self.failure is None:
            raise TruncatedStream(detail=detail, frames=self.frames)
        self.failure = self.reader.judge()
        if self.failure is not None:
            raise FailedStream("failed", self.failure)
        self.verdict = Verdict.UNVERIFIED
        frames += last_frames(self.reader)

    # ---- small parts ------------------------------------------------------------------------

    def _carrier(self, wire: str | Wire) -> WireReader:
        own_ids = None if self._dialect is None else self._dialect.own_ids
        return wire_named(wire).reader(own_ids=own_ids, max_frame=self._max_frame)

    @property
    def _code(self) -> str | None:
        return "too_large" if isinstance(self._error, FrameTooLarge) else getattr(self._error, "code", None)

    @property
    def _dialect_name(self) -> str | None:
        return self._dialect.name if self._dialect is not None else None

    def _step(self, event: Input) -> None:
        state = TABLE[self.state].get(event)
        if state is None:
            raise self._corrupt("grammar", f"{event} cannot follow in state {self.state!r}")
        self.state = state

    def _corrupt(self, code: CorruptCode, detail: str) -> CorruptStream:
        return CorruptStream(code, cursor=self.cursor, detail=detail)

    def _fault(self, exc: RemoteProtocolError) -> None:
        if isinstance(exc, WireError) and not isinstance(exc, FrameTooLarge):
            exc = self._corrupt("grammar", str(exc))
        self._error = exc
        self.verdict = _VERDICTS.get(type(exc), Verdict.CORRUPT)


def _ascii(text: bytes) -> str:
    return text.decode("ascii", "replace")


_VERDICTS = {
    TruncatedStream: Verdict.TRUNCATED,
    StreamGap: Verdict.GAP,
    FailedStream: Verdict.FAILED,
}
