"""`openai`: chat.completion.chunk events as the SDKs read them, to the byte."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamguard.core.dialect import OpenAI
from streamguard.core.errors import Failure, FinishConflict, SourceFailed, TextAfterFinish, UnsupportedItem
from streamguard.core.framing import FramedEncoder
from streamguard.core.items import Block, Ending, Event, Finish, Item, tool_call
from streamguard.core.receipt import Verdict
from streamguard.core.wire import Sse, SseDecoder
from tests.core.wire.streams import FAILURE, SID, Answer, read, written

DIALECT = OpenAI(model="m", id="c", created=1)
HEAD = '{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":'
DONE = "[DONE]"


def stream(*items: Item, fail: Failure | None = None, usage: bool = False) -> tuple[list[str], Answer]:
    """The data of every event, and what our client makes of the stream."""
    dialect = OpenAI(model="m", id="c", created=1, include_usage=usage)
    parts = written(items, dialect, Sse(), fail=fail)
    events = SseDecoder().feed(b"".join(parts))
    assert all(event.event == "message" and event.id is None for event in events)
    return [event.data for event in events], read(parts, dialect="openai")


def delta(fields: str, reason: str = "null", index: int = 0) -> str:
    return f'{HEAD}[{{"index":{index},"delta":{{{fields}}},"finish_reason":{reason}}}]}}'


def chunk(text: str | None, index: int = 0, reason: str | None = None, **fields: Any) -> dict[str, Any]:
    inside = {} if text is None else {"content": text}
    return {"choices": [{"index": index, "delta": inside, "finish_reason": reason}], **fields}


class TestText:
    def test_the_role_comes_with_the_first_text_and_the_reason_alone(self) -> None:
        data, answer = stream('He"', "llo")
        assert data == [
            delta('"role":"assistant","content":"He\\""'),
            delta('"content":"llo"'),
            delta("", '"stop"'),
            DONE,
        ]
        assert (answer.verdict, answer.text, answer.receipt.finish_reason) == (Verdict.COMPLETE, 'He"llo', "stop")

    def test_an_empty_answer_has_a_role_a_reason_and_an_end(self) -> None:
        data, answer = stream()
        assert data == [delta('"role":"assistant"', '"stop"'), DONE]
        assert (answer.verdict, answer.text) == (Verdict.COMPLETE, "")

    def test_text_as_an_item_is_the_same_chunk(self) -> None:
        first, second = DIALECT.encoder(), DIALECT.encoder()
        assert [payload.data for payload in first.item("a", Ending())] == [second.text("a")]

    def test_the_sources_own_reason_is_told(self) -> None:
        data, answer = stream("a", Finish("length"))
        assert data[-2:] == [delta("", '"length"'), DONE]
        assert answer.receipt.finish_reason == "length"

    @pytest.mark.parametrize("usage", [False, True])
    def test_usage_is_a_chunk_if_asked_for_and_in_the_summary_always(self, usage: bool) -> None:
        data, answer = stream("a", Finish("stop", {"n": 2}), usage=usage)
        assert data[2:] == ([HEAD + '[],"usage":{"n":2}}'] if usage else []) + [DONE]
        assert answer.receipt.usage == {"n": 2}
        assert stream("a", usage=usage)[0][2:] == [DONE]

    def test_a_failure_is_an_error_and_never_done(self) -> None:
        data, answer = stream("a", Finish("stop"), fail=FAILURE)
        assert [json.loads(line) for line in data[1:]] == [
            {"error": {"message": "RuntimeError", "type": "failed", "param": None, "code": "source_error"}}
        ]
        assert (answer.verdict, answer.code) == (Verdict.FAILED, "source_error")
        assert answer.receipt.failure == FAILURE

    def test_without_a_failure_the_status_is_the_code(self) -> None:
        terminal = DIALECT.encoder().terminal(Ending(status="cancelled"), 0, 0)
        assert json.loads(terminal.data)["error"] == {
            "message": "the stream ended as cancelled", "type": "cancelled", "param": None, "code": "cancelled",
        }  # fmt: skip

    def test_an_aborted_generation_fails(self) -> None:
        assert stream("a", Finish("abort"))[1].code == "generation_aborted"


class TestBlocks:
    def test_a_tool_call_is_a_delta_with_its_place(self) -> None:
        data, answer = stream(tool_call("c1", "f", "{}"), tool_call("c2", "g", '{"a":1}'), Finish("tool_calls"))
        first = '{"index":0,"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}'
        second = '{"index":1,"id":"c2","type":"function","function":{"name":"g","arguments":"{\\"a\\":1}"}}'
        assert data == [
            delta(f'"role":"assistant","tool_calls":[{first}]'),
            delta(f'"tool_calls":[{second}]'),
            delta("", '"tool_calls"'),
            DONE,
        ]
        assert answer.frames[0].item["choices"][0]["delta"]["tool_calls"] == [json.loads(first)]
        assert answer.blocks == [tool_call("c1", "f", "{}"), tool_call("c2", "g", '{"a":1}')]

    def test_a_source_that_called_tools_and_returned_waits_for_them(self) -> None:
        data, answer = stream("a", tool_call("c1", "f", "{}"))
        assert data[-2:] == [delta("", '"tool_calls"'), DONE]
        assert answer.receipt.finish_reason == "tool_calls"

    @pytest.mark.parametrize("field", ["id", "name", "arguments"])
    def test_half_a_tool_call_is_refused(self, field: str) -> None:
        fields: dict[str, Any] = {"id": "c", "name": "f", "arguments": "{}", field: None}
        with pytest.raises(UnsupportedItem, match=f"a tool call whose {field} is no text.*yield tool_call"):
            stream(Block("tool_call", fields))

    def test_reasoning_and_a_refusal_are_deltas_of_their_own(self) -> None:
        items = [Block("reasoning", {"text": 'So "\ud800'}), Block("reasoning", {"text": "."}), "a"]
        data, answer = stream(*items, Block("refusal", {"text": "No\u2028"}))
        assert data == [
            delta('"role":"assistant","reasoning":"So \\"\ufffd"'),
            delta('"reasoning":"."'),
            delta('"content":"a"'),
            delta('"refusal":"No\\u2028"'),
            delta("", '"stop"'),
            DONE,
        ]
        assert answer.blocks == [Block("reasoning", {"text": 'So "\ufffd.'}), Block("refusal", {"text": "No\u2028"})]

    def test_other_blocks_and_serialised_streams_have_no_place(self) -> None:
        for type in ("image", "tool_result"):
            with pytest.raises(UnsupportedItem, match=f"a block of type '{type}'.*room for tool calls"):
                stream(Block(type))
        with pytest.raises(UnsupportedItem, match=r"'refusal' without text.*yield Block\('refusal', {'text'"):
            stream(Block("refusal"))
        with pytest.raises(UnsupportedItem, match="a serialised stream, which dialect 'openai'"):
            DIALECT.encoder().wire(b"x", Ending())


class TestChunks:
    def test_a_providers_chunks_pass_and_nothing_is_repeated_or_invented(self) -> None:
        items = [chunk("a"), chunk("b", reason="length"), {"choices": [], "usage": {"n": 1}}]
        for wrap in (dict, lambda item: Event(json.dumps(item), "named", "7")):
            data, answer = stream(*[wrap(item) for item in items], usage=True)
            assert [json.loads(line) for line in data[:-1]] == items
            assert data[-1] == DONE
            assert (answer.verdict, answer.text) == (Verdict.COMPLETE, "ab")
            assert (answer.receipt.finish_reason, answer.receipt.usage) == ("length", {"n": 1})

    def test_several_choices_each_need_their_reason(self) -> None:
        data, answer = stream(chunk("a"), chunk("b", 1), chunk(None, 1, "stop"), Finish("length"))
        assert data[3:] == [delta('"role":"assistant"', '"length"'), DONE]
        assert answer.texts == {0: "a", 1: "b"}
        assert answer.receipt.finish_reason == {"0": "length", "1": "stop"}
        _, answer = stream(chunk("a", 0, "stop"), chunk("b", 1), chunk("c", 2))
        assert (answer.verdict, answer.code) == (Verdict.FAILED, "unproven_end")
        said = "choice 1 has no finish reason: yield Finish('stop', choice=1), or a chunk with its finish_reason"
        assert answer.receipt.failure == Failure("unproven_end", said, retryable=True)

    def test_reasons_of_other_choices_come_without_a_role(self) -> None:
        data, _ = stream(chunk("a", 1), Finish("stop", choice=1), Finish("stop", choice=0))
        assert data[1:] == [delta('"role":"assistant"', '"stop"'), delta("", '"stop"', 1), DONE]

    def test_text_and_chunks_in_one_stream_end_by_returning(self) -> None:
        data, answer = stream("a", chunk("b"))
        assert data[-2:] == [delta("", '"stop"'), DONE]
        assert (answer.verdict, answer.text) == (Verdict.COMPLETE, "ab")

    def test_the_providers_marker_is_not_passed_on(self) -> None:
        data, answer = stream(Event(json.dumps(chunk("a", reason="stop"))), Event(" [DONE] "))
        assert len(data) == 2
        assert answer.verdict is Verdict.COMPLETE

    def test_an_event_that_spans_lines_is_written_anew(self) -> None:
        data, answer = stream(Event(json.dumps(chunk("é\u2028", reason="stop"), indent=1, ensure_ascii=False)))
        assert data[0] == '{"choices":[{"index":0,"delta":{"content":"é\\u2028"},"finish_reason":"stop"}]}'
        assert answer.text == "é\u2028"
        assert stream(Event(json.dumps(chunk("é", reason="stop"))))[0][0] == json.dumps(chunk("é", reason="stop"))

    @pytest.mark.parametrize("data", ["x", "[1]", '"a"', ""])
    def test_an_event_that_is_no_object_is_refused(self, data: str) -> None:
        with pytest.raises(UnsupportedItem, match="an event without a JSON object"):
            stream(Event(data))

    @pytest.mark.parametrize("item", [{"data": "hi"}, {"event": "message", "data": "{}"}, {"content": "hi"}, {}])
    def test_a_mapping_that_is_no_chunk_is_refused_with_what_a_chunk_looks_like(self, item: dict[str, Any]) -> None:
        """It would pass as an event without text, and the answer end as a whole one that says nothing."""
        with pytest.raises(UnsupportedItem) as caught:
            stream(item)
        assert str(caught.value) == (
            "a source yielded a mapping that is no chunk, which dialect 'openai' cannot carry: yield text, or "
            '{"choices": [{"index": 0, "delta": {"content": "…"}, "finish_reason": None}]}'
        )

    @pytest.mark.parametrize(
        "item", [Event('{"type": "ping"}'), {"choices": [], "note": 1}, {"choices": [{"index": 0}]}, {"usage": None}]
    )
    def test_an_object_of_another_kind_passes(self, item: Any) -> None:
        data, answer = stream(item, chunk("a", reason="stop"))
        assert json.loads(data[0]) == (json.loads(item.data) if isinstance(item, Event) else item)
        assert (answer.verdict, answer.text) == (Verdict.COMPLETE, "a")

    @pytest.mark.parametrize(
        ("error", "message"), [({"message": "died"}, "died"), ("died", "died"), ({"a": 1}, "None")]
    )
    def test_a_providers_error_fails_the_source(self, error: Any, message: str) -> None:
        for item in ({"error": error}, Event(json.dumps({"error": error}))):
            with pytest.raises(SourceFailed) as caught:
                stream(item)
            assert caught.value.failure == Failure("upstream_error", message)

    def test_text_after_its_choices_reason_is_refused(self) -> None:
        with pytest.raises(TextAfterFinish) as caught:
            stream(chunk("a", 1, "stop"), chunk("b", 0), chunk("c", 1))
        assert (caught.value.choice, caught.value.reason) == (1, "stop")
        assert stream(chunk("a", 0, "stop"), chunk(None, 0))[1].text == "a"

    def test_two_reasons_for_one_choice_are_a_conflict(self) -> None:
        with pytest.raises(FinishConflict) as caught:
            stream(chunk("a", 0, "stop"), chunk(None, 0, "length"))
        assert (caught.value.choice, caught.value.first, caught.value.second) == (0, "stop", "length")
        with pytest.raises(FinishConflict):
            stream("a", Finish("stop"), chunk(None, 0, "length"))


def test_a_stream_has_a_random_id_and_the_time_unless_they_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1234.9)
    first, second = (json.loads(OpenAI().encoder().text("a")) for _ in range(2))
    assert first["created"] == 1234
    assert first["model"] == ""
    assert first["id"] != second["id"]
    assert first["id"].startswith("chatcmpl-")
    assert len(first["id"]) == 33


def test_an_error_event_is_a_failure_whatever_its_data() -> None:
    for data in ('{"message":"boom"}', "boom"):
        encoder = FramedEncoder(OpenAI(model="m"), sid=SID)
        with pytest.raises(SourceFailed, match="upstream_error: boom"):
            encoder.item(Event(data, event="error"))


def test_more_choices_than_are_kept_fail_the_stream() -> None:
    encoder = FramedEncoder(OpenAI(model="m"), sid=SID)
    with pytest.raises(SourceFailed, match="upstream_format: more than 1024 choices"):
        encoder.item({"choices": [chunk("a", index)["choices"][0] for index in range(1025)]})


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_what_is_no_json_is_refused_in_an_event(constant: str) -> None:
    encoder = FramedEncoder(OpenAI(model="m"), sid=SID)
    with pytest.raises(UnsupportedItem):
        encoder.item(Event('{"choices":[],"usage":{"cost":' + constant + "}}"))
