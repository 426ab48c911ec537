"""What follows a step that ends with gradients: accumulation, clipping, and an optimizer outside of the plan.

The gradients lie in the resident region as a whole, so that all of this is possible; a step with an optimizer of its
own updates each parameter as soon as its gradient is there, and none of it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from poetopt.errors import OptionError
from poetopt.step.descent import Momentum

if TYPE_CHECKING:
    from poetopt.graph import Array

BUFFER = ".momentum_buffer"


class Optimizer(Protocol):
    """An optimizer of one's own."""

    def __call__(self, parameters: Mapping[str, Array], gradients: Mapping[str, Array]) -> object:
        """Update the parameters in place."""


@runtime_checkable
class Stateful(Protocol):
    """One that remembers arrays, which then are part of checkpoints: `states`, by name, to be written in place."""

    states: Mapping[str, Array]


class Update:
    """Gradients of several steps, clipped, and handed on.

    optimizer
        One of one's own; None for descent with momentum and weight decay.
    accumulate
        Of how many steps the gradients are summed (and divided by as many) before each update.
    clip_norm
        The largest norm of all gradients together, or None.

    Raises OptionError for numbers that make no sense.
    """

    def __init__(
        self,
        parameters: Mapping[str, Array],
        *,
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        optimizer: Optimizer | None = None,
        accumulate: int = 1,
        clip_norm: float | None = None,
    ) -> None:
        check_update(accumulate, clip_norm)
        self.parameters, self.optimizer = parameters, optimizer
        self.accumulate, self.clip_norm = accumulate, clip_norm
        self.descent = Momentum(parameters, lr, momentum, weight_decay)
        self._sums: Mapping[str, Any] = (
            {name: np.zeros(p.shape, p.dtype) for name, p in parameters.items()} if accumulate > 1 else {}
        )
        self.summed = 0

    @property
    def states(self) -> Mapping[str, Array]:
        """What it remembers, by name."""
        found = {f"{name}{BUFFER}": v for name, v in self.descent.velocity.items()}
        found |= {f"{name}.accumulated": total for name, total in self._sums.items()}
        if isinstance(self.optimizer, Stateful):
            found |= {f"optimizer.{name}": array for name, array in self.optimizer.states.items()}
        return found

    @property
    def nbytes(self) -> int:
        """Bytes of that, beside the plan."""
        return sum(array.nbytes for array in self.states.values())

    def learn(self, gradients: Mapping[str, Array], lr: float) -> None:
        """Take the gradients of a step, which may be written over."""
        if self.accumulate > 1:
            for name, total in self._sums.items():
                total += gradients[name]
            self.summed += 1
            if self.summed < self.accumulate:
                return
            for total in self._sums.values():
                total /= total.dtype.type(self.accumulate)
            gradients = self._sums
        if self.clip_norm is not None:
            gradients = _clipped(gradients, self.clip_norm)
        if self.optimizer is None:
            self.descent.lr = lr
            self.descent.step(gradients)
        else:
            self.optimizer(self.parameters, gradients)
        for total in self._sums.values():
            total.fill(0)
        self.summed = 0


def check_update(accumulate: int, clip_norm: float | None) -> None:
    """Raise OptionError for numbers that make no sense."""
    if accumulate < 1:
        raise OptionError(f"--accumulate {accumulate}: must be at least 1")
    if clip_norm is not None and not 0 < clip_norm < math.inf:
        raise OptionError(f"--clip-norm {clip_norm:g}: must be more than 0, as in 1.0")


def _clipped(gradients: Mapping[str, Array], most: float) -> Mapping[str, Array]:
    """Gradients scaled in place so that the norm of all of them is `most` at most."""
    total = math.sqrt(sum(_squares(gradient) for gradient in gradients.values()))
    if total > most:
        for gradient in gradients.values():
            array: Any = gradient
            array *= array.dtype.type(most / total)
    return gradients


def _squares(gradient: Array) -> float:
    """The sum of squares in float64, without a copy of the whole."""
    flat: Any = gradient.reshape(-1)
    return float(sum(float(np.square(flat[k : k + 65536], dtype=np.float64).sum()) for k in range(0, flat.size, 65536)))
