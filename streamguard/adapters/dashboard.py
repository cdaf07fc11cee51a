"""The live page, below the endpoints of a guard that has a Live among its observers.

    GET   /streams/dashboard             the page
    GET   /streams/dashboard/live.css    its style
    GET   /streams/dashboard/live.js     its script, which reads with the JavaScript client of the endpoints
    GET   /streams/dashboard/feed        what it shows: a guarded stream of pictures, which no observer is told of

All of it is refused to whom the Live does not admit. The feed sends the newest picture once a period: whole at first,
then what differs. Its source is stepped when the last write is through, so a page that is slow misses pictures, and
gets the newest one whole; nothing is kept for it. It ends, as complete, when the process is told to go, and now and
then, so that a page which stays open is asked again who it is.
"""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import AsyncIterator
from functools import cache
from typing import Any, Final

import anyio
import attrs

from streamguard.adapters.asgi import GuardedAnswer
from streamguard.adapters.logged import FORBIDDEN
from streamguard.adapters.reading import Reading
from streamguard.app import StreamGuard, anyone_with_the_id
from streamguard.browser import style_of
from streamguard.core.exchange import NO_STORE, Refusal, RequestFacts, problem
from streamguard.core.flush import Immediate
from streamguard.core.items import Block
from streamguard.observe.live import PAGE, Live
from streamguard.runtime.configured import require_authorize

__all__ = ["Dashboard", "dashboard_of"]

_TAIL: Final = "dashboard"
_FEED: Final = f"{_TAIL}/feed"
_FILES: Final = {
    _TAIL: ("live.html", "text/html; charset=utf-8"),
    f"{_TAIL}/live.css": ("live.css", "text/css; charset=utf-8"),
    f"{_TAIL}/live.js": ("live.js", "text/javascript; charset=utf-8"),
}
_HEADERS: Final = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    NO_STORE,
]
_UNKNOWN: Final = problem(404, "no_such_endpoint", "there is nothing at this address")
_ASK: Final = problem(
    401, "forbidden", "the page asks for a password", ("www-authenticate", 'Basic realm="streamguard", charset="UTF-8"')
)
_ASK_FIRST: Final = attrs.evolve(_ASK, code="")  # every browser is asked before it asks: nobody was refused
_ASKED_AGAIN: Final = 600.0  # seconds after which a feed ends, and its page asks for another one
_OPEN_TO_ALL: Final = (
    "Live(authorize=anyone_with_the_id) would show everybody's streams to everybody: give it a password, or a function "
    "that knows who may see them"
)


def dashboard_of(guard: StreamGuard) -> Dashboard | None:
    """The page of a guard that has a Live among its observers. Raises TypeError for one that everybody could see, and
    for several."""
    members = () if guard.observe is None else guard.observe.members
    found = [each for each in members if isinstance(each, Live)]
    if len(found) > 1:
        raise TypeError("a guard has one live page: give it one Live(…)")
    return Dashboard(guard, found[0]) if found else None


class Dashboard:
    """The page and its feed, for one guard's endpoints."""

    def __init__(self, guard: StreamGuard, live: Live) -> None:
        if live.authorize is anyone_with_the_id:
            raise TypeError(_OPEN_TO_ALL)
        if live.authorize is not None:
            require_authorize("Live(authorize=…)", live.authorize)
        self._guard = guard
        self._live = live

    def is_at(self, tail: str) -> bool:
        """Whether what stands behind the endpoints' path is the page's."""
        return tail == _TAIL or tail.startswith(f"{_TAIL}/")

    async def serve(self, reading: Reading, tail: str, request: Any) -> None:
        """Answer a GET or HEAD. `request` is what `authorize` is given."""
        refused = await self._refused(reading.facts, request)
        if refused is None and tail == _FEED:
            await self._feed(reading)
            return
        if refused is None:
            refused = _file(reading, tail)
        await reading.refuse(refused)

    async def _refused(self, facts: RequestFacts, request: Any) -> Refusal | None:
        authorize = self._live.authorize
        if authorize is None:
            if self._live.admits(_password(facts)):
                return None
            return _ASK if "authorization" in facts.headers else _ASK_FIRST
        return FORBIDDEN if await self._guard.principal(request, "dashboard", authorize) is None else None

    async def _feed(self, reading: Reading) -> None:
        options = attrs.evolve(reading.options, dialect="native", wire=None, flush=Immediate(), compress=None)
        answer = GuardedAnswer(self._pictures(), options=options)
        await answer(reading.scope, reading.receive, reading.send)

    async def _pictures(self) -> AsyncIterator[Block]:
        live, number, until = self._live, -1, time.monotonic() + _ASKED_AGAIN
        while self._guard.ready and time.monotonic() < until:
            picture = live.newest()
            if picture.number != number:
                yield Block("picture", picture.step if picture.number == number + 1 else picture.whole)
                number = picture.number
            await anyio.sleep(live.pause)


def _file(reading: Reading, tail: str) -> Refusal:
    """The answer that is one of the page's files. Its addresses are relative: a proxy may change the path."""
    if tail not in _FILES:
        return _UNKNOWN
    if tail == _TAIL and str(reading.scope["path"]).endswith("/"):  # below which they would lead astray
        return Refusal(308, [("location", f"../{_TAIL}"), ("content-length", "0"), NO_STORE])
    name, kind = _FILES[tail]
    body = _read(name)
    headers = [("content-type", kind), ("content-length", str(len(body))), *_HEADERS]
    return Refusal(200, headers, b"" if reading.facts.method == "HEAD" else body)


@cache
def _read(name: str) -> bytes:
    return style_of(PAGE / name) if name.endswith(".css") else (PAGE / name).read_bytes()


def _password(facts: RequestFacts) -> bytes:
    """The password of HTTP Basic; empty, which none is, where there is none."""
    scheme, _, value = facts.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return b""
    try:
        return base64.b64decode(value.strip(), validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return b""
