"""Optional: the server's own line about an aborted answer, which says less than ours, is not logged.

    quiet_server_logs()          # once, before or after the server starts

A stream that did not complete has one line in the log `streamguard`: what failed, and after how many items. uvicorn
adds "ASGI callable returned without completing response." as an error of its own, because a return without the last
message is how ASGI aborts; it does so where its connection could not be closed first, as under a layer outside the
seal that hides the server's `receive`. hypercorn, granian and daphne add nothing, and nothing of theirs is touched.

Whether the line belongs to an abort of ours is read from the request that uvicorn logs it for: its scope has the mark
that the seal left there. So an answer that the application itself forgot to finish is still reported; and so is, as
before, a stream of an application without a SealMiddleware, which has no place for the mark.
"""

from __future__ import annotations

import logging
import sys
from types import FrameType
from typing import Any, Final

import attrs

from streamguard.adapters.seal import _KEY

__all__ = ["AbortFilter", "quiet_server_logs"]

_UVICORN: Final = "uvicorn.error"
_LINE: Final = "ASGI callable returned without completing response."
_FUNCTION: Final = "run_asgi"  # the method of uvicorn's that calls the application, and logs the line
_MAX_FRAMES: Final = 20  # between the filter and that method; logging itself is five


@attrs.frozen
class AbortFilter:
    """Drops uvicorn's line where streamguard aborted the answer; any other record passes. All are equal, so that a
    logger takes no second one."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is to be logged."""
        return record.msg != _LINE or not _aborted_by_us()


def quiet_server_logs() -> None:
    """Put the filter on the server's logger. A second call changes nothing."""
    logging.getLogger(_UVICORN).addFilter(AbortFilter())


def _aborted_by_us() -> bool:
    scope = _scope()
    return bool(getattr(scope.get(_KEY), "aborted", False))


def _scope() -> Any:
    """The scope of the request that the caller logs for; empty where no caller is uvicorn's."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MAX_FRAMES):
        if frame is None:
            break
        if frame.f_code.co_name == _FUNCTION:
            return getattr(frame.f_locals.get("self"), "scope", {})
        frame = frame.f_back
    return {}
