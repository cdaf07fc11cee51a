"""What a redirect may carry, and how long a head may take: without a network."""

from __future__ import annotations

import itertools
import math
from typing import Any

import anyio
import httpx
import pytest

import streamguard.client.request as request
from streamguard.client.limits import ReaderLimits
from streamguard.client.request import HeadLimit, is_safe_header, same_origin, why_not_follow


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("http://a/x", "http://a/y", True),
        ("http://a:80/", "http://a/", True),
        ("http://a/", "https://a/", True),
        ("https://a/", "http://a/", False),
        ("http://a:8000/", "https://a:8443/", False),
        ("http://a/", "https://a:8443/", False),
        ("http://a/", "http://b/", False),
        ("http://a/", "https://b/", False),
        ("http://a:1/", "http://a:2/", False),
    ],
)
def test_an_origin_is_scheme_host_and_port_and_tls_may_come_to_it(a: str, b: str, same: bool) -> None:
    assert same_origin(httpx.URL(a), httpx.URL(b)) is same


@pytest.mark.parametrize("name", ["Authorization", "X-Api-Key", "api-key", "Cookie", "Proxy-Authorization", "Referer"])
def test_a_header_that_may_be_secret_is_not_safe(name: str) -> None:
    assert not is_safe_header(name)


@pytest.mark.parametrize("name", ["Accept", "STREAMGUARD", "user-agent", "Host"])
def test_what_every_server_may_know_is_safe(name: str) -> None:
    assert is_safe_header(name)


@pytest.mark.parametrize(
    ("follows", "away", "headers", "why"),
    [
        (True, False, {"content-length": "3"}, None),
        (True, True, {}, None),
        (True, True, {"content-length": "0"}, None),
        (True, True, {"content-length": "3"}, "another origin"),
        (True, True, {"transfer-encoding": "chunked"}, "another origin"),
        (False, False, {}, "follow_redirects"),
    ],
)
def test_a_redirect_is_followed_unless_there_is_a_reason(
    follows: bool, away: bool, headers: dict[str, str], why: str | None
) -> None:
    found = why_not_follow(follows, away, headers)
    assert (found is None) if why is None else (why in (found or ""))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(request, "monotonic", lambda: now[0])
    return now


def test_each_read_of_a_head_may_take_what_is_left_in_whole_seconds(clock: list[float]) -> None:
    limit = HeadLimit(ReaderLimits(first_byte=2.5))
    limit.trace("connection.connect_tcp.started", {})
    clock[0] = 150.0  # to connect counts against another limit
    limit.trace("http11.send_request_headers.started", {})
    assert limit.timeouts["read"] == 2.5
    limit.trace("http11.receive_response_headers.started", {})
    timeout: Any = limit.timeouts["read"]
    for now, left in ((150.0, 3), (150.6, 2), (151.5, 1), (152.4, 1)):
        clock[0] = now
        assert timeout.__index__() == left
    for now in (152.5, 160.0):
        clock[0] = now
        with pytest.raises(TimeoutError):
            timeout.__index__()
    limit.came(7.0)
    assert limit.timeouts["read"] == 7.0


def test_a_second_request_of_the_exchange_gets_no_more_time(clock: list[float]) -> None:
    limit = HeadLimit(ReaderLimits(first_byte=5))
    for clock[0] in (100.0, 104.0):
        limit.trace("http11.send_request_headers.started", {})
        limit.trace("http11.receive_response_headers.started", {})
    timeout: Any = limit.timeouts["read"]
    assert timeout.__index__() == 1


def test_no_limit_is_none(clock: list[float]) -> None:
    limit = HeadLimit(ReaderLimits(first_byte=None))
    limit.trace("http11.send_request_headers.started", {})
    limit.trace("http11.receive_response_headers.started", {})
    assert limit.timeouts["read"] is None


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("connect", "first_byte", "before", "after"),
    [(3, 5, 8, 5), (None, 5, math.inf, 5), (3, None, math.inf, math.inf)],
)
async def test_a_scope_ends_when_the_head_is_due(
    connect: float | None, first_byte: float | None, before: float, after: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request, "monotonic", lambda: 100.0)
    monkeypatch.setattr(anyio, "current_time", lambda: 1000.0)
    limit = HeadLimit(ReaderLimits(connect=connect, first_byte=first_byte))
    scope = limit.scope()
    assert scope.deadline == 1000.0 + before
    await limit.atrace("connection.connect_tcp.started", {})
    assert scope.deadline == 1000.0 + before
    await limit.atrace("http11.send_request_headers.started", {})
    assert scope.deadline == 1000.0 + after
    assert isinstance(limit.scope(), anyio.CancelScope)


def test_names_of_steps_are_taken_from_every_protocol(clock: list[float]) -> None:
    for protocol, step in itertools.product(("http11", "http2"), ("started", "complete")):
        limit = HeadLimit(ReaderLimits(first_byte=5))
        limit.trace(f"{protocol}.send_request_headers.{step}", {})
        limit.trace(f"{protocol}.receive_response_headers.started", {})
        assert (limit.timeouts["read"] == 5) is (step == "complete")
