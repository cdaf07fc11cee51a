"""Readers of SSE as they are usually written: EOF is success, and lines are whatever `splitlines` says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

__all__ = ["Answer", "blocks", "events", "read"]


@attrs.define
class Answer:
    """What the naive reader has at the end of the bytes. It cannot know more than that they ended."""

    text: str = ""
    complete: bool = True


def events(chunks: Iterable[bytes]) -> Iterator[str]:
    """The data of each `data:` line; each chunk is decoded and cut into lines by itself."""
    for chunk in chunks:
        for line in chunk.decode(errors="replace").splitlines():
            if line.startswith("data: "):
                yield line[6:]


def blocks(body: bytes) -> list[str]:
    """The data of each block, as clients read it that split the whole body on a blank line (LF only)."""
    found = []
    for block in body.decode().split("\n\n"):
        lines = [line[6:] for line in block.split("\n") if line.startswith("data: ")]
        if lines:
            found.append("\n".join(lines))
    return found


def read(chunks: Iterable[bytes]) -> Answer:
    """The text of an answer whose data is plain text."""
    answer = Answer()
    for data in events(chunks):
        if data == "[DONE]":
            break
        answer.text += data
    return answer
