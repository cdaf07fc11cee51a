"""Guarded streams over WebSockets, on Starlette under uvicorn and on aiohttp: the same messages, the same ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp
import attrs
import pytest
from aiohttp import web
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute

from streamguard.adapters import aiohttp as on_aiohttp
from streamguard.adapters import starlette as on_starlette
from streamguard.adapters import websocket
from streamguard.adapters.starlette import Opening
from streamguard.core.errors import SourceFailed
from streamguard.core.negotiate import Answer, parse_answer
from streamguard.core.receipt import Verdict
from streamguard.core.verify import StreamVerifier
from streamguard.log.memory import MemoryLog
from streamguard.runtime.runs import Detach
from streamguard.runtime.slots import Limits
from streamguard.runtime.timing import Timing
from tests.adapters.aiohttp_serving import serving_aiohttp
from tests.adapters.asgi_apps import Ends, exchange
from tests.adapters.logged_apps import Counted
from tests.adapters.servers import DEADLINE, Gate, Server, serving

WORDS = ["one ", "two ", "three "]
QUICK = Timing(linger=0.02)
HANDSHAKE = {
    "connection": "upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    "sec-websocket-protocol": "streamguard.v1",
}


@attrs.define
class Site:
    """An application with two endpoints in a framework: `/direct`, and `/logged` under a guard."""

    framework: str
    source: Callable[[Opening], Any]
    limits: Limits | None = None
    options: dict[str, Any] = attrs.field(factory=dict)
    stream: dict[str, Any] = attrs.field(factory=dict)
    origins: tuple[str, ...] = ()
    ends: Ends = attrs.field(factory=Ends)
    guard: Any = None

    @contextmanager
    def served(self, **config: Any) -> Iterator[Server]:
        module: Any = on_starlette if self.framework == "starlette" else on_aiohttp
        options: dict[str, Any] = {"timing": QUICK, "on_end": self.ends, "origins": self.origins, **self.options}
        self.guard = module.StreamGuard(MemoryLog(), authorize=_who, limits=self.limits)
        direct = module.guarded_websocket(**options)(self.source)
        logged = self.guard.websocket(**options, **self.stream)(self.source)
        if self.framework == "starlette":
            app = Starlette(routes=[WebSocketRoute("/direct", direct), WebSocketRoute("/logged", logged)])
            self.guard.install(app, "/streams")
            with serving(app, ws="wsproto", **config) as server:
                yield server
        else:
            other = web.Application()
            self.guard.install(other, "/streams")
            other.add_routes([web.get("/direct", direct), web.get("/logged", logged)])
            with serving_aiohttp(other) as server:
                yield server


def _who(request: Any, action: str) -> str | None:
    user: str = request.headers.get("user", "ann")
    return None if user == "nobody" else user


@attrs.define
class Told:
    """What a client was told on one connection."""

    texts: list[str] = attrs.field(factory=list)
    binaries: list[bytes] = attrs.field(factory=list)
    code: int | None = None

    @property
    def promised(self) -> Answer:
        found = parse_answer(json.loads(self.texts[0])["streamguard"])
        assert found is not None
        return found

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(text) for text in self.texts[1:]]

    @property
    def ids(self) -> list[str]:
        return [record["id"] for record in self.records if "id" in record]

    def verified(self) -> StreamVerifier:
        wire = "binary" if self.binaries else "ndjson"
        verifier = StreamVerifier(wire=wire, dialect="native", zero=self.promised.cursor)
        for message in self.binaries or [text.encode() + b"\n" for text in self.texts[1:]]:
            verifier.feed(message)
        verifier.end(clean=self.code == 1000)
        return verifier

    @property
    def text(self) -> str:
        return "".join([json.loads(record["data"]) for record in self.records if record.get("data", "")[:1] == '"'])


Act = Callable[[aiohttp.ClientWebSocketResponse, Told], Awaitable[None]]


def asked(
    server: Server, path: str, first: Any = None, act: Act | None = None, *, headers: Any = None, deflate: int = 0
) -> Told:
    """Open a WebSocket, say `first`, then `act` at each message that comes, to the end."""

    async def run() -> Told:
        told = Told()
        async with aiohttp.ClientSession() as session:
            options: Any = {"protocols": ["streamguard.v1"], "headers": headers, "compress": deflate}
            async with session.ws_connect(f"{server.url}{path}", **options) as socket:
                if first is not None:
                    await socket.send_str(first if isinstance(first, str) else json.dumps(first))
                async for message in socket:
                    if message.type is aiohttp.WSMsgType.TEXT:
                        told.texts.append(message.data)
                    else:
                        told.binaries.append(message.data)
                    if act is not None:
                        await act(socket, told)
                told.code = socket.close_code
        return told

    return asyncio.run(asyncio.wait_for(run(), DEADLINE))


async def words(opening: Opening) -> AsyncIterator[str]:
    for word in opening.body or WORDS:
        await asyncio.sleep(0)
        yield word


async def endless(opening: Opening) -> AsyncIterator[str]:
    while True:
        yield "again "
        await asyncio.sleep(0.002)


FRAMEWORKS = pytest.mark.parametrize("framework", ["starlette", "aiohttp"])
PATHS = pytest.mark.parametrize("path", ["/direct", "/logged"])


@FRAMEWORKS
@PATHS
def test_each_frame_is_a_message_and_a_whole_stream_closes_with_1000(framework: str, path: str) -> None:
    site = Site(framework, words)
    with site.served() as server:
        told = asked(server, path, {"body": ["my ", "own ", "words"]})
        compact = asked(server, path, {"wire": "binary"})
    assert (told.text, told.code) == ("my own words", 1000)
    assert told.verified().verdict is Verdict.COMPLETE
    assert told.promised.wire == "ndjson"
    assert len(told.ids) == 4
    assert compact.verified().verdict is Verdict.COMPLETE
    assert (compact.promised.wire, len(compact.binaries), compact.code) == ("binary", 1 + 3 + 1, 1000)
    assert site.ends.wait().status == "complete"


@FRAMEWORKS
@PATHS
def test_a_stream_that_fails_says_so_and_closes_with_another_code(framework: str, path: str) -> None:
    async def failing(opening: Opening) -> AsyncIterator[str]:
        yield "half "
        raise SourceFailed("broke", "the model broke")

    with Site(framework, failing).served() as server:
        told = asked(server, path, {})
        compact = asked(server, path, {"wire": "binary"})
    assert (told.text, told.code, compact.code) == ("half ", 4500, 4500)
    verifier = told.verified()
    assert (verifier.verdict, verifier.failure and verifier.failure.code) == (Verdict.FAILED, "broke")
    assert compact.verified().verdict is Verdict.FAILED


@FRAMEWORKS
@PATHS
def test_what_fails_before_its_first_item_is_a_problem_and_its_status(framework: str, path: str) -> None:
    async def early(opening: Opening) -> AsyncIterator[str]:
        raise SourceFailed("overloaded", "come back later", retryable=True)
        yield ""

    site = Site(framework, early, options={"timing": Timing(peek=5.0)})
    with site.served() as server:
        told = asked(server, path, {})
    assert json.loads(told.texts[0])["problem"]["code"] == "overloaded"
    assert (len(told.texts), told.code) == (1, 4503)


@FRAMEWORKS
def test_a_reader_goes_on_at_its_cursor_wherever_it_names_it(framework: str) -> None:
    source = Counted(*WORDS)
    site = Site(framework, lambda opening: source())
    with site.served() as server:
        whole = asked(server, "/logged", {})
        first, last = whole.ids[0], whole.ids[-1]
        rest = asked(server, "/logged", {"after": first})
        query = asked(server, f"/logged?after={first}", {"wire": "binary"})
        nothing = asked(server, "/logged", {"after": last})
        theirs = asked(server, "/logged", {"after": first}, headers={"user": "bob"})
        direct = asked(server, "/direct", {"after": first})
        forbidden = asked(server, "/logged", {}, headers={"user": "nobody"})
        over_http = exchange(server.connect(), path="/streams", streamguard="v=1", last_event_id=first)
    assert rest.records[1:] == whole.records[2:]
    assert (rest.code, query.code, nothing.code, theirs.code, direct.code) == (1000, 1000, 4204, 4404, 4404)
    assert len(query.binaries) == 1 + 3
    assert (forbidden.code, json.loads(forbidden.texts[0])["problem"]["code"]) == (4403, "forbidden")
    assert over_http.body.count(b'"data":') == 3  # the carrier is the stream's
    assert source.starts == 1


@FRAMEWORKS
@PATHS
def test_its_reader_cancels_a_stream_in_band(framework: str, path: str) -> None:
    site = Site(framework, endless)

    async def cancelling(socket: aiohttp.ClientWebSocketResponse, told: Told) -> None:
        if len(told.texts) == 5:
            await socket.send_json({"cancel": True})

    with site.served() as server:
        told = asked(server, path, {}, cancelling)
        assert site.ends.wait().status == "cancelled"
    assert (told.verified().status, told.code) == ("cancelled", 1000)


@FRAMEWORKS
@PATHS
def test_a_reader_that_leaves_stops_the_generation(framework: str, path: str) -> None:
    site = Site(framework, endless, stream={"on_disconnect": Detach(grace=0.02)})

    async def leaving(socket: aiohttp.ClientWebSocketResponse, told: Told) -> None:
        if len(told.texts) == 5:
            await socket.close()

    with site.served() as server:
        asked(server, path, {}, leaving)
        assert site.ends.wait().status == ("gone" if path == "/direct" else "cancelled")


@FRAMEWORKS
def test_credit_is_given_in_band_and_an_ack_is_checked(framework: str) -> None:
    site = Site(framework, words)
    blocked = []

    async def granting(socket: aiohttp.ClientWebSocketResponse, told: Told) -> None:
        if told.records and "blocked" in told.records[-1]:
            blocked.append(len(told.ids))
            await socket.send_json({"ack": told.ids[-1], "credit": [100, 10_000]})

    async def lying(socket: aiohttp.ClientWebSocketResponse, told: Told) -> None:
        if len(told.ids) == 1:
            await socket.send_json({"ack": told.ids[0][:-8] + "00000000"})

    site.options["timing"] = Timing(heartbeat=0.03, linger=0.02)
    with site.served() as server:
        told = asked(server, "/logged", {"streamguard": "v=1, credit=(2 10000)"}, granting)
        asked_direct = asked(server, "/direct", {"streamguard": "v=1, credit=(2 10000)"})
        bad = asked(server, "/logged", {"streamguard": "v=1, credit=(2 10000)"}, lying)
    assert blocked[0] == 2
    assert (told.promised.credit, told.verified().verdict) == ((2, 10_000), Verdict.COMPLETE)
    assert (asked_direct.promised.credit, asked_direct.code) == (False, 1000)
    assert bad.code == 4409


@FRAMEWORKS
def test_heartbeats_are_messages(framework: str) -> None:
    gate = Gate()

    async def thinking(opening: Opening) -> AsyncIterator[str]:
        await gate
        yield "at last"

    async def until_beat(socket: aiohttp.ClientWebSocketResponse, told: Told) -> None:
        if any("hb" in record for record in told.records):
            gate.open()

    with Site(framework, thinking, options={"timing": Timing(heartbeat=0.03)}).served() as server:
        assert asked(server, "/direct", {}, until_beat).text == "at last"


@FRAMEWORKS
def test_a_first_message_that_is_none_of_the_protocol_starts_nothing(framework: str) -> None:
    source = Counted(*WORDS)
    wrong: list[Any] = ["no json", "[]", {"wire": "smoke"}, {"after": "no cursor"}, {"streamguard": 1}]
    with Site(framework, lambda opening: source()).served() as server:
        assert [asked(server, "/direct", first).code for first in wrong] == [4400] * 5
        assert asked(server, "/direct", {"body": "x" * 1024 * 1024}).code == 4413
    assert source.starts == 0


@FRAMEWORKS
def test_who_says_nothing_first_is_not_waited_for_for_ever(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "FIRST", 0.05)
    with Site(framework, words).served() as server:
        assert asked(server, "/direct").code == 4408


@FRAMEWORKS
def test_what_is_said_later_and_is_none_of_the_protocol_ends_the_connection(framework: str) -> None:
    def saying(said: Any) -> Act:
        async def say(socket: aiohttp.ClientWebSocketResponse, told: Told) -> None:
            if len(told.texts) == 3:
                await (socket.send_str(said) if isinstance(said, str) else socket.send_bytes(said))

        return say

    site = Site(framework, endless, stream={"on_disconnect": Detach(grace=0.0)})
    with site.served() as server:
        wrong = ("no json", '{"credit": 1}', b"bytes", "x" * 5000)
        codes = [asked(server, "/logged", {}, saying(said)).code for said in wrong]
    assert codes == [4400, 4400, 4400, 4413]


@FRAMEWORKS
def test_a_handshake_of_another_origin_or_without_the_subprotocol_is_refused(framework: str) -> None:
    def status(server: Server, **headers: str) -> int:
        fields = {**HANDSHAKE, **headers}
        with server.connect() as connection:
            connection.get("/direct", **fields)
            return int(connection.until(b"\r\n\r\n").split(b" ", 2)[1])

    with Site(framework, words, origins=("https://shop.example",)).served() as server:
        assert status(server) == 101
        assert status(server, origin="http://test") == 101  # the host's own
        assert status(server, origin="https://shop.example") == 101
        assert status(server, origin="https://evil.example") == 403
        assert status(server, **{"sec-websocket-protocol": "chat"}) == 403


def test_a_confidential_stream_is_not_compressed() -> None:
    site = Site("starlette", words, stream={"confidential": True})
    with site.served() as server, pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
        asked(server, "/logged", {}, deflate=15)
    with site.served(ws_per_message_deflate=False) as server:
        assert asked(server, "/logged", {}, deflate=15).code == 1000
    with Site("aiohttp", words, stream={"confidential": True}).served() as server:
        assert asked(server, "/logged", {}, deflate=15).code == 1000


@FRAMEWORKS
def test_a_drain_ends_a_connection_whose_stream_lives_on(framework: str) -> None:
    site = Site(framework, endless)

    async def draining(socket: aiohttp.ClientWebSocketResponse, told: Told) -> None:
        if len(told.texts) == 5:
            site.guard.drain(0.0)

    with site.served() as server:
        told = asked(server, "/logged", {}, draining)
        refused = asked(server, "/logged", {})
    assert (told.records[-1]["reason"], told.code) == ("shutdown", 4503)
    assert (json.loads(refused.texts[0])["problem"]["code"], refused.code) == ("shutdown", 4503)


@FRAMEWORKS
def test_limits_hold_for_sockets_too(framework: str) -> None:
    site = Site(framework, endless, limits=Limits(max_streams=1, max_waiting=0))
    refused: list[Told] = []

    async def another(socket: aiohttp.ClientWebSocketResponse, told: Told) -> None:
        if len(told.texts) == 3:
            refused.append(await asyncio.to_thread(asked, server, "/logged", {}))
            await socket.send_json({"cancel": True})

    with site.served() as server:
        asked(server, "/logged", {}, another)
    assert (json.loads(refused[0].texts[0])["problem"]["code"], refused[0].code) == ("full", 4503)


@FRAMEWORKS
def test_a_reader_that_takes_nothing_is_dropped(framework: str) -> None:
    async def large(opening: Opening) -> AsyncIterator[str]:
        while True:
            yield "x" * 65536
            await asyncio.sleep(0)

    site = Site(framework, large, options={"timing": Timing(write=0.2)})
    with site.served() as server, server.connect(receive_buffer=4096) as connection:
        connection.get("/direct", **HANDSHAKE)
        connection.until(b"\r\n\r\n")
        connection.send(b"\x81\x82\x00\x00\x00\x00{}")
        assert site.ends.wait().status == "slow"
        with pytest.raises(ConnectionResetError):
            connection.rest()


def test_functions_of_every_kind_are_taken_and_others_refused() -> None:
    def plain(opening: Opening) -> Iterator[str]:
        yield from WORDS

    def returning(opening: Opening) -> AsyncIterator[str]:
        return words(opening)

    async def later(opening: Opening) -> AsyncIterator[str]:
        return words(opening)

    for source in (plain, returning, later):
        with Site("starlette", source).served() as server:
            assert asked(server, "/direct", {}).text == "".join(WORDS)
    with pytest.raises(TypeError, match="needs a function"):
        on_starlette.guarded_websocket()(42)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="origins are several"):
        on_starlette.guarded_websocket(origins="https://shop.example")(words)
    with pytest.raises(ValueError, match="text"):
        on_starlette.guarded_websocket(dialect="text")(words)
