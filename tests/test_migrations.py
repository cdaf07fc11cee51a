"""The diffs of the migration pages: what stands before and what stands after both run, and differ as the pages say."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import types
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from streamguard.client import stream_sync
from streamguard.core.errors import FailedStream
from streamguard.core.receipt import Verdict
from tests.adapters.servers import serving
from tests.adapters.wsgi_servers import serving_wsgi
from tests.asking import http
from tests.modules import ROOT

HOW_TO = ROOT / "docs" / "how-to"
PLAIN = {"accept-encoding": "identity"}  # Django compresses each part by itself, of which httpx reads the first
DIFF = re.compile(r"^```diff\n(.*?)^```", re.MULTILINE | re.DOTALL)

FASTAPI = """
import json
from collections.abc import AsyncIterable, AsyncIterator
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from streamguard.adapters.fastapi import SealMiddleware, guarded

app = FastAPI()

class Prompt(BaseModel):
    text: str
"""
DJANGO = """
import json
from django.core.asgi import get_asgi_application
from django.http import StreamingHttpResponse
from streamguard.adapters.django import SealMiddleware, guarded
"""
FLASK = """
import json
from flask import Flask, Response, request, stream_with_context
from streamguard.adapters.flask import guarded

app = Flask(__name__)
"""
SSE_STARLETTE = FASTAPI + "from sse_starlette import EventSourceResponse\n"
FASTAPI_SSE = FASTAPI + "from fastapi.sse import EventSourceResponse\n"

PAGES = {
    "StreamingResponse": ("convert-an-endpoint.md", "From a StreamingResponse", FASTAPI),
    "sse-starlette": ("convert-an-endpoint.md", "From sse-starlette", SSE_STARLETTE),
    "fastapi.sse": ("convert-an-endpoint.md", "From fastapi.sse", FASTAPI_SSE),
    "StreamingHttpResponse": ("use-django.md", "From StreamingHttpResponse", DJANGO),
    "Flask": ("use-flask-and-wsgi.md", "From a Flask Response that streams", FLASK),
}
WAYS = [
    pytest.param(
        way,
        marks=pytest.mark.skipif(
            way == "fastapi.sse" and importlib.util.find_spec("fastapi.sse") is None,
            reason="absent: fastapi.sse (install it with: pip install -U fastapi)",
        ),
    )
    for way in PAGES
]


async def generate(text: str) -> AsyncIterator[str]:
    for word in text.split():
        if word == "break":
            raise RuntimeError("the model broke")
        yield word + " "


def generate_plain(text: str) -> Iterator[str]:
    for word in text.split():
        if word == "break":
            raise RuntimeError("the model broke")
        yield word + " "


def sides(way: str) -> tuple[str, str]:
    """What the diffs under a page's heading are made of: the program before, and after."""
    page, heading, _ = PAGES[way]
    part = (HOW_TO / page).read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for diff in DIFF.findall(part) for line in diff.splitlines()]
    assert lines, f"{page} has no diff under {heading!r}"
    return tuple("\n".join(line[1:] for line in lines if line[:1] != drop) for drop in "+-")  # type: ignore[return-value]


@contextmanager
def served(way: str, side: int) -> Iterator[str]:
    """The program on one side, served; the address of its endpoint."""
    module = types.ModuleType(f"migration_{side}")
    sys.modules[module.__name__] = module  # where annotations are looked up
    views = _views_of_django() if way == "StreamingHttpResponse" else {}
    module.__dict__["generate"] = generate_plain if way == "Flask" else generate
    exec(PAGES[way][2] + sides(way)[side], module.__dict__)
    if way == "Flask":
        with serving_wsgi("waitress", module.__dict__["app"]) as url:
            yield f"{url}/chat"
    elif way == "StreamingHttpResponse":
        views["chat"] = module.__dict__["chat"]
        with serving(module.__dict__["application"], lifespan="off") as server:
            yield f"{server.url}/direct/chat"
    else:
        with serving(module.__dict__["app"]) as server:
            yield f"{server.url}/chat"


def _views_of_django() -> dict[str, Any]:
    from tests.adapters.django_site import DIRECT  # which sets Django up, once for the process

    return DIRECT


def data_of(body: str) -> list[Any]:
    """The data of the events of text, as JSON where it is."""
    found = []
    for line in body.splitlines():
        name, _, data = line.partition(": ")
        if name == "data" and data != "[DONE]" and not data.startswith("{"):
            found.append(json.loads(data) if data.startswith('"') else data)
    return found


@pytest.mark.parametrize("way", WAYS)
def test_a_whole_answer_has_the_same_text_before_and_after_and_is_whole_for_sure_after(way: str) -> None:
    asked = {"text": "Tell me a story"}
    with served(way, 0) as url:
        before = http.post(url, json=asked, headers=PLAIN)
    with served(way, 1) as url:
        after = http.post(url, json=asked)
        with stream_sync("POST", url, json=asked, client=http) as answer:
            assert answer.read() == "Tell me a story "
    assert answer.receipt.verdict is Verdict.COMPLETE
    assert [text.rstrip() for text in data_of(before.text)] == ["Tell", "me", "a", "story"]
    assert "".join(data_of(after.text)) == "Tell me a story "
    if way != "sse-starlette":  # which writes bare text, under a type
        assert "".join(data_of(before.text)) == "Tell me a story "
    assert before.headers["content-type"].partition(";")[0] == "text/event-stream"
    assert ("event: end" in before.text, "event: end" in after.text) == (False, True)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_failure_is_told_after_and_was_not_before(way: str) -> None:
    asked = {"text": "Tell me break"}
    with served(way, 0) as url:
        before = body_of(url, asked)
    assert before.startswith(("data: ", "event: token"))
    assert before.count("data: ") <= 2  # what was generated, or less, and not a word of what happened
    assert "fail" not in before
    assert "error" not in before
    with served(way, 1) as url:
        with pytest.raises(FailedStream), stream_sync("POST", url, json=asked, client=http) as answer:
            answer.read()
    assert answer.receipt.verdict is Verdict.FAILED


def body_of(url: str, asked: dict[str, str]) -> str:
    """As much of an answer as comes."""
    body = b""
    try:
        with http.stream("POST", url, json=asked, headers=PLAIN) as response:
            for piece in response.iter_bytes():
                body += piece
    except httpx.HTTPError:
        pass
    return body.decode()
