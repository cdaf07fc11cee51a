"""What is asked, from a command line: method, headers and body as curl takes them."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urljoin, urlsplit

import attrs

__all__ = ["Request", "request_from"]

_DEFAULTS: Final = (
    ("User-Agent", "streamguard-check"),
    ("Accept", "*/*"),  # what curl and fetch send; with text/event-stream it would be an EventSource, which comes back
    # What most clients ask for, so that a layer that compresses does it here too.
    ("Accept-Encoding", "gzip, deflate"),
)
_OF_A_BODY: Final = ("content-type", "content-length", "transfer-encoding")


@attrs.frozen
class Request:
    """One request. `headers` are in order, as they are sent."""

    method: str
    url: str
    headers: tuple[tuple[str, str], ...] = ()
    content: bytes | None = attrs.field(default=None, repr=False)

    def header(self, name: str) -> str | None:
        """The first value of a header; None where there is none."""
        return next((value for given, value in self.headers if given.lower() == name.lower()), None)

    @property
    def comes_back(self) -> bool:
        """Whether it looks like one of a reader that would come back after a cut."""
        source = self.method == "GET" and "text/event-stream" in (self.header("accept") or "")
        return source or self.header("idempotency-key") is not None

    def without_compression(self) -> Request:
        """The same, for an answer that nothing compresses."""
        rest = [pair for pair in self.headers if pair[0].lower() != "accept-encoding"]
        return attrs.evolve(self, headers=(*rest, ("Accept-Encoding", "identity")))

    def owns(self, address: str) -> bool:
        """Whether an address, as seen from this one's, is of the same origin."""
        return urlsplit(urljoin(self.url, address))[:2] == urlsplit(self.url)[:2]

    def beside(self, address: str, *, method: str = "GET", **headers: str) -> Request:
        """A request without a body, to `address` as seen from this one's, with its headers and `headers` beside them.

        What may be a key goes to the same origin only.
        """
        own = {name.replace("_", "-"): value for name, value in headers.items()}
        kept = self.headers if self.owns(address) else _DEFAULTS
        gone = (*_OF_A_BODY, *(name.lower() for name in own))
        rest = [pair for pair in kept if pair[0].lower() not in gone]
        return Request(method, urljoin(self.url, address), (*rest, *own.items()))


def request_from(
    url: str, *, method: str | None = None, headers: Sequence[str] = (), data: Sequence[str] = ()
) -> Request:
    """The request of a command line. `headers` are `Name: value` (`Name:` leaves a default out, `Name;` sends it
    empty); `data` are parts of the body, joined by `&`, or `@FILE` (`@-`: standard input).

    Raises ValueError, in words, for what is none; OSError for a file that cannot be read.
    """
    if "://" not in url:
        url = f"http://{url}"
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is no address of http or https")
    content = b"&".join([_part(text) for text in data]) if data else None
    named = dict(_DEFAULTS)
    if content is not None:
        named["Content-Type"] = "application/json" if _is_json(content) else "application/x-www-form-urlencoded"
    given: list[tuple[str, str]] = []
    for line in headers:
        name, value = _header(line)
        for default in [key for key in named if key.lower() == name.lower()]:
            del named[default]
        if value is not None:
            given.append((name, value))
    return Request(method or ("GET" if content is None else "POST"), url, (*named.items(), *given), content)


def _header(line: str) -> tuple[str, str | None]:
    name, colon, value = line.partition(":")
    if not colon and line.endswith(";"):
        name, value, colon = line[:-1], "", ";"
    name = name.strip()
    if not colon or not name or not name.isascii() or any(mark in line for mark in "\r\n\0"):
        raise ValueError(f"{line!r} is no header: 'Name: value' is needed")
    value = value.strip()
    return name, value if value or colon == ";" else None


def _part(text: str) -> bytes:
    if not text.startswith("@"):
        return text.encode()
    read = sys.stdin.buffer.read() if text == "@-" else Path(text[1:]).read_bytes()
    return read.replace(b"\r", b"").replace(b"\n", b"")  # as curl does


def _is_json(content: bytes) -> bool:
    try:
        return isinstance(json.loads(content), (dict, list))
    except (ValueError, RecursionError):
        return False
