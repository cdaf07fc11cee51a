"""One answer as it came, with the time of each part. Sans-I/O: every call has `now`, in seconds of one clock."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from io import StringIO
from itertools import pairwise
from statistics import median
from typing import Final

import attrs

from streamguard.check.body import End, StreamBody, open_body
from streamguard.client.body import Body, coding_of, may_be_read
from streamguard.core.negotiate import parse_answer

__all__ = ["BUCKETS", "TOGETHER", "Observation", "histogram"]

TOGETHER: Final = 0.001  # seconds: what comes closer than this came together. A model takes longer for a token.
BUCKETS: Final = (0.001, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)  # upper bounds of a histogram's rows but the last
_MAX_TEXT: Final = 1 << 20
_MAX_SAID: Final = 2000
_EVENTS: Final = (b"data:", b"event:", b"id:", b":")
_OK: Final = range(200, 204)
_NGINX: Final = ("nginx", "openresty")


@attrs.define(eq=False)
class Observation:
    """Times are seconds from `began`, when the request began to leave; None where there was no such moment."""

    began: float
    profile: str = "openai"
    status: int | None = None
    version: str = ""
    headers: Mapping[str, str] = attrs.field(factory=dict)
    """By their names in lower case."""
    head: float | None = None
    first_byte: float | None = None
    last_byte: float | None = None
    ended: float | None = None
    clean: bool = False
    """Whether the body ended as its framing says that bodies end."""
    why: str = ""
    """What broke it off."""
    left: bool = False
    """This side went, by its own will or its own limit of time."""
    silent: bool = False
    """Nothing more came, with the connection open, for as long as was waited."""
    arrivals: list[float] = attrs.field(factory=list)
    """When each event with text came; each event, where none has any."""
    beats: list[float] = attrs.field(factory=list)
    size: int = 0
    """Bytes of the body as they came."""
    refusal: str = ""
    """Why the answer is no stream."""
    said: bytes = b""
    """The beginning of an answer that is no stream."""
    mislabelled: bool = False
    """Events whose content type says that they are text."""
    end: End | None = None
    _body: StreamBody | None = None
    _coded: Body = attrs.field(factory=Body)
    _text: StringIO = attrs.field(factory=StringIO)
    _bare: list[float] = attrs.field(factory=list)  # events without text

    def opened(self, now: float, status: int, version: str, headers: Mapping[str, str], asked: str) -> None:
        """The head came. `asked` are the codings that the request allows."""
        self.head = now - self.began
        self.status, self.version, self.headers = status, version, headers
        coding = self.coding
        self._coded = Body(coding)
        if status not in _OK:
            self.refusal = f"the answer's status is {status}"
        elif not may_be_read(coding, asked) or not self._coded.own:
            self.refusal = f"the body is encoded as {coding!r}, which cannot be read here"
        else:
            self._body = open_body(headers, self.profile)
            if self._body is None:
                kind = headers.get("content-type", "")
                self.refusal = f"its content type is {kind!r}, that of no stream" if kind else "it has no content type"

    def fed(self, now: float, data: bytes) -> None:
        """Bytes of the body."""
        at = now - self.began
        self.first_byte = at if self.first_byte is None else self.first_byte
        self.last_byte = at
        self.size += len(data)
        if self._body is None:
            self.said = (self.said + data)[:_MAX_SAID]
            return
        self._coded.put(data)
        try:
            while (piece := self._coded.take()) is not None:
                self._took(at, piece)
        except zlib.error as exc:
            self.why = self.why or f"the compressed body is damaged ({exc})"

    def _took(self, at: float, piece: bytes) -> None:
        assert self._body is not None
        if self.content_type == "text/plain" and not self.arrivals and piece.startswith(_EVENTS):
            self.mislabelled = True
            self._body = open_body({**self.headers, "content-type": "text/event-stream"}, self.profile)
            assert self._body is not None
        news = self._body.feed(piece)
        for text in news.texts:
            (self.arrivals if text else self._bare).append(at)
            if text and self._text.tell() < _MAX_TEXT:
                self._text.write(text)
        self.beats.extend([at] * news.beats)

    def over(self, now: float, *, clean: bool, why: str = "", silent: bool = False, left: bool = False) -> None:
        """Nothing more comes."""
        self.ended = now - self.began
        self.silent, self.left = silent, left
        self.clean = clean and self._coded.whole and not self.why
        self.why = self.why or why or ("" if self._coded.whole else "the compressed body stops before its own end")
        self.arrivals = self.arrivals or self._bare
        if self._body is not None:
            self.end = self._body.end(self.clean and self.framed)

    # ---- what follows from it -------------------------------------------------------------------

    @property
    def coding(self) -> str:
        return coding_of(self.headers.get("content-encoding", ""))

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def streamed(self) -> bool:
        """Whether the answer is a stream."""
        return self._body is not None

    @property
    def api(self) -> str:
        return "" if self._body is None else self._body.api

    @property
    def guarded(self) -> bool:
        return self._body is not None and self._body.guarded

    @property
    def resume(self) -> str | None:
        """The address of the stream's own endpoints, where it names one."""
        promise = parse_answer(self.headers.get("streamguard"))
        return None if promise is None else promise.resume

    @property
    def http10(self) -> bool:
        """Whether the server says that it was asked by HTTP/1.0: by a hop in between, for nobody does so here."""
        promise = parse_answer(self.headers.get("streamguard"))
        return promise is not None and promise.http10

    @property
    def nginx(self) -> bool:
        """Whether the answer's head names nginx, or what is made of it, among those that it came by."""
        named = " ".join(self.headers.get(name, "") for name in ("server", "via")).lower()
        return any(name in named for name in _NGINX)

    @property
    def sid(self) -> str | None:
        promise = parse_answer(self.headers.get("streamguard"))
        return None if promise is None else promise.cursor.sid

    @property
    def framed(self) -> bool:
        """Whether the body's end is more than the end of its connection, which proves nothing."""
        if not self.version.startswith("HTTP/1"):
            return True
        return "content-length" in self.headers or "chunked" in self.headers.get("transfer-encoding", "").lower()

    @property
    def text(self) -> str:
        return self._text.getvalue()

    @property
    def first_token(self) -> float | None:
        return self.arrivals[0] if self.arrivals else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between one token and the next."""
        return [b - a for a, b in pairwise(self.arrivals)]

    @property
    def bursts(self) -> list[int]:
        """How many tokens came together, for each time that any came."""
        counts: list[int] = []
        last = None
        for at in self.arrivals:
            if last is None or at - last > TOGETHER:
                counts.append(0)
            counts[-1] += 1
            last = at
        return counts

    @property
    def tail_silence(self) -> float:
        """Seconds of nothing before the end."""
        if self.ended is None:
            return 0.0
        return self.ended - (self.last_byte if self.last_byte is not None else self.head or 0.0)

    @property
    def longest_silence(self) -> float:
        """Seconds without a byte that means anything, from the head to the last of them."""
        moments = sorted([self.head or 0.0, *self.arrivals, *self._bare, *self.beats])
        return max([b - a for a, b in pairwise(moments)], default=0.0)

    @property
    def usual_gap(self) -> float:
        """The median of the gaps."""
        gaps = self.gaps
        return median(gaps) if gaps else 0.0


def histogram(gaps: Sequence[float]) -> list[int]:
    """How many gaps fall below each of `BUCKETS` and above the one before; the last are above all."""
    counts = [0] * (len(BUCKETS) + 1)
    for gap in gaps:
        counts[next((index for index, bound in enumerate(BUCKETS) if gap <= bound), len(BUCKETS))] += 1
    return counts
