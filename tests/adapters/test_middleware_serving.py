"""What the middleware's streams have of a server's life: a drain, limits, deadlines, readiness, quiet logs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any

import anyio
import pytest

from streamguard.adapters.middleware import GuardMiddleware
from streamguard.adapters.seal import ASGIApp, Message, Receive, Scope, Send
from streamguard.app import StreamGuard, anyone_with_the_id
from streamguard.core.dialect import Raw
from streamguard.log.memory import MemoryLog
from streamguard.observe.hooks import Outcome
from streamguard.runtime.slots import Limits
from streamguard.runtime.timing import Timing
from tests.adapters.middleware_apps import DONE, EVENTS, LINES, QUICK, Sent, called, chunk, events, http, streaming

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


FIRST = {EVENTS: chunk("a"), LINES: b'{"response": "a", "done": false}\n'}
REST = {EVENTS: [chunk(reason="stop"), DONE], LINES: [b'{"done": true}\n']}
KINDS = pytest.mark.parametrize("kind", [EVENTS, LINES], ids=["events", "lines"])


class Model:
    """A source that waits behind its first part until it is told to go on."""

    def __init__(self, kind: bytes) -> None:
        self.kind = kind
        self.begun = 0
        self.reached, self.go, self.closed = anyio.Event(), anyio.Event(), anyio.Event()

    async def __call__(self) -> AsyncGenerator[bytes, None]:
        self.begun += 1
        try:
            yield FIRST[self.kind]
            self.reached.set()
            await self.go.wait()
            for piece in REST[self.kind]:
                yield piece
        finally:
            self.closed.set()

    def behind(self, guard: StreamGuard | None = None, mode: Any = "guard", **named: Any) -> GuardMiddleware:
        options: dict[str, Any] = {"timing": QUICK, **named}
        return GuardMiddleware(streaming(self, kind=self.kind), guard, mode, on_sigterm=False, **options)


def a_guard(**options: Any) -> StreamGuard:
    return StreamGuard(MemoryLog(), **{"authorize": anyone_with_the_id, **options})


async def beside(app: ASGIApp, model: Model, act: Callable[[], Any]) -> Sent:
    """What is sent while `act` is done, once the first part is out."""
    found: list[Sent] = []

    async def call() -> None:
        found.append(await called(app))

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await model.reached.wait()
            result = act()
            if result is not None:
                await result
    return found[0]


@KINDS
@pytest.mark.parametrize("guarded", [False, True], ids=["alone", "with a guard"])
async def test_a_drain_ends_what_runs_after_its_grace_and_refuses_what_comes(kind: bytes, guarded: bool) -> None:
    model = Model(kind)
    middleware = model.behind(a_guard() if guarded else None)
    refused = Sent()

    async def drain() -> None:
        nonlocal refused
        assert middleware.draining.draining.running >= 1
        middleware.draining.drain(5.0)
        refused = await called(middleware)
        middleware.draining.drain(0.0)

    sent = await beside(middleware, model, drain)
    assert (refused.status, model.begun) == (503, 1)
    assert (refused.header("retry-after") is None, b"shutdown" in refused.body) == (False, True)
    assert (sent.clean, sent.raised, model.closed.is_set()) == (False, None, True)
    assert sent.body.startswith(FIRST[kind]) is (kind is LINES)
    if not guarded or kind is LINES:
        assert b"the server is going away" in sent.body
        assert middleware.report.codes == {"shutdown": 1}
    else:
        assert b": bye" in sent.body  # it goes on elsewhere


@KINDS
async def test_within_the_grace_a_stream_ends_by_itself(kind: bytes) -> None:
    model = Model(kind)
    middleware = model.behind()

    def drain() -> None:
        middleware.draining.drain(5.0)
        model.go.set()

    assert (await beside(middleware, model, drain)).clean
    assert middleware.draining.draining.running == 0


@KINDS
async def test_in_report_mode_a_drain_changes_nothing(kind: bytes) -> None:
    model = Model(kind)
    model.go.set()
    bare = await called(streaming(model, kind=kind))
    middleware = model.behind(mode="report")
    middleware.draining.drain(0.0)
    assert await called(middleware) == bare


@pytest.mark.parametrize("mode", ["report", "guard"])
@pytest.mark.parametrize("guarded", [False, True], ids=["alone", "with a guard"])
async def test_a_path_says_whether_new_streams_are_taken(mode: Any, guarded: bool) -> None:
    middleware = Model(EVENTS).behind(a_guard() if guarded else None, mode, ready="/ready")
    asked = [(await called(middleware, http(path="/ready"))).status]
    middleware.draining.drain(0.0)
    asked.append((await called(middleware, {**http(path="/mounted/ready"), "root_path": "/mounted"})).status)
    assert (asked, middleware.draining.ready) == ([200, 503], False)


@pytest.mark.parametrize("guarded", [False, True], ids=["alone", "with a guard"])
async def test_lines_have_a_slot_too(guarded: bool) -> None:
    model, limits = Model(LINES), Limits(max_streams=1, max_waiting=0)
    middleware = model.behind(a_guard(limits=limits)) if guarded else model.behind(limits=limits)
    refused = Sent()

    async def ask() -> None:
        nonlocal refused
        refused = await called(middleware)
        model.go.set()

    assert (await beside(middleware, model, ask)).clean
    assert (refused.status, refused.raised, model.begun) == (503, None, 1)
    assert (await called(middleware)).clean


@KINDS
@pytest.mark.parametrize("headers", [{}, {"idempotency-key": "k" * 22}], ids=["without a key", "with one"])
async def test_whom_the_guard_does_not_know_gets_no_stream_of_either_kind(kind: bytes, headers: Any) -> None:
    asked: list[str] = []

    def nobody(request: Any, action: str) -> None:
        asked.append(action)

    model = Model(kind)
    sent = await called(model.behind(a_guard(authorize=nobody)), http("POST", **headers))
    assert (sent.status, sent.raised, model.begun, set(asked)) == (403, None, 0, {"start"})


async def test_the_principal_of_a_key_is_asked_for_once() -> None:
    asked: list[str] = []

    def known(request: Any, action: str) -> str:
        asked.append(action)
        return "who"

    model = Model(LINES)
    model.go.set()
    sent = await called(model.behind(a_guard(authorize=known)), http("POST", **{"idempotency-key": "k" * 22}))
    assert (sent.clean, asked) == (True, ["start"])


async def test_who_waits_behind_its_own_key_and_leaves_is_let_go() -> None:
    """Before the application, whose head takes its time, has answered the first request with that key."""
    reached, go, left, starts = anyio.Event(), anyio.Event(), anyio.Event(), 0

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal starts
        starts += 1
        reached.set()
        await go.wait()
        await streaming([*REST[EVENTS]])(scope, receive, send)

    middleware = GuardMiddleware(slow, a_guard(), "guard", timing=QUICK, on_sigterm=False)
    asking = http("POST", **{"idempotency-key": "k" * 22})
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(called, middleware, asking)
            await reached.wait()
            left.set()
            second = await called(middleware, asking, leave=left)
            go.set()
    assert (second.status, second.raised, starts) == (503, None, 1)


@KINDS
async def test_a_reader_that_takes_nothing_is_dropped(kind: bytes) -> None:
    """In the first part, which the driver writes, and in a later one, which the application does."""
    for part in (0, 1):
        model = Model(kind)
        model.go.set()
        middleware = model.behind(timing=Timing(write=0.02, linger=0.0))
        parts = 0

        async def deaf(scope: Scope, receive: Receive, send: Send) -> None:
            async def stuck(message: Message) -> None:
                nonlocal parts
                whole = message.get("body", b"")
                if FIRST[kind].strip() in whole or REST[kind][0].strip() in whole:
                    parts += 1
                    if parts > part:  # noqa: B023
                        await anyio.sleep_forever()
                await send(message)

            await middleware(scope, receive, stuck)  # noqa: B023

        with anyio.fail_after(30):
            sent = await called(deaf)
        assert (sent.clean, sent.raised, middleware.report.left) == (False, None, 1)
        assert model.closed.is_set()


async def test_lines_have_the_rest_of_a_driver() -> None:
    """A reader that leaves, a source that is silent, an Outcome."""
    ended: list[Outcome] = []
    for timing, leaves in ((QUICK, True), (Timing(stall=0.3, linger=0.0), False)):
        model, leave = Model(LINES), anyio.Event()
        middleware = model.behind(timing=timing, on_end=ended.append)
        with anyio.fail_after(30):
            await called(middleware, leave=leave, on_body=lambda body: leave.set() if leaves else None)  # noqa: B023
        assert model.closed.is_set()
    assert [(outcome.status, outcome.items) for outcome in ended] == [("gone", 1), ("stalled", 1)]


async def test_what_resumes_is_served_with_the_same_options() -> None:
    middleware = Model(EVENTS).behind(a_guard(), timing=Timing(heartbeat=3.0), on_end=print, name="a chat")
    await called(middleware, http(path="/streams/status"))
    assert middleware._endpoints is not None
    options = middleware._endpoints.options
    assert (options.timing.heartbeat, options.on_end) == (3.0, None)


async def test_a_rule_for_lines_that_raises_fails_them() -> None:
    def wrong(event: Any) -> bool:
        raise LookupError("in a rule")

    for piece in (b'{"a": 1}\n', b'{"a": 1}'):  # in the stream, and at its end
        app = streaming([piece], kind=LINES)
        sent = await called(GuardMiddleware(app, mode="guard", end=wrong, timing=QUICK, on_sigterm=False))
        assert (sent.clean, sent.raised) == (False, None)


@KINDS
async def test_the_servers_own_line_about_an_abort_can_be_told_from_others(kind: bytes) -> None:
    """By the mark in the scope: the filter that `quiet_server_logs` sets looks there."""
    scope = http()
    app = streaming([FIRST[kind]], kind=kind)
    await called(GuardMiddleware(app, mode="guard", timing=QUICK, on_sigterm=False), scope)
    assert scope["streamguard.seal"].aborted


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_events_are_written_in_the_applications_own_task() -> None:
    """As without the middleware: no task switch an event. The first goes through the driver."""
    tasks: list[int] = []
    own = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal own
        own = anyio.get_current_task().id

        async def source() -> AsyncGenerator[bytes, None]:
            for text in "abc":
                yield chunk(text)
                await anyio.sleep(0.001)
            for piece in REST[EVENTS]:
                yield piece

        await streaming(source)(scope, receive, send)

    def seen(body: bytes) -> None:
        tasks.append(anyio.get_current_task().id)

    sent = await called(GuardMiddleware(app, mode="guard", timing=QUICK, on_sigterm=False), on_body=seen)
    assert len(events(sent.body)) == 5
    assert [task == own for task in tasks][2:4] == [True, True]


@pytest.mark.parametrize(("method", "version"), [("GET", "1.0"), ("GET", "1"), ("HEAD", "1.1"), ("GET", "1.1")])
async def test_the_endpoints_addresses_are_never_the_applications(method: str, version: str) -> None:
    model = Model(EVENTS)
    model.go.set()
    middleware = model.behind(a_guard(), rule=lambda scope: None if scope["path"] == "/streams" else Raw("known"))
    first = await called(middleware, http(accept="text/event-stream"))
    at = next(line[4:] for line in first.body.decode().split("\n") if line.startswith("id: "))
    rest = await called(middleware, http(method, "/streams", version, last_event_id=at))
    assert (rest.status, model.begun) == (200, 1)
    assert [data for _, data in events(rest.body)] == ([] if method == "HEAD" else [*_payloads(REST[EVENTS])])


async def test_a_cursor_is_no_start_over_http_1_0_either() -> None:
    model = Model(EVENTS)
    model.go.set()
    middleware = model.behind(a_guard())
    first = await called(middleware, http(accept="text/event-stream"))
    at = next(line[4:] for line in first.body.decode().split("\n") if line.startswith("id: "))
    rest = await called(middleware, http(version="1.0", last_event_id=at))
    assert ([data for _, data in events(rest.body)], model.begun) == (_payloads(REST[EVENTS]), 1)
    alone = model.behind()
    assert (await called(alone, http(version="1.0", last_event_id=at))).status == 404


def _payloads(pieces: list[bytes]) -> list[str]:
    return [data for _, data in events(b"".join(pieces))]
