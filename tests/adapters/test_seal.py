"""The seal: an abort stays an abort under BaseHTTPMiddleware, and where it could not, no stream starts."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from streamguard.adapters.seal import (
    ASGIApp,
    Message,
    Receive,
    Scope,
    SealMiddleware,
    Send,
    UnsealedResponse,
    part_send,
)
from streamguard.adapters.shutdown import DRAIN
from streamguard.adapters.starlette import GuardedResponse, guarded
from streamguard.core.receipt import Verdict
from streamguard.observe.hooks import Refused
from streamguard.runtime.timing import Timing
from tests.adapters.asgi_apps import exchange
from tests.adapters.servers import serving, stack_params
from tests.observe.noted import Noted

QUICK = Timing(linger=0.05)
LINE = "app.add_middleware(SealMiddleware)"


async def broken() -> AsyncIterator[str]:
    yield "t0 "
    raise RuntimeError("the model broke")


async def whole() -> AsyncIterator[str]:
    yield "t0 "


async def passing(request: Request, call_next: Any) -> Response:
    response: Response = await call_next(request)
    return response


def application(*layers: Any, **options: Any) -> Starlette:
    """An application with `layers`, innermost first, as `add_middleware` takes them."""

    async def fail(request: Request) -> Response:
        return GuardedResponse(broken(), timing=QUICK, **options)

    async def finish(request: Request) -> Response:
        return GuardedResponse(whole(), timing=QUICK, **options)

    async def plain(request: Request) -> Response:
        return JSONResponse({"plain": True})

    app = Starlette(routes=[Route("/fail", fail), Route("/finish", finish), Route("/plain", plain)])
    return layered(app, *layers)


def layered(app: Starlette, *layers: Any) -> Starlette:
    for layer in layers:
        if layer is BASE:
            app.add_middleware(BaseHTTPMiddleware, dispatch=passing)
        else:
            app.add_middleware(layer)
    return app


BASE = object()


class Passing:
    """A pure ASGI layer that wraps both functions."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def passed(message: Message) -> None:
            await send(message)

        await self.app(dict(scope), receive, passed)


class Ending(Passing):
    """A layer that ends whatever it is given, as BaseHTTPMiddleware does."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)
        if scope["type"] == "http":
            await send({"type": "http.response.body", "body": b"", "more_body": False})


class Tasked(Passing):
    """A layer that runs the application in a task of its own."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.app, scope, receive, send)


class Bound(Passing):
    """A layer that hands on a method of an object, as Starlette's GZipMiddleware does."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, _Responder(send).relay)


class _Responder:
    def __init__(self, send: Send) -> None:
        self.send = send

    async def relay(self, message: Message) -> None:
        await self.send(message)


class Partial(Passing):
    """A layer that hands on a partial, as Starlette's CORSMiddleware does; both functions are its own."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def relay(message: Message, send: Send) -> None:
            await send(message)

        async def received() -> Message:
            return await receive()

        await self.app(scope, received, functools.partial(relay, send=send))


class Dressed(BaseHTTPMiddleware):
    """A subclass, as most applications have them."""

    async def dispatch(self, request: Request, call_next: Any) -> Response:
        response: Response = await call_next(request)
        return response


def mounted(inner: Starlette, *layers: Any) -> Starlette:
    return layered(Starlette(routes=[Mount("/sub", app=inner)]), *layers)


SEALED: dict[str, Callable[[], tuple[ASGIApp, str]]] = {
    "nothing but the stream": lambda: (application(), ""),
    "a seal alone": lambda: (application(SealMiddleware), ""),
    "outermost": lambda: (application(BASE, SealMiddleware), ""),
    "outside of two": lambda: (application(BASE, Dressed, SealMiddleware), ""),
    "two seals, one between": lambda: (application(SealMiddleware, BASE, SealMiddleware), ""),
    "round the application": lambda: (SealMiddleware(application(BASE)), ""),
    "pure layers between": lambda: (application(Passing, BASE, Passing, SealMiddleware), ""),
    "a pure layer outside": lambda: (application(BASE, SealMiddleware, Passing), ""),
    "another that ends what it is given": lambda: (application(Ending, SealMiddleware), ""),
    "a task between": lambda: (application(Tasked, BASE, Tasked, SealMiddleware), ""),
    "in the application that mounts": lambda: (mounted(application(), BASE, SealMiddleware), "/sub"),
    "in the one that mounts, middleware in the other": lambda: (mounted(application(BASE), SealMiddleware), "/sub"),
    "in both": lambda: (mounted(application(BASE, SealMiddleware), BASE, SealMiddleware), "/sub"),
    "in the mounted one, which is all there is": lambda: (mounted(application(BASE, SealMiddleware)), "/sub"),
}

EXPOSED: dict[str, Callable[..., tuple[ASGIApp, str]]] = {
    "no seal": lambda **options: (application(BASE, **options), ""),
    "no seal, a subclass": lambda **options: (application(Dressed, **options), ""),
    "added too early": lambda **options: (application(SealMiddleware, BASE, **options), ""),
    "between two": lambda **options: (application(BASE, SealMiddleware, BASE, **options), ""),
    "pure layers between": lambda **options: (application(Passing, SealMiddleware, Passing, BASE, **options), ""),
    "mounted under one": lambda **options: (mounted(application(**options), BASE), "/sub"),
    "sealed in the mounted one only": lambda **options: (mounted(application(SealMiddleware, **options), BASE), "/sub"),
    "a task between": lambda **options: (application(Tasked, BASE, **options), ""),
    "a task and other layers between": lambda **options: (
        application(Passing, Tasked, Bound, Partial, BASE, **options),
        "",
    ),
    "a seal inside of the task": lambda **options: (application(SealMiddleware, Tasked, BASE, **options), ""),
    "too early in both": lambda **options: (
        mounted(application(BASE, SealMiddleware, **options), SealMiddleware, BASE),
        "/sub",
    ),
}


@pytest.mark.parametrize("where", SEALED)
def test_a_sealed_failure_is_an_abort_and_a_sealed_end_is_clean(where: str) -> None:
    app, prefix = SEALED[where]()
    with serving(app) as server:
        failed = exchange(server.connect(), path=f"{prefix}/fail")
        finished = exchange(server.connect(), path=f"{prefix}/finish")
        plain = exchange(server.connect(), path=f"{prefix}/plain")
    assert (failed.status, failed.clean, failed.verdict) == (200, False, Verdict.FAILED)
    assert (finished.status, finished.clean, finished.verdict) == (200, True, Verdict.COMPLETE)
    assert (plain.status, plain.clean, plain.body) == (200, True, b'{"plain":true}')


@pytest.mark.parametrize("stack", stack_params())
def test_the_seal_holds_on_every_server(stack: tuple[str, str]) -> None:
    with serving(application(BASE, SealMiddleware), http=stack[0], loop=stack[1]) as server:
        assert not exchange(server.connect(), path="/fail").clean
        assert exchange(server.connect(), path="/finish").clean


@pytest.mark.parametrize("where", EXPOSED)
def test_where_an_abort_could_not_arrive_no_stream_starts(where: str, caplog: pytest.LogCaptureFixture) -> None:
    app, prefix = EXPOSED[where]()
    with serving(app) as server:
        responses = [exchange(server.connect(), path=f"{prefix}/{path}") for path in ("finish", "fail", "plain")]
    assert [response.status for response in responses] == [500, 500, 200]
    assert all(response.clean for response in responses)
    assert LINE in caplog.text


@pytest.mark.parametrize("where", ["no seal", "mounted under one"])
def test_observers_are_told_of_a_stream_that_did_not_start_for_its_layers(where: str) -> None:
    noted = Noted()
    app, prefix = EXPOSED[where](observe=noted)
    with serving(app) as server:
        assert exchange(server.connect(), path=f"{prefix}/finish").status == 500
    assert [(event.why, event.status) for event in noted.all(Refused)] == [("unsealed", 500)]


@pytest.mark.parametrize("where", EXPOSED)
def test_unsealed_allow_serves_with_the_terminal_alone(where: str) -> None:
    app, prefix = EXPOSED[where](unsealed="allow")
    with serving(app) as server:
        failed = exchange(server.connect(), path=f"{prefix}/fail")
        finished = exchange(server.connect(), path=f"{prefix}/finish")
    assert (failed.clean, failed.verdict) == (True, Verdict.FAILED)
    assert (finished.clean, finished.verdict) == (True, Verdict.COMPLETE)


def test_the_line_in_the_message_is_the_remedy() -> None:
    assert LINE in str(UnsealedResponse())
    app = application(BASE)
    exec(LINE, {"app": app, "SealMiddleware": SealMiddleware})
    with serving(app) as server:
        assert not exchange(server.connect(), path="/fail").clean


def test_a_source_that_was_not_started_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    """Else each refused request would leave an awaitable behind that nobody awaited, and a warning."""
    closed = []

    async def loading() -> AsyncIterator[str]:
        return whole()

    class Loading:
        def __init__(self) -> None:
            self._inner = loading()

        def __await__(self) -> Any:
            return self._inner.__await__()

        def close(self) -> None:
            closed.append(1)
            self._inner.close()

    async def endpoint(request: Request) -> Response:
        return GuardedResponse(Loading())

    app = layered(Starlette(routes=[Route("/", endpoint)]), BASE)
    with serving(app) as server:
        assert exchange(server.connect()).status == 500
    assert closed == [1]


def test_one_aborted_answer_leaves_the_next_one_alone() -> None:
    with serving(application(BASE, SealMiddleware)) as server:
        for path, clean in [("/fail", False), ("/finish", True), ("/fail", False), ("/plain", True)]:
            assert exchange(server.connect(), path=path).clean is clean


def misplaced(*endpoints: Any) -> Starlette:
    """What `@guarded` above the route's decorator comes to: the route has the function as it was."""
    for endpoint in endpoints:
        guarded(endpoint)
    routes = [Route(f"/{number}", endpoint) for number, endpoint in enumerate(endpoints)]
    return layered(Starlette(routes=routes), BASE, SealMiddleware)


def test_a_guarded_function_that_is_routed_unguarded_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async def chat(request: Request) -> Response:
        return JSONResponse({"text": "half"})

    class Service:
        async def talk(self, request: Request) -> Response:
            return JSONResponse({"text": "half"})

    with serving(misplaced(chat, Service().talk)) as server:
        for number in (0, 0, 1, 1):
            assert exchange(server.connect(), path=f"/{number}").header("streamguard") is None
    told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert [name in message for name, message in zip(["chat", "talk"], told, strict=True)] == [True, True]
    assert all("put @guarded below the route's decorator" in message for message in told)


def test_what_is_guarded_after_all_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    """The function's own answer, and the answers of a guarded endpoint that are no streams."""

    async def own(request: Request) -> Response:
        return GuardedResponse(whole())

    @guarded
    async def busy(request: Request) -> Any:
        return JSONResponse({"busy": True}, status_code=429)

    app = misplaced(own)
    app.router.routes.append(Route("/busy", busy))
    with serving(app) as server:
        assert exchange(server.connect(), path="/0").header("streamguard") is not None
        assert exchange(server.connect(), path="/busy").status == 429
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_what_a_decorator_hid_is_told_too(caplog: pytest.LogCaptureFixture) -> None:
    async def chat(request: Request) -> Response:
        return JSONResponse({"text": "half"})

    @functools.wraps(chat)
    async def dressed(request: Request) -> Response:
        return await chat(request)

    guarded(dressed)
    with serving(layered(Starlette(routes=[Route("/", chat)]), SealMiddleware)) as server:
        exchange(server.connect())
    assert "put @guarded below the route's decorator" in caplog.text


@pytest.mark.anyio
async def test_websockets_pass_untouched() -> None:
    scope: Scope = {"type": "websocket", "path": "/"}
    seen: list[Any] = []

    async def app(*call: Any) -> None:
        seen.append(call)

    async def receive() -> Message:
        raise AssertionError

    async def send(message: Message) -> None:
        raise AssertionError

    seal = SealMiddleware(app)
    await seal(scope, receive, send)
    assert seen == [(scope, receive, send)]
    assert seen[0][0] is scope
    assert scope == {"type": "websocket", "path": "/", DRAIN: seal.draining.draining}  # a guarded stream ends with it


# ---- parts of a body ----------------------------------------------------------------------------


class _Changing:
    """A middleware that changes bodies."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def changing(message: Message) -> None:
            await send({**message, "changed": True})

        await self.app(scope, receive, changing)


class _Noting(Response):
    """Keeps the `send` that it is called with."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["kept"].append(send)
        await super().__call__(scope, receive, send)


async def _sends(*layers: Any) -> tuple[Any, Any, list[Message]]:
    """What a response under `layers` is called with, the server's own, and what that got."""
    got: list[Message] = []
    kept: list[Any] = []

    async def server(message: Message) -> None:
        got.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def endpoint(request: Request) -> Response:
        return _Noting("whole")

    app = Starlette(routes=[Route("/", endpoint)])
    for layer in layers:
        app.add_middleware(layer)
    scope: Scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b"", "kept": kept}
    await app(scope, receive, server)
    return kept[0], server, got


@pytest.mark.anyio
async def test_a_part_of_a_body_passes_by_the_layers_that_look_at_nothing_but_the_start() -> None:
    send, server, _ = await _sends(SealMiddleware)
    assert send is not server
    assert part_send(send) is server


@pytest.mark.anyio
async def test_a_part_of_a_body_passes_by_no_layer_that_may_change_it() -> None:
    send, server, got = await _sends(SealMiddleware, _Changing)
    part = part_send(send)
    assert part is not server
    await part({"type": "http.response.body", "body": b"t0", "more_body": True})
    assert got[-1] == {"type": "http.response.body", "body": b"t0", "more_body": True, "changed": True}


@pytest.mark.anyio
async def test_a_part_of_a_body_passes_by_no_layer_of_others_however_like_starlettes_own() -> None:
    send, _, _ = await _sends()

    async def another(message: Message) -> None:
        await send(message)

    assert part_send(another) is another


@pytest.mark.anyio
async def test_a_part_of_a_body_passes_by_no_layer_of_starlettes_that_knows_another_word() -> None:
    send, _, _ = await _sends()
    code = send.__code__
    assert part_send(send) is not send
    send.__code__ = code.replace(co_consts=(*code.co_consts, "http.response.body"))
    assert part_send(send) is send
