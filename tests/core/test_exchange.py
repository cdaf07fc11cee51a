"""What HTTP says about a stream: terms, headers, and the table of refusals (wire protocol, sections 3 and 6)."""

from __future__ import annotations

import json
import re
from typing import Any

import attrs
import pytest

from streamguard.core.cursor import Cursor, cursor_zero
from streamguard.core.errors import Failure
from streamguard.core.exchange import (
    NO_STORE,
    Granted,
    Refusal,
    RequestFacts,
    answer_headers,
    come_back,
    early_failure,
    granted,
    http10_refusal,
    problem,
    refusal,
    terms,
)
from streamguard.core.negotiate import Answer, parse_answer
from streamguard.core.receipt import Verdict
from streamguard.core.states import FINAL_STATUSES
from streamguard.core.verify import StreamVerifier

SID = "AAAAAAAAAAAAAAAAAAAAAA"
ZERO = cursor_zero(SID)
CURSOR = f"{SID}.3.21.0badcafe"
OURS = {"streamguard": "v=1"}
SSE = {"accept": "text/event-stream"}


def facts(method: str = "GET", query: str = "", **headers: str) -> RequestFacts:
    return RequestFacts(method, {name.replace("_", "-"): value for name, value in headers.items()}, query)


@pytest.mark.parametrize(
    ("request_", "negotiated", "ids"),
    [
        (facts("POST"), False, "comment"),
        (facts("GET"), False, "comment"),
        (facts("POST", **SSE), False, "comment"),
        (facts("GET", **SSE), False, "id"),
        (facts("GET", accept="application/json, text/event-stream;q=0.5"), False, "id"),
        (facts("POST", last_event_id="an application's own"), False, "id"),
        (facts("POST", **OURS), True, "id"),
        (facts("GET", "sg=v%3D1"), True, "id"),
        (facts("GET", "prompt=hi&sg=v%3D1%2C+flush%3Dtoken"), True, "id"),
        (facts("GET", "sg=v%3D2"), False, "comment"),
        (facts("GET", "sg=v%3D1", streamguard="v=2"), False, "comment"),
    ],
)
def test_terms_are_read_from_the_request(request_: RequestFacts, negotiated: bool, ids: str) -> None:
    found = terms(request_)
    assert (found.negotiated, found.ids) == (negotiated, ids)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (facts(cache_control="no-cache", **SSE), True),
        (facts(cache_control="max-age=0, No-Cache", last_event_id=CURSOR, **SSE), True),
        (facts(query="sg=v%3D1", cache_control="no-cache", **SSE), True),
        (facts(**SSE), False),
        (facts(cache_control="no-store", **SSE), False),
        (facts(cache_control="no-cache"), False),
        (facts("POST", cache_control="no-cache", **SSE), False),
        (facts(cache_control="no-cache", **SSE, **OURS), False),
    ],
)
def test_an_event_source_asks_for_ever_and_past_caches(request_: RequestFacts, expected: bool) -> None:
    assert request_.asks_for_ever == expected


@pytest.mark.parametrize(
    ("request_", "cursor"),
    [
        (facts(), None),
        (facts(last_event_id="42"), None),
        (facts(last_event_id=""), None),
        (facts(query="after=42"), None),
        (facts(last_event_id=CURSOR), CURSOR),
        (facts(query=f"prompt=hi&after={CURSOR}"), CURSOR),
        (facts(query=f"after={CURSOR}", last_event_id="42"), CURSOR),
        (facts(query=f"after={CURSOR}", last_event_id=str(ZERO)), str(ZERO)),
        (facts(last_event_id=f"{CURSOR}, {CURSOR}"), CURSOR),
        (facts(last_event_id=f"42,{CURSOR}"), CURSOR),
        (facts(last_event_id=f" {CURSOR} "), CURSOR),
        (facts(query=f"after=42&after={CURSOR}"), CURSOR),
        (facts(query=f"after=%20{CURSOR}"), CURSOR),
    ],
)
def test_a_cursor_is_found_in_either_place_and_a_strangers_id_is_none(
    request_: RequestFacts, cursor: str | None
) -> None:
    assert request_.cursor == cursor


@pytest.mark.parametrize(
    "request_",
    [facts(), facts("POST"), facts("HEAD"), facts(last_event_id="42", **SSE), facts(query="after=yesterday")],
)
def test_a_request_without_a_cursor_is_not_refused(request_: RequestFacts) -> None:
    assert refusal(request_) is None


READERS = {
    "ours": lambda cursor: facts(last_event_id=cursor, **OURS),
    "ours, POST": lambda cursor: facts("POST", last_event_id=cursor, **OURS),
    "ours, by address": lambda cursor: facts(query=f"sg=v%3D1&after={cursor}", **SSE),
    "EventSource": lambda cursor: facts(last_event_id=cursor, **SSE),
    "EventSource, ?after=": lambda cursor: facts(query=f"after={cursor}", **SSE),
    "POST": lambda cursor: facts("POST", last_event_id=cursor),
    "POST that accepts events": lambda cursor: facts("POST", last_event_id=cursor, **SSE),
    "POST, ?after=": lambda cursor: facts("POST", f"after={cursor}"),
    "plain GET": lambda cursor: facts(last_event_id=cursor),
    "HEAD": lambda cursor: facts("HEAD", last_event_id=cursor),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("status", [*FINAL_STATUSES, "lost", "newer"])
def test_a_cursor_with_a_final_status_gets_204(reader: str, status: str) -> None:
    """`newer`: a status that this version does not know is a terminal's as well, and it must stop a reader."""
    assert refusal(READERS[reader](f"{CURSOR}.{status}")) == Refusal(204, [NO_STORE])


@pytest.mark.parametrize("cursor", [CURSOR, str(ZERO)])
@pytest.mark.parametrize(
    ("reader", "status"),
    [
        ("ours", 404),
        ("ours, POST", 404),
        ("ours, by address", 404),
        ("POST", 409),
        ("POST that accepts events", 409),
        ("POST, ?after=", 409),
        ("plain GET", 404),
        ("HEAD", 404),
    ],
)
def test_a_cursor_of_an_unknown_stream_is_refused(reader: str, status: int, cursor: str) -> None:
    refused = refusal(READERS[reader](cursor))
    assert refused is not None
    assert not refused.abort
    _is_problem(refused, status, "unknown_stream")


@pytest.mark.parametrize("reader", ["EventSource", "EventSource, ?after="])
@pytest.mark.parametrize("cursor", [CURSOR, str(ZERO), f"{CURSOR}..more"])
def test_an_event_source_is_told_lost_and_its_next_request_gets_204(reader: str, cursor: str) -> None:
    refused = refusal(READERS[reader](cursor))
    assert refused is not None
    assert (refused.status, refused.abort) == (200, True)
    assert NO_STORE in refused.headers
    assert ("content-type", "text/event-stream; charset=utf-8") in refused.headers
    lines = refused.body.decode().split("\n")
    assert [line.partition(":")[0] for line in lines] == ["event", "id", "data", "", ""]
    last_event_id = lines[1].removeprefix("id: ")
    assert Cursor.parse(last_event_id) == Cursor.parse(cursor)._replace(status="lost")
    again = refusal(READERS[reader](last_event_id))
    assert again is not None
    assert again.status == 204


def test_our_reader_takes_the_lost_block_for_a_gap() -> None:
    refused = refusal(READERS["EventSource"](CURSOR))
    assert refused is not None
    verifier = StreamVerifier()
    verifier.feed(refused.body)
    verifier.end(clean=False)
    assert verifier.verdict is Verdict.GAP


def test_http_1_0_is_refused_with_the_version_to_use() -> None:
    refused = http10_refusal()
    _is_problem(refused, 426, "http_1_0")
    assert ("upgrade", "HTTP/1.1") in refused.headers


def _is_problem(refused: Refusal, status: int, code: str, *, retry: str = "false") -> None:
    headers = dict(refused.headers)
    body = json.loads(refused.body)
    assert (refused.status, body["status"], body["code"]) == (status, status, code)
    assert headers["content-type"] == "application/problem+json"
    assert headers["cache-control"] == "no-store, no-transform"
    assert headers["x-should-retry"] == retry
    assert headers["content-length"] == str(len(refused.body))


def test_the_headers_of_a_stream() -> None:
    headers = dict(answer_headers(ZERO, content_type="text/event-stream; charset=utf-8", dialect="native", wire="sse"))
    promise = headers.pop("streamguard")
    assert headers == {
        "content-type": "text/event-stream; charset=utf-8",
        "cache-control": "no-store, no-transform",
        "x-accel-buffering": "no",
        "incremental": "?1",
        "x-content-type-options": "nosniff",
        "vary": "Origin, Streamguard, Last-Event-ID",
    }
    assert parse_answer(promise) == Answer(ZERO, "native", "sse")


def test_the_headers_of_dialect_ui_name_its_protocol() -> None:
    found = [dict(answer_headers(None, content_type="x", dialect=name, wire="sse")) for name in ("ui", "native")]
    assert found[0].pop("x-vercel-ai-ui-message-stream") == "v1"
    assert found[0] == found[1]


def test_the_headers_of_a_compressed_stream_say_so_twice() -> None:
    keys = Granted(flush="token", compress="gzip", credit=False)
    kind: dict[str, Any] = {"content_type": "text/event-stream", "dialect": "native", "wire": "sse"}
    headers = dict(answer_headers(ZERO, granted=keys, compresses=True, **kind))
    assert headers["content-encoding"] == "gzip"
    assert headers["vary"] == "Origin, Streamguard, Last-Event-ID, Accept-Encoding"
    expected = Answer(ZERO, "native", "sse", flush="token", compress="gzip", credit=False)
    assert parse_answer(headers["streamguard"]) == expected
    others = dict(answer_headers(ZERO, compresses=True, **kind))
    assert ("content-encoding" in others, others["vary"]) == (False, headers["vary"])


@pytest.mark.parametrize(
    ("asked", "token", "gzip", "keys"),
    [
        (facts(), True, True, Granted()),
        (facts(accept_encoding="gzip"), True, True, Granted()),
        (facts(streamguard="v=1"), True, True, Granted()),
        (facts(streamguard="v=2, flush=token, credit=(1 2)"), True, True, Granted()),
        (facts(streamguard="v=1, flush=token"), True, True, Granted(flush="token")),
        (facts(streamguard="v=1, flush=token"), False, True, Granted(flush="chunk")),
        (facts(streamguard="v=1, flush=chunk"), True, True, Granted(flush="chunk")),
        (facts(streamguard="v=1, flush=word"), True, True, Granted()),
        (facts(streamguard="v=1, credit=(64 65536)"), True, True, Granted(credit=False)),
        (facts(streamguard="v=1, compress=gzip"), True, True, Granted()),
        (facts(streamguard="v=1, compress=gzip", accept_encoding="gzip"), True, True, Granted(compress="gzip")),
        (facts(streamguard="v=1, compress=gzip", accept_encoding="gzip"), True, False, Granted()),
        (facts(streamguard="v=1, compress=br", accept_encoding="gzip, br"), True, True, Granted()),
        (facts(streamguard="v=1, compress=gzip", accept_encoding="br, gzip;q=0"), True, True, Granted()),
        (facts(query="sg=v=1,compress=gzip,flush=token", accept_encoding="gzip"), True, True, Granted("token", "gzip")),
    ],
)
def test_a_reader_is_granted_what_it_asks_for_and_may_have(
    asked: RequestFacts, token: bool, gzip: bool, keys: Granted
) -> None:
    assert granted(asked, token=token, gzip=gzip) == keys


@pytest.mark.parametrize(
    ("version", "held", "said"), [("1.0", False, True), ("1.0", True, False), ("1.1", False, False)]
)
@pytest.mark.parametrize("asked", ["v=1, flush=token", "v=2"])
def test_an_answer_that_leaves_over_http_1_0_says_so(asked: str, version: str, held: bool, said: bool) -> None:
    """Whoever is asked by a hop in between knows of it, and its reader cannot see it."""
    keys = granted(attrs.evolve(facts(streamguard=asked), http_version=version), token=True, gzip=True, held=held)
    assert keys.http10 is said
    headers = dict(answer_headers(ZERO, granted=keys, content_type="x", dialect="native", wire="sse"))
    assert headers["streamguard"].endswith(", http10=?1") is said


def test_head_names_no_stream() -> None:
    names = [name for name, _ in answer_headers(None, content_type="x/y", dialect="native", wire="sse")]
    assert "streamguard" not in names


def test_terms_and_refusals_are_values() -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        terms(facts()).ids = "id"  # type: ignore[misc]


@pytest.mark.parametrize(("retryable", "status", "retry"), [(True, 503, "true"), (False, 500, "false")])
def test_an_early_failure_is_a_status_with_the_code_that_the_source_chose(
    retryable: bool, status: int, retry: str
) -> None:
    refused = early_failure(Failure("overloaded", "the model is overloaded", retryable))
    assert (refused.status, refused.abort) == (status, False)
    assert json.loads(refused.body) == {
        "title": "overloaded",
        "status": status,
        "detail": "the model is overloaded",
        "code": "overloaded",
    }
    assert dict(refused.headers)["x-should-retry"] == retry


@pytest.mark.parametrize(("cursor", "retry"), [({}, "true"), ({"last_event_id": CURSOR}, "false")])
def test_a_trouble_that_passes_is_503_with_the_time_to_wait(cursor: dict[str, str], retry: str) -> None:
    refused = come_back(facts("POST", **cursor), "log_unavailable", "the log cannot be reached", 2)
    _is_problem(refused, 503, "log_unavailable", retry=retry)
    assert ("retry-after", "2") in refused.headers


def test_an_event_source_is_given_an_empty_stream_that_breaks_off_instead() -> None:
    """It would take a 503 for an end, and stop for good."""
    refused = come_back(facts("GET", **SSE), "log_unavailable", "the log cannot be reached")
    assert (refused.status, refused.abort) == (200, True)
    assert refused.body.startswith(b": log_unavailable\n")
    assert come_back(facts("GET", **SSE, **OURS), "log_unavailable", "…").status == 503


@pytest.mark.parametrize(("seconds", "least", "most"), [(None, 1000, 2000), (2.25, 2250, 2250)])
def test_an_event_source_is_told_when_to_come_back(seconds: float | None, least: int, most: int) -> None:
    """Without that all that were refused together would come back together, when their browser thinks fit."""
    said = {come_back(facts("GET", **SSE), "full", "…", seconds).body for _ in range(50)}
    found = [re.fullmatch(rb": full\nretry: (\d+)\n\n", body) for body in said]
    waits = [int(match[1]) for match in found if match]
    assert len(waits) == len(said)
    assert least <= min(waits) <= max(waits) <= most
    assert (len(said) > 1) is (least < most)


@pytest.mark.parametrize("retry", [False, True])
def test_any_other_no_says_what_is_wrong_and_whether_to_come_back(retry: bool) -> None:
    refused = problem(405, "method_not_allowed", "allowed: GET", ("allow", "GET"), retry=retry)
    assert refused.status == 405
    assert ("allow", "GET") in refused.headers
    body = json.loads(refused.body)
    assert (body["code"], body["detail"]) == ("method_not_allowed", "allowed: GET")
    assert dict(refused.headers)["x-should-retry"] == str(retry).lower()
