"""The SDKs of others, unmodified: through the proxy they hand out what they do without it, and raise where it ends."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.absence import absent
from tests.adapters.servers import Server, serving
from tests.asking import http
from tests.clients.recordings import CHAT, RESPONSES, recorded
from tests.clients.test_sdk_parsers import chat, responses
from tests.proxy.fronted import in_front
from tests.upstream.player import CHAT as PLAYED
from tests.upstream.player import Player

pytestmark = pytest.mark.skipif(absent("openai"), reason="absent: openai (install it with: pip install openai)")
Reader = Callable[[str], Any]


class Servers:
    """A player of events, and a proxy in front of it."""

    def __init__(self, player: Player, direct: Server, proxied: Server) -> None:
        self.player, self.direct, self.proxied = player, direct, proxied

    def both(self, reader: Reader, name: str, base: str) -> tuple[Any, Any]:
        """What it hands out of a recording, without the proxy and through it."""
        self.player.plays(recorded(name).decode())
        return reader(self.direct.url + base), reader(self.proxied.url + base)


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    player = Player()
    with serving(player.app) as direct, in_front(direct.port) as proxied:
        yield Servers(player, direct, proxied)


@pytest.mark.parametrize(
    ("reader", "name", "base"),
    [
        *[pytest.param(chat, name, "/v1", id=name) for name in CHAT if not name.startswith("tf_")],
        *[pytest.param(responses, name, "/v1", id=name) for name in RESPONSES if not name.startswith("tf_")],
    ],
)
def test_an_sdk_hands_out_the_same(servers: Servers, reader: Reader, name: str, base: str) -> None:
    direct, proxied = servers.both(reader, name, base)
    assert direct == proxied
    assert direct


def test_an_sdk_asks_the_upstream_the_same(servers: Servers) -> None:
    asked = []
    for server in (servers.direct, servers.proxied):
        servers.player.plays(*PLAYED)
        chat(server.url + "/v1")
        asked.append(servers.player.asked)
    added = {"host", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "connection"}
    (path, headers, body), (same_path, passed, same_body) = asked
    assert (path, body) == (same_path, same_body)
    without = [{name: value for name, value in found.items() if name not in added} for found in (headers, passed)]
    assert without[0] == without[1]


@pytest.mark.parametrize("events", [PLAYED[:2], PLAYED[:3], [*PLAYED[:2], 'data: {"error": {"message": "x"}}\n\n']])
def test_an_sdk_raises_where_the_server_ends_too_early_or_fails(servers: Servers, events: list[str]) -> None:
    import openai

    servers.player.plays(*events)
    if events != PLAYED[:3]:  # behind a reason, without the marker, an SDK takes it for the end
        chat_ended_unnoticed = False
        try:
            chat(servers.direct.url + "/v1")
            chat_ended_unnoticed = True
        except openai.APIError:
            assert len(events) == 3
        assert chat_ended_unnoticed == (len(events) == 2)
    with pytest.raises(openai.APIError):
        chat(servers.proxied.url + "/v1")


def test_an_error_keeps_the_status_by_which_an_sdk_names_it(servers: Servers) -> None:
    import openai

    async def refuses(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"application/json"), (b"x-request-id", b"r7")]
        await send({"type": "http.response.start", "status": 429, "headers": headers})
        await send({"type": "http.response.body", "body": b'{"error": {"message": "too many", "code": "busy"}}'})

    with serving(refuses) as behind, in_front(behind.port) as proxied:
        with pytest.raises(openai.RateLimitError, match="too many") as raised:
            chat(proxied.url + "/v1")
    assert (raised.value.request_id, raised.value.code) == ("r7", "busy")


def test_an_sdk_is_told_why_there_is_no_upstream() -> None:
    import openai

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with in_front(port) as proxied, pytest.raises(openai.InternalServerError, match="cannot be reached") as raised:
        chat(proxied.url + "/v1")
    assert (raised.value.status_code, raised.value.code) == (502, "upstream_unreachable")
    assert (raised.value.type, raised.value.body["message"]) == ("server_error", "the upstream cannot be reached")  # type: ignore[index]


@pytest.mark.parametrize("end", ['{"response":"","done":true}\n', ""])
def test_lines_of_ollama_pass_as_they_are_and_end_in_an_error_where_they_are_not_whole(end: str) -> None:
    whole = '{"model":"m","response":"a","done":false}\n' + end

    async def lines(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"application/x-ndjson")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": whole.encode()})

    with serving(lines) as behind, in_front(behind.port) as proxied:
        came = ""
        try:
            with http.stream("POST", f"{proxied.url}/api/generate", json={"model": "m"}) as response:
                for text in response.iter_text():
                    came += text
            ended = True
        except httpx.RemoteProtocolError:
            ended = False
    assert (came == whole, came.startswith(whole), ended) == (bool(end), True, bool(end))
