"""What the SDKs' own parsers hand out: of a dialect the same as of the bytes that a real server sent.

A recorded stream goes through its dialect twice: as the provider's own events, and as text and blocks, which is all
that is left of it when another API's dialect takes it up. The SDK reads both, and the recording itself.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamguard.core.dialect import Anthropic, OpenAI, OpenAIResponses
from streamguard.core.items import Block, Item, tool_call
from streamguard.core.wire import Sse
from tests.absence import absent, require
from tests.clients.recordings import CHAT, MESSAGES, RESPONSES, content, events, recorded, served, through
from tests.core.wire.streams import FAILURE
from tests.proxy.fronted import fronted
from tests.upstream.player import Player

ANTHROPIC = pytest.mark.skipif(absent("anthropic"), reason="absent: anthropic (install it with: pip install anthropic)")
ids = pytest.mark.parametrize("wire", [Sse(), Sse(ids="id")], ids=["comments", "ids"])

require("openai", "pip install openai")


def chat(url: str) -> list[dict[str, Any]]:
    import openai

    with openai.OpenAI(api_key="k", base_url=url, max_retries=0) as client:
        asked: Any = {"model": "m", "messages": [], "stream": True}
        return [chunk.model_dump() for chunk in client.chat.completions.create(**asked)]


def responses(url: str) -> list[dict[str, Any]]:
    import openai

    with openai.OpenAI(api_key="k", base_url=url, max_retries=0) as client:
        asked: Any = {"model": "m", "input": "q", "stream": True}
        return [event.model_dump() for event in client.responses.create(**asked)]


def response(url: str) -> Any:
    """The response that the SDK puts together."""
    import openai

    with openai.OpenAI(api_key="k", base_url=url, max_retries=0) as client:
        asked: Any = {"model": "m", "input": "q"}
        with client.responses.stream(**asked) as stream:
            return stream.get_final_response()


def message(url: str) -> dict[str, Any]:
    import anthropic

    with anthropic.Anthropic(api_key="k", base_url=url, max_retries=0) as client:
        asked: Any = {"model": "m", "messages": [], "max_tokens": 9}
        with client.messages.stream(**asked) as stream:
            found: dict[str, Any] = stream.get_final_message().model_dump()
    return found


def joined(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """What a client puts together of choice 0."""
    found: dict[str, Any] = {"content": "", "reasoning": "", "calls": {}}
    for chunk in chunks:
        for choice in chunk["choices"]:
            delta = choice["delta"]
            found["content"] += delta.get("content") or ""
            found["reasoning"] += delta.get("reasoning") or ""
            found["reason"] = choice["finish_reason"]
            for piece in delta.get("tool_calls") or ():
                call = found["calls"].setdefault(piece["index"], {"id": piece["id"], "name": "", "arguments": ""})
                call["name"] += piece["function"]["name"] or ""
                call["arguments"] += piece["function"]["arguments"] or ""
        if chunk.get("usage"):
            found["usage"] = {key: chunk["usage"][key] for key in ("prompt_tokens", "completion_tokens")}
    return found


@ids
@pytest.mark.parametrize("name", CHAT)
def test_chunks_are_those_of_the_recording(name: str, wire: Sse) -> None:
    assert served(through(events(name), OpenAI(), wire), chat) == served(recorded(name), chat)


@pytest.mark.parametrize("name", [name for name in CHAT if "n2" not in name])
def test_a_chat_of_text_and_blocks_is_put_together_as_the_recording_is(name: str) -> None:
    items, _ = content(name)
    body = through(items, OpenAI(include_usage=True), Sse())
    assert joined(served(body, chat)) == joined(served(recorded(name), chat))


@ids
@pytest.mark.parametrize("name", RESPONSES)
def test_responses_events_are_those_of_the_recording(name: str, wire: Sse) -> None:
    assert served(through(events(name), OpenAIResponses(), wire), responses) == served(recorded(name), responses)


def output(found: Any) -> list[Any]:
    """A response's output without what only names it."""
    told = []
    for item in found.output:
        if item.type == "function_call":
            told.append((item.type, item.call_id, item.name, item.arguments))
        else:
            told.append((item.type, [getattr(part, "text", None) for part in item.content]))
    return told


@pytest.mark.parametrize("name", RESPONSES[:3])
def test_a_response_of_text_and_blocks_is_put_together_as_the_recording_is(name: str) -> None:
    items, _ = content(name)
    made, real = (served(body, response) for body in (through(items, OpenAIResponses(), Sse()), recorded(name)))
    assert output(made) == output(real)
    assert (made.status, made.output_text) == (real.status, real.output_text)
    assert (made.usage.input_tokens, made.usage.total_tokens) == (real.usage.input_tokens, real.usage.total_tokens)


@ANTHROPIC
@ids
@pytest.mark.parametrize("name", MESSAGES)
def test_messages_are_those_of_the_recording(name: str, wire: Sse) -> None:
    assert served(through(events(name), Anthropic(), wire), message) == served(recorded(name), message)


@ANTHROPIC
@pytest.mark.parametrize("name", MESSAGES[:2])
def test_a_message_comes_through_the_proxy_as_it_was(name: str) -> None:
    player = Player()
    player.plays(recorded(name).decode())
    with fronted(player.app) as (proxy, _):
        assert message(proxy.url) == served(recorded(name), message)


@ANTHROPIC
@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_of_text_and_blocks_is_put_together_as_the_recording_is(name: str) -> None:
    items, _ = content(name)
    made, real = (served(body, message) for body in (through(items, Anthropic(), Sse()), recorded(name)))
    for key in ("content", "stop_reason"):
        assert made[key] == real[key]
    assert made["usage"]["output_tokens"] == real["usage"]["output_tokens"]


@pytest.mark.parametrize("name", ["vllm_chat_tool2", "vllmB_chat_tool2"])
def test_a_chat_is_another_apis_answer_too(name: str) -> None:
    items, answer = content(name)
    found = served(through(items, OpenAIResponses(), Sse()), response)
    assert found.output_text == answer.text
    made = [item for item in found.output if item.type == "function_call"]
    calls = [tool_call(item.call_id, item.name, item.arguments) for item in made]
    assert calls == [block for block in answer.blocks if block.type == "tool_call"]
    assert len(calls) == 2


@ANTHROPIC
@pytest.mark.parametrize("name", ["vllm_chat_tool2", "vllmB_chat_tool2"])
def test_a_chat_is_a_message_too(name: str) -> None:
    items, answer = content(name)
    found = served(through(items, Anthropic(), Sse()), message)
    assert found["stop_reason"] == "tool_use"
    told = []
    for block in found["content"]:
        if block["type"] == "tool_use":
            told.append((block["id"], block["name"], block["input"]))
    assert told == [
        (block.fields["id"], block.fields["name"], json.loads(block.fields["arguments"]))
        for block in answer.blocks
        if block.type == "tool_call"
    ]


@pytest.mark.parametrize("items", [[], ["a"], ["a", tool_call("c", "f", "{}")]], ids=["none", "text", "call"])
def test_a_failure_raises_by_itself(items: list[Item]) -> None:
    import openai

    for dialect, ask in ((OpenAI(), chat), (OpenAIResponses(), responses)):
        with pytest.raises(openai.APIError, match="RuntimeError"):
            served(through(items, dialect, Sse(), fail=FAILURE), ask)


@ANTHROPIC
def test_a_failed_message_raises_by_itself() -> None:
    import anthropic

    for items in ([], ["a"], [Block("reasoning", {"text": "so"})]):
        with pytest.raises(anthropic.APIError, match="RuntimeError"):
            served(through(items, Anthropic(), Sse(), fail=FAILURE), message)
