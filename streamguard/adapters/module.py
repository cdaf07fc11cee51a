"""The JavaScript client as the endpoints serve it: one file, whatever the address asks for, and open to everybody.

A page loads it by `import`, which sends no header of its own, so `authorize` is not asked; it is the same for all. It
may be kept, and is asked for again each time: a page must not read the streams of a new server with an old client.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from typing import Final

from streamguard.browser import SCRIPT
from streamguard.core.exchange import Refusal, RequestFacts

__all__ = ["MODULE", "module_answer"]

MODULE: Final = SCRIPT.name


@cache
def _read() -> tuple[bytes, str]:
    """The file, and what tells it from another version."""
    body = SCRIPT.read_bytes()
    return body, f'"{sha256(body).hexdigest()[:22]}"'


def module_answer(facts: RequestFacts) -> Refusal:
    """The answer to a GET or HEAD for the module: 304 to who has it."""
    body, tag = _read()
    headers = [("etag", tag), ("cache-control", "no-cache"), ("x-content-type-options", "nosniff")]
    has = [value.strip().removeprefix("W/") for value in facts.headers.get("if-none-match", "").split(",")]
    if tag in has or has == ["*"]:
        return Refusal(304, headers)
    headers += [("content-type", "text/javascript; charset=utf-8"), ("content-length", str(len(body)))]
    return Refusal(200, headers, b"" if facts.method == "HEAD" else body)
