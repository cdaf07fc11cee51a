"""What acknowledgements and grants cost a server, beside the same readers that give none.

One server has both: only what its readers ask for differs. They tell it what our client tells: a grant anew once half
of the last one is used, with an acknowledgement, at most one `POST` a second and one on its way. Each reader has a
connection of its own for that, and opens another where the server has closed it. Heartbeats, which are answered too, do
not come while tokens do.

Those that give none do the same work, down to what they would tell, and tell nothing: a reader that is busier changes
how often the server's writes wake it, which is no cost of credit. What a machine does beside is worth more than the
claim, and changes slowly: so each pair of measures has another about it, in the other order, and there are many.

A large credit is granted anew every minute or two. What is measured for seconds is what a server has all the time, so
the readers' first grants are of all sizes, as if they had begun one after the other. A small one is told once a second,
the most there is: each costs the server what a `POST` costs it, which for a server in Python is more than a few tokens.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from typing import Any, Final

import attrs

from streamguard.client.acks import CREDIT
from streamguard.core.credit import Grant, Granter
from streamguard.core.cursor import Cursor
from streamguard.core.negotiate import parse_answer
from streamguard.runtime.grants import Told
from tests.benchmarks.load import Load, Reader, stream
from tests.benchmarks.served import RATE, READERS, STACKS, Served, served
from tests.proofs.registry import Result, Run, Table, proof

__all__ = ["CREDITS", "Acknowledging", "Asked", "acks", "share"]

OURS: Final = "the client's own"
CREDITS: Final = {OURS: CREDIT, "told once a second": (64, 65536)}
ROUNDS: Final = 8
FEWER: Final = 3  # of what nothing is claimed of
MOST: Final = 5.0  # per cent, with the credit that our client asks for
_EVERY: Final = 1.0  # seconds between two of a reader, at least
_LOOKS: Final = 0.1  # seconds between two looks whether there is anything to tell


@attrs.define
class Asked:
    """What all readers of one run ask for, and what they told: the POSTs that were taken, and the statuses of those
    that were not."""

    port: int
    credit: tuple[int, int] | None
    posts: int = 0
    refused: list[bytes] = attrs.field(factory=list)
    order: itertools.count[int] = attrs.field(factory=itertools.count)

    @property
    def headers(self) -> str:
        keys = "" if self.credit is None else ", credit=({} {})".format(*self.credit)
        return f"streamguard: v=1{keys}\r\n"


class _Line(asyncio.Protocol):
    """The connection of one reader's POSTs."""

    def __init__(self, asked: Asked) -> None:
        self.busy = False
        self.refused = b""
        self._asked = asked
        self._transport: Any = None
        self._body = b""

    def post(self, head: str, told: Told) -> None:
        self.busy = True
        body = told.dump()
        self._body = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
        if self._transport is not None:
            self._transport.write(self._body)
        else:
            loop = asyncio.get_running_loop()
            self._opening = loop.create_task(loop.create_connection(lambda: self, "127.0.0.1", self._asked.port))

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(self._body)

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"HTTP/1.1 204"):
            self._asked.posts += 1
        else:
            self.refused = data[:12]
        self.busy = False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.busy = False

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class Acknowledging(Reader):
    """A reader that takes all that comes at once, and says so."""

    def __init__(self, path: str, load: Load, asked: Asked) -> None:
        super().__init__(path, load, close=True, headers=asked.headers)
        self._asked = asked
        self._line = _Line(asked)
        self._granter: Granter | None = None
        self._due = 0.0
        self._last = b""
        self._timer: asyncio.TimerHandle | None = None
        self._phase = (next(asked.order) % READERS) / READERS

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._granter is None:
            self._opened(data)
            return
        begin = data.rfind(b"id: ")
        end = data.find(b"\n", begin)
        if begin < 0 or end < 0:
            return
        self._last = data[begin + 4 : end]
        if self._line.refused:  # and not because the stream was over
            self._asked.refused.append(self._line.refused)
        if self._timer is None:
            # Not only when something comes: a stream that waits for credit sends nothing.
            wait = max(0.0, self._due - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(wait, self._tell)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._line.close()
        if self._timer is not None:
            self._timer.cancel()

    def _opened(self, head: bytes) -> None:
        field = head[head.lower().index(b"\nstreamguard: ") :].split(b"\r\n", 1)[0].partition(b": ")[2]
        answer = parse_answer(field.decode())
        assert answer is not None
        if self._asked.credit is not None:
            assert answer.credit, "no credit was granted"
            assert answer.reader is not None
        frames, size = answer.credit or CREDIT
        self._granter = Granter(frames, size, answer.cursor)
        left = round(frames * (1 + self._phase) / 2)  # as if it had begun before the others
        self._granter.grant = Grant(left, size)
        self._name = answer.reader or ""
        self._due = time.monotonic() + _EVERY * self._phase
        self._head = (
            f"POST {answer.resume} HTTP/1.1\r\nhost: localhost\r\naccept: */*\r\naccept-encoding: gzip, deflate\r\n"
            f"connection: keep-alive\r\nuser-agent: python-httpx\r\n{self._asked.headers}"
            f"streamguard-stream: {answer.cursor.sid}\r\ncontent-type: application/json\r\n"
        )

    def _tell(self) -> None:
        """As far as the last frame whose id came, if half of the grant is used."""
        self._timer = None
        at = Cursor.parse(self._last.decode())
        assert self._granter is not None
        if at.status is not None:
            return
        self._due = time.monotonic() + _LOOKS
        if self._line.busy:
            return
        grant = self._granter.used(at)
        if grant is not None:
            self._due += _EVERY - _LOOKS
            if self._asked.credit is not None:
                self._line.post(self._head, Told(self._name, at, grant))


class _Asking(Served):
    """The server's CPU microseconds a token, with readers that give `credit`."""

    def __init__(self, port: int, credit: tuple[int, int] | None) -> None:
        super().__init__(port)
        self.credit = credit
        self.posts: list[float] = []  # a second

    def streamed(self, pause: float) -> Load:
        asked = Asked(self.port, self.credit)
        load = stream(
            self.port, "/stream", READERS, pause=pause, make=lambda load: Acknowledging("/stream", load, asked)
        )
        assert not asked.refused, f"refused: {set(asked.refused)}"
        self.posts.append(asked.posts / (load.tokens / READERS / RATE))
        return load


def share(more: float, less: float) -> float:
    """Per cent of `more` that are not in `less`."""
    return (more - less) / more * 100


def _row(run: Run, name: str, costs: list[tuple[float, float]], posts: float) -> tuple[object, ...]:
    shares = [share(more, less) for more, less in costs]
    more, less = (statistics.median(column) for column in zip(*costs, strict=True))
    each = (more - less) * READERS * RATE / posts if name != OURS else "few"  # there it is metering that costs
    run.say(f"{name}: {statistics.median(shares):.1f} % of {more:.1f} µs a token, {posts:.0f} POSTs a second")
    spread = f"{min(shares):.1f} to {max(shares):.1f}"
    return name, posts, more, less, statistics.median(shares), spread, each


@proof(
    claim=f"Our client's acknowledgements and grants cost less than {MOST:g} % of a server's CPU, with {READERS} "
    f"readers at {RATE} tokens a second.",
    minutes=12,
)
def acks(run: Run) -> Result:
    rows, shown = [], True
    for http, loop in STACKS:
        run.say(f"uvicorn with {http} and {loop}")
        with served("logged", http, loop, "tests.benchmarks.logged") as port:
            without = _Asking(port, None)
            telling = {name: _Asking(port, credit) for name, credit in CREDITS.items()}
            without()
            costs: dict[str, list[tuple[float, float]]] = {name: [] for name in telling}
            for name, one in telling.items():
                for _ in range(ROUNDS if name == OURS else FEWER):
                    less, more = without(), one()
                    costs[name].append(((more + one()) / 2, (less + without()) / 2))
            for name, one in telling.items():
                row = _row(run, name, costs[name], statistics.median(one.posts))
                shown = shown and (name != OURS or float(str(row[4])) < MOST)
                rows.append((f"{http}, {loop}", *row, MOST if name == OURS else "no claim"))
    columns = ("uvicorn with", "credit", "POSTs a second", "µs a token", "µs without", "%")
    return Result(
        shown,
        [Table((*columns, "of the rounds", "µs a POST", "less than, %"), rows)],
        [
            f"Credit in frames and bytes: {', '.join(f'{name} {credit}' for name, credit in CREDITS.items())}.",
            "CPU of the server's process while all streams run, by the tokens of that time.",
        ],
        ["uvicorn", "starlette", "h11", "httptools", "uvloop"],
    )
