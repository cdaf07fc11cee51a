"""A process that appends to a log in Redis, for the tests that kill it, stop it, or read beside it.

    python -m tests.log.redis_child URL told|many COUNT|timed COUNT PAUSE

What these do, and say, is `tests.log.sqlite_child`'s.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from streamguard.log.redis import RedisLog
from tests.log.sqlite_child import many, timed, told


async def main(url: str, what: str, *numbers: str) -> None:
    log: Any = RedisLog(url)  # all three use it as any log
    if what == "told":
        await told(log)
    elif what == "many":
        await many(log, int(numbers[0]))
    else:
        await timed(log, int(numbers[0]), float(numbers[1]))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
