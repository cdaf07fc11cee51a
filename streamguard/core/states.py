"""The life of one stream on one connection, as a table.

Read it as: in this state, this may happen, and leads there. A missing key is the error. The table
is blind to role: the server's guard steps it as it writes and the client's verifier as it reads,
so the two cannot disagree about what a legal stream is.

    UNOPENED ──opening──▶ OPEN ──terminal──▶ ENDED ──eof──▶ CLOSED
        │                   │ ▲ frame, beat      │
        │                   │ └──┘               └ nothing else: no frame follows a terminal
        └────────eof────────┴──eof──▶ CUT ◀──eof── PARTED ◀──bye── OPEN

End of bytes is an input like any other. CLOSED and CUT are the two ways a connection can be over:
only one of them had a terminal before it. A reader may meet a frame before any opening (comments
and headers can be stripped on the way), so UNOPENED takes frames.
"""

from __future__ import annotations

from typing import Final, Literal

__all__ = ["FINAL_STATUSES", "Input", "State", "TABLE", "step"]

State = Literal["unopened", "open", "ended", "parted", "closed", "cut"]
Input = Literal["opening", "frame", "beat", "terminal", "bye", "eof"]

TABLE: Final[dict[State, dict[Input, State]]] = {
    "unopened": {
        "opening": "open",
        "frame": "open",
        "beat": "unopened",
        "terminal": "ended",
        "bye": "parted",
        "eof": "cut",
    },
    "open": {"frame": "open", "beat": "open", "terminal": "ended", "bye": "parted", "eof": "cut"},
    "ended": {"eof": "closed"},
    "parted": {"eof": "cut"},
    "closed": {},
    "cut": {},
}

# The statuses a terminal frame may bear. A stream with a log never ends as the last two: its
# connection does, and the stream lives on (wire protocol, section 3).
FINAL_STATUSES: Final = ("complete", "failed", "cancelled", "stalled", "slow", "shutdown")


def step(state: State, event: Input) -> State | None:
    """The next state, or None where the table has no such key."""
    return TABLE[state].get(event)
