"""A look at a source's first item, for a slip that no check of the stream itself can find.

An endpoint that wrote server-sent events itself before it was guarded often goes on doing so: each of its texts is
then framed twice, correctly, and the reader finds `data: …` in the answer. The driver shows the first item of each
stream; what comes after it is not looked at, so that a token costs nothing.
"""

from __future__ import annotations

import functools
import logging
import re
from typing import Any, Final

__all__ = ["look_at_first"]

logger = logging.getLogger("streamguard")

_EVENT: Final = re.compile(r"(?:data|event|id|retry):[^\r\n]*\r?\n.*?(?<=\n)\r?\n", re.DOTALL)
_MAX_LOOK: Final = 4096  # characters


def look_at_first(item: Any) -> None:
    """Warn, once a process, if the first item of a stream that frames text is a server-sent event already."""
    if isinstance(item, bytes):
        item = item[:_MAX_LOOK].decode("utf-8", "replace")
    if isinstance(item, str) and _EVENT.match(item[:_MAX_LOOK]):
        _warn()


@functools.cache
def _warn() -> None:
    logger.warning(
        "a source yields text that is a server-sent event already (`data: …` and a blank line), which is framed "
        "once more: yield the bare text, or choose dialect='raw' for ready-made events"
    )
