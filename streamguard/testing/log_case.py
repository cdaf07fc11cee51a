"""What the rules of a log are played with: a log of the factory's, streams in it, and what must be so.

`framed` makes frames as an encoder would. A `LogCase` is one playing of one rule: its streams have names that no other
one uses, so that many may be played in one store, and it purges them in the end.
"""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NoReturn, TypeVar

import anyio
import anyio.lowlevel
import attrs

from streamguard.core.cursor import Cursor, chain, cursor_zero, new_sid
from streamguard.core.frame import Frame
from streamguard.log.base import Lease, LogError, Retention, StreamInfo, StreamLog, UnknownStream
from streamguard.testing.contract import ContractBroken

__all__ = ["LONG", "SHORT", "LogCase", "LogFactory", "Rule", "at_end", "framed"]

LogFactory = Callable[[Retention], "StreamLog | Awaitable[StreamLog]"]
Rule = Callable[["LogCase"], Awaitable[None]]

SHORT: Final = 0.05  # seconds: of a lease or an age that a rule sees the end of
LONG: Final = 600.0  # seconds: of one that it does not
_LOOK: Final = 0.01  # seconds between two looks at a store whose clock is the real one

_Error = TypeVar("_Error", bound=Exception)


def framed(
    after: Cursor, *data: bytes, status: str | None = None, name: str | None = None, extra: bytes | None = None
) -> list[Frame]:
    """Frames behind `after`, one for each of `data`; the last with `status` and `extra`, all with `name`."""
    frames: list[Frame] = []
    _, seq, offset, crc, _ = after
    for index, piece in enumerate(data):
        last = index == len(data) - 1
        seq += 1
        offset += len(piece)
        crc = chain(crc, name, status if last else None, piece)
        frames.append(
            Frame(seq, offset, crc, piece, name, status if last else None, extra if last else None),
        )
    return frames


def at_end(after: Cursor, frames: Sequence[Frame]) -> Cursor:
    """The position behind `frames`, which stand behind `after`."""
    if not frames:
        return after
    last = frames[-1]
    return Cursor(after.sid, last.seq, last.offset, last.crc, last.status)


@attrs.define
class LogCase:
    """One rule, played once. `log` is where producers are, `other` where readers are: the same, or another process's.

    `advance` passes seconds on the store's clock; None for a store whose clock is the real one.
    """

    rule: str
    factory: LogFactory
    advance: Callable[[float], object] | None = None
    shared: bool = False
    name: str = "the log"
    log: StreamLog = attrs.field(init=False)
    other: StreamLog = attrs.field(init=False)
    _opened: list[StreamLog] = attrs.field(factory=list, init=False)
    _sids: list[str] = attrs.field(factory=list, init=False)

    # ---- logs and streams ---------------------------------------------------------------------

    async def open(self, retention: Retention | None = None) -> None:
        """Make `log`, and `other`; once more, with another retention."""
        self.log = self.other = await self.opened(retention)
        if self.shared:
            self.other = await self.opened(retention)

    async def opened(self, retention: Retention | None = None) -> StreamLog:
        """One more log of the factory's."""
        made: Any = self.factory(Retention() if retention is None else retention)
        if inspect.isawaitable(made):
            made = await made
        self.name = type(made).__name__
        self._opened.append(made)
        self.holds(isinstance(made, StreamLog), "it lacks a method of StreamLog")
        return made  # type: ignore[no-any-return]  # looked at in the line above

    async def close(self) -> None:
        """Forget what was stored, and let go of the logs."""
        for sid in self._sids:
            await self.log.purge(sid=sid)
        for log in self._opened:
            await log.aclose()

    def info(self, **fields: Any) -> StreamInfo:
        """A stream's, of a new name."""
        info = StreamInfo(new_sid(), **fields)
        self._sids.append(info.sid)
        return info

    def word(self, text: str) -> str:
        """A key, name or principal that nobody else uses."""
        return f"{text} {secrets.token_hex(8)}"

    async def start(self, *, ttl: float = LONG, **fields: Any) -> tuple[Lease, Cursor]:
        """A new stream: its lease, and cursor zero."""
        info = self.info(**fields)
        return await self.log.create(info, ttl), cursor_zero(info.sid)

    async def started(self, *data: bytes, status: str | None = None, **fields: Any) -> tuple[Lease, Cursor]:
        """A new stream with a frame for each of `data`: its lease, and its tail."""
        lease, zero = await self.start(**fields)
        return lease, await self.log.append(lease, zero, framed(zero, *data, status=status))

    async def read_on(self, after: Cursor, limit: int | None = None) -> list[Frame]:
        """All behind `after`, page for page."""
        frames: list[Frame] = []
        while True:
            page = await (self.other.read(after) if limit is None else self.other.read(after, limit=limit))
            if not page:
                return frames
            self.holds(limit is None or len(page) <= limit, f"read(limit={limit}) gave {len(page)} frames")
            # Else a log that gives the same frames again and again would be read for ever.
            self.holds(page[0].seq > after.seq, f"read behind frame {after.seq} gave frame {page[0].seq} first")
            self.holds(page[-1].seq - page[0].seq == len(page) - 1, "a page has frames twice, or leaves some out")
            frames += page
            after = at_end(after, page)

    # ---- time ---------------------------------------------------------------------------------

    async def lapse(self, sid: str) -> None:
        """Until a lease of SHORT has ended."""
        if self.advance is not None:
            self.advance(2 * SHORT)
        else:
            while (await self.log.state(sid)).held:  # noqa: ASYNC110  # a lease ends on the store's clock, silently
                await anyio.sleep(_LOOK)
        self.same((await self.other.state(sid)).held, False, "a lease's `held`, once its ttl passed without a renewal")

    async def pass_time(self, seconds: float) -> None:
        """Let so many seconds go by, on the store's clock."""
        if self.advance is not None:
            self.advance(seconds)
            await anyio.lowlevel.checkpoint()  # a log need not let others run, and the patience must have its turn
        else:
            await anyio.sleep(seconds)

    async def swept(self, *sids: str) -> None:
        """Sweep until they are gone, which is given until the patience is over."""
        for sid in sids:
            while True:
                await self.log.sweep()
                try:
                    await self.other.state(sid)
                except UnknownStream:
                    break
                await self.pass_time(_LOOK)

    async def settle(self) -> None:
        """Let the other tasks come to their waits."""
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        await anyio.sleep(_LOOK)

    # ---- what must be so ----------------------------------------------------------------------

    def broken(self, what: str, cause: BaseException | None = None) -> NoReturn:
        """Raise ContractBroken, with the rule that is played."""
        raise ContractBroken(self.name, self.rule, what) from cause

    def holds(self, fact: bool, what: str) -> None:
        if not fact:
            self.broken(what)

    def same(self, found: object, expected: object, what: str) -> None:
        if found != expected:
            self.broken(f"{what}: {found!r:.300}, and should be {expected!r:.300}")

    async def refused(self, kind: type[_Error], call: Awaitable[object], doing: str) -> _Error:
        """The error that `call` must raise."""
        try:
            did = f"answered {await call!r:.200}"
        except kind as exc:
            return exc
        except Exception as exc:
            did = f"raised {exc!r}"
        return self.broken(f"{doing} {did}, and should raise {kind.__name__}")

    async def stands(self, zero: Cursor, frames: Sequence[Frame], when: str) -> None:
        """A stream must hold these frames, and no others."""
        self.same(await self.read_on(zero), list(frames), f"what is stored {when}")
        self.same((await self.other.state(zero.sid)).tail, at_end(zero, frames), f"the tail {when}")

    async def together(self, calls: Sequence[Callable[[], Awaitable[Any]]]) -> list[Any]:
        """Make the calls all at once: what each answered, or the LogError that it raised."""
        results: list[Any] = [None] * len(calls)

        async def one(index: int, call: Callable[[], Awaitable[Any]]) -> None:
            try:
                results[index] = await call()
            except LogError as exc:
                results[index] = exc

        async with anyio.create_task_group() as tasks:
            for index, call in enumerate(calls):
                tasks.start_soon(one, index, call)
        return results
