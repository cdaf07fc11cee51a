"""The verifying client: an answer is read whole, or the reader is told that it is not.

    async with stream("POST", url, json=body) as answer:
        async for text in answer.text():
            print(text, end="")
    print(answer.receipt)                # COMPLETE, 412 frames, crc 9ae0daaf

    answer   the answer's state, without I/O
    resume   when a stream that was cut is asked for again, and how, without I/O
    httpx    `stream` and `stream_sync` over httpx, loaded when one of them is first asked for
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamguard.client.limits import ReaderLimits
from streamguard.client.resume import ResumePolicy
from streamguard.core.receipt import AnswerFrame, Receipt, Verdict
from streamguard.extras import needs

if TYPE_CHECKING:
    from streamguard.client.httpx import Answer, RequestOptions, SyncAnswer, stream, stream_sync

__all__ = [
    "stream",
    "stream_sync",
    "Answer",
    "SyncAnswer",
    "ReaderLimits",
    "RequestOptions",
    "ResumePolicy",
    "AnswerFrame",
    "Receipt",
    "Verdict",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needs("httpx", "the client"):
        import streamguard.client.httpx as leaf
    return getattr(leaf, name)
