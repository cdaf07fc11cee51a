"""The demo page in Chromium: two readers of one answer, whose connections are cut and stalled."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import attrs
import pytest

from streamguard.demo.web import demo_page
from tests.adapters.servers import Gate, serving
from tests.browser.demo_page import press, shown, wait_for
from tests.clients.browser import Browser, Page

FIRST, REST = ("Yes, ", "delete it. ", "<b>Three</b> &amp; "), ("things ", "come ", "first: ", "<img src=x onerror=x>")
TEXT = "".join(FIRST + REST)


class Stage:
    """A server whose answers stand behind their first tokens until `gate` is opened."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.generated: list[str] = []  # the runs for which an answer was made
        self.url = ""

    async def tokens(self, run: str) -> AsyncIterator[str]:
        self.generated.append(run)
        gate = self.gate
        for token in FIRST:
            yield token
        await gate
        for token in REST:
            yield token


@attrs.define
class Opened:
    """A page of a server."""

    page: Page
    gate: Gate
    generated: list[str]

    def start(self) -> None:
        press(self.page, "start")
        self.wait_for_both("".join(FIRST))

    def wait_for_both(self, text: str) -> None:
        for side in ("unguarded", "guarded"):
            wait_for(self.page, f"of('{side}.answer') === {text!r}")


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    stage = Stage()
    # Else a client that was cut would wait for longer.
    with patch("streamguard.core.wire.sse._RETRY_MS", 10), serving(demo_page(stage.tokens)) as server:
        stage.url = server.url
        yield stage


@contextmanager
def opened(browser: Browser, stage: Stage) -> Iterator[Opened]:
    stage.gate, stage.generated = Gate(), []
    with browser.page(f"{stage.url}/") as page:
        yield Opened(page, stage.gate, stage.generated)
    stage.gate.open()


@pytest.fixture
def demo(browser: Browser, stage: Stage) -> Iterator[Opened]:
    with opened(browser, stage) as demo:
        yield demo


def test_of_a_cut_answer_the_one_shows_a_finished_beginning_and_the_other_all_of_it_with_its_receipt(
    demo: Opened,
) -> None:
    demo.start()
    press(demo.page, "cut")
    wait_for(demo.page, "of('unguarded.state') === 'Finished'")
    demo.gate.open()
    wait_for(demo.page, "of('guarded.state') === 'Complete, verified'")
    found = shown(demo.page)
    assert (found["unguarded.answer"], found["unguarded.lost-text"]) == ("".join(FIRST), "".join(REST))
    assert found["guarded.answer"] == TEXT
    receipt = re.fullmatch(r"COMPLETE, 8 frames, crc ([0-9a-f]{8}), 1 resume", found["guarded.receipt"])
    assert receipt is not None
    assert found["guarded.verified"] == f"8 frames, checksum {receipt[1]}"
    assert found["guarded.resumed"] == "once, nothing came twice"
    assert found["unguarded.receipt"] == f"none: {len(''.join(REST))} characters of the answer are missing"
    assert [line.split(":")[0] for line in found["events"]] == [
        "Started", "Connections cut.", "Unguarded", "Guarded", "Guarded",
        f"Unguarded lacks {len(''.join(REST))} characters, and shows no sign of it.",
    ]  # fmt: skip
    assert len(demo.generated) == 2
    assert len(set(demo.generated)) == 1


def test_of_a_stalled_answer_the_one_waits_and_the_other_goes_on_elsewhere_and_a_second_start_is_a_new_run(
    demo: Opened,
) -> None:
    demo.start()
    press(demo.page, "stall")
    wait_for(demo.page, "performance.getEntriesByType('resource').some(({ name }) => name.includes('do=stall'))")
    demo.gate.open()
    wait_for(demo.page, "of('guarded.state') === 'Complete, verified'")
    wait_for(demo.page, "of('unguarded.state').startsWith('Silent for ')")
    stalled = shown(demo.page)
    press(demo.page, "cut")
    wait_for(demo.page, "of('unguarded.state') === 'Finished'")
    ended = shown(demo.page)
    press(demo.page, "start")
    wait_for(demo.page, "of('guarded.receipt').startsWith('COMPLETE') && of('unguarded.state') === 'Finished'")
    again = shown(demo.page)
    assert (stalled["unguarded.answer"], stalled["guarded.answer"]) == ("".join(FIRST), TEXT)
    assert stalled["unguarded.lost-name"] == "It waits for this, with no end in sight"
    assert ended["unguarded.lost-name"] == "Never came, and this reader was not told"
    assert (again["unguarded.answer"], again["guarded.answer"]) == (TEXT, TEXT)
    assert (again["unguarded.lost"], again["guarded.resumed"]) == (None, "not needed so far")
    assert len(set(demo.generated)) == 2


FOCUS = """() => {
  const has = document.activeElement;
  return [has.id || has.textContent.trim(), getComputedStyle(has).outlineStyle, has.getAttribute("aria-disabled")];
}"""


def test_it_is_used_by_keyboard_alone_and_what_is_off_keeps_the_focus(demo: Opened) -> None:
    def focus(*keys: str) -> Any:
        for key in keys:
            demo.page.press(key)
        return demo.page.evaluate(FOCUS)

    assert focus("Tab") == ["start", "solid", None]
    assert focus("Tab", "Enter") == ["cut", "solid", "true"]
    assert shown(demo.page)["events"] == []
    assert focus("Shift+Tab", "Enter") == ["start", "solid", None]
    demo.wait_for_both("".join(FIRST))
    assert focus("Tab") == ["cut", "solid", "false"]
    assert focus("Space") == ["cut", "solid", "false"]
    wait_for(demo.page, "of('unguarded.state') === 'Finished'")
    demo.gate.open()
    wait_for(demo.page, "of('guarded.state') === 'Complete, verified'")
    assert focus() == ["cut", "solid", "true"]
    assert focus("Tab")[0] == "stall"
    assert focus("Tab", "Enter")[0] == "How it is read"
    found = shown(demo.page)
    assert "await fetch(url, options)" in found["unguarded.code"]
    assert found["guarded.code"] is None  # still shut


# Every text beside the ground that it stands on, as WCAG 2 counts contrast; buttons' edges are not text.
CONTRASTS = """() => {
  const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [0.2126 * r, 0.7152 * g, 0.0722 * b].reduce((sum, part) => sum + part, 0);
  const linear = (part) => ((part /= 255) <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  const luminance = (colour) => light(channels(colour).slice(0, 3).map(linear));
  const ground = (place) => {
    const colour = getComputedStyle(place).backgroundColor;
    return (channels(colour)[3] ?? 1) > 0 || !place.parentElement ? colour : ground(place.parentElement);
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = {};
  const note = (place, colour) => {
    const [low, high] = [luminance(colour), luminance(ground(place))].sort((one, other) => one - other);
    found[`${colour} on ${ground(place)}`] = (high + 0.05) / (low + 0.05);
  };
  while (texts.nextNode()) {
    const place = texts.currentNode.parentElement;
    if (texts.currentNode.data.trim() && place.checkVisibility()) note(place, getComputedStyle(place).color);
  }
  for (const button of document.querySelectorAll("button")) note(button, getComputedStyle(button).color);
  return found;
}"""
AS = """(state) => {
  document.querySelectorAll("details").forEach((details) => (details.open = true));
  document.getElementById("guarded").dataset.state = state;
  document.getAnimations().forEach((animation) => animation.finish());
}"""
MOVES = "() => document.getAnimations().length > 0"


@pytest.fixture(scope="module")
def finished(browser: Browser, stage: Stage) -> Iterator[Page]:
    """A page of 320 pixels whose answer was cut, and is there."""
    with opened(browser, stage) as demo:
        demo.page.size(320, 568)
        demo.start()
        moving = []
        for motion in ("no-preference", "reduce"):
            demo.page.media(reducedMotion=motion)
            moving.append(demo.page.evaluate(MOVES))
        assert moving == [True, False]  # only here, while it streams, is there anything that moves
        press(demo.page, "cut")
        wait_for(demo.page, "of('unguarded.state') === 'Finished'")
        demo.gate.open()
        wait_for(demo.page, "of('guarded.state') === 'Complete, verified'")
        demo.page.evaluate(AS, "whole")
        yield demo.page


def test_in_both_schemes_each_text_stands_out_in_every_state(finished: Page) -> None:
    grounds: list[str] = []
    contrasts: dict[str, float] = {}
    for scheme in ("light", "dark"):
        finished.media(colorScheme=scheme)
        grounds.append(finished.evaluate("() => getComputedStyle(document.body).backgroundColor"))
        for state in ("waiting", "broken", "done", "reading", "whole"):
            finished.evaluate(AS, state)
            contrasts |= finished.evaluate(CONTRASTS)
    assert grounds[0] != grounds[1]
    assert len(contrasts) > 12
    assert {pair: value for pair, value in contrasts.items() if value < 4.5} == {}


def test_a_phone_scrolls_in_one_direction_and_nothing_is_scrolled_to_under_the_buttons(finished: Page) -> None:
    found = finished.evaluate("""() => {
      const sizes = [...document.querySelectorAll("button")].map((button) => button.getBoundingClientRect());
      const last = [...document.querySelectorAll("summary")].pop();
      last.scrollIntoView({ block: "end" });
      const rights = [...document.querySelectorAll("main *")].map((place) => place.getBoundingClientRect().right);
      return {
        wide: [document.documentElement.scrollWidth, ...rights].filter((right) => Math.floor(right) > 320),
        small: sizes.filter(({ width, height }) => Math.min(width, height) < 44).length,
        free: last.getBoundingClientRect().bottom <= Math.min(...sizes.map(({ top }) => top)),
      };
    }""")
    assert found == {"wide": [], "small": 0, "free": True}


def test_its_parts_have_names_one_of_them_speaks_and_nothing_comes_from_elsewhere(finished: Page) -> None:
    found = finished.evaluate("""() => ({
      unnamed: [...document.querySelectorAll("section, [role]")].filter((part) =>
        !part.ariaLabel && !document.getElementById(part.getAttribute("aria-labelledby"))?.textContent).length,
      live: [...document.querySelectorAll("[aria-live], output, [role=status], [role=alert], [role=log]")]
        .map((part) => part.role),
      inside: document.querySelectorAll(".answer *, .lost p *").length,
      headings: [...document.querySelectorAll("h1, h2, h3")].map((heading) => heading.tagName).join(" "),
      elsewhere: performance.getEntriesByType("resource").filter(({ name }) => !name.startsWith(location.origin)),
    })""")
    expected = {"unnamed": 0, "live": ["log"], "inside": 0, "headings": "H1 H2 H3 H2 H2", "elsewhere": []}
    assert found == expected
