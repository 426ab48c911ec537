"""TrainingGraph -> TrainingGraph: operators that update the parameters, in standard ONNX nodes.

    sgd        p = p - lr (g + weight_decay p)
    momentum   v = momentum v + g + weight_decay p,  p = p - lr v
    adam       of g + weight_decay p, with bias correction
    adamw      of g, with p = p - lr weight_decay p beside

`poetopt.autodiff.optimizers.rules` has one function for each; `with_updates` puts them behind the gradients.
Hyperparameters are scalars that are given with each step, not constants, so that a learning rate may change without
another graph. `poetopt.autodiff.optimizers.attach` has what clips gradients by the norm of all of them, before any
update.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from poetopt.util.imports import loading

if TYPE_CHECKING:
    from poetopt.autodiff.optimizers.attach import with_updates as with_updates

NAMES = ("none", "sgd", "momentum", "adam", "adamw")
"""What `--optimizer` takes."""

CLIP = "clip_norm"
"""The hyperparameter of a step that clips: the largest norm of all gradients together."""

__getattr__, __all__ = loading(__name__, {"attach": "with_updates"})
__all__ += ["CLIP", "NAMES"]
