"""The contract of an adapter, for each adapter on each server that it runs on.

An adapter has an entry in CASES for each server: what starts it, and answers the AdapterCase. CI plays the same rules
on one server each; a rule that is broken here is named in its cell, with what was found.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

import attrs

from streamguard.testing import ADAPTER_RULES, AdapterCase, AdapterSources, ContractBroken, check_adapter_rule
from streamguard.testing.adapter_contract import left_out
from tests.adapters.aiohttp_serving import serving_aiohttp
from tests.adapters.contract_aiohttp import aiohttp_app
from tests.adapters.contract_wsgi import WSGI_APPS
from tests.adapters.wsgi_servers import gunicorn, serving_wsgi
from tests.modules import ROOT
from tests.proofs.registry import Result, Run, Table, proof
from tests.stacks.processes import STACKS, running

__all__ = ["CASES", "GROUPS", "LEFT_OUT", "PAGE", "adapters", "row_of"]

PAGE: Final = ROOT / "docs" / "reference" / "adapters.md"

GROUPS: Final = {
    "G1": ("G1",),
    "G2": ("G2",),
    "G3": ("G3",),
    "G4": ("G4",),
    "G5": ("G5",),
    "G6": ("G6",),
    "HTTP": ("headers", "HEAD", "POST", "a cursor"),
    "heartbeat": ("heartbeat",),
    "failures": ("failure",),
    "cancel, status, acknowledge": ("cancel", "status", "acknowledge"),
}
"""Columns, each with the beginnings of its rules' names."""

Case = Callable[[], AbstractContextManager[AdapterCase]]


@contextmanager
def _on_asgi(adapter: str, stack: str) -> Iterator[AdapterCase]:
    with running(stack, f"tests.adapters.contract_served:{adapter}") as process:
        yield AdapterCase(process.url, name=adapter, http2=process.http2)


@contextmanager
def _on_aiohttp(loop: str) -> Iterator[AdapterCase]:
    sources = AdapterSources()
    with serving_aiohttp(aiohttp_app(sources), loop=loop) as server:
        yield AdapterCase(server.url, sources.facts, name="aiohttp")


@contextmanager
def _on_waitress(adapter: str) -> Iterator[AdapterCase]:
    sources = AdapterSources()
    with serving_wsgi("waitress", WSGI_APPS[adapter](sources)) as url:
        yield AdapterCase(url, sources.facts, name=adapter, closes=True)


@contextmanager
def _on_gunicorn(app: str, worker: str) -> Iterator[AdapterCase]:
    alone = worker == "sync"
    with gunicorn(f"tests.adapters.contract_wsgi:{app}", worker) as url:
        yield AdapterCase(url, name=app, closes=alone, concurrent=not alone)


@contextmanager
def _django(start: Case, kind: str) -> Iterator[AdapterCase]:
    """The site of every kind of views, asked for those of one kind."""
    with start() as case:
        yield attrs.evolve(case, url=f"{case.url}/{kind}", name=f"django, {kind} views")


@contextmanager
def _django_on_asgi(stack: str) -> Iterator[AdapterCase]:
    with running(stack, "tests.adapters.django_site:ASGI") as process:
        yield AdapterCase(process.url, http2=process.http2)


@contextmanager
def _django_on_waitress() -> Iterator[AdapterCase]:
    from tests.adapters.django_site import BOOKS, WSGI  # which sets Django up, once for the process

    with serving_wsgi("waitress", WSGI) as url:
        yield AdapterCase(url, BOOKS.facts, closes=True)


_DJANGO: Final[dict[str, Case]] = {
    **{stack: functools.partial(_django_on_asgi, stack) for stack in STACKS},
    "waitress": _django_on_waitress,
}

CASES: Final[dict[tuple[str, str], Case]] = {
    **{
        (adapter, stack): functools.partial(_on_asgi, adapter, stack)
        for adapter in ("asgi", "starlette", "fastapi")
        for stack in STACKS
    },
    **{("aiohttp", f"aiohttp, {loop}"): functools.partial(_on_aiohttp, loop) for loop in ("asyncio", "uvloop")},
    **{
        (f"django, {kind} views", server): functools.partial(_django, start, kind)
        for kind in ("async", "sync")
        for server, start in _DJANGO.items()
    },
    ("flask", "gunicorn, gthread"): functools.partial(_on_gunicorn, "flask_here()", "gthread"),
    ("flask", "waitress"): functools.partial(_on_waitress, "flask"),
    ("wsgi", "gunicorn, gthread"): functools.partial(_on_gunicorn, "wsgi()", "gthread"),
    ("wsgi", "gunicorn, sync"): functools.partial(_on_gunicorn, "wsgi()", "sync"),
    ("wsgi", "waitress"): functools.partial(_on_waitress, "wsgi"),
}

LEFT_OUT: Final = ("no log", "one request at a time")
"""What a cell says where nothing of its group is played."""


def row_of(case: AdapterCase) -> list[str]:
    """What is found of one adapter on one server, a cell a group."""
    cells = []
    for group in GROUPS.values():
        found = [_played(rule, case) for rule in ADAPTER_RULES if rule.startswith(group)]
        cells.append("; ".join(dict.fromkeys(what for what in found if what != "yes")).replace("|", "/") or "yes")
    return cells


def _played(rule: str, case: AdapterCase) -> str:
    if (why := left_out(rule, case)) is not None:
        return why
    try:
        asyncio.run(check_adapter_rule(rule, case))
    except ContractBroken as exc:
        return str(exc)
    return "yes"


@proof(claim="Every adapter keeps its contract on every server that it runs on.", minutes=5)
def adapters(run: Run) -> Result:
    rows = []
    for (adapter, server), start in CASES.items():
        run.say(f"{adapter} on {server}")
        with start() as case:
            rows.append((adapter, server, *row_of(case)))
    shown = all(cell in ("yes", *LEFT_OUT) for row in rows for cell in row[2:])
    packages = ["starlette", "fastapi", "aiohttp", "django", "flask", "uvicorn", "hypercorn", "granian", "daphne"]
    packages += ["uvloop", "gunicorn", "waitress"]
    return Result(shown, [Table(("adapter", "server", *GROUPS), rows)], packages=packages)
