"""The keys `flush` and `credit` over sockets: what a reader asks for, what it may have, and what the answer says."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from streamguard import Block, EveryTokens, HoldBack
from streamguard.core.negotiate import Answer, parse_answer
from streamguard.core.receipt import Verdict
from tests.adapters.asgi_apps import Response, answering, exchange
from tests.adapters.logged_apps import Site, sid_of, text_of
from tests.adapters.servers import serving

SCRIPT = ["t0 ", "t1 ", "t2 ", "t3 "]
EIGHT = EveryTokens(8, first="policy")
KEY = "0123456789abcdef-a-long-one"


def direct(**options: Any) -> tuple[Any, str]:
    return answering(lambda: iterated(SCRIPT), **options), "/"


def logged(**options: Any) -> tuple[Any, str]:
    return Site(*SCRIPT, **options).app, "/tokens"


async def iterated(items: list[Any]) -> Any:
    for item in items:
        yield item


each_kind = pytest.mark.parametrize("made", [direct, logged], ids=["direct", "logged"])


def promise(response: Response) -> Answer:
    found = parse_answer(response.header("streamguard"))
    assert found is not None
    return found


def texts(response: Response) -> list[str]:
    assert response.verdict is Verdict.COMPLETE
    return [text.decode() for text in re.findall(rb'^data: "(.*)"$', response.body, re.MULTILINE)]


# ---- flush ------------------------------------------------------------------------------------------


@each_kind
@pytest.mark.parametrize(
    ("options", "asked", "told", "whole"),
    [
        ({"flush": EIGHT}, "v=1", None, True),
        ({"flush": EIGHT}, "v=1, flush=token", "chunk", True),
        ({"flush": EIGHT, "token_flush": True}, "v=1, flush=token", "token", False),
        ({"flush": EIGHT, "token_flush": True}, "v=1, flush=chunk", "chunk", True),
        ({"flush": EIGHT, "token_flush": True}, "v=1, flush=word", None, True),
        ({"flush": EIGHT, "token_flush": True}, "v=1, flush=1", None, True),  # malformed: nothing is asked for
        ({"flush": EIGHT, "token_flush": True}, "v=1, flush=token, flush=chunk", "chunk", True),
        ({"flush": EIGHT, "token_flush": True}, "v=1", None, True),
        ({}, "v=1, flush=token", "token", False),
        ({}, "v=1, flush=chunk", "chunk", False),
    ],
)
def test_a_reader_may_have_single_tokens_where_the_owner_lets_it(
    made: Callable[..., Any], options: dict[str, Any], asked: str, told: str | None, whole: bool
) -> None:
    app, path = made(**options)
    with serving(app) as server:
        answer = exchange(server.connect(), path=path, streamguard=asked)
    assert promise(answer).flush == told
    assert texts(answer) == (["".join(SCRIPT)] if whole else SCRIPT)


@each_kind
def test_it_can_be_asked_for_in_the_address(made: Callable[..., Any]) -> None:
    app, path = made(flush=EIGHT, token_flush=True)
    with serving(app) as server:
        answer = exchange(server.connect(), path=f"{path}?sg=v%3D1%2Cflush%3Dtoken")
        header_wins = exchange(server.connect(), path=f"{path}?sg=v%3D1%2Cflush%3Dtoken", streamguard="v=1")
    assert (promise(answer).flush, texts(answer)) == ("token", SCRIPT)
    assert (promise(header_wins).flush, texts(header_wins)) == (None, ["".join(SCRIPT)])


@each_kind
def test_a_policy_that_is_more_than_speed_is_not_for_readers_to_lift(made: Callable[..., Any]) -> None:
    app, path = made(flush=HoldBack(stop=["t1 t2"]))
    with serving(app) as server:
        answer = exchange(server.connect(), path=path, streamguard="v=1, flush=token")
    assert promise(answer).flush == "chunk"
    assert any("t1 t2" in text for text in texts(answer))


def test_how_a_stream_is_flushed_was_settled_by_who_started_it() -> None:
    site = Site(*SCRIPT, flush=EIGHT, token_flush=True)
    with serving(site.app) as server:
        for first, told in [("v=1, flush=token", "token"), ("v=1", "chunk")]:
            sid = sid_of(exchange(server.connect(), path="/tokens", streamguard=first))
            for again in ("token", "chunk"):
                later = exchange(
                    server.connect(), path="/streams", streamguard_stream=sid, streamguard=f"v=1, flush={again}"
                )
                assert (promise(later).flush, text_of(later.body)) == (told, "".join(SCRIPT))
            unasked = exchange(server.connect(), path="/streams", streamguard_stream=sid, streamguard="v=1")
            assert promise(unasked).flush is None


def test_a_repeated_key_answers_with_what_its_stream_has() -> None:
    site = Site(*SCRIPT, flush=EIGHT, token_flush=True)
    with serving(site.app) as server:
        answers = [
            exchange(server.connect(), "POST", "/tokens", idempotency_key=KEY, streamguard=f"v=1, flush={word}")
            for word in ("chunk", "token")
        ]
    assert sid_of(answers[0]) == sid_of(answers[1])
    assert [promise(answer).flush for answer in answers] == ["chunk", "chunk"]


def test_what_is_no_text_leaves_as_ever() -> None:
    block = Block("image", {"url": "u"})
    app = answering(lambda: iterated(["t0 ", block, "t1 "]), flush=EIGHT, token_flush=True)
    with serving(app) as server:
        answer = exchange(server.connect(), streamguard="v=1, flush=token")
    assert (texts(answer), answer.body.count(b"event: block")) == (["t0 ", "t1 "], 1)


# ---- credit -----------------------------------------------------------------------------------------


@each_kind
@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("v=1", None),
        ("v=1, credit=(64 65536)", False),
        ("v=1, credit=(0 0)", False),  # nothing counts it, so nothing waits for more
        ("v=1, credit=64", None),
    ],
)
def test_credit_is_refused_where_nothing_counts_it_and_the_stream_is_whole(
    made: Callable[..., Any], asked: str, told: bool | None
) -> None:
    app, path = made()
    with serving(app) as server:
        answer = exchange(server.connect(), path=path, streamguard=asked)
    if asked.endswith("(64 65536)") and promise(answer).resume is not None:
        assert promise(answer).credit == (64, 65536)
    else:
        assert promise(answer).credit is told
        assert ("credit=?0" in (answer.header("streamguard") or "")) is (told is False)
    assert texts(answer) == SCRIPT


# ---- what strangers send ----------------------------------------------------------------------------


@each_kind
@pytest.mark.parametrize(
    "asked",
    [
        "v=1, flush=token, compress=gzip, credit=(1 2), resume=?1, later=(1 2);x",
        "v=1, compress=gzip;q=1, flush=" + "t" * 4000,
        "v=1, flush=token, ",
        "v=1, credit=(999999999999999 999999999999999)",
        "v=9, flush=token",
        "\xe9",
    ],
)
def test_whatever_is_asked_for_the_answer_is_whole(made: Callable[..., Any], asked: str) -> None:
    app, path = made(flush=EIGHT)
    with serving(app) as server:
        with server.connect() as connection:
            connection.send(
                f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nstreamguard: {asked}\r\n\r\n".encode("latin-1")
            )
            received = connection.rest()
    assert received.startswith(b"HTTP/1.1 200 ")
    assert b'"status":"complete"' in received
    assert b"t0 t1 t2 t3 " in received
