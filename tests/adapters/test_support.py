"""The page of adapters shows each of them on each of its servers, and each rule is in one of its columns."""

from __future__ import annotations

import pytest

from streamguard.testing import ADAPTER_RULES, AdapterCase, ContractBroken
from tests.proofs import adapters
from tests.proofs.adapters import CASES, GROUPS, PAGE


def test_the_page_has_a_row_for_each_adapter_on_each_of_its_servers_and_all_keep_the_contract() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("<!-- begin: ")[2].partition("<!-- end: ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:1] == "|"]
    assert [tuple(row[:2]) for row in rows[2:]] == list(CASES)
    assert {cell for row in rows[2:] for cell in row[2:]} == {"yes"}


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
