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

from streamguard.testing import ADAPTER_RULES, AdapterCase, AdapterSources, ContractBroken, check_adapter_rule
from tests.adapters.aiohttp_serving import serving_aiohttp
from tests.adapters.contract_aiohttp import aiohttp_app
from tests.modules import ROOT
from tests.proofs.registry import Result, Run, Table, proof
from tests.stacks.processes import STACKS, running

__all__ = ["CASES", "GROUPS", "PAGE", "adapters", "row_of"]

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


CASES: Final[dict[tuple[str, str], Case]] = {
    **{
        (adapter, stack): functools.partial(_on_asgi, adapter, stack)
        for adapter in ("asgi", "starlette", "fastapi")
        for stack in STACKS
    },
    **{("aiohttp", f"aiohttp, {loop}"): functools.partial(_on_aiohttp, loop) for loop in ("asyncio", "uvloop")},
}


def row_of(case: AdapterCase) -> list[str]:
    """What is found of one adapter on one server, a cell a group."""
    cells = []
    for group in GROUPS.values():
        broken = []
        for rule in ADAPTER_RULES:
            if not rule.startswith(group):
                continue
            try:
                asyncio.run(check_adapter_rule(rule, case))
            except ContractBroken as exc:
                broken.append(str(exc))
        cells.append("; ".join(broken).replace("|", "/") or ("yes" if case.log or group != ("G5",) else "–"))
    return cells


@proof(claim="Every adapter keeps its contract on every server that it runs on.", minutes=5)
def adapters(run: Run) -> Result:
    rows = []
    for (adapter, server), start in CASES.items():
        run.say(f"{adapter} on {server}")
        with start() as case:
            rows.append((adapter, server, *row_of(case)))
    shown = all(cell in ("yes", "–") for row in rows for cell in row[2:])
    packages = ["starlette", "fastapi", "aiohttp", "uvicorn", "hypercorn", "granian", "daphne", "uvloop"]
    return Result(shown, [Table(("adapter", "server", *GROUPS), rows)], packages=packages)
