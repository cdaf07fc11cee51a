"""What a source, a policy, a hook or an item can do wrong, and nothing of it passes the driver by."""

from __future__ import annotations

import asyncio
import builtins
import threading
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from streamguard.adapters.asgi import GuardedAnswer
from streamguard.core.dialect import Native
from streamguard.core.errors import Failure, SourceFailed, StreamAborted, StreamClosed, failure_from
from streamguard.core.flush import Immediate
from streamguard.core.framing import FramedEncoder
from streamguard.core.guard import CompletionGuard
from streamguard.core.items import Finish
from streamguard.core.pipeline import Pipeline
from streamguard.core.receipt import Verdict
from streamguard.core.verify import StreamVerifier
from streamguard.core.wire import Sse
from streamguard.observe.hooks import Outcome
from streamguard.runtime.cancellation import leaf
from streamguard.runtime.direct import DirectDriver
from streamguard.runtime.report import HOOK_GRACE, HOOK_LIMIT
from streamguard.runtime.source import TokenSource
from streamguard.runtime.stages import GuardedStream
from streamguard.runtime.timing import Timing
from tests.adapters.servers import Gate, serving, stack_params
from tests.runtime.fakes import SID, Hook, Script, Wire, serve, timing
from tests.runtime.virtual import BACKENDS, run

pytestmark = pytest.mark.anyio

# Before Python 3.11 anyio brings the package that has it.
_GROUP: Any = getattr(builtins, "BaseExceptionGroup", None) or pytest.importorskip("exceptiongroup").BaseExceptionGroup
FAST = Timing(stall=0.05, close=0.05, linger=0.0)


async def swallow(until: anyio.Event | Gate, told: list[int]) -> None:
    """Wait for `until`, whatever is asked meanwhile."""
    while True:
        try:
            if isinstance(until, Gate):
                await until
            else:
                await until.wait()
            return
        except anyio.get_cancelled_exc_class():
            told.append(1)


def status_of(answer: bytes) -> tuple[str | None, bool]:
    """The terminal's status in a chunked answer, and whether the answer ended cleanly."""
    verifier = StreamVerifier()
    rest = answer.partition(b"\r\n\r\n")[2]
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        verifier.feed(rest[: int(size, 16)])
        rest = rest[int(size, 16) + 2 :]
    clean = answer.endswith(b"\r\n0\r\n\r\n")
    verifier.end(clean=clean)
    return verifier.status, clean


# ---- the connection does not wait for what does not stop ------------------------------------------


@pytest.mark.parametrize("stack", stack_params())
def test_a_reader_does_not_wait_for_an_abandoned_source(stack: tuple[str, str]) -> None:
    release = Gate()

    async def stubborn() -> AsyncIterator[str]:
        yield "a"
        await swallow(release, [])

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await GuardedAnswer(stubborn, timing=FAST)(scope, receive, send)

    with serving(app, http=stack[0], loop=stack[1]) as server, server.connect() as connection:
        try:
            connection.get(streamguard="1")
            assert status_of(connection.rest()) == ("stalled", False)
            assert not release.opened  # the source is still at it
        finally:
            release.open()


@pytest.mark.parametrize("stack", stack_params())
def test_a_reader_does_not_wait_for_a_hook(stack: tuple[str, str]) -> None:
    release, called, over = Gate(), Gate(), Gate()

    async def failing() -> AsyncIterator[str]:
        yield "a"
        raise OSError("no")

    async def hook(outcome: Outcome) -> None:
        called.open()
        try:
            await release
        finally:
            over.open()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await GuardedAnswer(failing, timing=FAST, on_end=hook)(scope, receive, send)

    with serving(app, http=stack[0], loop=stack[1]) as server, server.connect() as connection:
        try:
            connection.get(streamguard="1")
            assert status_of(connection.rest()) == ("failed", False)
            called.wait()
            assert not over.opened  # the hook is still at it
        finally:
            release.open()


def test_a_large_terminal_is_not_torn_off_by_the_kill() -> None:
    """What the transport took and has not sent yet is sent."""
    text = "x" * 200_000

    async def failing() -> AsyncIterator[str]:
        yield text
        raise OSError("no")

    async def hook(outcome: Outcome) -> None:
        await asyncio.sleep(0)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await GuardedAnswer(failing, timing=FAST, on_end=hook)(scope, receive, send)

    with serving(app) as server, server.connect(receive_buffer=4096) as connection:
        connection.get(streamguard="1")
        assert status_of(connection.rest()) == ("failed", False)


async def test_only_an_aborted_connection_is_killed() -> None:
    served = await serve(Script("a")).run()
    assert served.wire.kills == 0
    served = await serve(Script("a", OSError("no"))).run()
    assert served.wire.kills == 1
    assert served.wire.calls[-1] == "abort"


async def test_a_sink_that_raises_when_it_is_killed_harms_nothing(caplog: Any) -> None:
    served = serve(Script("a", OSError("no")))

    def kill(*, drop: bool) -> bool:
        raise ConnectionError("the transport has no such thing")

    served.wire.kill = kill  # type: ignore[method-assign]
    await served.run()
    assert "the transport has no such thing" in caplog.text


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_iterator_of_a_stream_whose_source_is_abandoned_ends(backend: str) -> None:
    async def test() -> None:
        release = anyio.Event()

        async def stubborn() -> AsyncIterator[str]:
            yield "a"
            await swallow(release, [])

        encoder = FramedEncoder(Native())
        limits = timing(stall=1, close=1, linger=0)
        async with GuardedStream(stubborn, Immediate(), encoder, CompletionGuard(Sse()), timing=limits) as stream:
            with pytest.raises(StreamAborted, match="stalled"):
                async for _ in stream:
                    pass
            release.set()

    run(backend, test, tick=0.001)


# ---- hooks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_hook_that_swallows_its_cancellation_is_told_for_a_moment_only(backend: str, caplog: Any) -> None:
    """On asyncio it is left behind; trio has no way to leave a task behind, so there it is waited for, at rest."""
    told: list[int] = []

    ended: list[float] = []

    async def test() -> None:
        release = anyio.Event()
        served = serve(Script("a"), hook=Hook(lambda: swallow(release, told)))
        async with anyio.create_task_group() as tasks:

            async def later() -> None:
                await anyio.sleep(60)
                release.set()

            tasks.start_soon(later)
            await served.run()
            ended.append(anyio.current_time())

    run(backend, test, tick=0.001)
    assert "on_end took longer than 5 s" in caplog.text
    if backend == "asyncio":
        assert len(told) == 1
        assert ended[0] == pytest.approx(HOOK_LIMIT + HOOK_GRACE, abs=0.2)
    else:
        assert 1 <= len(told) <= 1000 * HOOK_GRACE + 10
        assert ended[0] == pytest.approx(60, abs=0.2)


@pytest.mark.parametrize("kind", ["function", "coroutine"])
@pytest.mark.parametrize("exc", [asyncio.CancelledError("mine"), GeneratorExit("mine")])
async def test_whatever_a_hook_raises_is_logged(kind: str, exc: BaseException, caplog: Any) -> None:
    def raises(outcome: Outcome) -> None:
        raise exc

    async def raises_later(outcome: Outcome) -> None:
        raise exc

    served = serve(Script("a"))
    served.driver._on_end = raises if kind == "function" else raises_later
    assert (await served.driver.run()).status == "complete"
    assert "on_end raised" in caplog.text


async def test_a_hook_may_end_the_program() -> None:
    def leave(outcome: Outcome) -> None:
        raise SystemExit(3)

    served = serve(Script("a"))
    served.driver._on_end = leave
    with pytest.raises(SystemExit):
        await served.driver.run()


# ---- sources --------------------------------------------------------------------------------------


class Overloaded(SourceFailed):
    """As people write it."""

    def __init__(self) -> None:
        pass


class Unreadable(Overloaded):
    @property
    def failure(self) -> Failure:  # type: ignore[override]
        raise RuntimeError("not now")


@pytest.mark.parametrize("kind", [Overloaded, Unreadable])
async def test_a_failure_that_was_made_without_its_facts_is_told_by_its_class(kind: type[Overloaded]) -> None:
    served = await serve(Script("a", kind())).run()
    assert served.outcome.failure == Failure("source_error", kind.__name__)
    assert failure_from(kind()) == Failure("source_error", kind.__name__)


def test_a_failure_without_its_facts_is_an_answer_of_its_own_before_the_headers() -> None:
    scope_seen: list[Any] = []

    async def failing() -> AsyncIterator[str]:
        if scope_seen:
            raise Overloaded
        yield ""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope_seen.append(scope)
        await GuardedAnswer(failing, timing=Timing(peek=5.0))(scope, receive, send)

    with serving(app) as server:
        assert server.status(b"GET / HTTP/1.1\r\nhost: test\r\n\r\n") in (500, 502, 503)


def group(*exceptions: BaseException) -> BaseException:
    made: BaseException = _GROUP("of a source", list(exceptions))
    return made


def _nobody_can_tell(exc: BaseException) -> bool:
    """Before Python 3.11 a task does not know whether it was cancelled: the reader is told that it may come again."""
    cancelled = leaf(exc, anyio.get_cancelled_exc_class()) is not None
    return cancelled and not hasattr(asyncio.Task, "cancelling")


@pytest.mark.parametrize(
    "exc",
    [
        group(asyncio.CancelledError()),
        group(ValueError(), group(asyncio.CancelledError())),
        GeneratorExit(),
        type("Odd", (BaseException,), {})(),
    ],
    ids=["group", "mixed group", "GeneratorExit", "BaseException"],
)
async def test_an_exception_of_the_sources_own_is_its_failure(exc: BaseException) -> None:
    served = serve(Script("a", exc))
    await served.run()
    assert served.outcome.failure is not None
    told = (served.outcome.status, served.outcome.failure.code)
    assert told == (("shutdown", "shutdown") if _nobody_can_tell(exc) else ("failed", "source_error"))
    assert served.wire.read().verdict is Verdict.FAILED


@pytest.mark.parametrize("exc", [KeyboardInterrupt(), group(ValueError(), SystemExit())], ids=["one", "in a group"])
async def test_an_exception_that_ends_the_program_does(exc: BaseException) -> None:
    served = serve(Script("a", exc))
    with pytest.raises(type(exc)):
        await served.run()
    assert served.outcome.status == "shutdown"


@pytest.mark.parametrize("way", ["outside", "reader"])
async def test_a_cancellation_that_a_source_wraps_in_a_group_is_a_cancellation(way: str) -> None:
    async def wrapping() -> AsyncIterator[str]:
        yield "a"
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class() as exc:
            raise group(exc, ValueError("of its clean-up")) from exc

    served = serve(wrapping)
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:

            async def stop() -> None:
                await anyio.sleep(1)
                scope.cancel() if way == "outside" else served.wire.left.set()

            tasks.start_soon(stop)
            await served.driver.run()
    assert scope.cancelled_caught == (way == "outside")
    assert served.outcome.status == ("shutdown" if way == "outside" else "gone")


@pytest.mark.parametrize("exc", [group(asyncio.CancelledError()), type("Odd", (BaseException,), {})()])
async def test_whatever_the_close_of_a_source_raises_harms_nothing(exc: BaseException, caplog: Any) -> None:
    class Broken:
        def __aiter__(self) -> Broken:
            return self

        async def __anext__(self) -> str:
            raise StopAsyncIteration

        async def aclose(self) -> None:
            raise exc

    served = await serve(Broken()).run()
    assert served.outcome.status == "complete"
    assert not served.outcome.abandoned


async def test_a_source_is_opened_once() -> None:
    source = TokenSource(Script("a", "b"))
    items = await source.open()
    with pytest.raises(StreamClosed, match="opened once"):
        await source.open()
    assert [item async for item in items] == ["a", "b"]
    await source.aclose()


def test_one_answer_is_not_shared_by_two_requests(caplog: Any) -> None:
    release = Gate()

    async def tokens() -> AsyncIterator[str]:
        yield "a"
        await release
        yield "b"

    answer = GuardedAnswer(tokens())
    with serving(answer) as server, server.connect() as first:
        try:
            first.get(streamguard="1", connection="close")
            first.until(b"a")
            assert server.status(b"GET / HTTP/1.1\r\nhost: test\r\n\r\n") == 500
        finally:
            release.open()
        assert status_of(first.rest()) == ("complete", True)
    assert "one request" in caplog.text


def test_an_answer_that_was_refused_serves_no_second_request() -> None:
    async def tokens() -> AsyncIterator[str]:
        yield "a"

    with serving(GuardedAnswer(tokens())) as server:
        assert server.status(b"HEAD / HTTP/1.1\r\nhost: test\r\n\r\n") == 200
        assert server.status(b"GET / HTTP/1.1\r\nhost: test\r\n\r\n") == 500


# ---- policies -------------------------------------------------------------------------------------


class Deadline:
    """A policy that holds everything and names the deadline that it is given."""

    def __init__(self, due: Any) -> None:
        self.due = due
        self.asked = 0
        self.ticks = 0

    def __deepcopy__(self, memo: Any) -> Deadline:
        return self

    def push(self, piece: str, held: int, now: float) -> int:
        return 0

    def tick(self, held: int, now: float) -> int:
        self.ticks += 1
        return 0

    def deadline(self) -> Any:
        self.asked += 1
        assert self.asked < 10_000, "the driver does not rest"
        return self.due() if callable(self.due) else self.due


@pytest.mark.parametrize("due", ["soon", [1.0], 1j], ids=["text", "list", "complex"])
async def test_a_deadline_that_is_no_number_fails_the_stream(due: Any) -> None:
    served = await serve(Script("a", 1.0, "b"), policy=Deadline(due)).run()
    assert served.outcome.status == "failed"


async def test_a_deadline_that_only_the_watcher_sees_fails_the_stream_too() -> None:
    asked: list[int] = []

    def due() -> str | None:
        asked.append(1)
        return "soon" if len(asked) > 1 else None

    policy = Deadline(due)
    served = await serve(Script("a", 1.0, "b"), policy=policy).run()
    assert served.outcome.status == "failed"


@pytest.mark.parametrize("due", [10**5000, float("nan"), float("-inf")], ids=["too large", "nan", "long ago"])
async def test_a_deadline_that_is_no_time_harms_nobody_else(due: Any) -> None:
    served = await serve(Script("a", 20.0, "b"), policy=Deadline(due)).run()
    assert served.outcome.status == ("failed" if due == 10**5000 else "complete")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("ahead", [0.0, 1e-6, -1.0])
def test_a_deadline_that_is_always_now_does_not_keep_the_driver_busy(backend: str, ahead: float) -> None:
    async def test() -> None:
        policy = Deadline(lambda: anyio.current_time() + ahead)
        served = await serve(Script("a", 1.0, "b"), policy=policy).run()
        assert served.outcome.status == "complete"
        assert policy.ticks <= 1001
        assert policy.asked <= 3010
        assert served.wire.text == "ab"

    run(backend, test, tick=0.00001)


# ---- the last words, and the Outcome --------------------------------------------------------------


@pytest.mark.parametrize("choice", [-1, 2**31, 10**5000], ids=["negative", "2**31", "huge"])
def test_a_choice_is_a_small_number(choice: int) -> None:
    with pytest.raises(ValueError, match="choice must be"):
        Finish("stop", choice=choice)
    assert Finish("stop", choice=2**31 - 1).choice == 2**31 - 1


@pytest.mark.parametrize("other", [(), (Finish("stop", choice=1),)], ids=["alone", "of two"])
async def test_a_terminal_that_cannot_be_made_is_an_abort_with_an_outcome(other: tuple[Finish, ...]) -> None:
    finish = Finish("stop")
    object.__setattr__(finish, "choice", 10**5000)
    served = serve(Script("a", *other, finish))
    outcome = await served.driver.run()
    assert served.hook.outcomes == [outcome]
    if "end" not in served.wire.calls:
        assert outcome.status == "failed"
        assert served.wire.calls[-1] == "abort"
    else:
        assert outcome.status == "complete"


async def test_a_stage_that_tells_nothing_has_an_outcome(caplog: Any) -> None:
    class Silent(Pipeline):
        @property
        def items(self) -> int:
            raise RuntimeError("no count")

    hook = Hook()
    wire = Wire()
    stage = Silent(Immediate(), FramedEncoder(Native(), sid=SID), CompletionGuard(Sse()))
    driver = DirectDriver(TokenSource(Script("a", OSError("no"))), stage, wire, timing(), on_end=hook)
    outcome = await driver.run()
    assert hook.outcomes == [outcome]
    assert (outcome.status, outcome.failure) == ("failed", Failure("internal", "the stream's record could not be made"))
    assert wire.calls[-1] == "abort"
    assert "no count" in caplog.text


@pytest.mark.parametrize("where", ["_next_due", "_last_words"])
async def test_a_fault_of_the_driver_itself_is_an_outcome(where: str, monkeypatch: Any, caplog: Any) -> None:
    served = serve(Script("a", 1.0, "b"))

    def broken(*args: Any) -> Any:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(served.driver._watch if where == "_next_due" else served.driver, where, broken)
    outcome = await served.driver.run()
    assert served.hook.outcomes == [outcome]
    assert outcome.status == ("shutdown" if where == "_next_due" else "failed")  # the first, as others are cancelled
    assert served.wire.read().verdict in (Verdict.FAILED, Verdict.TRUNCATED)
    assert served.wire.calls[-1] == "abort"
    assert "a fault of ours" in caplog.text


# ---- threads --------------------------------------------------------------------------------------


def test_cancel_from_another_thread_is_refused_and_does_nothing() -> None:
    refused: list[str] = []

    async def test() -> None:
        served = serve(Script("a", 1.0, "b"))

        def cancel() -> None:
            try:
                served.cancel()
            except RuntimeError as exc:
                refused.append(str(exc))

        async def other() -> None:
            await anyio.sleep(0.5)
            thread = threading.Thread(target=cancel)
            thread.start()
            thread.join()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(other)
            await served.run()
        assert served.outcome.status == "complete"

    for backend in BACKENDS:
        run(backend, test)
    assert len(refused) == 2
    assert "event loop" in refused[0]
