"""The command line's request, as curl takes it."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from streamguard.check.request import Request, request_from

URL = "http://host/v1/chat"


def test_a_bare_address_is_a_get_of_http_that_asks_for_what_clients_ask_for() -> None:
    request = request_from("host:8000/chat")
    assert (request.method, request.url, request.content) == ("GET", "http://host:8000/chat", None)
    assert request.header("accept") == "*/*"
    assert request.header("ACCEPT-ENCODING") == "gzip, deflate"
    assert request.header("content-type") is None


@pytest.mark.parametrize(
    ("data", "content", "kind"),
    [
        (['{"stream": true}'], b'{"stream": true}', "application/json"),
        (["a=1", "b=2"], b"a=1&b=2", "application/x-www-form-urlencoded"),
        ([""], b"", "application/x-www-form-urlencoded"),
    ],
)
def test_data_makes_it_a_post_of_the_type_that_it_has(data: list[str], content: bytes, kind: str) -> None:
    request = request_from(URL, data=data)
    assert (request.method, request.content, request.header("content-type")) == ("POST", content, kind)
    assert request_from(URL, method="PUT", data=data).method == "PUT"


def test_data_is_read_from_a_file_and_from_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "body").write_bytes(b'{"a":\r\n 1}\n')
    assert request_from(URL, data=[f"@{tmp_path / 'body'}"]).content == b'{"a": 1}'
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"said")))
    assert request_from(URL, data=["@-"]).content == b"said"
    with pytest.raises(OSError, match="nothing"):
        request_from(URL, data=[f"@{tmp_path / 'nothing'}"])


def test_a_header_takes_the_place_of_a_default_or_leaves_it_out() -> None:
    lines = ["accept: text/event-stream", "User-Agent:", "X-Empty;", "X-Two: 1", "X-Two: 2"]
    request = request_from(URL, headers=lines)
    assert request.headers == (
        ("Accept-Encoding", "gzip, deflate"),
        ("accept", "text/event-stream"),
        ("X-Empty", ""),
        ("X-Two", "1"),
        ("X-Two", "2"),
    )
    assert request.comes_back
    assert not request_from(URL).comes_back
    assert request_from(URL, headers=["Idempotency-Key: k"], data=["{}"]).comes_back


@pytest.mark.parametrize("line", ["nothing", ": value", "ä: 1", "X: 1\r\nY: 2", ""])
def test_what_is_no_header_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="no header"):
        request_from(URL, headers=[line])


@pytest.mark.parametrize("url", ["ftp://host/", "http://", "file:///etc/hosts"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="no address"):
        request_from(url)


def test_a_request_beside_it_takes_its_headers_to_its_own_origin_only() -> None:
    request = request_from(URL, headers=["Authorization: key"], data=["{}"])
    near = request.beside("/streams/status", Streamguard_Stream="s", Accept="text/plain")
    assert (near.method, near.url, near.content) == ("GET", "http://host/streams/status", None)
    assert (near.header("authorization"), near.header("streamguard-stream")) == ("key", "s")
    assert [value for name, value in near.headers if name.lower() == "accept"] == ["text/plain"]
    assert near.header("content-type") is None
    away = request.beside("http://other/metrics")
    assert away.header("authorization") is None
    assert request.owns("/streams")
    assert not request.owns("//other/streams")


def test_without_compression_nothing_else_changes() -> None:
    request = Request("GET", URL, (("accept-encoding", "gzip"), ("X", "1")))
    assert request.without_compression().headers == (("X", "1"), ("Accept-Encoding", "identity"))
