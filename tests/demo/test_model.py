"""Seeded answers, and the ledger that says what was generated."""

from __future__ import annotations

import anyio
import pytest

from streamguard.demo.model import Answer, Generation, Ledger, answer


def test_an_answer_is_a_function_of_its_seed_and_number() -> None:
    assert answer(1, 7) == answer(1, 7)
    assert answer(1, 7) != answer(1, 8)
    assert answer(1, 7) != answer(2, 7)


def test_there_is_a_gap_before_each_token_and_before_the_end() -> None:
    for number in range(50):
        one = answer(3, number)
        assert len(one.gaps) == len(one.tokens) + 1
        assert min(one.gaps) > 0
        assert one.store > 0


@pytest.mark.parametrize("chunk", [2, 4, 8, 16, 32])
def test_the_last_chunk_holds_anything_from_nothing_to_all_but_one_token(chunk: int) -> None:
    lengths = [len(answer(1, number).tokens) for number in range(600)]
    assert {length % chunk for length in lengths} == set(range(chunk))


def test_the_ledger_has_what_was_generated_and_whether_that_is_all() -> None:
    async def some(count: int) -> None:
        tokens = Generation(Answer(("a ", "b "), (0.0, 0.0, 0.0), 0.0), ledger.open(f"{count}")).tokens()
        for _ in range(count):
            await tokens.__anext__()
        if count == 2:
            assert [token async for token in tokens] == []
        await tokens.aclose()  # type: ignore[attr-defined]

    ledger = Ledger()
    anyio.run(some, 1)
    anyio.run(some, 2)
    taken = ledger.take()
    assert (taken["1"].text, taken["1"].over) == ("a ", False)
    assert (taken["2"].text, taken["2"].over) == ("a b ", True)
    assert ledger.take() == {}


def test_a_full_ledger_drops_its_oldest_entry() -> None:
    ledger = Ledger(limit=2)
    for key in "abc":
        ledger.open(key)
    assert list(ledger.take()) == ["b", "c"]
