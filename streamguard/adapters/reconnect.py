"""A running stream by its name: what a page asks for that was loaded again and has no cursor.

The AI SDK's `DefaultChatTransport` asks `GET <api>/<chat>/stream`, and takes 204 for "there is nothing to resume". So
does this answer, at any address and in any dialect: the newest stream of a name, from its start and then live, as long
as it is generated. One that has ended is none to resume: the page that was loaded has its text from where the
application keeps it, and would show it twice. Another's stream and none at all are the same answer.

A request that bears a cursor goes on behind it, as at the endpoints of all streams.
"""

from __future__ import annotations

from typing import Any

from typing_extensions import Unpack

from streamguard.adapters.asgi import refuse_early
from streamguard.adapters.logged import FORBIDDEN, MIN_SECRET
from streamguard.adapters.options import AnswerOptions, Options
from streamguard.adapters.reading import Reading
from streamguard.adapters.refusals import unavailable
from streamguard.adapters.seal import Receive, Scope, Send
from streamguard.app import StreamGuard
from streamguard.core.arguments import shown
from streamguard.core.cursor import Cursor
from streamguard.core.exchange import nothing_more, problem
from streamguard.log.base import LogUnavailable, StreamState, UnknownStream

__all__ = ["ReconnectAnswer", "find_named"]

_READS_ONLY = problem(405, "method_not_allowed", "allowed: GET, HEAD", ("allow", "GET, HEAD"))


async def find_named(guard: StreamGuard, name: str, principal: str) -> StreamState:
    """The principal's newest stream of that name. Raises UnknownStream."""
    if not principal and len(name) < MIN_SECRET:
        raise UnknownStream(name)  # it could be guessed, and nothing else would keep strangers out
    return await guard.named(name, principal)


class ReconnectAnswer:
    """The running stream `name` of whoever asks, or 204, as an ASGI application for one request.

    `request` is what `authorize` is given (the scope, by default). Options are how it is served; dialect and flush
    policy are those that it began with. Raises TypeError and ValueError for a name that is none.
    """

    def __init__(self, guard: StreamGuard, name: str, *, request: Any = None, **named: Unpack[Options]) -> None:
        if not isinstance(name, str):
            raise TypeError(f"the name of a stream is a text, not {shown(name)}")
        if not name:
            raise ValueError("the name of a stream is a text that is not empty")
        self.guard = guard
        self.name = name
        self.request = request
        self.options = AnswerOptions.of_resumes(named)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reading = Reading(self.guard, self.options, scope, receive, send)
        facts = reading.facts
        refused = refuse_early(self.options, scope, receive, send, facts, self.guard.observe)
        if refused is None and facts.method not in ("GET", "HEAD"):
            refused = _READS_ONLY
        if refused is not None:
            await reading.refuse(refused)
            return
        principal = await self.guard.principal(scope if self.request is None else self.request, "read")
        if principal is None:
            await reading.refuse(FORBIDDEN)
        elif facts.cursor is not None:
            await reading.resume(Cursor.parse(facts.cursor), principal)
        else:
            await self._begin(reading, principal)

    async def _begin(self, reading: Reading, principal: str) -> None:
        try:
            state = await find_named(self.guard, self.name, principal)
        except UnknownStream:
            await reading.refuse(nothing_more())
        except LogUnavailable as exc:
            await reading.refuse(unavailable(reading.facts, exc))
        else:
            await (reading.refuse(nothing_more()) if state.sealed else reading.begin(state.info))
