"""What the library puts among a stream's options, and finds there again."""

from __future__ import annotations

import pytest

from streamguard.core.dialect import OpenAI
from streamguard.core.framing import FramedEncoder
from streamguard.log.base import StreamInfo
from streamguard.runtime.own import FIXED, OWN, dialect_of, fixed, negotiated, origin_of, own_options
from tests.runtime.fakes import SID


def test_its_own_are_found_beside_the_applications() -> None:
    info = StreamInfo(SID, "openai", options={"color": "red", OWN: {"exclusive": True}, FIXED: {"negotiated": True}})
    assert (own_options(info), negotiated(info)) == ({"exclusive": True}, True)


@pytest.mark.parametrize("options", [{}, {OWN: "red", FIXED: None}])
def test_an_application_that_uses_their_names_breaks_nothing(options: dict[str, object]) -> None:
    info = StreamInfo(SID, "openai", options=options)
    assert (own_options(info), negotiated(info)) == ({}, False)
    dialect = OpenAI(model="tiny")
    assert dialect_of(dialect, info) is dialect


def test_a_dialect_goes_on_with_the_settings_that_the_stream_began_with() -> None:
    began = OpenAI(model="tiny", id="chat-1", created=7)
    settings = FramedEncoder(began, sid=SID).dialect.settings()
    info = StreamInfo(SID, "openai", options={FIXED: {"dialect": settings}})
    assert dialect_of(OpenAI(model="larger"), info) == began


@pytest.mark.parametrize("origin", [None, "00-1-2-01"])
def test_what_is_noted_of_a_stream_that_begins_is_found_again(origin: str | None) -> None:
    info = StreamInfo(SID, "openai", options=fixed({}, origin, negotiated=True))
    assert (origin_of(info), negotiated(info)) == (origin, True)
    assert ("origin" in info.options[FIXED]) == (origin is not None)
    assert origin_of(StreamInfo(SID, options={FIXED: {"origin": 5}})) is None
