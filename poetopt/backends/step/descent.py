"""Descent behind a step that ends with gradients: in place, in slices, so that nothing of their size is allocated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from poetopt.graph import Array

SLICE = 1 << 16
"""Elements that an update works on at once."""


class Momentum:
    """Stochastic gradient descent in place: v = m v + g + w p, p = p - lr v (without momentum, v is g + w p).

    velocity
        v of each parameter, where there is momentum.
    """

    def __init__(self, parameters: Mapping[str, Array], lr: float, momentum: float, weight_decay: float = 0.0) -> None:
        self.parameters = parameters
        self.lr = lr
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.velocity: Mapping[str, Array] = (
            {name: np.zeros_like(p) for name, p in parameters.items()} if momentum else {}
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the state."""
        return sum(velocity.nbytes for velocity in self.velocity.values())

    def step(self, gradients: Mapping[str, Array]) -> None:
        """Update every parameter with its gradient."""
        for name, parameter in self.parameters.items():
            # Of any floating type, for which numpy's own annotations have no arithmetic in place.
            p: Any = parameter.reshape(-1)
            g: Any = gradients[name].reshape(-1)
            v: Any = self.velocity[name].reshape(-1) if self.momentum else None
            for start in range(0, p.size, SLICE):
                part = slice(start, start + SLICE)
                change = g[part]
                if self.weight_decay:
                    change = change + p[part] * p.dtype.type(self.weight_decay)
                if v is not None:
                    v[part] *= p.dtype.type(self.momentum)
                    v[part] += change
                    change = v[part]
                p[part] -= change * p.dtype.type(self.lr)
