"""A server that speaks `/v1/completions`, for tests: it knows one text, and goes on with it from any prompt.

    engine = Engine()
    with serving(engine.app) as server: ...

What it does is said by the request's `model`; `asked` keeps the bodies of the requests that came.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.adapters.servers import Gate

__all__ = ["PROMPT", "REASONS", "WHOLE", "WORDS", "Engine"]

PROMPT = "Count: "
WORDS = [f"w{number}é " for number in range(12)]
WHOLE = "".join(WORDS)
REASONS = {"abort": "abort", "length": "length"}


class Engine:
    """See the module. `reached` opens where a model called `hangs` stands still, which it does once in a text from its
    start, and `closed` once that one was told to stop."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.reached = Gate()
        self.closed = Gate()
        self.app = Starlette(routes=[Route("/v1/completions", self._answer, methods=["POST"])])

    async def _answer(self, request: Request) -> Response:
        body = await request.json()
        self.asked.append(body)
        self.keys.append(request.headers.get("authorization", ""))
        how = body["model"]
        if how == "refuses":
            return JSONResponse({"error": {"message": "a secret path", "code": 400}}, 400)
        if how == "busy":
            return JSONResponse({"error": {"message": "later"}}, 503)
        if how == "whole":
            return JSONResponse({"choices": [{"text": WHOLE}]})
        return StreamingResponse(self._events(body, how), media_type="text/event-stream")

    async def _events(self, body: dict[str, Any], how: str) -> AsyncIterator[str]:
        so_far = body["prompt"].removeprefix(PROMPT)
        assert WHOLE.startswith(so_far)
        words = WORDS[len(so_far.split()) :]
        for number, word in enumerate(words):
            if number == 2 and how == "fails":
                yield 'data: {"error": {"message": "a secret path", "code": "engine_dead"}}\n\n'
                yield "data: [DONE]\n\n"
                return
            if number == 2 and how == "cut":
                return
            if number == 2 and how == "breaks":
                raise ConnectionError("on purpose")
            if number == 2 and how == "hangs" and not so_far:
                async for event in self._hang():
                    yield event
            yield _chunk(text=word)
        if how not in ("unproven", "no reason"):
            yield _chunk(text="", finish_reason=REASONS.get(how, "stop"))
        usage = {"prompt_tokens": len(body["prompt"].split()), "completion_tokens": len(words)}
        if body.get("stream_options", {}).get("include_usage"):
            yield f"data: {json.dumps({'object': 'text_completion', 'choices': [], 'usage': usage})}\n\n"
        if how not in ("no marker", "unproven"):
            yield "data: [DONE]\n\n"

    async def _hang(self) -> AsyncIterator[str]:
        self.reached.open()
        try:
            await Gate()
            yield ""
        finally:
            self.closed.open()


def _chunk(**choice: Any) -> str:
    fields = {"index": 0, "logprobs": None, "finish_reason": None, **choice}
    return f"data: {json.dumps({'id': 'cmpl-1', 'object': 'text_completion', 'choices': [fields]})}\n\n"
