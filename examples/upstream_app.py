"""A guarded endpoint before a model's server that speaks OpenAI's API: vLLM, SGLang, llama.cpp, Ollama, LiteLLM, …

    pip install "streamguard-io[fastapi,httpx]" uvicorn
    MODEL_SERVER=http://localhost:8001/v1 MODEL_PROFILE=vllm uvicorn upstream_app:app

    curl -N --json '{"model": "m", "stream": true, "messages": [{"role": "user", "content": "Hello"}]}' \
        localhost:8000/v1/chat/completions

A server that dies, is stopped or is cut off in the middle ends its stream, too often cleanly. Here that is a failure
for whoever reads, with any client. A reader that leaves ends the generation: the connection to the server is closed.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from streamguard.adapters.fastapi import SealMiddleware, guarded
from streamguard.upstream.chat import ChatCompletions

BASE = os.environ.get("MODEL_SERVER", "http://localhost:8001/v1")
# One for all requests: connections and certificates are kept. httpx's own limit would have the 101st stream wait.
http = httpx.AsyncClient(limits=httpx.Limits(max_connections=None))
model = ChatCompletions(BASE, profile=os.environ.get("MODEL_PROFILE", "openai"), client=http)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    yield
    await http.aclose()


app = FastAPI(lifespan=lifespan)


@app.post("/v1/chat/completions")
@guarded(dialect="openai")
async def completions(request: Request) -> Any:
    """The server's own chunks, unchanged, for the SDKs: tool calls, logprobs and several choices as well."""
    body = await request.json()
    if not body.get("stream"):
        answer = await http.post(f"{BASE}/chat/completions", json=body, timeout=600.0)
        return JSONResponse(answer.json(), answer.status_code)
    return model.events(body)


@app.post("/chat")
@guarded
async def chat(request: Request) -> Any:
    """The text, for a client of your own; in any dialect."""
    asked = (await request.json())["text"]
    options = {"include_usage": True}
    return model.stream({"model": "m", "messages": [{"role": "user", "content": asked}], "stream_options": options})


app.add_middleware(SealMiddleware)  # last, so that it is outermost
