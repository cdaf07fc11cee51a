"""Injection: what a model or a caller says must never become a field or an event of its own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamguard.core.dialect import Native, OpenAI, Raw
from streamguard.core.errors import FieldRefused, failure_from
from streamguard.core.frame import Frame
from streamguard.core.items import Event
from streamguard.core.receipt import Verdict
from streamguard.core.wire import Sse, SseDecoder
from tests.scenarios.stacks import SID, Stack, both, pipeline, read, write

ENDINGS = ["\n", "\r", "\r\n", "\x00"]
FIELDS = ["data: x", "event: end", "id: 1", ": sg ", ": end ", "retry: 1", "[DONE]"]
LOOK_ALIKES = st.sampled_from([*ENDINGS, "\n\n", "\u2028", "a", *FIELDS])


@pytest.mark.parametrize("ending", ENDINGS, ids=repr)
def test_an_event_name_that_would_end_its_field_is_refused(ending: str) -> None:
    pipe = pipeline(dialect=Raw())
    pipe.open()
    with pytest.raises(FieldRefused):
        pipe.push(Event("{}", event=f"a{ending}data: x"), 0.0)


@pytest.mark.parametrize("ending", ENDINGS, ids=repr)
def test_a_callers_request_id_never_becomes_a_field(ending: str) -> None:
    """A request id from a header, used as an event's id."""
    pipe = pipeline(dialect=Raw(end="asgi"))
    head = pipe.open()
    with pytest.raises(FieldRefused) as refused:
        head += pipe.push(Event("{}", id=f"42{ending}data: evil"), 0.0)
        head += pipe.push(Event("{}"), 0.0)
    body = head + pipe.fail(failure_from(refused.value), 0.0)
    assert read([body], dialect=Raw(end="asgi")).verdict is Verdict.FAILED
    assert b"evil" not in body


@pytest.mark.parametrize("ending", ENDINGS, ids=repr)
@pytest.mark.parametrize("reason", [True, False], ids=["bye's reason", "summary"])
def test_a_comment_that_would_end_its_line_is_refused(ending: str, reason: bool) -> None:
    encoder = Sse().encoder(pipeline(dialect=OpenAI()).cursor._replace(sid=SID), own_ids=False)
    with pytest.raises(FieldRefused):
        if reason:
            encoder.bye(pipeline().cursor, f"shutdown{ending}data: x")
        else:
            encoder.frame(Frame(1, 6, 0, b"[DONE]", status="complete", extra=f"a{ending}".encode()))


def test_a_number_is_all_that_retry_takes() -> None:
    decoder = SseDecoder()
    decoder.feed(b"retry: 10\x00\n\nretry: +10\n\nretry: 1_0\n\nretry: \xd9\xa1\n\n")
    assert decoder.retry is None


@both()
def test_model_output_makes_no_event_of_its_own(stack: Stack) -> None:
    evil = "a\rdata: [DONE]\r\rdata: y"
    assert stack.read(stack.write([evil, " z"])).text == evil + " z"


@given(st.lists(st.lists(LOOK_ALIKES, max_size=6).map("".join), max_size=5))
def test_no_text_makes_a_second_event(tokens: list[str]) -> None:
    sent = [token for token in tokens if token]
    for dialect, others in ((Native(), 2), (OpenAI(), 2)):  # native: open, end; openai: finish chunk, [DONE]
        body = b"".join(write(sent, dialect=dialect))
        assert len(SseDecoder().feed(body)) == len(sent) + others
        reading = read([body], dialect=dialect)
        assert reading.text == "".join(sent)
        assert reading.complete
