"""The contract of a log, for a test of your own: what producers and readers of resumable streams expect of a store.

    async def test_my_log():
        await check_stream_log(lambda retention: MyLog(url, retention=retention))

`factory` makes a log at each call, with the retention that a rule needs, and may be a coroutine function. Every rule
has a name that begins with what it is about: L1 to L7 of `streamguard.log.base`, or a method. `LOG_RULES` has them
all, for a test each:

    @pytest.mark.parametrize("rule", LOG_RULES)
    async def test_my_log(rule):
        await check_log_rule(rule, factory)

Works on asyncio and on trio. A rule makes streams of names of its own and purges them: a store may be used for all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import anyio

from streamguard.testing.contract import ContractBroken
from streamguard.testing.log_append_rules import APPEND_RULES
from streamguard.testing.log_case import LogCase, LogFactory, Rule
from streamguard.testing.log_life_rules import LIFE_RULES
from streamguard.testing.log_read_rules import READ_RULES

__all__ = ["LOG_RULES", "check_log_rule", "check_stream_log"]

LOG_RULES: Final[dict[str, Rule]] = {**APPEND_RULES, **READ_RULES, **LIFE_RULES}


async def check_stream_log(
    factory: LogFactory,
    *,
    advance: Callable[[float], object] | None = None,
    shared: bool = False,
    patience: float = 10.0,
) -> None:
    """Raise ContractBroken, an AssertionError, for the first rule that `factory`'s logs break.

    `advance(seconds)` passes time on the store's clock, where a test can; else a few leases of 0.05 s are waited for.
    `shared`: all logs of the factory's are of one store, so that producers and readers get one each. `patience` is
    how many seconds one rule may take.
    """
    for rule in LOG_RULES:
        await check_log_rule(rule, factory, advance=advance, shared=shared, patience=patience)


async def check_log_rule(
    rule: str,
    factory: LogFactory,
    *,
    advance: Callable[[float], object] | None = None,
    shared: bool = False,
    patience: float = 10.0,
) -> None:
    """The same for one rule of LOG_RULES. Raises KeyError for a name that is none."""
    play = LOG_RULES[rule]
    case = LogCase(rule, factory, advance, shared)
    try:
        with anyio.fail_after(patience):
            try:
                await case.open()
                await play(case)
            finally:
                with anyio.CancelScope(shield=True), anyio.move_on_after(patience):
                    await case.close()
    except ContractBroken:
        raise
    except TimeoutError as exc:
        raise ContractBroken(case.name, rule, f"it took more than {patience:g} s: something was never woken") from exc
    except Exception as exc:
        for inner in getattr(exc, "exceptions", ()):
            if isinstance(inner, ContractBroken):  # found by a task of a group
                raise inner from exc
        raise ContractBroken(case.name, rule, f"a call that must succeed raised {exc!r}") from exc
