"""The streams that this process generates: each with its producer, and who reads it here.

A run belongs to no connection. It ends with its source, when it is cancelled, or when nobody has read it for as long
as its policy allows:

    Cancel()                        at once when the last reader leaves
    Detach(grace=60)                after so many seconds without a reader; one that comes back in time finds it running
    ReadOn(items=…, seconds=…)      the same, but the source may go on for so much more, which the log keeps

Readers at other processes are known by the `read` signals that they send through the log, one every SIGN seconds. Each
counts as a reader that is there for PRESENCE seconds: longer than it takes to send the next.

A run may hold a slot, from its start to its end. While nobody reads it that can be taken away, where it is needed.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable
from typing import Final

import anyio
import anyio.abc
import attrs

from streamguard.core.arguments import number, whole_number_from
from streamguard.core.errors import Failure
from streamguard.runtime.admission import EVICTED
from streamguard.runtime.background import Background
from streamguard.runtime.drain import Drain
from streamguard.runtime.lead import Lead
from streamguard.runtime.producer import Producer
from streamguard.runtime.readers import Readers
from streamguard.runtime.slots import Slot

__all__ = ["PRESENCE", "SIGN", "Cancel", "Detach", "OnDisconnect", "ReadOn", "Run", "Runs", "Unannounced"]

GOING: Final = 10.0  # seconds for all runs to let go of their streams, of which each source has 5 to close
SIGN: Final = 10.0  # seconds between two signs that a stream is read at another process
PRESENCE: Final = 25.0  # seconds that one counts: two signs, and the way of the second

LEFT: Final = Failure("gone", "the reader left")
# Who asks for the rest of such a stream, by hand, is told why there is none.
LEFT_FOR_GOOD: Final = Failure(
    "gone",
    "the reader left, and had not said that it can come back: send `Streamguard: v=1` or an `Idempotency-Key`, "
    "or have the endpoint name its streams",
)
ENDED: Final = Failure("evicted", EVICTED, retryable=True)

logger = logging.getLogger("streamguard")


@attrs.frozen
class Cancel:
    """The last reader's leaving ends the generation."""

    grace = 0.0
    items: int | None = None


class Unannounced(Cancel):
    """A Cancel that nobody chose: the reader had not said that it can come back."""


@attrs.frozen
class Detach:
    """Generation goes on for `grace` seconds without a reader."""

    grace: float = attrs.field(default=60.0, validator=number(least=0))
    items = None


@attrs.frozen(kw_only=True)
class ReadOn:
    """Generation goes on for so many items, or seconds, without a reader; whichever comes first."""

    items: int | None = attrs.field(default=None, validator=attrs.validators.optional(whole_number_from(0)))
    seconds: float | None = attrs.field(default=None, validator=attrs.validators.optional(number(least=0)))

    @property
    def grace(self) -> float:
        return math.inf if self.seconds is None else self.seconds


OnDisconnect = Cancel | Detach | ReadOn


class Run:
    """One stream that is generated here."""

    def __init__(self, producer: Producer, policy: OnDisconnect, slot: Slot | None = None) -> None:
        self.producer = producer
        self.policy = policy
        self.slot = slot
        self.over = anyio.Event()
        self._left = LEFT_FOR_GOOD if isinstance(policy, Unannounced) else LEFT
        self._readers = 0
        self._tasks: anyio.abc.TaskGroup | None = None  # while it runs
        self._minded = False
        self._changed = anyio.Event()
        self._present = -math.inf  # until when somebody is taken to read it at another process
        self._last = math.inf  # of its items, while nobody reads
        producer.on_read = self.seen
        if policy.items is not None:
            producer.sink.taken = self._count

    @property
    def sid(self) -> str:
        return self.producer.lease.sid

    def stands(self, otherwise: Callable[[], bool]) -> str:
        """How the stream does where a reader is not served any more, in the words of a log. `otherwise` answers whether
        its leaving ends nothing, since there are others, say."""
        if self.producer.sealed:
            return "is over"
        lasts = self.policy.grace or anyio.current_time() < self._present or otherwise()
        return "goes on" if lasts else "ends now"

    def join(self) -> None:
        """A reader came."""
        self._readers += 1
        self._came()

    def leave(self) -> None:
        """A reader left."""
        self._readers -= 1
        self._changed.set()
        self._mind_it()

    def seen(self) -> None:
        """Somebody reads it, at another process or unknown to this run."""
        self._present = anyio.current_time() + PRESENCE
        self._came()

    def _came(self) -> None:
        if self.slot is not None:
            self.slot.attach()
        self._changed.set()

    async def run(self) -> None:
        """Generate, and mind the readers, until the stream is over."""
        try:
            await self.producer.run(self._begin)
        finally:
            self.over.set()

    def _begin(self, tasks: anyio.abc.TaskGroup | None) -> None:
        self._tasks = tasks
        self._mind_it()

    def _mind_it(self) -> None:
        """Have a task that minds the readers, from when the last one here left until one comes: mostly there is none,
        because each costs as much as the rest of a stream that waits."""
        if self._tasks is not None and not self._readers and not self._minded:
            self._minded = True
            self._tasks.start_soon(self._mind)

    async def _mind(self) -> None:
        try:
            await self._until_read()
        finally:
            self._minded = False

    async def _until_read(self) -> None:
        while not self._readers:
            self._changed = anyio.Event()
            if self._read():
                with anyio.move_on_after(self._present - anyio.current_time()):
                    await self._changed.wait()
                continue
            if self.policy.items is not None:
                self._last = self.producer.items + self.policy.items
            if self.slot is not None:
                self.slot.detach(lambda: self.producer.cancel(ENDED))
            with anyio.move_on_after(self.policy.grace):
                while not self._read() and self.producer.items < self._last:
                    await self._woken()
            self._last = math.inf
            if not self._read():
                self.producer.cancel(self._left)
                return

    def _read(self) -> bool:
        return self._readers > 0 or anyio.current_time() < self._present

    def _count(self) -> None:
        """End with the last item that may be: here, since a quick source makes many more before another task runs."""
        if self.producer.items >= self._last:
            self.producer.cancel(self._left)

    async def _woken(self) -> None:
        self._changed = anyio.Event()
        with anyio.move_on_after(math.inf if self.policy.items is None else 0.05):
            await self._changed.wait()


class Runs:
    """All of them, by their sids. At the end of `drain` they are let go of. With `max_ahead` none is generated further
    than so many bytes ahead of its `readers`."""

    def __init__(
        self, drain: Drain | None = None, readers: Readers | None = None, max_ahead: int | None = None
    ) -> None:
        self.background = Background()
        self._drain = Drain() if drain is None else drain
        self._readers = Readers() if readers is None else readers
        self._max_ahead = max_ahead
        self._runs: dict[str, Run] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def get(self, sid: str) -> Run | None:
        return self._runs.get(sid)

    def start(
        self,
        producer: Producer,
        policy: OnDisconnect,
        over: Callable[[str, bool], None] | None = None,
        slot: Slot | None = None,
    ) -> Run:
        """Generate beside the caller, from now on. At the run's end `slot` is released, and `over` is told its stream,
        and whether that has its end too."""
        run = Run(producer, policy, slot)
        self._runs[run.sid] = run
        if self._max_ahead is not None:
            producer.sink.lead = lead = Lead(self._readers, run.sid, self._max_ahead)
            lead.waited = functools.partial(producer.seen.blocked, "lead")
        run.join()  # whoever starts it reads it: it must not end before that one has begun

        async def tracked() -> None:
            try:
                with self._drain.joined(producer.shut_down):
                    await run.run()
            finally:
                if self._runs.get(run.sid) is run:  # it may have been taken over here meanwhile
                    del self._runs[run.sid]
                if slot is not None:
                    slot.release()
                if over is not None:
                    over(run.sid, producer.sealed)

        self.background.start(tracked, f"streamguard stream {run.sid[:8]}")
        return run

    async def aclose(self) -> None:
        """Let go of every stream that is generated here: it lives on in the log, and another process can take it over.

        Ends takeovers and sweeps too. Waits for what each has left to do, for GOING seconds at most.
        """
        if not await self.background.aclose(GOING):
            logger.warning("%d streams were not let go of in %g s", len(self), GOING)
