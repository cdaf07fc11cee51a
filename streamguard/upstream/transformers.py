"""`generate` of Hugging Face's transformers in this process, as a source of what its TextIteratorStreamer says.

    inputs = tokenizer(prompt, return_tensors="pt")
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    source = generation(model.generate, streamer, **inputs, max_new_tokens=200)

A streamer alone is a queue: leaving its loop stops nothing, a `generate` that raises leaves the loop waiting for ever,
and one that is faster than the reader fills the memory. Here `generate` runs on a thread with a stopping criterion of
ours, which is asked after each token. It stops the generation when the source is closed, and holds it up while the
reader is behind. Closing waits until `generate` has returned. What it raises, the source raises.

Nothing of transformers or torch is imported. The source is a generator and not async: it gets a thread of its own.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, Final, Protocol

from streamguard.core.arguments import require_whole_number
from streamguard.core.items import Finish

__all__ = ["Streamer", "generation"]

_AHEAD: Final = 256  # pieces that may wait for the reader; more would be spent on a reader who may leave


class Streamer(Protocol):
    """What is asked of a TextIteratorStreamer: an iteration, and the hook that puts text into it."""

    def __iter__(self) -> Iterator[str]: ...

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None: ...


def generation(
    generate: Callable[..., Any], streamer: Streamer, *, max_ahead: int = _AHEAD, **inputs: Any
) -> Generator[str | Finish, None, None]:
    """The text that `generate(**inputs)` makes, then why it ended and its counts of tokens.

    `generate` is the model's method. `inputs` are its arguments but the streamer; stopping criteria of the caller's own
    stay. At most about `max_ahead` tokens are made ahead of the reader. Nothing is started before the first step.
    """
    require_whole_number("max_ahead", max_ahead)
    return _Generation(generate, streamer, inputs, max_ahead).read()


class _Generation:
    def __init__(self, generate: Callable[..., Any], streamer: Streamer, inputs: dict[str, Any], ahead: int) -> None:
        self._generate = generate
        self._streamer = streamer
        self._inputs = inputs
        self._ahead = ahead
        self._turn = threading.Condition()
        self._stopped = False
        self._made = self._read = 0  # steps, and pieces of text that were taken: a step is a piece, often an empty one
        self._before = self._tokens = 0  # tokens before the first step, and since
        self._result: Any = None
        self._error: BaseException | None = None

    def read(self) -> Generator[str | Finish, None, None]:
        run = contextvars.copy_context().run
        thread = threading.Thread(target=run, args=(self._run,), name="streamguard generate", daemon=True)
        thread.start()
        try:
            for piece in self._streamer:
                with self._turn:
                    self._read += 1
                    self._turn.notify()
                if piece:
                    yield piece
        finally:
            with self._turn:
                self._stopped = True
                self._turn.notify()
            thread.join()
        if self._error is not None:
            raise self._error
        yield Finish(self._reason(), self._usage())

    def _run(self) -> None:
        criteria = [*(self._inputs.get("stopping_criteria") or ()), self._after_token]
        try:
            self._result = self._generate(**{**self._inputs, "streamer": self._streamer, "stopping_criteria": criteria})
        except BaseException as exc:
            self._error = exc
            # It ends its streamer where it returns, and not where it raises.
            self._streamer.on_finalized_text("", stream_end=True)

    def _after_token(self, input_ids: Any, scores: Any, **kwargs: Any) -> bool:
        """The stopping criterion: whether the generation is to end."""
        size = int(input_ids.shape[-1])
        if not self._made:
            self._before = size - 1
        self._tokens = size - self._before  # a step may make several
        with self._turn:
            self._made += 1
            self._turn.wait_for(lambda: self._stopped or self._made - self._read <= self._ahead)
            return self._stopped

    def _settings(self) -> Iterator[Any]:
        """Where a setting of `generate` may stand, the nearest first."""
        yield self._inputs
        yield self._inputs.get("generation_config")
        yield getattr(getattr(self._generate, "__self__", None), "generation_config", None)

    def _setting(self, name: str) -> Any:
        for place in self._settings():
            value = place.get(name) if isinstance(place, Mapping) else getattr(place, name, None)
            if value is not None:
                return value
        return None

    def _prompt(self) -> int | None:
        shape = getattr(self._inputs.get("input_ids"), "shape", None)
        return int(shape[-1]) if shape else None

    def _reason(self) -> str:
        limit = self._setting("max_new_tokens")
        if limit is None and (longest := self._setting("max_length")) is not None:
            limit = longest - (self._prompt() or 0)
        if limit is None or self._tokens < limit:
            return "stop"
        ends = self._setting("eos_token_id")
        tokens = getattr(self._result, "sequences", self._result)
        last = int(tokens[0][-1])  # the limit may be met by the very token that ends the text
        return "stop" if last in (ends if isinstance(ends, (list, tuple)) else (ends,)) else "length"

    def _usage(self) -> dict[str, int]:
        prompt = self._prompt()
        return {**({} if prompt is None else {"prompt_tokens": prompt}), "completion_tokens": self._tokens}
