"""Models that run in this process, guarded: transformers, vLLM's engine, a LangChain model or LangGraph graph.

    pip install "streamguard-io[fastapi]" uvicorn torch transformers
    MODEL=HuggingFaceTB/SmolLM2-135M uvicorn upstream_local:app

    curl -N --json '{"text": "Once upon a time"}' localhost:8000/transformers

Each of them is loaded when it is first asked for. A reader that leaves stops the generation, in each in its own way.
"""

from __future__ import annotations

import functools
import os
import uuid
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from streamguard.adapters.fastapi import SealMiddleware, guarded
from streamguard.upstream.langchain import langchain_stream
from streamguard.upstream.transformers import generation
from streamguard.upstream.vllm import vllm_outputs

app = FastAPI()


class Prompt(BaseModel):
    text: str


@functools.cache
def loaded() -> tuple[Any, Any]:
    """A tokenizer and a model of transformers."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    name = os.environ["MODEL"]
    return AutoTokenizer.from_pretrained(name), AutoModelForCausalLM.from_pretrained(name)


@app.post("/transformers")
@guarded
def hugging_face(prompt: Prompt) -> Any:
    from transformers import TextIteratorStreamer

    tokenizer, model = loaded()
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    inputs = tokenizer(prompt.text, return_tensors="pt")
    return generation(model.generate, streamer, **inputs, max_new_tokens=200)


@functools.cache
def engine() -> Any:
    """vLLM's engine."""
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    return AsyncLLM.from_engine_args(AsyncEngineArgs(model=os.environ["MODEL"]))


@app.post("/vllm")
@guarded
async def vllm(prompt: Prompt) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    sampling = SamplingParams(max_tokens=200, output_kind=RequestOutputKind.DELTA)
    return vllm_outputs(engine().generate(prompt.text, sampling, uuid.uuid4().hex), sampling.output_kind)


@functools.cache
def chain() -> Any:
    """Any chat model, or a graph (then `astream(…, stream_mode="messages")`)."""
    from langchain.chat_models import init_chat_model

    return init_chat_model(os.environ["MODEL"])


@app.post("/langchain")
@guarded(dialect="ui")
async def langchain(prompt: Prompt) -> Any:
    return langchain_stream(chain().astream(prompt.text))


app.add_middleware(SealMiddleware)  # last, so that it is outermost
