"""The CORS fields of a stream's first answer, which every later answer of that stream needs as well.

An application that lets pages of other origins read says so in the head of its answer. What resumes comes from a log
and is not asked of the application: its answer is readable there only if it says the same. So the three fields that do
are kept with the stream, among the options that its log has, and are sent again; `Vary` is ours, and names `Origin`.

They are what the application said to the page that started the stream. Where it names that page's origin, one of
another origin cannot resume: a browser compares. Nothing is widened.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import attrs

from streamguard.core.exchange import Refusal
from streamguard.log.base import StreamInfo
from streamguard.runtime.own import own_options

__all__ = ["CORS", "cors_of", "kept_cors", "with_cors"]

CORS: Final = "cors"  # in a stream's own options: names and values

_ALLOWS: Final = "access-control-allow-origin"
_FIELDS: Final = (_ALLOWS, "access-control-allow-credentials", "access-control-expose-headers")
_MOST: Final = 4096  # characters of all of them: a log keeps them as long as the stream

Fields = list[tuple[str, str]]


def cors_of(headers: Iterable[tuple[str, str]]) -> list[list[str]]:
    """What of an answer's headers is kept; nothing, where no other origin may read it, and where it is too much: a part
    of it would be another permission."""
    found = [[name.lower(), value] for name, value in headers if name.lower() in _FIELDS]
    readable = any(name == _ALLOWS for name, _ in found)
    return found if readable and sum(len(value) for _, value in found) <= _MOST else []


def kept_cors(info: StreamInfo) -> Fields:
    """What was kept with a stream; nothing of one that an older version made."""
    found: Any = own_options(info).get(CORS, ())
    return [(name, value) for name, value in found]


def with_cors(refused: Refusal, info: StreamInfo | None) -> Refusal:
    """The refusal of a request for a stream that is known, `info`, as its page may read it."""
    fields = [] if info is None else kept_cors(info)
    if not fields or any(name == _ALLOWS for name, _ in refused.headers):
        return refused
    return attrs.evolve(refused, headers=[*refused.headers, *fields, ("vary", "Origin")])
