"""Update rules of the optimizers, and updates of running statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.graph import Node, Operator, Tensor, TrainingGraph, Whole

Scalars = Mapping[str, Tensor]
"""Scalars by name: the hyperparameters, or the values that an update derives from them."""


@dataclass(frozen=True)
class Optimizer:
    """An optimizer.

    Attributes
    ----------
    hyperparameters
        Name -> default. `step` counts from 1.
    states
        Names of a parameter's state tensors, of the parameter's shape and type; zero before the first step.
    scalars
        Function that writes the scalars for `update`, from hyperparameters of float64 (`step`: int64).
    update
        Function (k, p, g, states, scalars) -> the new p and the new states, all of one type.
    """

    hyperparameters: Mapping[str, float]
    states: tuple[str, ...]
    scalars: Callable[[OperatorBuilder, Scalars], Scalars]
    update: Callable[[OperatorBuilder, Tensor, Tensor, Sequence[Tensor], Scalars], tuple[Tensor, ...]]


def _sgd(k: OperatorBuilder, p: Tensor, g: Tensor, states: Sequence[Tensor], by: Scalars) -> tuple[Tensor, ...]:
    """Write p (1 - lr weight_decay) - lr g."""
    change = k.mul(g, by["lr"])
    return (k.sub(k.mul(p, by["keep"]), change),)


def _momentum(k: OperatorBuilder, p: Tensor, g: Tensor, states: Sequence[Tensor], by: Scalars) -> tuple[Tensor, ...]:
    """Write v = momentum v + g + weight_decay p, and p - lr v."""
    (v,) = states
    v = k.add(k.add(k.mul(v, by["momentum"]), g), k.mul(p, by["weight_decay"]))
    return k.sub(p, k.mul(v, by["lr"])), v


def _adam(k: OperatorBuilder, p: Tensor, g: Tensor, states: Sequence[Tensor], by: Scalars) -> tuple[Tensor, ...]:
    """Write p - lr m' / (sqrt(v') + eps) of the gradient g + weight_decay p, with bias-corrected moments m' and v'."""
    m, v, change = _adam_change(k, k.add(k.mul(p, by["weight_decay"]), g), states, by)
    return k.sub(p, change), m, v


def _adamw(k: OperatorBuilder, p: Tensor, g: Tensor, states: Sequence[Tensor], by: Scalars) -> tuple[Tensor, ...]:
    """Write p (1 - lr weight_decay) - lr m' / (sqrt(v') + eps)."""
    m, v, change = _adam_change(k, g, states, by)
    return k.sub(k.mul(p, by["keep"]), change), m, v


def _decay_factor(k: OperatorBuilder, hyperparameters: Scalars) -> Tensor:
    """Write the factor of a parameter under decoupled weight decay, 1 - lr weight_decay."""
    return k.sub(_one(k), k.mul(hyperparameters["lr"], hyperparameters["weight_decay"]))


def _moments(k: OperatorBuilder, hyperparameters: Scalars) -> Scalars:
    """Write the shares of old and new in both moments, and the bias corrections of lr and sqrt(v)."""
    one_scalar, count = _one(k), k.cast(hyperparameters["step"], "float64")
    first, second = hyperparameters["beta1"], hyperparameters["beta2"]
    unbiased, spread = (k.sub(one_scalar, k.node("Pow", [beta, count], (), "float64")) for beta in (first, second))
    return {
        "beta1": first,
        "beta2": second,
        "new1": k.sub(one_scalar, first),
        "new2": k.sub(one_scalar, second),
        "scale": k.unary("Reciprocal", k.unary("Sqrt", spread)),
        "eps": hyperparameters["eps"],
        "step_size": k.div(hyperparameters["lr"], unbiased),
    }


def _adam_change(k: OperatorBuilder, g: Tensor, states: Sequence[Tensor], by: Scalars) -> tuple[Tensor, Tensor, Tensor]:
    """Write both moments, and the change of the parameter."""
    m, v = states
    m = k.add(k.mul(m, by["beta1"]), k.mul(g, by["new1"]))
    v = k.add(k.mul(v, by["beta2"]), k.mul(k.mul(g, g), by["new2"]))
    spread = k.add(k.mul(k.unary("Sqrt", v), by["scale"]), by["eps"])
    return m, v, k.mul(k.div(m, spread), by["step_size"])


def _one(k: OperatorBuilder) -> Tensor:
    return k.graph.scalar(1.0, "float64")


_MOMENTS = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "step": 1}
OPTIMIZERS: Mapping[str, Optimizer] = {
    "sgd": Optimizer(
        {"lr": 1e-3, "weight_decay": 0.0}, (),
        lambda k, values: {"lr": values["lr"], "keep": _decay_factor(k, values)}, _sgd,
    ),
    "momentum": Optimizer(
        {"lr": 1e-3, "momentum": 0.9, "weight_decay": 0.0}, ("momentum_buffer",),
        lambda k, values: {name: values[name] for name in ("lr", "momentum", "weight_decay")}, _momentum,
    ),
    "adam": Optimizer(
        {**_MOMENTS, "weight_decay": 0.0}, ("exp_avg", "exp_avg_sq"),
        lambda k, values: {**_moments(k, values), "weight_decay": values["weight_decay"]}, _adam,
    ),
    "adamw": Optimizer(
        {**_MOMENTS, "weight_decay": 0.01}, ("exp_avg", "exp_avg_sq"),
        lambda k, values: {**_moments(k, values), "keep": _decay_factor(k, values)}, _adamw,
    ),
}  # fmt: skip
"""Optimizers by name. Names and defaults are torch's, except that its SGD has no default momentum."""


KIND = "BatchNormalization.statistics"


def updated_in_place(graph: TrainingGraph, names: Mapping[str, str]) -> tuple[Operator, ...]:
    """Return the operators of `graph`, with the updates of statistics after the forward operators.

    Parameters
    ----------
    names
        Each statistic's name -> the new name of its new value.
    """
    pairs = {new: old for old, new in graph.states.items()}
    forward: list[Operator] = []
    updates: list[Operator] = []
    for operator in graph.operators:
        new_statistics = [name for name in operator.outputs if name in pairs]
        if not new_statistics:
            forward.append(operator)
            continue
        update_positions = _nodes_only_for(operator.nodes, new_statistics, {*operator.outputs} - {*new_statistics})
        inner = [node for k, node in enumerate(operator.nodes) if k in update_positions]
        rest = tuple(node for k, node in enumerate(operator.nodes) if k not in update_positions)
        read = {name for node in inner for name in node.inputs}
        others = [name for name in operator.outputs if name not in pairs]
        intermediate = [name for node in rest for name in node.outputs if name in read and name not in others]
        forward.append(_with_nodes(operator, rest, (*others, *intermediate)))
        rename = {name: names[pairs[name]] for name in new_statistics}
        nodes = tuple(replace(n, outputs=tuple(rename.get(name, name) for name in n.outputs)) for n in inner)
        statistics = replace(
            operator,
            name=f"{operator.name}.statistics",
            kind=KIND,
            recomputable=False,
            updates=tuple((pairs[name], rename[name]) for name in new_statistics),
        )
        updates.append(_with_nodes(statistics, nodes, tuple(rename.values())))
    first = next((k for k, operator in enumerate(forward) if operator.backward), len(forward))
    return (*forward[:first], *updates, *forward[first:])


def _nodes_only_for(nodes: Sequence[Node], targets: Sequence[str], others: Set[str]) -> frozenset[int]:
    """Return the positions of the nodes that only the tensors `made` depend on."""
    positions: list[int] = []
    wanted, needed = set(targets), set(others)
    for k in reversed(range(len(nodes))):
        if wanted.intersection(nodes[k].outputs) and not needed.intersection(nodes[k].outputs):
            positions.append(k)
            wanted.update(nodes[k].inputs)
        else:
            needed.update(nodes[k].inputs)
    return frozenset(positions)


def _with_nodes(operator: Operator, nodes: tuple[Node, ...], outputs: tuple[str, ...]) -> Operator:
    """Return `operator` with other nodes and outputs."""
    written = {name for node in nodes for name in node.outputs}
    read = dict.fromkeys(name for node in nodes for name in node.inputs if name and name not in written)
    return replace(operator, nodes=nodes, inputs=tuple(read), outputs=outputs, whole=tuple(_fused_ops(operator, nodes)))


def _fused_ops(operator: Operator, nodes: Sequence[Node]) -> Iterator[Whole]:
    """Yield the operator's fused ops for `nodes`, a part of its nodes: the same ops with fewer operands."""
    for whole in operator.whole:
        run = [k for k, node in enumerate(nodes) if node in operator.nodes[whole.first : whole.first + whole.count]]
        read = {name for k in run for name in nodes[k].inputs}
        written = {name for k in run for name in nodes[k].outputs}
        first, *_ = (*whole.node.outputs, "")
        if first in written and run == [*range(run[0], run[-1] + 1)]:
            inputs = tuple(name if name in read else "" for name in whole.node.inputs)
            outputs = tuple(name if name in written else "" for name in whole.node.outputs)
            yield Whole(run[0], len(run), replace(whole.node, inputs=inputs, outputs=outputs))
