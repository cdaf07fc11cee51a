"""Without an extra, the module that needs it says which line installs it."""

from __future__ import annotations

import importlib
import re
import sys

import pytest

from streamguard.extras import needs

HOMES = {
    "adapters.aiohttp": ("aiohttp", "aiohttp"),
    "adapters.starlette": ("starlette.applications", "starlette"),
    "adapters.fastapi": ("starlette.requests", "fastapi"),
    "adapters.flask": ("flask", "flask"),
    "adapters.django": ("asgiref.sync", "django"),
    "observe.opentelemetry": ("opentelemetry", "opentelemetry"),
    "upstream.server": ("httpx", "httpx"),
}


@pytest.mark.parametrize("home", HOMES)
def test_a_module_names_the_line_that_installs_what_it_needs(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    missing, extra = HOMES[home]
    monkeypatch.delitem(sys.modules, f"streamguard.{home}", raising=False)
    monkeypatch.setitem(sys.modules, missing, None)  # type: ignore[arg-type]
    line = f'streamguard.{home} needs {missing.partition(".")[0]}: pip install "streamguard-io[{extra}]"'
    with pytest.raises(ModuleNotFoundError, match=f"^{re.escape(line)}$"):
        importlib.import_module(f"streamguard.{home}")


def test_a_module_of_its_own_that_is_missing_is_no_extra_s() -> None:
    for name in ("streamguard.nowhere", None):
        with pytest.raises(ModuleNotFoundError, match=r"^as it was$"), needs("flask", "this"):
            raise ModuleNotFoundError("as it was", name=name)
