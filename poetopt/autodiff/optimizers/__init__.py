"""Optimizers as operators of standard ONNX nodes that update the parameters of a step.

    sgd        p = p - lr (g + weight_decay p)
    momentum   v = momentum v + g + weight_decay p,  p = p - lr v
    adam       Adam of g + weight_decay p, with bias correction
    adamw      Adam of g, with bias correction and p = p - lr weight_decay p

`poetopt.autodiff.optimizers.rules` has a function for each optimizer; `with_updates` adds the updates to a step.
Hyperparameters are scalar inputs of each step, so that a learning rate can change without another graph. Gradient
clipping by the norm of all gradients is in `poetopt.autodiff.optimizers.attach`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from poetopt.util.imports import loading

if TYPE_CHECKING:
    from poetopt.autodiff.optimizers.attach import with_updates as with_updates

NAMES = ("none", "sgd", "momentum", "adam", "adamw")
"""Names of optimizers."""

CLIP = "clip_norm"
"""The hyperparameter of gradient clipping: the largest norm of all gradients together."""

__getattr__, __all__ = loading(__name__, {"attach": "with_updates"})
__all__ += ["CLIP", "NAMES"]
