"""From PyTorch and back: `export` a module as it trains, and `load` what was trained into it.

torch is imported by these calls alone (`pip install 'poetopt[torch]'`).
"""

from __future__ import annotations

from typing import Any

from poetopt.torch.exporting import export
from poetopt.torch.loading import load
from poetopt.util.errors import OptionError

__all__ = ["checkpoint_policy", "export", "load"]


def checkpoint_policy(*_: Any, **__: Any) -> Any:
    """Raise OptionError: what it did, torch does by itself."""
    raise OptionError(
        "po.torch.checkpoint_policy is gone: torch.compile recomputes within a budget of memory by itself; set "
        "torch._functorch.config.activation_memory_budget to a share from 0 to 1"
    )
