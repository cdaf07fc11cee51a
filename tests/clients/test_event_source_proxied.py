"""Chromium's EventSource before the proxy: cut again and again it reads on, and is finished once."""

from __future__ import annotations

from typing import Any

import pytest

from streamguard.testing.plan import HEAD, Plan, RandomCut
from tests.clients.browser import Browser
from tests.clients.site import through
from tests.clients.sources import read_chromium
from tests.proxy.fronted import fronted

KEY = "k" * 22
WORDS = [f"word {number} é " for number in range(60)]


class Upstream:
    """An endpoint for an EventSource as it is written without us, which pages of every origin may read; and a page."""

    def __init__(self) -> None:
        self.starts = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        streams = scope["path"] == "/tokens"
        kind = b"text/event-stream" if streams else b"text/html"
        headers = [(b"content-type", kind), (b"access-control-allow-origin", b"*")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if streams:
            self.starts += 1
            for word in WORDS:
                event = f"data: {word}\n\n".encode()
                await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"" if streams else b"<!doctype html><title>page</title>"})


@pytest.mark.parametrize("end", ["fin", "reset"])
def test_a_stream_that_is_cut_comes_whole_and_is_finished_once(browser: Browser, end: Any) -> None:
    upstream = Upstream()
    cuts = RandomCut(seed=7, low=200, high=900, base=Plan(after=HEAD, end=end))
    with fronted(upstream) as (proxy, behind):
        seen, faults = through(
            proxy.port,
            lambda index: cuts(index) if index < 6 else Plan(),
            lambda url: read_chromium(browser, f"{url}/page", f"{url}/tokens?sg=key={KEY}"),
        )
    assert [event.data for event in seen.events if event.type == "message"] == [word.strip(" ") + " " for word in WORDS]
    assert sum(passage.ended == "cut" for passage in faults.history) >= 4
    assert upstream.starts == 1
