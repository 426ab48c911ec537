"""From PyTorch and back: `export` a module as it trains, `load` what was trained into it, and a `checkpoint_policy`.

torch is imported by these calls alone (`pip install 'poetopt[torch]'`).
"""

from __future__ import annotations

from poetopt.torch.checkpointing import Checkpointed, CheckpointPolicy, checkpoint_policy
from poetopt.torch.exporting import export
from poetopt.torch.loading import load

__all__ = ["CheckpointPolicy", "Checkpointed", "checkpoint_policy", "export", "load"]
