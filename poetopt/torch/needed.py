"""torch, where a call needs it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from poetopt.util.errors import BackendUnavailableError, ModelError

INSTALL = "pip install 'poetopt[torch]'"


def needed(*others: str) -> Any:
    """The package torch. Raises BackendUnavailableError where it, or one of `others`, is not installed."""
    for name in ("torch", *others):
        try:
            import_module(name)
        except ImportError as error:
            raise BackendUnavailableError(f"{name} is not installed; install it with: {INSTALL}") from error
    return import_module("torch")


def check_module(module: Any) -> None:
    """Raise ModelError for anything but a torch module."""
    if not isinstance(module, import_module("torch").nn.Module):
        raise ModelError(f"a torch.nn.Module is needed here, not a {type(module).__name__}")
