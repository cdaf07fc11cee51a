"""Admission of a request, over ASGI: a slot for the stream that it starts, or the answer that says why there is none.

The slot is taken before anything of the application's that may cost something: before the source, and before an
endpoint that returns its source is called. Whoever waits is watched: one that hangs up gives up its place.

| | no room to wait | waited for `max_wait` |
| --- | --- | --- |
| the process has all the streams that it takes | 503 `full` | 503 `waited_too_long` |
| the asker's own are too many, or those of its key | 429 `full` | 429 `waited_too_long` |
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio
import attrs

from streamguard.adapters.seal import Receive
from streamguard.adapters.shutdown import GOING_AWAY
from streamguard.core.arguments import shown
from streamguard.core.exchange import Refusal, RequestFacts, come_back
from streamguard.runtime.admission import Admission, NoRoom
from streamguard.runtime.drain import Drain
from streamguard.runtime.slots import Slot

__all__ = ["Place", "admitted", "admitted_request", "tells_principals", "until_gone"]

_REPEATED: Final = 8  # messages after a body that was whole, before whoever sends them is not believed to say more

_DETAILS: Final = {
    ("full", False): "the server has as many streams as it takes, and as many requests that wait",
    ("full", True): "there are as many of your streams as there may be, and no more requests may wait",
    ("waited_too_long", False): "the server has as many streams as it takes, and none of them ended in time",
    ("waited_too_long", True): "there are as many of your streams as there may be, and none of them ended in time",
    ("left", False): "the reader left",
    ("left", True): "the reader left",
}


@attrs.frozen
class Place:
    """What a request got: a slot, or why it is refused. `waited`: it was not at once."""

    slot: Slot | None = None
    refused: Refusal | None = None
    waited: bool = False


async def admitted(
    admission: Admission,
    facts: RequestFacts,
    request: Any,
    receive: Receive,
    *,
    drain: Drain,
    principal: str,
    prepare: Callable[[], Awaitable[object]] | None = None,
) -> Place:
    """Ask for a slot. Before a wait `prepare` is awaited: a body that the endpoint is to read must not be lost. Who
    waits when `drain` begins is refused: a slot that is free then is for nobody.

    Raises TypeError for a key that is none.
    """
    key = _text("key", admission.limits.key, request)
    slot = admission.free(principal, key) if prepare is not None else None
    if slot is not None:
        return Place(slot)
    if prepare is not None:
        await prepare()
    try:
        slot = await admission.enter(principal, key, functools.partial(_given_up, receive, drain))
        if drain.ready:
            return Place(slot, waited=True)
        slot.release()
    except NoRoom as no:
        if no.why == "left" and not drain.ready:
            return Place(refused=come_back(facts, *GOING_AWAY), waited=True)
        status = 429 if no.own else 503
        refused = come_back(facts, no.why, _DETAILS[no.why, no.own], no.retry_after, status=status)
        return Place(refused=refused, waited=True)
    return Place(refused=come_back(facts, *GOING_AWAY), waited=True)


async def admitted_request(
    admission: Admission,
    facts: RequestFacts,
    request: Any,
    receive: Receive,
    prepare: Callable[[], Awaitable[object]] | None = None,
    *,
    drain: Drain,
) -> Place:
    """The same where no guard knows who asks. Raises TypeError for a principal, or a key, that is none."""
    principal = _text("principal", admission.limits.principal, request) or ""
    return await admitted(admission, facts, request, receive, drain=drain, principal=principal, prepare=prepare)


async def _given_up(receive: Receive, drain: Drain) -> None:
    """Wait until there is no stream to wait for any more: the reader has left, or the process is told to go."""
    async with anyio.create_task_group() as tasks:

        async def told() -> None:
            await drain.begun()
            tasks.cancel_scope.cancel()

        tasks.start_soon(told)
        await until_gone(receive)
        tasks.cancel_scope.cancel()


async def until_gone(receive: Receive) -> None:
    """Wait until the reader has left. What is left of the request's body is read and dropped on the way."""
    whole, again = False, 0
    while (message := await receive())["type"] != "http.disconnect":
        again += whole
        if again > _REPEATED:
            await anyio.sleep_forever()  # a layer that replays the body, without ever giving the loop a turn
        whole = whole or not message.get("more_body", False)


def _text(name: str, function: Callable[[Any], str | None] | None, request: Any) -> str | None:
    found: Any = None if function is None else function(request)
    if found is None or isinstance(found, str):
        return found
    raise TypeError(f"{shown(function)} answered {shown(found)} for {name}: return a text, or None")


def tells_principals(instance: object, attribute: attrs.Attribute[Any], value: Admission | None) -> None:
    """A validator for the limits of an endpoint that no guard stands before. Raises ValueError."""
    if value is not None and value.limits.max_per_principal is not None and value.limits.principal is None:
        raise ValueError(
            "max_per_principal needs to know who asks: Limits(principal=lambda request: …, max_per_principal=…)"
        )
