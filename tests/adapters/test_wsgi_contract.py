"""The adapters that run on WSGI keep the contract of every adapter, over real sockets, on the servers in use."""

from __future__ import annotations

import asyncio

import pytest

from streamguard.testing import AdapterCase, AdapterSources, check_adapter, check_adapter_rule
from streamguard.testing.adapter_rules import CONNECTION_RULES
from tests.adapters.contract_wsgi import WSGI_APPS, inline_app
from tests.adapters.django_site import ASGI, BOOKS, WSGI
from tests.adapters.servers import serving
from tests.adapters.wsgi_servers import gunicorn, serving_wsgi


@pytest.mark.parametrize("adapter", WSGI_APPS)
def test_an_adapter_on_wsgi_keeps_the_contract(adapter: str) -> None:
    sources = AdapterSources()
    with serving_wsgi("waitress", WSGI_APPS[adapter](sources)) as url:
        asyncio.run(check_adapter(AdapterCase(url, sources.facts, name=adapter, closes=True)))


def test_it_is_kept_on_gunicorn_with_threads() -> None:
    with gunicorn("tests.adapters.contract_wsgi:wsgi()", "gthread") as url:
        asyncio.run(check_adapter(AdapterCase(url, name="wsgi on gunicorn")))


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_django_keeps_it_under_asgi(kind: str) -> None:
    with serving(ASGI) as server:
        asyncio.run(check_adapter(AdapterCase(f"{server.url}/{kind}", BOOKS.facts, name=f"django, {kind} views")))


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_django_keeps_it_under_wsgi(kind: str) -> None:
    with serving_wsgi("waitress", WSGI) as url:
        case = AdapterCase(f"{url}/{kind}", BOOKS.facts, name=f"django, {kind} views", closes=True)
        asyncio.run(check_adapter(case))


@pytest.mark.parametrize("server", ["waitress", "werkzeug"])
def test_a_source_on_the_servers_thread_keeps_all_of_it_but_signs_of_life(server: str) -> None:
    sources = AdapterSources()
    rules = [rule for rule in CONNECTION_RULES if rule != "heartbeat"]
    with serving_wsgi(server, inline_app(sources)) as url:
        for rule in rules:
            asyncio.run(check_adapter_rule(rule, AdapterCase(url, sources.facts, name="inline", closes=True)))
