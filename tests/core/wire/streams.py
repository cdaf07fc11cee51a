"""Streams for the tests of carriers, dialects and verifier: how one is written, cut, and read again.

A `Form` is one way in which the same answer can travel: a dialect in a carrier. What holds for every
stream is tested over `FORMS`, so that a new carrier or dialect is one more row here.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs

from streamguard.core.dialect import Dialect, Native, OpenAI, Raw
from streamguard.core.errors import Failure, RemoteProtocolError
from streamguard.core.flush import FlushPolicy, Immediate
from streamguard.core.framing import FramedEncoder
from streamguard.core.guard import CompletionGuard
from streamguard.core.items import Block, Finish, Item
from streamguard.core.pipeline import FrameStage, Pipeline
from streamguard.core.receipt import AnswerFrame, Receipt, Verdict
from streamguard.core.verify import StreamVerifier
from streamguard.core.wire import Binary, Ndjson, Sse, Wire

__all__ = [
    "FAILURE",
    "FORMS",
    "OTHER_SID",
    "SID",
    "Answer",
    "Form",
    "chat_events",
    "chunkings",
    "read",
    "written",
]

SID = "AAECAwQFBgcICQoLDA0ODw"
OTHER_SID = "EBESExQVFhcYGRobHB0eHw"
FAILURE = Failure("source_error", "RuntimeError", retryable=True)


def written(
    items: Iterable[Item],
    dialect: Dialect,
    wire: Wire,
    *,
    fail: Failure | None = None,
    status: str = "failed",
    flush: FlushPolicy | None = None,
    sid: str = SID,
    negotiated: bool = False,
) -> list[bytes]:
    """A stream as its server writes it: the opening, what each item released, the ending."""
    encoder = FramedEncoder(dialect, sid=sid, negotiated=negotiated)
    pipeline = Pipeline(flush or Immediate(), encoder, CompletionGuard(wire))
    parts = [pipeline.open()]
    parts += [pipeline.push(item, 0.0) for item in items]
    parts.append(pipeline.finish(0.0) if fail is None else pipeline.fail(fail, 0.0, status))
    return parts


@attrs.frozen
class Answer:
    """What a reader was given."""

    frames: list[AnswerFrame]
    receipt: Receipt
    error: RemoteProtocolError | None

    @property
    def verdict(self) -> Verdict:
        return self.receipt.verdict

    @property
    def code(self) -> str | None:
        return self.receipt.code

    @property
    def text(self) -> str:
        return "".join([frame.text for frame in self.frames])

    @property
    def texts(self) -> dict[int, str]:
        """The text of every choice that has any."""
        texts: dict[int, str] = {}
        for frame in self.frames:
            for choice, text in (frame.texts if frame.texts is not None else {0: frame.text}).items():
                texts[choice] = texts.get(choice, "") + text
        return {choice: text for choice, text in texts.items() if text}

    @property
    def blocks(self) -> list[Block]:
        """Every block, in order."""
        return [block for frame in self.frames for block in frame.blocks]

    @property
    def content(self) -> tuple[Any, ...]:
        """All that a reader was handed that could differ."""
        frames = [(frame.name, frame.raw, frame.text, frame.item, frame.texts) for frame in self.frames]
        return frames, self.receipt.finish_reason, self.receipt.usage


def read(chunks: bytes | Iterable[bytes], *, clean: bool = True, **options: Any) -> Answer:
    """Read a stream to its end with a StreamVerifier of these options."""
    verifier = StreamVerifier(**options)
    frames: list[AnswerFrame] = []
    for chunk in [chunks] if isinstance(chunks, bytes) else chunks:
        frames += verifier.feed(chunk)
    frames += verifier.end(clean=clean)
    return Answer(frames, verifier.receipt, verifier.error("".join([frame.text for frame in frames])))


def chunkings(data: bytes, seed: int = 0) -> Iterator[list[bytes]]:
    """`data` whole, byte by byte, with empty chunks in it, and cut at random."""
    yield [data]
    yield [data[at : at + 1] for at in range(len(data))]
    yield [b"", data[: len(data) // 2], b"", data[len(data) // 2 :], b""]
    rng = random.Random(seed)
    for largest in (3, 40, 700):
        chunks = []
        at = 0
        while at < len(data):
            size = rng.randint(1, largest)
            chunks.append(data[at : at + size])
            at += size
        yield chunks


def chat_events(pieces: Sequence[str] = ("He", "llo"), *, reason: str | None = "stop", done: bool = True) -> bytes:
    """A chat.completions stream as a provider serialises it."""
    chunks = [f'{{"id":"c","choices":[{{"index":0,"delta":{{"content":"{text}"}}}}]}}' for text in pieces]
    if reason is not None:
        chunks.append(
            f'{{"id":"c","choices":[{{"index":0,"delta":{{}},"finish_reason":"{reason}"}}],"usage":{{"n":2}}}}'
        )
    if done:
        chunks.append("[DONE]")
    return "".join([f"data: {chunk}\n\n" for chunk in chunks]).encode()


@attrs.frozen
class Form:
    """One way in which an answer travels. `reader` is the dialect that its reader names."""

    name: str
    dialect: Dialect
    wire: Wire
    items: Sequence[Item]
    reader: str | Dialect | None
    negotiated: bool = False
    text: str = "Hé\nllo"

    def parts(self, **options: Any) -> list[bytes]:
        return written(self.items, self.dialect, self.wire, negotiated=self.negotiated, **options)

    def bytes(self, **options: Any) -> bytes:
        return b"".join(self.parts(**options))

    def blocks(self) -> list[bytes]:
        """The opening, then every frame by itself; the last one is the terminal."""
        stage = FrameStage(Immediate(), FramedEncoder(self.dialect, sid=SID, negotiated=self.negotiated))
        frames = [frame for item in self.items for frame in stage.push(item, 0.0)] + stage.finish(0.0)
        encoder = self.wire.encoder(stage.encoder.zero, own_ids=self.dialect.own_ids)
        return [encoder.opening(), *[encoder.frame(frame) for frame in frames]]

    def read(self, chunks: bytes | Iterable[bytes], **options: Any) -> Answer:
        return read(chunks, **{"wire": self.wire, "dialect": self.reader, **options})


_TEXT: Sequence[Item] = ("Hé", "\nllo", Finish("length", {"n": 2}))
_NATIVE: Sequence[Item] = ("Hé", Block("note", {"k": 1}), "\nllo", Finish("length", {"n": 2}))
_CHAT = OpenAI(model="m", id="c", created=1, include_usage=True)
_EVENTS: Sequence[Item] = (chat_events(("Hé", "\\nllo")),)
# An application's own events: an id, a name, two lines of data, cut in the middle of an event.
_APP: Sequence[Item] = (
    b'id: own\nevent: t\ndata: {"type":"content_block_delta",\n',
    b'data: "delta":{"type":"text_delta","text":"H\xc3\xa9\\nllo"}}\n\n',
)

FORMS: Sequence[Form] = (
    Form("native-sse", Native(), Sse(), _NATIVE, None),
    Form("native-sse-named", Native(), Sse(), _NATIVE, "native"),
    Form("native-ping", Native(), Sse(heartbeat="ping"), _NATIVE, "native"),
    Form("native-ndjson", Native(), Ndjson(), _NATIVE, "native"),
    Form("native-binary", Native(), Binary(), _NATIVE, "native"),
    Form("openai-comment", _CHAT, Sse(), _TEXT, "openai"),
    Form("openai-id", _CHAT, Sse(ids="id"), _TEXT, "openai"),
    Form("openai-ndjson", _CHAT, Ndjson(), _TEXT, "openai"),
    Form("openai-binary", _CHAT, Binary(), _TEXT, "openai"),
    Form("raw-sse", Raw(), Sse(), _EVENTS, "raw"),
    Form("raw-id", Raw(), Sse(ids="id"), _EVENTS, "raw"),
    Form("raw-ndjson", Raw(), Ndjson(), _EVENTS, "raw"),
    Form("raw-binary", Raw(), Binary(), _EVENTS, "raw"),
    Form("raw-asgi", Raw(end="asgi"), Sse(), _APP, Raw(end="asgi")),
    Form("raw-asgi-negotiated", Raw(end="asgi"), Sse(ids="id"), _APP, Raw(end="asgi"), negotiated=True),
)
