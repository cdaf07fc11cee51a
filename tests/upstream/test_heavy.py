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
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from streamguard.adapters.fastapi import guarded
from streamguard.core.errors import SourceFailed
from streamguard.core.items import Finish
from streamguard.upstream.chat import ChatCompletions
from streamguard.upstream.messages import Messages
from streamguard.upstream.responses import Responses
from streamguard.upstream.transformers import generation
from streamguard.upstream.vllm import vllm_outputs
from tests.absence import require
from tests.adapters.servers import Gate, serving

# The warnings of these libraries are not ours.
pytestmark = [pytest.mark.heavy, pytest.mark.anyio, pytest.mark.filterwarnings("default")]

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


@contextmanager
def started(command: list[str]) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A server on a free port, once it answers: its address, and its process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [*command, "--host", "127.0.0.1", "--port", str(port)]
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
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.terminate()
        process.wait(UP)


@pytest.fixture(scope="module")
def serve(models: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """`transformers serve`."""
    require("fastapi", "pip install 'transformers[serving]'")
    command = [str(Path(sys.executable).with_name("transformers")), "serve", str(models / "known"), "--device", "cpu"]
    with started(command) as (url, process):
        yield f"{url}/v1", process


@pytest.fixture(scope="module")
def vllm_serve(models: Path) -> Iterator[str]:
    """vLLM's own server."""
    require("vllm", "pip install vllm")
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(models / "known")]
    command += ["--dtype", "float32", "--max-model-len", "4096", "--max-num-seqs", "8", "--enforce-eager"]
    with started(command) as (url, _):
        yield url


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
    """The last that asks this server, which is gone then."""
    found = []
    with pytest.raises(SourceFailed, match="upstream_truncated"):
        async for item in ChatCompletions(serve[0], profile="transformers").stream(body(models, "long")):
            found.append(item)
            serve[1].kill()
    assert found


async def test_vllms_server_is_read_to_its_end_by_each_api_and_stops_when_nobody_reads(
    models: Path, expected: dict[str, str], vllm_serve: str
) -> None:
    base, chat = f"{vllm_serve}/v1", body(models, "Hello")
    bare = {"model": chat["model"], "temperature": 0}
    asked = [
        (ChatCompletions(base, profile="vllm"), chat),
        (Responses(base), {**bare, "input": "Hello"}),
        (Messages(base), chat),
    ]
    for server, request in asked:
        *text, finish = [item async for item in server.stream(request)]
        assert "".join([str(piece) for piece in text]) == expected["Hello"]
        assert isinstance(finish, Finish)
        assert finish.reason == "stop"
        assert [item async for item in server.events(request)]
    made = _metric(vllm_serve, "vllm:generation_tokens_total")
    left = ChatCompletions(base).events(body(models, "long", max_tokens=3900, ignore_eos=True))
    for _ in range(5):
        await left.__anext__()
    await left.aclose()
    until = time.monotonic() + UP
    while _metric(vllm_serve, "vllm:num_requests_running"):
        assert time.monotonic() < until
    assert _metric(vllm_serve, "vllm:generation_tokens_total") - made < 2000


def _metric(url: str, name: str) -> float:
    lines = httpx.get(f"{url}/metrics", timeout=UP).text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + "{"))
