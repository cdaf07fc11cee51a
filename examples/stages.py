"""Each stage of a stream by itself, then all of them joined.

    python examples/stages.py

A stage is an async iterator over the one before it, so a stream can be left after any of them: as items,
as text under a flush policy, as frames, as bytes. The bytes of the four joined are those of GuardedStream.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio

from streamguard import (
    Block,
    CompletionGuard,
    EveryTokens,
    Finish,
    FramedEncoder,
    GuardedStream,
    Native,
    Sse,
    StreamAborted,
    StreamVerifier,
    TokenSource,
    pipe,
)

SID = "AAAAAAAAAAAAAAAAAAAAAA"  # fixed, so that the two ways of making bytes can be compared


async def answer() -> AsyncIterator[str | Block | Finish]:
    """What a model would generate."""
    for word in ("Guarded ", "streams ", "end ", "whole, "):
        yield word
    yield Block("tool_call", {"id": "1", "name": "look", "arguments": "{}"})
    yield "or say so."
    yield Finish("stop", {"total_tokens": 6})


async def half_an_answer() -> AsyncIterator[str]:
    yield "Guarded "
    raise ConnectionError("the model server went away")


async def items() -> list[object]:
    """`TokenSource`: what was generated, and a producer that is closed whatever happens."""
    async with pipe(TokenSource(answer)) as source:
        return [item async for item in source]


async def texts() -> list[object]:
    """A flush policy over it: text leaves two pieces at a time, and all of it before a block and at the end."""
    async with pipe(TokenSource(answer), EveryTokens(2)) as pieces:
        return [piece async for piece in pieces]


async def frames() -> list[str]:
    """`FramedEncoder` over that: each frame has its number, offset and checksum; the last one has a status."""
    async with pipe(TokenSource(answer), EveryTokens(2), FramedEncoder(Native(), sid=SID)) as framed:
        return [f"{frame.seq} {frame.offset:>3} {frame.crc:08x} {frame.status or ''}" async for frame in framed]


async def joined() -> bytes:
    """`CompletionGuard` over those: the bytes of one connection, and exactly one terminal."""
    encoder = FramedEncoder(Native(), sid=SID)
    async with pipe(TokenSource(answer), EveryTokens(2), encoder, CompletionGuard(Sse())) as chunks:
        return b"".join([chunk async for chunk in chunks])


async def guarded() -> bytes:
    """The same in one name."""
    encoder = FramedEncoder(Native(), sid=SID)
    async with GuardedStream(TokenSource(answer), EveryTokens(2), encoder, CompletionGuard(Sse())) as stream:
        return b"".join([chunk async for chunk in stream])


async def failing() -> tuple[bytes, str]:
    """A source that fails: the bytes say so, and the iterator raises where a clean end would follow."""
    body = b""
    source = TokenSource(half_an_answer)
    try:
        async with GuardedStream(source, EveryTokens(2), FramedEncoder(Native()), CompletionGuard(Sse())) as stream:
            async for chunk in stream:
                body += chunk
    except StreamAborted as exc:
        return body, str(exc)
    raise AssertionError("half an answer was taken for a whole one")


def verdict(body: bytes) -> str:
    """What a reader makes of these bytes."""
    verifier = StreamVerifier()
    text = "".join([frame.text for frame in verifier.feed(body)])
    verifier.end()
    return f"{verifier.receipt.verdict.name}: {text!r}"


async def main() -> None:
    print("items  ", *await items(), sep="\n    ")
    print("texts  ", *await texts(), sep="\n    ")
    print("frames ", *await frames(), sep="\n    ")
    body = await joined()
    print("bytes  ", *body.decode().splitlines(), sep="\n    ")
    print("the same from GuardedStream:", body == await guarded())
    print(verdict(body))
    body, error = await failing()
    print(verdict(body), "|", error)


if __name__ == "__main__":
    anyio.run(main)
