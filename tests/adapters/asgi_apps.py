"""Small ASGI applications round a guarded answer, and what tests read from their bytes."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import attrs

from streamguard.adapters.asgi import GuardedAnswer
from streamguard.adapters.seal import ASGIApp, Receive, Scope, Send
from streamguard.core.receipt import Verdict
from streamguard.core.verify import StreamVerifier
from streamguard.observe.hooks import Outcome
from tests.adapters.servers import DEADLINE, Connection

__all__ = ["Ends", "Response", "answering", "exchange", "tokens", "unchunked"]


async def tokens(count: int = 3) -> AsyncIterator[str]:
    for index in range(count):
        yield f"t{index} "


def answering(source: Callable[[], Any], **options: Any) -> ASGIApp:
    """An application that answers every request with a new source."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await GuardedAnswer(source(), **options)(scope, receive, send)

    return app


class Ends:
    """An `on_end` that keeps what it is given; a test waits for the n-th."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self._changed = threading.Condition()

    def __call__(self, outcome: Outcome) -> None:
        with self._changed:
            self.outcomes.append(outcome)
            self._changed.notify_all()

    def wait(self, number: int = 1) -> Outcome:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.outcomes) >= number, DEADLINE), self.outcomes
        return self.outcomes[number - 1]


@attrs.frozen
class Response:
    """An HTTP/1.1 answer as bytes, taken apart."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    clean: bool
    """Whether its framing says that it is whole."""

    def header(self, name: str) -> str | None:
        found = [value for key, value in self.headers if key == name]
        assert len(found) < 2, f"{name} came {len(found)} times"
        return found[0] if found else None

    @property
    def verdict(self) -> Verdict:
        return self.verified().verdict

    def verified(self, **options: Any) -> StreamVerifier:
        verifier = StreamVerifier(**options)
        verifier.feed(self.body)
        verifier.end(clean=self.clean)
        return verifier


def unchunked(data: bytes) -> tuple[bytes, bool]:
    """A chunked body without its framing, and whether its last chunk came."""
    body = b""
    while data:
        size, found, data = data.partition(b"\r\n")
        length = int(size, 16)
        if not found or len(data) < length + 2:
            return body + data[:length], False
        if not length:
            return body, data == b"\r\n"
        body += data[:length]
        data = data[length + 2 :]
    return body, False


def exchange(connection: Connection, method: str = "GET", path: str = "/", **more: Any) -> Response:
    """One request and its answer, to the end of the connection."""
    with connection:
        connection.request(method, path, connection="close", **more)
        head, _, rest = connection.rest().partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    fields = dict(headers)
    clean = True
    if fields.get("transfer-encoding") == "chunked" and method != "HEAD":
        rest, clean = unchunked(rest)
    elif "content-length" in fields and method != "HEAD":
        clean = len(rest) == int(fields["content-length"])
    return Response(int(first.split(" ")[1]), headers, rest, clean)
