"""What the type checkers must know about the core. Checked by mypy and pyright, never run."""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from typing_extensions import assert_type

from streamguard.core.cursor import Cursor
from streamguard.core.dialect import Native
from streamguard.core.flush import EveryTokens, FlushPolicy, HoldBack, Within, any_of
from streamguard.core.frame import Frame
from streamguard.core.framing import FramedEncoder
from streamguard.core.guard import CompletionGuard
from streamguard.core.items import Block, Finish
from streamguard.core.pipeline import FrameStage, Pipeline
from streamguard.core.receipt import AnswerFrame, Receipt, Verdict
from streamguard.core.verify import StreamVerifier
from streamguard.core.wire import Sse, SseDecoder, SseEvent


class OwnPolicy:
    """A user's policy needs no base class."""

    def push(self, piece: str, held: int, now: float) -> int:
        return held

    def tick(self, held: int, now: float) -> int:
        return held

    def deadline(self) -> float | None:
        return None


def policies() -> list[FlushPolicy]:
    return [OwnPolicy(), EveryTokens(8), HoldBack(stop=["END"]), any_of(EveryTokens(8), Within(0.04))]


def writing() -> None:
    pipeline = Pipeline(OwnPolicy(), FramedEncoder(Native()), CompletionGuard(Sse()))
    assert_type(pipeline.open(), bytes)
    assert_type(pipeline.push("text", 0.0), bytes)
    assert_type(pipeline.push(b"text", 0.0), bytes)
    assert_type(pipeline.push(Block("image", {"url": "…"}), 0.0), bytes)
    assert_type(pipeline.push({"choices": []}, 0.0), bytes)
    assert_type(pipeline.push(Finish("stop"), 0.0), bytes)
    assert_type(pipeline.finish(0.0), bytes)
    assert_type(pipeline.deadline(), float | None)
    assert_type(pipeline.cursor, Cursor)
    assert_type(FrameStage(OwnPolicy(), FramedEncoder(Native())).push("text", 0.0), list[Frame])


def reading(data: bytes) -> None:
    verifier = StreamVerifier(wire="sse")
    assert_type(verifier.feed(data), list[AnswerFrame])
    assert_type(verifier.end(), list[AnswerFrame])
    assert_type(verifier.verdict, Verdict | None)
    assert_type(verifier.receipt, Receipt)
    assert_type(SseDecoder().feed(data), list[SseEvent])


def mistakes(pipeline: Pipeline) -> None:
    pipeline.push(7, 0.0)  # type: ignore[arg-type]
    pipeline.push("text")  # type: ignore[call-arg]
    EveryTokens("8")  # type: ignore[arg-type]
    StreamVerifier(wire=7)  # type: ignore[arg-type]
