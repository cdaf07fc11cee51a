"""A Hugging Face model whose answer goes on when its process is killed.

    pip install "streamguard-io[starlette]" uvicorn torch transformers
    MODEL=HuggingFaceTB/SmolLM2-135M uvicorn takeover_hf:app --workers 2

    curl -N -H 'streamguard: v=1' --json '{"prompt": "Once upon a time", "seed": 7}' localhost:8000/stories
    # then kill -9 the worker that answers, and read on with the last id that came:
    curl -N -H 'streamguard: v=1' -H 'last-event-id: <the last id>' localhost:8000/streams

What a generation could go on from is small: the tokens so far, the prompt's included, and the state of the random
numbers. Both are in each checkpoint. Not the cache of keys and values, which is large and can be computed again: the
first step of a generation that goes on reads all of its tokens at once. So the first checkpoint, before any text, is
enough to begin from as well, and nothing else needs to be kept.

`Generation` asks little of a model, which `HuggingFace` answers with torch; any other that can be stepped will do.
What is said behind the last checkpoint is said again and compared. A model that computes another next token for the
same tokens, as some do in batches of another size, is found out where that shows, and its stream ends as `diverged`.
"""

from __future__ import annotations

import base64
import functools
import inspect
import os
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from streamguard import Checkpoint, CheckpointEvery, Finish, Orphan, Replay, anyone_with_the_id
from streamguard.adapters.starlette import StreamGuard
from streamguard.log.sqlite import SQLiteLog


class Dice(Protocol):
    """Random numbers that can be saved."""

    def pick(self, logits: Any, temperature: float) -> int:
        """The next token."""
        ...

    def state(self) -> str:
        """Where they stand."""
        ...


class Model(Protocol):
    """What is asked of a model."""

    end: int  # the token that ends an answer

    def encode(self, text: str) -> list[int]: ...

    def decode(self, tokens: list[int]) -> str: ...

    def step(self, tokens: list[int], cache: Any) -> tuple[Any, Any]:
        """What may come behind `cache` and `tokens`, and the cache with these in it. None is an empty one."""
        ...

    def dice(self, seed: int, state: str | None) -> Dice: ...


class TorchDice:
    """A generator of torch's, on the processor, where its numbers are the same everywhere."""

    def __init__(self, seed: int, state: str | None) -> None:
        import torch

        self._torch = torch
        self._generator = torch.Generator().manual_seed(seed)
        if state is not None:
            self._generator.set_state(torch.frombuffer(bytearray(base64.b64decode(state)), dtype=torch.uint8))

    def pick(self, logits: Any, temperature: float) -> int:
        if not temperature:
            return int(logits.argmax())
        chances = self._torch.softmax(logits.float().cpu() / temperature, -1)
        return int(self._torch.multinomial(chances, 1, generator=self._generator))

    def state(self) -> str:
        return base64.b64encode(self._generator.get_state().numpy().tobytes()).decode()


class HuggingFace:
    """A causal model of transformers, and its tokenizer."""

    def __init__(self, name: str) -> None:
        import torch
        import transformers

        self._torch = torch
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(name)
        self._model = transformers.AutoModelForCausalLM.from_pretrained(name).eval()
        self.end = int(self._tokenizer.eos_token_id)
        # The name of the cache, in what goes in and what comes out: transformers 5 has renamed it.
        known = inspect.signature(self._model.forward).parameters
        self._cache = "cache" if "cache" in known else "past_key_values"

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text).input_ids)

    def decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def step(self, tokens: list[int], cache: Any) -> tuple[Any, Any]:
        with self._torch.inference_mode():
            out = self._model(input_ids=self._torch.tensor([tokens]), use_cache=True, **{self._cache: cache})
        return out.logits[0, -1], out[self._cache]

    def dice(self, seed: int, state: str | None) -> Dice:
        return TorchDice(seed, state)


class Generation:
    """One answer: a source that can say where it stands, on a thread of its own.

    `load` gives the model, `asked` is the request; `stood` is where another generation was, which this goes on from.
    """

    def __init__(self, load: Callable[[], Model], asked: dict[str, Any], stood: dict[str, Any] | None = None) -> None:
        self._load = load
        self._asked = asked
        self._stood = stood
        self._tokens: list[int] = []
        self._prompt = 0  # how many of them
        self._dice: Dice

    def state(self) -> dict[str, Any]:
        return {"asked": self._asked, "tokens": self._tokens, "prompt": self._prompt, "dice": self._dice.state()}

    def __iter__(self) -> Iterator[str | Checkpoint | Finish]:
        model = self._load()  # here, and not in the resumer, which has no time for it
        stood = self._stood or {}
        self._tokens = list(stood.get("tokens") or model.encode(self._asked["prompt"]))
        self._prompt = stood.get("prompt", len(self._tokens))
        self._dice = model.dice(self._asked.get("seed", 0), stood.get("dice"))
        yield Checkpoint(self.state())
        said = model.decode(self._tokens[self._prompt :])
        fresh, cache, reason = self._tokens, None, "length"
        while len(self._tokens) - self._prompt < self._asked.get("max_tokens", 200):
            logits, cache = model.step(fresh, cache)
            token = self._dice.pick(logits, self._asked.get("temperature", 1.0))
            if token == model.end:
                reason = "stop"
                break
            self._tokens.append(token)
            fresh = [token]
            # All of them each time: what a token says depends on those before it, and may be half a character.
            text = model.decode(self._tokens[self._prompt :])
            if not text.endswith("\ufffd") and len(text) > len(said):
                yield text[len(said) :]
                said = text
        if rest := model.decode(self._tokens[self._prompt :])[len(said) :]:
            yield rest
        yield Finish(reason)


def made(generation: Generation) -> Any:
    """The generation as a source, with its checkpoints."""
    return CheckpointEvery(items=20, seconds=1.0).over(generation)


def make_app(path: str, load: Callable[[], Model], ttl: float = 15.0) -> Starlette:
    guard = StreamGuard(SQLiteLog(path), authorize=anyone_with_the_id, ttl=ttl)

    def resume(orphan: Orphan) -> Replay:
        stood = orphan.checkpoint  # without one nobody knows what was asked for, and the stream ends as failed
        return Replay(made(Generation(load, stood["asked"], stood)), from_checkpoint=True)

    @guard.stream(resumer=resume)
    async def story(request: Request) -> Any:
        return made(Generation(load, await request.json()))

    app = Starlette(routes=[Route("/stories", story, methods=["POST"])])
    app.state.guard = guard
    guard.install(app, "/streams")
    return app


@functools.cache
def model() -> Model:
    return HuggingFace(os.environ["MODEL"])


app = make_app(os.environ.get("STREAMS", "streams.db"), model)
