"""The source on real LangChain and LangGraph, with a model that is none. Only with `-m heavy`.

    pip install langchain-core langgraph
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from streamguard.core.errors import SourceFailed, UnsupportedItem
from streamguard.core.items import Block, Finish
from streamguard.upstream.langchain import langchain_stream
from tests.absence import require

# The warnings of these libraries are not ours.
pytestmark = [pytest.mark.heavy, pytest.mark.anyio, pytest.mark.filterwarnings("default")]

COUNTS = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
CALL = Block("tool_call", {"id": "1", "name": "look", "arguments": '{"a": 1}'})
SEEN = Block("tool_result", {"id": "1", "content": "saw 1"})


@pytest.fixture(params=["asyncio"], scope="module")
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


def chat_model(*, cut: bool = False, calls: bool = False) -> Any:
    """A chat model that says Hello; `cut`: without its end, `calls`: it asks a tool first."""
    require("langchain_core", "pip install langchain-core")
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage, AIMessageChunk
    from langchain_core.outputs import ChatGenerationChunk

    class Model(GenericFakeChatModel):
        async def _astream(
            self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any
        ) -> AsyncIterator[Any]:
            asks = calls and not any(message.type == "tool" for message in messages)
            chunks = [AIMessageChunk(content="He"), AIMessageChunk(content="llo")]
            if asks:
                pieces: Any = [("look", '{"a"', "1"), (None, ": 1}", None)]
                chunks = [
                    AIMessageChunk(content="", tool_call_chunks=[{"name": name, "args": args, "id": id, "index": 0}])
                    for name, args, id in pieces
                ]
            if not cut:
                usage: Any = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
                chunks.append(AIMessageChunk(content="", response_metadata={"finish_reason": "stop"}))
                chunks.append(AIMessageChunk(content="", usage_metadata=usage))
            for chunk in chunks:
                generation = ChatGenerationChunk(message=chunk)
                if run_manager:
                    await run_manager.on_llm_new_token(str(chunk.content), chunk=generation)
                yield generation

    return Model(messages=iter([AIMessage("whole")] * 9))


def graph() -> Any:
    """A graph of that model and its tool."""
    require("langgraph", "pip install langgraph")
    from langchain_core.tools import tool
    from langgraph.graph import END, START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode

    @tool
    def look(a: int) -> str:
        """Look."""
        return f"saw {a}"

    model = chat_model(calls=True)

    async def call(state: Any) -> Any:
        return {"messages": [await model.ainvoke(state["messages"])]}

    built: Any = StateGraph(MessagesState)
    built.add_node("model", call)
    built.add_node("tools", ToolNode([look]))
    built.add_edge(START, "model")
    built.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else END)
    built.add_edge("tools", "model")
    return built.compile()


async def items(stream: Any, **options: Any) -> list[Any]:
    return [item async for item in langchain_stream(stream, **options) if item != ""]


async def test_a_models_stream_is_read_to_its_reason_and_a_cut_one_is_none() -> None:
    assert await items(chat_model().astream("hi")) == ["He", "llo", Finish("stop", COUNTS)]
    assert await items(chat_model(cut=True).astream("hi"), end="return") == ["He", "llo", Finish()]
    with pytest.raises(SourceFailed, match="unproven_end"):
        await items(chat_model(cut=True).astream("hi"))


async def test_a_chains_events_are_read_once() -> None:
    model, cut = chat_model(), chat_model(cut=True)
    from langchain_core.output_parsers import StrOutputParser
    from langchain_core.prompts import ChatPromptTemplate

    def chain(model: Any) -> Any:
        return ChatPromptTemplate.from_template("{q}") | model | StrOutputParser()

    assert await items(chain(model).astream({"q": "hi"}), end="return") == ["He", "llo", Finish()]
    events = chain(model).astream_events({"q": "hi"}, version="v2")
    assert await items(events) == ["He", "llo", Finish("stop", COUNTS)]
    with pytest.raises(SourceFailed, match="unproven_end"):
        await items(chain(cut).astream_events({"q": "hi"}, version="v2"))


async def test_a_graph_is_one_answer_in_every_mode_that_has_messages() -> None:
    built, asked = graph(), {"messages": [("user", "hi")]}
    whole = [CALL, SEEN, "He", "llo", Finish("stop", {name: 2 * count for name, count in COUNTS.items()})]
    assert await items(built.astream(asked, stream_mode="messages")) == whole
    assert await items(built.astream(asked, stream_mode="messages", subgraphs=True)) == whole
    assert await items(built.astream(asked, stream_mode=["messages"], subgraphs=True)) == whole
    both = built.astream(asked, stream_mode=["messages", "updates"])
    assert await items(both, other=lambda found: None) == whole
    assert await items(built.astream_events(asked, version="v2")) == whole
    with pytest.raises(UnsupportedItem, match="a dict"):
        await items(built.astream(asked, stream_mode="updates"))


async def test_a_graph_that_nobody_reads_is_closed() -> None:
    stream = graph().astream({"messages": [("user", "hi")]}, stream_mode="messages")
    source = langchain_stream(stream)
    assert await source.__anext__() == CALL
    await source.aclose()
    with pytest.raises(StopAsyncIteration):
        await stream.__anext__()
