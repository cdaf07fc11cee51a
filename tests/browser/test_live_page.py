"""The live page in Chromium: what it shows of open streams and of those that went wrong, and how it is used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.adapters.servers import serving
from tests.adapters.test_dashboard import PASSWORD, starlette_app
from tests.browser.live_page import Live, Opened, opened
from tests.browser.test_demo_page import CONTRASTS
from tests.clients.browser import Browser
from tests.proofs.live_page import watched

LABEL = "<img src=x onerror=document.title='run'>"


@pytest.fixture(scope="module")
def live(browser: Browser) -> Iterator[Opened]:
    """A page of streams that are still, and of one that failed: its request's name is markup."""
    with opened(browser, gap=0.01, period=0.1) as page:
        with page.server.connect() as connection:
            connection.get("/answer", x_request_id=LABEL)
            connection.until(b"token 3")
        page.wait_for('of("Abnormal") === "1"')
        page.streams.made.clear()
        yield page


def test_its_figures_are_what_the_streams_made_and_it_does_not_fall_behind(browser: Browser) -> None:
    with opened(browser, gap=0.02, period=0.05) as page:
        page.start(10)
        page.start(6, "/answer?fails", "fails")
        page.wait_for('of("Open") === "16"')
        for _ in range(4):
            page.next_picture()
        page.streams.still.open()
        assert page.differences() == []
        page.wait_for("Number(document.documentElement.dataset.number) >= value", page.streams.live.number)
        page.end()
        page.wait_for('of("Parts ended") === "16" && of("Open") === "0"')
        shown = page.shown
    assert (shown["open"], shown["figures"]["Abnormal"]) == ([], "6")
    ended = Counter((row[2], row[3], row[6].partition("-")[0]) for row in shown["abnormal"])
    assert ended == {("failed", "source_error", "fails"): 6}


def test_the_proof_sees_what_the_page_shows(browser: Browser) -> None:
    found = watched(browser, 5, 2, readers=0, gap=0.02, period=0.2, hung=0.01)
    assert (len(found.behind), len(found.heap), found.differences) == (2, 2, [])
    assert found.tokens > 0


def test_a_stream_in_a_log_has_a_row_for_its_generation_and_one_for_its_reader(browser: Browser) -> None:
    with opened(browser, gap=0.02, period=0.05) as page:
        page.start(1, "/chat")
        page.wait_for('of("Open") === "1" && of("Readers of logs") === "1"')
        rows = page.shown["open"]
    assert sorted(row[2] for row in rows) == ["producer", "reader"]
    assert len({row[0] for row in rows}) == 1


def test_a_label_that_is_markup_is_text(live: Opened) -> None:
    assert live.shown["abnormal"][0][6] == LABEL
    found = live.page.evaluate("() => [document.title, document.querySelectorAll('table *:not(div) > img').length]")
    assert found == ["Streams, live · streamguard", 0]


def test_its_parts_have_names_one_of_them_speaks_and_nothing_comes_from_elsewhere(live: Opened) -> None:
    found = live.page.evaluate("""() => ({
      unnamed: [...document.querySelectorAll("section, [role=region]")].filter((part) =>
        !document.getElementById(part.getAttribute("aria-labelledby"))?.textContent).length,
      live: [...document.querySelectorAll("[aria-live], output, [role=status], [role=alert], [role=log]")]
        .map((part) => `${part.id} ${part.role}`),
      heads: [...document.querySelectorAll("th:not([scope])")].length,
      headings: [...document.querySelectorAll("h1, h2, h3")].map((heading) => heading.tagName).join(" "),
      elsewhere: performance.getEntriesByType("resource").filter(({ name }) => !name.startsWith(location.origin)),
    })""")
    assert found == {
        "unnamed": 0, "live": ["state status"], "heads": 0, "headings": "H1 H2 H2 H2 H2", "elsewhere": []
    }  # fmt: skip


def test_it_is_paused_and_narrowed_by_keyboard_alone(live: Opened) -> None:
    def focus(*keys: str) -> Any:
        for key in keys:
            live.page.press(key)
        return live.page.evaluate(
            "() => [document.activeElement.id, getComputedStyle(document.activeElement).outlineStyle]"
        )

    live.start(1)
    live.wait_for('of("Open") === "1"')
    assert focus("Tab") == ["pause", "solid"]
    focus("Enter")
    held = live.page.evaluate("() => document.documentElement.dataset.number")
    seen = live.streams.live.number
    while live.streams.live.number < seen + 3:
        live.page.evaluate("() => new Promise(requestAnimationFrame)")
    assert live.page.evaluate("() => document.documentElement.dataset.number") == held
    focus("Enter")
    live.next_picture()
    assert focus("Tab") == ["quiet", "solid"]
    focus("Space")
    live.wait_for('document.getElementById("listed").textContent === "0 of 1"')
    focus("Space")
    live.wait_for('document.getElementById("listed").textContent === "1"')


MARKED = f"""(mark) => {{
  for (const place of document.querySelectorAll("tbody tr, .figures > div, .state")) place.dataset.mark = mark;
  return ({CONTRASTS})();
}}"""


def test_in_both_schemes_each_text_stands_out_and_a_phone_scrolls_in_one_direction(live: Opened) -> None:
    live.page.size(320, 568)
    contrasts: dict[str, float] = {}
    for scheme in ("light", "dark"):
        live.page.media(colorScheme=scheme)
        for mark in ("", "waits", "bad"):
            contrasts |= live.page.evaluate(MARKED, mark)
    assert len(contrasts) >= 12
    assert {pair: value for pair, value in contrasts.items() if value < 4.5} == {}
    assert live.page.evaluate("""() => ({
      wide: document.documentElement.scrollWidth,
      small: [...document.querySelectorAll("button, label")].map((each) => each.getBoundingClientRect())
        .filter(({ width, height }) => Math.min(width, height) < 44).length,
    })""") == {"wide": 320, "small": 0}


def test_a_feed_that_ended_is_asked_for_again(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamguard.adapters.dashboard._ASKED_AGAIN", 0.1)
    with opened(browser, period=0.05) as page:
        asked = "performance.getEntriesByType('resource').filter(({ name }) => name.endsWith('/feed')).length"
        page.wait_for(f"{asked} >= 2")
        page.next_picture()
        page.streams.guard.drain(60.0)
        page.wait_for('document.getElementById("state").textContent.startsWith("No connection")')


def test_a_browser_that_knows_the_password_has_the_page_and_its_feed(browser: Browser) -> None:
    app, _ = starlette_app(Live(password=PASSWORD, period=0.05))
    with serving(app) as server:
        address = server.url.replace("//", f"//me:{PASSWORD.replace(' ', '%20')}@")
        with browser.page(f"{address}/streams/dashboard") as page:
            Opened(page, None, server, []).next_picture()  # type: ignore[arg-type]
