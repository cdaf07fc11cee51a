"""Who of several requests with one key goes first, and when the next one does."""

from __future__ import annotations

import anyio
import pytest

from streamguard.adapters.logged import Claim
from streamguard.adapters.same_key import LEFT, SameKey, nobody_waits
from streamguard.core.exchange import RequestFacts, problem
from streamguard.log.base import StreamInfo

pytestmark = pytest.mark.anyio

FACTS = RequestFacts("POST", {})
REFUSED = problem(400, "bad", "no")


class Log:
    """What `make_claim` finds; each look takes a turn of the loop."""

    def __init__(self) -> None:
        self.found: StreamInfo | None = None
        self.looks = 0

    async def look(self, key: str | None = "k") -> Claim:
        self.looks += 1
        found = self.found
        await anyio.lowlevel.checkpoint()
        return Claim(FACTS, key=key, found=found)


async def test_the_others_wait_until_the_first_has_begun_and_find_what_it_did() -> None:
    keys, log, info, found = SameKey(), Log(), StreamInfo("s" * 22), list[Claim]()

    async def another() -> None:
        found.append((await keys.claim(log.look, anyio.sleep_forever))[0])

    first, begun = await keys.claim(log.look, anyio.sleep_forever)
    assert first.starts
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(another)
        await anyio.wait_all_tasks_blocked()
        assert found == []
        log.found = info
        begun()
        begun()
    assert [claim.found for claim in found] == [info] * 3


async def test_of_those_behind_one_that_left_nothing_one_is_first_again() -> None:
    keys, log, turns, most = SameKey(), Log(), 0, 0

    async def one() -> None:
        nonlocal turns, most
        _, begun = await keys.claim(log.look, anyio.sleep_forever)
        turns += 1
        most = max(most, turns)
        await anyio.lowlevel.checkpoint()
        turns -= 1
        begun()
        begun()  # does not let a third one pass the second

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(one)
    assert most == 1
    assert (await keys.claim(log.look, anyio.sleep_forever))[0].starts


async def test_other_keys_and_requests_without_one_wait_for_nobody() -> None:
    keys, log = SameKey(), Log()

    async def other() -> Claim:
        return await log.look("other")

    async def without() -> Claim:
        return await log.look(None)

    async def refused() -> Claim:
        return Claim(FACTS, key="k", refused=REFUSED)

    await keys.claim(log.look, anyio.sleep_forever)
    with anyio.fail_after(30):
        for make in (other, without, without, refused):
            claim, begun = await keys.claim(make, anyio.sleep_forever)
            assert (begun is nobody_waits) == (claim.key != "other")


async def test_one_whose_reader_leaves_waits_no_longer_and_holds_nobody_up() -> None:
    keys, log, hung_up = SameKey(), Log(), anyio.Event()
    _, begun = await keys.claim(log.look, anyio.sleep_forever)
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:

            async def hang_up() -> None:
                await anyio.wait_all_tasks_blocked()
                hung_up.set()

            tasks.start_soon(hang_up)
            claim, of_none = await keys.claim(log.look, hung_up.wait)
        assert (claim.refused, of_none is nobody_waits, log.looks) == (LEFT, True, 2)
        begun()
        assert (await keys.claim(log.look, anyio.sleep_forever))[0].starts
