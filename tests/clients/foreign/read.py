"""python read.py: clients of others, asked by lines of JSON. It ends with its standard input, and needs nothing else.

    {"id": 1, "do": "openai", "with": ["http://…"]}

Each is answered by {"id", "value"}: what the client handed out until it stopped, and what it raised then (None: it
reports success). Each keeps its library's defaults, save how often a request is tried again before it has an answer.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from datetime import timedelta
from typing import Any

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
SECONDS = 30.0


def read_openai(url: str) -> Any:
    import openai

    with openai.OpenAI(api_key="k", base_url=url, max_retries=0, timeout=SECONDS) as client:
        for chunk in client.chat.completions.create(**BODY, stream=True):
            yield chunk.model_dump()


def read_anthropic(url: str) -> Any:
    import anthropic

    with anthropic.Anthropic(api_key="k", base_url=url, max_retries=0, timeout=SECONDS) as client:
        with client.messages.stream(**BODY, max_tokens=9) as stream:
            for event in stream:
                yield event.model_dump()


def read_httpx_sse(url: str) -> Any:
    import httpx
    import httpx_sse

    with httpx.Client(timeout=SECONDS) as client:
        with httpx_sse.connect_sse(client, "POST", url, json=BODY) as source:
            for event in source.iter_sse():
                yield [event.event, event.data]


def read_httpx2(url: str) -> Any:
    import httpx2

    with httpx2.Client(timeout=SECONDS) as client, client.sse(url, method="POST", json=BODY) as source:
        for event in source:
            yield [event.event, event.data]


def read_sseclient(url: str) -> Any:
    import requests
    import sseclient  # pyright: ignore[reportMissingImports]

    with requests.post(url, json=BODY, stream=True, timeout=SECONDS) as response:
        for event in sseclient.SSEClient(response).events():
            yield [event.event, event.data]


def read_requests_sse(url: str) -> Any:
    import requests_sse

    soon = timedelta(milliseconds=5)
    with requests_sse.EventSource(url, timeout=SECONDS, reconnection_time=soon) as source:
        for event in source:
            yield [event.type, event.data]


def read_launchdarkly(url: str) -> Any:
    import ld_eventsource  # pyright: ignore[reportMissingImports]

    with ld_eventsource.SSEClient(url) as source:
        for event in source.events:
            yield [event.event, event.data]


def read_langgraph(url: str) -> Any:
    from langgraph_sdk import get_sync_client  # pyright: ignore[reportMissingImports]

    client = get_sync_client(url=url, api_key=None)
    for part in client.runs.stream(None, "agent", input={}):
        yield [part.event, part.data]


CLIENTS = {
    "openai": read_openai,
    "anthropic": read_anthropic,
    "httpx-sse": read_httpx_sse,
    "httpx2": read_httpx2,
    "sseclient-py": read_sseclient,
    "requests-sse": read_requests_sse,
    "launchdarkly-eventsource": read_launchdarkly,
    "langgraph-sdk": read_langgraph,
}


def reading(client: str, url: str) -> dict[str, Any]:
    """What a client handed out, and what it raised."""
    handed = []
    error = None
    try:
        for item in CLIENTS[client](url):
            handed.append(item)
    except Exception as exc:
        error = type(exc).__name__
    return {"handed": handed, "error": error}


def main() -> None:
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    answers, sys.stdout = sys.stdout, sys.stderr  # whatever else prints
    print(json.dumps({"id": 0, "value": sys.version}), file=answers, flush=True)
    for line in sys.stdin:
        told = json.loads(line)
        value = reading(told["do"], *told["with"])
        print(json.dumps({"id": told["id"], "value": value}, default=str), file=answers, flush=True)


if __name__ == "__main__":
    main()
