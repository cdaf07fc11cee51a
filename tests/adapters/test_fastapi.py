"""FastAPI over sockets: parameters, models, dependencies and decorators around a guarded endpoint.

Runs on the FastAPI that is installed, and with STREAMGUARD_OLDEST_FASTAPI (the interpreter of an environment
that has the oldest one which the extra allows) once more there.
"""

from __future__ import annotations

import contextvars
import functools
import json
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import anyio
import fastapi
import pytest
from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse

from streamguard.adapters.fastapi import GuardedResponse, SealMiddleware, guarded
from streamguard.core.receipt import Verdict
from streamguard.runtime.buffer import Buffer
from streamguard.runtime.timing import Timing
from streamguard.testing import ScriptedServer
from tests.adapters import future_endpoints, plain_endpoints
from tests.adapters.asgi_apps import Response, exchange
from tests.adapters.servers import Gate, serving
from tests.modules import ROOT

QUICK = Timing(linger=0.05)
PEEK = Timing(linger=0.05, peek=60.0)
OLDEST = os.environ.get("STREAMGUARD_OLDEST_FASTAPI", "")
# From 0.106 to 0.117 a dependency that yields is closed before the answer is sent, since 0.118 after it.
CLOSES_LATE = tuple(map(int, fastapi.__version__.split(".")[:2])) >= (0, 118)
CURSOR = "AAAAAAAAAAAAAAAAAAAAAA.3.21.0badcafe"
PROMPT = json.dumps({"text": "hi ", "times": 2}).encode()


def text_of(response: Response, dialect: str = "native") -> str:
    verifier = response.verified(dialect=dialect)
    assert verifier.verdict is Verdict.COMPLETE, response
    pieces = []
    for block in response.body.decode().split("\n\n"):
        data = "".join(line[6:] for line in block.split("\n") if line.startswith("data: "))
        if dialect == "native" and data and "event:" not in block:
            pieces.append(json.loads(data))
        elif data.startswith("{") and dialect == "openai":
            pieces += [choice["delta"].get("content") or "" for choice in json.loads(data)["choices"]]
    return "".join(pieces)


def ask(app: Any, path: str = "/", method: str = "GET", body: bytes = b"") -> Response:
    with serving(app) as server:
        return exchange(server.connect(), method, path, body=body, content_type="application/json")


def application(router: APIRouter) -> FastAPI:
    app = FastAPI()
    app.include_router(router)
    app.add_middleware(SealMiddleware)
    return app


@pytest.mark.parametrize("module", [future_endpoints, plain_endpoints], ids=["future", "plain"])
class TestEndpoints:
    @pytest.mark.parametrize(("kind", "dialect"), [("yields", "native"), ("returns", "openai")])
    def test_parameters_models_and_dependencies_arrive(self, kind: str, dialect: str, module: Any) -> None:
        path = f"{module.router.prefix}/{kind}/41?loud=true&token=t"
        response = ask(application(module.router), path, "POST", PROMPT)
        assert text_of(response, dialect) == "42 user t HI HI "

    @pytest.mark.parametrize(("kind", "method"), [("decorated", "PUT"), ("bound", "PATCH")])
    def test_methods_are_endpoints(self, kind: str, method: str, module: Any) -> None:
        response = ask(application(module.router), f"{module.router.prefix}/service/{kind}", method, PROMPT)
        assert text_of(response) == "service user nobody hi "

    def test_what_does_not_validate_is_refused_before_the_stream(self, module: Any) -> None:
        response = ask(application(module.router), f"{module.router.prefix}/yields/x", "POST", b"{}")
        assert response.status == 422
        assert {str(error["loc"][-1]) for error in json.loads(response.body)["detail"]} == {"room", "text"}

    def test_the_schema_describes_the_request_and_no_items(self, module: Any) -> None:
        schema = application(module.router).openapi()
        operation = schema["paths"][f"{module.router.prefix}/yields/{{room}}"]["post"]
        assert {parameter["name"] for parameter in operation["parameters"]} == {"room", "token", "loud"}
        assert "Prompt" in json.dumps(operation["requestBody"])
        assert operation["operationId"].startswith("yields")
        assert operation["responses"]["200"]["content"] == {"application/json": {"schema": {}}}


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_any_method_serves_a_stream(method: str) -> None:
    app = FastAPI()

    @app.api_route("/", methods=[method])
    @guarded
    async def endpoint() -> AsyncIterator[str]:
        yield method

    assert text_of(ask(app, method=method)) == method


def test_head_starts_no_source() -> None:
    app = FastAPI()
    started = []

    @app.api_route("/", methods=["GET", "HEAD"])
    @guarded
    async def endpoint() -> AsyncIterator[str]:
        started.append(1)
        yield "t0 "

    with serving(app) as server:
        head = exchange(server.connect(), "HEAD")
        assert (head.status, head.body, started) == (200, b"", [])
        get = exchange(server.connect())
    assert head.header("content-type") == get.header("content-type")
    assert get.header("streamguard") is not None


def test_an_endpoint_that_yields_may_read_the_request_itself() -> None:
    app = FastAPI()

    @app.post("/")
    @guarded(timing=QUICK)
    async def endpoint(request: Request, times: int = 1) -> AsyncIterator[str]:
        yield "first "
        yield str((await request.json())["text"]) * times

    assert text_of(ask(app, "/?times=2", "POST", PROMPT)) == "first hi hi "


def forms() -> bool:
    """Whether FastAPI finds its parser of forms: the oldest looks under a name that another library has too."""
    word: Any = fastapi.Form()

    def endpoint(text: str = word) -> None: ...

    try:
        FastAPI().post("/")(endpoint)
    except RuntimeError:
        return False
    return True


@pytest.mark.skipif(not forms(), reason="absent: python_multipart (pip install python-multipart)")
def test_a_form_is_no_body_to_be_read_again() -> None:
    app = FastAPI()
    word: Any = fastapi.Form()

    @app.post("/")
    @guarded(timing=QUICK)
    async def endpoint(request: Request, text: str = word) -> AsyncIterator[str]:
        yield text

    with serving(app) as server:
        form = {"content_type": "application/x-www-form-urlencoded", "body": b"text=hi"}
        assert text_of(exchange(server.connect(), "POST", **form)) == "hi"


def plain_wrapper(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator as people write them: it passes on whatever comes back."""

    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        return result if hasattr(result, "__aiter__") else await result

    return wrapper


def generator_wrapper(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> AsyncIterator[str]:
        async for token in function(*args, **kwargs):
            yield f"<{token}>"

    return wrapper


async def shout(word: str, request: Request, times: int = 1) -> AsyncIterator[str]:
    for _ in range(times):
        yield word.upper()


async def shout_returned(word: str, request: Request, times: int = 1) -> AsyncIterator[str]:
    return shout(word, request, times)


@pytest.mark.parametrize(
    ("endpoint", "text"),
    [
        (plain_wrapper(guarded(shout)), "HIHI"),
        (plain_wrapper(guarded(shout_returned)), "HIHI"),
        (guarded(plain_wrapper(shout)), "HIHI"),
        (guarded(plain_wrapper(shout_returned)), "HIHI"),
        (guarded(generator_wrapper(shout)), "<HI><HI>"),
        (plain_wrapper(guarded(generator_wrapper(shout))), "<HI><HI>"),
        (guarded(functools.partial(shout, times=2)), "HIHI"),
    ],
    ids=["above", "above, returned", "below", "below, returned", "below, yields", "both", "partial"],
)
def test_other_decorators_stand_above_and_below(endpoint: Any, text: str) -> None:
    app = FastAPI()
    app.get("/{word}")(endpoint)
    assert text_of(ask(app, "/hi?times=2")) == text


@pytest.mark.parametrize("kind", ["yields", "returns"])
def test_a_plain_def_is_guarded_too(kind: str) -> None:
    def yields(word: str, times: int = 1) -> Iterator[str]:
        for _ in range(times):
            yield word.upper()

    def returns(word: str, times: int = 1) -> Iterator[str]:
        return yields(word, times)

    app = FastAPI()
    app.get("/{word}")(guarded({"yields": yields, "returns": returns}[kind]))
    assert text_of(ask(app, "/hi?times=2")) == "HIHI"


def test_guarded_above_the_route_guards_nothing_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    app = FastAPI()

    @guarded
    @app.get("/{word}")
    async def chat(word: str) -> Any:
        return [word]

    app.add_middleware(SealMiddleware)
    assert ask(app, "/hi").header("streamguard") is None
    told = [record.getMessage() for record in caplog.records if record.name == "streamguard"]
    assert [("chat" in message, "below the route's decorator" in message) for message in told] == [(True, True)]


def test_a_streaming_class_of_the_route_is_told_to_be_removed(caplog: pytest.LogCaptureFixture) -> None:
    """FastAPI does not await an endpoint of such a route, so that the decorator itself can refuse nothing. Not served
    here: the coroutines that nobody awaits would be warnings in whatever test is the next to collect garbage."""
    sse = pytest.importorskip("fastapi.sse", reason="absent: fastapi.sse (pip install 'fastapi>=0.135')")
    app = FastAPI()

    @app.get("/", response_class=sse.EventSourceResponse)
    @guarded
    async def chat() -> AsyncIterator[str]:
        yield "a"

    async def starting(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    (route,) = [route for route in app.routes if getattr(route, "endpoint", None) is chat]
    for _ in range(2):
        server = ScriptedServer(SealMiddleware(starting), scope={"endpoint": chat, "route": route})
        anyio.run(server.run)
        assert server.status == 200
    told = [record.getMessage() for record in caplog.records if record.name == "streamguard"]
    assert told == ["endpoint 'chat': remove `response_class=EventSourceResponse`: @guarded writes the events"]


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(TypeError, match="a function that yields"):
        guarded(FastAPI)  # type: ignore[call-overload]


def test_a_buffer_is_an_option_and_no_number() -> None:
    @guarded(buffer=Buffer(max_items=2))
    async def endpoint() -> AsyncIterator[str]:
        for index in range(10):
            yield f"{index} "

    app = FastAPI()
    app.get("/")(endpoint)
    assert text_of(ask(app, "/")) == "0 1 2 3 4 5 6 7 8 9 "
    with pytest.raises(TypeError, match="buffer is a Buffer"):
        guarded(buffer=100)  # type: ignore[call-overload]


def test_a_response_of_the_endpoints_own_passes() -> None:
    app = FastAPI()

    @app.get("/")
    @guarded
    async def endpoint() -> Any:
        return JSONResponse({"busy": True}, status_code=429)

    response = ask(app)
    assert (response.status, response.body) == (429, b'{"busy":true}')


def set_by_dependency(response: fastapi.Response) -> None:
    response.headers["x-dependency"] = "1"
    response.set_cookie("session", "s")


def dressed_app() -> FastAPI:
    app = FastAPI(dependencies=[Depends(set_by_dependency)])

    @app.get("/returns", status_code=201)
    @guarded
    async def returns(response: fastapi.Response) -> AsyncIterator[str]:
        response.headers["x-own"] = "1"
        response.set_cookie("own", "o")
        return shout("hi", None, 1)  # type: ignore[arg-type]

    @app.get("/chooses", status_code=201)
    @guarded
    async def chooses(answer: fastapi.Response) -> AsyncIterator[str]:
        answer.status_code = 203
        return shout("hi", None, 1)  # type: ignore[arg-type]

    @app.get("/yields", status_code=201)
    @guarded
    async def yields() -> AsyncIterator[str]:
        yield "HI"

    @app.get("/yields-and-asks", status_code=201)
    @guarded
    async def yields_and_asks(response: fastapi.Response) -> AsyncIterator[str]:
        response.headers["x-late"] = "1"  # by now the headers are gone
        yield "HI"

    @app.get("/own", status_code=201)
    @guarded
    async def own(response: fastapi.Response) -> Any:
        response.headers["x-own"] = "1"
        return GuardedResponse(shout("hi", None, 1), 202)  # type: ignore[arg-type]

    outer = FastAPI()
    router = APIRouter(prefix="/router")
    router.add_api_route("/yields", yields, status_code=203, dependencies=[Depends(set_by_dependency)])
    outer.include_router(router)
    outer.mount("/app", app)
    outer.add_middleware(SealMiddleware)
    return outer


@pytest.mark.parametrize(
    ("path", "status", "cookies"),
    [
        ("/app/returns", 201, ["session=s", "own=o"]),
        ("/app/chooses", 203, ["session=s"]),
        ("/app/yields", 201, ["session=s"]),
        ("/app/yields-and-asks", 201, ["session=s"]),
        ("/router/yields", 203, ["session=s"]),
    ],
)
def test_the_routes_status_and_an_injected_responses_headers_are_those_of_the_answer(
    path: str, status: int, cookies: list[str]
) -> None:
    """As FastAPI does for what an endpoint returns."""
    response = ask(dressed_app(), path)
    assert (response.status, text_of(response)) == (status, "HI")
    assert [value.partition(";")[0] for name, value in response.headers if name == "set-cookie"] == cookies
    assert response.header("x-own") == ("1" if path == "/app/returns" else None)
    assert response.header("x-dependency") == "1"
    assert response.header("x-late") is None
    assert response.header("content-type") == "text/event-stream; charset=utf-8"


def test_a_guarded_response_of_the_endpoints_own_stays_as_it_is() -> None:
    """As any response does that an endpoint returns under FastAPI."""
    response = ask(dressed_app(), "/app/own")
    assert (response.status, text_of(response)) == (202, "HI")
    assert not {"set-cookie", "x-dependency", "x-own"} & {name for name, _ in response.headers}


@pytest.mark.parametrize("timing", [QUICK, PEEK], ids=["at once", "peek"])
def test_an_http_exception_before_the_source_is_its_status(timing: Timing) -> None:
    app = FastAPI()

    @app.get("/")
    @guarded(timing=timing)
    async def endpoint() -> AsyncIterator[str]:
        raise HTTPException(403, "not for you")

    response = ask(app)
    assert (response.status, json.loads(response.body)) == (403, {"detail": "not for you"})


def test_an_http_exception_before_the_first_token_is_its_status_in_peek_and_a_terminal_without() -> None:
    app = FastAPI()

    async def endpoint() -> AsyncIterator[str]:
        raise HTTPException(403, "not for you")
        yield

    app.get("/peek")(guarded(timing=PEEK)(endpoint))
    app.get("/once")(guarded(timing=QUICK)(endpoint))
    peek, once = ask(app, "/peek"), ask(app, "/once")
    assert (peek.status, json.loads(peek.body)) == (403, {"detail": "not for you"})
    assert (once.status, once.clean, once.verdict) == (200, False, Verdict.FAILED)


def test_background_tasks_run_after_the_stream() -> None:
    app = FastAPI()
    order: list[str] = []
    done = Gate()

    def after() -> None:
        order.append("background")
        done.open()

    @app.get("/")
    @guarded(on_end=lambda outcome: order.append(outcome.status))
    async def endpoint(background: BackgroundTasks) -> AsyncIterator[str]:
        background.add_task(after)
        return shout("hi", None, 1)  # type: ignore[arg-type]

    with serving(app) as server:
        exchange(server.connect())
        done.wait()
    assert order == ["complete", "background"]


class Resource:
    """Something that must be open while it is used."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.open = False

    async def __aenter__(self) -> Resource:
        self.open = True
        self.events.append("opened")
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.open = False
        self.events.append("closed")

    async def read(self) -> AsyncIterator[str]:
        for index in range(3):
            assert self.open, "used while it was closed"
            self.events.append(f"read {index}")
            yield f"r{index} "


@pytest.mark.parametrize("ending", ["complete", "failed", "gone"])
def test_a_source_that_opens_its_own_resource_has_it_to_its_end(ending: str) -> None:
    """Whenever the framework closes what it opened itself."""
    own, theirs = Resource(), Resource()
    done = Gate()
    app = FastAPI()

    async def dependency() -> AsyncIterator[Resource]:
        async with theirs:
            yield theirs

    given: Any = Depends(dependency)

    @app.get("/")
    @guarded(timing=QUICK, on_end=lambda outcome: done.open())
    async def endpoint(resource: Resource = given) -> AsyncIterator[str]:
        async with own:
            async for piece in own.read():
                yield piece
            if ending == "failed":
                raise RuntimeError("the model broke")
            if ending == "gone":
                never = Gate()
                await never

    with serving(app) as server:
        with server.connect() as connection:
            connection.get()
            connection.until(b"r2 " if ending == "gone" else b"event: end")
        done.wait()
    assert own.events == ["opened", "read 0", "read 1", "read 2", "closed"]
    assert theirs.events == ["opened", "closed"]


@pytest.mark.skipif(not CLOSES_LATE, reason="this FastAPI closes dependencies before the answer is sent")
def test_a_dependency_stays_open_while_the_stream_lasts() -> None:
    resource = Resource()
    app = FastAPI()

    async def dependency() -> AsyncIterator[Resource]:
        async with resource:
            yield resource

    given: Any = Depends(dependency)

    @app.get("/")
    @guarded
    async def endpoint(resource: Resource = given) -> AsyncIterator[str]:
        async for piece in resource.read():
            yield piece

    assert text_of(ask(app)) == "r0 r1 r2 "
    assert resource.events[-1] == "closed"


@pytest.mark.skipif(not CLOSES_LATE, reason="this FastAPI has one order only")
@pytest.mark.parametrize("scope", ["function", "request"])
def test_a_dependency_that_closes_early_or_late_harms_no_stream(scope: str) -> None:
    closed: list[str] = []
    app = FastAPI()

    async def dependency() -> AsyncIterator[str]:
        yield "d0 "
        closed.append("dependency")

    closing: Any = Depends(dependency, scope=scope)

    @app.get("/")
    @guarded
    async def endpoint(piece: str = closing) -> AsyncIterator[str]:
        try:
            yield piece
            yield "t1 "
        finally:
            closed.append("source")

    assert text_of(ask(app)) == "d0 t1 "
    assert closed == (["dependency", "source"] if scope == "function" else ["source", "dependency"])


USER: contextvars.ContextVar[str] = contextvars.ContextVar("user", default="nobody")


def test_a_context_variable_of_a_dependency_is_seen_at_every_step() -> None:
    app = FastAPI()

    async def login(name: str) -> None:
        USER.set(name)

    @app.get("/", dependencies=[Depends(login)])
    @guarded
    async def endpoint() -> AsyncIterator[str]:
        for _ in range(3):
            yield USER.get() + " "

    assert text_of(ask(app, "/?name=ann")) == "ann ann ann "


def middleware_app(seal: bool) -> FastAPI:
    app = FastAPI()

    @app.get("/{ending}")
    @guarded(timing=QUICK)
    async def endpoint(ending: str) -> AsyncIterator[str]:
        yield "t0 "
        if ending == "fail":
            raise RuntimeError("the model broke")

    @app.middleware("http")
    async def passing(request: Request, call_next: Any) -> Any:
        return await call_next(request)

    if seal:
        app.add_middleware(SealMiddleware)
    return app


def test_under_app_middleware_the_seal_is_asked_for_and_then_holds(caplog: pytest.LogCaptureFixture) -> None:
    refused = ask(middleware_app(seal=False), "/finish")
    assert refused.status == 500
    assert "app.add_middleware(SealMiddleware)" in caplog.text
    failed, finished = [ask(middleware_app(seal=True), f"/{ending}") for ending in ("fail", "finish")]
    assert (failed.clean, failed.verdict) == (False, Verdict.FAILED)
    assert (finished.clean, finished.verdict) == (True, Verdict.COMPLETE)


def test_the_decorator_shows_a_resolved_signature_and_no_wrapped_function() -> None:
    assert not hasattr(future_endpoints.yields, "__wrapped__")
    assert future_endpoints.yields.__name__ == "yields"


@pytest.mark.skipif(not OLDEST, reason="absent: FastAPI 0.110 (set STREAMGUARD_OLDEST_FASTAPI to its interpreter)")
def test_all_of_this_holds_on_the_oldest_fastapi() -> None:
    tests = ["test_fastapi.py", "test_starlette.py", "test_seal.py"]
    command = [OLDEST, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "filterwarnings=", "-o", "addopts="]
    environment = {name: value for name, value in os.environ.items() if name != "STREAMGUARD_CI"}
    done = subprocess.run(
        [*command, "--import-mode=importlib", "--deselect", "tests/adapters/test_fastapi.py::" + _THIS]
        + [f"tests/adapters/{name}" for name in tests],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


_THIS = test_all_of_this_holds_on_the_oldest_fastapi.__name__


@pytest.mark.parametrize(("method", "headers"), [("GET", {"last-event-id": CURSOR}), ("HEAD", {})])
def test_an_endpoint_that_returns_its_source_does_not_run_where_nothing_starts(method: str, headers: Any) -> None:
    """It may have called a paid model before it returns; a request that starts nothing must not reach it."""
    ran = []
    app = FastAPI()

    @app.api_route("/", methods=["GET", "HEAD"])
    @guarded
    async def paid(word: str = "hi") -> AsyncIterator[str]:
        ran.append(word)
        return shout(word, Request({"type": "http"}))

    app.add_middleware(SealMiddleware)
    with serving(app) as server:
        refused = exchange(server.connect(), method, "/", **headers)
        assert ran == []
        served = exchange(server.connect(), "GET", "/")
    assert refused.status == (404 if headers else 200)
    assert served.status == 200
    assert ran == ["hi"]
