"""When held text leaves: each policy as a table, and all of them against what no policy may do."""

from __future__ import annotations

import copy
import re
import threading
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamguard.core.adaptive import Adaptive
from streamguard.core.errors import PolicyError
from streamguard.core.flush import (
    AtBoundary,
    EveryBytes,
    EveryTokens,
    FlushPolicy,
    HoldBack,
    Immediate,
    Within,
    any_of,
)
from streamguard.core.flush_stage import MAX_HELD, FlushStage
from tests.strategies import (
    Incomparable,
    Liar,
    Scripted,
    clean_texts,
    clocks,
    cut,
    honest,
    hostile,
    policies,
    token_cuts,
)

DRAIN = object()


def left(policy: FlushPolicy, *events: Any) -> list[str]:
    """What leaves at each event: a piece at time 0, `(piece, now)`, a float for a tick, or DRAIN."""
    stage = FlushStage(policy)
    out = []
    for event in events:
        if event is DRAIN:
            out.append(stage.drain())
        elif isinstance(event, str):
            out.append(stage.push(event, 0.0))
        elif isinstance(event, tuple):
            out.append(stage.push(*event))
        else:
            out.append(stage.tick(event))
    return out


# ---- the policies, as tables --------------------------------------------------------------------

TABLE = [
    ("immediate", Immediate(), ["a", "bc", 5.0, DRAIN], ["a", "bc", "", ""]),
    ("tokens", EveryTokens(3), list("abcdefgh"), ["a", "", "", "bcd", "", "", "efg", ""]),
    ("tokens-policy", EveryTokens(3, first="policy"), list("abcdef"), ["", "", "abc", "", "", "def"]),
    ("tokens-1", EveryTokens(1), list("abc"), ["a", "b", "c"]),
    ("tokens-1-policy", EveryTokens(1, first="policy"), list("abc"), ["a", "b", "c"]),
    ("tokens-drained", EveryTokens(3), ["a", "b", "c", DRAIN, *"defg"], ["a", "", "", "bc", "", "", "def", ""]),
    ("tokens-untouched-by-time", EveryTokens(3), ["a", "b", 1e9], ["a", "", ""]),
    ("tokens-longer", EveryTokens(2, first="policy"), ["ab", "cd", "ef", "gh"], ["", "abcd", "", "efgh"]),
    ("bytes", EveryBytes(4), ["a", "b", "cd", "e", "fghijk", "l"], ["a", "", "", "bcde", "fghijk", ""]),
    ("bytes-policy", EveryBytes(4, first="policy"), ["ab", "c", "d", "abc"], ["", "", "abcd", ""]),
    ("bytes-utf8", EveryBytes(4, first="policy"), ["é", "é", "🙂", "你", "a"], ["", "éé", "🙂", "", "你a"]),
    ("bytes-drained", EveryBytes(4, first="policy"), ["abc", DRAIN, "abc", "d"], ["", "abc", "", "abcd"]),
    ("bytes-untouched-by-time", EveryBytes(4), ["a", "b", 1e9], ["a", "", ""]),
    (
        "within",
        Within(1.0),
        [("a", 0.0), ("b", 0.5), ("c", 1.0), 1.499, 1.5, ("d", 9.0), 9.999, ("e", 10.0), ("f", 10.0)],
        ["a", "", "", "", "bc", "", "", "de", ""],
    ),
    ("within-policy", Within(1.0, first="policy"), [("a", 0.0), 0.999, 1.0, ("b", 1.5)], ["", "", "a", ""]),
    (
        "within-drained",
        Within(1.0, first="policy"),
        [("a", 0.0), DRAIN, ("b", 0.9), 1.0, 1.9],
        ["", "a", "", "", "b"],
    ),
    (
        "word",
        AtBoundary("word"),
        ["Hel", "lo wor", "ld", " ", "\n", "a b c", DRAIN, "d", " e"],
        ["", "Hello ", "", "world ", "\n", "a b ", "c", "", "d "],
    ),
    (
        "sentence",
        AtBoundary("sentence"),
        ["Hi", ".", " ", "No.", "1 is", "... ", 'He said "no!" ', "你好。", "」", "x\n", "y", 9.0, DRAIN],
        ["", "", "Hi. ", "", "", "No.1 is... ", 'He said "no!" ', "你好。", "", "」x\n", "", "", "y"],
    ),
    (
        "sentence-with-all-its-closing-marks",
        AtBoundary("sentence"),
        ["a?”’)] b", "真的？”」』） c", "d…\n\n\ne"],
        ["a?”’)] ", "b真的？”」』）", " cd…\n\n\n"],
    ),
    ("pattern", AtBoundary(r"</?\w+>"), ["a<b", ">c</", "b>", "d"], ["", "a<b>", "c</b>", ""]),
    ("compiled", AtBoundary(re.compile("[;]")), ["a;b", ";"], ["a;", "b;"]),
    ("boundary-in-what-left", AtBoundary("b(?=c)"), ["ab", DRAIN, "c", "d", DRAIN], ["", "ab", "", "", "cd"]),
    ("boundary-before-what-is-held", AtBoundary("b(?=xyc)"), ["ab", "x", DRAIN, "yc"], ["", "", "abx", ""]),
    ("empty-matches-are-none", AtBoundary("b*"), ["a", "b", "ac"], ["", "ab", ""]),
    ("last-of-several", AtBoundary("b+"), ["abab", "a"], ["abab", ""]),
    ("window", AtBoundary("<.*>", window=3), ["<ab", "c", ">", "<a", "b>"], ["", "", "", "", "<abc><ab>"]),
    ("holdback", HoldBack("<end>"), ["a", "b<", "e", "x", "<end", ">", "y"], ["a", "b", "", "<ex", "", "<end>", "y"]),
    ("holdback-list", HoldBack(["<|", "END"]), ["xE", "N", "|", "<", "E", "a"], ["x", "", "EN|", "", "<", "Ea"]),
    ("holdback-restarts", HoldBack("aab"), ["a", "a", "a", "a", "b", "a"], ["", "", "a", "a", "aab", ""]),
    ("holdback-tuple", HoldBack(("END",)), ["E", 9.0, DRAIN, "x"], ["", "", "E", "x"]),
    ("holdback-over-a-drain", HoldBack("<end>"), ["a<e", DRAIN, "n", "d>", "b"], ["a", "<e", "", "nd>", "b"]),
    (
        "holdback-flush",
        HoldBack("<end>", flush=EveryTokens(2, first="policy")),
        ["a", "b<", "c", "d", "e"],
        ["", "ab", "", "<cd", ""],
    ),
    (
        "holdback-within",
        HoldBack("<end>", flush=Within(1.0, first="policy")),
        [("a<", 0.0), 1.0, ("b", 1.5), 2.499, 2.5],
        ["", "a", "", "", "<b"],
    ),
    (
        "any-of",
        any_of(EveryTokens(3, first="policy"), Within(1.0, first="policy")),
        [("a", 0.0), ("b", 0.5), 1.0, ("c", 1.1), ("d", 1.2), ("e", 1.3), 2.0, ("f", 3.0), 4.0],
        ["", "", "ab", "", "", "cde", "", "", "f"],
    ),
    (
        "any-of-takes-the-most",
        any_of(AtBoundary("word"), EveryTokens(3, first="policy")),
        ["a b", "c", "d", "e"],
        ["a ", "", "bcd", ""],
    ),
]


@pytest.mark.parametrize(("policy", "events", "out"), [case[1:] for case in TABLE], ids=[case[0] for case in TABLE])
def test_a_policy_lets_text_leave_when_it_says(policy: FlushPolicy, events: list[Any], out: list[str]) -> None:
    assert left(policy, *events) == out


def test_a_policy_that_could_not_let_all_leave_counts_anew() -> None:
    """HoldBack may keep a part of what its inner policy let go: `held` is then more than the piece."""
    tokens = EveryTokens(2, first="policy")
    assert [tokens.push("a", held, 0.0) for held in (1, 2, 3, 4)] == [0, 2, 0, 4]
    size = EveryBytes(2, first="policy")
    assert [size.push("a", held, 0.0) for held in (1, 2, 3, 4)] == [0, 2, 0, 4]
    within = Within(1.0, first="policy")
    assert [within.push("a", held, now) for held, now in ((1, 0.0), (2, 1.0), (3, 1.5), (4, 2.4), (5, 2.5))] == [
        0,
        2,
        0,
        0,
        5,
    ]


def test_every_policy_by_hand_answers_time_with_what_it_may() -> None:
    assert Immediate().tick(3, 0.0) == 3
    assert EveryTokens(1).tick(3, 0.0) == 0
    assert EveryBytes(1).tick(3, 0.0) == 0
    assert AtBoundary("word").tick(3, 0.0) == 0
    assert Within(1.0).tick(3, 9.0) == 0
    assert HoldBack("x").tick(3, 0.0) == 3
    assert any_of(EveryTokens(1), Immediate()).tick(3, 0.0) == 3


@pytest.mark.parametrize(
    "policy", [Immediate(), EveryTokens(2), EveryBytes(2), AtBoundary("word"), HoldBack("x"), any_of(EveryTokens(2))]
)
def test_a_policy_without_a_clock_has_no_deadline(policy: FlushPolicy) -> None:
    policy.push("a", 1, 5.0)
    policy.push("b", 2, 5.0)
    assert policy.deadline() is None


def test_a_deadline_is_the_time_of_the_first_held_piece_and_the_wait() -> None:
    stage = FlushStage(Within(0.25, first="policy"))
    assert stage.deadline() is None
    stage.push("a", 10.0)
    stage.push("b", 10.1)
    assert stage.deadline() == 10.25
    assert stage.tick(10.25) == "ab"
    assert stage.deadline() is None
    stage.push("c", 11.0)
    assert stage.deadline() == 11.25
    stage.drain()
    assert stage.deadline() is None


def test_the_earliest_deadline_of_several_counts() -> None:
    policy = any_of(EveryTokens(9), Within(3.0, first="policy"), Within(2.0, first="policy"))
    assert policy.deadline() is None
    policy.push("a", 1, 1.0)
    assert policy.deadline() == 3.0
    held_back = HoldBack("x", flush=policy)
    assert held_back.deadline() == 3.0


@pytest.mark.parametrize("n", [0, -1, float("nan"), "8", None])
@pytest.mark.parametrize(
    ("policy", "field"),
    [
        (EveryTokens, "n"),
        (EveryBytes, "n"),
        (Within, "seconds"),
        (lambda n: AtBoundary("word", window=n), "window"),
    ],
)
def test_a_count_or_a_time_is_a_number_above_zero(policy: Any, field: str, n: Any) -> None:
    with pytest.raises(ValueError, match=f"^{field} must be a number above zero, not {n!r}$"):
        policy(n)


def test_a_boundary_s_window_has_64_characters() -> None:
    assert AtBoundary("word").window == 64
    assert left(AtBoundary(r"<a+>"), "<" + "a" * 63, ">") == ["", "<" + "a" * 63 + ">"]
    assert left(AtBoundary(r"<a+>"), "<" + "a" * 64, ">") == ["", ""]


@pytest.mark.parametrize("wrong", ["words", "Word", "sentences", "line", ""])
def test_a_boundary_that_is_no_known_name_is_refused_with_the_names(wrong: str) -> None:
    """As an expression it would match hardly ever, and hold the whole answer back."""
    said = r'^AtBoundary knows "word" and "sentence", not .*; for a pattern give re\.compile\('
    with pytest.raises(ValueError, match=said):
        AtBoundary(wrong)
    assert left(AtBoundary(re.compile("words")), "two words", "!") == ["two words", ""]


def test_a_boundary_that_is_no_expression_is_told_whose_it_is() -> None:
    with pytest.raises(ValueError, match=r"^AtBoundary's pattern '\(' is no regular expression: missing \)"):
        AtBoundary("(")


@pytest.mark.parametrize("wrong", [b"word", re.compile(b"word"), None, 3])
def test_a_boundary_is_text_or_a_pattern_for_text(wrong: Any) -> None:
    with pytest.raises(TypeError, match="a pattern for text"):
        AtBoundary(wrong)


def test_hold_back_needs_stop_strings() -> None:
    for stop in ([], "", ["a", ""]):
        with pytest.raises(ValueError, match=r"^HoldBack needs at least one stop string, and none may be empty$"):
            HoldBack(stop)


@pytest.mark.parametrize("policy", [EveryTokens, EveryBytes, Within])
@pytest.mark.parametrize("first", ["", "later", None, True])
def test_the_first_text_leaves_now_or_by_the_policy(policy: Any, first: Any) -> None:
    with pytest.raises(ValueError, match=f'^first must be "now" or "policy", not {first!r}$'):
        policy(1, first=first)


@pytest.mark.parametrize("thing", [Immediate, EveryTokens, 8, "sentence", None, object()])
def test_what_is_no_policy_is_refused_before_the_stream_starts(thing: Any) -> None:
    """The class of one too: its `push` would be called without its self."""
    takes: list[Any] = [FlushStage, any_of]
    if thing is not None:  # no inner policy is the usual way
        takes.append(lambda policy: HoldBack("x", flush=policy))
    for take in takes:
        with pytest.raises(TypeError) as caught:
            take(thing)
        assert str(caught.value) == f"{thing!r} is no flush policy: give an instance, for example EveryTokens(8)"


@pytest.mark.parametrize(
    ("policy", "timed"),
    [
        (Immediate(), False),
        (EveryTokens(2), False),
        (EveryBytes(2), False),
        (Adaptive(), False),
        (any_of(Adaptive()), True),
        (Within(1.0), True),
        (AtBoundary("word"), True),
        (HoldBack("x"), True),
        (any_of(Within(1.0)), True),
        (Scripted([0]), True),
        (type("Mine", (EveryTokens,), {})(2), True),
    ],
)
def test_a_stage_says_whether_its_policy_may_name_a_deadline(policy: FlushPolicy, timed: bool) -> None:
    assert FlushStage(policy).timed is timed


@pytest.mark.parametrize(
    ("policy", "every", "wanted"),
    [
        (Immediate(), 1, 1),
        (EveryTokens(8), 8, 1),
        (EveryTokens(8, first="policy"), 8, 8),
        (EveryBytes(8), 0, 0),
        (Within(1.0), 0, 0),
    ],
)
def test_a_policy_that_only_counts_pieces_is_known_by_their_number(policy: Any, every: int, wanted: int) -> None:
    stage = FlushStage(policy)
    assert (stage.every, stage.wanted) == (every, wanted)


@pytest.mark.parametrize("given", [[EveryTokens(8), Within(1)], (EveryTokens(8),)])
def test_policies_in_a_list_are_to_be_passed_one_by_one(given: Any) -> None:
    with pytest.raises(TypeError, match=r"^pass the policies one by one: any_of\(EveryTokens\(8\), Within\(0\.04\)\)$"):
        any_of(given)


def test_hold_back_is_never_part_of_any_of() -> None:
    with pytest.raises(ValueError, match=r"^any_of needs at least one policy$"):
        any_of()
    with pytest.raises(
        ValueError,
        match=r"^any_of would release what HoldBack holds; write HoldBack\(stop, flush=any_of\(\.\.\.\)\)$",
    ):
        any_of(Immediate(), HoldBack("x"))


@pytest.mark.parametrize("char", [".", "!", "'", "。", "\n", "a"])
def test_a_long_run_without_a_boundary_takes_linear_time(char: str) -> None:
    """A quadratic search would take minutes here: a million characters, then as many steps for each."""
    text = "." + char * 1_000_000
    assert AtBoundary("sentence").push(text, len(text), 0.0) in (0, len(text))


@pytest.mark.parametrize(
    "policy",
    [
        Immediate(), EveryTokens(1), EveryBytes(1), Within(1), AtBoundary("word"), HoldBack("x"), any_of(Immediate()),
        Adaptive(),
    ],
)  # fmt: skip
def test_every_policy_fits_the_protocol(policy: object) -> None:
    assert isinstance(policy, FlushPolicy)
    assert not isinstance(object(), FlushPolicy)


# ---- against oracles ----------------------------------------------------------------------------

_few = st.text(st.sampled_from("ab<"), max_size=24)
_stops = st.lists(st.text(st.sampled_from("ab<"), min_size=1, max_size=4), min_size=1, max_size=3)


def _to_hold(text: str, stop: str) -> int:
    """By brute force: how much of the end of `text` may be the beginning of `stop`."""
    start = 0
    while (at := text.find(stop, start)) >= 0:
        start = at + len(stop)
    rest = text[start:]
    return max(size for size in range(len(stop)) if rest.endswith(stop[:size]))


@given(token_cuts(_few), _stops)
def test_hold_back_holds_exactly_what_may_begin_a_stop_string(pieces: list[str], stops: list[str]) -> None:
    stage = FlushStage(HoldBack(stops))
    text = gone = ""
    for piece in filter(None, pieces):
        text += piece
        gone += stage.push(piece, 0.0)
        assert text.startswith(gone)
        assert len(text) - len(gone) == max(_to_hold(text, stop) for stop in stops)
    assert gone + stage.drain() == text


@pytest.mark.parametrize("size", range(1, 9))
def test_after_any_beginning_and_any_next_character_hold_back_holds_the_right_part(size: int) -> None:
    """Every state of the search and every step out of it, for every word of two letters."""
    for letters in product("ab", repeat=size):
        word = "".join(letters)
        for begun, char in product(range(size), "abc"):
            text = word[:begun] + char
            stage = FlushStage(HoldBack(word))
            if begun:
                stage.push(word[:begun], 0.0)
            stage.push(char, 0.0)
            assert stage.held == _to_hold(text, word), (word, text)


@given(token_cuts(_few), st.text(st.sampled_from("ab<"), min_size=1, max_size=4))
def test_a_stop_string_is_never_cut_in_two(pieces: list[str], stop: str) -> None:
    """What left never ends inside an occurrence, so whoever looks for one piece by piece finds it."""
    text = "".join(pieces)
    inside: set[int] = set()
    start = 0
    while (at := text.find(stop, start)) >= 0:
        start = at + len(stop)
        inside |= set(range(at + 1, start))
    stage = FlushStage(HoldBack(stop))
    edge = 0
    for piece in filter(None, pieces):
        edge += len(stage.push(piece, 0.0))
        assert edge not in inside


@given(token_cuts(_few), _stops, policies.filter(lambda policy: not isinstance(policy, HoldBack)), st.data())
def test_hold_back_holds_under_any_other_policy(
    pieces: list[str], stops: list[str], flush: FlushPolicy, data: st.DataObject
) -> None:
    stage = FlushStage(HoldBack(stops, flush=flush))
    text = ""
    gone = now = 0.0
    for piece in filter(None, pieces):
        text += piece
        now += data.draw(clocks)
        gone += len(stage.push(piece, now)) + len(stage.tick(now))
        assert len(text) - gone >= max(_to_hold(text, stop) for stop in stops)


PATTERNS = {
    "word": r"\s+",
    "sentence": r"[.!?…]+[\"'”’)\]]*\s+|[。！？]+[”’」』）]*|\n+",
    "a+b": "a+b",
    r"\s+|b": r"\s+|b",
}
_prose = st.text(st.sampled_from("ab. !。\n\"'"), max_size=30)


@given(
    token_cuts(_prose),
    st.sampled_from(sorted(PATTERNS)),
    st.one_of(st.integers(1, 8), st.just(64)),
)
def test_at_boundary_lets_leave_what_a_search_of_the_whole_text_finds(
    pieces: list[str], pattern: str, window: int
) -> None:
    """The same by positions in the whole text: the last boundary among the last `window` characters."""
    stage = FlushStage(AtBoundary(pattern, window=window))
    text = ""
    gone = boundary = 0
    for piece in filter(None, pieces):
        start = max(boundary, len(text) - window)
        text += piece
        for match in re.finditer(PATTERNS[pattern], text[start:]):
            boundary = start + match.end()
        out = stage.push(piece, 0.0)
        gone += len(out)
        assert gone == boundary
        assert text[:gone].endswith(out)


@given(token_cuts(_prose))
def test_words_are_never_cut(pieces: list[str]) -> None:
    stage = FlushStage(AtBoundary("word"))
    text = gone = ""
    for piece in filter(None, pieces):
        text += piece
        gone += stage.push(piece, 0.0)
        kept = text[len(gone) :]
        assert not gone or gone[-1].isspace()
        assert not any(char.isspace() for char in kept)


def _model(kind: str, n: int, first: str, sizes: list[int]) -> list[int]:
    """Which pieces leave with which: the index of the piece that let each group go."""
    groups, count = [], 0
    for index, size in enumerate(sizes):
        count += size if kind == "bytes" else 1
        if count >= n or (index == 0 and first == "now"):
            groups.append(index)
            count = 0
    return groups


@given(
    token_cuts(clean_texts),
    st.sampled_from(["tokens", "bytes"]),
    st.integers(1, 6),
    st.sampled_from(["now", "policy"]),
)
def test_counting_policies_count(pieces: list[str], kind: str, n: int, first: Any) -> None:
    pieces = [piece for piece in pieces if piece]
    policy: FlushPolicy = EveryTokens(n, first=first) if kind == "tokens" else EveryBytes(n, first=first)
    out = left(policy, *pieces)
    assert [index for index, text in enumerate(out) if text] == _model(
        kind, n, first, [len(piece.encode()) for piece in pieces]
    )


# ---- the stage ----------------------------------------------------------------------------------

_events = st.lists(st.one_of(clean_texts.filter(bool), clocks, st.just(DRAIN)), max_size=20)


@given(st.one_of(policies, honest), _events)
def test_no_policy_loses_repeats_reorders_or_alters_text(policy: FlushPolicy, events: list[Any]) -> None:
    stage = FlushStage(policy)
    came = gone = ""
    now = 0.0
    for event in events:
        if event is DRAIN:
            gone += stage.drain()
            assert gone == came
        elif isinstance(event, str):
            came += event
            gone += stage.push(event, now)
        else:
            now += event
            gone += stage.tick(now)
        assert came.startswith(gone)
        assert stage.held == len(came) - len(gone)
        assert stage.taken == len(came)
        due = stage.deadline()
        assert due is None or stage.held
    assert gone + stage.drain() == came


@given(hostile, _events)
def test_a_hostile_policy_raises_and_loses_nothing(policy: FlushPolicy, events: list[Any]) -> None:
    stage = FlushStage(policy)
    came = gone = ""
    for event in events:
        try:
            if isinstance(event, str):
                came += event
                gone += stage.push(event, 0.0)
            elif event is not DRAIN:
                gone += stage.tick(event)
        except Exception:
            pass  # the stream would fail here; what matters is that all is still held
        assert stage.held == len(came) - len(gone)
        assert stage.taken == len(came)
    assert gone + stage.drain() == came


@pytest.mark.parametrize("answer", [-1, 4, 10**30, None, "abc", 2.0, float("nan"), True, Liar(1), [], 0.5 + 0j])
def test_an_impossible_answer_is_a_policy_error_with_the_text_still_held(answer: Any) -> None:
    class Script(Scripted):
        def _answer(self, held: int) -> Any:
            return 0 if held < 3 else answer

    stage = FlushStage(Script([]))
    assert stage.push("ab", 0.0) == ""
    for ask in (lambda: stage.push("c", 0.0), lambda: stage.tick(0.0)):
        with pytest.raises(PolicyError) as caught:
            ask()
        assert caught.value.policy == "Script"
        assert caught.value.answer is answer
        assert caught.value.held == stage.held == 3
    assert stage.drain() == "abc"


def test_an_answer_that_cannot_be_compared_loses_no_first_piece() -> None:
    stage = FlushStage(Scripted([Incomparable()]))
    with pytest.raises(PolicyError):
        stage.push("ab", 0.0)
    assert (stage.held, stage.taken, stage.drain()) == (2, 2, "ab")


def test_what_a_policy_raises_comes_out_with_the_piece_held() -> None:
    stage = FlushStage(Scripted([0, KeyboardInterrupt("x")]))
    assert stage.push("ab", 0.0) == ""
    with pytest.raises(KeyboardInterrupt):
        stage.push("c", 0.0)
    assert stage.push("d", 0.0) == ""
    with pytest.raises(KeyboardInterrupt):
        stage.tick(0.0)
    assert stage.drain() == "abcd"


def test_a_policy_is_asked_nothing_while_nothing_is_held() -> None:
    stage = FlushStage(Scripted([RuntimeError()]))
    assert stage.tick(0.0) == ""
    assert stage.deadline() is None
    assert stage.drain() == ""


def test_a_policy_sees_the_piece_what_is_held_with_it_and_the_time() -> None:
    seen: list[tuple[Any, ...]] = []

    class Watcher:
        def push(self, piece: str, held: int, now: float) -> int:
            seen.append((piece, held, now))
            return 1

        def tick(self, held: int, now: float) -> int:
            seen.append((held, now))
            return 1

        def deadline(self) -> float | None:
            return 7.5

    stage = FlushStage(Watcher())
    assert stage.push("abc", 1.0) == "a"
    assert stage.push("d", 2.0) == "b"
    assert stage.tick(3.0) == "c"
    assert stage.deadline() == 7.5
    assert seen == [("abc", 3, 1.0), ("d", 3, 2.0), (2, 3.0)]
    assert stage.tick(4.0) == "d"
    assert stage.deadline() is None


def test_the_usual_way_hands_the_piece_on_as_it_is() -> None:
    piece = "a token"
    assert FlushStage(Immediate()).push(piece, 0.0) is piece


def test_a_policy_given_to_two_streams_is_not_shared() -> None:
    policy = EveryTokens(3)
    streams = [FlushStage(policy), FlushStage(policy)]
    for stage in streams:
        assert [stage.push(char, 0.0) for char in "abcd"] == ["a", "", "", "bcd"]
    assert policy == EveryTokens(3)
    held_back = HoldBack(["<end>"], flush=EveryTokens(2))
    for stage in (FlushStage(held_back), FlushStage(held_back)):
        assert [stage.push(piece, 0.0) for piece in ("<", "x", "y")] == ["", "", "<xy"]
    assert held_back == copy.deepcopy(held_back)


def test_a_policy_that_cannot_be_copied_is_refused_before_the_stream_starts() -> None:
    with pytest.raises(TypeError):
        FlushStage(Scripted([threading.Lock()]))


def test_no_policy_holds_more_than_the_limit() -> None:
    assert MAX_HELD == 1_048_576
    stage = FlushStage(Scripted([0]))
    assert stage.push("a" * (MAX_HELD - 1), 0.0) == ""
    assert stage.held == MAX_HELD - 1
    out = stage.push("b", 0.0)
    assert len(out) == MAX_HELD
    assert out[-2:] == "ab"
    assert stage.held == 0
    assert len(stage.push("c" * (MAX_HELD + 5), 0.0)) == MAX_HELD + 5
    assert stage.push("d", 0.0) == ""


def test_at_the_limit_even_a_hostile_policy_is_overruled() -> None:
    assert len(FlushStage(Scripted([-1])).push("a" * MAX_HELD, 0.0)) == MAX_HELD


def test_pieces_are_counted_as_they_come() -> None:
    stage = FlushStage(Scripted([0.5]))
    assert stage.push("abcd", 0.0) == "ab"
    assert (stage.taken, stage.held) == (4, 2)
    assert stage.push("ef", 0.0) == "cd"
    assert (stage.taken, stage.held) == (6, 2)
    assert stage.drain() == "ef"
    assert (stage.taken, stage.held) == (6, 0)


@given(clean_texts, st.lists(st.integers(0, 40), max_size=6))
def test_what_leaves_does_not_depend_on_how_often_nothing_came(text: str, places: list[int]) -> None:
    """Ticks at any time change when text leaves, never which."""
    pieces = [piece for piece in cut(text, [min(place, len(text)) for place in places]) if piece]
    stage = FlushStage(Within(1.0))
    out = ""
    for now, piece in enumerate(pieces):
        out += stage.push(piece, float(now))
        out += stage.tick(now + 0.25) + stage.tick(now + 0.75)
    assert out + stage.drain() == text


def test_a_count_gives_way_to_the_bound_exactly_where_it_is_reached() -> None:
    stage = FlushStage(EveryTokens(1000, first="policy"))
    assert stage.push("x" * (MAX_HELD - 1), 0.0) == ""
    assert len(stage.push("y", 0.0)) == MAX_HELD
    assert stage.held == 0


def test_what_is_held_without_asking_adds_to_what_is_held() -> None:
    stage = FlushStage(EveryTokens(9, first="policy"))
    assert stage.push("ab", 0.0) == ""
    stage.hold("c")
    assert (stage.held, stage.taken) == (3, 3)
    assert stage.drain() == "abc"
