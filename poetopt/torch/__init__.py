"""PyTorch modules: `export` one for training, `load` trained values into it, or `compile` it within a memory budget.

Only these calls import torch (`pip install 'poetopt[torch]'`).
"""

from __future__ import annotations

from poetopt.torch.budget import MemoryPlan, plan
from poetopt.torch.budget import compile_module as compile
from poetopt.torch.exporting import export
from poetopt.torch.loading import load

__all__ = ["MemoryPlan", "compile", "export", "load", "plan"]
