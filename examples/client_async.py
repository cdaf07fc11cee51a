"""Read a stream and know whether it came whole: `python client_async.py URL [PROMPT]`.

Text is printed as it comes, and then what is known of it. Exits with 1 if the answer is not whole.
"""

from __future__ import annotations

import asyncio
import sys

from streamguard.client import stream
from streamguard.core.errors import LimitExceeded, UnexpectedResponse, VerdictError


async def main(url: str, prompt: str) -> int:
    try:
        async with stream("POST", url, json={"text": prompt}) as answer:
            try:
                async for text in answer.text():
                    print(text, end="", flush=True)
            finally:
                print(f"\n{answer.receipt}")
    except VerdictError as error:
        print(f"not whole, {len(error.received)} characters came: {error}", file=sys.stderr)
    except LimitExceeded as error:
        print(f"gave up: {error}", file=sys.stderr)
    except UnexpectedResponse as error:
        print(f"no stream: {error}", file=sys.stderr)
    else:
        return 0
    return 1


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(f"usage: python {sys.argv[0]} URL [PROMPT]")
    sys.exit(asyncio.run(main(sys.argv[1], " ".join(sys.argv[2:]) or "Hello")))
