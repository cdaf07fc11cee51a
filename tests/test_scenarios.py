"""`tests/scenarios.toml` names every scenario, and every test that it names exists."""

from __future__ import annotations

import ast
from functools import cache

import pytest

from tests.absence import IN_CI
from tests.modules import ROOT
from tests.toml import load_toml

SCENARIOS = load_toml(ROOT / "tests" / "scenarios.toml")
IDS = [id for ids in SCENARIOS["groups"].values() for id in ids]
PENDING = set(SCENARIOS["pending"])


@cache
def names_in(path: str) -> set[str]:
    """The names of the tests in a file; those of classes as `Class::test`."""
    names = set()
    for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names |= {f"{node.name}::{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    return names


def test_no_scenario_is_named_twice() -> None:
    assert len(set(IDS)) == len(IDS)


@pytest.mark.parametrize("id", IDS)
def test_a_scenario_has_tests_or_says_what_it_waits_for(id: str) -> None:
    tests, later = SCENARIOS["tests"].get(id, []), SCENARIOS["later"].get(id)
    assert not (tests and later), f"{id} has tests and waits"
    assert tests or later or id in PENDING, f"{id} has no test and does not say why"
    assert not later or later.startswith("needs ")
    assert not (later and id in PENDING), f"{id} waits for another part and is pending"


@pytest.mark.parametrize("id", SCENARIOS["tests"])
def test_the_tests_of_a_scenario_exist(id: str) -> None:
    assert id in IDS
    assert SCENARIOS["tests"][id]
    for test in SCENARIOS["tests"][id]:
        path, _, name = test.partition("::")
        assert (ROOT / path).is_file(), f"{id}: no file {path}"
        assert name in names_in(path), f"{id}: {path} has no {name}"
        assert name.rpartition("::")[2].startswith("test_")


def test_only_scenarios_of_the_list_are_mapped() -> None:
    mapped = set(SCENARIOS["later"]) | PENDING
    assert mapped <= set(IDS)


def test_ci_refuses_pending_scenarios() -> None:
    assert not (IN_CI and PENDING), f"pending: {sorted(PENDING)}"
