"""A source that is generated into a log waits for who reads it here, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from streamguard.core.cursor import Cursor, cursor_zero
from streamguard.core.errors import Failure
from streamguard.log.memory import MemoryLog
from streamguard.runtime.readers import Reader, Readers
from streamguard.runtime.runs import Detach, Run, Runs
from tests.runtime.fakes import SID
from tests.runtime.logs import Store, make_producer, text_in

pytestmark = pytest.mark.anyio


class Setting:
    """A source of tokens of eight bytes as data, its run, and readers that are moved by hand. `fields`: whether the
    log takes a text without waiting."""

    def __init__(self, max_ahead: int | None, *, fields: bool = True, count: int = 10**6) -> None:
        self.made = 0
        self.readers = Readers()
        self.runs = Runs(None, self.readers, max_ahead)
        self.log: MemoryLog = MemoryLog(clock=anyio.current_time) if fields else Store()
        self._count = count

    async def source(self) -> AsyncIterator[str]:
        for _ in range(self._count):
            self.made += 1
            yield "sixsix"
            if not self.made % 100:
                await anyio.sleep(0.001)

    async def start(self) -> Run:
        return self.runs.start(await make_producer(self.log, self.source, stall=None), Detach(1000.0))

    def reader(self, offset: int = 0) -> list[int]:
        """One that was given so many bytes; the list holds the number."""
        at = [offset]
        reader = Reader(cursor_zero(SID), lambda: Cursor(SID, at[0] // 8, at[0], 0), lambda: None)
        self.readers.join(reader, limit=9)
        return at


both = pytest.mark.parametrize("fields", [True, False])


@both
async def test_a_source_waits_at_its_lead_and_goes_on_as_its_reader_does(fields: bool) -> None:
    setting = Setting(800, fields=fields)
    at = setting.reader()
    run = await setting.start()
    await anyio.sleep(5.0)
    assert setting.made == 101  # the append that goes above it is the last
    at[0] = 400
    await anyio.sleep(5.0)
    assert setting.made == 151
    run.producer.cancel()
    await run.over.wait()


async def test_of_several_readers_the_one_that_is_furthest_counts() -> None:
    setting = Setting(800)
    setting.reader()
    setting.reader(8000)
    run = await setting.start()
    await anyio.sleep(5.0)
    assert setting.made == 1101
    run.producer.cancel()
    await run.over.wait()


@pytest.mark.parametrize("max_ahead", [800, None])
async def test_while_nobody_reads_here_it_waits_for_nobody(max_ahead: int | None) -> None:
    setting = Setting(max_ahead, count=5000)
    run = await setting.start()
    await run.over.wait()
    assert setting.made == 5000
    assert (await text_in(setting.log))[1] == "complete"


async def test_without_a_limit_it_waits_for_no_reader() -> None:
    setting = Setting(None, count=5000)
    setting.reader()
    await (await setting.start()).over.wait()
    assert setting.made == 5000


async def test_it_waits_no_more_once_its_last_reader_left() -> None:
    setting = Setting(800, count=5000)
    setting.reader()
    run = await setting.start()
    await anyio.sleep(5.0)
    (reader,) = setting.readers
    setting.readers.leave(reader)
    await run.over.wait()
    assert setting.made == 5000


@pytest.mark.parametrize("how", ["cancel", "shut_down"])
async def test_a_stream_that_waits_ends_at_once_when_it_is_told_to(how: str) -> None:
    setting = Setting(800)
    setting.reader()
    run = await setting.start()
    await anyio.sleep(5.0)
    if how == "cancel":
        run.producer.cancel(Failure("cancelled", "enough"))
    else:
        run.producer.shut_down()
    begun = anyio.current_time()
    await run.over.wait()
    assert anyio.current_time() == begun
    assert (await text_in(setting.log))[1] == ("cancelled" if how == "cancel" else None)
    assert setting.made == 101


async def test_a_source_that_waits_is_not_silent() -> None:
    setting = Setting(800, count=200)
    at = setting.reader()
    producer = await make_producer(setting.log, setting.source, stall=1.0)
    run = setting.runs.start(producer, Detach(1000.0))
    await anyio.sleep(5.0)
    at[0] = 10**6
    await run.over.wait()
    assert (await text_in(setting.log))[1] == "complete"
