"""Checks an installed streamguard, away from the checkout and without extras: modules, data files, metadata."""

from __future__ import annotations

import importlib
import pkgutil
from importlib import metadata, resources

import streamguard

# The only libraries whose absence may keep a module from being imported.
EXTRAS = {
    "aiohttp", "asgiref", "django", "hypothesis", "fastapi", "flask", "httpcore", "httpx", "matplotlib",
    "opentelemetry", "prometheus_client", "pydantic", "redis", "rich", "starlette", "uvicorn",
}  # fmt: skip

imported, waiting = [], []
for module in pkgutil.walk_packages(streamguard.__path__, "streamguard.", onerror=lambda name: None):
    if module.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(module.name)
    except ImportError as exc:  # a package's own face says which extra to install, and why
        missing = exc if isinstance(exc, ModuleNotFoundError) else exc.__cause__
        if not isinstance(missing, ModuleNotFoundError) or (missing.name or "").partition(".")[0] not in EXTRAS:
            raise
        waiting.append(module.name)
    else:
        imported.append(module.name)

BASE = ("streamguard.core", "streamguard.runtime", "streamguard.observe")
BACK_ENDS = ("streamguard.observe.prometheus", "streamguard.observe.opentelemetry")
needed = [name for name in waiting if name.startswith(BASE) and name not in BACK_ENDS]
assert not needed, f"these must need no extra: {needed}"
assert "streamguard.core.pipeline" in imported
assert resources.files("streamguard").joinpath("py.typed").is_file(), "py.typed is missing"
for name in ("streamguard.js", "streamguard.d.ts", "package.json", "page.css"):
    assert resources.files("streamguard").joinpath("browser", name).is_file(), f"browser/{name} is missing"
for name in ("index.html", "demo.css", "demo.js", "icon.svg"):
    assert resources.files("streamguard").joinpath("demo", "page", name).is_file(), f"demo/page/{name} is missing"
for name in ("live.html", "live.css", "live.js"):
    assert resources.files("streamguard").joinpath("observe", "page", name).is_file(), f"observe/page/{name} is missing"
assert metadata.metadata("streamguard-io")["License-Expression"] == "Apache-2.0"
assert "site-packages" in (streamguard.__file__ or ""), f"not the installed one: {streamguard.__file__}"
print(f"imported without extras: {len(imported)} modules; waiting for an extra: {', '.join(waiting) or 'none'}")
