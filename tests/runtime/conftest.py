"""In here `anyio` tests run in virtual time, on asyncio and on trio."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from trio._core import _run as trio_run

from tests.runtime.virtual import BACKENDS, backend_options, no_thread


@pytest.fixture(params=BACKENDS)
def anyio_backend(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A fresh loop a test, so a fresh clock, and on trio the same order of tasks each time."""
    trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    trio_run._r.seed(0)
    with no_thread():
        yield request.param, backend_options(request.param)
