"""From PyTorch and back: `export` a module as it trains, `load` what was trained into it.

torch is imported by these calls alone (`pip install 'poetopt[torch]'`).
"""

from __future__ import annotations

from poetopt.torch.exporting import export
from poetopt.torch.loading import load

__all__ = ["export", "load"]
