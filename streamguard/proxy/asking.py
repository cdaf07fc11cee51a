"""Whether a request asks for a stream: told from its JSON, before anybody is asked anything.

Every API of models asks for one with `"stream": true`. Who asks is then known to want a stream before the upstream is
called: it waits for its slot, or is refused, before the upstream has begun to work for it. A request that is not
recognised is none the worse for it: it is asked for its slot where the answer's head says that it streams.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

from streamguard.adapters.seal import Scope
from streamguard.proxy.headers import values

__all__ = ["asks_for_a_stream"]

_LOOKED_AT: Final = 8 * 1024 * 1024  # bytes of a body that is held to be looked at; a larger one is not
_STREAM: Final = re.compile(rb'"stream"\s*:\s*true')


async def asks_for_a_stream(scope: Scope, read: Callable[[], Awaitable[bytes]]) -> bool:
    """Whether it does. `read` reads the request's body, which is then kept for the application."""
    fields = scope["headers"]
    kind = b"".join(values(fields, b"content-type")).partition(b";")[0].strip().lower()
    length = b"".join(values(fields, b"content-length"))
    if scope["method"] != "POST" or kind != b"application/json" or not length.isdigit():
        return False
    if int(length) > _LOOKED_AT or values(fields, b"content-encoding"):
        return False
    body = await read()
    if not _STREAM.search(body):  # most requests that are none need not be parsed
        return False
    try:
        asked: Any = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(asked, dict) and asked.get("stream") is True
