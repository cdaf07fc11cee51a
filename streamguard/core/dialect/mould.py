"""Chunks that differ from an earlier one in nothing but their text, read by their text alone.

A provider's stream is a thousand JSON objects that are the same but for one string, and parsing each
of them is most of the work of reading it. `Mould` remembers the two halves of such a chunk, before and
after its text, and reads the next one by comparing the halves and scanning the string between them.

Nothing is guessed: when the halves are learned, another text is put between them and the whole is
parsed once. If that text is then the chunk's, the gap is where the JSON string of its text stands, and
any other string there is read in the same way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from streamguard.core.dialect.base import scan_string

__all__ = ["Mould"]

_KEY: Final = re.compile(r'"(?:content|text)"\s*:\s*"')
_TRIES: Final = 8  # a stream that fits no mould after so many has chunks that all differ
_LARGEST: Final = 2048  # characters; learning parses the chunk again, once for each key that may be it


class Mould:
    """Reads the text of chunks of one form. `text` is the hot path, `learn` is given what it could not read."""

    def __init__(self) -> None:
        self._before: str | None = None
        self._after = ""
        self._tries = _TRIES

    def text(self, data: str) -> str | None:
        """The text of choice 0 if `data` is the learned chunk with another text, else None."""
        before = self._before
        if before is None or not data.startswith(before):
            return None
        try:
            text, end = scan_string(data, len(before))
        except ValueError:
            return None
        return text if data[end:] == self._after else None

    def learn(self, data: str, payload: Mapping[str, Any], key: str) -> None:
        """Take the form of a chunk of one choice that holds its text under `key`; `payload` is `data` parsed."""
        self._before = None
        if self._tries == 0 or len(data) > _LARGEST:
            return
        self._tries -= 1
        text = _holder(payload, key)[key]
        for match in _KEY.finditer(data):
            before = data[: match.end()]
            found, end = scan_string(data, len(before))
            if found != text:
                continue
            other = json.loads(before + json.dumps(text + "x")[1:] + data[end:])
            if _holder(other, key)[key] != text:
                self._before, self._after = before, data[end:]
                return


def _holder(payload: Mapping[str, Any], key: str) -> Any:
    choice = payload["choices"][0]
    return choice if key == "text" else choice["delta"]
