"""Starlette's idiom over the same verbs: a response, a decorator, and what Starlette does around them."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator
from typing import Any

import pydantic
import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.endpoints import HTTPEndpoint
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from streamguard.adapters.starlette import GuardedResponse, guarded
from streamguard.core.errors import Failure
from streamguard.core.flush import EveryTokens
from streamguard.core.receipt import Verdict
from streamguard.runtime.timing import Timing
from tests.adapters.asgi_apps import Ends, exchange, tokens
from tests.adapters.servers import Gate, serving

QUICK = Timing(linger=0.05)
PEEK = Timing(linger=0.05, peek=60.0)


@guarded
async def yielding(request: Request) -> AsyncIterator[str]:
    """Yields."""
    yield request.query_params.get("word", "t0 ")


@guarded
async def returning(request: Request) -> AsyncIterator[str]:
    return tokens()


@guarded(dialect="openai", flush=EveryTokens(2, first="policy"))
async def with_options(request: Request) -> AsyncIterator[str]:
    async for token in tokens():
        yield token


class Service:
    @guarded
    async def method(self, request: Request) -> AsyncIterator[str]:
        yield type(self).__name__


class Unguarded:
    async def method(self, request: Request) -> AsyncIterator[str]:
        yield type(self).__name__


class Endpoint(HTTPEndpoint):
    @guarded
    async def get(self, request: Request) -> AsyncIterator[str]:
        yield "get"

    @guarded
    async def post(self, request: Request) -> AsyncIterator[str]:
        yield (await request.body()).decode()


class Iterable:
    """An async iterable that is no iterator, as SDK streams are."""

    def __aiter__(self) -> AsyncIterator[str]:
        return tokens()


APP = Starlette(
    routes=[
        Route("/yielding", yielding),
        Route("/returning", returning),
        Route("/options", with_options),
        Route("/method", Service().method),
        Route("/bound", guarded(Unguarded().method)),
        Route("/class", Endpoint),
    ]
)


@pytest.mark.parametrize(
    ("method", "path", "frames"),
    [
        ("GET", "/yielding", 2),
        ("GET", "/yielding?word=x", 2),
        ("GET", "/returning", 4),
        ("GET", "/method", 2),
        ("GET", "/bound", 2),
        ("GET", "/class", 2),
        ("POST", "/class", 2),
    ],
)
def test_endpoints_of_every_kind_are_guarded(method: str, path: str, frames: int) -> None:
    with serving(APP) as server:
        response = exchange(server.connect(), method, path, body=b"body" if method == "POST" else b"")
    verifier = response.verified()
    assert (response.clean, verifier.verdict, verifier.receipt.frames) == (True, Verdict.COMPLETE, frames)


@pytest.mark.parametrize("size", [0, 1, 300_000])
def test_an_endpoint_that_yields_may_read_the_body_late(size: int) -> None:
    """By then the driver waits for the disconnect, and would take the body's messages for itself."""
    body = b"x" * size

    @guarded(timing=QUICK)
    async def reading(request: Request) -> AsyncIterator[str]:
        yield "first "
        await asyncio.sleep(0.01)
        yield f"{len(await request.body())} bytes"

    with serving(Starlette(routes=[Route("/", reading, methods=["POST"])])) as server, server.connect() as connection:
        head = f"POST / HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: {size}\r\n\r\n"
        connection.send(head.encode() + body[: size // 2])
        connection.send(body[size // 2 :])
        assert f"{size} bytes".encode() in connection.rest()


def test_options_of_the_decorator_hold_for_every_request() -> None:
    with serving(APP) as server:
        bodies = [exchange(server.connect(), path="/options").body for _ in range(2)]
    for body in bodies:
        assert b'"content":"t0 t1 "' in body
        assert b"data: [DONE]\n\n" in body


def test_head_starts_no_source() -> None:
    started = []

    @guarded
    async def counted(request: Request) -> AsyncIterator[str]:
        started.append(1)
        yield "t0 "

    with serving(Starlette(routes=[Route("/", counted)])) as server:
        head = exchange(server.connect(), "HEAD")
        assert (head.status, head.body, started) == (200, b"", [])
        exchange(server.connect())
    assert started == [1]


def test_the_decorator_keeps_the_endpoints_name_and_shows_no_wrapped_one() -> None:
    assert (yielding.__name__, yielding.__doc__) == ("yielding", "Yields.")
    assert not hasattr(yielding, "__wrapped__")


@pytest.mark.parametrize("kind", ["yields", "returns", "partial"])
def test_a_plain_def_is_guarded_too(kind: str) -> None:
    loops, threads = set(), set()

    def yields(request: Request) -> Any:
        for index in range(3):
            threads.add(threading.get_ident())
            yield f"t{index} "

    def returns(request: Request) -> Any:
        threads.add(threading.get_ident())  # it may block: it must not be on the loop's thread
        return tokens()

    async def main(request: Request) -> Any:
        loops.add(threading.get_ident())
        return PlainTextResponse("")

    endpoint = guarded({"yields": yields, "returns": returns, "partial": functools.partial(yields)}[kind])
    app = Starlette(routes=[Route("/", endpoint), Route("/loop", main)])
    with serving(app) as server:
        response = exchange(server.connect())
        exchange(server.connect(), path="/loop")
    assert response.verdict is Verdict.COMPLETE
    assert b"t2 " in response.body
    assert len(threads) == 1
    assert not threads & loops


def test_what_is_no_function_is_refused_with_what_to_do() -> None:
    with pytest.raises(TypeError, match="a function that yields"):
        guarded(Service)  # type: ignore[call-overload]


def test_a_response_of_the_endpoints_own_passes() -> None:
    @guarded
    async def refusing(request: Request) -> Any:
        if "why" in request.query_params:
            return JSONResponse({"no": True}, status_code=409)
        return Iterable()

    with serving(Starlette(routes=[Route("/", refusing)])) as server:
        refused = exchange(server.connect(), path="/?why")
        served = exchange(server.connect())
    assert (refused.status, refused.body) == (409, b'{"no":true}')
    assert served.verdict is Verdict.COMPLETE


@pytest.mark.parametrize("size", [0, 3])
def test_a_finished_task_is_its_result_and_no_empty_answer(size: int) -> None:
    @guarded
    async def endpoint(request: Request) -> Any:
        async def load() -> AsyncIterator[str]:
            return tokens(size)

        task = asyncio.ensure_future(load())
        await asyncio.wait([task])
        return task

    with serving(Starlette(routes=[Route("/", endpoint)])) as server:
        response = exchange(server.connect())
    assert (response.verdict, response.verified().receipt.frames) == (Verdict.COMPLETE, size + 1)


def test_a_generator_for_all_requests_serves_one_and_then_says_so(caplog: pytest.LogCaptureFixture) -> None:
    everybodys = tokens()

    @guarded
    async def endpoint(request: Request) -> Any:
        return everybodys

    with serving(Starlette(routes=[Route("/", endpoint)])) as server:
        first, second = exchange(server.connect()), exchange(server.connect())
    assert (first.verdict, second.status) == (Verdict.COMPLETE, 500)
    assert "already exhausted: make a new one for each request" in caplog.text


class Streaming(Response):
    """As sse-starlette's EventSourceResponse is, which is no StreamingResponse."""

    def __init__(self, content: Any) -> None:
        self.body_iterator = content
        super().__init__()


@pytest.mark.parametrize("kind", [StreamingResponse, Streaming])
def test_a_streaming_response_is_refused_with_what_to_return(kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    """It would pass unguarded, though the endpoint says that it is guarded."""

    @guarded
    async def endpoint(request: Request) -> Any:
        return kind(tokens())

    with serving(Starlette(routes=[Route("/", endpoint)])) as server:
        response = exchange(server.connect())
    assert response.status == 500
    assert f"returned a {kind.__name__}, which would stream unguarded: return its generator instead" in caplog.text


class Model(pydantic.BaseModel):
    """Which can be iterated, by its fields."""

    text: str = "hi"


class StreamingModel(Model):
    """One that is a source all the same."""

    def __iter__(self) -> Any:
        yield self.text


@pytest.mark.parametrize("kind", ["async", "plain"])
@pytest.mark.parametrize(
    ("result", "said"),
    [
        (None, "endpoint 'answer' returned None: did you forget `return`?"),
        *(
            (result, f"endpoint 'answer' returned a {name}: for an answer that does not stream return JSONResponse(…)")
            for result, name in ((Model(), "Model"), ({"a": 1}, "dict"), ("hi", "str"), (b"hi", "bytes"), (7, "int"))
        ),
    ],
    ids=repr,
)
def test_an_answer_that_does_not_stream_is_told_how_to_be_returned(
    kind: str, result: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    if kind == "async":

        async def answer(request: Request) -> Any:
            return result

    else:

        def answer(request: Request) -> Any:  # type: ignore[misc]
            return result

    with serving(Starlette(routes=[Route("/", guarded(answer))])) as server:
        assert exchange(server.connect()).status == 500
    assert f": {said}\n" in caplog.text


def test_a_model_that_yields_by_itself_is_a_source() -> None:
    @guarded
    async def answer(request: Request) -> Any:
        return StreamingModel()

    with serving(Starlette(routes=[Route("/", answer)])) as server:
        response = exchange(server.connect())
    assert (response.verdict, b"hi" in response.body) == (Verdict.COMPLETE, True)


def test_a_response_is_no_source() -> None:
    with pytest.raises(TypeError, match="PlainTextResponse is no source: give the generator"):
        GuardedResponse(PlainTextResponse("hi"))  # type: ignore[arg-type]


class TestResponse:
    def test_status_headers_and_cookies_are_the_callers(self) -> None:
        async def endpoint(request: Request) -> Response:
            response = GuardedResponse(tokens(), 203, {"X-One": "1"})
            response.headers["x-two"] = "2"
            response.set_cookie("a", "1")
            response.set_cookie("b", "2")
            response.status_code = 202
            return response

        with serving(Starlette(routes=[Route("/", endpoint)])) as server:
            response = exchange(server.connect())
        assert (response.status, response.header("x-one"), response.header("x-two")) == (202, "1", "2")
        cookies = [value.partition(";")[0] for name, value in response.headers if name == "set-cookie"]
        assert cookies == ["a=1", "b=2"]
        assert response.header("content-type") == "text/event-stream; charset=utf-8"

    @pytest.mark.parametrize("ending", ["complete", "failed", "gone"])
    def test_the_background_task_runs_after_every_end(self, ending: str) -> None:
        order: list[str] = []
        done = Gate()

        async def source() -> AsyncIterator[str]:
            yield "t0 "
            if ending == "failed":
                raise RuntimeError("the model broke")
            if ending == "gone":
                await asyncio.Event().wait()

        async def background() -> None:
            order.append("background")
            done.open()

        async def endpoint(request: Request) -> Response:
            return GuardedResponse(
                source(),
                background=BackgroundTask(background),
                timing=QUICK,
                on_end=lambda outcome: order.append(outcome.status),
            )

        with serving(Starlette(routes=[Route("/", endpoint)])) as server:
            with server.connect() as connection:
                connection.get()
                connection.until(b"t0 " if ending == "gone" else b"event: end")
            done.wait()
        assert order == [ending, "background"]

    def test_a_response_is_cancelled_from_elsewhere_and_has_its_outcome(self) -> None:
        responses: list[GuardedResponse] = []

        async def stream(request: Request) -> Response:
            async def waiting() -> AsyncIterator[str]:
                yield "t0 "
                await asyncio.Event().wait()

            responses.append(GuardedResponse(waiting(), timing=QUICK, on_end=ends))
            assert responses[0].outcome is None
            return responses[0]

        async def stop(request: Request) -> Response:
            responses[0].cancel(Failure("stopped", "somebody pressed stop"))
            return PlainTextResponse("stopped")

        ends = Ends()
        with serving(Starlette(routes=[Route("/", stream), Route("/stop", stop)])) as server:
            with server.connect() as connection:
                connection.get()
                connection.until(b"t0 ")
                assert exchange(server.connect(), path="/stop").status == 200
                assert b'"code":"stopped"' in connection.rest()
            ends.wait()
        assert responses[0].outcome == ends.outcomes[0]
        assert ends.outcomes[0].status == "cancelled"


async def denying() -> AsyncIterator[str]:
    raise PermissionError("not for you")
    yield


async def forbidden(request: Request, exc: Exception) -> Response:
    return JSONResponse({"error": "forbidden"}, status_code=403)


async def catch_all(request: Request, exc: Exception) -> Response:
    return JSONResponse({"error": "internal"}, status_code=500)


def failing_app(timing: Timing) -> Starlette:
    @guarded(timing=timing)
    async def denied(request: Request) -> AsyncIterator[str]:
        return denying()

    @guarded(timing=timing)
    async def http(request: Request) -> AsyncIterator[str]:
        raise HTTPException(403, "not for you")
        yield

    @guarded(timing=timing)
    async def http_returning(request: Request) -> AsyncIterator[str]:
        raise HTTPException(403, "not for you")

    return Starlette(
        routes=[Route("/denied", denied), Route("/http", http), Route("/http-returning", http_returning)],
        exception_handlers={PermissionError: forbidden, Exception: catch_all},
    )


def test_peek_turns_an_early_failure_into_the_status_that_the_application_gives_it() -> None:
    with serving(failing_app(PEEK)) as server:
        for path in ("/denied", "/http", "/http-returning"):
            response = exchange(server.connect(), path=path)
            assert (response.status, response.clean) == (403, True)
            assert response.header("streamguard") is None


def test_without_peek_it_is_a_terminal_and_no_handler_is_asked() -> None:
    with serving(failing_app(QUICK)) as server:
        for path in ("/denied", "/http"):
            response = exchange(server.connect(), path=path)
            assert (response.status, response.clean, response.verdict) == (200, False, Verdict.FAILED)
            assert b"not for you" not in response.body


def test_what_an_endpoint_raises_before_it_returns_its_source_is_a_status_in_any_mode() -> None:
    with serving(failing_app(QUICK)) as server:
        response = exchange(server.connect(), path="/http-returning")
    assert (response.status, response.body) == (403, b"not for you")


def test_an_expected_status_in_peek_is_no_error_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """The exception goes to the application, which answers it; a traceback as well would tell of it twice."""
    with serving(failing_app(PEEK)) as server:
        assert exchange(server.connect(), path="/http").status == 403
    assert [record for record in caplog.records if record.name == "streamguard" and record.exc_info] == []
