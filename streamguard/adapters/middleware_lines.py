"""JSON lines, guarded: a stream of which nothing is changed but its end.

A line has no place for a cursor, so it passes as it is, and so do the headers. Everything else is what any guarded
answer has, since the same driver serves it: a slot, a drain, the limits of `Timing`, the stop of an application whose
reader has left, and an end that is proven, or an error line and the abort.
"""

from __future__ import annotations

from typing import Any

from streamguard.adapters.asgi import GuardedAnswer, encode_headers
from streamguard.adapters.asgi_sink import AsgiSink
from streamguard.adapters.middleware_judge import UNENDED, LineJudge
from streamguard.adapters.seal import Receive, Scope, Send
from streamguard.core.cursor import cursor_zero, new_sid
from streamguard.core.dialect import Raw
from streamguard.core.errors import Failure, failure_from
from streamguard.core.exchange import RequestFacts
from streamguard.core.items import Ending, Item
from streamguard.runtime.sink import Stage

__all__ = ["LineStage", "LinesAnswer"]


class LineStage:
    """What a driver drives: pieces of lines pass, and are judged on their way."""

    timed = False
    unframed = True  # its cursor stays where it is

    def __init__(self, rule: Raw) -> None:
        self.cursor = cursor_zero(new_sid())  # a name for the log; no reader is given it
        self.ending = Ending()
        self.status: str | None = None
        self.sent = 0
        self._judge = LineJudge(rule)

    @property
    def items(self) -> int:
        """Pieces, as the application sent them."""
        return self.ending.items

    def open(self) -> bytes:
        return b""

    def push(self, item: Item, now: float) -> bytes:
        """The piece itself. Raises what a rule of the application's own raises."""
        piece: Any = item
        self._judge.feed(piece)
        self.ending.items += 1
        self.sent += len(piece)
        return piece  # type: ignore[no-any-return]

    def tick(self, now: float) -> bytes:
        return b""

    def heartbeat(self) -> bytes:
        return b""  # an empty line would do, but for clients that parse each one

    def deadline(self) -> float | None:
        return None

    def finish(self, now: float) -> bytes:
        """Nothing more, where the end is proven; else the error line."""
        try:
            judged = self._judge.end(clean=True)
        except Exception as exc:
            return self.fail(failure_from(exc), now)
        if judged.verdict != "complete":
            return self.fail(judged.failure or UNENDED, now)
        self.status = self.ending.status = "complete"
        return b""

    def fail(self, failure: Failure, now: float, status: str = "failed") -> bytes:
        """The error line, if it would be read as one."""
        self.status = self.ending.status = status
        self.ending.failure = failure
        line = self._judge.error_line(failure)
        self.sent += len(line)
        return line


class LinesAnswer(GuardedAnswer):
    """The answer. `options.dialect` has the rule."""

    def _driven(
        self, scope: Scope, receive: Receive, send: Send, facts: RequestFacts
    ) -> tuple[Stage[bytes], AsgiSink, bool]:
        rule = self.options.dialect
        assert isinstance(rule, Raw)
        sink = AsgiSink(scope, receive, send, self.status, encode_headers(self.headers))
        return LineStage(rule), sink, True
