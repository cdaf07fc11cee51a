"""streamguard: what was generated is what was delivered, or both ends know that it was not.

In the order in which data flows. Frameworks are in `streamguard.adapters`, the client in
`streamguard.client`.
"""

from __future__ import annotations

from streamguard.app import anyone_with_the_id
from streamguard.core.adaptive import Adaptive
from streamguard.core.compress import Gzip
from streamguard.core.dialect import AgUi, Anthropic, Native, OpenAI, OpenAIResponses, Raw, Text, Ui
from streamguard.core.errors import (
    CorruptStream,
    FailedStream,
    LimitExceeded,
    SourceFailed,
    StreamAborted,
    StreamClosed,
    StreamGap,
    StreamGuardError,
    TruncatedStream,
    UnexpectedResponse,
    VerdictError,
)
from streamguard.core.flush import (
    AtBoundary,
    EveryBytes,
    EveryTokens,
    FlushPolicy,
    HoldBack,
    Immediate,
    Within,
    any_of,
)
from streamguard.core.framing import FramedEncoder
from streamguard.core.guard import CompletionGuard
from streamguard.core.items import Block, Checkpoint, Event, Finish, tool_call
from streamguard.core.pipeline import Pipeline
from streamguard.core.receipt import Receipt, Verdict
from streamguard.core.verify import StreamVerifier
from streamguard.core.wire import Binary, Ndjson, Sse
from streamguard.observe.hooks import Observer, Outcome
from streamguard.runtime.admission import Admission
from streamguard.runtime.buffer import Buffer
from streamguard.runtime.checkpoints import CheckpointEvery
from streamguard.runtime.push import PushSource
from streamguard.runtime.runs import Cancel, Detach, ReadOn
from streamguard.runtime.slots import Limits
from streamguard.runtime.source import TokenSource
from streamguard.runtime.stages import GuardedStream, pipe
from streamguard.runtime.takeover import Continue, Orphan, Replay
from streamguard.runtime.timing import Timing

__all__ = [
    # what a source yields
    "Block",
    "Event",
    "Finish",
    "Checkpoint",
    "tool_call",
    "SourceFailed",
    # source
    "TokenSource",
    "PushSource",
    "Buffer",
    # flush
    "FlushPolicy",
    "Immediate",
    "EveryTokens",
    "EveryBytes",
    "Within",
    "AtBoundary",
    "HoldBack",
    "Adaptive",
    "any_of",
    # encode
    "FramedEncoder",
    "Native",
    "OpenAI",
    "OpenAIResponses",
    "Anthropic",
    "Ui",
    "AgUi",
    "Raw",
    "Text",
    # guard and carrier
    "CompletionGuard",
    "Sse",
    "Ndjson",
    "Binary",
    "Gzip",
    # joined
    "Pipeline",
    "GuardedStream",
    "pipe",
    "Timing",
    "Outcome",
    "Observer",
    # who may stream
    "Limits",
    "Admission",
    # streams that outlive their connections
    "Cancel",
    "Detach",
    "ReadOn",
    "CheckpointEvery",
    "Continue",
    "Replay",
    "Orphan",
    "anyone_with_the_id",
    # read
    "StreamVerifier",
    "Receipt",
    "Verdict",
    # errors
    "StreamGuardError",
    "StreamAborted",
    "StreamClosed",
    "VerdictError",
    "TruncatedStream",
    "CorruptStream",
    "StreamGap",
    "FailedStream",
    "UnexpectedResponse",
    "LimitExceeded",
]
