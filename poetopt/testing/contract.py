"""The error that all contract suites raise for a broken extension."""

from __future__ import annotations

from poetopt.util.errors import PoetError


class ContractError(PoetError, AssertionError):
    """An extension breaks its contract; the message names the extension, the rule and the case."""


def require(condition: object, message: str) -> None:
    """Raise ContractError with `message` unless `kept`."""
    if not condition:
        raise ContractError(message)
