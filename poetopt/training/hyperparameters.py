"""Whether a plan's step can do what is asked of its updates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from poetopt.backends.ort.stepping import STEP
from poetopt.errors import OptionError
from poetopt.graph import TrainingGraph
from poetopt.optimizers import CLIP
from poetopt.units import show_bytes

DESCENT = {"lr": 1e-3, "momentum": 0.0, "weight_decay": 0.0}
"""Hyperparameters of what follows a step that ends with gradients, and their defaults."""


def check_hyperparameters(graph: TrainingGraph, given: Mapping[str, float]) -> None:
    """Raise OptionError for a hyperparameter that the optimizer has not, or a number that makes no sense."""
    known = graph.hyperparameters if graph.optimizer != "none" else DESCENT
    for name, value in given.items():
        if not isinstance(value, int | float | np.number):
            raise OptionError(f"--{name.replace('_', '-')} {value!r}: must be a number")
        option = f"--{name.replace('_', '-')} {value:g}"
        if name not in known or name == STEP:
            has = ", ".join(n for n in known if n != STEP)
            whose = "descent" if graph.optimizer == "none" else graph.optimizer
            remedy = "--clip-norm" if name == CLIP else "another --optimizer"
            raise OptionError(f"{option}: the plan's optimizer is {whose}, which has {has}; solve with {remedy}")
        least, below = _RANGES.get(name, (0.0, math.inf))
        if not (least <= value < below) or (name in ("lr", "eps", CLIP) and value == 0):
            raise OptionError(f"{option}: {_SENSE.get(name, 'must be 0 or more')}")


_RANGES = {"momentum": (0.0, 1.0), "beta1": (0.0, 1.0), "beta2": (0.0, 1.0)}
_SENSE = {
    "lr": "must be more than 0, as in 0.01",
    "eps": "must be more than 0, as in 1e-8",
    CLIP: "must be more than 0, as in 1.0",
    **dict.fromkeys(_RANGES, "must be at least 0 and less than 1, as in 0.9"),
}


def check_inside(
    graph: TrainingGraph, optimizer: Callable[..., Any] | None, accumulate: int, clip_norm: float | None
) -> None:
    """Raise OptionError for what needs a step's gradients, where it updates the parameters itself."""
    asked = {
        "an optimizer of one's own": optimizer is not None,
        f"--accumulate {accumulate}": accumulate > 1,
        f"--clip-norm {clip_norm or 0:g}": clip_norm is not None,
    }
    for what, wanted in asked.items():
        if wanted:
            size = sum(graph.tensors[name].nbytes for name in graph.trained)
            inside = f"solve with --optimizer {graph.optimizer} --clip-norm, so that the step clips, or "
            raise OptionError(
                f"{what}: the plan's step updates each parameter by {graph.optimizer} itself, and leaves no gradients; "
                f"{inside if clip_norm is not None else ''}solve without --optimizer, so that they stay "
                f"({show_bytes(size)})"
            )
