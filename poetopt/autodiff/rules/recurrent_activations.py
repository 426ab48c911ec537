"""The activations of recurrent layers, as onnxruntime has them: what they compute, and their slopes.

With y = f(s), a slope is found from y wherever y tells it. Names are taken in any case, but for RNN, whose kernel wants
them as ONNX writes them. Where a list of alphas (or betas) is given, activations that have one take theirs in order,
one direction after the other; what the list doesn't reach has its default.

| activation | f | slope | alpha | beta |
|---|---|---|---|---|
| Sigmoid | 1 / (1 + exp(-s)) | y (1 - y) | | |
| Tanh | tanh(s) | 1 - y^2 | | |
| Relu | max(s, 0) | 1 where y > 0 | | |
| HardSigmoid | alpha s + beta, between 0 and 1 | alpha where 0 < y < 1 | 0.2 | 0.5 |
| LeakyRelu | s, alpha s where s < 0 | 1, alpha where s <= 0 | 0.01 | |
| ThresholdedRelu | s where s > alpha, else 0 | 1 where s > alpha | 0 | |
| Elu | s, alpha (exp(s) - 1) where s < 0 | 1, y + alpha where s <= 0 | 1 | |
| Softsign | s / (1 + abs(s)) | (1 - abs(y))^2 | | |
| Softplus | log(1 + exp(s)) | 1 - exp(-y) | | |
| ScaledTanh | alpha tanh(beta s) | beta (alpha - y^2 / alpha) | 0 | 0 |
| Affine | alpha s + beta | alpha | 0 | 0 |

The defaults of the last two, and of ThresholdedRelu, are onnxruntime's; ONNX has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.autodiff.registry import Primal
from poetopt.autodiff.rules.pieces import affine, positive
from poetopt.errors import MissingVjpError
from poetopt.graph import Tensor

DEFAULTS: dict[str, tuple[float | None, float | None]] = {
    "Sigmoid": (None, None), "Tanh": (None, None), "Relu": (None, None), "HardSigmoid": (0.2, 0.5),
    "LeakyRelu": (0.01, None), "ThresholdedRelu": (0.0, None), "Elu": (1.0, None), "Softsign": (None, None),
    "Softplus": (None, None), "ScaledTanh": (0.0, 0.0), "Affine": (0.0, 0.0),
}  # fmt: skip
"""Alpha and beta; None where an activation has none."""

USUAL = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
"""Of one direction, where none are named."""

_OF_SUM = frozenset({"LeakyRelu", "ThresholdedRelu", "Elu"})
"""Their slopes are found from the sum where alpha is negative: then y doesn't tell its sign."""


@dataclass(frozen=True)
class Activation:
    """One of the table above; `alpha` and `beta` are 0 where it has none."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0

    @property
    def of_sum(self) -> bool:
        """Whether `slope` needs the sum."""
        return self.name in _OF_SUM and self.alpha < 0

    def value(self, k: OperatorBuilder, s: Tensor) -> Tensor:
        """f(s)."""
        if self.name == "ScaledTanh":
            return k.mul(k.unary("Tanh", k.mul(s, self.beta)), self.alpha)
        if self.name == "Affine":
            return affine(k, s, self.alpha, self.beta)
        given: dict[str, object] = {}
        for name, default, value in zip(("alpha", "beta"), DEFAULTS[self.name], (self.alpha, self.beta), strict=True):
            if default is not None:
                given[name] = value
        return k.unary(self.name, s, **given)

    def slope(self, k: OperatorBuilder, s: Tensor | None, y: Tensor) -> Tensor:
        """f'(s), of y's shape. `s` may be None unless `of_sum`."""
        where = s if self.of_sum and s is not None else y
        if self.name == "Sigmoid":
            return k.mul(y, affine(k, y, -1.0, 1.0))
        if self.name == "Tanh":
            return affine(k, k.mul(y, y), -1.0, 1.0)
        if self.name == "Relu":
            return positive(k, y)
        if self.name == "HardSigmoid":
            inside = k.mul(positive(k, y), positive(k, affine(k, y, -1.0, 1.0)))
            return k.mul(inside, self.alpha)
        if self.name == "LeakyRelu":
            return affine(k, positive(k, where), 1.0 - self.alpha, self.alpha)
        if self.name == "ThresholdedRelu":
            return positive(k, affine(k, where, 1.0, -self.alpha) if self.of_sum else y)
        if self.name == "Elu":
            above = positive(k, where)
            return k.add(above, k.mul(affine(k, above, -1.0, 1.0), affine(k, y, 1.0, self.alpha)))
        if self.name == "Softsign":
            left = affine(k, k.unary("Abs", y), -1.0, 1.0)
            return k.mul(left, left)
        if self.name == "Softplus":
            return affine(k, k.unary("Exp", k.neg(y)), -1.0, 1.0)
        if self.name == "ScaledTanh":
            shared = self.beta / self.alpha if self.alpha else 0.0
            return affine(k, k.mul(y, y), -shared, self.alpha * self.beta)
        return k.expand(k.graph.constant(_filled(self.alpha, y)), y.shape)


def activations(op: Primal, directions: int) -> list[tuple[Activation, ...]]:
    """Those of each direction. Raises MissingVjpError for a name that onnxruntime doesn't know, or a wrong count."""
    kind = op.node.op_type
    usual = USUAL[kind]
    names = _strings(op.node.attributes.get("activations", ())) or list(usual * directions)
    if len(names) != len(usual) * directions and not (kind == "RNN" and len(names) > directions):
        raise MissingVjpError(
            f"{op.where}: {len(names)} activations, where {len(usual)} for each direction are wanted; export it again"
        )
    known = {name.lower(): name for name in DEFAULTS}
    found: list[Activation] = []
    left = [list(map(float, _numbers(op.node.attributes.get(f"activation_{what}", ())))) for what in ("alpha", "beta")]
    for name in names:
        canonical = known.get(name.lower())
        if canonical is None:
            raise MissingVjpError(
                f"{op.where}: there is no gradient rule for the activation {name!r}, which onnxruntime doesn't "
                f"compute; it has {', '.join(DEFAULTS)}"
            )
        if kind == "RNN" and name != canonical:
            raise MissingVjpError(
                f"{op.where}: onnxruntime takes the activation {name!r} of an RNN as {canonical!r} only; rename it"
            )
        given = [
            0.0 if default is None else rest.pop(0) if rest else default
            for default, rest in zip(DEFAULTS[canonical], left, strict=True)
        ]
        found.append(Activation(canonical, *given))
    each = len(usual)
    return [tuple(found[d * each : (d + 1) * each]) for d in range(directions)]


def _strings(value: object) -> list[str]:
    items = value if isinstance(value, (list, tuple)) else ()
    return [v.decode() if isinstance(v, bytes) else str(v) for v in items]


def _numbers(value: object) -> Sequence[float]:
    return [float(v) for v in value] if isinstance(value, (list, tuple, np.ndarray)) else []


def _filled(value: float, like: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    return np.full([1] * len(like.shape), value, like.dtype)
