"""Sources for each API of a model's server, over real sockets: what they ask, hand out and refuse; how they hang up."""

from __future__ import annotations

import gzip
import logging
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import anyio
import httpx
import pytest

from streamguard.client.body import Body as Taken
from streamguard.core.dialect import Raw
from streamguard.core.dialect.provider import PROFILES
from streamguard.core.errors import SourceFailed
from streamguard.core.items import Block, Event, Finish, tool_call
from streamguard.core.receipt import Verdict
from streamguard.core.wire import Sse, SseDecoder
from streamguard.upstream.chat import ChatCompletions
from streamguard.upstream.messages import Messages
from streamguard.upstream.responses import Responses
from streamguard.upstream.server import ModelServer
from streamguard.upstream.tgi import TextGeneration, is_last
from tests.adapters.servers import Server, serving
from tests.core.wire.streams import read, written
from tests.modules import ROOT
from tests.upstream.player import CHAT, Player, chat, named, unnamed
from tests.upstream.recorded import Body

pytestmark = pytest.mark.anyio

USAGE = {"input_tokens": 3, "output_tokens": 2}
RESPONSES = named(
    {"type": "response.created", "response": {"id": "r", "status": "in_progress"}},
    {"type": "response.output_text.delta", "delta": "Hello"},
    {"type": "response.completed", "response": {"status": "completed", "usage": USAGE}},
)
MESSAGES = named(
    {"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 3, "output_tokens": 0}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "ping"},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
    {"type": "message_stop"},
)


def token(text: str, special: bool = False, whole: str | None = None, details: Any = None) -> dict[str, Any]:
    told = {"id": 1, "text": text, "logprob": -0.25, "special": special}
    return {"index": 1, "token": told, "generated_text": whole, "details": details}


ENDED = {"finish_reason": "eos_token", "generated_tokens": 2, "input_length": 3, "seed": None}
TOKENS = unnamed(token("Hel"), token("lo"), token("</s>", special=True, whole="Hello", details=ENDED))
COUNTS = {"prompt_tokens": 3, "completion_tokens": 2}

Api = tuple[type[ModelServer], str, Sequence[str]]
APIS: dict[str, Api] = {
    "chat": (ChatCompletions, "/v1/chat/completions", CHAT),
    "responses": (Responses, "/v1/responses", RESPONSES),
    "messages": (Messages, "/v1/messages", MESSAGES),
    "tgi": (TextGeneration, "/v1/generate_stream", TOKENS),
}
each = pytest.mark.parametrize("api", APIS.values(), ids=APIS)
quick = pytest.mark.parametrize("anyio_backend", ["asyncio"], scope="module")


@pytest.fixture(scope="module")
def player() -> Player:
    return Player()


@pytest.fixture(scope="module")
def server(player: Player) -> Iterator[Server]:
    with serving(player.app) as server:
        yield server


def of(kind: type[ModelServer], server: Server, **options: Any) -> ModelServer:
    return kind(f"{server.url}/v1", headers={"authorization": "Bearer key"}, **options)


async def all_of(source: Any) -> list[Any]:
    return [item async for item in source]


async def failing(source: Any) -> tuple[list[Any], str, bool]:
    """The items before a failure, its code, and whether it may be tried again."""
    items = []
    with pytest.raises(SourceFailed) as raised:
        async for item in source:
            items.append(item)
    return items, raised.value.failure.code, raised.value.failure.retryable


@each
@quick
async def test_a_server_is_asked_for_a_stream_and_read_as_text_with_reason_and_counts(
    api: Api, player: Player, server: Server
) -> None:
    kind, path, events = api
    player.plays(*events)
    *items, finish = await all_of(of(kind, server).stream({"model": "m"}))
    assert "".join(items) == "Hello"
    assert finish == Finish("stop", None if kind is ChatCompletions else COUNTS)
    asked, headers, body = player.asked
    assert (asked, headers["authorization"], headers["accept-encoding"]) == (path, "Bearer key", "identity")
    assert body == {"model": "m", **({"parameters": {"details": True}} if kind is TextGeneration else {"stream": True})}
    assert headers.get("anthropic-version") == ("2023-06-01" if kind is Messages else None)


@quick
async def test_a_call_that_nothing_closed_is_handed_out_at_the_end(player: Player, server: Server) -> None:
    block = {"type": "tool_use", "id": "c", "name": "pay", "input": {}}
    delta = {"type": "input_json_delta", "partial_json": '{"eur":1}'}
    open = named(
        {"type": "content_block_start", "index": 1, "content_block": block},
        {"type": "content_block_delta", "index": 1, "delta": delta},
    )
    player.plays(*MESSAGES[:-2], *open, *MESSAGES[-2:])
    items = await all_of(of(Messages, server).stream({"model": "m"}))
    assert items[1:] == [tool_call("c", "pay", '{"eur":1}'), Finish("stop", COUNTS)]


@each
@quick
async def test_the_events_of_a_server_are_handed_on_with_the_marker(api: Api, player: Player, server: Server) -> None:
    kind, _, events = api
    player.plays(": ping\n\n", *events[:1], ": ping\n\ndata:\n\n", *events[1:])
    items = await all_of(of(kind, server).events({"model": "m"}))
    written = [f"event: {item.event}\ndata: {item.data}\n\n".removeprefix("event: None\n") for item in items]
    assert written == list(events)


@each
async def test_a_source_that_is_closed_hangs_up(api: Api, player: Player, server: Server) -> None:
    kind, _, events = api
    player.plays(*events[:-1], hangs=True)
    source = of(kind, server).events({"model": "m"})
    assert isinstance(await source.__anext__(), Event)
    await anyio.to_thread.run_sync(player.reached.wait)
    await source.aclose()
    await anyio.to_thread.run_sync(player.closed.wait)


@each
@quick
async def test_a_server_that_ends_before_its_marker_is_cut(api: Api, player: Player, server: Server) -> None:
    kind, _, events = api
    player.plays(*events[:-1])
    items, code, again = await failing(of(kind, server).stream({"model": "m"}))
    assert ("".join(items), code, again) == ("Hello", "upstream_truncated", True)


ERROR = {"message": "a secret path", "type": "overloaded_error", "code": 503}
FINAL = {"message": "a secret path", "type": "invalid_request_error", "code": 400}
ERRORS: list[tuple[str, Sequence[str], bool]] = [
    ("chat", unnamed({"error": ERROR}, "[DONE]"), True),
    ("chat", unnamed({"error": FINAL}), False),
    ("chat", unnamed('"a secret path"'), True),
    ("responses", named({"type": "response.failed", "response": {"status": "failed", "error": ERROR}}), True),
    ("responses", named({"type": "error", "message": "a secret path", "code": "server_error"}), True),
    ("messages", named({"type": "error", "error": ERROR}), True),
    ("messages", named({"type": "error", "error": FINAL}), False),
    ("tgi", unnamed({"error": "a secret path", "error_type": "overloaded"}), True),
]


@pytest.mark.parametrize(("name", "error", "again"), ERRORS)
@quick
async def test_an_error_in_band_is_a_failure_whose_words_stand_in_the_log_only(
    name: str, error: Sequence[str], again: bool, player: Player, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    kind, _, events = APIS[name]
    player.plays(*events[:-2], *error)
    for view in (of(kind, server).stream, of(kind, server).events):
        items, code, retryable = await failing(view({"model": "m"}))
        assert (code, retryable) == ("upstream_error", again)
        assert "secret" not in str(items)
        assert "a secret path" in caplog.text
        caplog.clear()


@quick
async def test_old_llama_servers_errors_in_a_field_of_their_own_are_no_end(player: Player, server: Server) -> None:
    player.plays(*CHAT[:2], 'error: {"code":400,"message":"too long"}\n\n', "data: [DONE]\n\n")
    items, code, _ = await failing(of(ChatCompletions, server, profile="llama.cpp").stream({}))
    assert (items, code) == (["He", "llo"], "unproven_end")


@pytest.mark.parametrize(("profile", "whole"), [("llama.cpp", True), ("openai", False)])
@pytest.mark.parametrize("last", ["data: [DONE]\n", "data: [DONE]"])
@quick
async def test_a_marker_without_its_blank_line_is_one_only_where_the_profile_says_so(
    profile: str, whole: bool, last: str, player: Player, server: Server
) -> None:
    player.plays(*CHAT[:-1], last)
    source = of(ChatCompletions, server, profile=profile).events({})
    if whole:
        assert [item.data for item in await all_of(source)][-1] == "[DONE]"
    else:
        assert (await failing(source))[1] == "upstream_truncated"


@pytest.mark.parametrize("last", ["data: [DON", "da", "data: {}\n"])
@quick
async def test_nothing_else_may_be_torn(last: str, player: Player, server: Server) -> None:
    player.plays(*CHAT[:-1], last)
    for profile in ("llama.cpp", "transformers"):
        assert (await failing(of(ChatCompletions, server, profile=profile).stream({})))[1] == "upstream_truncated"


@quick
@pytest.mark.parametrize("torn", ['{"choices":[{"index":0,"del', '{"n": 1%s}' % ("0" * 5000), "[" * 20_000])
async def test_text_with_a_hole_is_no_answer(torn: str, player: Player, server: Server) -> None:
    player.plays(CHAT[0], f"data: {torn}\n\n", *CHAT[1:])
    _, code, _ = await failing(of(ChatCompletions, server).stream({"model": "m"}))
    assert code == "upstream_format"


@quick
@pytest.mark.parametrize(
    "unread",
    [
        chat(reason=None) | {"choices": [{"index": 0, "delta": {"content": [{"type": "text", "text": "X"}]}}]},
        chat(function_call={"name": "f", "arguments": "{}"}),
    ],
    ids=["parts", "function_call"],
)
async def test_what_text_has_no_place_for_is_no_hole_in_it(unread: Any, player: Player, server: Server) -> None:
    player.plays(CHAT[0], *unnamed(unread), *CHAT[1:])
    assert (await failing(of(ChatCompletions, server).stream({})))[:2] == (["He"], "upstream_format")
    assert len(await all_of(of(ChatCompletions, server).events({}))) == 5


@quick
async def test_every_choice_that_began_must_have_its_reason(player: Player, server: Server) -> None:
    player.plays(*CHAT[:-1], *unnamed(chat("b", index=1), "[DONE]"))
    items, code, _ = await failing(of(ChatCompletions, server).events({"n": 2}))
    assert (len(items), code) == (4, "unproven_end")
    player.plays(*CHAT[:-1], *unnamed(chat("b", index=1), chat(index=1, reason="stop"), "[DONE]"))
    assert len(await all_of(of(ChatCompletions, server).events({"n": 2}))) == 6


@quick
async def test_reasoning_stands_before_the_text_that_follows_it_and_tool_calls_behind(
    player: Player, server: Server
) -> None:
    call = {"index": 0, "id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    player.plays(
        *unnamed(chat(reasoning="Hm"), chat("A"), chat(tool_calls=[call]), chat("B", reason="tool_calls"), "[DONE]")
    )
    assert await all_of(of(ChatCompletions, server).stream({})) == [
        Block("reasoning", {"text": "Hm"}),
        "A",
        "B",
        Block("tool_call", {"id": "1", "name": "f", "arguments": '{"a": 1}'}),
        Finish("tool_calls"),
    ]


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, "content_filter"),
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "length"),
        ({"status": "incomplete"}, "length"),
        ({"status": "completed"}, "stop"),
    ],
    ids=str,
)
@quick
async def test_the_reason_of_a_response_is_told_in_the_words_of_chat(
    response: dict[str, Any], reason: str, player: Player, server: Server
) -> None:
    player.plays(*RESPONSES[:2], *named({"type": "response.completed", "response": response}))
    assert (await all_of(of(Responses, server).stream({})))[-1] == Finish(reason)


@quick
async def test_a_response_that_called_a_tool_says_so(player: Player, server: Server) -> None:
    item = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
    player.plays(*RESPONSES[:1], *named({"type": "response.output_item.done", "item": item}), *RESPONSES[2:])
    call, finish = await all_of(of(Responses, server).stream({}))
    assert (call.type, finish.reason) == ("tool_call", "tool_calls")


@quick
async def test_a_message_without_a_stop_reason_is_unproven(player: Player, server: Server) -> None:
    player.plays(*MESSAGES[:-2], *MESSAGES[-1:])
    assert (await failing(of(Messages, server).stream({})))[:2] == (["Hello"], "unproven_end")


@quick
async def test_an_event_above_the_bound_is_a_failure(
    player: Player, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamguard.upstream import answer

    monkeypatch.setattr(answer, "SseDecoder", lambda **options: SseDecoder(max_frame=1000, **options))
    player.plays(*CHAT[:2], *unnamed(chat("a" * 5000)), *CHAT[2:])
    items, code, _ = await failing(of(ChatCompletions, server).stream({}))
    assert (items, code) == (["He", "llo"], "upstream_format")


@quick
async def test_tgi_events_pass_through_raw_and_end_with_the_whole_text(
    player: Player, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    player.plays(*TOKENS)
    items = await all_of(of(TextGeneration, server).events({"inputs": "p", "parameters": {"seed": 1}}))
    answer = read(written(items, Raw(end=is_last), Sse()), dialect=Raw(end=is_last))
    assert answer.verdict is Verdict.COMPLETE
    assert not is_last(Event("no JSON"))
    assert player.asked[2] == {"inputs": "p", "parameters": {"details": True, "seed": 1}}


@quick
async def test_tgi_without_details_has_no_reason_to_tell(player: Player, server: Server) -> None:
    player.plays(*unnamed(token("Hello", whole="Hello")))
    assert await all_of(of(TextGeneration, server).stream({"inputs": "p"})) == ["Hello", Finish()]


@pytest.mark.parametrize(
    ("kind", "body", "what"),
    [
        (ChatCompletions, [], "mapping"),
        (ChatCompletions, {"n": 2}, "n=2"),
        (TextGeneration, {"parameters": {"best_of": 2}}, "best_of"),
        (TextGeneration, {"parameters": 3}, "parameters"),
    ],
)
def test_a_request_that_is_no_one_answer_is_refused_where_it_is_given(
    kind: type[ModelServer], body: Any, what: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=what):
        kind("http://model").stream(body)


def test_an_unknown_profile_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown profile 'x'; known: openai, vllm, sglang, llama\.cpp, ollama"):
        ChatCompletions("http://model", profile="x")


def test_another_version_of_the_api_may_be_named() -> None:
    assert Messages("http://model", headers={"Anthropic-Version": "2030"}).headers == {"Anthropic-Version": "2030"}


def test_the_matrix_names_every_profile() -> None:
    table = (ROOT / "docs" / "reference" / "upstreams.md").read_text(encoding="utf-8")
    assert all(f", `{profile}` |" in table for profile in PROFILES)
    assert f"`{'`, `'.join(list(PROFILES)[1:])}`" in (ROOT / "docs" / "how-to" / "read-a-model-server.md").read_text()


async def test_an_answer_that_is_no_stream_is_read_no_further_than_the_log_needs() -> None:
    body = Body([b"a" * 1500] * 100)
    client = httpx.AsyncClient(transport=httpx.MockTransport(lambda request: httpx.Response(500, stream=body)))
    async with client:
        assert (await failing(ChatCompletions("http://model", client=client).events({})))[1] == "upstream_status"
    assert body.taken == 2
    assert body.closed


Content = Body | bytes


async def answered(content: Content, *, view: str = "stream", profile: str = "openai", **headers: str) -> list[Any]:
    """The items of an answer with these headers. Raises SourceFailed."""
    fields = {"content-type": "text/event-stream"} | {name.replace("_", "-"): value for name, value in headers.items()}
    body: dict[str, Any] = {"content": content} if isinstance(content, bytes) else {"stream": content}
    transport = httpx.MockTransport(lambda request: httpx.Response(200, headers=fields, **body))
    async with httpx.AsyncClient(transport=transport) as client:
        return await all_of(getattr(ChatCompletions("http://model", client=client, profile=profile), view)({}))


PLAYED = "".join(CHAT).encode()


@quick
@pytest.mark.parametrize("kind", ["text/event-stream", "Text/Event-Stream", "text/event-stream ; charset=utf-8"])
async def test_the_media_type_of_a_stream_may_have_any_case_and_parameters(kind: str) -> None:
    assert (await answered(PLAYED, content_type=kind))[:2] == ["He", "llo"]


@quick
@pytest.mark.parametrize("kind", ["text/event-streamx", "text/event-stream-not", "text/plain; text/event-stream", ""])
async def test_another_media_type_is_no_stream(kind: str) -> None:
    with pytest.raises(SourceFailed, match="upstream_format"):
        await answered(PLAYED, content_type=kind)


@quick
@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_an_answer_in_a_coding_of_its_own_is_read_all_the_same(coding: str, in_memory: bool) -> None:
    data = (gzip if coding == "gzip" else zlib).compress(PLAYED)
    content: Content = data if in_memory else Body([data[:20], data[20:]])
    assert (await answered(content, content_encoding=coding))[:2] == ["He", "llo"]


@quick
@pytest.mark.parametrize("coding", ["gzip, gzip", "br", "identity, gzip"])
async def test_a_coding_in_another_or_unknown_is_not_taken_apart(coding: str) -> None:
    body = Body([gzip.compress(gzip.compress(PLAYED))])
    with pytest.raises(SourceFailed, match="upstream_format"):
        await answered(body, content_encoding=coding)
    assert (body.taken, body.closed) == (0, True)


@quick
@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
async def test_what_is_compressed_is_taken_apart_in_small_pieces(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    class Watched(Taken):
        def take(self) -> bytes | None:
            part = super().take()
            made.append(len(part or b""))
            return part

    monkeypatch.setattr("streamguard.upstream.server.Body", Watched)
    monkeypatch.setattr("streamguard.upstream.answer.SseDecoder", lambda **options: SseDecoder(max_frame=100_000))
    with pytest.raises(SourceFailed, match="upstream_format"):
        await answered(Body([gzip.compress(bytes(5_000_000))]), content_type=kind, content_encoding="gzip")
    assert max(made) <= 65536
    assert sum(made) < 500_000


@quick
@pytest.mark.parametrize(
    ("error", "said"), [(httpx.ConnectError, "cannot be reached"), (httpx.ReadError, "broke off")]
)
async def test_a_server_that_is_not_there_did_not_break_off(error: type[httpx.TransportError], said: str) -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise error("all connection attempts failed")

    async with httpx.AsyncClient(transport=httpx.MockTransport(refuse)) as client:
        with pytest.raises(SourceFailed, match=f"upstream_unreachable: the model's server {said}"):
            await anext(ChatCompletions("http://model", client=client).stream({}))


@quick
@pytest.mark.parametrize("how", ["damaged", "cut"])
async def test_what_is_compressed_and_not_whole_is_no_answer(how: str) -> None:
    data = gzip.compress("".join(CHAT[:-1]).encode())  # without a marker, as transformers ends
    data = data[:40] + bytes(20) + data[60:] if how == "damaged" else data[:-4]
    with pytest.raises(SourceFailed) as raised:
        await answered(Body([data]), profile="transformers", content_encoding="gzip")
    assert raised.value.failure.code in ("upstream_truncated", "upstream_unreachable")


@quick
async def test_over_http2_the_stream_is_closed_and_its_connection_is_not_read_on() -> None:
    body = Body([event.encode() for event in CHAT])
    headers = {"content-type": "text/event-stream"}
    answer = httpx.Response(200, headers=headers, stream=body, extensions={"http_version": b"HTTP/2"})
    async with httpx.AsyncClient(transport=httpx.MockTransport(lambda request: answer)) as client:
        source = ChatCompletions("http://model", client=client).events({})
        await source.__anext__()
        await source.aclose()
    assert (body.taken, body.closed) == (1, True)
