"""`python -m streamguard.observe`: prints what is made of the metrics: alert rules, a dashboard, the reference."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Final

from streamguard.observe.alerts import rules
from streamguard.observe.dashboard import dashboard
from streamguard.observe.reference import reference

_MADE: Final[dict[str, Callable[[], str]]] = {"rules": rules, "dashboard": dashboard, "reference": reference}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one of them."""
    parser = argparse.ArgumentParser(prog="python -m streamguard.observe", description=__doc__)
    parser.add_argument("what", choices=_MADE, help="rules: alerts for Prometheus; dashboard: for Grafana")
    sys.stdout.write(_MADE[parser.parse_args(arguments).what]())
    return 0


if __name__ == "__main__":
    sys.exit(main())
