"""The rules of an adapter for one connection: G1 to G4 and G6 of the guarantees, and what HTTP says about a stream."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from streamguard.client import Verdict, stream
from streamguard.core.cursor import cursor_zero, new_sid
from streamguard.core.errors import FailedStream, TruncatedStream
from streamguard.core.exchange import NO_STORE
from streamguard.testing.adapter_case import VERIFIES, Play, Reply, Rule
from streamguard.testing.adapter_sources import BLOCKS, FAILURE, WORDS
from streamguard.testing.plan import HEAD, Plan
from streamguard.testing.proxy import FaultProxy

__all__ = ["CONNECTION_RULES", "cut_once"]

_TERMINAL: Final = b"event: end\n"
_OF_ONE: Final = {"streamguard", "date", "connection", "content-length", "transfer-encoding", "keep-alive"}
"""Headers that belong to one answer, or to its connection."""
_CUT: Final = 1500  # bytes of the body: in the midst of `whole`


async def _headers(play: Play) -> None:
    """A stream says what it is, that nobody may store or hold it, and has no length."""
    reply = await play.asked("whole")
    play.must(reply.status == 200, f"status {reply.status}")
    for name, value in (
        ("content-type", "text/event-stream; charset=utf-8"),
        NO_STORE,
        ("x-accel-buffering", "no"),
        ("x-content-type-options", "nosniff"),
    ):
        play.must(reply.headers.get(name) == value, f"{name} is {reply.headers.get(name)!r}, not {value!r}")
    play.must("Streamguard" in reply.headers.get("vary", ""), f"vary is {reply.headers.get('vary')!r}")
    play.must("content-length" not in reply.headers, "there is a content-length")
    # Node's fetch takes a cut body for a whole one where this stands.
    play.must(play.case.closes or reply.headers.get("connection", "") != "close", "there is `connection: close`")
    async with play.opened("whole", headers=VERIFIES) as opened:
        promised = play.promised(opened.response)
        play.must(promised and promised.dialect == "native" and promised.wire == "sse", f"it promises {promised}")


async def _head(play: Play) -> None:
    """HEAD has the headers of GET, starts no source, and names no stream."""
    reply = await play.asked("whole", "HEAD")
    play.must(reply.status == 200, f"status {reply.status}")
    play.must(not reply.body, f"it has a body: {reply.body!r}")
    play.must(reply.headers.get("content-type", "").startswith("text/event-stream"), "another content-type")
    play.must("streamguard" not in reply.headers, "it names a stream, and there is none")
    facts = await play.facts()
    play.must(not facts["opened"], f"it opened a source: {dict(facts)}")
    get = await play.asked("whole")
    for name in {*reply.headers, *get.headers} - _OF_ONE:
        found, wanted = reply.headers.get(name), get.headers.get(name)
        play.must(found == wanted, f"{name} is {found!r}, and of GET {wanted!r}")


async def _post(play: Play) -> None:
    """A stream may answer a POST, as most do."""
    reply = await play.asked("whole", "POST", VERIFIES)
    _whole(play, reply)


async def _no_clean_end_without_completion(play: Play) -> None:
    """G1: a body ends cleanly after `complete`, and after nothing else."""
    _whole(play, await play.asked("whole"))
    reply = await play.asked("fails-later")
    if play.case.aborts:
        play.must(not reply.clean, "the body of a stream that failed ended cleanly")


async def _conservation(play: Play) -> None:
    """G2: every character and block arrives once, in order."""
    for headers_ in ({}, VERIFIES):
        reply = await play.asked("whole", headers=headers_)
        play.must(reply.items == ["".join(WORDS)], f"of the text came {reply.items!r}")
    reply = await play.asked("blocks")
    play.must(reply.items == list(BLOCKS), f"of text and blocks came {reply.items!r}")


async def _one_terminal(play: Play) -> None:
    """G3: one terminal frame, and nothing behind it."""
    for source in ("whole", "fails-later"):
        reply = await play.asked(source)
        play.must(reply.body.count(_TERMINAL) == 1, f"{reply.body.count(_TERMINAL)} terminals of {source!r}")
        tail = reply.body.partition(_TERMINAL)[2]
        play.must(tail.endswith(b"\n\n") and tail.count(b"\n\n") == 1, f"behind the terminal of {source!r}: {tail!r}")


async def _verdicts(play: Play) -> None:
    """G4: the verifying client says COMPLETE of what is whole, FAILED of what failed, TRUNCATED of what was cut."""
    async with stream("GET", play.url("whole"), client=play.client) as answer:
        text = await answer.read()
    play.must(answer.receipt.verdict is Verdict.COMPLETE, f"the verdict of what is whole: {answer.receipt}")
    play.must(text == "".join(WORDS), f"of the text came {text!r}")
    try:
        async with stream("GET", play.url("fails-later"), client=play.client, resume=False) as answer:
            await answer.read()
    except FailedStream:
        pass
    play.must(answer.receipt.verdict is Verdict.FAILED, f"the verdict of what failed: {answer.receipt}")
    async with cut_once(play) as proxy:
        try:
            url = play.url("whole", proxy.url)
            async with stream("GET", url, client=play.client, resume=False) as answer:
                await answer.read()
        except TruncatedStream:
            pass
    play.must(answer.receipt.verdict is Verdict.TRUNCATED, f"the verdict of what was cut: {answer.receipt}")


async def _closed_once(play: Play) -> None:
    """G6: a source that ends is closed once, and its stream ends once, as it was."""
    await play.asked("whole")
    facts = await play.closed_once()
    play.must(facts["ends"] == ["complete"], f"it ended as {facts['ends']}")
    play.must(facts["steps"] == len(WORDS), f"{facts['steps']} items were made of {len(WORDS)}")


async def _failed_source_is_closed_once(play: Play) -> None:
    """G6: so is one that fails."""
    await play.asked("fails-later")
    facts = await play.closed_once()
    play.must(facts["ends"] == ["failed"], f"it ended as {facts['ends']}")


async def _disconnect(play: Play) -> None:
    """G6: a reader that leaves stops the generation."""
    async with play.opened("endless", leaves=True) as opened:
        await opened.until(b"data: ", 10)
    facts = await play.closed_once()
    play.must(facts["ends"] == ["gone"], f"it ended as {facts['ends']}")


async def _heartbeat(play: Play) -> None:
    """A source that thinks for long is no silence: signs of life come before its first token, at no frame's cost."""
    async with play.opened("waits", headers=VERIFIES) as opened:
        body = await opened.until(b": hb ")
        play.must(b'data: "' not in body, "the first token came before any sign of life")
        if play.case.concurrent:
            await play.asked("opens")
        cut = await opened.rest()
    play.must(cut is None, f"the body did not end cleanly: {cut}")
    play.must(opened.body.count(_TERMINAL) == 1, "the stream did not complete")


async def _failure_before_the_first_byte(play: Play) -> None:
    """What fails before its first byte is an HTTP error, not a stream."""
    reply = await play.asked("fails-first")
    play.must(reply.status == 503, f"status {reply.status}")
    kind = reply.headers.get("content-type", "")
    play.must(kind.startswith("application/problem+json"), f"content-type {kind!r}")
    play.must(FAILURE[0].encode() in reply.body, f"it does not say why: {reply.body!r}")
    play.must(reply.headers.get(NO_STORE[0]) == NO_STORE[1], "it may be stored")
    play.must(reply.clean, f"it did not end cleanly: {reply.cut}")
    await play.closed_once()


async def _failure_after_the_first_byte(play: Play) -> None:
    """What fails later says so in band, after what was delivered, and its connection is aborted."""
    for headers_ in ({}, VERIFIES):
        reply = await play.asked("fails-later", headers=headers_)
        play.must(reply.status == 200, f"status {reply.status}")
        play.must(reply.items == ["".join(WORDS[:3])], f"of the text came {reply.items!r}")
        verifier = reply.verifier
        play.must(verifier.status == "failed", f"the terminal says {verifier.status!r}")
        play.must(verifier.failure and verifier.failure.code == FAILURE[0], f"its failure is {verifier.failure}")
        if play.case.aborts:
            play.must(not reply.clean, "the body ended cleanly")


async def _cursor_starts_nothing(play: Play) -> None:
    """A request that bears a cursor resumes or is refused: it never starts a source."""
    cursor = str(cursor_zero(new_sid())).replace(".0.0.", ".1.5.")
    for headers_, status in ({**VERIFIES}, 404), ({}, 404), ({"accept": "text/event-stream"}, 200):
        reply = await play.asked("whole", headers={**headers_, "last-event-id": cursor})
        play.must(reply.status == status, f"a cursor was answered {reply.status}, not {status}")
    facts = await play.facts()
    play.must(not facts["opened"], f"a cursor started a source: {dict(facts)}")


def cut_once(play: Play) -> FaultProxy:
    """A proxy before the application that cuts its first connection in the midst of `whole`, and no other."""
    host, _, port = urlsplit(play.case.url).netloc.partition(":")

    after = b"" if play.case.http2 else HEAD  # which HTTP/2 writes in another way, and much shorter

    def plan(index: int) -> Plan:
        return Plan(cut_at=_CUT, after=after) if index == 0 else Plan()

    return FaultProxy(host, int(port), plan=plan)


def _whole(play: Play, reply: Reply) -> None:
    play.must(reply.status == 200, f"status {reply.status}")
    play.must(reply.clean, f"what is whole did not end cleanly: {reply.cut}")
    play.must(reply.verifier.verdict is Verdict.COMPLETE, f"the verdict of what is whole: {reply.verifier.receipt}")


CONNECTION_RULES: Final[dict[str, Rule]] = {
    "headers": _headers,
    "HEAD": _head,
    "POST": _post,
    "G1 no clean end without completion": _no_clean_end_without_completion,
    "G2 conservation": _conservation,
    "G3 one terminal": _one_terminal,
    "G4 verdicts": _verdicts,
    "G6 closed once": _closed_once,
    "G6 closed once, failed": _failed_source_is_closed_once,
    "G6 disconnect": _disconnect,
    "heartbeat": _heartbeat,
    "failure before the first byte": _failure_before_the_first_byte,
    "failure after the first byte": _failure_after_the_first_byte,
    "a cursor starts nothing": _cursor_starts_nothing,
}
