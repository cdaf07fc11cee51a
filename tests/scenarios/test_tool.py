"""Tool calls in pieces: every call whole, or not handed out as one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamguard.core.dialect import OpenAI, Raw
from streamguard.core.items import Block, Event, tool_call
from streamguard.core.receipt import Verdict
from streamguard.core.wire import Sse
from tests.core.wire.streams import Answer, chunkings, read, written

CALLS = [tool_call("a", "look", '{"at": "x"}'), tool_call("b", "ask", '{"of": 2}')]
KINDS = pytest.mark.parametrize("wire", [Sse(), None], ids=["guarded", "bare"])


def chunk(*pieces: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    delta = {"tool_calls": [*pieces]} if pieces else {}
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def piece(index: int, id: str | None = None, name: str | None = None, arguments: str | None = None) -> dict[str, Any]:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    return {"index": index, **({"id": id} if id else {}), "function": function}


def handed_out(chunks: list[dict[str, Any]], wire: Sse | None) -> list[Block]:
    """The blocks of a chat stream, guarded or as its provider sends it, however its bytes are cut."""
    if wire is None:
        body = b"".join([b"data: %b\n\n" % json.dumps(found).encode() for found in chunks]) + b"data: [DONE]\n\n"
    else:
        body = b"".join(written(chunks, OpenAI(), wire))
    answers = [read(parts, dialect="openai") for parts in chunkings(body)]
    assert {answer.verdict for answer in answers} == {Verdict.UNVERIFIED if wire is None else Verdict.COMPLETE}
    assert all(answer.blocks == answers[0].blocks for answer in answers)
    return answers[0].blocks


@KINDS
def test_calls_whose_pieces_alternate_are_both_whole(wire: Sse | None) -> None:
    chunks = [
        chunk(piece(0, "a", "look", '{"at": ')),
        chunk(piece(1, "b", "ask", '{"of":')),
        chunk(piece(0, arguments='"x"}')),
        chunk(piece(1, arguments=" 2}")),
        chunk(reason="tool_calls"),
    ]
    assert handed_out(chunks, wire) == CALLS


def test_blocks_whose_pieces_alternate_are_both_whole() -> None:
    def event(type: str, **fields: Any) -> Event:
        return Event(json.dumps({"type": type, **fields}), type)

    def start(index: int, id: str, name: str) -> Event:
        block = {"type": "tool_use", "id": id, "name": name, "input": {}}
        return event("content_block_start", index=index, content_block=block)

    def more(index: int, text: str) -> Event:
        return event("content_block_delta", index=index, delta={"type": "input_json_delta", "partial_json": text})

    events = [
        start(0, "a", "look"), more(0, '{"at": '), start(1, "b", "ask"),
        more(1, '{"of":'), more(0, '"x"}'), more(1, " 2}"),
        event("content_block_stop", index=0), event("content_block_stop", index=1),
        event("message_delta", delta={"stop_reason": "tool_use"}), event("message_stop"),
    ]  # fmt: skip
    body = b"".join(written(events, Raw(), Sse()))
    for parts in chunkings(body):
        answer = read(parts, dialect="raw")
        assert (answer.verdict, answer.blocks) == (Verdict.COMPLETE, CALLS)


@KINDS
def test_two_whole_calls_under_one_index_are_two(wire: Sse | None) -> None:
    first, second = [piece(0, *[call.fields[key] for key in ("id", "name", "arguments")]) for call in CALLS]
    assert handed_out([chunk(first), chunk(second, reason="stop")], wire) == CALLS
    assert handed_out([chunk(first, second, reason="stop")], wire) == CALLS


@KINDS
def test_names_in_pieces_that_alternate_are_kept_apart_and_in_order(wire: Sse | None) -> None:
    chunks = [
        chunk(piece(0, "a", "lo"), piece(1, "b", "a")),
        chunk(piece(1, name="s")),
        chunk(piece(0, name="ok")),
        chunk(piece(1, name="k", arguments='{"of": 2}')),
        chunk(piece(0, arguments='{"at": "x"}'), reason="tool_calls"),
    ]
    assert handed_out(chunks, wire) == CALLS


def cut(body: bytes, at: int) -> Answer:
    return read(body[:at], dialect="openai", clean=False)


def test_arguments_that_were_cut_off_are_never_runnable() -> None:
    """At no byte of the stream does a reader hold a call that is not one of those that were sent."""
    chunks = [
        chunk(piece(0, "a", "look", '{"at": ')),
        chunk(piece(0, arguments='"x"}'), piece(1, "b", "ask", '{"of": 2}')),
        chunk(reason="tool_calls"),
    ]
    body = b"".join(written(chunks, OpenAI(), Sse()))
    answers = [cut(body, at) for at in range(len(body))]
    assert all(answer.blocks in ([], CALLS) for answer in answers)
    assert all(answer.verdict is Verdict.TRUNCATED for answer in answers)
    limited = [*chunks[:1], chunk(reason="length")]
    (found,) = handed_out(limited, Sse())
    assert (found.type, found.fields["arguments"]) == ("invalid_tool_call", '{"at": ')
