"""EventSources as their users get them: all that one hands out, until it stops by itself.

None of them knows of streamguard. Each keeps its library's defaults, save one: before a server has said how soon it may
come back, requests-sse would wait for ten seconds.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import attrs
import requests
import requests_sse

from streamguard.core.cursor import Cursor
from tests.clients.browser import DEADLINE, Browser
from tests.clients.npm import JS, node

__all__ = ["SOURCES", "Event", "Seen", "read_chromium", "read_eventsource", "read_requests_sse"]

SOURCES = ("chromium", "eventsource", "requests-sse")


@attrs.frozen
class Event:
    """An event as its listener gets it."""

    type: str
    data: str
    id: str


@attrs.frozen
class Seen:
    """All that a client handed out, in order, until it stopped for good."""

    events: list[Event]

    @property
    def text(self) -> str:
        """The text of a stream of `native`."""
        return "".join([json.loads(event.data) for event in self.events if event.type == "message"])

    @property
    def frames(self) -> list[int]:
        """The numbers of the frames that were handed out."""
        return [Cursor.parse(event.id).seq for event in self.events if event.type in ("message", "block", "end")]

    @property
    def sids(self) -> set[str]:
        """The streams whose frames they are."""
        return {Cursor.parse(event.id).sid for event in self.events if event.id}

    @property
    def ends(self) -> list[Any]:
        """The status that each `end` tells of."""
        return [json.loads(event.data)["status"] for event in self.events if event.type == "end"]


def _seen(found: Any) -> Seen:
    return Seen([Event(*event) for event in found["events"]])


def read_chromium(browser: Browser, page_url: str, url: str) -> Seen:
    """Chromium's own, in a page of another origin where `page_url` is one."""
    record = (JS / "record.js").read_text(encoding="utf-8")
    with browser.page(page_url) as page:
        return _seen(page.evaluate(f"(url) => {{ {record}; return record(new EventSource(url)); }}", url))


def read_eventsource(url: str) -> Seen:
    """The npm package `eventsource`, in Node."""
    command, env = node("eventsource.cjs", url)
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr
    return _seen(json.loads(done.stdout))


def read_requests_sse(url: str) -> Seen:
    """`requests-sse`. It says that it stopped by an error, whose status has to be 204."""

    def events(source: requests_sse.EventSource) -> Iterator[Event]:
        try:
            for event in source:
                yield Event(event.type or "", event.data or "", event.last_event_id)
        except requests_sse.InvalidStatusCodeError as exc:
            assert exc.status_code == 204, exc  # noqa: PT017  (any other is a failure of the test)

    with closing(requests.Session()) as session:
        session.trust_env = False  # no proxy of the environment stands between a test and its server
        soon = timedelta(milliseconds=5)
        with requests_sse.EventSource(url, session=session, timeout=DEADLINE, reconnection_time=soon) as source:
            return Seen(list(events(source)))
