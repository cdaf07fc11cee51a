"""What a provider's events say, and how they end: the forms in use, and the lies."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from streamguard.core.dialect.provider import PROFILES, ProviderReader, ProviderStream, settled
from streamguard.core.errors import Failure
from streamguard.core.items import Event
from streamguard.core.receipt import AnswerFrame

UNPROVEN = "unproven_end"


def chunk(text: str | None = None, reason: str | None = None, index: Any = 0, **fields: Any) -> dict[str, Any]:
    delta = {} if text is None else {"content": text}
    return {"id": "c", "choices": [{"index": index, "delta": delta, "finish_reason": reason}], **fields}


def completion(text: str, reason: str | None = None) -> dict[str, Any]:
    return {"object": "text_completion", "choices": [{"index": 0, "text": text, "finish_reason": reason}]}


def observed(*events: Any, profile: str = "openai") -> tuple[ProviderStream, list[str], str]:
    """Each event is a payload, a `str` of data, or a pair of name and either."""
    stream = ProviderStream(profile)
    kinds, text = [], ""
    for event in events:
        name, payload = event if isinstance(event, tuple) else (None, event)
        seen, reading = stream.observe(name, payload if isinstance(payload, str) else json.dumps(payload))
        kinds.append(seen)
        text += reading.text
    return stream, kinds, text


def code(stream: ProviderStream) -> str | None:
    failure = stream.judge()
    return failure.code if failure else None


class TestChat:
    def test_the_marker_and_the_reason_prove_the_end(self) -> None:
        stream, kinds, text = observed(chunk("He"), chunk("llo"), chunk(None, "stop", usage={"n": 2}), "[DONE]")
        assert (stream.api, kinds, text) == ("chat", ["event", "event", "event", "marker"], "Hello")
        assert (stream.reasons, stream.usage, stream.proved_by, code(stream)) == (
            {0: "stop"}, {"n": 2}, "marker+reason", None,
        )  # fmt: skip

    def test_the_finish_chunk_may_carry_the_last_text_and_usage_may_follow_the_reason(self) -> None:
        stream, _, text = observed(chunk("a"), chunk("b", "length"), {"choices": [], "usage": {"n": 1}}, "[DONE]")
        assert (text, stream.reasons, stream.usage, code(stream)) == ("ab", {0: "length"}, {"n": 1}, None)

    def test_choices_interleave_and_each_has_its_text_and_reason(self) -> None:
        stream = ProviderStream()
        texts: dict[int, str] = {}
        for payload in (chunk("a"), chunk("x", index=1), chunk("b"), chunk("y", "length", 1), chunk("c", "stop")):
            for choice, text in (stream.observe(None, json.dumps(payload))[1].texts or {}).items():
                texts[choice] = texts.get(choice, "") + text
        assert (texts, stream.begun, stream.reasons) == ({0: "abc", 1: "xy"}, {0, 1}, {0: "stop", 1: "length"})

    def test_two_entries_of_one_choice_in_a_chunk_lose_no_text(self) -> None:
        both = {"choices": [chunk("a")["choices"][0], chunk("b")["choices"][0]]}
        assert observed(both)[2] == "ab"

    @pytest.mark.parametrize("marker", ["[DONE]", " [DONE] ", "[DONE]\n"])
    def test_a_marker_without_any_reason_is_unproven(self, marker: str) -> None:
        stream, kinds, _ = observed(chunk("a"), marker)
        assert (kinds, stream.proved_by) == (["event", "marker"], "marker")
        assert stream.judge() == Failure(UNPROVEN, "the end marker came without any finish reason", retryable=True)

    @pytest.mark.parametrize("lookalike", ['"[DONE]"', "[DONE] x", "[done]", '["DONE"]', " " * 10 + "[DONE]"])
    def test_nothing_else_is_the_marker(self, lookalike: str) -> None:
        stream, _, _ = observed(chunk("a", "stop"), lookalike)
        assert not stream.ended
        assert stream.proved_by is None

    def test_no_marker_is_no_end(self) -> None:
        stream, _, _ = observed(chunk("a"), chunk("b", "stop"))
        assert stream.proved_by is None
        assert stream.judge() == Failure(UNPROVEN, "the provider's stream ended without its end marker", retryable=True)

    @pytest.mark.parametrize("later", [chunk("b"), "[DONE]", "x"])
    def test_events_after_the_marker_unprove_it(self, later: Any) -> None:
        stream, _, _ = observed(chunk("a"), chunk("b"), chunk("c", "stop"), "[DONE]", later)
        assert stream.overrun
        assert stream.judge() == Failure(UNPROVEN, "events followed the provider's end marker")

    @pytest.mark.parametrize("reason", ["abort", "error"])
    def test_an_aborted_generation_is_a_failure_whatever_follows(self, reason: str) -> None:
        stream, _, _ = observed(chunk("a", reason), "[DONE]")
        assert stream.judge() == Failure("generation_aborted", "the engine aborted the generation", retryable=True)

    @pytest.mark.parametrize("before", [[], ["", ""]])
    def test_a_marker_alone_proves_nothing(self, before: list[str]) -> None:
        stream, _, _ = observed(*before, "[DONE]")
        assert stream.proved_by == "marker"
        assert stream.judge() == Failure(UNPROVEN, "the end marker came without any part of an answer", retryable=True)

    def test_a_marker_behind_events_of_no_known_api_is_their_end_unless_a_provider_was_asked(self) -> None:
        assert code(observed({"token": "a"}, "[DONE]")[0]) is None
        for asked in (True, False):
            reader = ProviderReader(asked=asked)
            for data in ('{"token":"a"}', "[DONE]"):
                reader.read(None, data)
            assert (reader.judge() is None) is not asked

    def test_text_that_is_no_string_and_reasons_that_are_none_are_passed_over(self) -> None:
        odd = [
            {"choices": [{"delta": {"content": ["a"]}}]},
            {"choices": [{"delta": {"content": None}, "finish_reason": None}]},
            {"choices": [{"delta": None}]},
            {"choices": [{"delta": "a"}]},
            {"choices": ["a", None, {}]},
            {"choices": [{"index": "7", "delta": {"content": "t"}}], "usage": [1]},
        ]
        stream, kinds, text = observed(*odd)
        assert (kinds, text, stream.begun, stream.usage) == (["event"] * 6, "t", {0}, None)

    def test_a_choice_may_be_named_by_no_index(self) -> None:
        stream, _, text = observed(chunk("a", index=None), chunk(None, "stop", index=None))
        assert (text, stream.begun, stream.reasons) == ("a", {0}, {0: "stop"})


    def test_more_choices_than_any_server_makes_are_a_failure(self) -> None:
        many = [choice for index in range(1024) for choice in chunk("a", "stop", index)["choices"]]
        stream, kinds, _ = observed({"choices": many}, "[DONE]")
        assert (kinds, len(stream.reasons), code(stream)) == (["event", "marker"], 1024, None)
        stream, kinds, _ = observed({"choices": many}, chunk("a", "stop", 1024), chunk("a", "stop", 1025), "[DONE]")
        assert (kinds[-1], len(stream.begun), len(stream.reasons), code(stream)) == (
            "marker", 1024, 1024, "upstream_format",
        )  # fmt: skip

    def test_a_list_that_is_a_strangers_may_be_as_long_as_it_likes(self) -> None:
        stream, _, _ = observed({"choices": [{"index": index} for index in range(2000)]})
        assert (stream.sure, len(stream.begun), stream.error) == (False, 1024, None)

    def test_a_reason_that_changes_is_noted_and_one_told_again_is_not(self) -> None:
        stream, noted = ProviderStream(), []
        for reason in ("abort", "abort", "stop", "abort"):
            stream.observe_payload(chunk("a", reason))
            noted.append(stream.noted())
        assert [before == after for before, after in itertools.pairwise(noted)] == [True, False, False]


class TestProfiles:
    def test_transformers_ends_with_a_reason_for_every_choice(self) -> None:
        stream, _, _ = observed(chunk("a"), chunk("b", index=1), chunk(None, "stop"), profile="transformers")
        assert (stream.proved_by, code(stream)) == (None, UNPROVEN)
        stream.observe(None, json.dumps(chunk(None, "length", 1)))
        assert (stream.proved_by, code(stream)) == ("framing", None)

    def test_transformers_with_a_marker_is_proved_by_both(self) -> None:
        stream, _, _ = observed(chunk("a", "stop"), "[DONE]", profile="transformers")
        assert (stream.proved_by, code(stream)) == ("marker+reason", None)

    def test_no_choice_is_no_end(self) -> None:
        stream, _, _ = observed({"choices": []}, profile="transformers")
        assert (stream.proved_by, code(stream)) == (None, UNPROVEN)

    def test_a_profile_whose_server_gives_no_reasons_is_complete_without(self, monkeypatch: pytest.MonkeyPatch) -> None:
        kind = type(PROFILES["openai"])
        monkeypatch.setattr("streamguard.core.dialect.provider.PROFILES", {"quiet": kind(reasons=False)})
        stream, _, _ = observed(chunk("a"), "[DONE]", profile="quiet")
        assert (stream.proved_by, code(stream)) == ("marker", None)

    def test_an_unknown_profile_is_refused_with_the_known_ones(self) -> None:
        with pytest.raises(ValueError, match="unknown profile 'x'; known: openai, vllm,"):
            ProviderStream("x")


class TestCompletions:
    def test_text_and_end(self) -> None:
        stream, _, text = observed(completion("a"), completion("b"), completion("c", "length"), "[DONE]")
        assert (stream.api, text, stream.proved_by, code(stream)) == ("completions", "abc", "marker+reason", None)

    def test_without_a_reason_the_end_is_unproven(self) -> None:
        assert code(observed(completion("a"), "[DONE]")[0]) == UNPROVEN


class TestResponses:
    DELTA = ("response.output_text.delta", {"type": "response.output_text.delta", "delta": "He", "sequence_number": 4})

    @pytest.mark.parametrize("status", ["completed", "incomplete"])
    def test_text_and_end(self, status: str) -> None:
        response = {"id": "r", "status": status, "usage": {"n": 3}}
        end = {"type": f"response.{status}", "response": response, "sequence_number": 9}
        stream, kinds, text = observed(self.DELTA, (None, end))
        assert (stream.api, kinds, text) == ("responses", ["event", "marker"], "He")
        assert (stream.reasons, stream.usage, stream.sequence) == ({0: status}, {"n": 3}, 9)
        assert (stream.response, stream.proved_by, code(stream)) == (response, "marker+reason", None)

    def test_an_end_without_a_response_takes_its_status_from_its_type(self) -> None:
        stream, _, _ = observed({"type": "response.incomplete", "response": None, "sequence_number": "x"})
        assert (stream.reasons, stream.response, stream.sequence, stream.usage) == ({0: "incomplete"}, {}, -1, None)

    @pytest.mark.parametrize(
        ("response", "failure"),
        [
            ({"status": "failed"}, Failure(UNPROVEN, "the response ended as failed")),
            ({"status": "cancelled"}, Failure(UNPROVEN, "the response ended as cancelled")),
            ({"status": "completed", "error": {"code": "c", "message": "m"}}, Failure("c", "m")),
        ],
    )
    def test_the_end_of_a_response_that_failed_is_a_failure(self, response: Any, failure: Failure) -> None:
        stream, kinds, _ = observed(self.DELTA, {"type": "response.completed", "response": response})
        assert (kinds[-1], stream.judge()) == ("marker", failure)

    def test_some_servers_say_incomplete_within_completed(self) -> None:
        stream, _, _ = observed({"type": "response.completed", "response": {"status": "incomplete", "error": None}})
        assert (stream.reasons, code(stream)) == ({0: "incomplete"}, None)

    def test_only_output_text_is_text(self) -> None:
        for kind, delta in (("response.reasoning.delta", "x"), ("response.output_text.delta", {"a": 1})):
            assert observed({"type": kind, "delta": delta})[2] == ""

    def test_a_failed_response_is_an_error(self) -> None:
        error = {"code": "server_error", "message": "died"}
        stream, kinds, _ = observed(self.DELTA, {"type": "response.failed", "response": {"error": error}})
        assert (kinds[-1], stream.error, stream.api) == ("error", Failure("server_error", "died"), "responses")
        stream, _, _ = observed({"type": "response.failed", "response": {"error": None}})
        assert stream.error == Failure("upstream_error", "the response failed")


class TestAnthropic:
    def test_text_and_end(self) -> None:
        stream, kinds, text = observed(
            ("message_start", {"type": "message_start", "message": {}}),
            ("content_block_delta", {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "He"}}),
            (
                "content_block_delta",
                {"type": "content_block_delta", "delta": {"type": "input_json_delta", "text": "x"}},
            ),
            ("content_block_delta", {"type": "content_block_delta", "delta": {"type": "text_delta", "text": 7}}),
            ("content_block_stop", {"type": "content_block_stop"}),
            ("message_delta", {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"n": 1}}),
            ("message_delta", {"type": "message_delta", "delta": {"stop_reason": None}}),
            ("message_delta", {"type": "message_delta", "delta": None}),
            ("message_stop", {"type": "message_stop"}),
        )
        assert (stream.api, kinds[-1], text) == ("anthropic", "marker", "He")
        assert (stream.reasons, stream.usage) == ({0: "end_turn"}, {"n": 1})
        assert (stream.proved_by, code(stream)) == ("marker+reason", None)

    def test_without_its_stop_it_has_no_end(self) -> None:
        stream, _, _ = observed({"type": "message_delta", "delta": {"stop_reason": "end_turn"}})
        assert (stream.proved_by, code(stream)) == (None, UNPROVEN)

    def test_its_stop_without_a_reason_is_unproven(self) -> None:
        stream, _, _ = observed({"type": "message_start", "message": {}}, {"type": "message_stop"})
        assert (stream.proved_by, code(stream)) == ("marker", UNPROVEN)

    def test_its_error_is_one(self) -> None:
        error = {"type": "overloaded_error", "message": "busy"}
        stream, kinds, _ = observed(("error", {"type": "error", "error": error}))
        assert (kinds, stream.error) == (["error"], Failure("overloaded_error", "busy"))


class TestErrors:
    @pytest.mark.parametrize(
        ("event", "failure"),
        [
            (("error", {"message": "died", "code": 500}), Failure("500", "died")),
            (("error", {"choices": [], "message": "died"}), Failure("upstream_error", "died")),
            (("error", "boom"), Failure("upstream_error", "boom")),
            (("error", '"boom"'), Failure("upstream_error", "boom")),
            (("error", "[1]"), Failure("upstream_error", "[1]")),
            ((None, {"error": {"message": "died", "type": "server_error"}}), Failure("server_error", "died")),
            ((None, {"error": {"code": "x"}}), Failure("x", "the provider sent an error")),
            ((None, {"error": {"code": {"prompt": "my diary"}, "message": "m"}}), Failure("upstream_error", "m")),
            ((None, {"error": {"code": "a\nforged line", "type": "t", "message": "m"}}), Failure("t", "m")),
            ((None, {"error": "overloaded"}), Failure("upstream_error", "overloaded")),
            ((None, chunk("a", error={"message": "died"})), Failure("upstream_error", "died")),
            ((None, {"type": "error", "code": "c", "message": "m"}), Failure("c", "m")),
            ((None, '"overloaded"'), Failure("upstream_error", "overloaded")),
        ],
    )
    def test_an_error_in_any_form_is_a_failure_though_the_marker_follows(self, event: Any, failure: Failure) -> None:
        stream, kinds, _ = observed(chunk("a"), event, chunk(None, "stop"), "[DONE]")
        assert (kinds, stream.error, stream.judge()) == (["event", "error", "event", "marker"], failure, failure)

    @pytest.mark.parametrize("number", ["0.25", "7", "-1", "0", "1e3", "NaN", "Infinity"])
    def test_a_number_named_error_is_a_number_and_no_error(self, number: str) -> None:
        stream, kinds, _ = observed(f'{{"step": 1, "error": {number}}}', ("eval", f'{{"error": {number}}}'))
        assert (kinds, stream.error) == (["event", "event"], None)
        stream, kinds, text = observed(json.dumps(chunk("a"))[:-1] + f', "error": {number}}}')
        assert (kinds, text, stream.error) == (["event"], "a", None)

    @pytest.mark.parametrize(
        ("event", "code"), [(("error", {"error": 0.25}), "upstream_error"), ({"type": "error", "error": 7}, "error")]
    )
    def test_an_event_that_says_that_it_is_an_error_is_one_whatever_its_number(self, event: Any, code: str) -> None:
        stream, kinds, _ = observed(event)
        assert (kinds, stream.error) == (["error"], Failure(code, "the provider sent an error"))

    def test_true_is_no_number(self) -> None:
        stream, kinds, _ = observed({"error": False}, {"error": True})
        assert (kinds, stream.error) == (["event", "error"], Failure("upstream_error", "True"))

    def test_the_first_error_is_the_one_to_tell(self) -> None:
        stream, _, _ = observed({"error": "first"}, {"error": "second"})
        assert stream.error == Failure("upstream_error", "first")

    @pytest.mark.parametrize("event", ['"a"', "a", "[1]", "7", "", "{", "[" * 100_000, {"error": None}, ("tick", "x")])
    def test_what_is_not_ours_to_understand_is_an_event(self, event: Any) -> None:
        stream, kinds, text = observed(event)
        assert (kinds, text, stream.error, stream.api) == (["event"], "", None, None)

    def test_white_space_round_a_chunk_is_no_error(self) -> None:
        assert observed(" " + json.dumps(chunk("a")) + "\n")[2] == "a"


class TestReader:
    @staticmethod
    def reader(*events: Any, **options: Any) -> ProviderReader:
        reader = ProviderReader(**options)
        for event in events:
            reader.read(None, event if isinstance(event, str) else json.dumps(event))
        return reader

    def test_it_tells_what_its_stream_saw(self) -> None:
        reader = self.reader(chunk("a", "stop", usage={"n": 1}), {"error": "x"})
        assert (reader.begun, reader.reasons, reader.usage) == ({0}, {0: "stop"}, {"n": 1})
        assert reader.error == Failure("upstream_error", "x")

    def test_an_event_without_data_is_nothing(self) -> None:
        assert ProviderReader().read("error", "") is None

    @pytest.mark.parametrize("clean", [True, False])
    def test_by_the_providers_rule_its_own_end_proves(self, clean: bool) -> None:
        assert self.reader(chunk("a", "stop"), "[DONE]").proof(clean) == "marker+reason"
        assert self.reader(chunk("a", "stop")).proof(clean) is None
        assert self.reader(chunk("a"), "[DONE]").judge() is not None

    @pytest.mark.parametrize("rule", ["asgi", "endless"])
    def test_by_framing_a_clean_end_proves_and_only_an_error_is_a_failure(self, rule: Any) -> None:
        reader = self.reader({"a": 1}, end=rule)
        assert (reader.proof(True), reader.proof(False), reader.judge()) == ("framing", None, None)
        reader.read(None, '{"error":"x"}')
        assert reader.judge() == Failure("upstream_error", "x")

    @pytest.mark.parametrize("clean", [True, False])
    def test_by_a_function_the_last_event_must_be_the_marker(self, clean: bool) -> None:
        seen: list[Event] = []

        def marks(event: Event) -> bool:
            seen.append(event)
            return event.data == '"end"'

        reader = self.reader('"a"', '"end"', end=marks)
        assert (reader.proof(clean), reader.judge()) == ("marker", None)
        assert seen == [Event('"a"'), Event('"end"')]
        reader.read("late", '"b"')
        assert reader.proof(clean) is None
        assert seen[-1] == Event('"b"', "late")


def test_the_item_of_a_chunk_is_its_json_whichever_way_it_was_read() -> None:
    reader = ProviderReader()
    for text in ("a", "b", 'c\n"', "", "d"):
        data = json.dumps(chunk(text))
        reading = reader.read(None, data)
        assert reading is not None
        frame = AnswerFrame(0, None, data.encode(), reading.text, reading.item, reading.texts)
        assert frame.item == chunk(text)
        assert (frame.text, frame.texts) == (text, {0: text} if text else {})


@pytest.mark.parametrize(
    ("events", "rule"),
    [
        ([chunk("a")], "provider"),
        ([completion("a")], "provider"),
        ([{"object": "text_completion", "choices": [{"text": "a"}]}], "provider"),
        ([{"type": "message_start"}], "provider"),
        ([{"type": "response.created"}], "provider"),
        ([{"token": "a"}, "[DONE]"], "provider"),
        ([{"token": "a"}], "asgi"),
        ([{"token": "a"}, "[DONE]", {"token": "b"}], "asgi"),
        ([{"choices": ["tea", "coffee"]}], "asgi"),
        ([{"choices": [{"label": "tea"}]}], "asgi"),
        ([], "asgi"),
    ],
    ids=str,
)
def test_an_end_is_asked_for_where_the_api_is_known(events: list[Any], rule: str) -> None:
    stream, _, _ = observed(*events)
    assert settled("known", stream) == rule
    assert settled("endless", stream) == "endless"
