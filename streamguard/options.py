"""What the values of the commands' options are, and what is refused before anything starts. For argparse's `type`."""

from __future__ import annotations

import argparse
import math
import re
from typing import NoReturn

__all__ = ["address", "count", "count_from_zero", "port", "refuse", "seconds", "seconds_above_zero"]


def count(text: str) -> int:
    """A number from 1 up."""
    return int(text) if text.isascii() and text.isdigit() and int(text) > 0 else refuse("a number from 1 up", text)


def count_from_zero(text: str) -> int:
    """A number from 0 up."""
    return int(text) if text.isascii() and text.isdigit() else refuse("a number from 0 up", text)


def port(text: str) -> int:
    """A port, or 0 for a free one."""
    is_one = text.isascii() and text.isdigit() and int(text) < 65536
    return int(text) if is_one else refuse("a port from 0 to 65535", text)


def address(text: str) -> tuple[str, int]:
    """Where to listen: a port of this machine, or a host and a port."""
    found = re.fullmatch(r"(?:([^\s:/\[\]]+|\[[0-9A-Fa-f:.]+\]):)?([0-9]{1,5})", text, re.ASCII)
    if not found or int(found[2]) > 65535:
        refuse("a port, or HOST:PORT,", text)
    return (found[1] or "127.0.0.1").strip("[]"), int(found[2])


def seconds(text: str) -> float:
    """Seconds, or none."""
    value = _number(text)
    return value if 0 <= value < math.inf else refuse("seconds from 0 up", text)


def seconds_above_zero(text: str) -> float:
    """Seconds, and not none."""
    value = _number(text)
    return value if 0 < value < math.inf else refuse("seconds above 0", text)


def refuse(needed: str, given: str) -> NoReturn:
    """Say what is needed instead. The value is shown, because it may come from the environment."""
    raise argparse.ArgumentTypeError(f"{needed} is needed, not {given!r}")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        refuse("seconds, such as 0.0025", text)
