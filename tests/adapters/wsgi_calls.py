"""WSGI applications called without a server, and what they answered."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs

__all__ = ["Answer", "called", "calling"]


@attrs.define
class Answer:
    """A status, headers, and a body as far as it was read; `cut` is what it raised."""

    status: int = 0
    headers: dict[str, str] = attrs.field(factory=dict)
    parts: Any = None
    body: bytes = b""
    cut: BaseException | None = None

    def read(self) -> Answer:
        """To its end, however that comes."""
        try:
            for part in self.parts:
                self.body += part
        except OSError as exc:
            self.cut = exc
        return self

    def until(self, mark: bytes) -> bytes:
        """Until `mark` has come."""
        while mark not in self.body:
            self.body += next(self.parts)
        return self.body


@contextmanager
def calling(app: Any, path: str = "/", method: str = "GET", body: bytes = b"", **more: Any) -> Iterator[Answer]:
    """Call `app`, as a server does, and close its body behind the block."""
    raw, _, query = path.partition("?")
    environ: dict[str, Any] = {
        "REQUEST_METHOD": method,
        "SCRIPT_NAME": "",
        "PATH_INFO": raw,
        "QUERY_STRING": query,
        "SERVER_NAME": "test",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.input": io.BytesIO(body),
        "wsgi.errors": io.StringIO(),
        "wsgi.url_scheme": "http",
        "wsgi.version": (1, 0),
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
        **more,
    }
    answer = Answer()

    def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
        answer.status = int(status.split()[0])
        answer.headers = {name.lower(): value for name, value in headers}

    found = app(environ, start_response)
    answer.parts = iter(found)
    try:
        yield answer
    finally:
        if hasattr(found, "close"):
            found.close()


def called(app: Any, path: str = "/", method: str = "GET", body: bytes = b"", **more: Any) -> Answer:
    """The whole answer of `app`."""
    with calling(app, path, method, body, **more) as answer:
        return answer.read()
