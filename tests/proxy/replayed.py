"""Recorded streams behind the proxy, whole and cut, over real sockets. The test's and the proof's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import parse_qs

import attrs

from streamguard.core.receipt import Verdict
from streamguard.core.wire import SseDecoder
from streamguard.log.base import Retention
from streamguard.log.memory import MemoryLog
from tests.adapters.asgi_apps import Response, exchange
from tests.adapters.servers import Server, serving
from tests.core.test_recorded import recorded
from tests.cuts import Row, Wrong, profile_of
from tests.proxy.fronted import in_front
from tests.recorded_cuts import pieces

__all__ = ["Replay", "replayed"]

_MOST_KEPT = 2000  # streams in the log of a proxy that is asked some ten thousand times


async def _player(scope: Any, receive: Any, send: Any) -> None:
    """Sends the recording that the path names, up to `cut`; without `ends=1` it breaks off there."""
    query = parse_qs(scope["query_string"].decode())
    data = recorded({"file": scope["path"][1:]})[: int(query["cut"][0])]
    headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for piece in pieces(data):
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    if "ends" in query:
        await send({"type": "http.response.body", "body": b"", "more_body": False})


@attrs.frozen
class Replay:
    """The proxies, by the profile and the rule that they were started with."""

    proxies: dict[tuple[str, str], Server]

    def read(self, row: Row, cut: int | None = None, *, ends: bool = True, end: str = "known") -> Response:
        """The recording's answer as it comes through a proxy."""
        at = row["bytes"] if cut is None else cut
        path = f"/{row['file']}?cut={at}" + ("&ends=1" if ends else "")
        return exchange(self.proxies[profile_of(row), end].connect(), path=path)

    async def cuts_that_pass(self, row: Row, data: bytes, cuts: Iterable[int]) -> list[Wrong]:
        """The cuts that reach a reader as the whole. The server ends each cleanly. Before its first whole event nothing
        tells whose a stream is: there the provider's marker is asked for by name."""
        wrong: list[Wrong] = []
        for at in cuts:
            end = "known" if SseDecoder().feed(data[:at]) else "provider"
            answer = self.read(row, at, end=end)
            if answer.clean or answer.verdict is not Verdict.FAILED:
                wrong.append((row["file"], at, f"{end}: {answer.verdict}, clean: {answer.clean}"))
        return wrong


@contextmanager
def replayed(*rules: str) -> Iterator[Replay]:
    """Proxies for both profiles and each of the rules."""
    proxies = {}
    with ExitStack() as stack:
        behind = stack.enter_context(serving(_player))
        for profile in ("openai", "transformers"):
            for end in rules:
                log = MemoryLog(Retention(after_end=1), max_streams=_MOST_KEPT)
                settings: Any = {"profile": profile, "end": end, "linger": 0.0, "log": log}
                proxies[profile, end] = stack.enter_context(in_front(behind.port, **settings))
        yield Replay(proxies)
