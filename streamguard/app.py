"""StreamGuard: what an application configures once to make its streams resumable.

    guard = StreamGuard(MemoryLog(), authorize=who)

It joins three things: the log, which keeps frames; the runs of this process, which generate; and `authorize`, which
says who may do what. Adapters give it requests. What stands here needs no framework: start a stream, find it again for
somebody who may, read it, cancel it, and give it an end when nobody generates it any more.

A stream belongs to the principal who started it. Somebody else's stream and one that is not there are the same answer,
so that nobody learns which names exist.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final, Literal

import anyio
import attrs
from attrs.validators import optional

from streamguard.core.arguments import number, whole_number, whole_number_from
from streamguard.core.cursor import Cursor, new_sid
from streamguard.core.dialect import Dialect, dialect_named
from streamguard.core.errors import Failure, SourceFailed
from streamguard.core.flush import FlushPolicy, Immediate
from streamguard.core.framing import FramedEncoder
from streamguard.log import base
from streamguard.log.base import (
    Lease,
    LeaseHeld,
    LogError,
    LogUnavailable,
    StreamInfo,
    StreamLog,
    StreamSealed,
    StreamState,
    UnknownStream,
)
from streamguard.observe.hooks import Observers, OnEnd, RequestLabels, observers_of
from streamguard.runtime.admission import Admission, admission_of
from streamguard.runtime.configured import ANYONE, a_log, a_policy, an_authorize, principal_of
from streamguard.runtime.drain import Draining
from streamguard.runtime.flow import Flow
from streamguard.runtime.grants import Grants
from streamguard.runtime.leases import created, let_go
from streamguard.runtime.own import OWN, dialect_of, encoder_of_an_end, fixed, negotiated, origin_of, own_options
from streamguard.runtime.producer import Producer
from streamguard.runtime.reader import Page, stored
from streamguard.runtime.readers import Readers
from streamguard.runtime.resumers import Endpoint, Resumers
from streamguard.runtime.runs import SIGN, Detach, OnDisconnect, Run, Runs
from streamguard.runtime.seen import NO_LABELS, tell_sealed
from streamguard.runtime.slots import Slot
from streamguard.runtime.source import TokenSource
from streamguard.runtime.sweep import Sweeper
from streamguard.runtime.takeover import orphan, taken_up
from streamguard.runtime.timing import DEFAULT_TIMING, Timing

__all__ = ["OWN", "Action", "Authorize", "Endpoint", "StreamGuard", "anyone_with_the_id", "own_options"]

logger = logging.getLogger("streamguard")

Action = Literal["start", "read", "ack", "cancel", "status", "dashboard"]
Authorize = Callable[[Any, Action], "str | Awaitable[str | None] | None"]

LOST: Final = Failure("producer_lost", "the process that generated this answer is gone", retryable=True)
CANCELLED: Final = Failure("cancelled", "the stream was cancelled")


def anyone_with_the_id(request: Any, action: Action) -> str:
    """The open form of `authorize`: whoever knows a stream's id, 128 random bits, may read and cancel it."""
    return ANYONE


def _made_runs(guard: StreamGuard) -> Runs:
    return Runs(guard.draining, guard.readers, guard.max_ahead)


def _made_sweeper(guard: StreamGuard) -> Sweeper:
    return Sweeper(guard.log, guard.runs.background)


def _made_grants(guard: StreamGuard) -> Grants:
    return Grants(guard.log, guard.readers, guard.runs.background)


@attrs.define(eq=False)
class StreamGuard(Draining):
    """The application's object; `grace` and `on_sigterm` are those of `Draining`.

    `log` keeps the frames. `authorize(request, action)`, sync or async, answers the principal, or None for no.
    `on_disconnect` is what a reader's leaving does to the generation, for streams that can be resumed. `ttl` is how
    long, in seconds, a process may be silent before its streams are taken for lost. `max_readers` is how many may read
    one stream at once here; the newest wins. `patience` is how long the log may be in trouble before a stream fails.
    `max_takeovers` is how often one stream may be gone on with after its process died; where that let go of it, as at
    its shutdown, it does not count. `max_connection_age` is after how many seconds, or a little earlier, a reader that
    can come back is sent to do so; None is never. `limits` are the Limits of new streams, or an Admission, which may be
    shared. `max_ahead` is how many bytes a stream may be generated ahead of its readers here; None is without a limit.
    `observe` is an Observer, or several. Raises TypeError for another kind, ValueError for a number out of range.
    """

    log: StreamLog = attrs.field(validator=a_log)
    authorize: Authorize = attrs.field(kw_only=True, validator=an_authorize)
    on_disconnect: OnDisconnect = attrs.field(kw_only=True, factory=Detach, validator=a_policy)
    ttl: float = attrs.field(kw_only=True, default=15.0, validator=number(above=0))
    max_readers: int = attrs.field(kw_only=True, default=8, validator=whole_number)
    patience: float = attrs.field(kw_only=True, default=5.0, validator=number(least=0))
    max_connection_age: float | None = attrs.field(kw_only=True, default=None, validator=optional(number(above=0)))
    path: str | None = attrs.field(init=False, default=None)  # where `install` put the endpoints
    told: bool = attrs.field(init=False, default=False)  # in the log, that it did not
    max_ahead: int | None = attrs.field(kw_only=True, default=None, validator=optional(whole_number))
    readers: Readers = attrs.field(init=False, factory=Readers)
    runs: Runs = attrs.field(init=False, default=attrs.Factory(_made_runs, takes_self=True))
    grants: Grants = attrs.field(init=False, default=attrs.Factory(_made_grants, takes_self=True))
    max_takeovers: int = attrs.field(kw_only=True, default=2, validator=whole_number_from(0))
    admission: Admission | None = attrs.field(kw_only=True, default=None, alias="limits", converter=admission_of)
    observe: Observers | None = attrs.field(kw_only=True, default=None, converter=observers_of)
    resumers: Resumers = attrs.field(init=False, factory=Resumers)  # by the name that a stream's options bear
    _closed: bool = attrs.field(init=False, default=False)
    _sweeper: Sweeper = attrs.field(init=False, default=attrs.Factory(_made_sweeper, takes_self=True))
    _lost: dict[str, anyio.Event] = attrs.field(init=False, factory=dict)  # what is being taken over just now

    def __attrs_post_init__(self) -> None:
        if self.observe is not None:
            self.observe.attach(self.draining, self.admission)

    def request_of(self, scope: Any, receive: Any) -> Any:
        """What `authorize` is given for an ASGI request: its scope. A framework's guard makes its own kind of it."""
        return scope

    async def principal(self, request: Any, action: Action, by: Authorize | None = None) -> str | None:
        """Who asks, or None if that one may not, by `authorize`, or `by` another such function. Raises TypeError where
        that answers neither."""
        found = (by or self.authorize)(request, action)
        return principal_of(await found if inspect.isawaitable(found) else found)

    async def start(
        self,
        source: TokenSource,
        *,
        principal: str,
        dialect: str | Dialect = "native",
        flush: FlushPolicy | None = None,
        timing: Timing = DEFAULT_TIMING,
        on_disconnect: OnDisconnect | None = None,
        on_end: OnEnd | None = None,
        name: str | None = None,
        key: str | None = None,
        fingerprint: str | None = None,
        negotiated: bool = False,
        options: dict[str, Any] | None = None,
        labels: RequestLabels = NO_LABELS,
        asked: str = "",
        resumer: Endpoint | None = None,
        slot: Slot | None = None,
    ) -> Run:
        """Generate `source` into the log, whoever reads; the caller is one already. `resumer` is for this stream only;
        `asked` is what the log of the process calls the request by, beside the stream's name.

        Raises StreamExists where `key` has a stream, and LogUnavailable; then nothing started, `slot` is the caller's.
        """
        encoder = FramedEncoder(dialect_named(dialect), sid=new_sid(), negotiated=negotiated)
        origin = None if self.observe is None else self.observe.began(labels)
        kept = {**(options or {}), **fixed(encoder.dialect.settings(), origin, negotiated=negotiated)}
        info = StreamInfo(encoder.sid, dialect_named(dialect).name, principal, name, key, fingerprint, kept)
        since, lease = timing.clock(), await created(self.log, info, self.ttl)
        producer = Producer(
            source,
            flush or Immediate(),
            encoder,
            self.log,
            lease,
            timing,
            patience=self.patience,
            renewed=since,
            on_end=on_end,
            observers=self.observe,
            labels=labels,
            asked=asked,
            origin=origin,
        )
        self._sweeper.now_and_then()
        self.resumers.keep(info.sid, resumer)
        return self.runs.start(producer, on_disconnect or self.on_disconnect, self.resumers.over, slot)

    def register(self, endpoint: Endpoint, *, name: str | None = None) -> str:
        """The name under which a stream's options say what goes on with it: `name`, or the resumer's own. Every process
        must know it before it is asked for a stream of another: call it when the application starts.

        Raises ValueError for a name that is another's, and for a lambda or a partial without one.
        """
        return self.resumers.register(endpoint, name)

    async def find(self, sid: str, principal: str) -> StreamState:
        """The stream, for one who may have it. Raises UnknownStream for one that is not there, or another's."""
        state = await self.log.state(sid)
        if state.info.principal != principal:
            raise UnknownStream(sid)
        return state

    async def named(self, name: str, principal: str) -> StreamState:
        """The principal's newest stream of that name. Raises UnknownStream."""
        info = await self.log.find(name, principal)
        if info is None:
            raise UnknownStream(name)
        return await self.find(info.sid, principal)

    async def cancel(self, sid: str) -> None:
        """End a stream as `cancelled`, wherever it is generated, and if nobody does. One that was whole in that moment
        may still end as `complete`, by a terminal that was on its way. Raises UnknownStream, and StreamSealed for one
        that ended already, unless as `cancelled`."""
        try:
            await self.log.signal(sid, "cancel")
        except StreamSealed as sealed:
            if sealed.tail.status != "cancelled":
                raise
            return
        run = self.runs.get(sid)
        if run is not None:
            run.producer.cancel()
        state = await self.log.state(sid)
        if state.sealed and state.tail.status != "cancelled":  # by a terminal that came right behind the cancel
            raise StreamSealed(state.tail)
        if run is None and not state.held and not state.sealed:
            await self.lost(state)

    def pages(
        self,
        after: Cursor,
        *,
        rows: bool = False,
        leave: Callable[[], bool] | None = None,
        flow: Flow | None = None,
    ) -> AsyncGenerator[Page, None]:
        """The frames behind a cursor, to the stream's end, or until `leave` answers True; while they are read the
        stream is known to be read. With `rows` they may be tuples of a frame's fields; with `flow` they come as far as
        there is credit."""
        run = self.runs.get(after.sid)  # which has been told of its reader, if it runs here
        told = -math.inf

        async def reading() -> None:
            nonlocal told
            now = anyio.current_time()
            if now - told >= SIGN and (run is None or self.runs.get(after.sid) is not run):
                told = now
                await self._here(after.sid)

        async def orphaned(state: StreamState) -> None:
            if not self.ready:
                raise SourceFailed("shutdown", "another process is to go on with the stream", retryable=True)
            await self.lost(state)

        always = run is None
        return stored(self.log, after, orphaned, reading=reading, always=always, rows=rows, leave=leave, flow=flow)

    async def lost(self, state: StreamState) -> None:
        """Go on with a stream that nobody generates, or give it an end: it is never left without one.

        Whoever asks may leave meanwhile: it is done beside the caller, once for all who ask.
        """
        sid = state.info.sid
        done = self._lost.get(sid)
        if done is None:
            self._lost[sid] = done = anyio.Event()

            async def take() -> None:
                try:
                    await self._take_over(state)
                except (LeaseHeld, StreamSealed, UnknownStream):
                    pass  # somebody else was faster
                except LogError as exc:
                    logger.warning("stream %s could not be taken over: %s", sid[:8], exc)
                finally:
                    del self._lost[sid]
                    done.set()

            self.runs.background.start(take, f"streamguard takeover {sid[:8]}")
        await done.wait()

    async def _take_over(self, state: StreamState) -> None:
        sid = state.info.sid
        lease = await self.log.take_over(sid, state.epoch, self.ttl)
        try:
            if base.crash is not None:
                base.crash("in-takeover")
            state = await self.log.state(sid)
            why = await self._gone_on(state, lease)
            if why is not None:
                await self._sealed(state, lease, why)
        except BaseException:
            await let_go(self.log, lease)
            raise

    async def _gone_on(self, state: StreamState, lease: Lease) -> str | None:
        """Go on with it, if somebody says how; else why not."""
        sid = state.info.sid
        resumer = own_options(state.info).get("resumer", "")
        endpoint = self.resumers.find(sid, resumer)
        if state.cancelled:
            return "it was cancelled"
        if endpoint is None:
            why = f"its resumer is not known here: {resumer}" if resumer else "it has no resumer that others know"
            return f"{why} (in streamguard's documentation: how-to/take-over-after-a-crash.md)"
        if state.crashes > self.max_takeovers:
            return f"its process was lost {state.crashes} times (max_takeovers={self.max_takeovers})"
        try:
            source, encoder = await self._resumed(state, endpoint)
        except LogUnavailable:
            raise
        except LogError as exc:
            return f"it cannot be taken over: {exc}"
        except Exception:
            logger.exception("stream %s cannot be taken over: its resumer failed", sid[:8])
            return "its resumer failed"
        asked = endpoint.timing.clock()
        try:
            await self.log.renew(lease)
        except BaseException:
            with anyio.CancelScope(shield=True), anyio.move_on_after(1.0):
                await source.aclose()
            raise
        producer = Producer(
            source,
            Immediate() if own_options(state.info).get("flush") == "token" else endpoint.flush,
            encoder,
            self.log,
            lease,
            endpoint.timing,
            patience=self.patience,
            renewed=asked,
            on_end=endpoint.on_end,
            observers=self.observe,
            origin=origin_of(state.info),
        )
        producer.seen.taken_over(state.tail.seq, lease.epoch, state.crashes)
        slot = None if self.admission is None else self.admission.take(state.info.principal or "")
        run = self.runs.start(producer, endpoint.on_disconnect or self.on_disconnect, self.resumers.over, slot)
        run.seen()  # whoever reads it is known by signs only, and has time to give the next
        run.leave()
        logger.warning("stream %s: taken over at frame %d, by lease %d", sid[:8], state.tail.seq, lease.epoch)
        return None

    async def _resumed(self, state: StreamState, endpoint: Endpoint) -> tuple[TokenSource, FramedEncoder]:
        """Ask the resumer, for half of a lease at most. Raises LogError, and for what is wrong with its answer."""
        if endpoint.dialect.name != state.info.dialect:
            raise ValueError(f"its dialect is {state.info.dialect}, and its endpoint's {endpoint.dialect.name}")
        dialect = dialect_of(endpoint.dialect, state.info)
        with anyio.move_on_after(self.ttl / 2):
            found, frames = await orphan(self.log, state, dialect)
            encoder = FramedEncoder(dialect, at=state.tail, negotiated=negotiated(state.info))
            encoder.follow(frames)
            answer = endpoint.resumer(found)
            return taken_up(await answer if inspect.isawaitable(answer) else answer, found, frames, dialect), encoder
        raise TimeoutError("it took longer than half a lease: what takes time belongs into its source")

    async def _sealed(self, state: StreamState, lease: Lease, why: str) -> None:
        endpoint = self.resumers.find(state.info.sid, own_options(state.info).get("resumer", ""))
        encoder = encoder_of_an_end(state, None if endpoint is None else endpoint.dialect)
        failure, status = (CANCELLED, "cancelled") if state.cancelled else (LOST, "failed")
        await self.log.append(lease, state.tail, encoder.fail(failure, status))
        self.resumers.over(state.info.sid, sealed=True)
        tell_sealed(self.observe, state.tail, lease.epoch, state.crashes, origin_of(state.info))
        logger.warning("stream %s: nobody generates it any more; it ended as %s: %s", state.info.sid[:8], status, why)

    async def require_open(self) -> None:
        """Raise RuntimeError where `aclose` has closed the log, and it takes no calls any more."""
        if self._closed:
            try:
                await self.log.find_key("")
            except LogUnavailable as exc:
                raise RuntimeError(
                    "this guard's log was closed when its application was shut down: make both anew for another "
                    "start, or say install(app, close_log=False)"
                ) from exc

    async def aclose(self, *, close_log: bool = True) -> None:
        """Let go of every stream that is generated here, then close the log. Stored streams stay. Raises nothing.

        For the shutdown of an application, which `install` calls it at. A log that is used elsewhere too is not to be
        closed: a closed one refuses every call, with LogUnavailable.
        """
        await self.runs.aclose()
        if close_log:
            self._closed = True
            try:
                await self.log.aclose()
            except Exception:
                logger.exception("the log could not be closed")

    async def _here(self, sid: str) -> None:
        try:
            await self.log.signal(sid, "read")
        except LogError as exc:
            logger.info("stream %s: its producer could not be told that it is read: %s", sid[:8], exc)
