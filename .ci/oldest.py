"""Constraints for the oldest versions that pyproject.toml allows, one a line, for `pip install -c`.

typing-extensions is left out: what the tests themselves need asks for a newer one.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
extras = project["optional-dependencies"]
for requirement in [*project["dependencies"], *extras["starlette"], *extras["fastapi"], *extras["httpx"]]:
    name, version = re.fullmatch(r"([a-z-]+)>=([0-9.]+)", requirement).groups()
    if name != "typing-extensions":
        print(f"{name}=={version}.*")
