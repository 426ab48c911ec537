"""What all contract suites share: the error that a broken extension ends in."""

from __future__ import annotations

from poetopt.util.errors import PoetError


class ContractError(PoetError, AssertionError):
    """An extension that doesn't keep its contract. The message names the extension, the rule and the case."""


def require(kept: object, message: str) -> None:
    """Raise ContractError with `message` unless `kept`."""
    if not kept:
        raise ContractError(message)
