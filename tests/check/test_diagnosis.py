"""Every row of the tables: what shows the fault, and what does not. Behind sockets: `test_endpoints`."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from streamguard.check.beside import BESIDE
from streamguard.check.diagnosis import CODES, diagnose
from streamguard.check.endings import ENDINGS
from streamguard.check.evidence import Evidence, Leave, Probe
from streamguard.check.fault import PAGES, Finding
from streamguard.check.observation import Observation
from streamguard.core.cursor import cursor_zero
from streamguard.core.dialect import OpenAI
from streamguard.core.negotiate import Answer as Promise
from streamguard.core.negotiate import write_answer
from streamguard.core.wire import Sse
from tests.check.faulty import chunk
from tests.check.seen import END, SSE, evidence, paced, seen
from tests.core.wire.streams import FAILURE, SID, written
from tests.modules import ROOT

GUARDED = {**SSE, "streamguard": write_answer(Promise(cursor_zero(SID), "openai", "sse"))}
ASKED_BY_1_0 = {**SSE, "streamguard": write_answer(Promise(cursor_zero(SID), "openai", "sse", http10=True))}
CODED = {**SSE, "content-encoding": "identity"}
ITEMS = [f"t{number} " for number in range(24)]
FRAMES = written(ITEMS, OpenAI(), Sse())
FAILED = written(ITEMS, OpenAI(), Sse(), fail=FAILURE)
TOKENS = paced()
TAIL = TOKENS[:-1]
LUMP = b"".join(piece for _, piece in TOKENS)
HEAD = b"".join(piece for _, piece in TAIL)
ERROR = b'data: {"error": {"message": "out  of\\nmemory"}}\n\n'


def guarded(frames: list[bytes] = FRAMES, **more: object) -> Observation:
    pieces = [(0.05 * number, frame) for number, frame in enumerate(frames)]
    return seen(*pieces, headers=GUARDED, **more)  # type: ignore[arg-type]


def asked_by_1_0(frames: list[bytes] = FRAMES) -> Observation:
    return seen(*[(0.05 * number, frame) for number, frame in enumerate(frames)], headers=ASKED_BY_1_0)


def front(name: str) -> dict[str, str]:
    return {**SSE, "server": name}


def probe(asked: float, answered: float | None, alone: float | None = 0.01) -> Probe:
    return Probe(asked, answered, 2.5, alone)


def selftest(*, clean: bool) -> Observation:
    return guarded(FAILED, clean=clean)


def plain() -> Observation:
    return seen(*TOKENS)


def left(leave: Leave) -> Evidence:
    return evidence(guarded(), selftest=selftest(clean=False), leave=leave)


def gzipped(run: Observation) -> Observation:
    run.headers = {**run.headers, "content-encoding": "gzip"}
    return run


# What was seen, and the codes of all that is found, faults first; of the usual notes those that a case is about.
USUAL = {"unguarded", "abort_unseen", "too_short"}
CASES: dict[str, tuple[Callable[[], Evidence], list[str]]] = {
    "in order": (lambda: evidence(guarded(), selftest=selftest(clean=False)), []),
    "whole, and not guarded": (lambda: evidence(plain()), ["unguarded", "abort_unseen"]),
    "too short": (lambda: evidence(guarded(written(["a"], OpenAI(), Sse()))), ["too_short"]),
    "damaged": (lambda: evidence(guarded([*FRAMES[:5], *FRAMES[6:]])), ["damaged"]),
    "stripped": (
        lambda: evidence(seen(*TOKENS, headers=GUARDED)), ["damaged"],
    ),
    "an error and then the marker": (
        lambda: evidence(seen(*TAIL, (2.0, ERROR), (2.0, END))), ["done_after_error"],
    ),
    "an error": (lambda: evidence(seen(*TAIL, (2.0, ERROR))), ["failed"]),
    "a guarded failure whose abort came": (lambda: evidence(guarded(FAILED, clean=False)), ["failed"]),
    "a guarded failure whose abort is lost": (lambda: evidence(guarded(FAILED)), ["failed", "abort_lost"]),
    "a guarded stream with a clean end in the middle": (lambda: evidence(guarded(FRAMES[:9])), ["abort_lost"]),
    "asked by HTTP/1.0": (lambda: evidence(asked_by_1_0()), ["http10"]),
    "asked by HTTP/1.0, and the abort comes": (
        lambda: evidence(asked_by_1_0(), selftest=selftest(clean=False)), [],
    ),
    "asked by HTTP/1.0, and the abort is lost": (
        lambda: evidence(asked_by_1_0(), selftest=selftest(clean=True)), ["abort_lost"],
    ),
    "asked by HTTP/1.0, and failed": (lambda: evidence(asked_by_1_0(FAILED)), ["failed", "abort_lost"]),
    "a selftest whose abort is lost": (lambda: evidence(guarded(), selftest=selftest(clean=True)), ["abort_lost"]),
    "a selftest that is refused": (lambda: evidence(guarded(), selftest=seen(status=404)), ["abort_unseen"]),
    "idle, broken off": (
        lambda: evidence(seen(*TAIL, end=7.0, clean=False, why="closed")), ["idle_cut"],
    ),
    "idle, with a clean end": (lambda: evidence(seen(*TAIL, end=62.0)), ["idle_cut"]),
    "idle before anything": (lambda: evidence(seen(head=None, end=60.0, clean=False)), ["idle_cut"]),
    "504 after a while": (lambda: evidence(seen(head=60.0, status=504)), ["idle_cut"]),
    "504 at once": (lambda: evidence(seen(status=504)), []),
    "silent": (lambda: evidence(seen(*TAIL, end=60.0, clean=False, silent=True)), ["stalled"]),
    "cut": (lambda: evidence(seen(*TAIL, clean=False, why="reset")), ["cut"]),
    "slow tokens, and cut": (
        lambda: evidence(seen((0.0, TAIL[0][1]), (2.0, TAIL[1][1]), (4.0, TAIL[2][1]), end=6.0, clean=False)),
        ["cut"],
    ),
    "a tail lost": (lambda: evidence(seen(*TAIL)), ["tail_lost"]),
    "a torn event": (lambda: evidence(seen(*TAIL, (2.0, chunk("x").encode()[:-1]))), ["tail_lost"]),
    "a text that is another's beginning": (
        lambda: evidence(seen(*paced(20)), seen(*paced(24))), ["tail_lost"],
    ),
    "two texts that differ": (
        lambda: evidence(seen(*paced(24)), seen(*paced(24, start=0.1), (2.0, b""))), [],
    ),
    "a marker without a reason": (
        lambda: evidence(seen(*TAIL, (2.0, b"data: [DONE]\n\n"))), ["done_without_reason"],
    ),
    "a reason without a marker": (
        lambda: evidence(seen(*TAIL, (2.0, chunk(reason="stop").encode()))), ["missing_terminal"],
    ),
    "text": (
        lambda: evidence(seen((0.1, b"a"), headers={**SSE, "content-type": "text/plain"})),
        ["missing_terminal"],
    ),
    "a later answer is refused": (lambda: evidence(plain(), seen(status=503)), ["refused"]),
    "held back to the end": (lambda: evidence(seen((1.2, LUMP))), ["held_back"]),
    "held back in lumps": (
        lambda: evidence(seen((0.1, LUMP[: len(LUMP) // 2]), (1.2, LUMP[len(LUMP) // 2 :]))),
        ["held_back"],
    ),
    "held back to the end, and passed on in two pieces": (
        lambda: evidence(seen((1.0, LUMP[: len(LUMP) // 2]), (1.02, LUMP[len(LUMP) // 2 :]))), ["held_back"],
    ),
    "held back, and its tail lost": (
        lambda: evidence(seen((1.0, HEAD[: len(HEAD) // 2]), (1.02, HEAD[len(HEAD) // 2 :]))),
        ["tail_lost", "held_back"],
    ),
    "slow, and several tokens at once": (
        lambda: evidence(seen((0.05, LUMP[: len(LUMP) // 2]), (0.09, LUMP[len(LUMP) // 2 :]), end=0.5)), [],
    ),
    "made at once": (lambda: evidence(seen((0.1, LUMP), end=2.0)), []),
    "held back by compression": (
        lambda: evidence(gzipped(seen((1.2, LUMP))), plain=plain()), ["held_by_compression"],
    ),
    "compressed, and held back without it too": (
        lambda: evidence(gzipped(seen((1.2, LUMP))), plain=seen((1.2, LUMP))), ["held_back"],
    ),
    "blocking": (lambda: evidence(plain(), probe=probe(0.1, 1.3)), ["blocking"]),
    "blocking, and never answered": (
        lambda: evidence(seen((1.2, LUMP)), probe=probe(0.1, None)), ["blocking"],
    ),
    "a slow server": (lambda: evidence(plain(), probe=probe(0.1, 1.3, 0.5)), []),
    "a server that answers nobody ever": (
        lambda: evidence(plain(), probe=probe(0.1, None, None)), [],
    ),
    "others served meanwhile": (lambda: evidence(plain(), probe=probe(0.1, 0.6)), []),
    "left, and it ran on": (
        lambda: left(Leave("seen", 1.0, 2.0)), ["leave_ignored"],
    ),
    "left, and it ran to its end": (
        lambda: left(Leave("seen", 1.0, 2.0, 0.9)), ["leave_ignored"],
    ),
    "left, and it stopped": (
        lambda: left(Leave("seen", 1.0, 2.0, 0.2)), [],
    ),
    "left, and it may be resumed": (
        lambda: left(Leave("s", 1.0, 2.0, resumable=True)), ["runs_on"],
    ),
    "left, and nothing tells": (
        lambda: left(Leave("", 1.0, 0.0, why_not="no page")),
        ["leave_unseen"],
    ),
    "left, and too short": (
        lambda: left(Leave("seen", 0.1, 2.0)), ["leave_unseen"],
    ),
    "not framed": (
        lambda: evidence(seen(*TOKENS, headers={"content-type": "text/event-stream"}, version="HTTP/1.0")),
        ["unframed"],
    ),
    "called text": (
        lambda: evidence(seen(*TOKENS, headers={**SSE, "content-type": "text/plain"})),
        ["mislabelled"],
    ),
    "a long silence": (
        lambda: evidence(seen(*TAIL, (30.0, END))), ["silence"],
    ),
    "a long silence with signs of life": (
        lambda: evidence(seen(*TAIL, (10.0, b": hb\n"), (20.0, END))), [],
    ),
    "cut behind its end": (
        lambda: evidence(seen(*TOKENS, clean=False, why="reset")), ["cut_behind"],
    ),
    "left by its own limit": (lambda: evidence(seen(*TAIL, clean=False, left=True)), ["end_unseen"]),
    "left behind its end": (lambda: evidence(seen(*TOKENS, clean=False, left=True)), []),
    "left behind its error": (lambda: evidence(seen(*TAIL, (2.0, ERROR), clean=False, left=True)), ["failed"]),
    "no HTTP/2": (lambda: evidence(guarded(), selftest=selftest(clean=False), offered_http2=False), ["http1_only"]),
    "nothing": (lambda: evidence(seen(status=404)), []),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_was_seen_shows_this_and_nothing_else(name: str) -> None:
    make, codes = CASES[name]
    said = [finding.code for finding in diagnose(make())]
    assert [code for code in said if code in codes or code not in USUAL] == codes


def test_every_row_is_shown_by_a_case() -> None:
    assert {code for _, codes in CASES.values() for code in codes} == set(CODES)


def test_the_reference_lists_every_finding_with_its_kind() -> None:
    page = (ROOT / "docs" / "reference" / "command-line.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[a-z0-9_`, ]+`) \| (fault|warning|note) \|", page, re.MULTILINE)
    listed = {code: kind for codes, kind in rows for code in re.findall(r"\w+", codes)}
    assert listed == {row.code: row.severity for row in (*ENDINGS, *BESIDE)}


def anchors(page: str) -> set[str]:
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    titles = [line.lstrip("# ").lower() for line in lines if line.startswith("#")]
    return {re.sub(r"[^\w -]", "", title).replace(" ", "-") for title in titles}


def findings() -> list[Finding]:
    return [finding for make, _ in CASES.values() for finding in diagnose(make())]


def test_every_finding_is_in_words_and_every_fault_ends_with_a_setting_and_a_page() -> None:
    for finding in findings():
        assert re.fullmatch(r"[A-Z0-9].*\.", finding.words, re.DOTALL), finding
        assert "\n" not in finding.words
        if finding.severity != "note":
            assert finding.setting, finding
            assert finding.page, finding


@pytest.mark.parametrize("server", ["nginx/1.22.1", "uvicorn"])
@pytest.mark.parametrize("version", ["HTTP/1.1", "HTTP/2"])
def test_every_page_that_is_named_is_there(server: str, version: str) -> None:
    for page in PAGES.values():
        assert (ROOT / page).is_file(), page
    run = seen(*TAIL, headers={**GUARDED, "server": server}, version=version)
    run.end = guarded(FRAMES[:9]).end
    [lost, *_] = diagnose(evidence(run))
    page, _, anchor = lost.page.partition("#")
    assert lost.code == "abort_lost"
    assert not anchor or anchor in anchors(page)
    assert ("HAProxy" in lost.setting) == (version == "HTTP/2")


def found(code: str, what: Evidence) -> Finding:
    return next(finding for finding in diagnose(what) if finding.code == code)


def test_what_has_no_place_for_an_end_is_not_told_to_send_one() -> None:
    text = seen((0.1, b"a"), headers={**SSE, "content-type": "text/plain"})
    events = seen(*TAIL, (2.0, chunk(reason="stop").encode()))
    told = found("missing_terminal", evidence(text)).setting
    assert told.startswith("in the endpoint: plain text has no place for an end")
    assert told.endswith("--repeat 5 shows whether answers differ in length")
    assert "one last event that says so" in found("missing_terminal", evidence(events)).setting
    assert "--repeat" not in found("missing_terminal", evidence(events, events)).setting


def test_the_setting_is_that_of_what_stands_in_front() -> None:
    for server in ("nginx/1.22.1", "openresty"):
        held = found("held_back", evidence(seen((1.2, LUMP), headers=front(server))))
        assert held.setting.startswith("nginx: either proxy_buffering off, or the header X-Accel-Buffering: no in the")
        idle = found("idle_cut", evidence(seen(*TAIL, end=9.0, headers=front(server))))
        assert idle.setting.startswith("nginx: proxy_read_timeout")
    assert found("held_back", evidence(seen((1.2, LUMP)))).setting.startswith("response buffering of each layer")


@pytest.mark.parametrize("named", [{"server": "nginx/1.22.1"}, {"server": "cloudflare", "via": "1.1 nginx"}])
def test_behind_nginx_a_lost_tail_may_be_a_server_that_broke_off(named: dict[str, str]) -> None:
    torn = (2.0, chunk("x").encode()[:-1])
    for pieces in (TAIL, [*TAIL, torn]):
        lost = found("tail_lost", evidence(seen(*pieces, headers={**SSE, **named})))
        assert lost.words.endswith("or the server broke off, and nginx made that a clean end.")
        assert lost.setting.startswith("nginx: proxy_http_version 1.1")
        assert "send what is held before the body ends" in lost.setting
        plain = found("tail_lost", evidence(seen(*pieces, headers=front("uvicorn"))))
        assert "nginx" not in plain.words + plain.setting


def test_asked_by_http_1_0_the_setting_is_that_of_what_asks() -> None:
    plain = asked_by_1_0()
    named = seen(*[(0.05, frame) for frame in FRAMES], headers={**ASKED_BY_1_0, "server": "nginx"})
    assert found("http10", evidence(named)).setting.startswith("nginx: proxy_http_version 1.1")
    assert found("http10", evidence(plain)).setting.startswith("the layer that asks the server: HTTP/1.1; nginx: ")


def test_lines_are_not_told_of_the_proxy_which_has_no_place_in_them_for_a_cursor() -> None:
    lines = seen((0.1, b'{"text": "a"}\n{"done": true}\n'), headers={**SSE, "content-type": "application/x-ndjson"})
    assert found("unguarded", evidence(lines)).setting == "@guarded on the endpoint"


def test_limits_that_many_have_are_named() -> None:
    assert "60 s is the limit of nginx" in found("idle_cut", evidence(seen(*TAIL, end=61.25))).words
    assert "29 s is the limit of AWS API Gateway" in found(
        "cut", evidence(seen(*paced(100, 0.29, b"")[:-1], end=29.1, clean=False))
    ).words
    assert "limit of" not in found("idle_cut", evidence(seen(*TAIL, end=8.0))).words


def test_what_was_left_says_after_how_long() -> None:
    assert found("end_unseen", evidence(seen(*TAIL[:4], end=1.002, clean=False, left=True))).words == (
        "The answer was left after 1 s: its end was not seen."
    )
    three = evidence(plain(), *(seen(*TAIL[:4], end=1.3, clean=False, left=True) for _ in range(2)))
    assert found("end_unseen", three).words.endswith("after 1.3 s: its end was not seen (in 2 of 3 answers).")


def test_an_endpoint_that_cannot_be_changed_is_told_of_the_proxy() -> None:
    text = seen((0.1, b"a"), headers={**SSE, "content-type": "text/plain"})
    for code, what in (
        ("unguarded", evidence(plain())), ("tail_lost", evidence(seen(*TAIL))),
        ("missing_terminal", evidence(seen(*TAIL, (2.0, chunk(reason="stop").encode())))),
    ):  # fmt: skip
        assert "or `streamguard proxy` in front of the server" in found(code, what).setting
    assert "proxy" not in found("missing_terminal", evidence(text)).setting  # which it passes as it is


def test_with_several_answers_a_fault_says_in_how_many() -> None:
    lost = found("tail_lost", evidence(seen(*TAIL), plain(), seen(*TAIL)))
    assert lost.words.endswith("(in 2 of 3 answers).")
