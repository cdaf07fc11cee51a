"""What a reader with credit tells its server: when, how often, and what becomes of it; without a network, then with."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import anyio
import httpx
import pytest

from streamguard.client import ReaderLimits, ResumePolicy, stream, stream_sync
from streamguard.client import acks as telling
from streamguard.client.acks import CREDIT, Acks, Outcome, credit_of, outcome_of
from streamguard.core.cursor import Cursor, cursor_zero
from streamguard.core.errors import ConnectLimitExceeded, UnexpectedResponse
from streamguard.core.receipt import Verdict
from streamguard.runtime.timing import Timing
from tests.adapters.logged_apps import Site, wait_until
from tests.adapters.servers import Gate, serving
from tests.client.reading import NO_TLS, each_mode, read

SID = "AAAAAAAAAAAAAAAAAAAAAA"
ZERO = cursor_zero(SID)
NOW = ResumePolicy(base=0.0, max_wait=0.0)


def at(seq: int, offset: int = 0) -> Cursor:
    return Cursor(SID, seq, offset or 10 * seq, 7)


def acks(*credit: int) -> Acks:
    return Acks("AAAAAAAAAAA", credit or (100, 10_000), ZERO)  # type: ignore[arg-type]


def told(acks: Acks, now: float) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(acks.take(now))
    return found


def test_credit_is_granted_anew_once_half_is_used_and_not_before() -> None:
    one = acks(100, 10_000)
    assert not one.note(ZERO, 0)
    assert not one.note(at(49), 0)
    assert one.note(at(50), 0)
    assert told(one, 0.0) == {"reader": "AAAAAAAAAAA", "ack": str(at(50)), "credit": [150, 10_500]}
    assert acks(100, 1_000).note(at(50, 500), 0)
    assert not acks(100, 1_000).note(at(10, 499), 0)


def test_a_beat_is_answered_with_the_last_grant_again() -> None:
    one = acks()
    assert one.note(at(50), 0)
    before = told(one, 0.0)["credit"]
    one.answered("taken", 0.0)
    assert one.wait(0.0) is None
    assert not one.note(at(60), 0)
    assert one.note(at(60), 1)
    assert told(one, 5.0) == {"reader": "AAAAAAAAAAA", "ack": str(at(60)), "credit": before}
    one.answered("taken", 5.0)
    assert one.wait(5.0) is None
    assert not one.note(at(60), 1)


def test_there_is_one_on_its_way_and_at_most_one_a_second_merged() -> None:
    one = acks()
    assert one.note(at(50), 0)
    assert one.wait(10.0) == 0.0
    one.take(10.0)
    assert not one.note(at(100), 1), "a second one was begun"
    one.answered("taken", 10.4)
    assert not one.note(at(150), 2)
    assert one.wait(10.4) == pytest.approx(0.6)
    assert one.wait(11.0) == 0.0
    assert told(one, 11.0)["ack"] == str(at(150))


@pytest.mark.parametrize("outcome", ["later", "no place"])
def test_what_is_not_taken_is_told_again_ever_less_often(outcome: Outcome) -> None:
    one, now = acks(), 0.0
    assert one.note(at(50), 0)
    waits = []
    for _ in range(6):
        one.take(now)
        one.answered(outcome, now)
        wait = one.wait(now)
        assert wait is not None
        waits.append(wait)
        now += wait
    assert waits == [2.0, 4.0, 8.0, 15.0, 15.0, 15.0]
    one.take(now)
    one.answered("taken", now)
    assert one.wait(now) is None
    assert one.note(at(200), 0)
    one.take(now + 20)
    one.answered("taken", now + 20)
    one.note(at(300), 0)
    assert one.wait(now + 20) == 1.0


def test_where_no_such_reader_is_nothing_more_is_told() -> None:
    one = acks()
    one.note(at(50), 0)
    one.take(0.0)
    one.answered("over", 0.0)
    assert one.wait(0.0) is None
    assert not one.note(at(100), 5)


@pytest.mark.parametrize(
    ("status", "code", "outcome"),
    [
        (204, None, "taken"),
        (202, None, "taken"),
        (404, "unknown_stream", "over"),
        (404, None, "over"),
        (410, None, "over"),
        (409, "not_here", "over"),
        (409, "misfit", "later"),
        (409, None, "later"),
        (302, None, "later"),
        (400, "bad_request", "later"),
        (403, "forbidden", "later"),
        (429, None, "later"),
        (503, "log_unavailable", "later"),
    ],
)
def test_only_where_the_reader_or_the_stream_is_not_known_the_telling_ends(
    status: int, code: str | None, outcome: Outcome
) -> None:
    assert outcome_of(status, b"" if code is None else json.dumps({"code": code}).encode()) == outcome


def test_a_reader_is_stuck_where_its_last_grant_is_used_and_the_next_found_no_place() -> None:
    one = acks(100, 10_000)
    one.note(at(50), 0)
    one.take(0.0)
    one.answered("no place", 0.0)
    one.note(at(99), 1)
    one.note(at(99), 2)
    assert not one.stuck, "there is credit left"
    one.note(at(100), 3)
    assert not one.stuck, "the next may be the terminal, which needs none"
    one.note(at(100), 4)
    assert one.stuck
    one.take(2.0)
    one.answered("taken", 2.0)
    assert not one.stuck


def test_what_left_and_was_not_answered_may_have_been_heard() -> None:
    one = acks(100, 10_000)
    one.note(at(50), 0)
    one.take(0.0)
    one.answered("later", 0.0)
    one.note(at(100), 0)
    one.note(at(100), 1)
    one.take(2.0)
    one.answered("no place", 2.0)
    assert not one.stuck
    one.note(at(110, 10_500), 1)
    one.note(at(110, 10_500), 2)
    assert one.stuck, "by its bytes"


def test_before_there_is_a_cursor_nothing_is_told() -> None:
    assert not acks().note(None, 3)


def test_credit_is_true_or_two_numbers() -> None:
    assert credit_of(False) is credit_of(None) is None
    assert credit_of(True) == CREDIT
    assert credit_of((1, 2)) == (1, 2)
    for wrong in (5, "5", [1, 2], (1,), (1.0, 2), (True, 2)):
        with pytest.raises(TypeError, match="credit is True, or"):
            credit_of(wrong)
    for small in ((0, 1), (1, 0), (1, 10**15)):
        with pytest.raises(ValueError, match="at least"):
            credit_of(small)


# ---- over sockets -------------------------------------------------------------------------------

TOKENS = [f"t{number} " for number in range(40)]


@each_mode
def test_a_stream_that_is_longer_than_its_credit_comes_whole_by_grants(mode: str) -> None:
    site = Site(*TOKENS)
    with serving(site.app) as server:
        seen = read(mode, f"{server.url}/tokens", "GET", credit=(16, 10_000))
        posts = [action for action, _ in site.asked if action == "ack"]
    assert (seen.error, seen.text) == (None, "".join(TOKENS))
    assert seen.receipt is not None
    assert (seen.receipt.verdict, seen.receipt.resumes) == (Verdict.COMPLETE, 0)
    assert 1 <= len(posts) <= 4


@each_mode
def test_without_credit_nothing_is_told(mode: str) -> None:
    site = Site(*TOKENS, timing=Timing(heartbeat=0.01))
    with serving(site.app) as server:
        assert read(mode, f"{server.url}/tokens", "GET").error is None
    assert [action for action, _ in site.asked] == ["start"]


@each_mode
def test_a_server_that_grants_none_is_told_nothing(mode: str) -> None:
    site = Site(*TOKENS, installed=False)
    with serving(site.app) as server:
        seen = read(mode, f"{server.url}/tokens", "GET", credit=True)
    assert (seen.error, seen.text) == (None, "".join(TOKENS))
    assert [action for action, _ in site.asked] == ["start"]


@each_mode
def test_after_a_resume_it_is_the_new_connection_that_is_told_of(mode: str) -> None:
    """The first connection is ended by the server, as a newer reader would."""
    site = Site(*TOKENS)
    ended = threading.Event()

    def cut(frame: Any) -> None:
        if frame.text == TOKENS[15] and not ended.is_set():
            ended.set()
            (reader,) = site.guard.readers
            assert reader.flow is not None
            server.loop.call_soon_threadsafe(reader.flow.gone)

    with serving(site.app) as server:
        seen = read(mode, f"{server.url}/tokens", "GET", on_frame=cut, credit=(32, 10_000), resume=NOW)
    assert (seen.error, seen.text) == (None, "".join(TOKENS))
    assert seen.receipt is not None
    assert seen.receipt.resumes == 1


class Boom(Exception):
    pass


@pytest.mark.parametrize("mode", ["asyncio", "trio"])
@pytest.mark.parametrize("how", ["raise", "cancel", "refused"])
def test_what_the_block_raises_is_raised_as_it_is(mode: str, how: str) -> None:
    site = Site(*TOKENS)

    async def main(leave: Callable[[], object] = lambda: None) -> None:
        client = httpx.AsyncClient(verify=NO_TLS)
        path = "/nothing" if how == "refused" else "/tokens"
        async with client, stream("GET", f"{server.url}{path}", client=client, credit=(8, 999)) as answer:
            async for _ in answer.text():
                if how == "raise":
                    raise Boom
                with anyio.move_on_after(0) as scope:
                    await anyio.sleep(1)
                assert scope.cancelled_caught
                leave()
                await anyio.sleep(1)

    async def scoped() -> None:
        with anyio.CancelScope() as outer:
            await main(outer.cancel)
        assert outer.cancelled_caught

    with serving(site.app) as server:
        if how == "cancel":
            anyio.run(scoped, backend=mode)
        else:
            with pytest.raises(Boom if how == "raise" else UnexpectedResponse):
                anyio.run(main, backend=mode)
        site.idle()


def test_a_sync_answer_that_is_left_leaves_no_thread() -> None:
    site = Site(*TOKENS)
    with serving(site.app) as server, httpx.Client(verify=NO_TLS) as client:
        with stream_sync("GET", f"{server.url}/tokens", client=client, credit=(16, 999)) as answer:
            for piece in answer.text():
                if piece == TOKENS[30]:
                    break
        wait_until(lambda: not [one for one in threading.enumerate() if one.name == "streamguard acks"])


# ---- a pool with no connection to tell by -------------------------------------------------------


def posts_to(site: Site) -> int:
    return sum(action == "ack" for action, _ in site.asked)


@each_mode
def test_where_the_pool_has_no_connection_to_grant_by_a_server_that_waits_for_it_is_an_error_that_says_so(
    mode: str,
) -> None:
    site = Site(*TOKENS, timing=Timing(heartbeat=0.5))
    limits = ReaderLimits(connect=0.05)
    with serving(site.app) as server:
        seen = read(mode, f"{server.url}/tokens", "GET", pool=1, credit=(16, 10_000), limits=limits)
    assert isinstance(seen.error, ConnectLimitExceeded)
    assert isinstance(seen.again, ConnectLimitExceeded)
    assert (seen.text, seen.error.seconds) == ("".join(TOKENS[:16]), 0.05)
    assert seen.error.cursor is not None
    assert seen.error.cursor.seq == 16
    for part in ("the client's pool", "httpx.Limits(max_connections=", "credit"):
        assert part in str(seen.error)


@each_mode
def test_an_answer_within_its_credit_comes_whole_though_the_pool_has_no_connection_to_grant_by(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()  # opened when it could not be told that half of the credit is used
    site = Site(*TOKENS[:35], gate, *TOKENS[35:], timing=Timing(heartbeat=0.1))
    answered = Acks.answered

    def noted(self: Acks, outcome: Any, now: float) -> None:
        answered(self, outcome, now)
        gate.open()

    monkeypatch.setattr(Acks, "answered", noted)
    limits = ReaderLimits(connect=0.02)
    with serving(site.app) as server:
        seen = read(mode, f"{server.url}/tokens", "GET", pool=1, credit=(64, 10_000), limits=limits)
    assert (seen.error, seen.text) == (None, "".join(TOKENS))
    assert posts_to(site) == 0


@each_mode
def test_what_waits_for_a_connection_to_tell_by_does_not_get_the_one_that_a_resume_needs(mode: str) -> None:
    site = Site(*TOKENS)
    ended = threading.Event()

    def cut(frame: Any) -> None:
        if frame.text == TOKENS[20] and not ended.is_set():
            ended.set()
            (reader,) = site.guard.readers
            assert reader.flow is not None
            server.loop.call_soon_threadsafe(reader.flow.gone)

    with serving(site.app) as server:
        seen = read(mode, f"{server.url}/tokens", "GET", on_frame=cut, pool=1, credit=(30, 10_000), resume=NOW)
    assert (seen.error, seen.text) == (None, "".join(TOKENS))
    assert seen.receipt is not None
    assert seen.receipt.resumes == 1
    assert posts_to(site) == 0


def test_a_sync_answer_that_is_over_tells_nothing_by_the_connection_that_it_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate()  # opened when there is something to tell
    site = Site(*TOKENS[:35], gate, *TOKENS[35:])
    take = Acks.take

    def noted(self: Acks, now: float) -> bytes:
        gate.open()
        return take(self, now)

    monkeypatch.setattr(Acks, "take", noted)
    pool = httpx.Limits(max_connections=1)
    with serving(site.app) as server, httpx.Client(verify=NO_TLS, limits=pool) as client:
        with stream_sync("GET", f"{server.url}/tokens", client=client, credit=(64, 10_000)) as answer:
            assert answer.read() == "".join(TOKENS)
        wait_until(lambda: not [one for one in threading.enumerate() if one.name == "streamguard acks"])
        assert client.get(f"{server.url}/nothing").status_code == 404
    assert posts_to(site) == 0


@pytest.mark.parametrize("mode", ["asyncio", "trio"])
def test_what_is_cancelled_amid_its_sending_leaves_nothing_behind(mode: str) -> None:
    """trio warns of each generator that it finds unfinished."""
    gate = Gate()
    site = Site(*TOKENS[:35], gate, *TOKENS[35:])

    class Holding(httpx.AsyncHTTPTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            if request.method == "POST":
                assert isinstance(request.stream, httpx.AsyncByteStream)
                async for _ in request.stream:
                    gate.open()
                    await anyio.sleep_forever()
            return await super().handle_async_request(request)

    async def main() -> str:
        client = httpx.AsyncClient(transport=Holding(verify=NO_TLS))
        async with client, stream("GET", f"{server.url}/tokens", client=client, credit=(64, 10_000)) as answer:
            return await answer.read()

    with serving(site.app) as server:
        assert anyio.run(main, backend=mode) == "".join(TOKENS)
    assert gate.opened


@each_mode
def test_after_an_acknowledgement_that_the_server_does_not_know_it_is_told_the_next(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(*TOKENS)
    monkeypatch.setattr(telling, "_PAUSE", 0.01)
    hear, heard = site.guard.grants.hear, []

    async def unknown_at_first(told: Any, sid: str) -> Any:
        heard.append("misfit" if not heard else await hear(told, sid))
        return heard[-1]

    monkeypatch.setattr(site.guard.grants, "hear", unknown_at_first)
    with serving(site.app) as server:
        seen = read(mode, f"{server.url}/tokens", "GET", credit=(16, 10_000), resume=False)
    assert (seen.error, seen.text) == (None, "".join(TOKENS))
    assert heard[:2] == ["misfit", "taken"]
