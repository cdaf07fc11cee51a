"""A reader of a guarded stream over a WebSocket, which verifies, gives credit, and comes back where it was.

    python websocket_reader.py ws://localhost:8000/chat Tell me a story

Each message is a line of NDJSON, so the library's verifier reads them. The first one repeats the `Streamguard` header
of HTTP; a close before the terminal is a cut, whatever its code.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import aiohttp

from streamguard.core.negotiate import parse_answer
from streamguard.core.receipt import Verdict
from streamguard.core.verify import StreamVerifier

AHEAD = (64, 65_536)  # frames and bytes that the server may be ahead of what was acknowledged


ATTEMPTS = 5


async def read(url: str, body: Any) -> StreamVerifier:
    verifier: StreamVerifier | None = None
    async with aiohttp.ClientSession() as session:
        for attempt in range(ATTEMPTS):
            first = {"streamguard": f"v=1, credit=({AHEAD[0]} {AHEAD[1]})", "body": body}
            if verifier is not None:
                await asyncio.sleep(0.1 * 2**attempt)
                first["after"] = str(verifier.cursor)  # a cursor is never a start: it resumes, or is refused
            async with session.ws_connect(url, protocols=["streamguard.v1"]) as socket:
                await socket.send_json(first)
                opened = await socket.receive_json()
                answer = parse_answer(opened.get("streamguard"))
                if answer is None:
                    sys.exit(f"refused: {opened}")
                if verifier is None:
                    verifier = StreamVerifier(wire="ndjson", dialect=answer.dialect, zero=answer.cursor)
                else:
                    verifier.resume("ndjson", answer.cursor)
                await listen(socket, verifier)
            verifier.end(clean=socket.close_code == 1000)
            if verifier.verdict is not Verdict.TRUNCATED or answer.resume is None:
                break
    assert verifier is not None
    return verifier


async def listen(socket: Any, verifier: StreamVerifier) -> None:
    async for message in socket:
        for frame in verifier.feed(message.data.encode() + b"\n"):
            print(frame.text, end="", flush=True)
        at = verifier.cursor
        if at is not None and at.status is None and (at.seq % 16 == 0 or message.data.startswith('{"hb"')):
            # Signs of life are answered: after three that were not, a reader is taken for gone.
            await socket.send_json({"ack": str(at), "credit": [at.seq + AHEAD[0], at.offset + AHEAD[1]]})


def main(url: str, *words: str) -> int:
    verifier = asyncio.run(read(url, {"text": " ".join(words)}))
    print(f"\n{verifier.receipt}")
    return 0 if verifier.error() is None else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
