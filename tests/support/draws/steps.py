"""Calls of the ops that training steps are made of, as the steps of small networks hold them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from poetopt.autodiff import differentiate
from poetopt.autodiff.optimizers import with_updates
from poetopt.autodiff.passes.dequantized import dequantized_within
from poetopt.frontends import load
from poetopt.frontends.proto import model_proto
from poetopt.graph import OWN_DOMAIN, TOGETHER, Graph, Role, Tensor, TrainingGraph
from poetopt.ops.runtimes import runtime
from poetopt.ops.runtimes.c.steps import as_run
from tests.support.contract.kernel import Case, session_of

if TYPE_CHECKING:
    import onnx

    from poetopt.graph import Array


def step_cases(
    model: onnx.ModelProto,
    op_type: str,
    random: np.random.Generator,
    *,
    loss: str = "mse",
    optimizer: str = "none",
    clip: bool = False,
    train: str = "*",
) -> list[Case]:
    """The runs of nodes in a network's training step that amount to `op_type`, on a random batch.

    optimizer, clip
        Whose updates the step has: as one with the gradients where `op_type` is of both; and whether it clips them.
    train
        The parameters that are trained.
    """
    graph = load(model, train=train)
    assert isinstance(graph, Graph)
    step = with_updates(differentiate(graph, loss=loss), optimizer, fuse=TOGETHER in op_type, clip=clip)
    if op_type.startswith("DequantizeLinear"):
        step = dequantized_within(step, runtime("c"))
    step = replace(step, values={**step.values, **_settings(step, random)})
    batch = {name: _drawn(step.tensors[name], random) for name in step.inputs}
    found = [
        (operator, node)
        for operator in step.operators
        for node in (*(whole.node for whole in operator.whole), *as_run(operator, step.tensors).nodes)
        if node.domain == OWN_DOMAIN and node.op_type == op_type
    ]
    found = [pair for k, pair in enumerate(found) if pair not in found[:k]]
    if not found:
        return []
    values = {**step.values, **batch}
    # what other operators read or write can be an output of the model; what lies inside of one can't be compared
    seen = {name for operator in step.operators for name in (*operator.inputs, *operator.outputs)}
    wanted = [n for _, node in found for n in (*node.inputs, *node.outputs) if n and n in seen and n not in values]
    proto = model_proto(step, tuple(dict.fromkeys(wanted)))
    session = session_of(proto)
    feeds = {given.name: batch[given.name] for given in session.get_inputs()}
    names = [output.name for output in session.get_outputs()]
    values.update(zip(names, session.run(names, feeds), strict=True))
    known = {n: v for n, v in step.values.items() if step.tensors[n].role is Role.CONSTANT}
    return [
        Case(
            operator,
            node,
            step.tensors,
            known,
            {n: values[n] for n in node.inputs if n},
            {n: values[n] for n in node.outputs if n in values},
        )
        for operator, node in found
        if all(n in values for n in node.inputs if n)
    ]


def _settings(step: TrainingGraph, random: np.random.Generator) -> dict[str, Array]:
    """Hyperparameters that make a difference, and states as they are in the middle of training."""
    found = {name: np.abs(_drawn(step.tensors[name], random)) for name in step.optimizer_states}
    for name, tensor in step.hyperparameters.items():
        value = random.integers(1, 1000) if name == "step" else 1e-4 if name == "eps" else random.uniform(0.1, 0.9)
        found[tensor] = np.array(value, step.tensors[tensor].dtype)
    return found


def _drawn(tensor: Tensor, random: np.random.Generator) -> Array:
    if tensor.dtype == "int64":
        return random.integers(0, 2, tensor.shape)
    return random.standard_normal(tensor.shape).astype(tensor.dtype)
