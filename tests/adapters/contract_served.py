"""The test applications of the adapters that run on ASGI, for a server that is started with a module's name."""

from __future__ import annotations

from streamguard.testing import AdapterSources
from tests.adapters.contract_apps import ASGI_APPS

__all__ = ["asgi", "fastapi", "starlette"]

asgi = ASGI_APPS["asgi"](AdapterSources())
starlette = ASGI_APPS["starlette"](AdapterSources())
fastapi = ASGI_APPS["fastapi"](AdapterSources())
