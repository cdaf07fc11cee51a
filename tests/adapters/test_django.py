"""Django: middlewares, database connections, views of every kind, and responses that are settled when they are made."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from asgiref.sync import AsyncToSync, async_to_sync, sync_to_async
from django.core.asgi import get_asgi_application
from django.core.signals import request_finished
from django.db import connection
from django.http import HttpResponse, StreamingHttpResponse
from django.test import AsyncRequestFactory, RequestFactory

from streamguard.adapters.django import GuardedResponse, StreamGuard, guarded
from streamguard.app import anyone_with_the_id
from streamguard.core.errors import SourceFailed
from streamguard.log.memory import MemoryLog
from streamguard.observe.hooks import Outcome, Refused
from streamguard.runtime.blocking import BodyAborted
from streamguard.runtime.timing import Timing
from tests.adapters.django_site import ASGI, DIRECT, WSGI
from tests.adapters.servers import DEADLINE, Connection, Gate, serving
from tests.adapters.wsgi_calls import Answer, called
from tests.observe.noted import Noted

GZIP = {"HTTP_ACCEPT_ENCODING": "gzip"}


def two() -> Iterator[str]:
    yield "one "
    yield "two"


async def two_later() -> AsyncIterator[str]:
    yield "one "
    yield "two"


def failing() -> Iterator[str]:
    yield "one "
    raise SourceFailed("overloaded", "come back later")


async def failing_later() -> AsyncIterator[str]:
    yield "one "
    raise SourceFailed("overloaded", "come back later")


def sent(view: Any, path: str = "/direct/view", **headers: str) -> bytes:
    """What a server would send of a view's answer, under ASGI."""
    DIRECT["view"] = view
    with serving(ASGI) as server, Connection(server.port) as reader:
        reader.get(path, connection="close", **headers)
        return reader.rest()


def under_wsgi(view: Any, path: str = "/direct-sync/view", **more: Any) -> Answer:
    DIRECT["view"] = view
    return called(WSGI, path, **more)


def test_gzip_middleware_compresses_pages_and_leaves_streams_alone() -> None:
    assert called(WSGI, "/page", **GZIP).headers["content-encoding"] == "gzip"
    answer = under_wsgi(guarded(lambda request: two()), **GZIP)
    assert answer.headers["content-encoding"] == "identity"
    assert b'data: "one two"' in answer.body
    raw = sent(guarded(two_view), accept_encoding="gzip")
    assert b"content-encoding: identity" in raw
    assert b"event: end" in raw
    assert b'data: "one "' in raw


async def two_view(request: Any) -> AsyncIterator[str]:
    yield "one "
    yield "two"


def test_a_plain_generator_has_a_connection_of_its_own_which_is_closed_behind_it() -> None:
    seen: list[Any] = []

    def asking(request: Any) -> Iterator[str]:
        with connection.cursor() as cursor:
            cursor.execute("select 1")
            yield "one "
            seen.append(connection.connection)
            cursor.execute("select 2")  # as long as it streams, it is open
            yield str(cursor.fetchone())
        seen.append((threading.get_ident(), connection))

    for run in (lambda: under_wsgi(guarded(asking)).body, lambda: sent(guarded(asking), path="/direct-sync/view")):
        seen.clear()
        assert b"(2,)" in run()
        raw, (thread, own) = seen
        assert raw is not None
        assert thread != threading.get_ident()
        assert own is not None
        with pytest.raises(Exception, match="closed database"):
            raw.execute("select 3")


def test_on_the_requests_thread_it_has_the_requests_connection_which_is_left_to_django() -> None:
    seen: list[Any] = []

    def asking(request: Any) -> Iterator[str]:
        with connection.cursor() as cursor:
            cursor.execute("select 2")
            yield str(cursor.fetchone())
        seen.append(connection.connection)

    @guarded(own_thread=False)
    def view(request: Any) -> Any:
        connection.ensure_connection()
        seen.append(connection.connection)
        return asking(request)

    def by_hand(request: Any) -> Any:
        connection.ensure_connection()
        seen.append(connection.connection)
        return GuardedResponse(request, asking(request), own_thread=False)

    for each in view, by_hand:
        assert b"(2,)" in under_wsgi(each).body
        assert seen[-2] is seen[-1]
    assert b"(2,)" in sent(view, path="/direct-sync/view")  # under ASGI it has a thread of its own
    assert seen[-2] is not seen[-1]


def test_a_plain_generator_streams_under_asgi_from_its_first_token_on() -> None:
    gate = Gate()

    @guarded
    def waiting(request: Any) -> Iterator[str]:
        yield "one "
        gate.wait()
        yield "two"

    DIRECT["view"] = waiting
    with serving(ASGI) as server, Connection(server.port) as reader:
        reader.get("/direct-sync/view", connection="close")
        assert b"two" not in reader.until(b"one ")
        gate.open()
        assert b"event: end" in reader.rest()


def test_an_async_source_may_use_the_database_under_both_and_its_connection_is_closed() -> None:
    seen: list[Any] = []

    def ask() -> str:
        with connection.cursor() as cursor:
            cursor.execute("select 1")
            seen.append(connection.connection)
            return str(cursor.fetchone())

    async def asking(request: Any) -> AsyncIterator[str]:
        try:
            yield await sync_to_async(ask)()
        finally:
            await sync_to_async(ask)()

    assert b"(1,)" in under_wsgi(guarded(asking), "/direct/view").body
    assert b"(1,)" in sent(guarded(asking))
    for raw in seen:
        with pytest.raises(Exception, match="closed database"):
            raw.execute("select 3")


def test_asgiref_keeps_a_threads_executor_where_an_async_source_hides_it() -> None:
    """Under no public name: where it is renamed, hiding it would hide nothing, and say nothing."""
    seen: list[Any] = []

    async def look() -> None:
        seen.append(AsyncToSync.executors.current)

    async_to_sync(look)()
    assert isinstance(seen[0], concurrent.futures.Executor)


def test_a_request_is_finished_when_its_stream_is_and_not_before() -> None:
    steps: list[str] = []

    async def streaming(request: Any) -> AsyncIterator[str]:
        yield "one"
        await asyncio.sleep(0.01)
        steps.append("the source is over")

    def finished(**more: Any) -> None:
        steps.append("the request is finished")

    request_finished.connect(finished)
    try:
        sent(guarded(streaming))
        under_wsgi(guarded(streaming), "/direct/view")
    finally:
        request_finished.disconnect(finished)
    assert steps == 2 * ["the source is over", "the request is finished"]


def test_a_stream_that_failed_is_cut_with_and_without_a_seal(caplog: Any) -> None:
    for source in (failing, failing_later):
        raw = sent(lambda request, source=source: answering(request, source()))
        assert b'"code":"overloaded"' in raw
        assert not raw.endswith(b"0\r\n\r\n")
    assert not [record for record in caplog.records if record.exc_info]
    answer = under_wsgi(lambda request: GuardedResponse(request, failing()))
    assert isinstance(answer.cut, BodyAborted)

    async def unsealed() -> None:
        async for _ in await answering(AsyncRequestFactory().get("/"), failing_later()):
            pass

    with pytest.raises(BodyAborted):
        asyncio.run(unsealed())


async def answering(request: Any, source: Any) -> Any:
    return GuardedResponse(request, source, timing=Timing(linger=0.01))


@pytest.mark.parametrize("wrapped", [False, True])
def test_parts_go_straight_to_the_server_unless_a_middleware_took_the_body(wrapped: bool) -> None:
    taken: list[bytes] = []

    async def view(request: Any) -> Any:
        response = GuardedResponse(request, two_later())
        if wrapped:
            inner = response.streaming_content

            async def counted() -> AsyncIterator[bytes]:
                async for part in inner:
                    taken.append(part)
                    yield part

            response.streaming_content = counted()
        return response

    raw = sent(view)
    assert raw.count(b"event: end\n") == 1
    assert raw.endswith(b"0\r\n\r\n")
    assert bool(taken) == wrapped


def test_a_response_is_settled_when_it_is_made() -> None:
    ends: list[Outcome] = []
    noted = Noted()

    async def view(request: Any) -> Any:
        return GuardedResponse(request, two_later(), 201, {"x-own": "kept"}, on_end=ends.append, observe=noted)

    async def refused(request: Any) -> Any:
        with pytest.raises(ValueError, match="need a view under @guarded"):
            GuardedResponse(request, two_later(), timing=Timing(peek=1.0))
        return await view(request)

    raw = sent(refused)
    assert raw.startswith(b"HTTP/1.1 201")
    assert b"x-own: kept" in raw
    assert [end.status for end in ends] == ["complete"]
    cursor = "0000000000000000000000.1.5.00000000"
    assert sent(view, last_event_id=cursor).startswith(b"HTTP/1.1 404")
    lost = sent(view, last_event_id=cursor, accept="text/event-stream")
    assert b".lost\n" in lost
    assert not lost.endswith(b"0\r\n\r\n")
    assert [event.status for event in noted.all(Refused)] == [404, 200]
    with pytest.raises(TypeError, match="the request comes first"):
        GuardedResponse(two_later(), None)  # type: ignore[arg-type]


@pytest.mark.parametrize("under", ["ASGI", "WSGI"])
@pytest.mark.parametrize("kind", ["yields", "returns", "yields later", "returns later"])
def test_views_of_every_kind_are_guarded(kind: str, under: str) -> None:
    def yielding(request: Any) -> Iterator[str]:
        yield from two()

    async def returning_later(request: Any) -> Any:
        return two_later()

    views: dict[str, Any] = {
        "yields": yielding,
        "returns": lambda request: two(),
        "yields later": two_view,
        "returns later": returning_later,
    }
    later = kind.endswith("later")
    path = "/direct/view" if later else "/direct-sync/view"
    view = guarded(views[kind])
    raw = sent(view, path=path) if under == "ASGI" else under_wsgi(view, path).body
    assert raw.count(b"event: end\n") == 1
    assert b'"items":2' in raw


@pytest.mark.parametrize("send", [lambda view: sent(view, "/direct-sync/view"), lambda view: under_wsgi(view).body])
@pytest.mark.parametrize("answer", [StreamingHttpResponse, lambda found: {"found": 1}], ids=["streams", "dict"])
def test_what_is_refused_stands_in_the_log(send: Any, answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Django itself writes nothing of a 500 where DEBUG is off and logging is as it comes."""
    send(guarded(lambda request: answer(two())))
    (said,) = [record.getMessage() for record in caplog.records if record.name == "streamguard"]
    assert "would stream unguarded" in said or "return JsonResponse(…)" in said


def test_a_response_of_the_views_own_passes_unless_it_would_stream() -> None:
    assert under_wsgi(guarded(lambda request: HttpResponse("plain"))).body == b"plain"
    plain = guarded(lambda request: StreamingHttpResponse(two()))
    with pytest.raises(TypeError, match="would stream unguarded"):
        plain(RequestFactory().get("/"))


def test_a_view_is_called_only_for_a_request_that_starts_a_stream() -> None:
    calls: list[str] = []

    @guarded
    async def view(request: Any) -> Any:
        calls.append(request.method)
        return two_later()

    async def run() -> list[int]:
        factory = AsyncRequestFactory()
        cursor = {"last-event-id": "0000000000000000000000.1.5.00000000"}
        asked = [factory.head("/"), factory.get("/", headers=cursor), factory.get("/")]
        responses = [await view(request) for request in asked]
        [part async for part in responses[-1]]
        return [response.status_code for response in responses]

    assert asyncio.run(run()) == [200, 404, 200]
    assert calls == ["GET"]


def test_a_guard_answers_in_views_of_both_kinds() -> None:
    asked: list[str] = []

    def who(request: Any, action: str) -> str:
        with connection.cursor() as cursor:  # raises on a thread that runs an event loop
            cursor.execute("select 1")
        asked.append(action)
        return "ada"

    guard = StreamGuard(MemoryLog(), authorize=who)

    async def later(request: Any) -> Any:
        return await guard.response(request, two_later())

    def at_once(request: Any) -> Any:
        return guard.response(request, two())

    assert b"event: end" in sent(later)
    assert b"event: end" in sent(at_once, path="/direct-sync/view")
    assert asked == ["start", "start"]

    on_threads = StreamGuard(MemoryLog(), authorize=who)
    assert b"event: end" in under_wsgi(lambda request: on_threads.response(request, two())).body
    with pytest.raises(TypeError, match="urlpatterns is a list"):
        on_threads.install(())  # type: ignore[arg-type]
    on_threads.close()


def test_a_lifespan_is_answered_and_lets_go_of_the_guards_streams() -> None:
    closed: list[str] = []

    class Log(MemoryLog):
        async def aclose(self) -> None:
            closed.append("the log")
            await super().aclose()

    guard = StreamGuard(Log(), authorize=anyone_with_the_id)
    app = guard.seal(get_asgi_application())
    told: list[str] = []

    async def run() -> None:
        waiting = ["lifespan.startup", "lifespan.shutdown"]

        async def receive() -> Any:
            return {"type": waiting.pop(0)}

        async def send(message: Any) -> None:
            told.append(message["type"])

        await asyncio.wait_for(app({"type": "lifespan", "asgi": {}}, receive, send), DEADLINE)

    asyncio.run(run())
    assert told == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert closed == ["the log"]
