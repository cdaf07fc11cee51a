"""Blocks in JavaScript: the same ones as in Python, whatever pieces they came in, and none of a call that was cut."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from streamguard.core.items import Finish, tool_call
from tests.adapters.logged_apps import Site
from tests.adapters.servers import serving
from tests.browser.damage import Damaged, in_json, in_python
from tests.client.server import Server, chunk, head
from tests.clients.lines import Script as Lines

ARGUMENTS = (
    '{"x": {"a": "}{\\""}}', "{}", "", '{"y": ', "[]", '{"x": 1} {', ' {"z": [2.5, null]} \n', "NaN", '{"é": "\u2028"}'
)  # fmt: skip
TEXTS = ("", "a thought", "é\u2028")
KEYS = ("content", "summary")


def test_random_pieces_make_the_same_blocks(node: Lines) -> None:
    rng = Random(5)
    streams = [Damaged(written(rng, make), "sse", name) for name, make in EVENTS.items() for _ in range(150)]
    found = node.ask({"do": "verdicts", "with": [[in_json(stream) for stream in streams]]})
    made = set()
    for stream, said in zip(streams, found, strict=True):
        expected = in_python(stream)
        assert said[-1] == expected[-1], stream.data.decode()
        made |= {block["type"] for block in expected[-1]}
    assert made > {"tool_call", "invalid_tool_call", "tool_result", "reasoning", "refusal", "image", "file", "own"}


def test_more_at_once_than_any_writer_sends_is_refused_as_in_python(node: Lines) -> None:
    calls = [chat([{"index": number, "function": {"name": "f"}}]) for number in range(1025)]
    choices = [{"choices": [{"index": number, "delta": {"content": "x"}}]} for number in range(1025)]
    opened = [{"type": "content_block_start", "index": n, "content_block": {"type": "thinking"}} for n in range(1025)]
    streams = [Damaged(sse(events), "sse", "raw") for events in (calls, choices, opened)]
    found = node.ask({"do": "verdicts", "with": [[in_json(stream) for stream in streams]]})
    assert found == [in_python(stream) for stream in streams]


def test_an_answers_blocks_are_handed_out_and_its_text_is_received(node: Lines) -> None:
    call, part = tool_call("c1", "weather", '{"city": "Paris"}'), tool_call("c2", "f", '{"a": ')
    items = ["The weather ", call, "is ", part, Finish()]
    for dialect in ("native", "openai"):
        with serving(Site(*items, dialect=dialect).app) as server:
            found = node.ask({"do": "blocks", "with": [f"{server.url}/tokens", {"dialect": dialect}]})
        assert [block["type"] for block in found["blocks"]] == ["tool_call", "invalid_tool_call"]
        assert found["blocks"][0] == {"type": "tool_call", **call.fields}
        assert (found["received"], found["error"]) == ("The weather is ", None)


def test_of_a_call_that_was_cut_nothing_is_handed_out(node: Lines) -> None:
    begun = sse([chat([{"index": 0, "id": "c1", "function": {"name": "f", "arguments": '{"a": 1}'}}])], end=b"")

    def script(connection: Any, request: Any) -> bool:
        connection.send(head(200, "text/event-stream") + chunk(begun))
        connection.finish()
        return False

    with Server(script) as server:
        found = node.ask({"do": "blocks", "with": [server.url, {"dialect": "openai"}]})
    assert (found["blocks"], found["error"]) == ([], "TruncatedStream")


def test_arguments_that_come_in_many_pieces_are_parsed_once(node: Lines) -> None:
    """Each piece repeats the name, and ends as an object does."""
    pieces = ['{"a": "', *["}"] * 3_000, '"}']
    chunks = [chat([{"index": 0, "function": {"name": "f", "arguments": piece}}]) for piece in pieces]
    events = [{"type": "TOOL_CALL_CHUNK", "toolCallId": "c", "toolCallName": "f", "delta": piece} for piece in pieces]
    for dialect, data in (("openai", sse([*chunks, chat([], "stop")])), ("ag-ui", sse(events))):
        found = node.ask({"do": "parsed", "with": [[in_json(Damaged(data, "sse", dialect))]]})
        assert [block["type"] for block in found["said"][0][-1]] == ["tool_call"]
        assert found["characters"] < len(data) + 4 * 3_009


# ---- random events ----------------------------------------------------------------------------------


def sse(events: list[Any], end: bytes = b"data: [DONE]\n\n") -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + end


def written(rng: Random, make: Callable[[Random], Iterator[Any]]) -> bytes:
    return sse([event for _ in range(rng.randint(1, 4)) for event in make(rng)])


def cut(rng: Random, text: str) -> list[str]:
    at = sorted(rng.randrange(len(text) + 1) for _ in range(rng.randint(0, 3)))
    return [text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)]


def chat(calls: list[Any], reason: str | None = None, index: int = 0, **delta: Any) -> dict[str, Any]:
    inside = delta | ({"tool_calls": calls} if calls else {})
    return {"choices": [{"index": index, "delta": inside, "finish_reason": reason}]}


def chunks(rng: Random) -> Iterator[Any]:
    """Of a chat, as servers write calls: by index or by id, with names and ids at the first piece or in every one."""
    choice = rng.choice([0, 0, 1])
    pieces = []
    for number in range(rng.randint(0, 3)):
        index = rng.choice([number, 0, None])
        every, named = rng.random() < 0.3, rng.random() < 0.3
        for at, piece in enumerate(cut(rng, rng.choice(ARGUMENTS))):
            made: dict[str, Any] = {"function": {"arguments": piece}}
            if index is not None:
                made["index"] = index
            if every or at == rng.choice([0, 0, 1, 9]):
                made["id"] = f"c{number}"
            if named or at == 0:
                made["function"]["name"] = "f"
            pieces.append(made)
    if rng.random() < 0.3:
        rng.shuffle(pieces)
    for text in cut(rng, rng.choice(TEXTS)):
        yield chat([], index=choice, **{rng.choice(["reasoning", "reasoning_content", "refusal", "content"]): text})
    yield from (chat([piece], index=choice) for piece in pieces)
    if rng.random() < 0.9:
        yield chat([], rng.choice(["stop", "tool_calls", "length", "error"]), choice)


def messages(rng: Random) -> Iterator[Any]:
    index, text = rng.randint(0, 2), rng.choice(ARGUMENTS)
    kind = rng.choice(["tool_use", "thinking", "text", "redacted_thinking"])
    told = {"input": rng.choice([{}, {"a": 1}, None]), "signature": rng.choice(TEXTS)}
    start = {"type": kind, "id": "c", "name": "f", **told}
    yield {"type": "content_block_start", "index": index, "content_block": start}
    for piece in cut(rng, text):
        delta = {rng.choice(["partial_json", "partial_json", "thinking", "signature", "text"]): piece}
        yield {"type": "content_block_delta", "index": rng.choice([index, index, 3]), "delta": delta}
    if rng.random() < 0.8:
        yield {"type": "content_block_stop", "index": index}


def responses(rng: Random) -> Iterator[Any]:
    kind = rng.choice(["function_call", "reasoning", "message", "image_generation_call", "web_search_call"])
    parts = rng.choice([None, [], [{"text": "a"}, 1, {"text": "b"}]])
    item = {"type": kind, "id": "i", "name": "f", "arguments": rng.choice(ARGUMENTS), **dict.fromkeys(KEYS, parts)}
    item |= rng.choice([{}, {"call_id": "c"}, {"result": "aGk="}])
    yield {"type": "response.refusal.done", "refusal": rng.choice(TEXTS)}
    yield {"type": "response.output_item.done", "item": item}


def parts(rng: Random) -> Iterator[Any]:
    """Of the AI SDK."""
    text, id = rng.choice(ARGUMENTS), rng.choice(["c", "d"])
    for piece in cut(rng, text):
        yield {"type": "tool-input-delta", "toolCallId": id, "inputTextDelta": piece}
    try:
        told = json.loads(text)
    except ValueError:
        told = rng.choice([{"b": [1], "a": {}}, text, None])
    told = None if told != told else told  # NaN, which JSON has no form for
    yield {"type": rng.choice(["tool-input-available"] * 3 + ["tool-input-error"]), "toolCallId": id, "input": told}
    yield {"type": "tool-output-available", "toolCallId": id, "output": told}
    yield {"type": "tool-output-error", "toolCallId": id, "errorText": text}
    for piece in cut(rng, text):
        yield {"type": "reasoning-delta", "id": id, "delta": piece}
    yield {"type": "reasoning-end", "id": rng.choice(["c", "d"])}
    yield {"type": "file", "url": "data:", "mediaType": rng.choice(["image/png", "text/plain"])}
    yield {"type": "data-own", "data": rng.choice([told, {"type": "x", "y": 1}])}


def run(rng: Random) -> Iterator[Any]:
    """Of AG-UI."""
    id, text = rng.choice(["c", "d"]), rng.choice(ARGUMENTS)
    if rng.random() < 0.5:
        yield {"type": "TOOL_CALL_START", "toolCallId": id, "toolCallName": "f"}
        yield from ({"type": "TOOL_CALL_ARGS", "toolCallId": id, "delta": piece} for piece in cut(rng, text))
        yield {"type": "TOOL_CALL_END", "toolCallId": id}
    else:
        id += str(rng.random())
        for at, piece in enumerate(cut(rng, text.strip())):
            yield {"type": "TOOL_CALL_CHUNK", "delta": piece, **({} if at else {"toolCallId": id, "toolCallName": "f"})}
    yield {"type": "TOOL_CALL_RESULT", "toolCallId": id, "content": text}
    yield from ({"type": "REASONING_MESSAGE_CONTENT", "messageId": id, "delta": piece} for piece in cut(rng, text))
    yield {"type": "REASONING_MESSAGE_END", "messageId": rng.choice(["c", "d"])}
    yield {"type": "CUSTOM", "name": "own", "value": rng.choice([text, {"type": "x", "y": 1}, None])}


EVENTS: dict[str, Callable[[Random], Iterator[Any]]] = {
    "openai": chunks, "anthropic": messages, "openai-responses": responses, "ui": parts, "ag-ui": run
}  # fmt: skip
