"""What the tests marked `heavy` are given: the folder of small models, and what one of them says."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.absence import require


@pytest.fixture(scope="session")
def models() -> Path:
    """`known` answers the prompts of its `expected.json` by heart; `random` never ends by itself."""
    require("transformers", "pip install torch 'transformers[serving]'")
    folder = os.environ.get("STREAMGUARD_MODELS")
    if folder is None:
        pytest.skip("absent: STREAMGUARD_MODELS (a folder that python tests/upstream/tiny.py FOLDER has made)")
    return Path(folder).absolute()


@pytest.fixture(scope="session")
def expected(models: Path) -> dict[str, str]:
    told = json.loads((models / "known" / "expected.json").read_text(encoding="utf-8"))
    return {chat["user"]: chat["assistant"] for chat in told["chats"]}
