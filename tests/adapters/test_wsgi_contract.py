"""The adapters that run on WSGI keep the contract of every adapter, over real sockets, on the servers in use."""

from __future__ import annotations

import asyncio

import pytest

from streamguard.testing import AdapterCase, AdapterSources, check_adapter
from tests.adapters.contract_wsgi import WSGI_APPS
from tests.adapters.wsgi_servers import gunicorn, serving_wsgi


@pytest.mark.parametrize("adapter", WSGI_APPS)
def test_an_adapter_on_wsgi_keeps_the_contract(adapter: str) -> None:
    sources = AdapterSources()
    with serving_wsgi("waitress", WSGI_APPS[adapter](sources)) as url:
        asyncio.run(check_adapter(AdapterCase(url, sources.facts, name=adapter, closes=True)))


def test_it_is_kept_on_gunicorn_with_threads() -> None:
    with gunicorn("tests.adapters.contract_wsgi:wsgi()", "gthread") as url:
        asyncio.run(check_adapter(AdapterCase(url, name="wsgi on gunicorn")))
