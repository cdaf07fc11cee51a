"""TOML files of the tests, on every Python: 3.10 has no `tomllib`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["load_toml"]


def load_toml(path: Path) -> dict[str, Any]:
    """The tables of a file."""
    return tomllib.loads(path.read_text(encoding="utf-8"))
