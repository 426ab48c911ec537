"""Optimizers: rules of parameters, states and hyperparameters, and the statistics that a step carries over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.graph import Node, Operator, Tensor, TrainingGraph, Whole

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


def _sgd(k: OperatorBuilder, p: Tensor, g: Tensor, states: Sequence[Tensor], by: Scalars) -> tuple[Tensor, ...]:
    """p (1 - lr weight_decay) - lr g."""
    change = k.mul(g, by["lr"])
    return (k.sub(k.mul(p, by["keep"]), change),)


def _momentum(k: OperatorBuilder, p: Tensor, g: Tensor, states: Sequence[Tensor], by: Scalars) -> tuple[Tensor, ...]:
    """v = momentum v + g + weight_decay p, p - lr v."""
    (v,) = states
    v = k.add(k.add(k.mul(v, by["momentum"]), g), k.mul(p, by["weight_decay"]))
    return k.sub(p, k.mul(v, by["lr"])), v


def _adam(k: OperatorBuilder, p: Tensor, g: Tensor, states: Sequence[Tensor], by: Scalars) -> tuple[Tensor, ...]:
    """p - lr m' / (sqrt(v') + eps) of the gradient g + weight_decay p; m', v': without the bias of the first steps."""
    m, v, change = _adaptive(k, k.add(k.mul(p, by["weight_decay"]), g), states, by)
    return k.sub(p, change), m, v


def _adamw(k: OperatorBuilder, p: Tensor, g: Tensor, states: Sequence[Tensor], by: Scalars) -> tuple[Tensor, ...]:
    """p (1 - lr weight_decay) - lr m' / (sqrt(v') + eps)."""
    m, v, change = _adaptive(k, g, states, by)
    return k.sub(k.mul(p, by["keep"]), change), m, v


def _keep(k: OperatorBuilder, given: Scalars) -> Tensor:
    """Gives what decoupled weight decay leaves of a parameter: 1 - lr weight_decay."""
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
    "sgd": Optimizer(
        {"lr": 1e-3, "weight_decay": 0.0}, (), lambda k, given: {"lr": given["lr"], "keep": _keep(k, given)}, _sgd
    ),
    "momentum": Optimizer(
        {"lr": 1e-3, "momentum": 0.9, "weight_decay": 0.0}, ("momentum_buffer",),
        lambda k, given: {name: given[name] for name in ("lr", "momentum", "weight_decay")}, _momentum,
    ),
    "adam": Optimizer(
        {**_MOMENTS, "weight_decay": 0.0}, ("exp_avg", "exp_avg_sq"),
        lambda k, given: {**_moments(k, given), "weight_decay": given["weight_decay"]}, _adam,
    ),
    "adamw": Optimizer(
        {**_MOMENTS, "weight_decay": 0.01}, ("exp_avg", "exp_avg_sq"),
        lambda k, given: {**_moments(k, given), "keep": _keep(k, given)}, _adamw,
    ),
}  # fmt: skip
"""By name. Names and defaults are torch's; its SGD has no default of momentum."""


KIND = "BatchNormalization.statistics"


def updated_in_place(graph: TrainingGraph, names: Mapping[str, str]) -> tuple[Operator, ...]:
    """The operators of `graph`, with the updates of statistics behind the forward operators.

    names
        Old name of each statistic -> what its new value is called from now on.
    """
    pairs = {new: old for old, new in graph.states.items()}
    forward: list[Operator] = []
    updates: list[Operator] = []
    for operator in graph.operators:
        made = [name for name in operator.outputs if name in pairs]
        if not made:
            forward.append(operator)
            continue
        places = _only_for(operator.nodes, made, {*operator.outputs} - {*made})
        inner = [node for k, node in enumerate(operator.nodes) if k in places]
        rest = tuple(node for k, node in enumerate(operator.nodes) if k not in places)
        read = {name for node in inner for name in node.inputs}
        kept = [name for name in operator.outputs if name not in pairs]
        passed = [name for node in rest for name in node.outputs if name in read and name not in kept]
        forward.append(_with(operator, rest, (*kept, *passed)))
        rename = {name: names[pairs[name]] for name in made}
        nodes = tuple(replace(n, outputs=tuple(rename.get(name, name) for name in n.outputs)) for n in inner)
        statistics = replace(
            operator,
            name=f"{operator.name}.statistics",
            kind=KIND,
            recomputable=False,
            updates=tuple((pairs[name], rename[name]) for name in made),
        )
        updates.append(_with(statistics, nodes, tuple(rename.values())))
    first = next((k for k, operator in enumerate(forward) if operator.backward), len(forward))
    return (*forward[:first], *updates, *forward[first:])


def _only_for(nodes: Sequence[Node], made: Sequence[str], others: Set[str]) -> frozenset[int]:
    """The places of the nodes that nothing but the tensors `made` comes of."""
    found: list[int] = []
    wanted, needed = set(made), set(others)
    for k in reversed(range(len(nodes))):
        if wanted.intersection(nodes[k].outputs) and not needed.intersection(nodes[k].outputs):
            found.append(k)
            wanted.update(nodes[k].inputs)
        else:
            needed.update(nodes[k].inputs)
    return frozenset(found)


def _with(operator: Operator, nodes: tuple[Node, ...], outputs: tuple[str, ...]) -> Operator:
    """`operator` with other nodes, which write `outputs` for others."""
    written = {name for node in nodes for name in node.outputs}
    read = dict.fromkeys(name for node in nodes for name in node.inputs if name and name not in written)
    return replace(operator, nodes=nodes, inputs=tuple(read), outputs=outputs, whole=tuple(_runs(operator, nodes)))


def _runs(operator: Operator, nodes: Sequence[Node]) -> Iterator[Whole]:
    """Gives what runs of `nodes`, which are some of the operator's, amount to: the same ops with fewer operands."""
    for whole in operator.whole:
        run = [k for k, node in enumerate(nodes) if node in operator.nodes[whole.first : whole.first + whole.count]]
        read = {name for k in run for name in nodes[k].inputs}
        written = {name for k in run for name in nodes[k].outputs}
        first, *_ = (*whole.node.outputs, "")
        if first in written and run == [*range(run[0], run[-1] + 1)]:
            inputs = tuple(name if name in read else "" for name in whole.node.inputs)
            outputs = tuple(name if name in written else "" for name in whole.node.outputs)
            yield Whole(run[0], len(run), replace(whole.node, inputs=inputs, outputs=outputs))
