"""One process of each server for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stacks.processes import Process, running, stack_params

__all__: list[str] = []


@pytest.fixture(scope="module", params=stack_params())
def process(request: pytest.FixtureRequest) -> Iterator[Process]:
    with running(request.param) as found:
        yield found
