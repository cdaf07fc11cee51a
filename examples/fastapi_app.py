"""A guarded chat endpoint and an OpenAI-compatible one: `uvicorn fastapi_app:app`.

    curl -N --json '{"text": "Tell me a story"}' localhost:8000/chat

`generate` stands for a model. Ask for `break` and it fails half-way: every client then reports an error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request
from pydantic import BaseModel

from streamguard import EveryTokens, Finish, SourceFailed, Timing, Within, any_of
from streamguard.adapters.fastapi import GuardedResponse, SealMiddleware, guarded
from streamguard.core.dialect import OpenAI
from streamguard.observe.hooks import Outcome

log = logging.getLogger(__name__)
app = FastAPI()
BATCHED = any_of(EveryTokens(8), Within(0.04))


class Prompt(BaseModel):
    text: str


class Message(BaseModel):
    role: str
    content: str


class ChatRequest(BaseModel):
    model: str
    messages: list[Message]
    stream: bool = True


async def generate(prompt: str) -> AsyncIterator[str | Finish]:
    """A model: it says the prompt again, word by word."""
    words = prompt.split()
    for word in words:
        await asyncio.sleep(0)  # the next token is computed
        if word == "break":
            raise SourceFailed("model_broke", "the model broke at this word", retryable=True)
        yield word + " "
    yield Finish("stop", {"completion_tokens": len(words)})


async def current_user(request: Request) -> str:
    user = request.headers.get("x-user", "anybody")
    if user == "nobody":
        raise HTTPException(403, "not for you")  # before the stream: an ordinary status
    return user


def record(outcome: Outcome) -> None:
    """Called once for each stream, however it ended: the place for metrics and billing."""
    log.info("%s after %d tokens: %s", outcome.status, outcome.items, outcome.usage)


@app.post("/chat")
@guarded(on_end=record)
async def chat(prompt: Prompt, user: Annotated[str, Depends(current_user)]) -> AsyncIterator[str | Finish]:
    yield f"{user}: "
    async for token in generate(prompt.text):
        yield token


@app.post("/v1/chat/completions")
async def completions(request: ChatRequest) -> Any:
    """For the OpenAI SDKs. A response of its own, because the dialect's settings come from the request."""
    source = generate(request.messages[-1].content)
    return GuardedResponse(source, dialect=OpenAI(model=request.model), flush=BATCHED, on_end=record)


@app.post("/early")
@guarded(timing=Timing(peek=2.0))
async def early(prompt: Prompt) -> AsyncIterator[str | Finish]:
    """Headers wait up to two seconds for the first token, so that a failure before it keeps its status."""
    if not prompt.text.strip():
        raise HTTPException(422, "say something")
    async for token in generate(prompt.text):
        yield token


app.add_middleware(SealMiddleware)  # last, so that it is outermost
