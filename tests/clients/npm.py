"""The npm packages that tests use: those of `js/package.json`, installed once a machine, outside of the checkout.

The folder bears a digest of what is to be in it, so that another version of the list makes another folder. It is made
under another name and renamed, so that it is whole or not there, whoever else installs at the same time.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

from tests.absence import require

__all__ = ["JS", "node", "npm_modules"]

JS = Path(__file__).parent / "js"
_LISTS = ("package.json", "package-lock.json")
_SECONDS = 180.0


@cache
def _installed() -> Path | str:
    """The folder `node_modules`, or why there is none."""
    digest = hashlib.sha256(b"".join((JS / name).read_bytes() for name in _LISTS)).hexdigest()[:16]
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "streamguard-tests"
    folder = root / f"npm-{digest}"
    if not folder.is_dir():
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root) as scratch:
            for name in _LISTS:
                shutil.copy(JS / name, scratch)
            command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
            try:
                done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, timeout=_SECONDS)
            except subprocess.TimeoutExpired:
                return f"npm did not answer within {_SECONDS:.0f} s"
            if done.returncode:
                return done.stderr.strip()[-500:] or f"npm ended with {done.returncode}"
            if not folder.is_dir():
                try:
                    (Path(scratch) / "node_modules").rename(folder)
                except OSError:  # somebody else's is there by now
                    assert folder.is_dir()
    return folder


def npm_modules() -> Path:
    """The folder of the packages. Skips the test, or module, where they cannot be had."""
    for tool in ("node", "npm"):
        require(tool, "apt-get install nodejs npm")
    found = _installed()
    if isinstance(found, str):
        what = "absent: the packages of tests/clients/js (install them with: npm ci)"
        pytest.skip(f"{what}: {found}", allow_module_level=True)
    return found


def node(script: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """The command that runs a script of `js/`, and its environment, in which `require` finds the packages."""
    return ["node", str(JS / script), *arguments], {**os.environ, "NODE_PATH": str(npm_modules())}
