"""vLLM's engine in this process, as a source: what `AsyncLLM.generate` yields.

    sampling = SamplingParams(max_tokens=200, output_kind=RequestOutputKind.DELTA)
    source = vllm_outputs(engine.generate(prompt, sampling, request_id), sampling.output_kind)

The engine yields all text so far each time (CUMULATIVE, its default), or what is new (DELTA, which costs less). An end
is proven by an output that is `finished` *and* has a finish reason; an engine that dies raises. Closing the source
closes the engine's generator, by which the engine aborts the request.

Nothing of vLLM is imported.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable
from typing import Any

from streamguard.core.arguments import shown
from streamguard.core.errors import SourceFailed, UnsupportedItem
from streamguard.core.items import BROKEN, Finish
from streamguard.runtime.closing import close

__all__ = ["vllm_outputs"]


def vllm_outputs(outputs: AsyncIterable[Any], kind: Any = "cumulative") -> AsyncGenerator[str | Finish, None]:
    """The text of one request's outputs, then why it ended and its counts of tokens.

    `kind` is what the request asked for: `SamplingParams.output_kind`, or its name. Raises ValueError for another; the
    source raises SourceFailed where the outputs end before the request does.
    """
    name = str(getattr(kind, "name", kind)).lower()
    if name not in ("cumulative", "delta", "final_only"):
        raise ValueError(f"kind is an output_kind, 'cumulative', 'delta' or 'final_only', not {shown(kind)}")
    return _read(outputs, delta=name == "delta")


async def _read(outputs: AsyncIterable[Any], *, delta: bool) -> AsyncGenerator[str | Finish, None]:
    said, tokens, prompt = "", 0, None
    try:
        async for output in outputs:
            if output.prompt_token_ids is not None:
                prompt = len(output.prompt_token_ids)
            for completion in output.outputs:
                if completion.index:
                    advice = "a source of text is one answer: ask for n=1"
                    raise UnsupportedItem(f"text of choice {completion.index}", "", advice)
                text = completion.text if delta else _new(completion.text, said)
                said = "" if delta else completion.text
                tokens = len(completion.token_ids) + (tokens if delta else 0)
                if text:
                    yield text
            if output.finished:
                yield _finish(output, prompt, tokens)
                return
    finally:
        await close(outputs)
    raise SourceFailed("upstream_truncated", "the engine stopped in the middle", retryable=True)


def _new(text: str, said: str) -> str:
    """What cumulative text has beyond what was said."""
    if not text.startswith(said):  # and what was handed out cannot be taken back
        raise SourceFailed("upstream_format", "the engine's text does not go on from what it said: is it a delta?")
    return text[len(said) :]


def _finish(output: Any, prompt: int | None, tokens: int) -> Finish:
    reason = next((completion.finish_reason for completion in output.outputs), None)
    if reason in BROKEN:
        raise SourceFailed("generation_aborted", "the engine aborted the generation", retryable=True)
    if reason is None:
        raise SourceFailed("unproven_end", "the engine finished without any finish reason", retryable=True)
    return Finish(reason, {**({} if prompt is None else {"prompt_tokens": prompt}), "completion_tokens": tokens})
