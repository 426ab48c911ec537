"""What each optimizer computes, as torch.optim defines it.

A rule writes the nodes that follow a gradient g: the new parameter and the new states, from the old ones. The old
parameter p is read by as few nodes as can be, and the new values are written last, since they take over the bytes of
the old ones. Scalars that follow from hyperparameters alone are computed once a step, in float64, by one operator for
all parameters: in float32 `1 - 0.999 ** step` is wrong from the fifth digit on when training begins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.graph import Tensor

Scalars = Mapping[str, Tensor]
"""Scalars by name: the hyperparameters, or what a rule reads of them."""


@dataclass(frozen=True)
class Optimizer:
    """One optimizer.

    hyperparameters
        Name -> default. `step` counts from 1.
    states
        What it remembers of each parameter, in the parameter's shape and type; zeros before the first step.
    scalars
        Writes what `update` reads of the hyperparameters, which are scalars of float64 (`step`: of int64).
    update
        (k, p, g, states, scalars) -> the new p and the new states, all of one type.
    """

    hyperparameters: Mapping[str, float]
    states: tuple[str, ...]
    scalars: Callable[[OperatorBuilder, Scalars], Scalars]
    update: Callable[[OperatorBuilder, Tensor, Tensor, Sequence[Tensor], Scalars], tuple[Tensor, ...]]


def _sgd_scalars(k: OperatorBuilder, given: Scalars) -> Scalars:
    return {"lr": given["lr"], "keep": _keep(k, given)}


def _sgd(k: OperatorBuilder, p: Tensor, g: Tensor, states: Sequence[Tensor], by: Scalars) -> tuple[Tensor, ...]:
    """p (1 - lr weight_decay) - lr g."""
    change = k.mul(g, by["lr"])
    return (k.sub(k.mul(p, by["keep"]), change),)


def _momentum_scalars(k: OperatorBuilder, given: Scalars) -> Scalars:
    return {name: given[name] for name in ("lr", "momentum", "weight_decay")}


def _momentum(k: OperatorBuilder, p: Tensor, g: Tensor, states: Sequence[Tensor], by: Scalars) -> tuple[Tensor, ...]:
    """v = momentum v + g + weight_decay p, p - lr v."""
    (v,) = states
    v = k.add(k.add(k.mul(v, by["momentum"]), g), k.mul(p, by["weight_decay"]))
    return k.sub(p, k.mul(v, by["lr"])), v


def _adam_scalars(k: OperatorBuilder, given: Scalars) -> Scalars:
    return {**_moments(k, given), "weight_decay": given["weight_decay"]}


def _adam(k: OperatorBuilder, p: Tensor, g: Tensor, states: Sequence[Tensor], by: Scalars) -> tuple[Tensor, ...]:
    """p - lr m' / (sqrt(v') + eps) of the gradient g + weight_decay p; m', v': without the bias of the first steps."""
    m, v, change = _adaptive(k, k.add(k.mul(p, by["weight_decay"]), g), states, by)
    return k.sub(p, change), m, v


def _adamw_scalars(k: OperatorBuilder, given: Scalars) -> Scalars:
    return {**_moments(k, given), "keep": _keep(k, given)}


def _adamw(k: OperatorBuilder, p: Tensor, g: Tensor, states: Sequence[Tensor], by: Scalars) -> tuple[Tensor, ...]:
    """p (1 - lr weight_decay) - lr m' / (sqrt(v') + eps)."""
    m, v, change = _adaptive(k, g, states, by)
    return k.sub(k.mul(p, by["keep"]), change), m, v


def _keep(k: OperatorBuilder, given: Scalars) -> Tensor:
    """What decoupled weight decay leaves of a parameter: 1 - lr weight_decay."""
    return k.sub(_one(k), k.mul(given["lr"], given["weight_decay"]))


def _moments(k: OperatorBuilder, given: Scalars) -> Scalars:
    """The shares of old and new in both moments, and what the bias of the first steps makes of lr and sqrt(v)."""
    one, count = _one(k), k.cast(given["step"], "float64")
    first, second = given["beta1"], given["beta2"]
    unbiased, spread = (k.sub(one, k.node("Pow", [beta, count], (), "float64")) for beta in (first, second))
    return {
        "beta1": first,
        "beta2": second,
        "new1": k.sub(one, first),
        "new2": k.sub(one, second),
        "scale": k.unary("Reciprocal", k.unary("Sqrt", spread)),
        "eps": given["eps"],
        "step_size": k.div(given["lr"], unbiased),
    }


def _adaptive(k: OperatorBuilder, g: Tensor, states: Sequence[Tensor], by: Scalars) -> tuple[Tensor, Tensor, Tensor]:
    """Both moments, and the change of the parameter."""
    m, v = states
    m = k.add(k.mul(m, by["beta1"]), k.mul(g, by["new1"]))
    v = k.add(k.mul(v, by["beta2"]), k.mul(k.mul(g, g), by["new2"]))
    spread = k.add(k.mul(k.unary("Sqrt", v), by["scale"]), by["eps"])
    return m, v, k.mul(k.div(m, spread), by["step_size"])


def _one(k: OperatorBuilder) -> Tensor:
    return k.graph.scalar(1.0, "float64")


_MOMENTS = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "step": 1}
OPTIMIZERS: Mapping[str, Optimizer] = {
    "sgd": Optimizer({"lr": 1e-3, "weight_decay": 0.0}, (), _sgd_scalars, _sgd),
    "momentum": Optimizer(
        {"lr": 1e-3, "momentum": 0.9, "weight_decay": 0.0}, ("momentum_buffer",), _momentum_scalars, _momentum
    ),
    "adam": Optimizer({**_MOMENTS, "weight_decay": 0.0}, ("exp_avg", "exp_avg_sq"), _adam_scalars, _adam),
    "adamw": Optimizer({**_MOMENTS, "weight_decay": 0.01}, ("exp_avg", "exp_avg_sq"), _adamw_scalars, _adamw),
}
"""By name. Names and defaults are torch's; its SGD has no default of momentum."""
