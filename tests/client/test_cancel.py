"""A reader has its stream ended at the server, in every mode of the client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from streamguard.adapters.starlette import StreamGuard
from streamguard.client import stream, stream_sync
from streamguard.core.errors import FailedStream, LocalProtocolError, UnexpectedResponse
from streamguard.log.memory import MemoryLog
from tests.adapters.servers import DEADLINE, serving
from tests.client.reading import NO_TLS, each_mode


class Site:
    """A stream that goes on until it is stopped; who may cancel it, `allowed` says."""

    def __init__(self, *, installed: bool = True, allowed: bool = True, ends: bool = False) -> None:
        self.stopped = 0
        who = {"cancel": "me" if allowed else None}
        guard = StreamGuard(MemoryLog(), authorize=lambda request, action: who.get(action, "me"))

        @guard.stream
        async def tokens(request: Request) -> AsyncIterator[str]:
            try:
                yield "one "
                if not ends:
                    await anyio.sleep(DEADLINE)
            finally:
                self.stopped += 1

        self.app = Starlette(routes=[Route("/tokens", tokens, methods=["POST"])])
        if installed:
            guard.install(self.app, "/streams")


def reading(mode: str, url: str, steps: Any) -> list[Any]:
    """What `steps` notes of an answer: it is given the answer, and how to wait for what a method of it answers."""
    seen: list[Any] = []
    if mode == "sync":
        with httpx.Client(verify=NO_TLS) as client, stream_sync("POST", url, client=client) as answer:
            seen.append(next(iter(answer.text())))
            seen.append(answer.sid)
            steps(seen, answer, lambda method: method())
    else:

        async def main() -> None:
            async with httpx.AsyncClient(verify=NO_TLS) as client, stream("POST", url, client=client) as answer:
                seen.append(await anext(aiter(answer.text())))
                seen.append(answer.sid)
                await anyio.to_thread.run_sync(partial(steps, seen, answer, anyio.from_thread.run))

        anyio.run(main, backend=mode)
    return seen


@each_mode
def test_a_stream_that_is_cancelled_ends_so_for_its_reader_and_its_source(mode: str) -> None:
    site = Site()

    def steps(seen: list[Any], answer: Any, wait: Any) -> None:
        seen.append(wait(answer.cancel))
        with pytest.raises(FailedStream) as raised:
            wait(answer.read)
        seen.append((raised.value.status, raised.value.received))
        seen.append(wait(answer.cancel))

    with serving(site.app) as server:
        first, sid, done, end, again = reading(mode, f"{server.url}/tokens", steps)
    assert (first, len(sid), done, end, again) == ("one ", 22, True, ("cancelled", "one "), True)
    assert site.stopped == 1


@each_mode
def test_a_stream_that_ended_otherwise_is_not_cancelled(mode: str) -> None:
    def steps(seen: list[Any], answer: Any, wait: Any) -> None:
        seen.append(wait(answer.read))
        seen.append(wait(answer.cancel))

    with serving(Site(ends=True).app) as server:
        assert reading(mode, f"{server.url}/tokens", steps)[2:] == ["one ", False]


@each_mode
def test_what_cannot_be_cancelled_says_why(mode: str) -> None:
    def steps(kind: type[Exception], said: str, seen: list[Any], answer: Any, wait: Any) -> None:
        with pytest.raises(kind, match=said):
            wait(answer.cancel)

    for site, kind, said in (
        (Site(installed=False), LocalProtocolError, "names no address to cancel it at: leave its `with` block"),
        (Site(allowed=False), UnexpectedResponse, "the server did not cancel it: HTTP 403"),
    ):
        with serving(site.app) as server:
            reading(mode, f"{server.url}/tokens", partial(steps, kind, said))
