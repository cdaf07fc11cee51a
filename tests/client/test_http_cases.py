"""The `http` section of the shared SSE cases, over real sockets, in every mode of the client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from streamguard.core.errors import UnexpectedResponse
from streamguard.core.receipt import Verdict
from tests.client.reading import each_mode, read
from tests.client.server import LAST_CHUNK, Connection, Request, Server, chunk, head, made

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent.parent / "cases" / "sse_cases.json").read_text(encoding="utf-8")
)["http"]

EXCEPTIONS = {
    "reconnect-sends-older-id-when-later-events-have-none": "the client does not reconnect by itself",
    "reconnect-no-header-after-empty-id": "the client does not reconnect by itself",
    "reconnect-utf8-id-bytes": "the client does not reconnect by itself",
    "read-timeout-reconnects": "the client raises LivenessLimitExceeded and does not reconnect by itself",
    "reconnect-resends-post-body": "never: sending a POST again pays for a second generation, and mixes two answers",
    "cors-safe-id-no-preflight": "for browsers only: no other client sends preflights",
    "cors-unsafe-id-preflight": "for browsers only: no other client sends preflights",
    "cors-long-id-preflight": "for browsers only: no other client sends preflights",
}

STREAM = made("Hello", " world")


def answer(connection: Connection, request: Request) -> None:
    connection.send(STREAM.head() + chunk(STREAM.body) + LAST_CHUNK)


def cases(key: str, wanted: bool = True) -> list[Any]:
    return [
        pytest.param(case, id=f"{case['name']}-{number}")
        for number, case in enumerate(CASES)
        if case["name"] not in EXCEPTIONS and (key in case) is wanted
    ]


def test_every_exception_is_a_case_and_the_others_are_tried() -> None:
    assert {case["name"] for case in CASES} >= EXCEPTIONS.keys()
    tried = {case.id for case in [*cases("response"), *cases("expect_request")]}
    assert len(tried) == sum(case["name"] not in EXCEPTIONS for case in CASES)


@each_mode
@pytest.mark.parametrize("case", cases("response"))
def test_a_response(case: dict[str, Any], mode: str) -> None:
    response = case["response"]
    fields = {"location": response["location"]} if response.get("location") is not None else {}

    def first(connection: Connection, request: Request) -> bool:
        if "content_type" in response and case["expect"] == "open":
            connection.send(head(response["status"], response["content_type"]) + chunk(STREAM.body) + LAST_CHUNK)
        elif fields.get("location") == "<stream>":
            connection.send(head(response["status"], None, location="/elsewhere", content_length=0))
        else:
            body = b"" if response["status"] == 204 else STREAM.body
            connection.send(head(response["status"], response.get("content_type"), connection="close", **fields) + body)
            connection.finish()
            return False
        return True

    with Server(first, answer) as server:
        seen = read(mode, server.url, "GET")
        if case["expect"] in ("open", "follow, open"):
            assert seen.error is None
            assert seen.text == "Hello world"
            assert seen.receipt is not None
            assert seen.receipt.verdict is Verdict.COMPLETE
            assert len(server.requests) == (2 if fields else 1)
        else:
            assert case["expect"] in ("fail", "error, no loop")
            assert isinstance(seen.error, UnexpectedResponse)
            assert seen.error.status == response["status"]
            assert len(server.requests) == 1


@each_mode
@pytest.mark.parametrize("case", cases("expect_request"))
def test_a_request(case: dict[str, Any], mode: str) -> None:
    with Server(answer) as server:
        assert read(mode, server.url, "GET").error is None
        for name, value in case["expect_request"].items():
            assert server.requests[0].headers.get(name.lower()) == value
