"""One browser for each module, and servers that ask for a quick return."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clients.browser import Browser, chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that was cut comes back after 10 ms, where servers say 2 s."""
    monkeypatch.setattr("streamguard.core.wire.sse._RETRY_MS", 10)
