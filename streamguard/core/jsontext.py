"""JSON as this library writes it: one line of UTF-8 that no reader can cut in two.

`quote` is the hot path (one call a token), `dumps` everything else. Both write the same form:
compact, keys in their own order, raw UTF-8 except for the control characters that JSON escapes
anyway and for U+2028, U+2029 and U+0085. Those three are escaped because clients that split text
on Unicode line ends (`str.splitlines`, many SSE parsers) would cut an event there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from json.encoder import encode_basestring
from typing import Any, Final

from streamguard.core.errors import NotSerialisable

__all__ = ["dumps", "no_constant", "object_in", "quote", "whole_text"]

_LINE_ENDS: Final = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}
_SURROGATE: Final = re.compile("[\ud800-\udfff]")

_JSON_SAYS: Final = ("Out of range float values ", "Circular reference ", "keys must be ")


def quote(text: str) -> bytes:
    """`text` as a JSON string in UTF-8. The text holds no lone surrogates (see `whole_text`)."""
    if text.isascii():
        return encode_basestring(text).encode()
    return encode_basestring(text).translate(_LINE_ENDS).encode()


def dumps(value: object) -> bytes:
    """`value` as JSON in UTF-8. Raises NotSerialisable for NaN, Infinity and foreign objects."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)
    except (TypeError, ValueError, RecursionError) as exc:
        # What `json` itself says names types; what a value's own methods raise may say anything.
        known = isinstance(exc, _NoForm) or str(exc).startswith(_JSON_SAYS)
        reason = str(exc) if known else type(exc).__name__
        raise NotSerialisable(f"JSON has no form for this value: {reason}") from exc
    if not text.isascii():
        text = whole_text(text.translate(_LINE_ENDS))
    return text.encode()


class _NoForm(TypeError):
    """An object of a type that JSON has no form for; names the type only."""


def no_constant(name: str) -> None:
    """For `json`'s `parse_constant`: NaN and Infinity are no JSON, though it reads them."""
    raise ValueError(name)


_strictly: Final = json.JSONDecoder(parse_constant=no_constant).decode


def object_in(text: str) -> Mapping[str, Any] | None:
    """The JSON object that `text` is; None for any other text."""
    try:
        value = _strictly(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _plain(value: object) -> object:
    """Any mapping as an object: `json` itself takes a dict only, and refuses a read-only view of one."""
    if isinstance(value, Mapping):
        return dict(value)
    raise _NoForm(f"{type(value).__name__} is not JSON serialisable")


def whole_text(text: str) -> str:
    """`text` with surrogate pairs joined and lone surrogates replaced by U+FFFD.

    Without it one unpaired surrogate in a token would raise at the encoder and kill the stream.
    """
    if _SURROGATE.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
