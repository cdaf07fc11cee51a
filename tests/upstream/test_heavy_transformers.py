"""transformers on a real model: `generate` as a source, `transformers serve` as one, and guarded. Only with `-m heavy`.

    pip install torch 'transformers[serving]'    # what is not there is skipped
    python tests/upstream/tiny.py FOLDER
    STREAMGUARD_MODELS=FOLDER python -m pytest -m heavy tests/upstream
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from fastapi import FastAPI

from streamguard.adapters.fastapi import guarded
from streamguard.core.errors import SourceFailed
from streamguard.core.items import Finish
from streamguard.upstream.chat import ChatCompletions
from streamguard.upstream.transformers import generation
from tests.absence import require
from tests.adapters.servers import Gate, serving
from tests.upstream.heavy import ASKED, FEW, PROMPTS, UP, Server, body, resumed_text, sdk_of, started, streamed, tail_of
from tests.upstream.heavy_transformers import last_made, serve_that_is

# The warnings of these libraries are not ours.
pytestmark = [pytest.mark.heavy, pytest.mark.anyio, pytest.mark.filterwarnings("default")]


@pytest.fixture(params=["asyncio"], scope="module")
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


class Local:
    """A model of transformers in this process."""

    def __init__(self, path: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.tokenizer: Any = AutoTokenizer.from_pretrained(path)
        self.model: Any = AutoModelForCausalLM.from_pretrained(path).eval()

    def prompt(self, text: str) -> str:
        asked = [{"role": "user", "content": text}]
        return str(self.tokenizer.apply_chat_template(asked, add_generation_prompt=True, tokenize=False))

    def source(self, prompt: str, generate: Any = None, **options: Any) -> Any:
        from transformers import TextIteratorStreamer

        streamer = TextIteratorStreamer(self.tokenizer, skip_prompt=True, skip_special_tokens=True)
        inputs = self.tokenizer(self.prompt(prompt), add_special_tokens=False, return_tensors="pt")
        ids = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        return generation(generate or self.model.generate, streamer, **ids, do_sample=False, **options)


@pytest.fixture(scope="module")
def known(models: Path) -> Local:
    return Local(models / "known")


def test_generate_is_read_as_the_text_that_the_model_knows(known: Local, expected: dict[str, str]) -> None:
    for prompt in PROMPTS:
        *text, finish = known.source(prompt, max_new_tokens=700)
        assert "".join(text) == expected[prompt]
        assert isinstance(finish, Finish)
        assert finish.reason == "stop"
    *_, cut = known.source("long", max_new_tokens=8)
    assert (cut.reason, cut.usage["completion_tokens"]) == ("length", 8)


def test_generate_that_raises_ends_its_source(known: Local) -> None:
    with pytest.raises(ValueError, match="beam"):
        list(known.source("Hello", max_new_tokens=8, num_beams=2))


def test_a_reader_that_leaves_fastapi_stops_generate(
    models: Path, record_property: Callable[[str, object], None]
) -> None:
    endless = Local(models / "random")
    made: list[int] = []
    over = Gate()

    def generate(**inputs: Any) -> Any:
        result = endless.model.generate(**inputs)
        made.append(result.shape[-1] - inputs["input_ids"].shape[-1])
        over.open()
        return result

    app = FastAPI()

    @app.get("/")
    @guarded
    def endpoint() -> Any:
        return endless.source("Hello", generate, max_new_tokens=ASKED, min_new_tokens=ASKED)

    with serving(app) as server, httpx.stream("GET", server.url, timeout=UP) as response:
        for line in response.iter_lines():
            if line.startswith("data: "):
                break
        left = time.monotonic()
        response.close()
        over.wait(UP)
    record_property("seconds", time.monotonic() - left)
    record_property("tokens", made[0])
    assert made[0] < ASKED / 4  # a token is quick, and the reader's leaving has to arrive


@pytest.fixture(scope="module")
def serve(models: Path) -> Iterator[Server]:
    """`transformers serve`."""
    require("fastapi", "pip install 'transformers[serving]'")
    command = [str(Path(sys.executable).with_name("transformers")), "serve", str(models / "known"), "--device", "cpu"]
    with started(command) as server:
        yield server


async def test_transformers_serve_is_read_to_its_end(
    models: Path, expected: dict[str, str], serve: Server
) -> None:
    server = ChatCompletions(serve.api, profile="transformers")
    for prompt in PROMPTS:
        *text, finish = [item async for item in server.stream(body(models / "known", prompt))]
        assert "".join([str(piece) for piece in text]) == expected[prompt]
        assert isinstance(finish, Finish)
        assert finish.reason == "stop"
    with pytest.raises(SourceFailed, match="upstream_truncated"):  # the profile is what proves its end
        [item async for item in ChatCompletions(serve.api).stream(body(models / "known", "Hello"))]


async def test_transformers_serve_that_is_killed_in_the_middle_is_cut(models: Path, serve: Server) -> None:
    """The last that asks this server, which is gone then."""
    found = []
    with pytest.raises(SourceFailed, match="upstream_truncated"):
        async for item in ChatCompletions(serve.api, profile="transformers").stream(body(models / "known", "long")):
            found.append(item)
            serve.process.kill()
    assert found


@pytest.fixture(scope="module", params=["guard", "guard and log"])
def guarded_serve(request: pytest.FixtureRequest, models: Path) -> Iterator[Server]:
    """`transformers serve` under the middleware."""
    with serve_that_is("log" if request.param == "guard and log" else "guard") as server:
        yield server


def test_an_sdk_reads_the_same_from_transformers_serve_under_the_middleware(
    models: Path, expected: dict[str, str], guarded_serve: Server
) -> None:
    known = models / "known"
    for prompt in FEW:
        *chunks, last = streamed(guarded_serve, body(known, prompt))
        assert "".join([chunk.choices[0].delta.content or "" for chunk in chunks]) == expected[prompt]
        assert last.choices[0].finish_reason == "stop"
        told = sdk_of(guarded_serve).responses.create(model=str(known), input=prompt, temperature=0, stream=True)
        assert list(told)[-1].response.output_text == expected[prompt]


def test_a_reader_that_leaves_the_middleware_stops_transformers_serve(
    models: Path, guarded_serve: Server, record_property: Callable[[str, object], None]
) -> None:
    answer = streamed(guarded_serve, body(models / "random", "Hello", max_tokens=ASKED))
    for _ in range(3):
        next(answer)
    left = time.monotonic()
    answer.close()
    while not (made := last_made(guarded_serve))["over"]:
        assert time.monotonic() - left < UP
    record_property("seconds", time.monotonic() - left)
    record_property("tokens", made["tokens"])
    assert made["tokens"] < ASKED / 4


@pytest.mark.parametrize("guarded_serve", ["guard and log"], indirect=True)
def test_an_answer_of_transformers_serve_goes_on_after_a_cut(
    models: Path, expected: dict[str, str], guarded_serve: Server
) -> None:
    for cut_at in (1500, 9000):
        assert resumed_text(guarded_serve, body(models / "known", "long"), cut_at) == (expected["long"], 1)


def test_generate_that_raises_within_transformers_serve_is_no_whole_answer(
    models: Path, guarded_serve: Server
) -> None:
    asked = body(models / "random", "Hello", max_tokens=ASKED)
    url = f"{guarded_serve.api}/chat/completions"
    with httpx.stream("POST", url, json={**asked, "stream": True}, timeout=UP) as response:
        pieces = response.iter_raw()
        next(pieces)
        httpx.post(f"{guarded_serve.url}/break")
        tail = tail_of(pieces)
    assert b'data: {"error": "broken on purpose"}' in tail
    answer = streamed(guarded_serve, asked)
    next(answer)
    httpx.post(f"{guarded_serve.url}/break")
    with pytest.raises(openai.APIError):
        list(answer)


def test_an_sdk_raises_when_the_guarded_process_is_killed(models: Path, guarded_serve: Server) -> None:
    """The last that asks this server, which is gone then."""
    answer = streamed(guarded_serve, body(models / "random", "Hello", max_tokens=ASKED))
    next(answer)
    guarded_serve.process.kill()
    with pytest.raises((openai.APIError, httpx.TransportError)):
        list(answer)
