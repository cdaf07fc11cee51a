"""How a request for a stream is refused where the log said no."""

from __future__ import annotations

import logging
from typing import Final

from streamguard.core.cursor import Cursor
from streamguard.core.exchange import Refusal, RequestFacts, cannot_resume, come_back
from streamguard.log.base import CursorMisfit, CursorTrimmed, LogError, LogLost, LogUnavailable

__all__ = ["NOT_HERE", "unavailable", "why_not"]

logger = logging.getLogger("streamguard")

NOT_HERE: Final = "the stream is not here: it never was, is not kept any more, or is in the log of another process"
_NOT_READ: Final = "a request for a stream is refused for now: %s"


def unavailable(facts: RequestFacts, exc: LogUnavailable, *, message: str = _NOT_READ) -> Refusal:
    """The answer where the log cannot be reached, which the server's own log is told of."""
    logger.warning(message, exc)
    return come_back(facts, "log_unavailable", "the log cannot be reached")


def why_not(facts: RequestFacts, cursor: Cursor, exc: LogError) -> Refusal:
    """The answer to a request for what is behind `cursor`, where the log said no."""
    if isinstance(exc, LogUnavailable):
        return unavailable(facts, exc)
    if isinstance(exc, CursorTrimmed):
        return cannot_resume(facts, cursor, 410, "trimmed", "the frames after this cursor are not kept any more")
    if isinstance(exc, LogLost):
        return cannot_resume(facts, cursor, 410, "log_lost", "the log lost the frames before this cursor")
    if isinstance(exc, CursorMisfit):
        return cannot_resume(facts, cursor, 409, "misfit", "the cursor is not one of this stream's")
    return cannot_resume(facts, cursor, 404, "unknown_stream", NOT_HERE)
