"""The machinery of proofs: a ratio that does not lie, a registry, pages; and the accepted survivors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.modules import MODULES, ROOT
from tests.proofs import command
from tests.proofs.figures import Point, trade_off
from tests.proofs.measure import MAX_SPREAD, TooNoisy, ratio
from tests.proofs.mutants import accepted
from tests.proofs.registry import Figure, Proof, Result, Run, Table, proof, proofs_in


def costs(*values: float) -> Callable[[], float]:
    """A measurement that answers these values, after one that is not recorded."""
    answers: Iterator[float] = iter((99.0, *values))
    return lambda: next(answers)


def test_a_ratio_is_the_median_of_its_pairs() -> None:
    found = ratio(costs(2, 4, 6, 8, 10), costs(1, 1, 1, 1, 1))
    assert (found.median, found.low, found.high) == (6, 2, 10)
    assert found.spread == 1


def test_pairs_are_interleaved() -> None:
    calls: list[str] = []

    def noted(name: str) -> float:
        calls.append(name)
        return 1.0

    ratio(lambda: noted("A"), lambda: noted("B"))
    assert calls == ["A", "B"] * 6


def test_a_noisy_reference_is_said_and_repeated() -> None:
    said: list[str] = []
    found = ratio(costs(*[2.0] * 10), costs(1, 1, 1, 1, MAX_SPREAD + 0.01, 1, 1, 1, 1, MAX_SPREAD), say=said.append)
    assert found.median == 2
    assert len(said) == 1
    assert "too noisy" in said[0]


def test_a_machine_that_stays_noisy_gives_no_figure() -> None:
    with pytest.raises(TooNoisy, match="too noisy"):
        ratio(lambda: 1.0, costs(*[1.0, 2.0] * 5), attempts=2, say=lambda line: None)


def test_fewer_than_five_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 5 pairs"):
        ratio(lambda: 1.0, lambda: 1.0, pairs=4)


def test_every_proof_has_a_claim_and_a_bound_in_time() -> None:
    proofs = {**proofs_in("tests.proofs"), **proofs_in("tests.benchmarks")}
    assert "mutants" in proofs
    for name, found in proofs.items():
        assert found.claim.endswith("."), name
        assert 0 < found.minutes <= 60, name


def test_every_page_of_a_proof_has_a_command_that_remakes_it() -> None:
    proofs = {**proofs_in("tests.proofs"), **proofs_in("tests.benchmarks")}
    for page in (ROOT / "docs" / "proofs").glob("*.md"):
        if page.stem not in ("index", "README"):
            assert page.stem in proofs, f"{page.name} is the page of no proof"


@pytest.fixture
def one_proof(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Proof:
    """The only proof that the command line finds; its page goes to a folder of the test."""

    @proof(claim="Two is above one.", minutes=1)
    def two_is_more(run: Run) -> Result:
        picture = Figure("more", "one and two", "<svg/>\n")
        table = Table(("a | b", "n"), [("x", 1.23456), ("y", 2)])
        return Result(run.seed > 1, [table], ["A note."], ["pytest"], [picture])

    monkeypatch.setattr(command, "proofs_in", lambda package: {two_is_more.name: two_is_more})
    monkeypatch.setattr(command, "DOCS", tmp_path)
    monkeypatch.setattr(command, "PAGES", tmp_path)
    return two_is_more


def test_a_proof_writes_its_page_and_its_verdict(
    one_proof: Proof, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main("tests.proofs", ["two-is-more", "--seed", "2"]) == 0
    assert "two-is-more: shown" in capsys.readouterr().out
    page = (command.PAGES / "two-is-more.md").read_text(encoding="utf-8")
    assert "<!-- begin: python -m tests.proofs two-is-more -->" in page
    assert "| a \\| b | n |\n| --- | --- |\n| x | 1.23 |\n| y | 2 |" in page
    assert "Shown. Seed 2" in page
    assert f"pytest {pytest.__version__}" in page
    assert "![one and two](more.svg)" in page
    assert (command.PAGES / "more.svg").read_text(encoding="utf-8") == "<svg/>\n"


def test_a_figure_names_each_way_and_is_the_same_each_time() -> None:
    panels = {"cubic": [Point("16384", 11, 237), Point("65536", 69, 459), Point("learns", 16, 371, chosen=True)]}
    svg = trade_off(panels, cost="ms queued", gain="kB a second")
    assert svg == trade_off(panels, cost="ms queued", gain="kB a second")
    texts = {element.text for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")}
    assert {"16384", "65536", "learns", "cubic", "ms queued", "kB a second"} <= texts


def test_a_page_that_shows_the_same_tables_is_renewed(one_proof: Proof, tmp_path: Path) -> None:
    begin, end = (f"<!-- {mark}: python -m tests.proofs two-is-more -->" for mark in ("begin", "end"))
    page, other = tmp_path / "page.md", tmp_path / "other.md"
    page.write_text(f"Before.\n\n{begin}\nold\n{end}\n\nAfter.\n", encoding="utf-8")
    other.write_text("Nothing of it.\n", encoding="utf-8")
    command.main("tests.proofs", ["two-is-more", "--seed", "2"])
    assert page.read_text(encoding="utf-8") == (
        f"Before.\n\n{begin}\n| a \\| b | n |\n| --- | --- |\n| x | 1.23 |\n| y | 2 |\n\n{end}\n\nAfter.\n"
    )
    assert other.read_text(encoding="utf-8") == "Nothing of it.\n"


def test_a_claim_that_is_not_shown_fails_the_command(
    one_proof: Proof, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main("tests.proofs", ["two-is-more", "--seed", "1", "--json", "--no-page"]) == 1
    record = json.loads(capsys.readouterr().out)
    assert (record["name"], record["shown"], record["seed"]) == ("two-is-more", False, 1)
    assert not list(command.PAGES.iterdir())


def test_an_unknown_name_is_refused(one_proof: Proof) -> None:
    with pytest.raises(SystemExit) as refused:
        command.main("tests.proofs", ["nothing"])
    assert refused.value.code == 2


def test_every_accepted_survivor_is_still_in_the_code_and_has_a_reason() -> None:
    for survivor, why in accepted().items():
        name = survivor.function
        while f"streamguard.{name}" not in MODULES:
            assert "." in name, f"{survivor.function} is in no module"
            name = name.rpartition(".")[0]
        source = " ".join(MODULES[f"streamguard.{name}"].path.read_text(encoding="utf-8").split())
        assert " ".join(survivor.was.split()) in source, f"the line is gone: {survivor}"
        assert len(why) > 20, f"no reason: {survivor}"
