"""The contract of an adapter, for a test of your own: what a guarded endpoint does over real sockets, in any framework.

    await check_adapter(AdapterCase(url))

To add a case, write an application that serves the sources of `AdapterSources` in the framework's own idiom (its
module's docstring has one), run it on a server, and give `AdapterCase` its address:

    /<source>?label=          GET, HEAD, POST: `sources.open(source, label)`, guarded, with `sources.options(source)`
    /logged/<source>?label=   GET, POST: the same under a guard's log, unless `log=False`
    /streams                  that guard's endpoints, as `install` puts them
    /facts/<label>            `sources.facts(label)` as JSON, unless the case's `facts` answers in the same process

The sources are `SOURCES`; `open_sync` makes plain generators, for adapters that take those. The rules are
`ADAPTER_RULES`, by name, for a test each with `check_adapter_rule`. What a server cannot do is said in the case:
`aborts=False`, `closes=True`, `concurrent=False`; `left_out` names the rules that are not played for it. It needs the
extra `httpx`.
"""

from __future__ import annotations

from typing import Final

import anyio
import httpx

from streamguard.testing.adapter_case import AdapterCase, Play, Rule, client_of
from streamguard.testing.adapter_log_rules import BESIDE_A_STREAM, LOG_ADAPTER_RULES
from streamguard.testing.adapter_rules import CONNECTION_RULES
from streamguard.testing.contract import ContractBroken

__all__ = ["ADAPTER_RULES", "AdapterCase", "check_adapter", "check_adapter_rule", "left_out"]

ADAPTER_RULES: Final[dict[str, Rule]] = {**CONNECTION_RULES, **LOG_ADAPTER_RULES}


async def check_adapter(case: AdapterCase) -> None:
    """Raise ContractBroken, an AssertionError, for the first rule that the application of `case` breaks."""
    async with client_of(case) as client:
        for rule in ADAPTER_RULES:
            await _check(rule, case, client)


async def check_adapter_rule(rule: str, case: AdapterCase) -> None:
    """The same for one rule of ADAPTER_RULES. Raises KeyError for a name that is none."""
    async with client_of(case) as client:
        await _check(rule, case, client)


def left_out(rule: str, case: AdapterCase) -> str | None:
    """Why a rule is not played for a case; None where it is."""
    if rule in LOG_ADAPTER_RULES and not case.log:
        return "no log"
    if rule in BESIDE_A_STREAM and not case.concurrent:
        return "one request at a time"
    return None


async def _check(rule: str, case: AdapterCase, client: httpx.AsyncClient) -> None:
    play = ADAPTER_RULES[rule]
    if left_out(rule, case) is not None:
        return
    try:
        with anyio.fail_after(case.patience):
            await play(Play(rule, case, client))
    except ContractBroken:
        raise
    except TimeoutError as exc:
        raise ContractBroken(case.name, rule, f"it took more than {case.patience:g} s") from exc
    except Exception as exc:
        raise ContractBroken(case.name, rule, f"a request that must succeed raised {exc!r}") from exc
