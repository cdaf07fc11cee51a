"""A database session for a stream: one that FastAPI opens, and one that the source opens itself.

Dependencies that yield are closed before the answer is sent by FastAPI 0.106 to 0.117, after it since 0.118, and
before it again where they are declared with `scope="function"`. A source that uses such a session at every step
then works, or fails and says so; it is never half an answer that looks whole. A session that the source opens is
there from its first step to its end on every version, and on every exit.

sqlite3 is used as it comes: a connection may be used on the thread that made it and on no other.
"""

from __future__ import annotations

import contextlib
import inspect
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import fastapi
import pytest
from fastapi import Depends, FastAPI

from streamguard.adapters.fastapi import GuardedResponse, guarded
from streamguard.core.errors import StreamClosed
from streamguard.core.receipt import Verdict
from streamguard.runtime.buffer import Buffer
from streamguard.runtime.push import PushSource
from streamguard.runtime.timing import Timing
from tests.adapters.asgi_apps import Ends, Response, exchange
from tests.adapters.kinds import Told, join_threads, place, start_engine
from tests.adapters.servers import Gate, serving
from tests.adapters.test_contexts import ENDINGS, Behaving

QUICK = Timing(linger=0.05)
VERSION = tuple(map(int, fastapi.__version__.split(".")[:2]))
CLOSES_LATE = VERSION >= (0, 118)
HAS_SCOPE = "scope" in inspect.signature(Depends).parameters
WORDS = ["one ", "two ", "three "]
WAYS = ["async", "buffered", "sync", "push"]


class Database:
    """A database in memory, and the books of its sessions."""

    def __init__(self) -> None:
        self.opened: list[object] = []  # where
        self.closed: list[object] = []
        self.rolled_back = 0

    @contextmanager
    def session(self, *, any_thread: bool = False) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(":memory:", check_same_thread=not any_thread)
        self.opened.append(place())
        connection.execute("create table words (word text)")
        connection.executemany("insert into words values (?)", [(word,) for word in WORDS])
        try:
            yield connection
            connection.commit()
        except BaseException:
            connection.rollback()
            self.rolled_back += 1
            raise
        finally:
            connection.close()
            self.closed.append(place())

    @asynccontextmanager
    async def async_session(self) -> AsyncIterator[sqlite3.Connection]:
        with self.session() as connection:
            yield connection


def word(connection: sqlite3.Connection, number: int) -> str:
    found: str = connection.execute("select word from words where rowid = ?", (number + 1,)).fetchone()[0]
    return found


def feed(source: PushSource, tokens: Iterator[str]) -> None:
    """An engine's thread."""
    try:
        with contextlib.closing(tokens):  # type: ignore[type-var]
            for token in tokens:
                if not source.put(token) and not source.wait():
                    return
        source.finish()
    except StreamClosed:
        pass
    except Exception as exc:
        source.fail(exc)


def endpoint_for(way: str, sync: Callable[..., Any], awaited: Callable[..., Any], given: Any, **options: Any) -> Any:
    """A guarded endpoint with one dependency, `given`, for one way to make tokens."""

    async def yields(session: Any = given) -> AsyncIterator[str]:
        async for token in awaited(session):
            yield token

    def yields_in_thread(session: Any = given) -> Iterator[str]:
        yield from sync(session)

    async def pushes(session: Any = given) -> GuardedResponse:
        source = PushSource()
        start_engine(feed, source, sync(session))
        return GuardedResponse(source, timing=QUICK, **options)

    if way == "push":
        return pushes
    options = {"buffer": Buffer(), **options} if way == "buffered" else options
    return guarded(timing=QUICK, **options)(yields_in_thread if way == "sync" else yields)


def app_with(endpoint: Any) -> FastAPI:
    app = FastAPI()
    app.get("/", response_model=None)(endpoint)
    return app


# ---- a session of the source's own --------------------------------------------------------------


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("way", WAYS)
def test_a_session_that_the_source_opens_is_there_to_its_end_and_closed_on_every_exit(way: str, ending: str) -> None:
    behaving, database, ends = Behaving(ending), Database(), Ends()

    def sync(_: object) -> Iterator[str]:
        with database.session() as connection:
            for number, act in enumerate(behaving.script):
                if isinstance(act, Gate):
                    act.wait()
                elif isinstance(act, BaseException):
                    raise act
                else:
                    yield act + word(connection, number % 3)

    async def awaited(_: object) -> AsyncIterator[str]:
        async with database.async_session() as connection:
            for number, act in enumerate(behaving.script):
                if isinstance(act, Gate):
                    await act
                elif isinstance(act, BaseException):
                    raise act
                else:
                    yield act + word(connection, number % 3)

    app = app_with(endpoint_for(way, sync, awaited, None, on_end=ends))
    with serving(Told(app, behaving.gate)) as server:
        behaving.read(server)
        assert ends.wait().status == ending
    join_threads()
    assert len(database.opened) == 1
    assert database.closed == database.opened
    assert database.rolled_back == (0 if ending == "complete" else 1)
    if way in ("sync", "push"):
        assert isinstance(database.opened[0], int)  # a thread's number, and no task


def test_nothing_is_opened_for_a_request_that_starts_nothing() -> None:
    database = Database()

    async def endpoint() -> AsyncIterator[str]:
        async with database.async_session() as connection:
            yield word(connection, 0)

    app = FastAPI()
    app.api_route("/", methods=["GET", "HEAD"])(guarded(endpoint))
    with serving(app) as server:
        assert exchange(server.connect(), "HEAD").status == 200
        assert database.opened == []
        assert exchange(server.connect()).verdict is Verdict.COMPLETE
    assert len(database.opened) == 1


# ---- a session that the framework opens ---------------------------------------------------------


def use(session: sqlite3.Connection) -> Iterator[str]:
    for number in range(3):
        yield word(session, number)


async def use_async(session: sqlite3.Connection) -> AsyncIterator[str]:
    for number in range(3):
        yield word(session, number)


def dependency(database: Database, *, awaited: bool) -> Callable[[], Any]:
    def get_session() -> Iterator[sqlite3.Connection]:
        with database.session(any_thread=True) as session:  # FastAPI may open and close it on two threads
            yield session

    async def get_session_async() -> AsyncIterator[sqlite3.Connection]:
        with database.session(any_thread=True) as session:
            yield session

    return get_session_async if awaited else get_session


def check(answer: Response, database: Database, *, open_to_the_end: bool) -> None:
    verifier = answer.verified()
    if open_to_the_end:
        assert verifier.verdict is Verdict.COMPLETE
        assert [word.encode() in answer.body for word in WORDS] == [True] * 3
    else:
        assert (verifier.status, answer.clean) == ("failed", False)
    assert len(database.opened) == len(database.closed) == 1


@pytest.mark.parametrize("awaited", [True, False], ids=["async dependency", "sync dependency"])
@pytest.mark.parametrize("way", WAYS)
def test_a_session_of_the_framework_serves_to_the_end_where_it_stays_open_and_fails_the_stream_where_not(
    way: str, awaited: bool
) -> None:
    database, ends = Database(), Ends()
    given = Depends(dependency(database, awaited=awaited))
    app = app_with(endpoint_for(way, use, use_async, given, on_end=ends))
    with serving(app) as server:
        answer = exchange(server.connect())
        outcome = ends.wait()
    join_threads()
    # An engine that was started in the endpoint may be ahead of a framework that closes early.
    late = CLOSES_LATE or (way == "push" and outcome.status == "complete")
    check(answer, database, open_to_the_end=late)


@pytest.mark.parametrize("way", ["async", "buffered", "sync"])
@pytest.mark.parametrize("scope", ["function", "request"] if HAS_SCOPE else ["the only one"])
def test_the_scope_of_a_dependency_decides_whether_its_session_serves_the_stream(scope: str, way: str) -> None:
    database = Database()
    options: dict[str, Any] = {"scope": scope} if HAS_SCOPE else {}
    given = Depends(dependency(database, awaited=True), **options)
    with serving(app_with(endpoint_for(way, use, use_async, given))) as server:
        answer = exchange(server.connect())
    join_threads()
    check(answer, database, open_to_the_end=scope == "request" or (not HAS_SCOPE and CLOSES_LATE))


@pytest.mark.parametrize("way", ["async", "buffered", "sync"])
@pytest.mark.parametrize("scope", ["function", "request"] if HAS_SCOPE else ["the only one"])
def test_a_factory_from_a_dependency_serves_the_stream_whatever_its_scope(scope: str, way: str) -> None:
    """The way that works everywhere: depend on what makes sessions, and open one in the source."""
    database = Database()
    options: dict[str, Any] = {"scope": scope} if HAS_SCOPE else {}
    closed: list[str] = []

    async def get_factory() -> AsyncIterator[Callable[[], Any]]:
        yield database.session
        closed.append("dependency")

    def sync(factory: Callable[[], Any]) -> Iterator[str]:
        with factory() as session:
            yield from use(session)

    async def awaited(factory: Callable[[], Any]) -> AsyncIterator[str]:
        with factory() as session:
            async for token in use_async(session):
                yield token

    given = Depends(get_factory, **options)
    with serving(app_with(endpoint_for(way, sync, awaited, given))) as server:
        answer = exchange(server.connect())
    join_threads()
    check(answer, database, open_to_the_end=True)
    assert closed == ["dependency"]


def test_a_sync_session_of_the_framework_is_refused_by_a_driver_that_knows_its_thread() -> None:
    """sqlite3 as it comes: the dependency opened it on a thread of FastAPI's pool. The stream fails, and says so."""
    database = Database()

    def get_session() -> Iterator[sqlite3.Connection]:
        with contextlib.suppress(sqlite3.ProgrammingError):  # it may be closed on another thread, too
            with database.session() as session:
                yield session

    with serving(app_with(endpoint_for("sync", use, use_async, Depends(get_session)))) as server:
        answer = exchange(server.connect())
    join_threads()
    assert (answer.verified().status, answer.clean) == ("failed", False)
