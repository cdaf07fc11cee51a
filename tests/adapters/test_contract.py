"""Every adapter keeps one contract, over real sockets; for each rule there is an application that breaks it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from streamguard.adapters.seal import ASGIApp, Message, Receive, Scope, Send
from streamguard.testing import (
    ADAPTER_RULES,
    SOURCES,
    AdapterCase,
    AdapterSources,
    ContractBroken,
    check_adapter,
    check_adapter_rule,
)
from streamguard.testing.adapter_sources import SourceOptions
from tests.adapters.contract_apps import ASGI_APPS, starlette_app
from tests.adapters.servers import serving


@pytest.mark.parametrize("adapter", ASGI_APPS)
def test_an_adapter_on_asgi_keeps_the_contract(adapter: str) -> None:
    sources = AdapterSources()
    with serving(ASGI_APPS[adapter](sources)) as server:
        asyncio.run(check_adapter(AdapterCase(server.url, sources.facts, name=adapter)))


# ---- adapters that break it -------------------------------------------------------------------

Layer = Callable[[ASGIApp], ASGIApp]


def changing(change: Callable[[Message], Message]) -> Layer:
    """A layer that changes what is sent."""

    def layer(app: ASGIApp) -> ASGIApp:
        async def changed(scope: Scope, receive: Receive, send: Send) -> None:
            async def sending(message: Message) -> None:
                await send(change(dict(message)))

            await app(scope, receive, sending)

        return changed

    return layer


def without(header: bytes, method: str | None = None) -> Layer:
    """A layer that keeps a request's header to itself; of requests of one method, perhaps."""

    def layer(app: ASGIApp) -> ASGIApp:
        async def changed(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and method in (None, scope["method"]):
                scope["headers"] = [pair for pair in scope["headers"] if pair[0] != header]
            await app(scope, receive, send)

        return changed

    return layer


def as_if(method: str, other: str) -> Layer:
    """A layer that takes requests of one method for those of another."""

    def layer(app: ASGIApp) -> ASGIApp:
        async def changed(scope: Scope, receive: Receive, send: Send) -> None:
            if scope.get("method") == method:
                scope["method"] = other
            await app(scope, receive, send)

        return changed

    return layer


def answering(path: str, status: int, body: bytes = b"") -> Layer:
    """A layer that answers some requests itself: those whose method and path match."""

    def layer(app: ASGIApp) -> ASGIApp:
        async def changed(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or not re.fullmatch(path, f"{scope['method']} {scope['path']}"):
                await app(scope, receive, send)
                return
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": body})

        return changed

    return layer


@attrs.frozen
class Hidden:
    """A `receive` of a layer's own, from which the server's transport cannot be seen as through a closure."""

    receive: Receive

    async def __call__(self) -> Message:
        return await self.receive()


def ending_cleanly(app: ASGIApp) -> ASGIApp:
    """As a middleware does that finishes what its application did not."""

    async def changed(scope: Scope, receive: Receive, send: Send) -> None:
        more = True

        async def noting(message: Message) -> None:
            nonlocal more
            more = message.get("more_body", False)
            await send(message)

        await app(scope, Hidden(receive), noting)
        if more and scope["type"] == "http":
            await send({"type": "http.response.body", "body": b""})

    return changed


def deaf(app: ASGIApp) -> ASGIApp:
    """As a layer does that hands on a `receive` which never tells that the reader left."""

    async def changed(scope: Scope, receive: Receive, send: Send) -> None:
        async def hearing() -> Message:
            message = await receive()
            return message if message["type"] != "http.disconnect" else await asyncio.Event().wait() or message

        async def sending(message: Message) -> None:
            await send(message)

        await app(scope, hearing if "/endless" in scope.get("path", "") else receive, sending)

    return changed


def body(change: Callable[[bytes], bytes]) -> Layer:
    return changing(lambda message: {**message, "body": change(message["body"])} if "body" in message else message)


def headers(*drop: bytes) -> Layer:
    def change(message: Message) -> Message:
        kept = [pair for pair in message.get("headers", ()) if pair[0] not in drop]
        return {**message, "headers": kept} if "headers" in message else message

    return changing(change)


def doubled(data: bytes) -> bytes:
    return data + data[data.index(b"event: end") :] if b"event: end" in data else data


@attrs.define
class Careless(AdapterSources):
    """Sources of an application that opens each twice, or chose other times."""

    twice: bool = False
    timeless: bool = False

    def __attrs_pre_init__(self) -> None:
        super().__init__()

    def options(self, name: str) -> SourceOptions:
        found = super().options(name)
        if self.timeless:
            found["timing"] = attrs.evolve(found["timing"], heartbeat=None, peek=0.0)
        return found

    async def open(self, name: str, label: str) -> Any:  # type: ignore[override]
        source = super().open(name, label)
        if self.twice:
            async for _ in super().open("opens", label):
                pass
        async for item in source:
            yield item


BREAKS: dict[str, Layer | Careless] = {
    "headers": headers(b"x-accel-buffering"),
    "HEAD": as_if("HEAD", "GET"),
    "POST": answering(r"POST /whole", 405),
    "G1 no clean end without completion": ending_cleanly,
    "G2 conservation": body(lambda data: b"" if b'"generated "' in data else data),
    "G3 one terminal": body(doubled),
    "G4 verdicts": body(lambda data: data.replace(b"delivered", b"deliverd ")),
    "G6 closed once": Careless(twice=True),
    "G6 closed once, failed": Careless(twice=True),
    "G6 disconnect": deaf,
    "heartbeat": Careless(timeless=True),
    "failure before the first byte": Careless(timeless=True),
    "failure after the first byte": ending_cleanly,
    "a cursor starts nothing": without(b"last-event-id"),
    "G5 resume": answering(r"GET /streams", 404),
    "G5 resume at the endpoint": without(b"last-event-id"),
    "cancel": answering(r"DELETE /streams", 204),
    "status": answering(r"GET /streams/status", 200, b'{"status": "streaming", "readers_here": 1}'),
    "acknowledge": answering(r"POST /streams", 204),
}


@pytest.mark.parametrize("rule", ADAPTER_RULES)
def test_an_adapter_that_breaks_a_rule_is_told_which(rule: str) -> None:
    fault = BREAKS[rule]
    sources = fault if isinstance(fault, Careless) else AdapterSources()
    app = starlette_app(sources)
    with serving(app if isinstance(fault, Careless) else fault(app), timeout_graceful_shutdown=0) as server:
        case = AdapterCase(server.url, sources.facts, name="it", patience=0.6)
        with pytest.raises(ContractBroken, match=re.escape(f"it breaks the rule {rule!r}")) as caught:
            asyncio.run(check_adapter_rule(rule, case))
    assert caught.value.rule == rule


def test_an_adapter_without_a_log_is_not_asked_for_one() -> None:
    sources = AdapterSources()
    with serving(answering(r"\w+ /(logged|streams).*", 500)(starlette_app(sources))) as server:
        case = AdapterCase(server.url, sources.facts, log=False)
        asyncio.run(check_adapter_rule("cancel", case))


def test_facts_are_asked_for_over_the_wire_where_the_application_is_elsewhere() -> None:
    with serving(starlette_app(AdapterSources())) as server:
        asyncio.run(check_adapter_rule("G6 closed once", AdapterCase(server.url)))


def test_every_source_is_there_for_both_kinds_of_adapters() -> None:
    async def collected(source: Any) -> list[Any]:
        return [item async for item in source]

    sources = AdapterSources()
    for name in (*SOURCES[:2], "opens", "waits"):
        assert asyncio.run(collected(sources.open(name, "one"))) == list(sources.open_sync(name, "one"))
    facts = sources.facts("one")
    assert facts["opened"] == facts["closes"] == 8
    with pytest.raises(KeyError):
        sources.open("none", "one")
