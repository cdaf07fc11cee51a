"""What the relay knows of an upstream: where it is, what it answered, and how it failed. No library."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable
from contextlib import AbstractContextManager
from urllib.parse import urlsplit

import attrs

from streamguard.proxy.headers import Fields

__all__ = ["Answer", "Upstream", "UpstreamFailed"]


class UpstreamFailed(Exception):
    """The upstream did not answer, or not to the end. `status` is what that is in HTTP."""

    def __init__(self, code: str, message: str, status: int) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status


@attrs.frozen
class Upstream:
    """Where the upstream is. `base` stands before every path, without a slash at its end."""

    scheme: bytes
    host: bytes
    port: int | None
    base: bytes = b""

    @classmethod
    def parse(cls, url: str) -> Upstream:
        """Raises ValueError for what is no address of a server."""
        split = urlsplit(url)
        if split.scheme not in ("http", "https") or not split.hostname:
            raise ValueError(f"the upstream is an address such as http://127.0.0.1:8000, not {url!r}")
        if split.username is not None or split.password is not None or split.query or split.fragment:
            raise ValueError(f"the upstream is scheme, host, port and perhaps a path, and nothing else; not {url!r}")
        if not url.isascii() or any(character <= " " for character in url):
            raise ValueError(f"the upstream is written in ASCII, without spaces; not {url!r}")
        return cls(split.scheme.encode(), split.hostname.encode(), split.port, split.path.rstrip("/").encode())

    @property
    def authority(self) -> bytes:
        """What its `Host` is."""
        host = b"[%b]" % self.host if b":" in self.host else self.host
        return host if self.port is None else b"%b:%d" % (host, self.port)


@attrs.frozen
class Answer:
    """The head of an answer, and its `body`, to be read in a `told` block, which raises UpstreamFailed. Whoever has it
    calls `aclose`. `framed`: whether the body's end can be told from the end of its connection."""

    status: int
    fields: Fields
    body: AsyncIterable[bytes]
    told: Callable[[], AbstractContextManager[None]]
    aclose: Callable[[], Awaitable[None]]
    framed: bool
    _timeouts: dict[str, float | None] = attrs.field(alias="timeouts")

    def wait_for_ever(self) -> None:
        """The upstream may be silent in its body for as long as it likes. To be said before the body is read."""
        self._timeouts["read"] = None
