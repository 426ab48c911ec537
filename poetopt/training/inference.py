"""Inference form of a network's file: BatchNormalization with its running statistics, and no Dropout.

The forward pass of the step in evaluation mode defines which nodes change. All other nodes, inputs, outputs, opset and
names stay. A Dropout that the file spells out (`poetopt.frontends.dropouts`) is treated as one operator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from poetopt.autodiff.inference import forward_nodes, inference
from poetopt.graph import Role
from poetopt.util.errors import ModelError

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

    from poetopt.graph import Array, TrainingGraph

KEEP_HINT = "Use --training-mode to write the file in training form."


@dataclass(frozen=True)
class _Substitute:
    """Replacement of a tensor: `data` times `factor`, or the constant `factor` of type `dtype` without `data`."""

    data: str
    factor: float
    dtype: str


@dataclass(frozen=True)
class Changes:
    """All changes of the inference form.

    Attributes
    ----------
    normalized
        Outputs of each BatchNormalization that uses its running statistics.
    passed
        Replacement of each Dropout's output.
    scaled
        Replacement of the product with a constant that follows a Dropout, by the Dropout's output.
    """

    normalized: frozenset[str]
    passed: Mapping[str, _Substitute]
    scaled: Mapping[str, tuple[str, _Substitute]]

    def __bool__(self) -> bool:
        return bool(self.normalized or self.passed)


def changes(graph: TrainingGraph, values: Mapping[str, Array]) -> Changes:
    """Return the difference between inference and the forward pass of a step.

    Parameters
    ----------
    values
        Constants of the step, by name.
    """
    nodes = forward_nodes(graph)
    normalized: set[str] = set()
    passed: dict[str, _Substitute] = {}
    for before, after in zip(nodes, inference(graph), strict=True):
        if after == before:
            continue
        name = before.outputs[0]
        if before.op_type == "BatchNormalization":
            normalized.add(name)
            continue
        source_name = after.inputs[0]
        constant = values[source_name] if graph.tensors[source_name].role is Role.CONSTANT else None
        uniform = constant is not None and constant.size and constant.min() == constant.max()
        factor = float(constant.reshape(-1)[0]) if constant is not None and uniform else 1.0
        passed[name] = _Substitute("" if uniform else source_name, factor, graph.tensors[name].dtype)
    scaled: dict[str, tuple[str, _Substitute]] = {}
    for node in nodes:
        if node.op_type != "Mul" or node.inputs[0] not in passed:
            continue
        factor_tensor = graph.tensors[node.inputs[1]]
        if factor_tensor.role is Role.CONSTANT and factor_tensor.size == 1:
            preceding, constant_factor = passed[node.inputs[0]], float(values[factor_tensor.name].reshape(-1)[0])
            scaled[node.inputs[0]] = node.outputs[0], _Substitute(preceding.data, constant_factor, preceding.dtype)
    return Changes(frozenset(normalized), passed, scaled)


def to_inference(model: ModelProto, differences: Changes) -> None:
    """Change a model to inference form.

    Raises ModelError if the file lacks one of the nodes by its name, for example within a function.
    """
    graph = model.graph
    read_before = _read_names(graph)
    makers = {name: node for node in graph.node for name in node.output}
    defined = {*makers, *(tensor.name for tensor in graph.initializer), *(entry.name for entry in graph.input)}
    for name in differences.normalized:
        node = _producer(makers, name)
        while node.op_type == "Identity":  # the frontend uses the last name
            node = _producer(makers, node.input[0])
        if node.op_type != "BatchNormalization":
            raise _missing_node(name)
        normalize_by_statistics(graph, node)
    for name, substitute in differences.passed.items():
        if name not in makers and name in differences.scaled:
            name, substitute = differences.scaled[name]
        node = _producer(makers, name)
        if any(further in read_before for further in node.output if further != name):
            raise _missing_node(name)
        if node.op_type == "Dropout":
            substitute = _Substitute(node.input[0], 1.0, substitute.dtype)
        elif substitute.data and substitute.data not in defined:
            raise _missing_node(substitute.data)
        replacements = _substituted(node, name, substitute, makers)
        index = next(k for k, other in enumerate(graph.node) if other is node or other.output[:1] == node.output[:1])
        del graph.node[index]
        for k, other in enumerate(replacements):
            graph.node.insert(index + k, other)
    for node in graph.node:  # a Dropout in inference mode drops nothing
        if node.op_type == "Dropout" and not node.domain and not read_before.intersection(node.output[1:]):
            node.op_type = "Identity"
            del node.input[1:], node.output[1:], node.attribute[:]
    _prune(graph, read_before)


def _producer(makers: Mapping[str, NodeProto], name: str) -> NodeProto:
    if name not in makers:
        raise _missing_node(name)
    return makers[name]


def _missing_node(name: str) -> ModelError:
    return ModelError(
        f"the file has no node of its main graph that writes {name!r} (it is in a function or a branch), so the "
        f"inference form can't be written. {KEEP_HINT}"
    )


def normalize_by_statistics(graph: GraphProto, node: NodeProto) -> None:
    """Put a BatchNormalization into inference form; readers of its new statistics get the stored ones."""
    from onnx import helper

    attributes = [attribute for attribute in node.attribute if attribute.name != "training_mode"]
    further = list(node.output[1:])
    del node.attribute[:], node.output[1:]
    node.attribute.extend(attributes)
    for old, new in zip(node.input[3:5], further, strict=False):
        if new and new in _read_names(graph):
            graph.node.append(helper.make_node("Identity", [old], [new]))


def _substituted(
    node: NodeProto, name: str, substitute: _Substitute, makers: Mapping[str, NodeProto]
) -> list[NodeProto]:
    """Return the nodes that write `name` in inference, in place of `node`."""
    from onnx import helper, numpy_helper

    if substitute.data and substitute.factor == 1.0:
        return [helper.make_node("Identity", [substitute.data], [name], name=node.name)]
    factor = f"{name}.factor"
    value = numpy_helper.from_array(np.array(substitute.factor, substitute.dtype), factor)
    constant = helper.make_node("Constant", [], [factor], value=value)
    if substitute.data:
        return [constant, helper.make_node("Mul", [substitute.data, factor], [name], name=node.name)]
    draw = _draw(node, makers)
    shape = f"{name}.shape"
    if draw.op_type == "RandomUniform":
        fixed_shape = next(attribute.ints for attribute in draw.attribute if attribute.name == "shape")
        shape_node = helper.make_node("Constant", [], [shape], value_ints=list(fixed_shape))
    else:
        shape_node = helper.make_node("Shape", [draw.input[0]], [shape])
    return [constant, shape_node, helper.make_node("Expand", [factor, shape], [name], name=node.name)]


def _draw(node: NodeProto, makers: Mapping[str, NodeProto]) -> NodeProto:
    """Return the node whose random numbers `node` turns into a mask."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if node.op_type in ("RandomUniform", "RandomUniformLike", "Bernoulli"):
            return node
        waiting += [makers[name] for name in node.input if name in makers]
    raise _missing_node(node.output[0])


def _read_names(graph: GraphProto) -> set[str]:
    return {name for node in graph.node for name in node.input} | {entry.name for entry in graph.output}


def _prune(graph: GraphProto, read_before: set[str]) -> None:
    """Remove nodes and initializers that nothing reads any more."""
    while True:
        read = _read_names(graph)
        dead = [node for node in graph.node if not read.intersection(node.output) and read_before & {*node.output}]
        if not dead:
            break
        for node in dead:
            graph.node.remove(node)
    _keep(graph.initializer, lambda name: name in read or name not in read_before)
    written = {name for node in graph.node for name in node.output}
    _keep(graph.value_info, lambda name: name in written or name in read)


def _keep(entries: object, is_kept: Callable[[str], bool]) -> None:
    for k in reversed(range(len(entries))):  # type: ignore[arg-type]
        if not is_kept(entries[k].name):  # type: ignore[index]
            del entries[k]  # type: ignore[attr-defined]
