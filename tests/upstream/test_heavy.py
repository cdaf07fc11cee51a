"""The sources on real engines: transformers' `generate` and `serve`, vLLM's AsyncLLM. Only with `-m heavy`.

    pip install torch 'transformers[serving]'    # or vllm: what is not there is skipped
    STREAMGUARD_MODELS=FOLDER python -m pytest -m heavy tests/upstream

FOLDER holds two small models: `known`, which answers the prompts of its `expected.json` by heart, and `random`, which
never ends by itself.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from streamguard.adapters.fastapi import guarded
from streamguard.core.errors import SourceFailed
from streamguard.core.items import Finish
from streamguard.upstream.chat import ChatCompletions
from streamguard.upstream.transformers import generation
from streamguard.upstream.vllm import vllm_outputs
from tests.absence import require
from tests.adapters.servers import Gate, serving

pytestmark = [pytest.mark.heavy, pytest.mark.anyio]

PROMPTS = ["Hello", "你好", "emoji", "lines", "long"]
UP = 120.0  # seconds in which a server must answer: it loads torch


@pytest.fixture(params=["asyncio"], scope="module")
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(scope="module")
def models() -> Path:
    require("transformers", "pip install torch 'transformers[serving]'")
    folder = os.environ.get("STREAMGUARD_MODELS")
    if folder is None:
        pytest.skip("absent: the models (say where they are: STREAMGUARD_MODELS=FOLDER)")
    return Path(folder).absolute()


@pytest.fixture(scope="module")
def expected(models: Path) -> dict[str, str]:
    told = json.loads((models / "known" / "expected.json").read_text(encoding="utf-8"))
    return {chat["user"]: chat["assistant"] for chat in told["chats"]}


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


def test_a_reader_that_leaves_stops_generate(models: Path) -> None:
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
        return endless.source("Hello", generate, max_new_tokens=3900, min_new_tokens=3900)

    with serving(app) as server, httpx.stream("GET", server.url, timeout=UP) as response:
        for line in response.iter_lines():
            if line.startswith("data: "):
                break
        response.close()
        over.wait(UP)
    assert made[0] < 1000  # of 3900; a token is quick, and the reader's leaving has to arrive


@pytest.fixture(scope="module")
def engine(models: Path) -> Iterator[Any]:
    """vLLM's engine; it has a process of its own."""
    require("vllm", "pip install vllm")
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    limits = {"max_model_len": 4096, "max_num_seqs": 8, "enforce_eager": True}
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(str(models / "known"), dtype="float32", **limits))
    try:
        yield engine
    finally:
        engine.shutdown()


async def test_vllms_engine_is_read_alike_in_every_kind_and_aborts_what_nobody_reads(
    known: Local, expected: dict[str, str], engine: Any
) -> None:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    def source(kind: Any, prompt: str, **options: Any) -> Any:
        sampling = SamplingParams(temperature=0, output_kind=kind, **options)
        return vllm_outputs(engine.generate(known.prompt(prompt), sampling, uuid.uuid4().hex), kind)

    counts = set()
    for kind in RequestOutputKind:
        for prompt in PROMPTS:
            *text, finish = [item async for item in source(kind, prompt, max_tokens=700)]
            assert "".join(text) == expected[prompt]
            assert finish.reason == "stop"
            counts.add((prompt, *finish.usage.values()))
        *_, cut = [item async for item in source(kind, "long", max_tokens=8)]
        assert (cut.reason, cut.usage["completion_tokens"]) == ("length", 8)
    assert len(counts) == len(PROMPTS)
    left = source(RequestOutputKind.DELTA, "long", max_tokens=3900, ignore_eos=True)
    await left.__anext__()
    assert engine.output_processor.get_num_unfinished_requests() == 1
    await left.aclose()
    assert engine.output_processor.get_num_unfinished_requests() == 0


@pytest.fixture(scope="module")
def serve(models: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """`transformers serve` on a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("transformers")), "serve", str(models / "known")]
    command += ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    process = subprocess.Popen(command, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    try:
        until = time.monotonic() + UP
        while True:
            try:
                httpx.get(f"http://127.0.0.1:{port}/health", timeout=UP)
                break
            except httpx.TransportError:
                assert process.poll() is None
                assert time.monotonic() < until
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/v1", process
    finally:
        process.kill()
        process.wait()


def body(models: Path, prompt: str, model: str = "known", **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": prompt}]
    return {"model": str(models / model), "messages": messages, "temperature": 0, "max_tokens": 700, **more}


async def test_transformers_serve_is_read_to_its_end(
    models: Path, expected: dict[str, str], serve: tuple[str, subprocess.Popen[bytes]]
) -> None:
    server = ChatCompletions(serve[0], profile="transformers")
    for prompt in PROMPTS:
        *text, finish = [item async for item in server.stream(body(models, prompt))]
        assert "".join([str(piece) for piece in text]) == expected[prompt]
        assert isinstance(finish, Finish)
        assert finish.reason == "stop"
    with pytest.raises(SourceFailed, match="upstream_truncated"):  # the profile is what proves its end
        [item async for item in ChatCompletions(serve[0]).stream(body(models, "Hello"))]


async def test_transformers_serve_that_is_killed_in_the_middle_is_cut(
    models: Path, serve: tuple[str, subprocess.Popen[bytes]]
) -> None:
    """The last of them: the server is gone."""
    found = []
    with pytest.raises(SourceFailed, match="upstream_truncated"):
        async for item in ChatCompletions(serve[0], profile="transformers").stream(body(models, "long")):
            found.append(item)
            serve[1].kill()
    assert found
