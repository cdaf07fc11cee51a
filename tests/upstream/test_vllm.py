"""What vLLM's engine yields, as a source; the fakes have the fields of `RequestOutput` and `CompletionOutput`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from enum import Enum
from typing import Any

import attrs
import pytest

from streamguard.core.errors import SourceFailed, UnsupportedItem
from streamguard.core.items import Finish
from streamguard.upstream.vllm import vllm_outputs

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio"], scope="module")
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """One loop: nothing here waits for any."""
    return request.param


class OutputKind(Enum):
    """vLLM's RequestOutputKind."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


@attrs.define
class Completion:
    text: str
    token_ids: Sequence[int]
    finish_reason: str | None = None
    index: int = 0


@attrs.define
class Output:
    outputs: list[Completion]
    finished: bool = False
    prompt_token_ids: list[int] | None = attrs.field(factory=lambda: [1, 2, 3])


class Engine:
    """One request of an engine's; `aborted` once its generator was closed before its end."""

    def __init__(self, *outputs: Output, dies: bool = False) -> None:
        self._outputs = outputs
        self._dies = dies
        self.aborted = False

    async def generate(self) -> AsyncIterator[Output]:
        try:
            for output in self._outputs:
                yield output
            if self._dies:
                raise RuntimeError("EngineDeadError")
        except GeneratorExit:
            self.aborted = True
            raise


def cumulative(*texts: str, reason: str | None = "stop") -> list[Output]:
    outputs = [Output([Completion(text, range(at + 1))]) for at, text in enumerate(texts)]
    outputs[-1].finished = True
    outputs[-1].outputs[0].finish_reason = reason
    return outputs


def delta(*texts: str, reason: str = "stop") -> list[Output]:
    outputs = [Output([Completion(text, [at])]) for at, text in enumerate(texts)]
    outputs[-1] = Output([Completion(texts[-1], [9], reason)], True, None)
    return outputs


async def items(engine: Engine, kind: Any = "cumulative") -> list[Any]:
    return [item async for item in vllm_outputs(engine.generate(), kind)]


@pytest.mark.parametrize("kind", ["cumulative", OutputKind.CUMULATIVE])
async def test_cumulative_text_is_handed_out_once(kind: Any) -> None:
    engine = Engine(*cumulative("He", "Hello", "Hello", "Hello!", reason="length"))
    assert await items(engine, kind) == [
        "He", "llo", "!", Finish("length", {"prompt_tokens": 3, "completion_tokens": 4}),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["delta", OutputKind.DELTA])
async def test_deltas_are_handed_out_as_they_are(kind: Any) -> None:
    finish = Finish("stop", {"prompt_tokens": 3, "completion_tokens": 3})
    assert await items(Engine(*delta("a", "", "a")), kind) == ["a", "a", finish]


async def test_a_final_output_alone_is_the_whole() -> None:
    assert (await items(Engine(*cumulative("Hello")), OutputKind.FINAL_ONLY))[0] == "Hello"


@pytest.mark.parametrize(
    ("outputs", "code"),
    [
        (cumulative("a", "ab", "abc")[:2], "upstream_truncated"),
        (cumulative("a", "ab", reason="abort"), "generation_aborted"),
        (cumulative("a", "ab", reason="error"), "generation_aborted"),
        (cumulative("a", "ab", reason=None), "unproven_end"),
        ([*cumulative("a", "ab")[:1], Output([], finished=True)], "unproven_end"),
        (cumulative("a", "b"), "upstream_format"),
    ],
    ids=["cut", "abort", "error", "no reason", "nothing", "deltas taken for all text"],
)
async def test_whatever_is_no_proven_end_is_a_failure(outputs: list[Output], code: str) -> None:
    with pytest.raises(SourceFailed) as raised:
        await items(Engine(*outputs))
    assert raised.value.failure.code == code


async def test_an_engine_that_dies_raises() -> None:
    with pytest.raises(RuntimeError, match="EngineDeadError"):
        await items(Engine(*delta("a", "b")[:1], dies=True), "delta")


async def test_a_source_that_is_closed_aborts_the_request() -> None:
    engine = Engine(*cumulative("a", "ab"))
    source = vllm_outputs(engine.generate())
    assert await source.__anext__() == "a"
    await source.aclose()
    assert engine.aborted


async def test_several_answers_have_no_place_in_a_text() -> None:
    with pytest.raises(UnsupportedItem, match="choice 1"):
        await items(Engine(Output([Completion("a", [1], index=1)])))


def test_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="kind is an output_kind"):
        vllm_outputs(Engine().generate(), "all")
