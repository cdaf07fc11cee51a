"""vLLM on a real model: its engine and its server as sources, and its server guarded. Only with `-m heavy`.

    pip install vllm                             # what is not there is skipped
    python tests/upstream/tiny.py FOLDER
    STREAMGUARD_MODELS=FOLDER python -m pytest -m heavy tests/upstream

The middleware is the one of the page `docs/how-to/vllm.md`, to the letter.
"""

from __future__ import annotations

import os
import re
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from streamguard.core.items import Finish
from streamguard.upstream.chat import ChatCompletions
from streamguard.upstream.messages import Messages
from streamguard.upstream.responses import Responses
from streamguard.upstream.vllm import vllm_outputs
from tests.absence import require
from tests.modules import ROOT
from tests.upstream.heavy import ASKED, FEW, PROMPTS, UP, Server, begun, body, resumed_text, sdk_of, streamed, tail_of
from tests.upstream.heavy_vllm import LIMITS, MEMORY, endless, engine_of, metric, stopped_by_leaving, vllm_server

# The warnings of these libraries are not ours.
pytestmark = [pytest.mark.heavy, pytest.mark.anyio, pytest.mark.filterwarnings("default")]

PAGE = ROOT / "docs" / "how-to" / "vllm.md"


@pytest.fixture(params=["asyncio"], scope="module")
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(scope="module")
def tokenizer(models: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(models / "known")


@pytest.fixture
def engine(models: Path) -> Iterator[Any]:
    """vLLM's engine; it has a process of its own."""
    require("vllm", "pip install vllm")
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    limits: Any = {**LIMITS, "enforce_eager": True, "gpu_memory_utilization": MEMORY}
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(str(models / "known"), **limits))
    try:
        yield engine
    finally:
        engine.shutdown()


async def test_vllms_engine_is_read_alike_in_every_kind_and_aborts_what_nobody_reads(
    tokenizer: Any, expected: dict[str, str], engine: Any
) -> None:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    def source(kind: Any, prompt: str, **options: Any) -> Any:
        sampling = SamplingParams(temperature=0, output_kind=kind, **options)
        asked = [{"role": "user", "content": prompt}]
        whole = tokenizer.apply_chat_template(asked, add_generation_prompt=True, tokenize=False)
        return vllm_outputs(engine.generate(whole, sampling, uuid.uuid4().hex), kind)

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
    left = source(RequestOutputKind.DELTA, "long", max_tokens=ASKED, ignore_eos=True)
    await left.__anext__()
    assert engine.output_processor.get_num_unfinished_requests() == 1
    await left.aclose()
    assert engine.output_processor.get_num_unfinished_requests() == 0


@pytest.fixture
def serve(models: Path) -> Iterator[Server]:
    """vLLM's own server."""
    with vllm_server(models) as server:
        yield server


async def test_vllms_server_is_read_to_its_end_by_each_api_and_stops_when_nobody_reads(
    models: Path, expected: dict[str, str], serve: Server
) -> None:
    chat = body(models / "known", "Hello")
    bare = {"model": chat["model"], "temperature": 0}
    asked = [
        (ChatCompletions(serve.api, profile="vllm"), chat),
        (Responses(serve.api), {**bare, "input": "Hello"}),
        (Messages(serve.api), chat),
    ]
    for server, request in asked:
        *text, finish = [item async for item in server.stream(request)]
        assert "".join([str(piece) for piece in text]) == expected["Hello"]
        assert isinstance(finish, Finish)
        assert finish.reason == "stop"
        assert [item async for item in server.events(request)]
    before = metric(serve, "generation_tokens_total")
    left = ChatCompletions(serve.api).events(body(models / "known", "long", max_tokens=ASKED, ignore_eos=True))
    for _ in range(5):
        await left.__anext__()
    await left.aclose()
    until = time.monotonic() + UP
    while metric(serve, "num_requests_running"):
        assert time.monotonic() < until
    assert metric(serve, "generation_tokens_total") - before < ASKED / 2


@pytest.fixture(scope="module", params=["Guarded", "Resumable"])
def guarded_vllm(
    request: pytest.FixtureRequest, models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """vLLM's server under a middleware of the page."""
    block = re.search(r"^```python\n# vllm_guard\.py\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    assert block is not None
    folder = tmp_path_factory.mktemp("guard")
    (folder / "vllm_guard.py").write_text(block[1], encoding="utf-8")
    with vllm_server(models, "--middleware", f"vllm_guard.{request.param}", paths=(folder,)) as server:
        yield server


def test_an_sdk_reads_the_same_from_vllm_under_the_middleware(
    models: Path, expected: dict[str, str], guarded_vllm: Server
) -> None:
    known = models / "known"
    for prompt in FEW:
        *chunks, counts = streamed(guarded_vllm, body(known, prompt, stream_options={"include_usage": True}))
        assert "".join([chunk.choices[0].delta.content or "" for chunk in chunks]) == expected[prompt]
        assert chunks[-1].choices[0].finish_reason == "stop"
        assert counts.usage.completion_tokens > 1
        told = sdk_of(guarded_vllm).responses.create(model=str(known), input=prompt, temperature=0, stream=True)
        assert list(told)[-1].response.output_text == expected[prompt]


def test_a_reader_that_leaves_the_middleware_stops_vllm(
    models: Path, guarded_vllm: Server, record_property: Callable[[str, object], None]
) -> None:
    stopped_by_leaving(guarded_vllm, guarded_vllm, models, record_property)


@pytest.mark.parametrize("guarded_vllm", ["Resumable"], indirect=True)
def test_an_answer_of_vllm_goes_on_after_a_cut(
    models: Path, expected: dict[str, str], guarded_vllm: Server
) -> None:
    for cut_at in (2000, 20000):
        assert resumed_text(guarded_vllm, body(models / "known", "long"), cut_at) == (expected["long"], 1)


@pytest.mark.parametrize("guarded_vllm", ["Guarded"], indirect=True)
def test_vllm_that_is_told_to_go_leaves_no_reader_waiting(
    models: Path, guarded_vllm: Server, record_property: Callable[[str, object], None]
) -> None:
    """Its server stops the engine and waits for its connections, of which this one would never end. The last that asks
    this server, which is gone then."""
    with begun(guarded_vllm, endless(models)) as pieces:
        guarded_vllm.process.send_signal(signal.SIGTERM)
        told = time.monotonic()
        tail = tail_of(pieces)
        record_property("seconds", time.monotonic() - told)
    assert b'"code":"shutdown"' in tail
    assert b"[DONE]" not in tail
    assert guarded_vllm.process.wait(UP) is not None


@pytest.mark.parametrize("guarded_vllm", ["Resumable"], indirect=True)
def test_an_sdk_raises_when_vllms_engine_is_killed_and_no_marker_follows(models: Path, guarded_vllm: Server) -> None:
    """vLLM sends its error event, and then `[DONE]`. The last that asks this server, which is gone then."""
    with begun(guarded_vllm, endless(models)) as pieces:
        answer = streamed(guarded_vllm, body(models / "known", "long", max_tokens=ASKED), ignore_eos=True)
        next(answer)
        os.kill(engine_of(guarded_vllm), signal.SIGKILL)
        tail = tail_of(pieces)
        with pytest.raises(openai.APIError, match="EngineCore"):
            list(answer)
    assert b'data: {"error": {"message": "EngineCore' in tail
    assert b"[DONE]" not in tail
