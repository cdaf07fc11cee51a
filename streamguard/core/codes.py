"""Codes of failures: words that a program compares, and that stand in logs, spans and pages as they are.

Who sends an error event chooses what its `code` and `type` hold: the text of a prompt, a line end, a terminal's escape.
Only what looks like a code is taken for one where such an event is read, and told where a failure is recorded.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["code_in", "recorded"]

_CODE: Final = re.compile(r"[\w.:/-]{1,64}", re.ASCII)


def code_in(*values: object) -> str:
    """The first of `values` that is a code, a word or a whole number; `upstream_error` where none is."""
    for value in values:
        if value and (isinstance(value, str) or type(value) is int):
            try:
                text = str(value)
            except ValueError:  # a number of more digits than are written
                continue
            if _CODE.fullmatch(text):
                return text
    return "upstream_error"


def recorded(code: str) -> str:
    """The code of a failure as a record has it: `own` for an application's that is a text."""
    return code if _CODE.fullmatch(code) else "own"
