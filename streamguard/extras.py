"""The line that installs what a part of this library needs, where that is missing: each third party is an extra.

    with needs("fastapi", __name__):
        from fastapi import ...
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["needs"]


@contextmanager
def needs(extra: str, who: str) -> Iterator[None]:
    """What the block does not find is of the extra `extra`, which `who` needs. Raises ModuleNotFoundError that says so;
    a module of this library's own that is missing is no extra's."""
    try:
        yield
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.partition(".")[0] == "streamguard":
            raise
        name = exc.name.partition(".")[0]
        line = f'{who} needs {name}: pip install "streamguard-io[{extra}]"'
        raise ModuleNotFoundError(line, name=exc.name) from exc
