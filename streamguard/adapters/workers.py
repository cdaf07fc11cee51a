"""How many workers a server was started with, as far as a worker can see: its command line, and its environment.

Spawned and forked workers have the command line of the process that they come from. A count that stands only in a
program's own code, or in a configuration file, is not seen.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Final

__all__ = ["declared_workers"]

_SERVERS: Final = frozenset({"fastapi", "granian", "gunicorn", "hypercorn", "uvicorn"})
_OPTION: Final = re.compile(r"(?:--workers=?|-w)(\d+)?", re.ASCII)
_VARIABLES: Final = ("WEB_CONCURRENCY", "UVICORN_WORKERS", "GRANIAN_WORKERS")


def declared_workers(argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    """The number; 1 where none is found. By default of this process's own command line and environment."""
    argv = sys.argv if argv is None else argv
    environ = os.environ if environ is None else environ
    program = PurePath(argv[0]) if argv else PurePath()
    if not _SERVERS & {program.stem, program.parent.name}:  # /bin/uvicorn, or …/uvicorn/__main__.py
        return 1
    for at, word in enumerate(argv):
        found = _OPTION.fullmatch(word)
        number = None if found is None else found[1] or "".join(argv[at + 1 : at + 2])
        if number is not None and number.isascii() and number.isdigit():
            return int(number)
    numbers = [environ.get(name, "") for name in _VARIABLES]
    return max([int(number) for number in numbers if number.isascii() and number.isdigit()], default=1)
