"""A guarded answer on a thread, without a framework: its head, its slot, what it opens and what it closes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from streamguard.adapters.asgi import MAX_BUFFERED
from streamguard.adapters.blocking import BlockingAnswer, Body, Head, let_go, refused_head, wait_for_place
from streamguard.adapters.environ import facts_of
from streamguard.adapters.options import AnswerOptions
from streamguard.core.errors import SourceFailed
from streamguard.core.exchange import Refusal
from streamguard.runtime.admission import Admission
from streamguard.runtime.blocking import BodyAborted
from streamguard.runtime.drain import Drain
from streamguard.runtime.slots import Limits
from streamguard.runtime.timing import Timing
from tests.adapters.servers import DEADLINE


def environ(method: str = "GET", **more: Any) -> dict[str, Any]:
    return {"REQUEST_METHOD": method, "SERVER_PROTOCOL": "HTTP/1.1", **more}


class Source:
    """An iterable that keeps books."""

    def __init__(self, *script: Any) -> None:
        self.script = script
        self.begun = self.closed = 0

    def __iter__(self) -> Iterator[Any]:
        self.begun += 1
        for act in self.script:
            if isinstance(act, BaseException):
                raise act
            yield act

    def close(self) -> None:
        self.closed += 1


def fields(head: Head) -> dict[str, str]:
    return {name.lower(): value for name, value in head.headers}


def sent(head: Head) -> bytes:
    """The whole body, as a server takes it: to its end, and closed."""
    body: Any = head.body
    try:
        return b"".join(body)
    finally:
        if hasattr(body, "close"):
            body.close()


def limited(seconds: float = DEADLINE) -> Admission:
    return Admission(Limits(max_streams=1, max_wait=seconds))


def free(admission: Admission) -> bool:
    """Whether a slot is free, or soon will be: a release is the loop's to do."""
    place = wait_for_place(AnswerOptions(limits=admission), facts_of(environ()), {}, environ(), Drain())
    let_go(place)
    return place.refused is None


def test_a_body_is_its_parts_and_closed_by_whoever_made_it() -> None:
    closed: list[int] = []
    body = Body([b"one", b"two"], lambda: closed.append(1))
    assert list(body) == [b"one", b"two"]
    assert closed == []
    body.close()
    assert closed == [1]


def test_a_refusal_has_its_body_unless_it_answers_head_and_breaks_off_where_it_says_so() -> None:
    plain, broken = Refusal(503, [("a", "b")], b"no"), Refusal(200, [], b"lost", abort=True)
    assert refused_head(plain, environ()) == Head(503, [("a", "b")], [b"no"])
    assert refused_head(plain, environ("HEAD")).body == []
    parts = iter(refused_head(broken, environ()).body)
    assert next(parts) == b"lost"
    with pytest.raises(BodyAborted):
        next(parts)


def test_a_source_is_opened_by_its_body_and_closed_with_it() -> None:
    source = Source("one ", "two")
    answer = BlockingAnswer(source, status=201, headers=[("x-own", "1")])
    head = answer.begin(environ())
    assert (head.status, fields(head)["x-own"], source.begun, answer.outcome) == (201, "1", 0, None)
    assert sent(head).count(b"event: end\n") == 1
    assert (source.begun, source.closed) == (1, 1)
    assert answer.outcome is not None
    assert answer.outcome.status == "complete"


def test_what_starts_no_stream_opens_nothing_and_closes_its_source() -> None:
    cursor = "0000000000000000000000.1.5.00000000"
    for asked, status in (environ("HEAD"), 200), (environ(HTTP_LAST_EVENT_ID=cursor), 404):
        source = Source("one")
        head = BlockingAnswer(source).begin(asked)
        assert (head.status, source.begun, source.closed) == (status, 0, 1)


def test_a_source_may_come_once_the_request_has_its_slot_which_the_bodys_end_gives_back() -> None:
    admission, source = limited(0.01), Source("one")
    answer = BlockingAnswer(limits=admission)
    assert answer.look(environ()) is None
    assert answer.look(environ()) is None  # which takes no second one
    assert not free(admission)
    answer.give(source)
    head = answer.begin(environ())
    assert sent(head).count(b"event: end\n") == 1
    admission.limits = limited().limits
    assert free(admission)


def test_an_answer_that_is_given_up_before_it_begins_closes_its_source_and_gives_its_slot_back() -> None:
    admission, source = limited(), Source("one")
    answer = BlockingAnswer(source, limits=admission)
    assert answer.look(environ()) is None
    answer.finish()
    assert (source.begun, source.closed, free(admission)) == (0, 1, True)


def test_a_slot_that_does_not_come_in_time_is_a_refusal() -> None:
    admission = limited(0.01)
    holding = BlockingAnswer(Source("one"), limits=admission)
    assert holding.look(environ()) is None
    source = Source("two")
    head = BlockingAnswer(source, limits=admission).begin(environ())
    assert (head.status, b"waited_too_long" in sent(head), source.closed) == (503, True, 1)
    holding.finish()


def test_a_reader_that_leaves_while_it_waits_is_waited_for_no_longer() -> None:
    admission = limited()
    holding = BlockingAnswer(Source("one"), limits=admission)
    assert holding.look(environ()) is None
    left = environ(**{"waitress.client_disconnected": lambda: True})
    place = wait_for_place(AnswerOptions(limits=admission), facts_of(left), {}, left, Drain())
    assert (place.slot, place.refused is None) == (None, False)
    holding.finish()


def test_an_answer_serves_one_request(caplog: pytest.LogCaptureFixture) -> None:
    answer = BlockingAnswer(Source("one"))
    first = answer.begin(environ())
    assert answer.begin(environ()).status == 500
    assert "serves one request" in caplog.text
    assert sent(first).count(b"event: end\n") == 1


OLD = {"SERVER_PROTOCOL": "HTTP/1.0"}


def test_the_log_names_what_was_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    for more in ({}, {"peek": 60.0}):
        answer = BlockingAnswer(Source(SourceFailed("overloaded", "later")), timing=Timing(linger=0.0, **more))
        with suppress(BodyAborted):
            sent(answer.begin(environ(SCRIPT_NAME="/api", PATH_INFO="/caf\xc3\xa9", QUERY_STRING="key=secret")))
    ended, _, early = [record.getMessage() for record in caplog.records]
    assert " of GET /api/café ended as failed after 0 items: overloaded: later" in ended
    assert early.startswith("a stream of GET /api/café failed before its first item: HTTP 500: ")


def test_over_http_1_0_the_head_says_so() -> None:
    for given, said in ((OLD, True), ({}, False)):
        head = BlockingAnswer(Source("one")).begin(environ(**given))
        assert ("http10=?1" in fields(head)["streamguard"]) is said
        sent(head)


def test_over_http_1_0_the_whole_has_its_length() -> None:
    head = BlockingAnswer(Source("one"), http10="buffer").begin(environ(**OLD))
    body = sent(head)
    assert (head.status, fields(head)["content-length"]) == (200, str(len(body)))


@pytest.mark.parametrize(
    ("script", "code"),
    [
        (("one", SourceFailed("overloaded", "later")), b"overloaded"),
        (["x" * 100_000] * (MAX_BUFFERED // 100_000 + 2), b"too_large"),
    ],
    ids=["failed", "too large"],
)
def test_and_what_is_not_whole_or_too_large_is_none(script: Any, code: bytes) -> None:
    source = Source(*script)
    head = BlockingAnswer(source, http10="buffer").begin(environ(**OLD))
    body = sent(head)
    assert (head.status, code in body, b"event:" in body, source.closed) == (502, True, False, 1)


def test_a_cancel_before_it_begins_is_kept() -> None:
    answer = BlockingAnswer(Source("one"), abort="unless-negotiated")
    answer.cancel()
    with pytest.raises(BodyAborted):
        sent(answer.begin(environ()))
    assert answer.outcome is not None
    assert answer.outcome.status == "cancelled"


def test_a_head_that_cannot_be_made_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> Any:
        raise ZeroDivisionError

    admission, source = limited(), Source("one")
    answer = BlockingAnswer(source, limits=admission)
    monkeypatch.setattr("streamguard.adapters.blocking.stream_headers", broken)
    with pytest.raises(ZeroDivisionError):
        answer.begin(environ())
    assert (source.closed, free(admission)) == (1, True)
