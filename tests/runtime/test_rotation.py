"""The age at which a connection ends, of each a little different."""

from __future__ import annotations

import anyio
import pytest

from streamguard.runtime.rotation import JITTER, rotation

pytestmark = pytest.mark.anyio


async def test_a_connection_is_old_at_an_age_of_its_own_at_most_the_maximum() -> None:
    told: list[int] = []
    leaves = [rotation(100.0, lambda index=index: told.append(index)) for index in range(50)]  # type: ignore[misc]
    ages: dict[int, float] = {}
    while len(ages) < len(leaves):
        for index, leave in enumerate(leaves):
            if index not in ages and leave():
                ages[index] = anyio.current_time()
        await anyio.sleep(0.5)
    assert sorted(told) == list(range(50))
    assert min(ages.values()) >= 100 * (1 - JITTER)
    assert max(ages.values()) <= 100.5
    assert len(set(ages.values())) > 10
