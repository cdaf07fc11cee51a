"""Many streams of every kind in one process, in virtual time, and what they must have moved.

    python -m tests.observe.mixed COUNT SEED prometheus       # prints what is expected, as JSON
    python -m tests.observe.mixed COUNT SEED opentelemetry    # and what was found

Each kind is one function. It does to a stream what a network, a reader or a source does, and notes in `expected`, by
what it did and not by what was told, how far each counter must have come.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import attrs

from streamguard import anyone_with_the_id
from streamguard.adapters.asgi import GuardedAnswer
from streamguard.adapters.endpoints import Endpoints
from streamguard.adapters.logged import LoggedAnswer
from streamguard.app import Endpoint, StreamGuard
from streamguard.core.cursor import Cursor, new_sid
from streamguard.core.dialect import Native
from streamguard.core.errors import Failure
from streamguard.core.flush import Immediate
from streamguard.core.framing import FramedEncoder
from streamguard.core.items import Block
from streamguard.core.pipeline import FrameStage
from streamguard.log.base import StreamInfo
from streamguard.log.memory import MemoryLog
from streamguard.observe.prometheus import Prometheus
from streamguard.runtime.admission import Admission
from streamguard.runtime.grants import Told
from streamguard.runtime.own import OWN, fixed
from streamguard.runtime.slots import Limits
from streamguard.runtime.takeover import Continue, Orphan
from streamguard.runtime.timing import Timing
from tests.runtime.virtual import run

__all__ = ["KINDS", "Mixed", "Worker", "expected_of", "orphan", "worked"]

DROPPED = Block("image", {"dropped": True})


class Request:
    """One request: `deaf` is after how many parts of the body its reader takes nothing."""

    def __init__(self, path: str = "/", *, http: str = "1.1", deaf: int | None = None, **headers: str) -> None:
        fields = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        self.scope: dict[str, Any] = {
            "type": "http", "method": "GET", "path": path, "query_string": b"", "http_version": http, "headers": fields
        }  # fmt: skip
        self.left = anyio.Event()
        self.body = b""
        self.status = 0
        self._deaf = deaf
        self._parts = 0
        self._asked = False

    async def receive(self) -> Any:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.status = message.get("status", self.status)
        if message.get("body"):
            self._parts += 1
            if self._deaf is not None and self._parts > self._deaf:
                await anyio.sleep_forever()
            self.body += message["body"]

    async def at(self, app: Any) -> Request:
        await app(self.scope, self.receive, self.send)
        return self


def dropping(push: Any) -> Any:
    """`FrameStage.push`, which loses the frame of one item on its way to the guard."""

    def dropped(self: FrameStage, item: Any, now: float) -> Any:
        frames = push(self, item, now)
        return [] if item is DROPPED else frames

    return dropped


class Mixed:
    """One process: its guards, what is observed, and what is expected."""

    def __init__(self, observer: Any, seed: int = 0) -> None:
        self.expected: Counter[str] = Counter()
        self.random = random.Random(seed)
        self.observe = observer
        self.log = MemoryLog(clock=anyio.current_time)
        self.guard = StreamGuard(self.log, authorize=anyone_with_the_id, observe=observer)
        self.endpoints = Endpoints(self.guard, "/streams", timing=self.timing())
        self.guard.resumers["on"] = Endpoint(self._goes_on, Native(), Immediate(), self.timing(), None)
        self.admission = Admission(Limits(max_streams=1, max_waiting=0))
        self.slot = self.admission.free()

    def timing(self, **limits: Any) -> Timing:
        return Timing(**{"clock": anyio.current_time, "linger": 0.0, "write": None, "heartbeat": None, **limits})

    def answer(self, source: Any, **limits: Any) -> GuardedAnswer:
        return GuardedAnswer(source, observe=self.observe, timing=self.timing(**limits))

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        inside = ",".join(f'{key}="{labels[key]}"' for key in sorted(labels))
        self.expected[f"streamguard_{name}" + (f"{{{inside}}}" if inside else "")] += amount

    def over(self, part: str, status: str, cause: str = "", *, items: int = 0, frames: int = 0) -> None:
        """A part began and ended."""
        self.count("streams_opened_total", part=part)
        self.count("streams_closed_total", part=part, status=status, cause=cause)
        self.count("stream_duration_seconds_count", part=part, status=status)
        self.count("frames_total", frames, part=part)
        if part != "reader":
            self.count("items_total", items, part=part)
            self.count("source_close_seconds_count", part=part)
            if items > 1:
                self.count("time_per_item_seconds_count", part=part)
        if frames - (status not in ("gone", "slow", "parted")) > 0:
            self.count("time_to_first_frame_seconds_count", part=part)

    async def _goes_on(self, found: Orphan) -> Continue:
        return Continue(words(2))

    async def run(self, count: int) -> None:
        """So many streams, each kind in turn, all at once."""
        kinds = [kind for _, kind in zip(range(count), KINDS * (count // len(KINDS) + 1), strict=False)]
        async with anyio.create_task_group() as tasks:
            for kind in kinds:
                tasks.start_soon(kind, self)


async def words(count: int) -> AsyncIterator[str]:
    for number in range(count):
        await anyio.sleep(0.1)
        yield f"w{number} "


# ---- streams without a log ----------------------------------------------------------------------


async def complete(mixed: Mixed) -> None:
    items = mixed.random.randint(1, 9)
    await Request().at(mixed.answer(words(items)))
    mixed.over("direct", "complete", items=items, frames=items + 1)


async def failed(mixed: Mixed) -> None:
    items = mixed.random.randint(1, 9)

    async def source() -> AsyncIterator[str]:
        async for word in words(items):
            yield word
        raise ValueError

    http10 = mixed.random.random() < 0.5
    await Request(http="1.0" if http10 else "1.1").at(mixed.answer(source))
    mixed.over("direct", "failed", "source_error", items=items, frames=items + 1)
    mixed.count("aborts_not_carried_total", int(http10), hop="http10")


async def cancelled(mixed: Mixed) -> None:
    async def source() -> AsyncIterator[str]:
        yield "one"
        answer.cancel(Failure("the application's", "it is enough"))
        await anyio.sleep(1)

    answer = mixed.answer(source)
    await Request().at(answer)
    mixed.over("direct", "cancelled", "own", items=1, frames=2)


async def stalled(mixed: Mixed) -> None:
    async def source() -> AsyncIterator[str]:
        yield "one"
        await anyio.sleep(99)

    await Request().at(mixed.answer(source, stall=5.0))
    mixed.over("direct", "stalled", "stalled", items=1, frames=2)
    mixed.count("stalls_total", part="direct")


async def abandoned(mixed: Mixed) -> None:
    async def source() -> AsyncIterator[str]:
        try:
            yield "one"
            await anyio.sleep(99)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(99)

    await Request().at(mixed.answer(source, stall=5.0, close=1.0))
    mixed.over("direct", "stalled", "stalled", items=1, frames=2)
    mixed.count("stalls_total", part="direct")
    mixed.count("sources_abandoned_total", part="direct")


async def slow(mixed: Mixed) -> None:
    await Request(deaf=3).at(mixed.answer(words(9), write=8.0))  # the opening, and two words
    mixed.over("direct", "slow", "slow", items=3, frames=3)
    mixed.count("readers_gone_total", part="direct", cause="slow")
    mixed.count("items_undelivered_total", 3)
    mixed.count("blocked_seconds_count", by="transport")


async def left(mixed: Mixed) -> None:
    request = Request()

    async def source() -> AsyncIterator[str]:
        yield "one"
        yield "two"
        request.left.set()
        await anyio.sleep(99)

    await request.at(mixed.answer(source))
    mixed.over("direct", "gone", "gone", items=2, frames=2)
    mixed.count("readers_gone_total", part="direct", cause="gone")
    mixed.count("items_undelivered_total", 2)


async def refused(mixed: Mixed) -> None:
    answer = GuardedAnswer(words(1), observe=mixed.observe, limits=mixed.admission)
    assert (await Request().at(answer)).status == 503
    mixed.count("requests_refused_total", why="full")


async def lost(mixed: Mixed) -> None:
    async def source() -> AsyncIterator[Any]:
        yield Block("image", {})
        yield DROPPED
        yield Block("image", {})

    await Request().at(mixed.answer(source))
    mixed.over("direct", "failed", "internal", items=3, frames=2)
    mixed.count("tokens_lost_total", 2, part="direct")  # the one, and the next, which then does not fit


# ---- streams in a log ---------------------------------------------------------------------------


async def logged(mixed: Mixed) -> None:
    items = mixed.random.randint(1, 9)
    answer = LoggedAnswer(mixed.guard, words(items), timing=mixed.timing())
    await Request().at(answer)
    mixed.over("producer", "complete", items=items, frames=items + 1)
    mixed.over("reader", "complete", frames=items + 1)


async def resumed(mixed: Mixed) -> None:
    go, request = anyio.Event(), Request(streamguard="v=1")

    async def source() -> AsyncIterator[str]:
        yield "one"
        yield "two"
        await anyio.sleep(1)
        request.left.set()
        await go.wait()
        yield "three"

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(request.at, LoggedAnswer(mixed.guard, source, timing=mixed.timing()))
        await request.left.wait()
        await anyio.sleep(1)
        ids = re.findall(rb"^id: (\S+)", request.body, re.MULTILINE)
        seen = [cursor for cursor in map(Cursor.parse, map(bytes.decode, ids)) if cursor.seq]
        assert len(seen) == 2
        again = Request("/streams", streamguard="v=1", last_event_id=str(seen[0]))
        tasks.start_soon(again.at, mixed.endpoints)
        await anyio.sleep(1)
        (reader,) = [each for each in mixed.guard.readers if each.sid == seen[0].sid]
        assert await mixed.guard.grants.hear(Told(reader.name, seen[1]), seen[0].sid) == "taken"
        go.set()
    mixed.over("producer", "complete", items=3, frames=4)
    mixed.over("reader", "parted", "gone", frames=2)
    mixed.over("reader", "complete", frames=3)
    mixed.count("readers_gone_total", part="reader", cause="gone")
    mixed.count("resumes_total")
    mixed.count("frames_replayed_total", 1)
    mixed.count("acknowledgements_total")


async def orphan(mixed: Mixed, resumer: str, origin: str | None = None) -> Cursor:
    """The cursor of the first frame of three of a stream whose process is gone."""
    encoder = FramedEncoder("native", sid=new_sid())
    options = {OWN: {"resumer": resumer} if resumer else {}, **fixed({}, origin, negotiated=False)}
    lease = await mixed.log.create(StreamInfo(encoder.sid, "native", principal=ANYONE, options=options), 15.0)
    frames = [frame for word in ("one", "two", "three") for frame in encoder.texts(word)]
    await mixed.log.append(lease, encoder.zero, frames)
    await mixed.log.release(lease)
    first = frames[0]
    return Cursor(encoder.sid, first.seq, first.offset, first.crc)


async def unread(mixed: Mixed) -> None:
    request = Request()

    async def source() -> AsyncIterator[str]:
        yield "one"
        yield "two"
        await anyio.sleep(1)
        request.left.set()
        await anyio.sleep(99)

    await request.at(LoggedAnswer(mixed.guard, source, timing=mixed.timing()))
    await anyio.sleep(1)
    mixed.over("producer", "cancelled", "gone", items=2, frames=3)
    mixed.over("reader", "parted", "gone", frames=2)
    mixed.count("readers_gone_total", part="reader", cause="gone")
    mixed.count("items_undelivered_total", 2)


async def taken_over(mixed: Mixed) -> None:
    cursor = await orphan(mixed, "on")
    await Request("/streams", streamguard="v=1", last_event_id=str(cursor)).at(mixed.endpoints)
    mixed.over("producer", "complete", items=2, frames=3)
    mixed.over("reader", "complete", frames=5)
    mixed.count("takeovers_total", result="gone_on")
    mixed.count("resumes_total")
    mixed.count("frames_replayed_total", 2)


async def sealed(mixed: Mixed) -> None:
    cursor = await orphan(mixed, "")
    await Request("/streams", streamguard="v=1", last_event_id=str(cursor)).at(mixed.endpoints)
    mixed.over("reader", "failed", frames=3)
    mixed.count("takeovers_total", result="sealed")
    mixed.count("resumes_total")
    mixed.count("frames_replayed_total", 2)


async def unknown(mixed: Mixed) -> None:
    cursor = Cursor(new_sid(), 1, 5, 0)
    await Request("/streams", streamguard="v=1", last_event_id=str(cursor)).at(mixed.endpoints)
    mixed.count("requests_refused_total", why="unknown_stream")


ANYONE = anyone_with_the_id(None, "read")
KINDS: list[Callable[[Mixed], Awaitable[None]]] = [
    complete, failed, cancelled, stalled, abandoned, slow, left, refused, lost, logged, resumed, unread, taken_over,
    sealed, unknown,
]  # fmt: skip


# ---- a run --------------------------------------------------------------------------------------


@attrs.frozen
class Worker:
    """One run: what was expected, and the observer's own page."""

    expected: dict[str, float]
    page: bytes


def worked(count: int, seed: int, metrics: Prometheus) -> Worker:
    return Worker(expected_of(count, seed, metrics), metrics.page())


def expected_of(count: int, seed: int, observe: Any) -> dict[str, float]:
    """Have so many streams, of which `observe` is told: what that must have moved."""
    push = FrameStage.push
    FrameStage.push = dropping(push)  # type: ignore[method-assign]
    try:

        async def main() -> Mixed:
            mixed = Mixed(observe, seed)
            await mixed.run(count)
            await mixed.guard.aclose()
            assert mixed.slot is not None
            mixed.slot.release()
            return mixed

        mixed: Mixed = run("asyncio", main)
    finally:
        FrameStage.push = push  # type: ignore[method-assign]
    return dict(mixed.expected)
