"""The page of adapters shows each of them on each of its servers, and each rule is in one of its columns."""

from __future__ import annotations

import pytest

from streamguard.testing import ADAPTER_RULES, AdapterCase, ContractBroken
from tests.proofs import adapters
from tests.proofs.adapters import CASES, GROUPS, LEFT_OUT, PAGE

ALONE = ("gunicorn, sync",)  # servers that answer nothing beside a stream


def test_the_page_has_a_row_for_each_adapter_on_each_of_its_servers_and_all_keep_the_contract() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("<!-- begin: ")[2].partition("<!-- end: ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:1] == "|"]
    assert [tuple(row[:2]) for row in rows[2:]] == list(CASES)
    assert {cell for row in rows[2:] for cell in row[2:] if row[1] not in ALONE} == {"yes"}
    alone = [cell for row in rows[2:] for cell in row[2:] if row[1] in ALONE]
    assert alone == ["yes"] * (len(GROUPS) - 1) + [LEFT_OUT[1]]


def test_each_rule_is_in_one_group() -> None:
    for rule in ADAPTER_RULES:
        assert sum(rule.startswith(group) for group in GROUPS.values()) == 1, rule


def test_a_rule_that_is_broken_stands_in_its_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(rule: str, case: AdapterCase) -> None:
        if rule == "G5 resume":
            raise ContractBroken("it", rule, "a | b")

    monkeypatch.setattr(adapters, "check_adapter_rule", check)
    cells = dict(zip(GROUPS, adapters.row_of(AdapterCase("http://test")), strict=True))
    assert cells.pop("G5") == "it breaks the rule 'G5 resume': a / b"
    assert set(cells.values()) == {"yes"}


def test_rules_that_a_case_cannot_be_asked_for_are_left_out_and_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    played = []

    async def check(rule: str, case: AdapterCase) -> None:
        played.append(rule)

    monkeypatch.setattr(adapters, "check_adapter_rule", check)
    last = "cancel, status, acknowledge"
    cells = dict(zip(GROUPS, adapters.row_of(AdapterCase("http://test", concurrent=False)), strict=True))
    assert cells == {group: "yes" if group != last else "one request at a time" for group in GROUPS}
    assert sorted(played) == sorted(rule for rule in ADAPTER_RULES if rule not in last)
    cells = dict(zip(GROUPS, adapters.row_of(AdapterCase("http://test", log=False)), strict=True))
    assert cells == {group: "yes" if group not in ("G5", last) else "no log" for group in GROUPS}
