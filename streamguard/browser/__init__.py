"""The JavaScript client, for browsers and for Node from 18 on: three files, which nothing builds.

    streamguard.js      the client, one ES module without dependencies
    streamguard.d.ts    its types
    package.json        makes this folder a package for npm: `npm install FOLDER`

`guard.install(app, "/streams")` serves the module as `/streams/streamguard.js`. An application without these endpoints
serves the file as it serves its own: its place is `SCRIPT`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

__all__ = ["SCRIPT"]

SCRIPT: Final = Path(__file__).with_name("streamguard.js")
