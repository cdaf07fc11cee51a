"""The kit's face: every name is one import away, and costs nothing until it is asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

import streamguard.testing
from tests.modules import ROOT


def test_every_name_is_there_and_is_no_module() -> None:
    """A module of the same name would hide a function, as soon as anything has imported it."""
    for name in streamguard.testing.__all__:
        assert type(getattr(streamguard.testing, name)) is not type(sys), name
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = streamguard.testing.nothing


def test_nothing_is_loaded_before_it_is_asked_for() -> None:
    code = "import sys, streamguard.testing; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert [name for name in done.stdout.split() if name.startswith("streamguard.testing.")] == []
