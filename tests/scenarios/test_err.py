"""Failures after the status line is out, and failures that get lost on the way."""

from __future__ import annotations

import pytest

from streamguard.core.dialect import Dialect, Native, OpenAI, Raw
from streamguard.core.errors import FailedStream, SourceFailed
from streamguard.core.receipt import Verdict
from tests.scenarios.stacks import Stack, both, chat_chunk, read, write

DIALECTS = pytest.mark.parametrize("dialect", [Native(), OpenAI()], ids=lambda dialect: dialect.name)


@both()
@pytest.mark.parametrize("tokens", [[], ["a", "b", "c"]], ids=["item 0", "item 3"])
def test_a_source_that_raises_is_no_success(stack: Stack, tokens: list[str]) -> None:
    assert not stack.read(stack.write([*tokens, RuntimeError("boom")])).complete


@DIALECTS
@pytest.mark.parametrize("tokens", [[], ["a", "b", "c"]], ids=["item 0", "item 3"])
def test_a_failure_is_a_terminal_with_a_code_and_ends_the_stream(dialect: Dialect, tokens: list[str]) -> None:
    reading = read(write([*tokens, SourceFailed("overloaded", "try again later")], dialect=dialect), dialect=dialect)
    assert reading.text == "".join(tokens)
    assert isinstance(reading.error, FailedStream)
    assert (reading.error.status, reading.error.code) == ("failed", "overloaded")


@DIALECTS
def test_the_reader_is_told_nothing_that_an_exception_says(dialect: Dialect) -> None:
    """Messages of exceptions hold keys, paths and queries; the class's name is enough to report."""
    body = b"".join(write(["a", PermissionError("key sk-secret refused")], dialect=dialect))
    assert b"secret" not in body
    error = read([body], dialect=dialect).error
    assert isinstance(error, FailedStream)
    assert error.failure is not None
    assert (error.failure.code, error.failure.message) == ("source_error", "PermissionError")


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(b'event: error\ndata: {"message":"boom","code":"overloaded"}\n\n', id="error as the event's name"),
        pytest.param(b'data: {"error":{"message":"boom","code":"overloaded"}}\n\n', id="error as a field"),
        pytest.param(b'data: {"error":"boom"}\n\n', id="a bare string in a field"),
        pytest.param(b"event: error\ndata: boom\n\n", id="a bare string as data"),
        pytest.param(b'event: error\ndata: "boom"\n\n', id="a JSON string as data"),
    ],
)
@pytest.mark.parametrize("done", [b"", b"data: [DONE]\n\n"], ids=["alone", "then [DONE]"])
def test_every_form_of_a_providers_error_fails_the_stream(event: bytes, done: bytes) -> None:
    chunks = [b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n', event, done]
    reading = read(chunks)
    assert reading.verdict is Verdict.FAILED
    assert reading.error is not None
    assert "boom" in str(reading.error)


def test_a_providers_error_is_passed_on_as_one() -> None:
    text, error = b'{"choices":[{"index":0,"delta":{"content":"a"}}]}', b'{"error":{"message":"boom"}}'
    relayed = write([b"data: %b\n\n" % data for data in (text, error, b"[DONE]")], dialect=Raw())
    assert b"[DONE]" not in b"".join(relayed)
    assert read(relayed, dialect=Raw()).verdict is Verdict.FAILED


def test_a_done_marker_without_any_finish_reason_proves_nothing() -> None:
    """`[DONE]` from a `finally`, after a fault that was swallowed: the commonest lie of all."""
    relayed = write([chat_chunk("a"), chat_chunk("b")], dialect=Raw())
    error = read(relayed, dialect=Raw()).error
    assert isinstance(error, FailedStream)
    assert error.code == "unproven_end"


def test_a_failed_stream_leaves_nothing_behind_for_the_next() -> None:
    """One policy and one dialect serve both: streams share settings, never state."""
    dialect = OpenAI(model="m")
    bad = read(write(["half", RuntimeError("boom")], dialect=dialect), dialect=dialect)
    good = read(write(["whole"], dialect=dialect), dialect=dialect)
    assert bad.verdict is Verdict.FAILED
    assert good.complete
    assert good.text == "whole"
