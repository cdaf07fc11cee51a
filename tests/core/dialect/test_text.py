"""`text`: text/plain, which has room for text only."""

from __future__ import annotations

import pytest

from streamguard.core.dialect import Text
from streamguard.core.errors import UnsupportedItem
from streamguard.core.items import Block, Ending
from streamguard.core.receipt import Verdict
from streamguard.core.wire import Plain
from tests.core.wire.streams import FAILURE, read, written


def test_text_is_itself_and_no_ending_is_written() -> None:
    assert written(["é\n", "b"], Text(), Plain()) == [b"", "é\n".encode(), b"b", b""]
    assert written(["a"], Text(), Plain(), fail=FAILURE) == [b"", b"a", b""]


def test_nothing_but_text_has_a_place() -> None:
    with pytest.raises(UnsupportedItem, match="'text' cannot carry: plain text has room for text only"):
        Text().encoder().item(Block("image"), Ending())
    with pytest.raises(UnsupportedItem, match="'text'"):
        Text().encoder().wire(b"x", Ending())


def test_a_source_that_returns_is_complete_and_an_aborted_one_is_not() -> None:
    ending = Ending()
    assert Text().encoder().judge(ending) is None
    assert ending.reasons == {0: "stop"}
    failure = Text().encoder().judge(Ending(reasons={0: "abort"}))
    assert failure is not None
    assert failure.code == "generation_aborted"


def test_a_reader_has_only_the_framing_to_go_by() -> None:
    answer = read([b"a\xc3", b"\xa9"], wire="plain", dialect="text")
    assert (answer.verdict, answer.receipt.proved_by, answer.text) == (Verdict.UNVERIFIED, "framing", "aé")
    answer = read([b"a"], wire="plain", dialect="text", clean=False)
    assert (answer.verdict, answer.text) == (Verdict.TRUNCATED, "a")
    reader = Text().reader()
    assert (reader.reasons, reader.usage, reader.error, reader.judge()) == ({}, None, None, None)
