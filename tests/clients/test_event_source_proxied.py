"""Chromium's EventSource before the proxy: cut again and again it reads on, and is finished once, in a page of any
origin that the application lets read."""

from __future__ import annotations

from typing import Any

import pytest

from streamguard.core.wire.sse import SseEncoder
from streamguard.testing.plan import Plan, RandomCut
from tests.clients.browser import Browser
from tests.clients.site import through
from tests.clients.sources import read_chromium
from tests.proxy.fronted import fronted

KEY = "k" * 22
WORDS = [f"word {number} é " for number in range(60)]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that was cut comes back after 10 ms: of events that are another server's, nobody says when."""
    opening = SseEncoder.opening
    monkeypatch.setattr(SseEncoder, "opening", lambda self, **named: b"retry: 10\n" + opening(self, **named))


class Upstream:
    """An endpoint for an EventSource as it is written without us; and a page."""

    def __init__(self, *headers: tuple[bytes, bytes]) -> None:
        self.starts = 0
        self.headers = headers

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        streams = scope["path"] == "/tokens"
        kind = b"text/event-stream" if streams else b"text/html"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind), *self.headers]})
        if streams:
            self.starts += 1
            for word in WORDS:
                event = f"data: {word}\n\n".encode()
                await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"" if streams else b"<!doctype html><title>page</title>"})


@pytest.mark.parametrize(("end", "other"), [("fin", False), ("reset", True)], ids=["same origin", "another origin"])
def test_a_stream_that_is_cut_comes_whole_and_is_finished_once(browser: Browser, end: Any, other: bool) -> None:
    """Cuts are counted from a stream's opening: the page may have come on the same connection."""
    upstream = Upstream((b"access-control-allow-origin", b"*")) if other else Upstream()
    cuts = RandomCut(seed=7, low=200, high=900, base=Plan(after=b": streamguard 1 ", end=end))
    with fronted(upstream) as (proxy, behind):
        seen, faults = through(
            proxy.port,
            lambda index: cuts(index) if index < 6 else Plan(),
            lambda url: read_chromium(browser, f"{behind.url if other else url}/page", f"{url}/tokens?sg=key={KEY}"),
        )
    assert [event.data for event in seen.events if event.type == "message"] == WORDS
    assert sum(passage.ended == "cut" for passage in faults.history) >= 4
    assert upstream.starts == 1
