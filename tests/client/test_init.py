"""The client's face: everything by name, and httpx only when it is needed."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

import streamguard.client
import streamguard.client.httpx


def in_a_fresh_interpreter(code: str) -> str:
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def test_httpx_is_loaded_when_a_driver_is_first_asked_for() -> None:
    code = """
import sys, streamguard.client
print("httpx" in sys.modules)
streamguard.client.stream
print("httpx" in sys.modules)
"""
    assert in_a_fresh_interpreter(code).split() == ["False", "True"]


def test_without_httpx_the_error_names_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "streamguard.client.httpx")
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(ImportError, match=re.escape('pip install "streamguard-io[httpx]"')):
        streamguard.client.stream  # noqa: B018


def test_another_missing_module_is_not_blamed_on_httpx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "streamguard.client.httpx")
    monkeypatch.setitem(sys.modules, "streamguard.client.iteration", None)
    with pytest.raises(ModuleNotFoundError) as caught:
        streamguard.client.stream  # noqa: B018
    assert caught.value.name == "streamguard.client.iteration"


def test_every_name_is_there_and_no_other() -> None:
    for name in streamguard.client.__all__:
        assert getattr(streamguard.client, name) is not None
    assert streamguard.client.stream is streamguard.client.httpx.stream
    with pytest.raises(AttributeError, match="no attribute 'strem'"):
        streamguard.client.strem  # noqa: B018
