"""Which requests are refused because they ask for no stream, and in whose words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamguard.core.exchange import RequestFacts
from streamguard.core.unstreamed import refuse_unstreamed

SID = "AAAAAAAAAAAAAAAAAAAAAA"
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def refused(body: Any, dialect: str = "openai", method: str = "POST", query: str = "", **headers: str) -> Any:
    facts = RequestFacts(method, {name.replace("_", "-"): value for name, value in headers.items()}, query)
    return refuse_unstreamed(facts, dialect, body if isinstance(body, bytes) else json.dumps(body).encode())


@pytest.mark.parametrize(
    "body",
    [
        CHAT,
        {**CHAT, "stream": False},
        {**CHAT, "stream": None},
        {"model": "m", "input": "hi"},
        {"text": "an application's own", "stream": False},
        {**CHAT, "metadata": {"quoted": '"stream": true'}},
        {**CHAT, "stream": False, "metadata": {"stream": True}},
        {**CHAT, "tools": [{"properties": {"stream": True}}]},
        {**CHAT, "stream": False, "stream_options": {"include_usage": True}},
        {**CHAT, "stream_options": None},
        b'{"model": "m", "messages": [], "stream": true, "stream": false}',
    ],
)
def test_a_request_that_asks_for_no_stream_is_refused(body: dict[str, Any]) -> None:
    assert refused(body).status == 400


@pytest.mark.parametrize(
    "body",
    [
        {**CHAT, "stream": True},
        {**CHAT, "stream": 1},
        {**CHAT, "stream_options": {"include_usage": True}},
        b'{"model": "m", "messages": [], "str\\u0065am": true}',
        {"messages": CHAT["messages"]},
        {"model": "m", "prompt": "hi"},
        {"text": "hi", "stream": None},
        [CHAT],
        b"",
        b"{",
        b"a=1&stream=false",
        b'{"a":' + b"[" * 100_000,
        b'{"model": "\xff", "messages": [], "stream": false}',
    ],
)
def test_what_asks_or_is_no_providers_request_is_not(body: Any) -> None:
    assert refused(body) is None


def test_nor_is_whoever_shows_in_a_header_that_events_are_wanted() -> None:
    assert refused(CHAT, accept="application/json, */*") is not None
    assert refused(CHAT, accept="application/json, text/plain, text/event-streams; a=text/event-stream") is not None
    assert refused(CHAT, accept="text/event-stream") is None
    assert refused(CHAT, accept="*/*, TEXT/Event-Stream;q=0.9") is None
    assert refused(CHAT, accept="application/x-ndjson") is None
    assert refused(CHAT, accept="application/vnd.streamguard.v1") is None
    assert refused(CHAT, streamguard="v=1") is None
    assert refused(CHAT, query="sg=v%3D1") is None
    assert refused(CHAT, last_event_id=f"{SID}.3.21.0badcafe") is None
    assert refused(CHAT, method="GET") is None


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json", 400),
        ("Application/JSON; charset=utf-8", 400),
        ("application/vnd.api+json", 400),
        ("", 400),
        ("text/plain", None),
        ("application/x-www-form-urlencoded", None),
    ],
)
def test_a_body_that_is_said_to_be_no_json_is_no_providers_request(content_type: str, status: int | None) -> None:
    answer = refused({**CHAT, "stream": False}, content_type=content_type)
    assert (answer and answer.status) == status


def test_each_provider_says_it_in_its_own_form() -> None:
    for dialect in ("openai", "openai-responses"):
        answer = refused(CHAT, dialect)
        assert json.loads(answer.body)["error"] == {
            "message": 'this endpoint only streams: send "stream": true',
            "type": "invalid_request_error",
            "param": "stream",
            "code": answer.code,
        }
    assert json.loads(refused(CHAT, "anthropic").body) == {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "message": 'this endpoint only streams: send "stream": true',
        },
    }
    headers = dict(answer.headers)
    assert (headers["content-type"], headers["x-should-retry"]) == ("application/json", "false")
    assert headers["content-length"] == str(len(answer.body))


@pytest.mark.parametrize("dialect", ["native", "ui", "ag-ui", "raw", "text", "one of an application's"])
def test_other_dialects_refuse_nothing(dialect: str) -> None:
    assert refused({**CHAT, "stream": False}, dialect) is None
