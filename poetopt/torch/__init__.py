"""From PyTorch and back: `export` a module as it trains, `load` what was trained into it, or `compile` it to a budget.

torch is imported by these calls alone (`pip install 'poetopt[torch]'`).
"""

from __future__ import annotations

from poetopt.torch.budget import MemoryPlan, plan
from poetopt.torch.budget import compile_module as compile
from poetopt.torch.exporting import export
from poetopt.torch.loading import load

__all__ = ["MemoryPlan", "compile", "export", "load", "plan"]
