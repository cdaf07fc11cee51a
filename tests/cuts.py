"""Where to cut recorded streams, and which part of one is the whole by its server's own rule."""

from __future__ import annotations

from random import Random
from typing import Any

from streamguard.core.dialect import Raw
from streamguard.core.wire import SseDecoder

__all__ = ["cuts_of", "profile_of"]


def profile_of(row: dict[str, Any]) -> str:
    """The profile of the server that a row of the index names."""
    return "transformers" if row["server"].startswith("transformers") else "openai"


def cuts_of(row: dict[str, Any], data: bytes, rng: Random, *, edges: int | None, places: int) -> list[int]:
    """Where to cut: at `edges` of its events' edges (None: all), and at `places` anywhere; before its end in each."""
    found = [at + 2 for at in range(len(data)) if data.startswith((b"\n\n", b"\r\n\r\n"), at)]
    if edges is not None:
        found = rng.sample(found, min(edges, len(found)))
    found += [rng.randrange(1, len(data)) for _ in range(places)]
    last = max(at for at, event in enumerate(SseDecoder().feed(data)) if event.data.strip())
    return [at for at in sorted({0, *found}) if _count(data[:at]) <= last and not _proved(row, data[:at])]


def _count(data: bytes) -> int:
    return len(SseDecoder().feed(data))


def _proved(row: dict[str, Any], cut: bytes) -> bool:
    seen = Raw(profile=profile_of(row)).reader()
    for event in SseDecoder().feed(cut):
        seen.read(None if event.event == "message" else event.event, event.data)
    return seen.proof(False) is not None
