"""Every step of a source, and its close, in one task or thread and one context, whatever the source holds there.

Over a real server, behind the plain adapter and behind FastAPI: context variables, tracing spans, cancel scopes
and task groups, wrappers in wrappers, sources that cannot be told to stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import repeat
from typing import Any

import anyio
import pytest
from fastapi import FastAPI
from starlette.responses import StreamingResponse

from streamguard.adapters.asgi import GuardedAnswer
from streamguard.adapters.fastapi import guarded
from streamguard.adapters.seal import Receive, Scope, Send
from streamguard.core.receipt import Verdict
from streamguard.runtime.buffer import Buffer
from streamguard.runtime.source import TokenSource
from streamguard.runtime.timing import Timing
from tests.adapters.asgi_apps import Ends, exchange
from tests.adapters.kinds import KINDS, SYNC, VARIABLE, CloseOnly, CloseOnlyAsync, Source, Told, join_threads, place
from tests.adapters.leaving import settled
from tests.adapters.servers import Gate, Server, serving

QUICK = Timing(linger=0.05)
ENDINGS = ["complete", "failed", "gone"]


class Behaving:
    """The rest of a source after its first two tokens, by how its stream is to end."""

    def __init__(self, ending: str) -> None:
        self.ending = ending
        self.gate = Gate()

    @property
    def script(self) -> list[Any]:
        if self.ending == "failed":
            return ["a ", "b ", RuntimeError("the model broke")]
        return ["a ", "b ", self.gate, "c ", "d "]

    def read(self, server: Server) -> None:
        """Ask for the stream, and make it end as it is to."""
        with server.connect() as connection:
            connection.get(accept="text/event-stream")
            if self.ending == "failed":
                connection.until(b"event: end")
                return
            connection.until(b"b ")
            if self.ending == "complete":
                self.gate.open()
                connection.until(b"event: end")


# ---- context variables --------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_value_set_in_the_endpoint_is_there_at_every_step_and_at_the_close(kind: str, ending: str) -> None:
    behaving, ends = Behaving(ending), Ends()
    source = Source(kind, *behaving.script)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        VARIABLE.set("request")
        answer = GuardedAnswer(source.make(), timing=QUICK, on_end=ends, **source.options)
        await answer(scope, receive, send)

    with serving(Told(app, behaving.gate)) as server:
        behaving.read(server)
        assert ends.wait().status == ending
    join_threads()
    steps = [f"step {number}" for number in range(1, len(source.values) + 1)]
    assert source.values == ["request", *steps[:-1]]
    assert len(set(source.places)) == 1
    on_loop = [isinstance(found, asyncio.Task) for found in source.closes]
    if kind == "push":  # what pushes has a thread of its own; it is told on the event loop
        assert (on_loop, source.closing_values) == (([True], ["request"]) if ending == "gone" else ([], []))
        return
    assert source.closes == source.places[:1]
    assert source.closing_values == steps[-1:]
    assert on_loop == [kind in ("async generator", "async iterator", "buffered")]


@pytest.mark.parametrize("kind", KINDS)
def test_two_requests_at_once_keep_their_values_apart(kind: str) -> None:
    sources: dict[str, Source] = {}
    gate = Gate()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        name = scope["path"]
        VARIABLE.set(name)
        source = sources[name] = Source(kind, "a ", gate, "b ")
        await GuardedAnswer(source.make(), **source.options)(scope, receive, send)

    with serving(app) as server, server.connect() as one, server.connect() as two:
        for connection, path in ((one, "/one"), (two, "/two")):
            connection.get(path)
        for connection in (one, two):
            connection.until(b"a ")
        gate.open()
        for connection in (one, two):
            connection.until(b"event: end")
    join_threads()
    assert {name: source.values[0] for name, source in sources.items()} == {"/one": "/one", "/two": "/two"}
    assert set(sources["/one"].places).isdisjoint(sources["/two"].places)


# ---- tracing spans ------------------------------------------------------------------------------

CURRENT: contextvars.ContextVar[str] = contextvars.ContextVar("current", default="no span")


class Span:
    """A tracing span as the usual libraries make it current: by a token that only its own context may give back."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.seen: list[str] = []

    def __enter__(self) -> Span:
        self._token = CURRENT.set("span")
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            CURRENT.reset(self._token)
        except ValueError as wrong:  # was created in a different Context
            self.ended.append(str(wrong))
            raise
        self.ended.append("ended")

    def child(self) -> None:
        self.seen.append(CURRENT.get())


def traced(kind: str, span: Span, behaving: Behaving) -> Callable[[], Any]:
    """An endpoint that yields inside of a span."""

    def sync() -> Iterator[str]:
        with span:
            for act in behaving.script:
                span.child()
                if isinstance(act, Gate):
                    act.wait()
                elif isinstance(act, BaseException):
                    raise act
                else:
                    yield act
                    span.child()

    async def awaited() -> AsyncIterator[str]:
        with span:
            for act in behaving.script:
                span.child()
                if isinstance(act, Gate):
                    await act
                elif isinstance(act, BaseException):
                    raise act
                else:
                    yield act
                    span.child()

    return sync if kind in SYNC else awaited


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("kind", ["async generator", "buffered", "sync generator"])
def test_a_span_of_the_source_is_current_at_every_step_and_ended_once(
    kind: str, ending: str, caplog: pytest.LogCaptureFixture
) -> None:
    behaving, ends, span = Behaving(ending), Ends(), Span()
    app = FastAPI()
    options: dict[str, Any] = {"buffer": Buffer()} if kind == "buffered" else {}
    app.get("/")(guarded(timing=QUICK, on_end=ends, **options)(traced(kind, span, behaving)))
    with serving(Told(app, behaving.gate)) as server:
        behaving.read(server)
        assert ends.wait().status == ending
    join_threads()
    assert span.ended == ["ended"]
    assert set(span.seen) == {"span"}
    assert "different Context" not in caplog.text


def guarded_text(endpoint: Callable[[], Any]) -> Callable[[], Any]:
    return guarded(timing=QUICK)(endpoint)


def streamed(endpoint: Callable[[], Any]) -> Callable[[], Any]:
    """The usual way: each step of a sync generator on whichever thread of the pool is free, in a new context."""

    def stream() -> StreamingResponse:
        return StreamingResponse(endpoint(), media_type="text/event-stream")

    return stream


NAIVE = pytest.mark.xfail(strict=True, raises=AssertionError)


@pytest.mark.parametrize(
    "serve", [pytest.param(guarded_text, id="ours"), pytest.param(streamed, id="naive", marks=NAIVE)]
)
def test_a_traced_sync_source_arrives_whole_and_its_span_is_ended_once(serve: Callable[..., Any]) -> None:
    span, behaving = Span(), Behaving("complete")
    behaving.gate.open()
    app = FastAPI()
    app.get("/", response_model=None)(serve(traced("sync generator", span, behaving)))
    with serving(app) as server:
        answer = exchange(server.connect())
    assert [word in answer.body for word in (b"a ", b"b ", b"c ", b"d ")] == [True] * 4
    assert answer.clean
    assert span.ended == ["ended"]
    assert set(span.seen) == {"span"}


# ---- cancel scopes and task groups --------------------------------------------------------------


def scoped(behaving: Behaving, ended: list[object]) -> Callable[[], AsyncIterator[str]]:
    """Yields inside of a time limit and of a task group with a task in it, as clients with retries do."""

    async def endpoint() -> AsyncIterator[str]:
        with anyio.fail_after(3600):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(anyio.sleep_forever)
                try:
                    for act in behaving.script:
                        if isinstance(act, Gate):
                            await act
                        elif isinstance(act, BaseException):
                            raise act
                        else:
                            yield act
                finally:
                    ended.append(place())
                    tasks.cancel_scope.cancel()

    return endpoint


@pytest.mark.parametrize("ending", [*ENDINGS, "stalled"])
@pytest.mark.parametrize("options", [{}, {"buffer": Buffer()}], ids=["direct", "buffered"])
def test_scopes_and_task_groups_around_yields_are_left_where_they_were_entered(
    options: dict[str, Any], ending: str, caplog: pytest.LogCaptureFixture
) -> None:
    behaving, ends = Behaving("gone" if ending == "stalled" else ending), Ends()
    ended: list[object] = []
    timing = Timing(linger=0.05, stall=0.1 if ending == "stalled" else 600.0)
    app = FastAPI()
    app.get("/")(guarded(timing=timing, on_end=ends, **options)(scoped(behaving, ended)))
    with serving(app) as server:
        before = server.call(lambda: len(asyncio.all_tasks()))
        if ending == "stalled":
            answer = exchange(server.connect())
            assert answer.verified().status == "stalled"
        else:
            behaving.read(server)
        outcome = ends.wait()
        done: bool = server.call(settled, before)
        assert done
    assert (outcome.status, outcome.abandoned) == (ending, False)
    assert len(ended) == 1
    complaints = ("closing its source raised", "different task", "exception was never retrieved", "cancel scope")
    assert [word for word in complaints if word in caplog.text] == []
    assert [record for record in caplog.records if record.name == "asyncio"] == []


# ---- sources that are hard to stop --------------------------------------------------------------


def test_a_source_that_swallows_what_it_is_told_is_abandoned_without_a_spin(caplog: pytest.LogCaptureFixture) -> None:
    released, over, ends = Gate(), Gate(), Ends()
    swallowed: list[int] = []

    async def stubborn() -> AsyncIterator[str]:
        yield "a "
        while not released.opened:
            try:
                await released
            except asyncio.CancelledError:
                swallowed.append(1)
        over.open()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await GuardedAnswer(stubborn(), timing=Timing(close=0.3), on_end=ends)(scope, receive, send)

    with serving(app) as server:
        before = server.call(lambda: len(asyncio.all_tasks()))
        with server.connect() as connection:
            connection.get()
            connection.until(b"a ")
        outcome = ends.wait()
        server.call(asyncio.sleep, 0.4)  # by now it is told no more
        then = len(swallowed)
        server.call(asyncio.sleep, 0.2)
        assert len(swallowed) - then <= 1
        released.open()
        over.wait()
        done: bool = server.call(settled, before)
        assert done
    assert (outcome.status, outcome.abandoned) == ("gone", True)
    assert "abandoned" in caplog.text


@pytest.mark.parametrize("kind", ["async iterator", "sync iterator"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_source_with_close_only_is_closed_once_where_it_was_stepped(kind: str, ending: str) -> None:
    behaving, ends = Behaving(ending), Ends()
    source = Source(kind, *behaving.script)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await GuardedAnswer(source.make(), timing=QUICK, on_end=ends)(scope, receive, send)

    with serving(Told(app, behaving.gate)) as server:
        behaving.read(server)
        assert ends.wait().status == ending
    join_threads()
    assert source.closes == source.places[:1]
    assert len(set(source.places)) == 1


# ---- wrappers -----------------------------------------------------------------------------------


async def wrapped(inner: Any) -> AsyncIterator[str]:
    async with TokenSource(inner) as items:
        async for item in items:
            yield item  # type: ignore[misc]


def wrapped_sync(inner: Any) -> Iterator[str]:
    with contextlib.closing(inner):
        yield from iter(inner)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("kind", ["async generator", "buffered", "sync generator"])
def test_the_innermost_of_three_wrappers_is_closed_where_it_was_stepped(kind: str, ending: str) -> None:
    behaving, ends = Behaving(ending), Ends()
    source = Source(kind, *behaving.script)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        inner = source.make()
        if kind in SYNC:
            outer: Any = wrapped_sync(CloseOnly(wrapped_sync(inner)))
        else:
            outer = wrapped(CloseOnlyAsync(wrapped(inner)))
        await GuardedAnswer(outer, timing=QUICK, on_end=ends, **source.options)(scope, receive, send)

    with serving(Told(app, behaving.gate)) as server:
        behaving.read(server)
        assert ends.wait().status == ending
    join_threads()
    assert source.closes == source.places[:1]
    assert len(set(source.places)) == 1


async def nested(inner: AsyncIterator[str]) -> AsyncIterator[str]:
    async with contextlib.aclosing(inner):  # type: ignore[type-var]
        async for token in inner:
            yield token


async def nested_naive(inner: AsyncIterator[str]) -> AsyncIterator[str]:
    async for token in inner:
        yield token


@pytest.mark.parametrize(
    "wrap", [pytest.param(nested, id="aclosing"), pytest.param(nested_naive, id="naive", marks=NAIVE)]
)
def test_no_nested_generator_is_left_to_the_garbage_collector(wrap: Callable[..., Any]) -> None:
    """What people write closes the outermost generator only: the library cannot see those inside of it."""
    source = Source("async generator", *repeat("a ", 10_000))
    ends = Ends()
    orphans: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        hooks = sys.get_asyncgen_hooks()

        def orphaned(generator: Any) -> None:
            orphans.append(generator.__qualname__)
            assert hooks.finalizer is not None
            hooks.finalizer(generator)

        sys.set_asyncgen_hooks(hooks.firstiter, orphaned)
        try:
            stream = wrap(wrap(wrap(source.make())))
            await GuardedAnswer(stream, on_end=ends)(scope, receive, send)
            del stream
        finally:
            gc.collect()
            sys.set_asyncgen_hooks(*hooks)

    with serving(app) as server:
        with server.connect() as connection:
            connection.get()
            connection.until(b"a ")
        ends.wait()
        source.closed.wait()
        server.call(asyncio.sleep, 0)
    assert orphans == []
    assert source.closes == source.places[:1]


# ---- event loops --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_two_loops_in_two_threads_and_one_after_the_other_do_not_meet(kind: str) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        source = Source(kind, *["a "] * 50, bound=2)
        await GuardedAnswer(source.make(), **source.options)(scope, receive, send)

    def read(server: Server) -> None:
        verdicts.append(exchange(server.connect()).verdict)

    verdicts: list[Verdict] = []
    for _ in range(2):
        with serving(app) as one, serving(app) as two:
            threads = [threading.Thread(target=read, args=(server,)) for server in (one, two) * 3]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    join_threads()
    assert verdicts == [Verdict.COMPLETE] * 12


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "push"])
def test_a_value_set_in_a_plain_def_that_returns_its_source_is_there_at_every_step(kind: str) -> None:
    source = Source(kind, "a ", "b ")
    app = FastAPI()

    @app.get("/")
    @guarded(**source.options)
    def endpoint() -> Any:
        VARIABLE.set("endpoint")
        return source.make()

    with serving(app) as server:
        exchange(server.connect())
    join_threads()
    assert source.values == ["endpoint", "step 1"]


def test_a_buffered_source_that_swallows_what_it_is_told_is_abandoned_without_a_spin() -> None:
    released, over, ends = Gate(), Gate(), Ends()
    swallowed: list[int] = []

    async def stubborn() -> AsyncIterator[str]:
        yield "a "
        while not released.opened:
            try:
                await released
            except asyncio.CancelledError:
                swallowed.append(1)
        over.open()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await GuardedAnswer(stubborn(), timing=Timing(close=0.3), on_end=ends, buffer=Buffer())(scope, receive, send)

    with serving(app) as server:
        before = server.call(lambda: len(asyncio.all_tasks()))
        with server.connect() as connection:
            connection.get()
            connection.until(b"a ")
        outcome = ends.wait()
        server.call(asyncio.sleep, 0.4)
        then = len(swallowed)
        server.call(asyncio.sleep, 0.2)
        late = len(swallowed) - then
        released.open()
        over.wait()
        assert server.call(settled, before)
    assert late <= 1
    assert (outcome.status, outcome.abandoned) == ("gone", True)
