"""What the library itself puts among a stream's options, beside the application's: how it is served, and with which
settings its encoder began."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from streamguard.core.dialect import Dialect
from streamguard.log.base import StreamInfo

__all__ = ["FIXED", "OWN", "dialect_of", "negotiated", "own_options"]

OWN: Final = "streamguard"  # how it is served
FIXED: Final = "streamguard.encoder"  # what another encoder needs to go on with it


def own_options(info: StreamInfo, name: str = OWN) -> Mapping[str, Any]:
    """What the library itself has put among a stream's options."""
    found = info.options.get(name)
    return found if isinstance(found, Mapping) else {}


def dialect_of(dialect: Dialect, info: StreamInfo) -> Dialect:
    """The dialect with the settings that the stream began with."""
    settings = own_options(info, FIXED).get("dialect")
    return attrs.evolve(dialect, **settings) if settings else dialect  # type: ignore[misc]  # each is of attrs


def negotiated(info: StreamInfo) -> bool:
    """Whether its first reader verifies."""
    return bool(own_options(info, FIXED).get("negotiated"))
