"""What the library itself puts among a stream's options, beside the application's: how it is served, and with which
settings its encoder began."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

import attrs

from streamguard.core.dialect import Dialect, dialect_named
from streamguard.core.framing import FramedEncoder
from streamguard.log.base import StreamInfo, StreamState

__all__ = ["FIXED", "OWN", "dialect_of", "encoder_of_an_end", "fixed", "negotiated", "origin_of", "own_options"]

logger = logging.getLogger("streamguard")

OWN: Final = "streamguard"  # how it is served
FIXED: Final = "streamguard.encoder"  # what another encoder needs to go on with it, and the origin for observers


def own_options(info: StreamInfo, name: str = OWN) -> Mapping[str, Any]:
    """What the library itself has put among a stream's options."""
    found = info.options.get(name)
    return found if isinstance(found, Mapping) else {}


def fixed(settings: Mapping[str, Any], origin: str | None, *, negotiated: bool) -> dict[str, Any]:
    """What is noted of a stream that begins; `settings` are its dialect's."""
    noted = {"dialect": settings, "negotiated": negotiated}
    return {FIXED: noted if origin is None else {**noted, "origin": origin}}


def dialect_of(dialect: Dialect, info: StreamInfo) -> Dialect:
    """The dialect with the settings that the stream began with."""
    settings = own_options(info, FIXED).get("dialect")
    return attrs.evolve(dialect, **settings) if settings else dialect  # type: ignore[misc]  # each is of attrs


def negotiated(info: StreamInfo) -> bool:
    """Whether its first reader verifies."""
    return bool(own_options(info, FIXED).get("negotiated"))


def origin_of(info: StreamInfo) -> str | None:
    """What observers answered when it began; None where nobody did."""
    found = own_options(info, FIXED).get("origin")
    return found if isinstance(found, str) else None


def encoder_of_an_end(state: StreamState, dialect: Dialect | None) -> FramedEncoder:
    """What writes the end of a stream that nobody goes on with; `dialect` is its endpoint's, where that is known."""
    try:
        if dialect is None or dialect.name != state.info.dialect:  # an endpoint's may have changed meanwhile
            dialect = dialect_named(state.info.dialect)
        return FramedEncoder(dialect_of(dialect, state.info), at=state.tail, negotiated=negotiated(state.info))
    except Exception:
        # A dialect of the application's own, which this process does not know. Any end is better than none.
        logger.exception("stream %s: its end is written in dialect native", state.info.sid[:8])
        return FramedEncoder("native", at=state.tail)
