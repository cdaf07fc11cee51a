"""The bytes of one answer, without I/O: pieces of it in, tokens and signs of life out, and what its end proves.

    body = open_body(headers, profile="openai")       # None where the answer is no stream
    news = body.feed(piece)                           # what came with it
    end = body.end(clean=True)                        # what is known of its end

Which API it is follows from its head and its first events: chat and completions, Responses, Messages, the AI SDK's UI
stream, AG-UI, streamguard's own form, and else server-sent events, lines of JSON or text. The rules of an end are those
of the dialects' readers. Where the stream is guarded it is verified too, whatever it was asked with.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final

import attrs

from streamguard.client.head import known_dialect
from streamguard.core.dialect import AgUi, Dialect, Ui
from streamguard.core.dialect.base import DialectReader, Reading
from streamguard.core.dialect.blocks import as_error
from streamguard.core.dialect.provider import PROFILES, ProviderStream
from streamguard.core.errors import Failure, FrameTooLarge
from streamguard.core.jsontext import object_in
from streamguard.core.negotiate import Answer as Promise
from streamguard.core.negotiate import parse_answer
from streamguard.core.receipt import Receipt, Verdict
from streamguard.core.verify import StreamVerifier
from streamguard.core.wire import SseDecoder, wire_for_content_type

__all__ = ["End", "News", "StreamBody", "open_body"]

_NAMES: Final = {
    "chat": "OpenAI chat completions",
    "completions": "OpenAI completions",
    "responses": "OpenAI Responses",
    "anthropic": "Anthropic Messages",
    "ui": "AI SDK UI message stream",
    "ag-ui": "AG-UI",
    "native": "streamguard",
}
_UI_FIRST: Final = frozenset({"start", "start-step", "text-start", "text-delta", "reasoning-start", "tool-input-start"})
_AG_UI_FIRST: Final = ("RUN_", "TEXT_MESSAGE_", "STEP_", "TOOL_CALL_", "REASONING_", "STATE_", "MESSAGES_", "ACTIVITY_")
# How streams of nobody's API say that they are over: the event's name, its JSON's `type`, or a member that is true.
_LAST: Final = frozenset({"done", "end", "complete", "completed", "finish", "finished", "stop", "close"})
_TEXTS: Final = ("response", "text", "token", "content", "delta", "output")
_WORDS: Final = re.compile(r"\S+\s*|\s+")
_MAX_LINE: Final = 16 * 1024 * 1024


@attrs.define
class News:
    """What a piece brought: `texts` has an entry for each event, empty where it has none; `beats` are signs of life."""

    texts: list[str] = attrs.field(factory=list)
    beats: int = 0


@attrs.frozen
class End:
    """What is known of a stream's end by its own rules.

    `known`: whether its API has an end marker at all; `marker`: whether it came; `unproven`: why the marker proves
    nothing; `finished`: whether every choice has its finish reason; `error`: what the stream reported; `torn`: whether
    its bytes ended inside an event. `receipt` and `fault` are of a guarded stream.
    """

    api: str
    known: bool = True
    marker: bool = False
    unproven: str = ""
    finished: bool = False
    error: Failure | None = None
    torn: bool = False
    receipt: Receipt | None = None
    fault: str = ""

    @property
    def whole(self) -> bool:
        """Whether the end is proven, as far as this stream can prove any."""
        if self.receipt is not None:
            return self.receipt.verdict in (Verdict.COMPLETE, Verdict.UNVERIFIED)
        return self.marker and self.error is None and not self.unproven


class StreamBody(ABC):
    """One body. `api` says what it is, as far as it is known."""

    def __init__(self, wire: str, promise: Promise | None) -> None:
        self.api = "unknown"
        dialect = None if promise is None else known_dialect(promise.dialect)
        self.dialect = dialect
        self._verifier: StreamVerifier | None = None
        if promise is not None or wire == "sse":
            zero = None if promise is None else promise.cursor
            self._verifier = StreamVerifier(wire=wire, dialect=dialect, zero=zero)

    def feed(self, data: bytes) -> News:
        if self._verifier is not None and self._verifier.verdict is None:
            self._verifier.feed(data)
        return self._feed(data)

    def end(self, clean: bool) -> End:
        """No more bytes; `clean`: whether the connection's own framing said so."""
        end = self._end()
        verifier = self._verifier
        if verifier is None:
            return end
        verifier.end(clean=clean)
        if verifier.cursor is None:
            return end
        error = verifier.error()
        return attrs.evolve(end, receipt=verifier.receipt, fault="" if error is None else str(error))

    @property
    def guarded(self) -> bool:
        """Whether a cursor, or the promise of one, was seen."""
        return self._verifier is not None and self._verifier.cursor is not None

    @abstractmethod
    def _feed(self, data: bytes) -> News: ...

    @abstractmethod
    def _end(self) -> End: ...


class _Events(StreamBody):
    """Server-sent events."""

    def __init__(self, headers: Mapping[str, str], promise: Promise | None, profile: str) -> None:
        super().__init__("sse", promise)
        self._decoder = SseDecoder(on_comment=self._comment)
        self._news = News()
        self._provider = ProviderStream(profile)
        self._reader: DialectReader | None = None  # of a stream that is no provider's
        self._lasting = False  # the last event is one that ends streams of nobody's API
        self._error: Failure | None = None
        self._known = False
        if self.dialect is not None and self.dialect.name in ("ui", "ag-ui", "native"):
            self._is(self.dialect)
        elif headers.get("x-vercel-ai-ui-message-stream"):
            self._is(Ui())

    def _is(self, dialect: Dialect) -> None:
        self._known = True
        self.api = _NAMES[dialect.name]
        self._reader = dialect.reader()

    def _feed(self, data: bytes) -> News:
        news = self._news = News()
        try:
            for event in self._decoder.feed(data):
                if event.data:
                    news.texts.append(self._read(None if event.event == "message" else event.event, event.data))
                else:
                    news.beats += 1
        except FrameTooLarge as exc:
            self._error = Failure("too_large", str(exc))
        return news

    def _comment(self, text: str) -> None:
        word = text.strip().partition(" ")[0]
        self._news.beats += word not in ("sg", "end", "streamguard", "bye")

    def _read(self, name: str | None, data: str) -> str:
        try:
            return self._take(name, data)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
            self._error = self._error or Failure("format", f"an event is not of its API's form: {exc}")
            return ""

    def _take(self, name: str | None, data: str) -> str:
        if self._native(name):
            return self._of_native(name, data)
        if not self._known:
            self._recognise(data)
        if self._reader is not None:
            return _text_of(self._reader.read(name, data))
        _, reading = self._provider.observe(name, data)
        if self._provider.api is not None:
            self._known = True
            self.api = _NAMES[self._provider.api]
            return reading.text
        self.api = "server-sent events"
        payload = object_in(data)
        self._lasting = name in _LAST or (payload is not None and _says_end(payload))
        if self._provider.ended or self._provider.error is not None or self._lasting:
            return ""
        return data if payload is None else _some_text(payload)

    def _native(self, name: str | None) -> bool:
        return self.dialect is not None and self.dialect.name == "native"

    def _of_native(self, name: str | None, data: str) -> str:
        if name in ("open", "bye", "ping"):
            self._news.beats += name == "ping"
            return ""
        return _text_of(self._reader.read(name, data)) if self._reader is not None else ""

    def _recognise(self, data: str) -> None:
        kind = (object_in(data) or {}).get("type")
        if isinstance(kind, str) and kind.startswith(_AG_UI_FIRST):
            self._is(AgUi())
        elif kind in _UI_FIRST:
            self._is(Ui())

    def _end(self) -> End:
        torn = self._decoder.unfinished
        if self._reader is not None:
            judged, marker = self._reader.judge(), self._reader.proof(True) is not None
            error = self._error or self._reader.error
            unproven = judged.message if marker and judged is not None and error is None else ""
            finished = bool(self._reader.reasons)
            return End(self.api, marker=marker, unproven=unproven, finished=finished, error=error, torn=torn)
        provider = self._provider
        error, marker = self._error or provider.error, provider.has_end()
        if provider.api is None:
            marker = marker or self._lasting
            return End(self.api, known=marker, marker=marker, error=error, torn=torn)
        judged = provider.judge()
        if judged is not None and judged.code == "generation_aborted":
            error = error or judged
        unproven = judged.message if marker and judged is not None and error is None else ""
        finished = bool(provider.reasons) and provider.begun <= provider.reasons.keys()
        if marker and not unproven and error is None and not finished and provider.begun:
            unproven = "a choice that began has no finish reason"
        return End(self.api, marker=marker, unproven=unproven, finished=finished, error=error, torn=torn)


class _Lines(StreamBody):
    """Lines of JSON: Ollama's own API, streamguard's carrier, or anybody's."""

    def __init__(self, promise: Promise | None) -> None:
        super().__init__("ndjson", promise)
        self.api = "lines of JSON"
        self._parts: list[bytes] = []
        self._size = 0
        self._last: Mapping[str, Any] = {}
        self._error: Failure | None = None
        self._done = False
        self._overrun = False

    def _feed(self, data: bytes) -> News:
        news = News()
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = b"".join([*self._parts, lines[0]])
            self._parts, self._size = [], 0
        if rest and self._size <= _MAX_LINE:
            self._parts.append(rest)
            self._size += len(rest)
        for line in lines:
            if not line.strip():
                news.beats += 1
            elif (payload := object_in(line.decode("utf-8", "replace"))) is not None:
                self._line(payload, news)
            else:
                news.texts.append("")
        return news

    def _line(self, payload: Mapping[str, Any], news: News) -> None:
        if "hb" in payload:
            news.beats += 1
            return
        self._overrun = self._overrun or self._done
        if (error := as_error(payload.get("error"))) is not None:
            self._error = self._error or Failure("upstream_error", str(error))
        self._done = self._done or _says_end(payload)
        news.texts.append(_some_text(payload))

    def _end(self) -> End:
        torn = bool(self._parts)
        unproven = "lines followed the last one" if self._overrun else ""
        return End(self.api, known=self._done, marker=self._done, unproven=unproven, error=self._error, torn=torn)


class _Text(StreamBody):
    """Text, or our records: nothing in the bytes that this module reads says where it ends."""

    def __init__(self, wire: str, promise: Promise | None) -> None:
        super().__init__(wire, promise)
        self.api = "text" if wire == "plain" else "streamguard, binary"

    def _feed(self, data: bytes) -> News:
        text = data.decode("utf-8", "replace")
        if self.api != "text":
            return News([text])
        # Nothing in it tells its tokens apart. Taken for one, a whole answer that a layer held back would show nothing.
        return News(_WORDS.findall(text))

    def _end(self) -> End:
        return End(self.api, known=False)


def open_body(headers: Mapping[str, str], profile: str = "openai") -> StreamBody | None:
    """The reader of the body that follows these headers, whose names are in lower case; None where no stream does."""
    assert profile in PROFILES
    wire = wire_for_content_type(headers.get("content-type", ""))
    promise = parse_answer(headers.get("streamguard"))
    if wire is None:
        return _Lines(promise) if "ndjson" in headers.get("content-type", "") else None
    if promise is not None and (promise.wire != wire.name or (promise.dialect == "text") != (wire.name == "plain")):
        promise = None  # not its own, or one that nobody can keep
    if wire.name == "sse":
        return _Events(headers, promise, profile)
    if wire.name == "ndjson":
        return _Lines(promise)
    return _Text(wire.name, promise)


def _says_end(payload: Mapping[str, Any]) -> bool:
    return payload.get("type") in _LAST or any(payload.get(name) is True for name in _LAST)


def _some_text(payload: Mapping[str, Any]) -> str:
    """The text of an event of nobody's API, where it has one of the usual names."""
    message = payload.get("message")
    for holder in (payload, message if isinstance(message, dict) else {}):
        for name in _TEXTS:
            if isinstance(value := holder.get(name), str):
                return value
    return ""


def _text_of(read: str | Reading | None) -> str:
    return read if isinstance(read, str) else "" if read is None else read.text
