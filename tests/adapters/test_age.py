"""A connection to a stream in a log ends at a certain age: who can come back does, and does not notice."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.routing import Route

from streamguard.adapters.starlette import guarded
from streamguard.client import ResumePolicy, Verdict
from streamguard.runtime.runs import Cancel
from streamguard.runtime.timing import Timing
from tests.adapters.logged_apps import OURS, SSE, Site, cursors, reading, text_of
from tests.adapters.servers import Gate, serving
from tests.client.reading import read

AT_ONCE = ResumePolicy(attempts=2, base=0.0, max_wait=0.0)
AGE = 0.3  # longer than what is there takes to leave, on a busy machine too
BEATS = Timing(linger=0.05, heartbeat=0.1)


def site(*script: Any, **options: Any) -> Site:
    found = Site(*script, **options)
    found.guard.max_connection_age = AGE
    return found


def test_a_client_that_resumes_does_not_notice() -> None:
    """Each text but the first is made only once the reader has come back."""
    waits = [Gate(), Gate()]
    back = iter(waits)

    def who(request: Any, action: str) -> str:
        if action == "read":
            next(back).open()
        return "ann"

    served = site("t0 ", waits[0], "t1 ", waits[1], "t2 ", on_disconnect=Cancel(), authorize=who)
    with serving(served.app) as server:
        seen = read("sync", f"{server.url}/tokens", resume=AT_ONCE)
    assert (seen.error, seen.text) == (None, "t0 t1 t2 ")
    assert seen.receipt is not None
    assert (seen.receipt.verdict, seen.receipt.resumes, seen.receipt.duplicates) == (Verdict.COMPLETE, 2, 0)


@pytest.mark.parametrize("headers", [OURS, SSE], ids=["ours", "EventSource"])
def test_a_reader_that_can_come_back_is_sent_to_with_a_bye_and_an_abort(headers: dict[str, Any]) -> None:
    gate = Gate()
    served = site("t0 ", gate, "t1 ", on_disconnect=Cancel())
    with serving(served.app) as server:
        with reading(server, **headers) as connection:
            body = connection.rest()
        assert b'"reason":"rotate"' in body
        assert not body.endswith(b"0\r\n\r\n")
        gate.open()  # the run is there, though its only reader left, and that was to cancel it
        with reading(server, "/streams", last_event_id=str(cursors(body)[-1]), **headers) as connection:
            rest = connection.until(b"complete")
    assert text_of(body) + text_of(rest) == "t0 t1 "


def test_one_that_was_given_nothing_yet_stays() -> None:
    """It would come back for nothing, as often as its policy lets it."""
    gate = Gate()
    served = site("t0 ", gate, "t1 ", timing=BEATS)
    with serving(served.app) as server:
        with reading(server) as connection:
            at = cursors(connection.rest())[-1]
        with reading(server, last_event_id=str(at), **OURS) as connection:
            connection.until(b": hb", times=12)  # and the log was looked at, as it is once a second
            gate.open()
            assert b"rotate" not in connection.until(b't1 "')


@pytest.mark.parametrize("kind", ["not installed", "no way back", "no log"])
def test_a_reader_that_cannot_come_back_is_served_to_the_end(kind: str) -> None:
    gate = Gate()
    served = site("t0 ", gate, "t1 ", installed=kind != "not installed", timing=BEATS)
    if kind == "no log":

        @guarded(timing=BEATS)
        async def tokens(request: Any) -> AsyncIterator[str]:
            async for item in served.source():
                yield item

        served.app.router.routes.insert(0, Route("/tokens", tokens))
    headers: dict[str, Any] = {"accept": "*/*"} if kind == "no way back" else OURS
    with serving(served.app) as server, reading(server, **headers) as connection:
        connection.until(b": hb", times=12)
        gate.open()
        body = connection.until(b'"complete"')
    assert b"rotate" not in body
    assert text_of(body) == "t0 t1 "
