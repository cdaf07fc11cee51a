"""The rules of an adapter for streams in a guard's log: G5, and the endpoints (wire protocol, section 8)."""

from __future__ import annotations

import json
from typing import Any, Final

from streamguard.client import ResumePolicy, Verdict, stream
from streamguard.testing.adapter_case import REQUEST_ID, VERIFIES, Play, Rule
from streamguard.testing.adapter_rules import cut_once
from streamguard.testing.adapter_sources import WORDS

__all__ = ["BESIDE_A_STREAM", "LOG_ADAPTER_RULES"]

_AT_ONCE: Final = ResumePolicy(base=0.01, max_wait=0.02)


async def _resume(play: Play) -> None:
    """G5: after a cut the reader has the same text, nothing lost, nothing repeated, and the source ran once."""
    async with cut_once(play) as proxy:
        url, headers = play.url("logged/whole", proxy.url), {REQUEST_ID: play.label}
        async with stream("GET", url, client=play.client, headers=headers, resume=_AT_ONCE) as answer:
            text = await answer.read()
    receipt = answer.receipt
    play.must(text == "".join(WORDS), f"of the text came {text!r}")
    play.must(receipt.verdict is Verdict.COMPLETE, f"the verdict: {receipt}")
    play.must(receipt.resumes == 1 and not receipt.duplicates, f"it was resumed {receipt.resumes} times: {receipt}")
    await play.closed_once()


async def _resume_at_the_endpoint(play: Play) -> None:
    """The endpoint that started a stream resumes it too; who has it all is told so."""
    whole = await play.asked("logged/whole", headers=VERIFIES)
    ids = [line[4:].decode() for line in whole.body.split(b"\n") if line.startswith(b"id: ")]  # the first is `open`'s
    reply = await play.asked("logged/whole", headers={**VERIFIES, "last-event-id": ids[3]})
    play.must(reply.status == 200, f"a request to resume was answered {reply.status}")
    text = "".join([json.loads(data) for data in _data(reply.body)])
    play.must(text == "".join(WORDS[3:]), f"of the text behind the third frame came {text!r}")
    reply = await play.asked("logged/whole", headers={**VERIFIES, "last-event-id": ids[-1]})
    play.must(reply.status == 204, f"who has it all was answered {reply.status}, not 204")
    await play.closed_once()


async def _cancel(play: Play) -> None:
    """DELETE ends the stream as `cancelled`, and its source with it; the reader is told."""
    async with play.opened("logged/endless", headers=VERIFIES) as opened:
        await opened.until(b"data: ", 4)
        response = await play.client.delete(f"{play.case.url}/streams", headers=_named(play, opened))
        play.must(response.status_code == 204, f"DELETE was answered {response.status_code}: {response.text}")
        await opened.rest()
    play.must(b'"status":"cancelled"' in opened.body, f"the reader was told {opened.body[-300:]!r}")
    facts = await play.closed_once()
    play.must(facts["ends"] == ["cancelled"], f"it ended as {facts['ends']}")


async def _status(play: Play) -> None:
    """GET …/status says how a stream stands."""
    async with play.opened("logged/endless", headers=VERIFIES) as opened:
        await opened.until(b"data: ", 4)
        told = await _told(play, _named(play, opened))
        play.must(told["status"] == "streaming" and told["readers_here"] == 1, f"its status: {told}")
        await play.client.delete(f"{play.case.url}/streams", headers=_named(play, opened))
        await opened.rest()
    await play.closed_once()
    told = await _told(play, _named(play, opened))
    play.must(told["status"] == "cancelled", f"its status at the end: {told}")


async def _acknowledge(play: Play) -> None:
    """POST takes a reader's acknowledgement of what it was sent, and nothing else."""
    async with play.opened("logged/endless", headers=VERIFIES) as opened:
        body = await opened.until(b"id: ", 4)
        promised = play.promised(opened.response)
        play.must(promised and promised.reader and promised.resume, f"it promises {promised}")
        assert promised is not None
        cursor = next(line[4:].decode() for line in body.split(b"\n")[4:] if line.startswith(b"id: "))
        for ack, status in (cursor, 204), (cursor[:-8] + "00000000", 409):
            asked = {"reader": promised.reader, "ack": ack}
            response = await play.client.post(f"{play.case.url}/streams", headers=_named(play, opened), json=asked)
            play.must(response.status_code == status, f"{asked} was answered {response.status_code}: {response.text}")
        await play.client.delete(f"{play.case.url}/streams", headers=_named(play, opened))
        await opened.rest()
    await play.closed_once()


def _data(body: bytes) -> list[bytes]:
    """The data of the frames of text."""
    return [line[6:] for line in body.split(b"\n") if line.startswith(b'data: "')]


def _named(play: Play, opened: Any) -> dict[str, str]:
    """The headers of a request about the stream that is being read."""
    return {"streamguard-stream": play.cursor_of(opened.response).sid}


async def _told(play: Play, headers: dict[str, str]) -> dict[str, Any]:
    response = await play.client.get(f"{play.case.url}/streams/status", headers=headers)
    play.must(response.status_code == 200, f"its status was answered {response.status_code}: {response.text}")
    told: dict[str, Any] = json.loads(response.text)
    return told


LOG_ADAPTER_RULES: Final[dict[str, Rule]] = {
    "G5 resume": _resume,
    "G5 resume at the endpoint": _resume_at_the_endpoint,
    "cancel": _cancel,
    "status": _status,
    "acknowledge": _acknowledge,
}

BESIDE_A_STREAM: Final = ("cancel", "status", "acknowledge")
"""The rules that ask something else while a stream runs."""
