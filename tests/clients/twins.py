"""One stream as it is usually served, and guarded: to clients that know nothing of either.

    /<way>/<ending>/<dialect>/<number>/…

`bare` and `under` are a StreamingResponse, the latter under a BaseHTTPMiddleware, which ends what broke off as if it
were whole; `guarded` and `sealed` are the same two guarded. The stream is `whole`, or `fails` in the middle. Each
number is one reader's: what it asks again is answered 204, so that who comes back by itself stops, and `again` counts.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final

from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Mount, Route

from streamguard.adapters.starlette import GuardedResponse, SealMiddleware
from streamguard.core.dialect import AgUi, Anthropic, Dialect, OpenAI, Raw, Ui
from streamguard.core.items import Event, Item
from streamguard.core.wire import Sse
from streamguard.runtime.timing import Timing
from tests.adapters.endings import passing
from tests.core.wire.streams import written

__all__ = ["GUARDED", "UNGUARDED", "Twins"]

UNGUARDED: Final = ("bare", "under")
GUARDED: Final = ("guarded", "sealed")

_DIALECTS: Final[dict[str, Dialect]] = {
    "openai": OpenAI(model="m", id="c", created=1),
    "anthropic": Anthropic(model="m", id="msg"),
    "ui": Ui(message_id="msg"),
    "ag-ui": AgUi(thread_id="t", run_id="r"),
    "raw": Raw(end="asgi"),
}
_WORDS: Final = ("What ", "was ", "generated ", "is ", "delivered", ".")
_EVENTS: Final = tuple(Event(json.dumps({"word": word}), "values") for word in _WORDS)
_BREAKS: Final = 3  # at which item a stream that fails does
_OURS: Final = re.compile(rb"^(?::|id:|retry:).*\n", re.MULTILINE)


def _items(dialect: str) -> Iterable[Item]:
    return _EVENTS if dialect == "raw" else _WORDS


class Twins:
    """The application. `again` is how often each reader asked once more."""

    def __init__(self, linger: float = 0.25) -> None:
        self.again: Counter[str] = Counter()
        self._timing = Timing(linger=linger)
        self._asked: set[str] = set()
        self._whole = {name: self._parts(name) for name in _DIALECTS}
        under, sealed = Starlette(routes=self._routes()), Starlette(routes=self._routes())
        for app in (under, sealed):
            app.add_middleware(BaseHTTPMiddleware, dispatch=passing)
        sealed.add_middleware(SealMiddleware)
        bare = Starlette(routes=self._routes())
        ways = {"bare": bare, "guarded": bare, "under": under, "sealed": sealed}
        self.app = Starlette(routes=[Mount(f"/{way}", app) for way, app in ways.items()])

    def _routes(self) -> list[Route]:
        return [Route("/{ending}/{dialect}/{number}{tail:path}", self._answer, methods=["GET", "POST"])]

    @staticmethod
    def _parts(dialect: str) -> list[bytes]:
        """What each item is in a dialect, and its end, without a cursor."""
        opening, *parts = written(_items(dialect), _DIALECTS[dialect], Sse())
        return [_OURS.sub(b"", part) for part in (opening + parts[0], *parts[1:])]

    async def _answer(self, request: Request) -> Response:
        ending, dialect, number = [request.path_params[name] for name in ("ending", "dialect", "number")]
        if number in self._asked:
            self.again[number] += 1
            return Response(status_code=204)
        self._asked.add(number)
        breaks = ending == "fails"
        if request.scope["root_path"].strip("/") in UNGUARDED:
            return StreamingResponse(_broken(self._whole[dialect], breaks), media_type="text/event-stream")
        source = _broken(list(_items(dialect)), breaks)
        return GuardedResponse(source, dialect=_DIALECTS[dialect], timing=self._timing)


async def _broken(items: list[Any], breaks: bool) -> AsyncIterator[Any]:
    for index, item in enumerate(items):
        if breaks and index == _BREAKS:
            raise RuntimeError("the model broke")
        yield item
