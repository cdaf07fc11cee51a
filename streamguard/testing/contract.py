"""What a contract says when it is broken."""

from __future__ import annotations

__all__ = ["ContractBroken"]


class ContractBroken(AssertionError):
    """A rule of a contract does not hold: `rule` is its name, as the reference lists it."""

    def __init__(self, contract: str, rule: str, what: str) -> None:
        self.rule = rule
        super().__init__(f"{contract} breaks the rule {rule!r}: {what}")
