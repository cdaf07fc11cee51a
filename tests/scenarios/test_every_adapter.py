"""What a source is promised, and what a reader gets, under every adapter, over real sockets."""

from __future__ import annotations

import contextvars
import threading
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import attrs
import pytest

from streamguard.client import stream_sync
from streamguard.core.errors import SourceFailed
from streamguard.core.receipt import Verdict
from streamguard.observe.hooks import Outcome
from streamguard.runtime.timing import Timing
from tests.adapters.servers import Connection, Gate
from tests.asking import http
from tests.scenarios.adapters import ADAPTERS, PATHS, Site
from tests.scenarios.test_tool import CALLS, chunk, piece

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


@attrs.define
class Served:
    """The endpoint under one adapter."""

    adapter: str
    site: Site
    port: int

    def serves(self, make: Callable[[], Any], **options: Any) -> None:
        self.site.make, self.site.options = make, options

    @property
    def path(self) -> str:
        return PATHS.get(self.adapter, "/")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.path}"

    def connect(self, **headers: str) -> Connection:
        connection = Connection(self.port)
        connection.get(self.path, **headers)
        return connection


@pytest.fixture(params=ADAPTERS, scope="module")
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    site = Site()
    with ADAPTERS[request.param](site) as port:
        yield Served(request.param, site, port)


def later(items: Any) -> AsyncIterator[Any]:
    """A generator that awaits, of one that does not. A gate that it gives is waited for."""

    async def steps() -> AsyncIterator[Any]:
        try:
            for item in items:
                if isinstance(item, Gate):
                    await item
                else:
                    yield item
        finally:
            items.close()

    return steps()


def plain(items: Any) -> Iterator[Any]:
    try:
        for item in items:
            if isinstance(item, Gate):
                item.wait()
            else:
                yield item
    finally:
        items.close()


KINDS = pytest.mark.parametrize("kind", [plain, later])

TOOLS = {
    "pieces that alternate": [
        chunk(piece(0, "a", "look", '{"at": ')),
        chunk(piece(1, "b", "ask", '{"of":')),
        chunk(piece(0, arguments='"x"}')),
        chunk(piece(1, arguments=" 2}")),
        chunk(reason="tool_calls"),
    ],
    "two under one index": [
        *[chunk(piece(0, *[call.fields[key] for key in ("id", "name", "arguments")])) for call in CALLS],
        chunk(reason="tool_calls"),
    ],
    "names in pieces": [
        chunk(piece(0, "a", "lo"), piece(1, "b", "a")),
        chunk(piece(1, name="s")),
        chunk(piece(0, name="ok")),
        chunk(piece(1, name="k", arguments='{"of": 2}')),
        chunk(piece(0, arguments='{"at": "x"}'), reason="tool_calls"),
    ],
}


@pytest.mark.parametrize("way", TOOLS)
def test_tool_calls_in_pieces_are_handed_out_whole(served: Served, way: str) -> None:
    served.serves(lambda: list(TOOLS[way]), dialect="openai")
    with stream_sync("GET", served.url, client=http) as answer:
        blocks = list(answer.blocks())
    assert (answer.receipt.verdict, blocks) == (Verdict.COMPLETE, CALLS)


@KINDS
def test_each_step_and_the_close_are_in_one_context_that_has_what_the_endpoint_set(served: Served, kind: Any) -> None:
    seen: list[tuple[str, int]] = []
    closed = Gate()

    def steps() -> Iterator[str]:
        try:
            for name in ("first ", "second ", "third "):
                seen.append((VARIABLE.get(), threading.get_ident()))
                VARIABLE.set(name)
                yield name
        finally:
            seen.append((VARIABLE.get(), threading.get_ident()))
            closed.open()

    def make() -> Any:
        VARIABLE.set("the endpoint's")
        return kind(steps())

    served.serves(make)
    with stream_sync("GET", served.url, client=http) as answer:
        assert answer.read() == "first second third "
    closed.wait()
    assert [value for value, _ in seen] == ["the endpoint's", "first ", "second ", "third "]
    assert len({thread for _, thread in seen}) == 1


@KINDS
@pytest.mark.parametrize("exit", ["complete", "failed", "gone"])
def test_what_a_source_opens_is_open_while_it_streams_and_closed_on_every_exit(
    served: Served, kind: Any, exit: str
) -> None:
    closed, gate, over = Gate(), Gate(), Gate()
    ends: list[str] = []

    def steps() -> Iterator[Any]:
        try:
            yield "one "
            if exit == "failed":
                raise SourceFailed("overloaded", "come back later")
            while exit == "gone" and not over.opened:
                yield "more "
            yield gate
            assert not closed.opened
            yield "two"
        finally:
            closed.open()

    def ended(outcome: Outcome) -> None:
        ends.append(outcome.status)
        over.open()

    served.serves(lambda: kind(steps()), on_end=ended, timing=Timing(linger=0.01))
    with served.connect(connection="close") as connection:
        connection.until(b"one ")
        assert exit == "failed" or not closed.opened
        gate.open()
        if exit == "complete":
            assert b'"status":"complete"' in connection.rest()
    closed.wait()
    over.wait()
    assert ends == [exit]


@KINDS
def test_each_token_arrives_before_the_next_is_made_also_compressed(served: Served, kind: Any) -> None:
    for packed in (False, True):
        gates = [Gate() for _ in range(3)]
        script = [part for number, gate in enumerate(gates) for part in (f"t{number} ", gate)]
        served.serves(lambda script=script: kind(part for part in script), compress="gzip" if packed else None)
        asked = {"accept_encoding": "gzip", "streamguard": "v=1, compress=gzip"} if packed else {}
        with served.connect(connection="close", **asked) as connection:
            for number, gate in enumerate(gates):
                mark = b't%d "' % number
                while mark not in _body(connection, packed=packed):
                    piece = connection.socket.recv(65536)
                    assert piece
                    connection.received += piece
                assert b't%d "' % (number + 1) not in _body(connection, packed=packed)
                gate.open()
            connection.rest()
            assert b'"status":"complete"' in _body(connection, packed=packed)


def _body(connection: Connection, *, packed: bool) -> bytes:
    """The text of the chunks that are there, as far as it can be read by now."""
    head, _, rest = connection.received.partition(b"\r\n\r\n")
    body = b""
    while b"\r\n" in rest:
        size, _, rest = rest.partition(b"\r\n")
        body += rest[: int(size, 16)]
        rest = rest[int(size, 16) + 2 :]
    assert (b"content-encoding: gzip" in head.lower()) == packed or not head
    return zlib.decompressobj(31).decompress(body) if packed else body


def test_what_has_nothing_but_an_async_iterator_is_a_source(served: Served) -> None:
    class Bare:
        def __aiter__(self) -> Any:
            async def steps() -> AsyncIterator[str]:
                yield "one "
                yield "two"

            return steps()

    served.serves(Bare)
    with stream_sync("GET", served.url, client=http) as answer:
        assert answer.read() == "one two"
    assert answer.receipt.verdict is Verdict.COMPLETE


