"""The kit's face: every name is one import away, and costs nothing until it is asked for."""

from __future__ import annotations

import re
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


def test_without_httpx_the_error_names_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "streamguard.testing.adapter_contract", raising=False)
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(ImportError, match=re.escape('check_adapter needs httpx: pip install "streamguard-io[httpx]"')):
        streamguard.testing.check_adapter  # noqa: B018


def test_another_missing_module_is_not_blamed_on_httpx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "streamguard.testing.adapter_contract", raising=False)
    monkeypatch.setitem(sys.modules, "streamguard.testing.adapter_case", None)
    with pytest.raises(ModuleNotFoundError) as caught:
        streamguard.testing.check_adapter  # noqa: B018
    assert caught.value.name == "streamguard.testing.adapter_case"
