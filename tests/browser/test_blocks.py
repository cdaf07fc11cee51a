"""Blocks in JavaScript: the same ones as in Python, whatever pieces they came in, and none of a call that was cut."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from streamguard.core.dialect import Raw
from streamguard.core.items import Event, Finish, tool_call
from streamguard.core.wire import Sse
from tests.adapters.logged_apps import Site
from tests.adapters.servers import serving
from tests.browser.damage import Damaged, in_json, in_python
from tests.client.server import Server, chunk, head
from tests.clients.lines import Script as Lines
from tests.core.wire.streams import written

ARGUMENTS = (
    '{"x": {"a": "}{\\""}}', "{}", "", '{"y": ', "[]", '{"x": 1} {', ' {"z": [2.5, null]} \n', "NaN", '{"é": "\u2028"}'
)  # fmt: skip
TEXTS = ("", "a thought", "é\u2028")
KEYS = ("content", "summary")


def test_random_pieces_make_the_same_blocks(node: Lines) -> None:
    rng = Random(5)
    streams = [Damaged(sse(drawn(rng, name), b""), "sse", name) for name in EVENTS for _ in range(200)]
    # Guarded too, where the last event is the terminal.
    asked = [drawn(rng, name) for name in ("openai", "anthropic", "openai-responses") for _ in range(80)]
    guarded = [b"".join(written(map(event, events), Raw(), Sse())) for events in asked]
    streams += [Damaged(data, "sse", dialect) for data in guarded for dialect in ("raw", None)]
    found = node.ask({"do": "verdicts", "with": [[in_json(stream) for stream in streams]]})
    made, verdicts = set(), set()
    for stream, said in zip(streams, found, strict=True):
        expected = in_python(stream)
        assert said[-1] == expected[-1], stream.data.decode()
        assert said[:3] == expected[:3]
        made |= {block["type"] for block in expected[-1]}
        verdicts.add(expected[0])
    assert made > {"tool_call", "invalid_tool_call", "tool_result", "reasoning", "refusal", "image", "file", "own"}
    assert verdicts == {"complete", "unverified", "failed", "truncated"}


def test_what_languages_read_otherwise_is_the_same_call_in_both(node: Lines) -> None:
    def begun(index: Any, stop: Any = None, **block: Any) -> list[Any]:
        start = {"type": "content_block_start", "index": index, "content_block": block}
        return [start, {"type": "content_block_stop", "index": index if stop is None else stop}]

    def called(arguments: str, index: Any = 0) -> dict[str, Any]:
        return {"index": index, "function": {"name": "f", "arguments": arguments}}

    def more(index: Any) -> dict[str, Any]:
        return chat([{"index": index, "function": {"arguments": "}"}}])

    use = {"type": "tool_use", "id": "c", "name": "f"}
    extremes = [
        *(f'{{"a":{"[" * depth}{"]" * depth}}}' for depth in (255, 256, 3000)),
        *(f'{{"a":{sign}{"1" * digits}{rest}}}'
          for sign in ("", "-") for digits in (4300, 4301) for rest in ("", ".5", "e1", "E-7")),
        f'{{"a":"{"1" * 5000}{"[" * 300}\\"{"{" * 300}"}}', f'{{"a":1.{"1" * 5000}}}', f'{{"a":1e-{"1" * 5000}}}',
        '{"a":1e999}', '{"a":1,"a":2}', '{"a":-Infinity}', '\u00a0{}', '\ufeff{}', '{}\x1c',
    ]  # fmt: skip
    indices: tuple[Any, ...] = (1, 1.0, True, False, None, "1", "a", -1, 2.5, [1], {})
    events = [
        *([chat([called(text)], "stop")] for text in extremes),
        *([chat([called("{}")], "stop", index)] for index in indices),
        *([chat([called("{", one)]), more(other), chat([], "stop")] for one in indices for other in indices),
        *(begun(one, other, **use) for one in indices for other in indices),
        *(begun(0, type=kind) for kind in (None, 1.0, True, ["text"], "own")),
        *([{"type": "response.output_item.done", "item": {"type": kind, "a": 1}}] for kind in (None, 1.0, True, {})),
        *(begun(0, input={"a": number}, **use) for number in (math.nan, math.inf)),
        begun(0, input={"a": ["\u2028", True]}, **use), begun(0, input=[1], **use), begun(0, input=0.0, **use),
    ]  # fmt: skip
    streams = [Damaged(sse(one), "sse", Raw(end="asgi")) for one in events]
    for id in indices:
        thought = [{"type": "reasoning-delta", "id": id, "delta": "so"}, {"type": "reasoning-end", "id": 1}]
        streams.append(Damaged(sse([*thought, *ENDS["ui"]], b""), "sse", "ui"))
    for space in (" ", "\n", "\u00a0", "\ufeff", "\x1c"):
        pieces = [{"type": "TOOL_CALL_CHUNK", "toolCallId": "c", "delta": piece} for piece in ("{}", space)]
        streams.append(Damaged(sse([*pieces, *ENDS["ag-ui"]], b""), "sse", "ag-ui"))
    found = node.ask({"do": "verdicts", "with": [[in_json(stream) for stream in streams]]})
    for stream, said in zip(streams, found, strict=True):
        assert said[-1] == in_python(stream)[-1], stream.data.decode()[:300]


def test_a_server_that_writes_nan_loses_no_text(node: Lines) -> None:
    events = [chat([], content='"NaN" ', logprobs=number) for number in (math.nan, -math.inf)]
    streams = [Damaged(sse([*events, *ENDS["openai"]], b""), "sse", "openai")]
    events = [{"type": "text-delta", "delta": "NaN ", "n": math.inf}, *ENDS["ui"]]
    streams.append(Damaged(sse(events, b""), "sse", "ui"))
    found = node.ask({"do": "verdicts", "with": [[in_json(stream) for stream in streams]]})
    assert found == [in_python(stream) for stream in streams]
    assert [said[3] for said in found] == ['"NaN" "NaN" ', "NaN "]


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


def event(payload: Any) -> Event:
    return Event(payload if isinstance(payload, str) else json.dumps(payload))


def sse(events: list[Any], end: bytes = b"data: [DONE]\n\n") -> bytes:
    return b"".join(b"data: " + event(payload).data.encode() + b"\n\n" for payload in events) + end


def drawn(rng: Random, name: str) -> list[Any]:
    """Events of a dialect and, mostly, the end that proves them whole."""
    events = [event for _ in range(rng.randint(1, 4)) for event in EVENTS[name](rng)]
    if rng.random() < 0.1:
        return [*events, "[DONE]"]
    if name == "openai-responses":
        items = [event["item"] for event in events if "item" in event and rng.random() < 0.8]
        told = [*items, item(rng)][: rng.randint(0, len(items) + 1)]
        told = [one | {"id": "other", "call_id": "k"} if rng.random() < 0.2 else one for one in told]
        return [*events, {"type": "response.completed", "response": {"output": rng.choice([told, told, None])}}]
    return [*events, *ENDS[name]]


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
    start = {"type": kind, "id": rng.choice("cde"), "name": "f", **told}
    yield {"type": "content_block_start", "index": index, "content_block": start}
    for piece in cut(rng, text):
        delta = {rng.choice(["partial_json", "partial_json", "thinking", "signature", "text"]): piece}
        yield {"type": "content_block_delta", "index": rng.choice([index, index, 3]), "delta": delta}
    if rng.random() < 0.8:
        yield {"type": "content_block_stop", "index": index}


def item(rng: Random) -> dict[str, Any]:
    kind = rng.choice(["function_call", "reasoning", "message", "image_generation_call", "web_search_call"])
    parts = rng.choice([None, [], [{"text": "a"}, 1, {"text": "b"}]])
    said = {"name": rng.choice("fg"), "arguments": rng.choice(ARGUMENTS)}
    more = rng.choice([{}, {"call_id": "c"}, {"result": "aGk="}, {"status": "incomplete"}])
    return {"type": kind, "id": rng.choice("ij"), **said, **dict.fromkeys(KEYS, parts), **more}


def responses(rng: Random) -> Iterator[Any]:
    made = item(rng)
    place = rng.choice([{}, {"output_index": rng.randint(0, 1)}])
    yield {"type": "response.refusal.done", "refusal": rng.choice(TEXTS)}
    if rng.random() < 0.7:
        yield {"type": "response.output_item.added", "item": {**made, "arguments": ""}, **place}
    for piece in cut(rng, rng.choice(ARGUMENTS)):
        of = rng.choice([place, {}, {"item_id": made["id"]}])
        yield {"type": "response.function_call_arguments.delta", "delta": piece, **of}
    if rng.random() < 0.7:
        yield {"type": "response.output_item.done", "item": made, **place}


def parts(rng: Random) -> Iterator[Any]:
    """Of the AI SDK."""
    text, id = rng.choice(ARGUMENTS), rng.choice(["c", "d"])
    if rng.random() < 0.5:
        yield {"type": "tool-input-start", "toolCallId": rng.choice(["c", "d"]), "toolName": "f"}
    for piece in cut(rng, text):
        yield {"type": "tool-input-delta", "toolCallId": id, "inputTextDelta": piece}
    try:
        told = json.loads(text)
    except ValueError:
        told = rng.choice([{"b": [1], "a": {}}, text, None])
    told = None if told != told else told  # NaN, which JSON has no form for
    if rng.random() < 0.8:
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
        if rng.random() < 0.8:
            yield {"type": "TOOL_CALL_END", "toolCallId": id}
    else:
        id += rng.choice(["", str(rng.random())])
        for at, piece in enumerate(cut(rng, text.strip())):
            yield {"type": "TOOL_CALL_CHUNK", "delta": piece, **({} if at else {"toolCallId": id, "toolCallName": "f"})}
    yield {"type": "TOOL_CALL_RESULT", "toolCallId": id, "content": text}
    yield from ({"type": "REASONING_MESSAGE_CONTENT", "messageId": id, "delta": piece} for piece in cut(rng, text))
    yield {"type": "REASONING_MESSAGE_END", "messageId": rng.choice(["c", "d"])}
    yield {"type": "CUSTOM", "name": "own", "value": rng.choice([text, {"type": "x", "y": 1}, None])}


EVENTS: dict[str, Callable[[Random], Iterator[Any]]] = {
    "openai": chunks, "anthropic": messages, "openai-responses": responses, "ui": parts, "ag-ui": run
}  # fmt: skip
ENDS: dict[str, list[Any]] = {
    "openai": [chat([], "stop", 7), "[DONE]"],
    "anthropic": [{"type": "message_delta", "delta": {"stop_reason": "end_turn"}}, {"type": "message_stop"}],
    "ui": [{"type": "finish"}, "[DONE]"],
    "ag-ui": [{"type": "RUN_FINISHED"}],
}
