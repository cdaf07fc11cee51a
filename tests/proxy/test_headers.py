"""Which headers go on, and which end here."""

from __future__ import annotations

import pytest

from streamguard.proxy.headers import answer_fields, request_fields, values


def sent(*fields: tuple[bytes, bytes], kept: tuple[bytes, ...] = ()) -> list[tuple[bytes, bytes]]:
    return request_fields(fields, host=b"model:8000", client="10.0.0.9", scheme="http", kept=kept)


def test_a_request_keeps_its_fields_in_their_order_and_spelling() -> None:
    mine = [(b"X-B", b"1"), (b"x-a", b"2"), (b"X-B", b"3"), (b"accept-encoding", b"gzip, br")]
    assert sent(*mine)[1:5] == mine


@pytest.mark.parametrize(
    "name",
    ["Connection", "Proxy-Connection", "Keep-Alive", "TE", "Trailer", "Upgrade", "Proxy-Authorization", "Expect",
     "HTTP2-Settings"],
)  # fmt: skip
def test_what_is_for_one_connection_ends_here(name: str) -> None:
    assert values(sent((name.encode(), b"x")), name.lower().encode()) == []


def test_what_connection_names_ends_here_in_both_directions() -> None:
    fields = [(b"connection", b"X-Mine, close"), (b"Connection", b"x-more"), (b"x-mine", b"1"), (b"X-More", b"2")]
    assert values(sent(*fields), b"x-mine") == values(sent(*fields), b"x-more") == []
    assert answer_fields([*fields, (b"x-end", b"3")], 200) == [(b"x-end", b"3")]


@pytest.mark.parametrize("name", [b"content-length", b"authorization", b"cookie", b"x-forwarded-host", b"x-user"])
def test_a_client_cannot_have_taken_away_what_the_upstream_decides_by(name: bytes) -> None:
    assert values(sent((b"connection", name), (name, b"7"), kept=(b"x-user",)), name) == [b"7"]


def test_the_upstream_is_asked_by_its_own_name_and_told_whom_it_is_asked_for() -> None:
    passed = sent((b"host", b"evil.example"), (b"x-forwarded-for", b"1.2.3.4"), (b"x-forwarded-for", b"5.6.7.8"))
    assert values(passed, b"host") == [b"model:8000"]
    assert values(passed, b"x-forwarded-for") == [b"1.2.3.4, 5.6.7.8, 10.0.0.9"]
    assert values(passed, b"x-forwarded-host") == [b"evil.example"]
    assert values(passed, b"x-forwarded-proto") == [b"http"]
    assert values(passed, b"via") == [b"1.1 streamguard"]


def test_what_a_proxy_in_front_said_of_host_and_scheme_stays() -> None:
    passed = sent((b"host", b"inner"), (b"x-forwarded-host", b"outer"), (b"x-forwarded-proto", b"https"))
    assert values(passed, b"x-forwarded-host") == [b"outer"]
    assert values(passed, b"x-forwarded-proto") == [b"https"]


def test_a_client_at_a_unix_socket_has_no_address() -> None:
    assert values(request_fields([], host=b"m", client=None, scheme="http"), b"x-forwarded-for") == []


def test_a_body_without_a_length_is_chunked_anew() -> None:
    passed = sent((b"transfer-encoding", b"chunked"))
    assert values(passed, b"transfer-encoding") == [b"chunked"]


def test_an_answer_without_a_body_has_no_length() -> None:
    fields = [(b"Content-Length", b"12"), (b"ETag", b"a")]
    assert answer_fields(fields, 304) == answer_fields(fields, 204) == [(b"ETag", b"a")]
    assert answer_fields(fields, 200) == fields


def test_a_length_beside_a_transfer_coding_ends_here() -> None:
    fields = [(b"Content-Length", b"5"), (b"Transfer-Encoding", b"chunked"), (b"ETag", b"a")]
    assert answer_fields(fields, 200) == [(b"ETag", b"a")]


@pytest.mark.parametrize("name", [b"X_User", b"x-forwarded_for", b"Content_Length", b"Transfer_Encoding", b"_"])
def test_a_name_that_another_server_takes_for_one_with_dashes_ends_here(name: bytes) -> None:
    assert sent((name, b"1"), (b"x-user", b"2"), kept=(b"x-user",))[1:2] == [(b"x-user", b"2")]
    assert name not in dict(sent((name, b"1")))


def test_the_header_that_says_who_asks_goes_on_by_whatever_name_and_none_like_it() -> None:
    fields = [(b"x_user", b"ann"), (b"x-user", b"eve"), (b"X-User", b"eve"), (b"x-other", b"1")]
    assert sent(*fields, kept=(b"x_user",))[1:3] == [(b"x_user", b"ann"), (b"x-other", b"1")]
