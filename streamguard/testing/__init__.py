"""Tools for tests of streams, ours and yours.

    source            RecordingSource: does what its script says, notes every step, cancel and close
    server            ScriptedServer: drives an ASGI application without sockets, honest about streaming
    conduct           how its reader and its server behave
    layers            HeldStart: what stands in between, and changes when things arrive
    proxy             FaultProxy: a TCP proxy that damages the responses that pass it
    plan              what it does, and at which byte
    chunks            cutters, re-chunkers, frames dropped, doubled and swapped
    decoders          readers of server-sent events with the faults of real clients
    policy_contract   check_flush_policy
    source_contract   check_source
    log_contract      check_stream_log, its rules by name
    adapter_contract  check_adapter, its rules by name; it needs httpx
    adapter_sources   what the application serves that it is shown
    contract          what both raise
    crash             steps at which a process kills itself, or stops
    strategies        Hypothesis strategies; the one module that needs Hypothesis, imported by its own name
    sockets           underneath the proxy: non-blocking sockets that end as they are told

Each name is loaded when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from streamguard.extras import needs

if TYPE_CHECKING:
    from streamguard.testing.adapter_contract import ADAPTER_RULES, AdapterCase, check_adapter, check_adapter_rule
    from streamguard.testing.adapter_sources import SOURCES, AdapterSources
    from streamguard.testing.chunks import (
        Frames,
        byte_by_byte,
        cut,
        cuts,
        prefixes,
        random_sizes,
        rechunkings,
        sized,
        split,
    )
    from streamguard.testing.conduct import Conduct, Sent
    from streamguard.testing.contract import ContractBroken
    from streamguard.testing.crash import crash_at
    from streamguard.testing.decoders import (
        ChunkLines,
        Decoded,
        EofIsSuccess,
        JsonOnEverything,
        LineDecoder,
        LineFeedOnly,
        ShortLines,
        StickyId,
        UnicodeLines,
    )
    from streamguard.testing.layers import HeldStart
    from streamguard.testing.log_contract import LOG_RULES, check_log_rule, check_stream_log
    from streamguard.testing.plan import HEAD, Gate, Hold, Passage, Plan, RandomCut
    from streamguard.testing.policy_contract import check_flush_policy
    from streamguard.testing.proxy import FaultProxy
    from streamguard.testing.server import ScriptedServer
    from streamguard.testing.source import FOREVER, Note, RecordingSource, Yield
    from streamguard.testing.source_contract import check_source

__all__ = [
    # sources
    "RecordingSource",
    "Note",
    "Yield",
    "FOREVER",
    # servers
    "ScriptedServer",
    "Conduct",
    "Sent",
    "HeldStart",
    # networks
    "FaultProxy",
    "Plan",
    "RandomCut",
    "Passage",
    "HEAD",
    "Gate",
    "Hold",
    # bytes
    "prefixes",
    "cuts",
    "cut",
    "sized",
    "byte_by_byte",
    "random_sizes",
    "rechunkings",
    "split",
    "Frames",
    # clients
    "LineDecoder",
    "Decoded",
    "UnicodeLines",
    "ChunkLines",
    "LineFeedOnly",
    "StickyId",
    "ShortLines",
    "JsonOnEverything",
    "EofIsSuccess",
    # processes
    "crash_at",
    # contracts
    "check_flush_policy",
    "check_source",
    "check_stream_log",
    "check_log_rule",
    "LOG_RULES",
    "check_adapter",
    "check_adapter_rule",
    "ADAPTER_RULES",
    "AdapterCase",
    "AdapterSources",
    "SOURCES",
    "ContractBroken",
]

_HOMES: Final = (
    "source", "server", "conduct", "layers", "proxy", "plan", "chunks", "decoders",
    "policy_contract", "source_contract", "log_contract", "contract", "crash",
    "adapter_sources", "adapter_contract",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in __all__:
        for home in _HOMES:
            module = _home(home)
            if name in module.__all__:
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _home(name: str) -> Any:
    with needs("httpx", "check_adapter"):
        return importlib.import_module(f"{__name__}.{name}")
