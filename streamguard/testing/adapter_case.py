"""What the rules of an adapter are played with: requests to its test application, and what must be so.

An `AdapterCase` says where the application is. `asked` makes one request and reads its answer to the end, however that
comes; `opened` reads one piece by piece, and may leave. What became of the source is asked for until it is so, or
`patience` is over: a server tells of a reader that left when it likes.
"""

from __future__ import annotations

import inspect
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit

import anyio
import attrs
import httpx

from streamguard.core.cursor import Cursor
from streamguard.core.negotiate import Answer, parse_answer
from streamguard.core.receipt import AnswerFrame
from streamguard.core.verify import StreamVerifier
from streamguard.testing.contract import ContractBroken

__all__ = ["REQUEST_ID", "VERIFIES", "AdapterCase", "Opened", "Play", "Reply", "Rule", "client_of"]

Facts = Callable[[str], "Mapping[str, Any] | Awaitable[Mapping[str, Any]]"]

REQUEST_ID: Final = "x-request-id"
"""Bears the label of a request, so that the stream's Outcome has it."""
VERIFIES: Final = {"streamguard": "v=1"}
"""The headers of a reader that verifies."""
_LOOK: Final = 0.01  # seconds between two looks at what became of a source


@attrs.frozen
class AdapterCase:
    """A test application that runs. It serves the sources of `AdapterSources` at `<url>/<source>?label=`, for GET, HEAD
    and POST; under a guard's log at `<url>/logged/<source>?label=`, with the guard's endpoints at `<url>/streams`.

    `facts(label)` answers what `AdapterSources.facts` does; None: it is asked for at `<url>/facts/<label>`. `log`:
    whether the adapter has streams in a log. `aborts`: whether the server carries an abort; without, the terminal
    stands alone. `closes`: whether it closes the connection behind every answer, and says so. `concurrent`: whether it
    serves a second request while a stream runs; without, nothing is asked beside one. `http2`: whether it is asked over
    HTTP/2. `patience`: seconds that one rule may take.
    """

    url: str
    facts: Facts | None = None
    name: str = "the adapter"
    log: bool = True
    aborts: bool = True
    closes: bool = False
    concurrent: bool = True
    http2: bool = False
    patience: float = 15.0


@attrs.frozen
class Reply:
    """An answer, read to its end. `cut`: what the HTTP client raised for it, by name; None for a clean end."""

    status: int
    headers: httpx.Headers
    body: bytes
    cut: str | None
    frames: list[AnswerFrame]
    verifier: StreamVerifier

    @property
    def clean(self) -> bool:
        return self.cut is None

    @property
    def items(self) -> list[Any]:
        """What the frames hold: text, joined where it stands together, and blocks."""
        found: list[Any] = []
        for frame in self.frames:
            if frame.text and found and isinstance(found[-1], str):
                found[-1] += frame.text
            elif frame.text:
                found.append(frame.text)
            elif frame.item is not None:
                found.append(frame.item)
        return found


def client_of(case: AdapterCase) -> httpx.AsyncClient:
    """A client that knows nothing of streams."""
    secure = case.url.startswith("https:")  # else no certificates are read, which takes longer than an answer
    return httpx.AsyncClient(http1=not case.http2, http2=case.http2, timeout=case.patience, verify=secure)


class Opened:
    """An answer that is being read."""

    def __init__(self, play: Play, response: httpx.Response) -> None:
        self.response = response
        self.body = b""
        self._play = play
        self._pieces = response.aiter_raw()

    async def until(self, mark: bytes, times: int = 1) -> bytes:
        """Read until `mark` has come `times` times; all that came. ContractBroken where the body ends before."""
        while self.body.count(mark) < times:
            try:
                self.body += await anext(self._pieces)
            except (StopAsyncIteration, httpx.HTTPError) as exc:
                self._play.broken(f"the body ended before {mark!r} came {times} times, with {exc!r}: {self.body!r}")
        return self.body

    async def rest(self) -> str | None:
        """Read to the end: what the client raised for it, by name."""
        try:
            async for piece in self._pieces:
                self.body += piece
        except httpx.HTTPError as exc:
            return type(exc).__name__
        return None


@attrs.define
class Play:
    """One rule, played once against one application."""

    rule: str
    case: AdapterCase
    client: httpx.AsyncClient
    label: str = attrs.field(factory=lambda: secrets.token_hex(6))

    def broken(self, what: str) -> NoReturn:
        raise ContractBroken(self.case.name, self.rule, what)

    def must(self, holds: object, what: str) -> None:
        """Raise ContractBroken unless it holds."""
        if not holds:
            self.broken(what)

    def url(self, source: str, base: str | None = None) -> str:
        """The address of a source, under this play's label; at another server's `base`, perhaps."""
        base = self.case.url if base is None else base + urlsplit(self.case.url).path
        return f"{base}/{source}?label={self.label}"

    async def asked(self, source: str, method: str = "GET", headers: Mapping[str, str] | None = None) -> Reply:
        """One request and all of its answer, as a client that knows nothing of streams unless `headers` say so."""
        async with self.opened(source, method, headers) as opened:
            cut = await opened.rest()
        response = opened.response
        promised = self.promised(response, needed=False)
        verifier = StreamVerifier(zero=promised.cursor if promised else None)
        frames: list[AnswerFrame] = []
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            frames += verifier.feed(opened.body)
            frames += verifier.end(clean=cut is None)
        return Reply(response.status_code, response.headers, opened.body, cut, frames, verifier)

    @asynccontextmanager
    async def opened(
        self, source: str, method: str = "GET", headers: Mapping[str, str] | None = None, *, leaves: bool = False
    ) -> AsyncIterator[Opened]:
        """One request, and its answer as far as it is read. Whoever is to leave it has a connection of its own, which
        is closed: over HTTP/2 httpx does not reset a stream that it does not read on."""
        named = {REQUEST_ID: self.label, **(headers or {})}
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(client_of(self.case)) if leaves else self.client
            response = await stack.enter_async_context(client.stream(method, self.url(source), headers=named))
            yield Opened(self, response)

    def promised(self, response: httpx.Response, *, needed: bool = True) -> Answer | None:
        """What the `Streamguard` header of an answer says."""
        found = parse_answer(response.headers.get("streamguard"))
        self.must(found is not None or not needed, f"there is no Streamguard header in {dict(response.headers)}")
        return found

    async def facts(self) -> Mapping[str, Any]:
        """What became of this play's sources."""
        if self.case.facts is None:
            response = await self.client.get(f"{self.case.url}/facts/{self.label}")
            self.must(response.status_code == 200, f"/facts/<label> answered {response.status_code}")
            told: Mapping[str, Any] = response.json()
            return told
        found = self.case.facts(self.label)
        return await found if inspect.isawaitable(found) else found

    async def settled(self, what: str, holds: Callable[[Mapping[str, Any]], object]) -> Mapping[str, Any]:
        """The facts, once `holds` is true of them; ContractBroken where it never is."""
        until = anyio.current_time() + self.case.patience / 2
        while not holds(found := await self.facts()):
            self.must(anyio.current_time() < until, f"{what}: {json.dumps(dict(found))}")
            await anyio.sleep(_LOOK)
        return found

    async def closed_once(self) -> Mapping[str, Any]:
        """The facts of a source that is over: it was opened once, and closed once."""
        await self.settled("the source was not closed, or its stream had no end", _over)
        found = await self.facts()
        self.must(found["opened"] == found["closes"] == 1, f"opened once, closed once: {dict(found)}")
        self.must(len(found["ends"]) == 1, f"the stream ended {len(found['ends'])} times: {found['ends']}")
        return found

    def cursor_of(self, response: httpx.Response) -> Cursor:
        """The cursor zero that an answer promises."""
        promised = self.promised(response)
        assert promised is not None
        return promised.cursor


def _over(facts: Mapping[str, Any]) -> bool:
    return bool(facts["closes"] and facts["ends"])


Rule = Callable[[Play], Awaitable[None]]
