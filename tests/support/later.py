"""torch, imported by the first test that uses it; such tests are marked, and come last.

A worker that has torch in memory counts what is resident several times as slowly, and most tests execute plans.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest


class _Later(ModuleType):
    """A module's stand-in: it is imported once a public attribute is asked for (pytest looks for its own in all)."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_", "pytest")):
            raise AttributeError(name)
        return getattr(import_module(self.__name__), name)


def later(name: str) -> Any:
    """The module of that name, not imported yet."""
    return _Later(name)


def uses_torch(test: Any) -> Any:
    """Decorates a test that imports torch: skipped where it isn't installed."""
    missing = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
    return pytest.mark.torch(missing(test))


ALL_USE_TORCH = [pytest.mark.torch, pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")]
"""The `pytestmark` of a file whose tests do."""
