"""`native`: our own form, to the byte, and what its reader refuses."""

from __future__ import annotations

import json

import pytest

from streamguard.core.dialect import Native
from streamguard.core.dialect.base import Reading
from streamguard.core.errors import Failure, UnsupportedItem
from streamguard.core.items import Block, Ending, Event, tool_call

READER = Native().reader()


def test_text_is_a_json_string_in_one_line() -> None:
    assert Native().encoder().text('a"\n\u2028é') == '"a\\"\\n\\u2028é"'.encode()


def test_a_block_has_its_type_in_its_data_and_never_in_its_name() -> None:
    (payload,) = Native().encoder().item(Block("image", {"url": "é"}), Ending())
    assert (payload.data, payload.name, payload.extra) == ('{"type":"image","url":"é"}'.encode(), "block", None)


@pytest.mark.parametrize("item", [Event("x"), {"a": 1}])
def test_a_providers_event_has_no_place(item: Event | dict[str, int]) -> None:
    with pytest.raises(UnsupportedItem, match=r"'native' cannot carry: yield str, bytes or Block, or choose `raw`"):
        Native().encoder().item(item, Ending())
    with pytest.raises(UnsupportedItem, match=r"a serialised stream, which dialect 'native'.*only `raw` re-frames one"):
        Native().encoder().wire(b"data: x\n\n", Ending())


def test_the_fields_of_an_sse_library_s_event_are_told_how_to_be_yielded() -> None:
    """What sse-starlette's generators yield."""
    with pytest.raises(UnsupportedItem, match=r"yield the text itself, or choose `raw` and yield Event\('hello'"):
        Native().encoder().item({"event": "token", "data": "hello"}, Ending())


def test_a_source_that_returns_is_complete_by_its_return() -> None:
    ending = Ending()
    assert Native().encoder().judge(ending) is None
    assert ending.reasons == {0: "stop"}
    ending = Ending(reasons={0: "length"})
    assert Native().encoder().judge(ending) is None
    assert ending.reasons == {0: "length"}


def test_cut_off_arguments_are_never_runnable() -> None:
    call = tool_call("c", "rm", '{"path": "/tm')
    (payload,) = Native().encoder().item(call, Ending())
    reading = READER.read("block", payload.data.decode())
    assert isinstance(reading, Reading)
    assert reading.blocks == (Block("invalid_tool_call", call.fields),)
    assert reading.item == call  # as it came


def test_a_source_that_called_tools_and_returned_ends_with_that_reason() -> None:
    call, result = tool_call("c", "f", "{}"), Block("tool_result", {"id": "c", "content": 1})
    for items, reason in (([call], "tool_calls"), ([call, result], "stop"), ([call, call, result], "tool_calls")):
        encoder, ending = Native().encoder(), Ending()
        payloads = [payload for item in items for payload in encoder.item(item, ending)]
        assert encoder.judge(ending) is None
        assert ending.reasons == {0: reason}
        other, ending = Native().encoder(), Ending()  # of the process that takes the stream over
        other.follow(None, b'"text"', ending)
        for payload in payloads:
            other.follow(payload.name, payload.data, ending)
        assert other.judge(ending) is None
        assert ending.reasons == {0: reason}


def test_an_aborted_generation_is_a_failure() -> None:
    failure = Native().encoder().judge(Ending(reasons={0: "abort"}))
    assert failure == Failure("generation_aborted", "the engine aborted the generation", retryable=True)


def test_the_terminal_is_a_summary_and_nothing_comes_before_it() -> None:
    encoder = Native().encoder()
    ending = Ending(reasons={0: "stop"}, usage={"n": 1}, items=3)
    assert encoder.closing(ending) == []
    terminal = encoder.terminal(ending, 4, 50)
    assert (terminal.name, terminal.extra) == ("end", None)
    assert terminal.data == (
        b'{"status":"complete","finish_reason":"stop","frames":4,"bytes":50,"items":3,"usage":{"n":1},"error":null}'
    )


def test_a_failed_terminal_has_an_error_and_no_reason() -> None:
    ending = Ending(status="failed", reasons={0: "stop"}, failure=Failure("c", "m", retryable=True))
    summary = json.loads(Native().encoder().terminal(ending, 0, 0).data)
    assert (summary["status"], summary["finish_reason"]) == ("failed", None)
    assert summary["error"] == {"code": "c", "message": "m", "retryable": True, "resumable": False}


def test_text_and_blocks_are_read_back() -> None:
    assert READER.read(None, '"a\\"\\nb"') == 'a"\nb'
    reading = READER.read("block", '{"type":"image","url":"x"}')
    assert reading is not None
    assert not isinstance(reading, str)
    assert (reading.item, reading.text, reading.texts) == (Block("image", {"url": "x"}), "", None)


def test_an_unknown_name_is_not_handed_out() -> None:
    assert READER.read("later", "anything") is None


@pytest.mark.parametrize("data", ["x", "1", '"a', '"a" ', '"a""b"', ' "a"', 'xa"', '""x', "", "{}", '"\n"'])
def test_text_that_is_no_json_string_is_refused(data: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        READER.read(None, data)


def test_without_cursors_nothing_is_proven() -> None:
    assert READER.proof(True) is READER.proof(False) is READER.judge() is READER.usage is READER.error is None
    assert READER.reasons == {}
