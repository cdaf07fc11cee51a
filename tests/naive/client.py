"""A reader of SSE as it is usually written: EOF is success, and lines are whatever `splitlines` says of a chunk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

from streamguard.testing.decoders import ChunkLines, EofIsSuccess, LineFeedOnly

__all__ = ["Answer", "Client", "blocks", "events", "read"]


class Client(ChunkLines, EofIsSuccess):
    """Both faults in one."""


@attrs.define
class Answer:
    """What the naive reader has at the end of the bytes. It cannot know more than that they ended."""

    text: str = ""
    complete: bool = True


def events(chunks: Iterable[bytes]) -> Iterator[str]:
    """The data of each `data:` line; each chunk is decoded and cut into lines by itself."""
    client = Client()
    for chunk in chunks:
        for event in client.feed(chunk):
            yield event.data


def blocks(body: bytes) -> list[str]:
    """The data of each block, as clients read it that split the whole body on a blank line (LF only)."""
    return [event.data for event in LineFeedOnly().feed(body)]


def read(chunks: Iterable[bytes]) -> Answer:
    """The text of an answer whose data is plain text."""
    client = Client()
    text = ""
    for data in events(chunks):
        if data == "[DONE]":
            break
        text += data
    client.end()
    return Answer(text, client.complete)
