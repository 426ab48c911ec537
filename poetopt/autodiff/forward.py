"""Rewrites of forward operators for training, so that a recomputed operator never changes the result.

- BatchNormalization in training mode writes the batch statistics as separate tensors (momentum 0). Separate nodes
  update the running statistics from their old values, so that a recompute changes nothing.
- Dropout draws its mask once, in a separate operator; the product with the mask can be recomputed.
- MaxPool also writes the positions of its maxima, as 32-bit indices, for the backward pass. LayerNormalization also
  writes its mean and inverse deviation.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace

import numpy as np

from poetopt.autodiff.emit import GraphBuilder, OperatorBuilder, finish
from poetopt.autodiff.registry import downstream
from poetopt.graph import Graph, Node, Operator, Role, Tensor
from poetopt.util.errors import ModelError
from poetopt.util.notes import About, Note, listed


def one_value_note(graph: Graph, parameters: Collection[str]) -> list[str]:
    """Return a note on layers of BatchNormalization that train on one value a channel, if there are any.

    Parameters
    ----------
    graph
        The forward graph, with the nodes of the file.
    parameters
        Parameters that get a gradient.
    """
    layers = [operator for operator in graph.operators if _has_one_value(graph, operator)]
    if not layers:
        return []
    single_valued = {operator.name for operator in layers}
    reached = set(graph.outputs)
    for operator in reversed(graph.operators):
        if reached.intersection(operator.outputs):
            reached.update(operator.nodes[0].inputs[2:3] if operator.name in single_valued else operator.inputs)
    zero = sum(name not in reached for name in parameters)
    text = (
        f"BatchNormalization trains on one value a channel ({listed([operator.name for operator in layers], 3)}), "
        f"which torch refuses: at least {zero} of {len(parameters)} gradients are exactly 0; give a larger --batch"
    )
    return [Note(text, About.GRADIENTS)]


def _has_one_value(graph: Graph, operator: Operator) -> bool:
    node = operator.nodes[0]
    if node.op_type != "BatchNormalization" or not node.attributes.get("training_mode", 0):
        return False
    shape = graph.tensors[node.inputs[0]].shape
    return len(shape) > 1 and graph.tensors[node.inputs[0]].size == shape[1]


Rewrite = Callable[[Operator, GraphBuilder, dict[str, str]], Iterator[Operator]]


def prepare(graph: Graph, builder: GraphBuilder) -> tuple[tuple[Operator, ...], Mapping[str, str]]:
    """Return the rewritten forward operators, and the tensor that has each running statistic after the step."""
    live = downstream(graph.tensors, graph.operators, graph.trained)
    states: dict[str, str] = {}
    operators: list[Operator] = []
    for operator in graph.operators:
        rewrite = _rewrite(operator, bool(live.intersection(operator.outputs)), builder)
        operators.extend((operator,) if rewrite is None else rewrite(operator, builder, states))
    return tuple(operators), states


def _rewrite(operator: Operator, live: bool, builder: GraphBuilder) -> Rewrite | None:
    node = operator.nodes[0]
    if node.domain or len(operator.nodes) > 1:
        return None
    if node.op_type == "BatchNormalization" and node.attributes.get("training_mode", 0):
        return _batch_normalization
    if node.op_type == "Dropout" and _dropout_trains(node, builder):
        return _dropout
    if node.op_type == "MaxPool" and live and len(node.outputs) < 2:
        return _max_pool
    if node.op_type == "LayerNormalization" and live:
        return _layer_normalization
    return None


def _batch_normalization(operator: Operator, builder: GraphBuilder, states: dict[str, str]) -> Iterator[Operator]:
    """Yield the operator of y, the batch's mean and variance, and the statistics after the step.

    onnxruntime overwrites the buffers of the old statistics, which are still to be read. The node therefore reads
    substitute vectors, whose values don't matter at a momentum of 0.
    """
    node = operator.nodes[0]
    mean, variance = (builder.tensors[node.inputs[k]] for k in (3, 4))
    momentum = node.attributes.get("momentum", 0.9)
    if not isinstance(momentum, (int, float)):
        raise ModelError(f"node {operator.name!r}: momentum {momentum!r} is not a number")
    k = builder.operator(operator.name, operator.kind, backward=False, role=Role.ACTIVATION)
    y = builder.tensors[node.outputs[0]]
    batch = [k.out(t.shape, t.dtype, f"{y.name}.{suffix}") for t, suffix in ((mean, "mean"), (variance, "variance"))]
    attributes = {**node.attributes, "momentum": 0.0}
    x = builder.tensors[node.inputs[0]]
    read = (*node.inputs[:3], *(t.name for t in _overwritable_vectors(k, x, mean)))
    k.nodes.append(Node("BatchNormalization", read, (y.name, *(t.name for t in batch)), attributes))
    updated: list[str] = []
    for old, new, output in zip((mean, variance), batch, (*node.outputs[1:], "", "")[:2], strict=True):
        name = output or builder.unique(f"{old.name}.new")
        old_share, new_share = k.mul(old, float(momentum)), k.mul(new, 1.0 - float(momentum))
        target = builder.add_tensor(name, old.shape, old.dtype, Role.STATE)
        k.write("Add", [old_share, new_share], [target])
        states[old.name] = name
        updated.append(name)
    k.amounts_to(
        "BatchNormalization.training", [builder.tensors[name] for name in node.inputs],
        [y, *batch, *(builder.tensors[name] for name in updated)],
        epsilon=node.attributes.get("epsilon", 1e-5), momentum=float(momentum),
    )  # fmt: skip
    builder.drafts.remove(k)
    yield replace(finish(k, (y.name, *(t.name for t in batch), *updated), {}), name=operator.name)


def _overwritable_vectors(k: OperatorBuilder, x: Tensor, like: Tensor) -> list[Tensor]:
    """Return the names of two vectors like `like` that a kernel may overwrite in spite of graph optimizers.

    Optimizers merge equal nodes, and a kernel that overwrites its input would then destroy another kernel's result;
    both vectors therefore have distinct values. Optimizers also fold constants into one vector for all runs, which
    keeps the values of the last run; the vectors' length is therefore computed from the number of x's elements.
    """
    divisor = k.graph.ints([max(x.size // max(like.size, 1), 1)])
    length = k.node("Div", [k.node("Size", [x], (), "int64"), divisor], (1,), "int64")
    values = (np.full(1, next(k.graph.distinct), like.dtype) for _ in range(2))
    return [k.node("ConstantOfShape", [length], like.shape, like.dtype, value=value) for value in values]


def _dropout_trains(node: Node, builder: GraphBuilder) -> bool:
    mode = builder.values.get(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else None
    return mode is not None and bool(np.asarray(mode).reshape(-1)[0]) and _ratio(node, builder) > 0


def _ratio(node: Node, builder: GraphBuilder) -> float:
    if len(node.inputs) < 2 or not node.inputs[1]:
        return 0.5
    value = builder.values.get(node.inputs[1])
    if value is None:
        raise ModelError(f"node {node.name!r} (Dropout): its ratio must be a constant; simplify the model")
    return float(np.asarray(value, np.float64).reshape(-1)[0])


def _dropout(operator: Operator, builder: GraphBuilder, states: dict[str, str]) -> Iterator[Operator]:
    """Yield the operator that draws the mask from a fixed seed, and the one that multiplies with it."""
    node = operator.nodes[0]
    x, y = builder.tensors[node.inputs[0]], builder.tensors[node.outputs[0]]
    ratio = _ratio(node, builder)
    seed = node.attributes.get("seed", zlib.crc32(operator.name.encode()) % 2**20)
    name = node.outputs[1] if len(node.outputs) > 1 and node.outputs[1] else builder.unique(f"{y.name}.mask")
    mask = builder.add_tensor(name, x.shape, "bool", Role.ACTIVATION)
    draw = builder.operator(
        f"{operator.name}.mask", "Dropout.mask", recomputable=False, backward=False, role=Role.ACTIVATION
    )
    uniform = draw.out(x.shape, "float32")
    draw.nodes.append(Node("RandomUniform", (), (uniform.name,), {"shape": list(x.shape), "seed": float(str(seed))}))
    least = builder.scalar(ratio, "float32")
    draw.write("GreaterOrEqual", [uniform, least], [mask])
    draw.amounts_to("Dropout.mask", [least], [mask], seed=float(str(seed)))
    k = builder.operator(operator.name, "Dropout", backward=False, role=Role.ACTIVATION)
    factor = builder.scalar(1.0 / (1.0 - ratio) if ratio < 1 else 0.0, x.dtype)
    k.write("Mul", [k.binary("Mul", x, factor), k.cast(mask, x.dtype)], [y])
    k.amounts_to("Dropout", [x, factor, mask], [y])
    for draft in (draw, k):
        builder.drafts.remove(draft)
    yield finish(draw, (mask.name,), {})
    yield replace(finish(k, (y.name,), {}), name=operator.name)


def _max_pool(operator: Operator, builder: GraphBuilder, states: dict[str, str]) -> Iterator[Operator]:
    """Yield MaxPool with the flat index of each maximum in x."""
    node = operator.nodes[0]
    x, y = builder.tensors[node.inputs[0]], builder.tensors[node.outputs[0]]
    k = builder.operator(operator.name, "MaxPool", backward=False, role=Role.ACTIVATION)
    indices = k.out(y.shape, "int64", f"{y.name}.indices")
    attributes = {name: value for name, value in node.attributes.items() if name != "storage_order"}
    k.nodes.append(Node("MaxPool", node.inputs, (y.name, indices.name), attributes))
    if x.size < 2**31:
        indices = k.cast(indices, "int32")
    k.amounts_to("MaxPool.indexed", [x], [y, indices], **attributes)
    builder.drafts.remove(k)
    yield replace(finish(k, (y.name, indices.name), {}), name=operator.name)


def _layer_normalization(operator: Operator, builder: GraphBuilder, states: dict[str, str]) -> Iterator[Operator]:
    """Yield LayerNormalization with all three outputs."""
    node = operator.nodes[0]
    x, y = builder.tensors[node.inputs[0]], node.outputs[0]
    axis = node.attributes.get("axis", -1)
    first_axis = (int(axis) if isinstance(axis, int) else -1) % len(x.shape)
    shape = (*x.shape[:first_axis], *(1 for _ in x.shape[first_axis:]))
    file_outputs = (*node.outputs[1:], "", "")
    names = [
        file_outputs[k] or builder.unique(f"{y}.{suffix}") for k, suffix in enumerate(("mean", "inverse_deviation"))
    ]
    for name in names:
        if name not in builder.tensors:
            builder.add_tensor(name, shape, "float32", Role.ACTIVATION)  # float32 for any type of x: stash_type is 1
    outputs = (y, *names)
    yield replace(operator, nodes=(replace(node, outputs=outputs),), outputs=outputs)
