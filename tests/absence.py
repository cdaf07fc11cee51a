"""Skips for absence: what a test needs that this machine does not have, and the line that installs it.

A skip for absence is honest on a laptop and a lie in CI, where everything must have been tried. So
every such skip goes through `require`, and with STREAMGUARD_CI=1 the session turns skips into
failures (see `conftest.py`).
"""

from __future__ import annotations

import importlib.util
import os
import shutil

import pytest

__all__ = ["IN_CI", "absent", "require"]

IN_CI = os.environ.get("STREAMGUARD_CI") == "1"


def absent(tool: str) -> bool:
    """Whether `tool` is neither a command on PATH nor an importable module."""
    if shutil.which(tool) is not None:
        return False
    try:
        return importlib.util.find_spec(tool) is None
    except (ModuleNotFoundError, ValueError):
        return True


def require(tool: str, install: str) -> None:
    """Skip the test, or at module level all of them, unless `tool` is there. `install` is the line that brings it."""
    if absent(tool):
        pytest.skip(f"absent: {tool} (install it with: {install})", allow_module_level=True)
