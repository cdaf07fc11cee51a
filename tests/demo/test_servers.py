"""The lab's servers are real processes, and none is left behind."""

from __future__ import annotations

import httpx
import pytest

from streamguard.demo.servers import Asked, LabError, serving


def test_what_is_asked_survives_the_query_string() -> None:
    asked = Asked("lag/8/guarded/3", 1, 3, 8, 0.0025, pace=0.1, flush=True, sse=True)
    assert Asked.of(asked.params()) == asked


def test_a_server_answers_and_says_what_it_generated_and_stops() -> None:
    with serving("unguarded") as addresses, httpx.Client(trust_env=False) as http:
        base = addresses["unguarded"]
        got = http.get(f"{base}/answer", params=Asked("x", 1, 2, 4, 0.0, pace=0.1).params())
        assert http.get(f"{base}/made").json() == {"x": {"text": got.text, "over": True}}
        assert http.get(f"{base}/made").json() == {}
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{base}/made", trust_env=False)


def test_a_server_that_does_not_start_is_reported(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(LabError, match="the nothing server of the lab did not start"), serving("nothing"):
        pass
    assert "KeyError" in capfd.readouterr().err
