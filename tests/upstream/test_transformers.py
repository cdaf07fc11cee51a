"""`generate` of transformers as a source; the fakes do what TextIteratorStreamer and `generate` do on their threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextvars import ContextVar
from queue import Queue
from typing import Any

import pytest

from streamguard.core.items import Finish
from streamguard.runtime.source import TokenSource
from streamguard.upstream.transformers import generation
from tests.adapters.servers import DEADLINE

TENANT: ContextVar[str] = ContextVar("TENANT", default="nobody")
END = 0
PROMPT = 3


class Streamer:
    """TextIteratorStreamer's queue and its hook."""

    def __init__(self) -> None:
        self.text_queue: Queue[str | None] = Queue()

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        self.text_queue.put(text)
        if stream_end:
            self.text_queue.put(None)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        piece = self.text_queue.get(timeout=DEADLINE)
        if piece is None:
            raise StopIteration
        return piece


class Ids:
    """A batch of one sequence, as far as it is asked."""

    def __init__(self, size: int) -> None:
        self.shape = (1, size)


class Model:
    """`generate` as transformers has it: a token, then the criteria; its streamer is ended where it returns."""

    class generation_config:
        max_new_tokens = None
        max_length = 20
        eos_token_id = END

    def __init__(self, *, ends_at: int | None = None, breaks_at: int | None = None) -> None:
        self.ends_at = ends_at
        self.breaks_at = breaks_at
        self.tokens = 0
        self.tenant = ""
        self.over = threading.Event()

    def generate(self, streamer: Streamer, stopping_criteria: Any, max_new_tokens: int = 17, **inputs: Any) -> Any:
        self.tenant = TENANT.get()
        last = 1
        try:
            while True:
                self.tokens += 1
                if self.tokens == self.breaks_at:
                    raise MemoryError("on purpose")
                last = END if self.tokens == self.ends_at else 1
                streamer.on_finalized_text("" if self.tokens % 2 else f"{self.tokens} ")
                stop = [criterion(Ids(PROMPT + self.tokens), None) for criterion in stopping_criteria]
                if any(stop) or last == END or self.tokens == max_new_tokens:
                    break
            streamer.on_finalized_text("end", stream_end=True)
            return [[1, last]]
        finally:
            self.over.set()


def made(model: Model, **inputs: Any) -> Any:
    return generation(model.generate, Streamer(), input_ids=Ids(PROMPT), **inputs)


@pytest.mark.parametrize(
    ("ends_at", "inputs", "reason", "tokens"),
    [
        (3, {"max_new_tokens": 9}, "stop", 3),
        (None, {"max_new_tokens": 4}, "length", 4),
        (4, {"max_new_tokens": 4}, "stop", 4),  # the end, and the limit with it
        (None, {"generation_config": {"max_new_tokens": 17}}, "length", 17),
        (None, {}, "length", 17),
        (None, {"max_new_tokens": 4, "eos_token_id": [7, 1]}, "stop", 4),
    ],
)
def test_a_generation_is_text_with_its_reason_and_counts(
    ends_at: int | None, inputs: dict[str, Any], reason: str, tokens: int
) -> None:
    *text, finish = made(Model(ends_at=ends_at), **inputs)
    assert "".join(text) == "".join([f"{at} " for at in range(2, tokens + 1, 2)]) + "end"
    assert finish == Finish(reason, {"prompt_tokens": PROMPT, "completion_tokens": tokens})


def test_a_generation_that_raises_ends_its_source_with_the_same_error() -> None:
    """Alone, the streamer's loop would wait for ever."""
    text = []
    with pytest.raises(MemoryError, match="on purpose"):
        for piece in made(Model(breaks_at=5)):
            text.append(piece)
    assert text == ["2 ", "4 "]


def test_a_generation_that_is_closed_stops_at_its_next_token() -> None:
    model = Model()
    source = made(model, max_new_tokens=10**9, max_ahead=2)
    assert next(source) == "2 "
    source.close()
    assert model.over.is_set()
    assert model.tokens <= 6


def test_a_generation_waits_for_its_reader() -> None:
    model = Model(ends_at=50)
    source = made(model, max_ahead=4, max_new_tokens=60)
    for _ in range(10):
        next(source)
        assert model.tokens <= 30
    assert next(item for item in source if isinstance(item, Finish)).reason == "stop"


def test_nothing_is_made_for_a_source_that_is_not_read() -> None:
    model = Model()
    made(model).close()
    assert model.tokens == 0


def test_criteria_of_the_callers_own_stay() -> None:
    *_, finish = made(Model(), stopping_criteria=[lambda ids, scores: ids.shape[-1] == PROMPT + 5], max_new_tokens=9)
    assert finish == Finish("stop", {"prompt_tokens": PROMPT, "completion_tokens": 5})


def test_a_result_with_more_than_its_tokens_and_a_model_without_counts() -> None:
    class Result:
        sequences = ((1, 1),)

    def generate(streamer: Streamer, stopping_criteria: Any, **inputs: Any) -> Any:
        stopping_criteria[0](Ids(1), None)
        streamer.on_finalized_text("a", stream_end=True)
        return Result()

    assert list(generation(generate, Streamer(), max_new_tokens=1)) == ["a", Finish("length", {"completion_tokens": 1})]
    assert list(generation(generate, Streamer()))[-1] == Finish("stop", {"completion_tokens": 1})


@pytest.mark.anyio
async def test_behind_a_source_it_stops_when_that_is_closed_and_has_its_context() -> None:
    TENANT.set("acme")
    model = Model()
    source = TokenSource(made(model, max_new_tokens=10**9))
    assert str(await source.__anext__()).startswith("2 ")
    await source.aclose()
    assert model.over.is_set()
    assert model.tenant == "acme"


def test_a_bound_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="max_ahead"):
        made(Model(), max_ahead=0)
