"""What LangChain and LangGraph stream, as a source; the fakes have the public fields of langchain-core's messages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import attrs
import pytest

from streamguard.core.errors import SourceFailed, UnsupportedItem
from streamguard.core.items import Block, Finish
from streamguard.upstream.langchain import langchain_stream

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio"], scope="module")
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """One loop: nothing here waits for any."""
    return request.param


@attrs.define
class Chunk:
    """AIMessageChunk."""

    content: Any = ""
    id: str | None = "run-1"
    response_metadata: dict[str, Any] = attrs.field(factory=dict)
    usage_metadata: dict[str, Any] | None = None
    additional_kwargs: dict[str, Any] = attrs.field(factory=dict)
    tool_call_chunks: list[dict[str, Any]] = attrs.field(factory=list)
    type: str = "AIMessageChunk"


@attrs.define
class Whole:
    """AIMessage."""

    content: Any = ""
    tool_calls: list[dict[str, Any]] = attrs.field(factory=list)
    id: str | None = "run-1"
    response_metadata: dict[str, Any] = attrs.field(factory=dict)
    usage_metadata: dict[str, Any] | None = None
    type: str = "ai"


@attrs.define
class Result:
    """ToolMessage."""

    content: Any
    tool_call_id: str = "1"
    status: str = "success"
    id: str | None = None
    type: str = "tool"


@attrs.define
class Asked:
    """HumanMessage."""

    content: str = "hi"
    type: str = "human"


def ended(reason: str = "stop", key: str = "finish_reason", **fields: Any) -> Chunk:
    return Chunk(response_metadata={key: reason}, **fields)


class Stream:
    """What `astream` returns; `closed` once it was closed before its end."""

    def __init__(self, *found: Any) -> None:
        self._found = found
        self.closed = False

    async def _each(self) -> AsyncIterator[Any]:
        try:
            for found in self._found:
                yield found
        except GeneratorExit:
            self.closed = True
            raise

    def __call__(self) -> AsyncIterator[Any]:
        return self._each()


async def items(*found: Any, **options: Any) -> list[Any]:
    return [item async for item in langchain_stream(Stream(*found)(), **options)]


async def code(*found: Any, **options: Any) -> str:
    with pytest.raises(SourceFailed) as raised:
        await items(*found, **options)
    return raised.value.failure.code


USAGE = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5, "input_token_details": {"cache_read": 0}}
COUNTS = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


@pytest.mark.parametrize(
    ("key", "reason", "told"),
    [
        ("finish_reason", "stop", "stop"),
        ("finish_reason", "STOP", "stop"),
        ("stop_reason", "max_tokens", "length"),
        ("done_reason", "length", "length"),
        ("stopReason", "tool_use", "tool_calls"),
        ("status", "completed", "stop"),
        ("finish_reason", "something", "something"),
    ],
)
async def test_a_models_chunks_are_text_then_reason_and_counts(key: str, reason: str, told: str) -> None:
    chunks = [Chunk("He"), Chunk("llo"), ended(reason, key), Chunk(usage_metadata=USAGE)]
    assert await items(*chunks) == ["He", "llo", Finish(told, COUNTS)]


async def test_a_model_whose_connection_was_cut_is_no_whole_answer() -> None:
    assert await code(Chunk("He")) == "unproven_end"
    assert await code(Chunk("He", response_metadata={"status": "in_progress"})) == "unproven_end"
    assert await code() == "unproven_end"
    assert await code(ended(id="1"), Chunk("x", id="2")) == "unproven_end"


async def test_the_end_of_the_iteration_is_the_end_only_where_that_is_asked_for() -> None:
    assert await items(Chunk("He"), end="return") == ["He", Finish()]
    assert await items("He", "llo", end="return") == ["He", "llo", Finish()]
    assert await code("He") == "unproven_end"


async def test_a_tool_call_is_handed_out_whole_and_reasoning_before_the_text_that_follows_it() -> None:
    first = {"name": "f", "args": '{"a"', "id": "1", "index": 0}
    rest = {"name": None, "args": ": 1}", "id": None, "index": 0}
    found = [
        Chunk([{"type": "thinking", "thinking": "Hm"}]),
        Chunk(additional_kwargs={"reasoning_content": "m"}),
        Chunk([{"type": "text", "text": "Well"}, "!"]),
        Chunk([{"type": "tool_use"}], tool_call_chunks=[first]),
        Chunk(tool_call_chunks=[rest]),
        ended("tool_calls"),
    ]
    assert await items(*found) == [
        Block("reasoning", {"text": "Hmm"}),
        "Well",
        "!",
        Block("tool_call", {"id": "1", "name": "f", "arguments": '{"a": 1}'}),
        Finish("tool_calls"),
    ]


async def test_the_reasoning_of_responses_is_in_its_summary() -> None:
    part = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm"}]}
    thought, _ = await items(Chunk([part]), Chunk([{"type": "reasoning"}]), ended())
    assert thought == Block("reasoning", {"text": "Hm"})


async def test_a_graphs_messages_are_one_answer_and_their_counts_are_added_up() -> None:
    call = {"name": "f", "args": {"a": 1}, "id": "1", "type": "tool_call"}
    found = [
        (Asked(), {"langgraph_node": "start"}),
        (Whole("Let me see", [call], usage_metadata=USAGE), {"langgraph_node": "model"}),
        (("tools:1",), (Result("seen"), {"langgraph_node": "tools"})),
        ("messages", (Result("not there", "2", "error"), {})),
        (("inner:1",), "messages", (Chunk("Done", id="run-2"), {})),
        (ended(id="run-2", usage_metadata=USAGE), {}),
    ]
    assert await items(*found) == [
        "Let me see",
        Block("tool_call", {"id": "1", "name": "f", "arguments": '{"a":1}'}),
        Block("tool_result", {"id": "1", "content": "seen"}),
        Block("tool_result", {"id": "2", "content": "not there", "is_error": True}),
        "Done",
        Finish("stop", {name: 2 * count for name, count in COUNTS.items()}),
    ]


@pytest.mark.parametrize(
    ("found", "what"),
    [
        ({"model": {"messages": []}}, "a dict"),
        (("updates", {"model": {}}), "'updates'"),
        ((), "nothing"),
        (Chunk([{"type": "image", "base64": "AAAA"}]), "type 'image'"),
    ],
    ids=["state", "mode", "empty", "part"],
)
async def test_what_has_no_form_is_refused_or_given_to_the_application(found: Any, what: str) -> None:
    with pytest.raises(UnsupportedItem, match=what):
        await items(found)
    given: list[Any] = []
    assert await items(found, ended(), other=given.append) == [Finish("stop")]
    assert len(given) == 1
    assert (await items(found, ended(), other=lambda part: Block("own", {})))[0] == Block("own", {})


def event(kind: str, run: str = "root", **data: Any) -> dict[str, Any]:
    return {"event": kind, "run_id": run, "name": "x", "tags": [], "metadata": {}, "data": data, "parent_ids": []}


EVENTS = [
    event("on_chain_start", input={}),
    event("on_chat_model_start", "1"),
    event("on_chat_model_stream", "1", chunk=Chunk("Hel")),
    event("on_chain_stream", chunk="Hel"),
    event("on_chat_model_stream", "1", chunk=Chunk("lo")),
    event("on_chat_model_end", "1", output=ended()),
    event("on_tool_end", "2", output=Result("seen")),
    event("on_tool_end", "3", output="a bare result, which belongs to no call"),
    event("on_llm_stream", "4", chunk="!"),
    event("on_llm_stream", "4", chunk=type("GenerationChunk", (), {"text": "!"})()),
    event("on_chain_end", output={}),
]


async def test_events_are_read_once_and_not_again_from_every_runnable_that_they_pass() -> None:
    result = Block("tool_result", {"id": "1", "content": "seen"})
    assert await items(*EVENTS) == ["Hel", "lo", result, "!", "!", Finish()]
    assert await items(EVENTS[0], event("on_chat_model_end", "1", output=Whole("Hello")), EVENTS[-1]) == [
        "Hello", Finish("stop"),
    ]  # fmt: skip


@pytest.mark.parametrize("end", ["reason", "return"])
async def test_a_run_that_is_told_by_events_must_tell_its_end(end: str) -> None:
    assert await code(*EVENTS[:-1], end=end) == "upstream_truncated"
    if end == "reason":
        assert await code(*EVENTS[:5], EVENTS[-1]) == "unproven_end"


async def test_a_source_that_is_closed_closes_the_run() -> None:
    stream = Stream(Chunk("a"), Chunk("b"))
    source = langchain_stream(stream())
    assert await source.__anext__() == "a"
    await source.aclose()
    assert stream.closed


def test_arguments_are_looked_at_where_they_are_given() -> None:
    with pytest.raises(ValueError, match="end is 'reason' or 'return'"):
        langchain_stream(Stream()(), end="marker")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="other is a function"):
        langchain_stream(Stream()(), other=3)  # type: ignore[arg-type]
