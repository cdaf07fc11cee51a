"""A server and a client as one thing with two verbs, ours and the naive one.

`write` makes an answer's chunks from what a source yields (an exception among the items is raised there),
`read` says what a client has after these chunks and a clean end of bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import attrs
import pytest

from streamguard.core.dialect import Dialect, Native
from streamguard.core.errors import RemoteProtocolError, failure_from
from streamguard.core.flush import EveryTokens, FlushPolicy, HoldBack, Immediate
from streamguard.core.framing import FramedEncoder
from streamguard.core.guard import CompletionGuard
from streamguard.core.items import Block
from streamguard.core.pipeline import Pipeline
from streamguard.core.receipt import Receipt, Verdict
from streamguard.core.verify import StreamVerifier
from streamguard.core.wire import Sse, Wire
from tests.naive import client, server

__all__ = ["Naive", "Ours", "Reading", "Stack", "both", "chat_chunk", "cuts", "pipeline", "read", "rechunked", "write"]

SID = "AAAAAAAAAAAAAAAAAAAAAA"


@attrs.frozen
class Reading:
    """What a client has at the end. `parts` are the texts and blocks in order, as they came."""

    text: str
    complete: bool
    parts: Sequence[object] = ()
    receipt: Receipt | None = None
    error: RemoteProtocolError | None = None

    @property
    def verdict(self) -> Verdict:
        assert self.receipt is not None
        return self.receipt.verdict


class Stack(Protocol):
    def write(self, items: Iterable[Any], *, batch: int = 1, hold: str = "") -> list[bytes]: ...

    def read(self, chunks: Iterable[bytes]) -> Reading: ...


def pipeline(policy: FlushPolicy | None = None, dialect: Dialect | None = None, wire: Wire | None = None) -> Pipeline:
    encoder = FramedEncoder(dialect or Native(), sid=SID)
    return Pipeline(policy or Immediate(), encoder, CompletionGuard(wire or Sse()))


def write(
    items: Iterable[Any], policy: FlushPolicy | None = None, dialect: Dialect | None = None, wire: Wire | None = None
) -> list[bytes]:
    """What the driver hands to the transport, call by call, for a source that yields `items`."""
    pipe = pipeline(policy, dialect, wire)
    chunks = [pipe.open()]
    try:
        for item in items:
            if isinstance(item, BaseException):
                raise item
            chunks.append(pipe.push(item, 0.0))
    except Exception as exc:
        chunks.append(pipe.fail(failure_from(exc), 0.0))
    else:
        chunks.append(pipe.finish(0.0))
    return [chunk for chunk in chunks if chunk]


def read(chunks: Iterable[bytes], *, clean: bool = True, **options: Any) -> Reading:
    """What our reader has after `chunks`; `options` are the verifier's. Only SSE says by itself that it is `native`."""
    if "wire" in options:
        options.setdefault("dialect", "native")
    verifier = StreamVerifier(**options)
    frames = [frame for chunk in chunks for frame in verifier.feed(chunk)]
    frames += verifier.end(clean=clean)
    text = "".join(frame.text for frame in frames)
    parts = [frame.text or frame.item for frame in frames]
    good = verifier.verdict in (Verdict.COMPLETE, Verdict.UNVERIFIED)
    return Reading(text, good, parts, verifier.receipt, verifier.error(text))


class Ours:
    """The stages of the core, dialect `native`."""

    def write(self, items: Iterable[Any], *, batch: int = 1, hold: str = "") -> list[bytes]:
        policy = EveryTokens(batch, first="policy")
        return write(items, HoldBack([hold], flush=policy) if hold else policy)

    def read(self, chunks: Iterable[bytes]) -> Reading:
        return read(chunks)


class Naive:
    """`tests/naive`."""

    def write(self, items: Iterable[Any], *, batch: int = 1, hold: str = "") -> list[bytes]:
        return list(server.serve(server.hold_back(items, hold) if hold else items, batch=batch))

    def read(self, chunks: Iterable[bytes]) -> Reading:
        chunks = list(chunks)
        answer = client.read(chunks)
        parts = [
            Block(data) if data.startswith("{") else data for data in client.events(chunks) if data != "[DONE]"
        ]
        return Reading(answer.text, answer.complete, parts)


_OURS = pytest.param(Ours(), id="ours")


def both(*, naive_fails: bool = True) -> pytest.MarkDecorator:
    """Run a test on both stacks. `naive_fails=False` needs a reason in the test's docstring."""
    marks = pytest.mark.xfail(strict=True, raises=AssertionError) if naive_fails else ()
    return pytest.mark.parametrize("stack", [_OURS, pytest.param(Naive(), id="naive", marks=marks)])


def cuts(body: bytes) -> list[list[bytes]]:
    """`body` in two pieces, cut at every byte, and byte by byte."""
    whole = [[body[:at], body[at:]] for at in range(len(body) + 1)]
    return [*whole, [body[at : at + 1] for at in range(len(body))]]


def rechunked(body: bytes, sizes: Iterable[int]) -> list[bytes]:
    """`body` in pieces of these sizes, the rest in one."""
    pieces = []
    at = 0
    for size in sizes:
        pieces.append(body[at : at + size])
        at += size
    return [*pieces, body[at:]]


def chat_chunk(text: str | None = None, *, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    """One chat.completion.chunk, as a provider sends it."""
    fields = ({} if text is None else {"content": text}) | delta
    choice = {"index": 0, "delta": fields, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [choice]}
