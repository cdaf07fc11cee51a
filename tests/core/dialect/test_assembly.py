"""Blocks out of pieces, as each provider's API and its servers send them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamguard.core.dialect.assembly import AnthropicBlocks, ChatBlocks, ProviderBlocks, ResponsesBlocks
from streamguard.core.dialect.provider import ProviderReader
from streamguard.core.items import Block, tool_call

CALL_A, CALL_B = tool_call("a", "f", '{"x": 1}'), tool_call("b", "g", "{}")


def piece(index: int | None, arguments: str = "", id: str | None = None, name: str | None = None) -> dict[str, Any]:
    function = {"arguments": arguments} | ({} if name is None else {"name": name})
    found: dict[str, Any] = {"function": function} | ({} if index is None else {"index": index})
    return found if id is None else found | {"id": id}


def choice(*pieces: dict[str, Any], reason: str | None = None, index: int = 0, **delta: Any) -> dict[str, Any]:
    inside = delta | ({"tool_calls": [*pieces]} if pieces else {})
    return {"index": index, "delta": inside, "finish_reason": reason}


def chat(*choices: Any) -> list[Block]:
    """The blocks of chunks of one choice each."""
    blocks = ChatBlocks()
    return [block for found in choices for block in blocks.take([found])]


class TestChat:
    def test_a_call_is_whole_at_its_choices_finish_reason_and_not_before(self) -> None:
        blocks = ChatBlocks()
        assert blocks.take([choice(piece(0, '{"x": ', "a", "f"))]) == ()
        assert blocks.take([choice(piece(0, "1}"))]) == ()
        assert blocks.take([choice(reason="tool_calls")]) == (CALL_A,)
        assert blocks.take([choice(reason="tool_calls")]) == ()

    @pytest.mark.parametrize("reason", ["tool_calls", "stop", "length", "content_filter", "abort", "error"])
    def test_what_was_cut_off_is_never_a_call(self, reason: str) -> None:
        found = chat(choice(piece(0, '{"x": 1}', "a", "f")), choice(piece(1, '{"y": ', "b", "g"), reason=reason))
        assert found == [CALL_A, Block("invalid_tool_call", {"id": "b", "name": "g", "arguments": '{"y": '})]

    def test_a_call_that_was_cut_before_its_arguments_is_none(self) -> None:
        pieces = choice(piece(0, "", "b", "g"))
        assert chat(pieces, choice(reason="tool_calls")) == [CALL_B]
        assert [block.type for block in chat(pieces, choice(reason="length"))] == ["invalid_tool_call"]

    @pytest.mark.parametrize(
        "pieces",
        [
            pytest.param(
                [piece(0, "{", "a", "f"), piece(1, "{", "b", "g"), piece(0, '"x": 1}'), piece(1, "}")], id="by-index"
            ),
            pytest.param([piece(0, '{"x": 1}', "a", "f"), piece(0, "{}", "b", "g")], id="one-index-two-ids"),
            pytest.param(
                [piece(0, '{"x', "a", "f"), piece(0, "{", "b", "g"), piece(0, '": 1}', "a"), piece(0, "}", "b")],
                id="one-index-ids-in-every-piece",
            ),
            pytest.param(
                [piece(None, '{"x": 1}', "a", "f"), piece(None, "{", "b", "g"), piece(None, "}")],
                id="no-index",
            ),
            pytest.param(
                [
                    piece(0, "", "a", "f"),
                    piece(0, '{"x": ', "a", "f"),
                    piece(0, "1}", "", "f"),
                    piece(1, "{}", "b", "g"),
                ],
                id="a-name-in-every-piece",
            ),
            pytest.param(
                [piece(0, '{"x": ', None, "f"), piece(0, "1}", "a"), piece(1, "{}", "b", "g")],
                id="a-late-id",
            ),
        ],
    )
    def test_pieces_find_their_call(self, pieces: list[dict[str, Any]]) -> None:
        assert chat(*[choice(one) for one in pieces], choice(reason="tool_calls")) == [CALL_A, CALL_B]
        assert chat(choice(*pieces, reason="tool_calls")) == [CALL_A, CALL_B]

    def test_whole_calls_without_ids_under_one_index_are_as_many_calls(self) -> None:
        found = chat(*[choice(piece(0, '{"x": 1}', None, "f"))] * 2, choice(reason="stop"))
        assert found == [tool_call("", "f", '{"x": 1}')] * 2

    def test_a_name_may_come_in_pieces(self) -> None:
        found = chat(
            choice(piece(0, "", "a", "get_")), choice(piece(1, "", "b", "do")),
            choice(piece(0, "", None, "get_")), choice(piece(1, "", None, "_it")), choice(reason="stop"),
        )  # fmt: skip
        assert found == [tool_call("a", "get_get_", "{}"), tool_call("b", "do_it", "{}")]

    def test_more_calls_or_choices_than_any_server_makes_are_refused(self) -> None:
        calls = [piece(index, "{}") for index in range(1025)]
        choices = [choice(index=index, content="a") for index in range(1025)]
        blocks = ChatBlocks()
        blocks.take([choice(*calls[:-1]), *choices[:-1]])
        with pytest.raises(ValueError, match="more than 1024 tool calls"):
            blocks.take([choice(calls[-1])])
        with pytest.raises(ValueError, match="more than 1024 choices"):
            blocks.take([choices[-1]])

    def test_every_choice_has_its_own(self) -> None:
        found = chat(
            choice(piece(0, "{}", "a", "f"), index=1, reasoning="so"), choice(piece(0, "{}", "b", "g"), refusal="no"),
            choice(reason="stop", index=1), choice(reason="stop"),
        )  # fmt: skip
        assert found == [
            Block("reasoning", {"text": "so", "choice": 1}),
            Block("tool_call", {"id": "a", "name": "f", "arguments": "{}", "choice": 1}),
            Block("refusal", {"text": "no"}),
            CALL_B,
        ]

    @pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
    @pytest.mark.parametrize(
        "after", [choice(content="a"), choice(piece(0, "{}", "b", "g")), choice(reason="stop"), choice(reason="length")]
    )
    def test_reasoning_is_whole_when_something_else_follows(self, key: str, after: dict[str, Any]) -> None:
        blocks = ChatBlocks()
        for text in ("so ", "", "then"):
            assert blocks.take([choice(**{key: text, "content": ""})]) == ()
        assert blocks.thinking
        assert blocks.take([after]) == (Block("reasoning", {"text": "so then"}),)
        assert not blocks.thinking

    @pytest.mark.parametrize(
        "odd",
        [
            None, {"index": 0}, {"delta": None}, {"delta": {"tool_calls": 1}}, {"delta": {"tool_calls": [None]}},
            {"delta": {"reasoning": {}, "refusal": 1, "content": 1}},
        ],
    )  # fmt: skip
    def test_what_is_not_this_apis_makes_no_block(self, odd: Any) -> None:
        assert chat(odd, choice(content="a")) == []


def reading(*events: Any) -> list[Block]:
    reader = ProviderReader()
    found = [reader.read(None, event if isinstance(event, str) else json.dumps(event)) for event in events]
    return [block for one in found if one is not None for block in one.blocks]


def chunk(*choices: dict[str, Any]) -> dict[str, Any]:
    return {"object": "chat.completion.chunk", "choices": [*choices]}


def test_reasoning_between_texts_of_one_form_is_handed_out_where_it_ends() -> None:
    """The second text is read by its form alone, without a look at the rest of its chunk."""
    text, thought = chunk(choice(content="a")), chunk(choice(reasoning="so"))
    reader = ProviderReader()
    found = [reader.read(None, json.dumps(event)) for event in (text, thought, text, text)]
    assert [one.blocks if one else None for one in found] == [(), (), (Block("reasoning", {"text": "so"}),), ()]


def test_errors_and_strangers_make_no_block() -> None:
    assert reading({"error": {"message": "x"}, "choices": []}, {"type": 1}, {"a": 1}, "[1]", "[DONE]") == []


class TestAnthropic:
    def events(self, *payloads: dict[str, Any]) -> list[Block]:
        blocks = AnthropicBlocks()
        return [block for one in payloads for block in blocks.take(f"content_block_{one['type']}", one)]

    def test_interleaved_blocks_are_told_apart_by_their_index(self) -> None:
        found = self.events(
            {"type": "start", "index": 0, "content_block": {"type": "tool_use", "id": "a", "name": "f", "input": {}}},
            {"type": "start", "index": 1, "content_block": {"type": "tool_use", "id": "b", "name": "g", "input": {}}},
            {"type": "delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"x": '}},
            {"type": "delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": "{}"}},
            {"type": "delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": "1}"}},
            {"type": "stop", "index": 1},
            {"type": "stop", "index": 0},
        )
        assert found == [CALL_B, CALL_A]

    def test_a_call_cut_by_its_limit_is_stopped_and_no_call(self) -> None:
        found = self.events(
            {"type": "start", "index": 0, "content_block": {"type": "tool_use", "id": "a", "name": "f"}},
            {"type": "delta", "index": 0, "delta": {"partial_json": '{"x": '}},
            {"type": "stop", "index": 0},
        )
        assert found == [Block("invalid_tool_call", {"id": "a", "name": "f", "arguments": '{"x": '})]

    def test_input_may_be_whole_at_the_start(self) -> None:
        start = {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}}
        found = self.events({"type": "start", "index": 0, "content_block": start}, {"type": "stop", "index": 0})
        assert found == [tool_call("a", "f", '{"x":1}')]

    @pytest.mark.parametrize(("signature", "signed"), [("", {}), ("sig", {"signature": "sig"})])
    def test_thinking_is_reasoning(self, signature: str, signed: dict[str, str]) -> None:
        found = self.events(
            {"type": "start", "index": 0, "content_block": {"type": "thinking", "thinking": "s"}},
            {"type": "delta", "index": 0, "delta": {"thinking": "o"}},
            {"type": "delta", "index": 0, "delta": {"signature": signature}},
            {"type": "stop", "index": 0},
        )
        assert found == [Block("reasoning", {"text": "so", **signed})]

    def test_text_is_no_block_and_every_other_kind_is_one(self) -> None:
        found = self.events(
            {"type": "start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "delta", "index": 0, "delta": {"text": "a"}},
            {"type": "stop", "index": 0},
            {"type": "start", "index": 1, "content_block": {"type": "server_tool_use", "id": "s", "name": "web"}},
            {"type": "delta", "index": 1, "delta": {"partial_json": "{}"}},
            {"type": "stop", "index": 1},
            {"type": "start", "index": 2, "content_block": {"type": "redacted_thinking", "data": "x"}},
            {"type": "stop", "index": 2},
            {"type": "others", "index": 2},
        )
        assert found == [
            Block("server_tool_use", {"id": "s", "name": "web", "arguments": "{}"}),
            Block("redacted_thinking", {"data": "x"}),
        ]


    def test_more_open_blocks_than_any_server_makes_are_refused(self) -> None:
        blocks, start = AnthropicBlocks(), {"type": "tool_use"}
        for index in range(1024):
            blocks.take("content_block_start", {"index": index, "content_block": start})
        with pytest.raises(ValueError, match="more than 1024 content blocks"):
            blocks.take("content_block_start", {"index": 1024, "content_block": start})


class TestResponses:
    @pytest.mark.parametrize(
        ("item", "block"),
        [
            ({"type": "function_call", "call_id": "a", "id": "fc", "name": "f", "arguments": '{"x": 1}'}, CALL_A),
            ({"type": "function_call", "id": "b", "name": "g", "arguments": ""}, CALL_B),
            (
                {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{", "status": "incomplete"},
                Block("invalid_tool_call", {"id": "a", "name": "f", "arguments": "{"}),
            ),
            (
                {"type": "reasoning", "content": [{"text": "so"}, {"text": "."}], "summary": []},
                Block("reasoning", {"text": "so."}),
            ),
            ({"type": "reasoning", "content": None, "summary": [{"text": "s"}]}, Block("reasoning", {"text": "s"})),
            ({"type": "reasoning"}, Block("reasoning", {"text": ""})),
            ({"type": "image_generation_call", "result": "AA=="}, Block("image", {"data": "AA=="})),
            ({"type": "web_search_call", "id": "w"}, Block("web_search_call", {"id": "w"})),
        ],
    )  # fmt: skip
    def test_an_item_is_a_block_at_its_end(self, item: dict[str, Any], block: Block) -> None:
        blocks = ResponsesBlocks()
        assert blocks.take("response.output_item.added", {"item": item}) == ()
        assert blocks.take("response.output_item.done", {"item": item}) == (block,)

    def test_a_message_is_text_and_its_refusal_a_block(self) -> None:
        blocks = ResponsesBlocks()
        assert blocks.take("response.output_item.done", {"item": {"type": "message"}}) == ()
        assert blocks.take("response.refusal.done", {"refusal": "no"}) == (Block("refusal", {"text": "no"}),)


def test_any_provider_is_known_by_its_events() -> None:
    blocks = ProviderBlocks()
    start = {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "b", "name": "g"}}
    assert blocks.take(start) == ()
    assert blocks.take({"type": "content_block_stop", "index": 0}) == (CALL_B,)
    item = {"type": "function_call", "call_id": "a", "name": "f", "arguments": '{"x": 1}'}
    assert blocks.take({"type": "response.output_item.done", "item": item}) == (CALL_A,)
    assert blocks.take(chunk(choice(piece(0, "{}", "b", "g"), reason="stop"))) == (CALL_B,)
    assert blocks.take({"type": None}) == ()
