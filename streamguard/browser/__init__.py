"""The JavaScript client, for browsers and for Node from 18 on, and the look of the pages: files that nothing builds.

    streamguard.js      the client, one ES module without dependencies
    streamguard.d.ts    its types
    package.json        makes this folder a package for npm: `npm install FOLDER`
    page.css            what the demo's page and the live page look like, before the sheet of each

`guard.install(app, "/streams")` serves the module as `/streams/streamguard.js`. An application without these endpoints
serves the file as it serves its own: its place is `SCRIPT`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

__all__ = ["SCRIPT", "style_of"]

SCRIPT: Final = Path(__file__).with_name("streamguard.js")
_STYLE: Final = Path(__file__).with_name("page.css")


def style_of(sheet: Path) -> bytes:
    """The whole style of a page of ours: what all have in common, and its own `sheet` behind it, which may differ."""
    return _STYLE.read_bytes() + b"\n" + sheet.read_bytes()
