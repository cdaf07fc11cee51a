"""`raw`: a provider's own events pass to the byte, and the end is the rule's, never a lie's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamguard.core.dialect import Raw, dialect_named
from streamguard.core.dialect.raw import RawEncoder
from streamguard.core.errors import (
    Failure,
    FieldRefused,
    ItemTooLarge,
    LocalProtocolError,
    UnsupportedItem,
    failure_from,
)
from streamguard.core.flush import Immediate
from streamguard.core.framing import FramedEncoder
from streamguard.core.guard import CompletionGuard
from streamguard.core.items import Block, Ending, Event, Item
from streamguard.core.pipeline import Pipeline
from streamguard.core.receipt import Verdict
from streamguard.core.wire import Binary, Sse, SseDecoder, wire_named
from tests.core.wire.streams import FAILURE, OTHER_SID, SID, Answer, chat_events, read, written

DIED = Failure("unproven_end", "the provider's stream ended without its end marker", retryable=True)


def through(
    *items: Item,
    fail: Failure | None = None,
    status: str = "failed",
    negotiated: bool = False,
    wire: Any = None,
    **rule: Any,
) -> tuple[list[tuple[str, str]], Answer]:
    """What any client is given, and what ours makes of it."""
    wire = wire or Sse()
    parts = written(items, Raw(**rule), wire, fail=fail, status=status, negotiated=negotiated)
    events = SseDecoder().feed(b"".join(parts)) if wire.name == "sse" else []
    return [(event.event, event.data) for event in events], read(parts, dialect=Raw(**rule), wire=wire)


def chunk(text: str) -> str:
    return json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]})


STOP = json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})


class TestPayload:
    @pytest.mark.parametrize("fields", [{"event": "token", "data": "hello"}, {"data": "x", "id": "1", "retry": 5}])
    def test_an_event_s_fields_are_not_sent_as_json_once_more(self, fields: dict[str, Any]) -> None:
        with pytest.raises(UnsupportedItem, match=r"a mapping of an event's fields.*: yield Event\('hello', 'token'\)"):
            through(fields, end="asgi")

    def test_a_payload_that_only_looks_like_fields_passes(self) -> None:
        items: list[Any] = [{"event": "token", "text": "x"}, {"data": 1, "choices": []}]
        events, _ = through(*items, end="asgi")
        assert [json.loads(data) for _, data in events[:2]] == items

    def test_events_mappings_and_pieces_of_a_stream_are_the_same(self) -> None:
        mapping = {"choices": [{"index": 0, "delta": {"content": "é"}}]}
        text = json.dumps(mapping, ensure_ascii=False, separators=(",", ":"))
        wire = f"data: {text}\n\n"
        expected = [("message", text), ("message", STOP), ("message", "[DONE]")]
        end = (Event(STOP), Event("[DONE]"))
        for items in (
            (mapping, *end),
            (Event(text), *end),
            (wire, *end),
            (wire.encode()[:40], wire.encode()[40:], *end),
            (wire[:9], wire[9:], *end),
        ):
            events, answer = through(*items)
            assert events == expected
            assert (answer.verdict, answer.text, answer.receipt.finish_reason) == (Verdict.COMPLETE, "é", "stop")

    def test_names_lines_and_own_ids_stay(self) -> None:
        source = b"id: 17\nevent: token\ndata: a\ndata: \ndata: b\n\n: comment\n\nid\ndata: c\n\n"
        parts = written([source], Raw(end="asgi"), Sse(ids="id"))
        events = SseDecoder().feed(b"".join(parts))
        assert [(event.id, event.event, event.data) for event in events] == [
            ("17", "token", "a\n\nb"),
            ("", "message", "c"),
        ]
        assert read(parts, dialect=Raw(end="asgi")).verdict is Verdict.COMPLETE
        assert b"comment" not in b"".join(parts)

    @pytest.mark.parametrize("name", ["message", "", None])
    @pytest.mark.parametrize("wire", ["sse", "ndjson", "binary"])
    def test_an_event_by_the_name_of_no_name_is_unnamed(self, name: str | None, wire: str) -> None:
        parts = written([Event("x", name)], Raw(end="asgi"), wire_named(wire))
        answer = read(parts, wire=wire, dialect=Raw(end="asgi"))
        assert (answer.verdict, answer.frames[0].name) == (Verdict.COMPLETE, None)

    def test_the_cursors_of_a_guarded_source_are_not_relayed(self) -> None:
        (event,) = SseDecoder().feed(
            b"".join(written([Event("x", id=f"{OTHER_SID}.1.7.0000abcd")], Raw(end="asgi"), Sse()))
        )
        assert event.id is None

    def test_surrogates_in_data_become_whole(self) -> None:
        assert through(Event("\ud83d\ude00\ud800"), end="asgi")[0] == [("message", "😀\ufffd")]


class TestRefusals:
    @pytest.mark.parametrize(
        ("event", "field"),
        [
            (Event("x", id="a\nb"), "id"),
            (Event("x", id="a\rb"), "id"),
            (Event("x", id="a\0b"), "id"),
            (Event("x", "a\nb"), "event"),
            (Event("x", "a\0b"), "event"),
            (Event("a\rb"), "data"),
            (Event("a\0b"), "data"),
        ],
    )
    @pytest.mark.parametrize("end", ["asgi", "every"])
    def test_no_field_can_begin_another_and_the_stream_can_still_fail(self, event: Event, field: str, end: str) -> None:
        rule: Any = "asgi" if end == "asgi" else (lambda event: event.event is not None or "\r" in event.data)
        pipeline = Pipeline(Immediate(), FramedEncoder(Raw(end=rule), sid=SID), CompletionGuard(Sse()))
        data = pipeline.open() + pipeline.push(Event("before"), 0.0)
        with pytest.raises(FieldRefused) as caught:
            pipeline.push(event, 0.0)
        assert caught.value.field == field
        data += pipeline.fail(FAILURE, 0.0)
        assert read(data, dialect=Raw(end=rule)).verdict is Verdict.FAILED

    def test_a_name_that_one_carrier_cannot_write_is_refused_in_all(self) -> None:
        assert through(Event("x", "n" * 255), end="asgi", wire=Binary())[1].verdict is Verdict.COMPLETE
        with pytest.raises(UnsupportedItem, match=r"an event name of 256 bytes.*255 fit"):
            through(Event("x", "é" * 128), end="asgi")

    def test_what_is_no_event_is_refused(self) -> None:
        with pytest.raises(UnsupportedItem, match="'raw' cannot carry: yield the provider's own event for it"):
            through(Block("image"))
        with pytest.raises(UnsupportedItem, match="yield events"):
            Raw().encoder().text("x")

    def test_a_rule_or_profile_that_does_not_exist_is_refused_at_once(self) -> None:
        with pytest.raises(ValueError, match="unknown end rule 'done': provider, known, asgi, endless, or a function"):
            Raw(end="done")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="unknown profile"):
            Raw(profile="x")


class TestProvidersRule:
    def test_the_marker_is_the_terminal_and_nothing_is_added(self) -> None:
        events, answer = through(chat_events())
        assert [data for _, data in events][-1] == "[DONE]"
        assert len(events) == 4
        assert (answer.verdict, answer.text) == (Verdict.COMPLETE, "Hello")
        assert (answer.receipt.finish_reason, answer.receipt.usage) == ("stop", {"n": 2})

    def test_nothing_leaves_as_the_end_before_the_source_returns(self) -> None:
        parts = written([Event(STOP), Event("[DONE]")], Raw(), Sse())
        assert b"[DONE]" not in b"".join(parts[:-1])

    @pytest.mark.parametrize(
        ("items", "message"),
        [
            ((chat_events(done=False),), DIED.message),
            ((chat_events(reason=None),), "the end marker came without any finish reason"),
        ],
    )
    def test_an_end_that_proves_nothing_is_not_passed_on(self, items: Any, message: str) -> None:
        events, answer = through(*items)
        failure = {"code": "unproven_end", "message": message, "type": "failed", "param": None}
        assert json.loads(events[-1][1]) == {"error": failure}
        assert "[DONE]" not in [data for _, data in events]
        assert (answer.verdict, answer.code) == (Verdict.FAILED, "unproven_end")

    def test_events_after_the_marker_fail_the_stream_and_are_delivered_without_it(self) -> None:
        events, answer = through(Event(STOP), Event("[DONE]"), Event(chunk("late")))
        assert [data for _, data in events][:2] == [STOP, chunk("late")]
        assert json.loads(events[-1][1])["error"]["message"] == "events followed the provider's end marker"
        assert answer.verdict is Verdict.FAILED

    @pytest.mark.parametrize("rest", ['{"stats": 1}', "[DONE]", '{"error": "died"}'])
    def test_a_marker_that_proved_nothing_is_not_passed_on_whatever_follows(self, rest: str) -> None:
        """An SDK stops at it, satisfied, and sees nothing of what comes behind."""
        events, answer = through(Event(chunk("a")), Event("[DONE]"), Event(rest))
        assert "[DONE]" not in [data for _, data in events]
        assert answer.verdict is Verdict.FAILED

    def test_a_marker_after_an_error_is_a_lie_and_the_error_stays_the_end(self) -> None:
        error = '{"error": {"message": "died", "code": 500}}'
        events, answer = through(Event(chunk("a")), Event(error), Event("[DONE]"))
        assert events == [("message", chunk("a")), ("message", error)]
        assert (answer.verdict, answer.code, answer.receipt.failure) == (Verdict.FAILED, "500", Failure("500", "died"))

    def test_an_error_in_mid_stream_is_passed_on_and_fails_the_stream(self) -> None:
        error = '{"error": "died"}'
        events, answer = through(Event(error), Event(chunk("a")), Event(STOP), Event("[DONE]"))
        assert [data for _, data in events[:3]] == [error, chunk("a"), STOP]
        assert json.loads(events[3][1])["error"]["message"] == "died"
        assert answer.verdict is Verdict.FAILED

    def test_transformers_ends_without_a_marker(self) -> None:
        for negotiated in (False, True):
            events, answer = through(Event(chunk("a")), Event(STOP), profile="transformers", negotiated=negotiated)
            assert events[:2] == [("message", chunk("a")), ("message", STOP)]
            assert len(events) == 2 + negotiated
            assert (answer.verdict, answer.receipt.finish_reason) == (Verdict.COMPLETE, "stop")


class TestFailureForms:
    ERROR = {"code": "source_error", "message": "RuntimeError", "type": "failed", "param": None}  # noqa: RUF012

    @pytest.mark.parametrize("payload", [chunk("a"), '{"object":"text_completion","choices":[{"index":0,"text":"a"}]}'])
    def test_chat_and_completions(self, payload: str) -> None:
        events, answer = through(Event(payload), fail=FAILURE)
        assert [(name, json.loads(data)) for name, data in events[1:]] == [("message", {"error": self.ERROR})]
        assert answer.verdict is Verdict.FAILED

    def test_anthropic(self) -> None:
        events, answer = through(Event('{"type":"message_start"}', "message_start"), fail=FAILURE)
        assert [(name, json.loads(data)) for name, data in events[1:]] == [
            ("error", {"type": "error", "error": {**self.ERROR, "type": "api_error"}})
        ]
        assert answer.verdict is Verdict.FAILED

    def test_responses_get_a_failed_response_and_an_error(self) -> None:
        created = {"type": "response.created", "response": {"id": "r", "status": "queued"}, "sequence_number": 4}
        events, answer = through(Event(json.dumps(created), "response.created"), fail=FAILURE)
        response = {"id": "r", "status": "failed", "error": self.ERROR}
        assert [(name, json.loads(data)) for name, data in events[1:]] == [
            ("response.failed", {"type": "response.failed", "sequence_number": 5, "response": response}),
            ("error", {**self.ERROR, "type": "error", "sequence_number": 6, "error": self.ERROR}),
        ]
        assert answer.verdict is Verdict.FAILED

    def test_a_response_that_failed_by_itself_is_left_as_it_is(self) -> None:
        failed = '{"type":"response.failed","response":{"error":{"code":"x","message":"m"}}}'
        events, answer = through(Event(failed, "response.failed"))
        assert events == [("response.failed", failed)]
        assert (answer.verdict, answer.code) == (Verdict.FAILED, "x")

    def test_of_an_error_in_mid_response_the_failed_response_is_still_told(self) -> None:
        error = '{"type":"error","message":"m"}'
        delta = '{"type":"response.output_text.delta","delta":"a"}'
        events, _ = through(Event(delta), Event(error), Event(delta))
        assert [name for name, _ in events] == ["message", "message", "message", "response.failed", "error"]

    @pytest.mark.parametrize("dialect", ["raw", "openai-responses", "anthropic"])
    def test_a_response_that_no_json_can_hold_fails_all_the_same(self, dialect: str) -> None:
        created = Event('{"type":"response.created","response":{"x":NaN}}', "response.created")
        answer = read(written([created], dialect_named(dialect), Sse()), dialect=dialect)
        assert (answer.verdict, answer.receipt.failure and answer.receipt.failure.code) == (Verdict.FAILED, DIED.code)
        assert b'"type":"response.failed"' in answer.frames[-1].raw

    def test_a_response_whose_end_came_and_whose_source_raised_fails(self) -> None:
        done = '{"type":"response.completed","response":{"id":"r","status":"completed"}}'
        events, answer = through(Event(done, "response.completed"), fail=FAILURE)
        assert [name for name, _ in events] == ["response.failed", "error"]
        assert answer.verdict is Verdict.FAILED

    def test_of_an_unknown_api_the_error_has_a_name(self) -> None:
        events, answer = through(Event('{"a":1}'), fail=FAILURE, status="stalled")
        assert [(name, json.loads(data)) for name, data in events[1:]] == [
            ("error", {"error": {**self.ERROR, "type": "stalled"}})
        ]
        assert (answer.verdict, answer.receipt.status) == (Verdict.FAILED, "stalled")

    def test_without_a_failure_the_status_is_the_code(self) -> None:
        encoder = FramedEncoder(Raw(), sid=SID)
        encoder.ending.status = "cancelled"
        terminal = encoder.dialect.terminal(encoder.ending, 0, 0)
        assert json.loads(terminal.data)["error"] == {
            "code": "cancelled", "message": "the stream ended as cancelled", "type": "cancelled", "param": None,
        }  # fmt: skip


class TestOtherRules:
    @pytest.mark.parametrize("rule", ["asgi", "endless"])
    def test_the_sources_return_is_the_end_and_a_marker_an_event(self, rule: Any) -> None:
        events, answer = through(Event("a"), Event("[DONE]"), Event("b"), Event("[DONE]"), end=rule)
        assert [data for _, data in events] == ["a", "[DONE]", "b", "[DONE]"]
        assert answer.verdict is Verdict.COMPLETE

    def test_the_terminal_is_a_comment_or_for_those_who_negotiated_an_event(self) -> None:
        assert written([Event("a")], Raw(end="asgi"), Sse())[-1].startswith(f": end {SID}.2.1.".encode())
        name, data = through(Event("a"), end="asgi", negotiated=True)[0][-1]
        assert (name, json.loads(data)) == (
            "end",
            {
                "status": "complete",
                "finish_reason": None,
                "frames": 1,
                "bytes": 1,
                "items": 1,
                "usage": None,
                "error": None,
            },
        )

    def test_an_error_is_a_failure_and_the_last_thing_told(self) -> None:
        events, answer = through(Event("a"), Event("died", "error"), Event("[DONE]"), end="asgi")
        assert events == [("message", "a"), ("error", "died")]
        assert answer.verdict is Verdict.FAILED

    def test_a_marker_is_not_passed_on_when_the_source_raises(self) -> None:
        events, _ = through(Event("a"), Event("[DONE]"), fail=FAILURE, end="asgi")
        assert [name for name, _ in events] == ["message", "error"]

    @pytest.mark.parametrize("events", [["a"], ["end", "a"], ["[DONE]"], []])
    def test_by_a_function_no_other_end_will_do(self, events: list[str]) -> None:
        _, answer = through(*[Event(data) for data in events], end=lambda event: event.data == "end")
        assert (answer.verdict, answer.receipt.failure) == (
            Verdict.FAILED,
            Failure("unproven_end", "the stream ended without its end marker"),
        )

    def test_by_a_function_its_event_is_the_terminal_whatever_its_name(self) -> None:
        for name in (None, "end", "message"):
            events, answer = through(
                Event("a"), Event("[DONE]"), Event('{"n":1}', name), end=lambda e: e.data == '{"n":1}'
            )
            assert [data for _, data in events] == ["a", "[DONE]", '{"n":1}']
            assert answer.verdict is Verdict.COMPLETE

    def test_by_a_function_an_error_is_a_failure_all_the_same(self) -> None:
        events, answer = through(Event("a"), Event('{"error":"died"}'), end=lambda event: "error" in event.data)
        assert [data for _, data in events] == ["a", '{"error":"died"}']
        assert (answer.verdict, answer.receipt.failure) == (Verdict.FAILED, Failure("upstream_error", "died"))

    def test_strangers_events_of_any_shape_pass(self) -> None:
        odd = ['{"choices":["a"]}', '{"choices":[{"index":[]}],"usage":7}', '{"type":["message_stop"]}', "[[", "null"]
        events, answer = through(*[Event(data) for data in odd], end="asgi")
        assert [data for _, data in events] == odd
        assert answer.verdict is Verdict.COMPLETE


def test_a_source_that_is_cut_in_an_event_ends_without_half_of_it() -> None:
    events, answer = through(chat_events()[:-9], b"data: [DO", end="provider")
    assert "[DO" not in str(events)
    assert answer.verdict is Verdict.FAILED


def test_what_comes_too_large_is_an_error_of_the_source() -> None:
    pipeline = Pipeline(Immediate(), FramedEncoder(Raw(), sid=SID, max_block=100), CompletionGuard(Sse()))
    pipeline.open()
    with pytest.raises(LocalProtocolError):
        pipeline.push(Event("x" * 101), 0.0)


def test_an_event_of_a_serialised_stream_above_the_readers_limit_fails_by_a_code_of_the_sources() -> None:
    encoder = RawEncoder("asgi", "openai", negotiated=False)
    encoder._decoder = SseDecoder(max_frame=100)
    with pytest.raises(ItemTooLarge) as raised:
        encoder.wire(b"data: " + b"x" * 100_000, Ending())
    assert failure_from(raised.value).code == "item_too_large"
    assert str(raised.value).endswith("above the limit of 100; no reader takes more at once: send a reference to it")


def test_items_of_a_serialised_stream_are_its_events() -> None:
    encoder = FramedEncoder(Raw(), sid=SID)
    encoder.wire(chat_events()[:20])
    assert encoder.ending.items == 0
    encoder.wire(chat_events()[20:])
    assert encoder.ending.items == 4


UNFINISHED = (
    "the source ended inside an event: `raw` takes whole server-sent events, each up to its blank line; "
    "for text choose native or openai"
)


@pytest.mark.parametrize("rule", [{"end": "asgi"}, {"end": "endless"}, {"profile": "transformers"}, {}])
@pytest.mark.parametrize("rest", ["data: tw", "data: two\n", "data: two\ndata: three\n", "event: x\ndata: y", "dat"])
def test_an_event_without_its_end_fails_the_stream_under_any_rule(rule: dict[str, Any], rest: str) -> None:
    events = f"data: {chunk('one')}\n\ndata: {STOP}\n\n"
    end = "" if rule else "data: [DONE]\n\n"
    _, answer = through(events + end + rest, **rule)
    assert answer.verdict is Verdict.FAILED
    assert answer.receipt.failure == Failure("unproven_end", UNFINISHED)  # the provider's form has no more


def test_text_that_is_no_event_is_not_dropped_in_silence() -> None:
    _, answer = through("plain text", end="asgi")
    assert answer.verdict is Verdict.FAILED
    assert answer.receipt.failure == Failure("unproven_end", UNFINISHED)


def test_a_comment_without_its_end_is_no_event() -> None:
    _, answer = through(f"data: {chunk('one')}\n\n: pi", end="asgi")
    assert answer.verdict is Verdict.COMPLETE


def test_an_end_marker_without_data_keeps_its_name() -> None:
    events, answer = through({"a": 1}, Event("", event="done"), end=lambda event: event.event == "done")
    assert events == [("message", '{"a":1}'), ("done", "")]
    assert answer.verdict is Verdict.COMPLETE


def test_an_event_that_cannot_be_sent_takes_none_before_it_along() -> None:
    encoder = FramedEncoder(Raw(end="asgi"), sid=SID)
    pipeline = Pipeline(Immediate(), encoder, CompletionGuard(Sse()))
    out = pipeline.open()
    with pytest.raises(FieldRefused) as raised:
        pipeline.push(b"data: 1\n\ndata: 2\n\ndata: a\0b\n\n", 0.0)
    out += pipeline.fail(failure_from(raised.value), 0.0)
    assert [event.data for event in SseDecoder().feed(out)][:2] == ["1", "2"]
    assert pipeline.status == "failed"


@pytest.mark.parametrize("end", ["asgi", "endless"])
def test_where_the_marker_is_an_event_like_any_other_what_has_no_data_behind_it_is_one_too(end: Any) -> None:
    events, answer = through("data: [DONE]\n\n", "event: bye\ndata:\n\ndata:\n\n", end=end)
    assert events == [("message", "[DONE]"), ("bye", ""), ("message", "")]
    assert answer.verdict is Verdict.COMPLETE


def test_a_sign_of_life_after_the_marker_is_no_event() -> None:
    events, answer = through(f"data: {chunk('one')}\n\ndata: {STOP}\n\ndata: [DONE]\n\ndata:\n\n")
    assert events == [("message", chunk("one")), ("message", STOP), ("message", "[DONE]")]
    assert answer.verdict is Verdict.COMPLETE


@pytest.mark.parametrize(
    ("end", "pieces", "told"),
    [
        ("provider", ["data: 1\n\n"], (True, False)),
        ("known", ["data: 1\n\n"], (False, False)),
        ("known", [f"data: {STOP}\n\n"], (True, False)),
        ("known", ["data: 1\n\n", "data: [DONE]\n\n"], (True, True)),
        ("asgi", ["data: [DONE]\n\n"], (False, False)),
        (lambda event: event.data == "1", ["data: 1\n\n"], (True, True)),
        (lambda event: event.data == "1", ["data: 1\n\n", "data: 2\n\n"], (True, False)),
    ],
)
def test_it_says_whether_a_marker_must_come_and_whether_it_came(end: Any, pieces: list[str], told: Any) -> None:
    encoder = Raw(end).encoder()
    for piece in pieces:
        encoder.wire(piece.encode(), Ending())
    assert (encoder.asks_marker, encoder.marked) == told


@pytest.mark.parametrize(
    ("pieces", "end", "free"),
    [
        (["data: hello\n\n", "data: [DONE]\n\n"], "known", True),
        ([f"data: {STOP}\n\n", "data: [DONE]\n\n"], "known", False),
        ([f"data: {STOP}\n\n"], "asgi", True),
        (["data: hello\n\n"], "endless", True),
        (["data: hello\n\n"], "provider", False),
        (["data: hello\n\n"], lambda event: True, False),
    ],
)
def test_it_says_whether_the_source_s_own_end_would_have_done(pieces: list[str], end: Any, free: bool) -> None:
    """A marker behind events of nobody's API is one, and the stream would have passed for whole without it."""
    encoder = Raw(end).encoder()
    for piece in pieces:
        encoder.wire(piece.encode(), Ending())
    assert encoder.ends_freely is free
