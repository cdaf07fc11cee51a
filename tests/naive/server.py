"""An SSE endpoint's generator as it is usually written.

Its faults: the buffer is not flushed at the end; a block overtakes the text before it; a source that
fails is logged and followed by `[DONE]`; an item without text is skipped together with its finish
reason; text goes into `data:` as it is, line ends and all.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator

from streamguard.core.items import Block, Finish

__all__ = ["hold_back", "serve", "sliced"]

log = logging.getLogger(__name__)


def serve(items: Iterable[object], *, batch: int = 1) -> Iterator[bytes]:
    """The body of the answer. An exception among `items` is raised where it stands."""
    buffer: list[str] = []
    try:
        for item in items:
            if isinstance(item, BaseException):
                raise item
            if isinstance(item, Block):
                yield b"event: block\ndata: %b\n\n" % json.dumps({"type": item.type, **item.fields}).encode()
                continue
            if isinstance(item, Finish):
                text = ""
            else:
                text = item.decode(errors="replace") if isinstance(item, bytes) else str(item)
            if not text:
                continue
            buffer.append(text)
            if len(buffer) >= batch:
                yield f"data: {''.join(buffer)}\n\n".encode()
                buffer.clear()
    except Exception:
        log.info("generation failed", exc_info=True)
    finally:
        yield b"data: [DONE]\n\n"


def hold_back(tokens: Iterable[str], stop: str) -> Iterator[str]:
    """Tokens, but none that may begin the stop string until the next one has come."""
    held = ""
    for token in tokens:
        held += token
        if any(held.endswith(stop[:size]) for size in range(1, len(stop) + 1)):
            continue
        yield held
        held = ""


def sliced(pieces: Iterable[str]) -> Iterator[str]:
    """New text by a counter of steps, as with a detokeniser that answers the whole text so far."""
    text = ""
    for step, piece in enumerate(pieces):
        text += piece
        yield text[step : step + 1]
