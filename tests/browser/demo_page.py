"""The demo page in Chromium: what its parts show, and its picture for the README.

    python -m tests.browser.demo_page        writes docs/demo-page.png anew
"""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import anyio
from PIL import Image  # which matplotlib brings

from streamguard.demo.web import TEXT, demo_page
from tests.adapters.servers import Gate, serving
from tests.clients.browser import Page, chromium
from tests.modules import ROOT

__all__ = ["draw", "press", "shown", "wait_for"]

PICTURE: Final = ROOT / "docs" / "demo-page.png"
_WIDTH, _HEIGHT = 1040, 760
_STANDS = "terabytes. "  # its last word before the cut, behind which it reads as finished
_COLOURS = 96  # of the picture: the grounds, and the edges of letters


def shown(page: Page) -> dict[str, Any]:
    """The text of each part of the page that says something: `guarded.state`, `unguarded.answer`, `events`."""
    found: dict[str, Any] = page.evaluate(
        """() => Object.fromEntries([
          ...[...document.querySelectorAll("[data-part]")].map((part) => [
            `${part.closest("section").id}.${part.dataset.part}`,
            part.checkVisibility() ? part.textContent : null,
          ]),
          ["events", [...document.querySelectorAll("#events span")].map((line) => line.textContent)],
        ])"""
    )
    return found


def press(page: Page, button: str) -> None:
    """A button, by its id."""
    page.evaluate("(id) => document.getElementById(id).click()", button)


def wait_for(page: Page, condition: str) -> None:
    """Until an expression of the page is true. `of("guarded.state")` in it is the text of that part."""
    page.evaluate(
        f"""() => new Promise((resolve) => {{
          const of = (name) => {{
            const [side, part] = name.split(".");
            return document.querySelector(`#${{side}} [data-part="${{part}}"]`).textContent;
          }};
          const look = () => ({condition} ? resolve() : setTimeout(look, 10));
          look();
        }})"""
    )


def draw(page: Page, gate: Gate, path: Path) -> None:
    """A picture of an answer that was cut where it stood, before `gate`."""
    page.size(_WIDTH, _HEIGHT)
    press(page, "start")
    for side in ("unguarded", "guarded"):
        wait_for(page, f'of("{side}.answer").endsWith({_STANDS!r})')
    press(page, "cut")
    wait_for(page, 'of("unguarded.state") === "Finished"')
    gate.open()
    wait_for(page, 'of("guarded.state") === "Complete, verified"')
    page.picture(path)
    Image.open(path).quantize(_COLOURS).save(path, optimize=True)


def main() -> int:
    gate = Gate()

    async def tokens(run: str) -> AsyncIterator[str]:
        for token in re.findall(r"\S+\s*", TEXT):
            yield token
            await anyio.sleep(0.03)
            if token == _STANDS:
                await gate

    with chromium() as browser, serving(demo_page(tokens)) as server, browser.page(f"{server.url}/") as page:
        draw(page, gate, PICTURE)
    print(f"{PICTURE.relative_to(ROOT)}: {PICTURE.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
