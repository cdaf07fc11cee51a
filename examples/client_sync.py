"""Read a stream without an event loop, frame by frame: `python client_sync.py URL [PROMPT]`.

Prints each frame's number and what it holds, text or a block, and then what is known of the whole.
One `httpx.Client` serves many requests: its connections are used again.
"""

from __future__ import annotations

import sys

import httpx

from streamguard.client import ReaderLimits, stream_sync
from streamguard.core.errors import RemoteProtocolError

LIMITS = ReaderLimits(connect=5, first_byte=30, liveness=45, stall=120)


def main(url: str, prompt: str) -> int:
    with httpx.Client() as client:
        try:
            with stream_sync("POST", url, client=client, json={"text": prompt}, limits=LIMITS) as answer:
                for frame in answer.frames():
                    print(frame.seq, frame.text or frame.item)
                print(answer.receipt)
        except RemoteProtocolError as error:
            print(f"not whole: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(f"usage: python {sys.argv[0]} URL [PROMPT]")
    sys.exit(main(sys.argv[1], " ".join(sys.argv[2:]) or "Hello"))
