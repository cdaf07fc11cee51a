"""What holds of `guarded` under FastAPI holds of `guard.stream`: the same tests, with the one in place of the other.

The tests are those of `test_fastapi` and `test_dependencies`; what they call `guarded` is here the `stream` of a new
guard each time. Those whose endpoints were made when their module was loaded are left out.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import Depends, FastAPI, Request

from streamguard import Cancel, Detach, anyone_with_the_id
from streamguard.adapters.fastapi import StreamGuard
from streamguard.log.memory import MemoryLog
from streamguard.runtime.timing import Timing
from tests.adapters import test_dependencies, test_fastapi
from tests.adapters.asgi_apps import exchange
from tests.adapters.logged_apps import OURS, cursors, reading, text_of
from tests.adapters.servers import Gate, serving
from tests.adapters.test_contexts import ENDINGS
from tests.adapters.test_dependencies import (
    WAYS,
    test_a_factory_from_a_dependency_serves_the_stream_whatever_its_scope,
    test_a_session_of_the_framework_serves_to_the_end_where_it_stays_open_and_fails_the_stream_where_not,
    test_nothing_is_opened_for_a_request_that_starts_nothing,
    test_the_scope_of_a_dependency_decides_whether_its_session_serves_the_stream,
)
from tests.adapters.test_fastapi import (
    test_a_context_variable_of_a_dependency_is_seen_at_every_step,
    test_a_dependency_stays_open_while_the_stream_lasts,
    test_a_dependency_that_closes_early_or_late_harms_no_stream,
    test_a_form_is_no_body_to_be_read_again,
    test_a_plain_def_is_guarded_too,
    test_a_response_of_the_endpoints_own_passes,
    test_a_source_that_opens_its_own_resource_has_it_to_its_end,
    test_an_endpoint_that_returns_its_source_does_not_run_where_nothing_starts,
    test_an_endpoint_that_yields_may_read_the_request_itself,
    test_an_http_exception_before_the_first_token_is_its_status_in_peek_and_a_terminal_without,
    test_an_http_exception_before_the_source_is_its_status,
    test_any_method_serves_a_stream,
    test_background_tasks_run_after_the_stream,
    test_guarded_above_the_route_guards_nothing_and_is_told,
    test_head_starts_no_source,
    test_the_decorator_shows_a_resolved_signature_and_no_wrapped_function,
    test_the_routes_status_and_an_injected_responses_headers_are_those_of_the_answer,
)

__all__ = [
    "test_a_context_variable_of_a_dependency_is_seen_at_every_step",
    "test_a_dependency_stays_open_while_the_stream_lasts",
    "test_a_dependency_that_closes_early_or_late_harms_no_stream",
    "test_a_factory_from_a_dependency_serves_the_stream_whatever_its_scope",
    "test_a_form_is_no_body_to_be_read_again",
    "test_a_plain_def_is_guarded_too",
    "test_a_response_of_the_endpoints_own_passes",
    "test_a_session_of_the_framework_serves_to_the_end_where_it_stays_open_and_fails_the_stream_where_not",
    "test_a_source_that_opens_its_own_resource_has_it_to_its_end",
    "test_an_endpoint_that_returns_its_source_does_not_run_where_nothing_starts",
    "test_an_endpoint_that_yields_may_read_the_request_itself",
    "test_an_http_exception_before_the_first_token_is_its_status_in_peek_and_a_terminal_without",
    "test_an_http_exception_before_the_source_is_its_status",
    "test_any_method_serves_a_stream",
    "test_background_tasks_run_after_the_stream",
    "test_guarded_above_the_route_guards_nothing_and_is_told",
    "test_head_starts_no_source",
    "test_nothing_is_opened_for_a_request_that_starts_nothing",
    "test_the_decorator_shows_a_resolved_signature_and_no_wrapped_function",
    "test_the_routes_status_and_an_injected_responses_headers_are_those_of_the_answer",
    "test_the_scope_of_a_dependency_decides_whether_its_session_serves_the_stream",
]


def stream(endpoint: Any = None, **options: Any) -> Any:
    """`guarded`, into a log of its own. A reader that leaves ends its stream, as it does there."""
    guard = StreamGuard(MemoryLog(), authorize=anyone_with_the_id, on_disconnect=Cancel())
    return guard.stream(**options) if endpoint is None else guard.stream(endpoint)


@pytest.fixture(autouse=True)
def instead_of_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (test_fastapi, test_dependencies):
        monkeypatch.setattr(module, "guarded", stream)


@pytest.mark.parametrize("ending", [ending for ending in ENDINGS if ending != "gone"])
@pytest.mark.parametrize("way", WAYS)
def test_a_session_that_the_source_opens_is_there_to_its_end(way: str, ending: str) -> None:
    """Save where the reader leaves: the log then has a stream that was `cancelled`, code `gone`."""
    test_dependencies.test_a_session_that_the_source_opens_is_there_to_its_end_and_closed_on_every_exit(way, ending)


def an_app(**options: Any) -> tuple[FastAPI, StreamGuard]:
    guard = StreamGuard(MemoryLog(), authorize=lambda request, action: request.headers.get("user", "ann"), **options)
    return FastAPI(), guard


def test_the_endpoints_stand_in_no_schema() -> None:
    app, guard = an_app()

    @app.get("/tokens")
    @guard.stream
    async def tokens() -> AsyncIterator[str]:
        yield "t0 "

    guard.install(app, "/streams")
    assert list(app.openapi()["paths"]) == ["/tokens"]
    with serving(app) as server:
        schema = json.loads(exchange(server.connect(), path="/openapi.json").body)
        at = cursors(exchange(server.connect(), path="/tokens", **OURS).body)[0]
        assert exchange(server.connect(), path="/streams/status", last_event_id=str(at)).status == 200
    assert list(schema["paths"]) == ["/tokens"]


def test_a_key_covers_the_body_that_a_model_was_made_of() -> None:
    app, guard = an_app()
    runs = []

    @app.post("/json")
    @guard.stream
    async def json_endpoint(prompt: dict[str, str]) -> AsyncIterator[str]:
        runs.append("json")
        yield prompt["text"]

    guard.install(app)
    with serving(app) as server:

        def ask(text: str) -> Any:
            body = json.dumps({"text": text}).encode()
            own = {"idempotency_key": "k", "content_type": "application/json"}
            return exchange(server.connect(), "POST", "/json", body=body, **own)

        assert [text_of(ask("hi ").body) for _ in range(2)] == ["hi ", "hi "]
        assert ask("ho ").status == 422
    assert runs == ["json"]


def test_a_dependency_stays_open_as_long_as_the_stream_that_its_reader_left() -> None:
    """A session that was closed under a source which goes on would fail it."""
    gate, order = Gate(), []
    closed = Gate()

    async def session() -> AsyncIterator[str]:
        yield "session"
        order.append("closed")
        closed.open()

    app, guard = an_app(on_disconnect=Detach(60.0))
    given: Any = Depends(session)

    @app.get("/tokens")
    @guard.stream(timing=Timing(linger=0.05))
    async def tokens(request: Request, session: str = given) -> AsyncIterator[str]:
        yield "t0 "
        await gate
        order.append("used")
        yield "t1 "

    guard.install(app)
    with serving(app) as server:
        with reading(server) as connection:
            connection.until(b't0 "')
        at = cursors(connection.received)[0]
        gate.open()
        closed.wait()
        answer = exchange(server.connect(), path="/streams", last_event_id=str(at), **OURS)
    if test_fastapi.CLOSES_LATE:
        assert order == ["used", "closed"]
    assert text_of(answer.body) == "t1 "
    assert answer.clean
