"""Streams whose process is gone, as their log has them."""

from __future__ import annotations

from typing import Any

import anyio

from streamguard.core.dialect import Dialect, dialect_named
from streamguard.core.flush import Immediate
from streamguard.core.framing import FramedEncoder
from streamguard.log.base import Lease, StreamInfo, StreamLog
from streamguard.runtime.own import FIXED, OWN
from streamguard.runtime.producer import LoggedStage, LogSink
from tests.runtime.fakes import SID

__all__ = ["TTL", "died"]

TTL = 15.0


async def died(
    log: StreamLog,
    *items: Any,
    dialect: str | Dialect = "native",
    negotiated: bool = False,
    resumer: str = "r",
    name: str | None = None,
    **own: str,
) -> Lease:
    """A stream, SID, whose process made these items, and died; its lease ends TTL from now. `own` are more of the
    library's own options."""
    encoder = FramedEncoder(dialect, sid=SID, negotiated=negotiated)
    fixed = {"dialect": encoder.dialect.settings(), "negotiated": negotiated}
    options = {OWN: {"resumer": resumer, **own}, FIXED: fixed}
    info = StreamInfo(SID, dialect_named(dialect).name, principal="", name=name, options=options)
    lease = await log.create(info, TTL)
    stage = LoggedStage(Immediate(), encoder)
    sink = LogSink(log, lease, encoder.cursor, anyio.current_time, renewed=0.0)
    for item in items:
        await sink.send(stage.push(item, 0.0))
    return lease
