"""A network's file in the form of inference: BatchNormalization by its running statistics, and no Dropout.

What the step's forward pass is in evaluation says which nodes change; all others, inputs, outputs, opset and names are
the file's own. A Dropout that the file draws by hand (`poetopt.frontends.dropouts`) goes as one operator.
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

KEEPS = "--keep-training-form writes the file as it trains"


@dataclass(frozen=True)
class _Substitute:
    """The stand-in of a tensor: `data` times `factor`, or `factor` of type `dtype` everywhere if there are none."""

    data: str
    factor: float
    dtype: str


@dataclass(frozen=True)
class Changes:
    """All that differs in inference.

    normalized
        Outputs of each BatchNormalization that takes its running statistics.
    passed
        What stands in the place of each Dropout's output.
    scaled
        What stands in the place of the product with a constant that follows it, by the Dropout's output.
    """

    normalized: frozenset[str]
    passed: Mapping[str, _Substitute]
    scaled: Mapping[str, tuple[str, _Substitute]]

    def __bool__(self) -> bool:
        return bool(self.normalized or self.passed)


def changes(graph: TrainingGraph, values: Mapping[str, Array]) -> Changes:
    """All that differs in inference from the forward pass of a step.

    values
        Of its constants, by name.
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
        data = after.inputs[0]
        constant = values[data] if graph.tensors[data].role is Role.CONSTANT else None
        uniform = constant is not None and constant.size and constant.min() == constant.max()
        factor = float(constant.reshape(-1)[0]) if constant is not None and uniform else 1.0
        passed[name] = _Substitute("" if uniform else data, factor, graph.tensors[name].dtype)
    scaled: dict[str, tuple[str, _Substitute]] = {}
    for node in nodes:
        if node.op_type != "Mul" or node.inputs[0] not in passed:
            continue
        second = graph.tensors[node.inputs[1]]
        if second.role is Role.CONSTANT and second.size == 1:
            before_it, by = passed[node.inputs[0]], float(values[second.name].reshape(-1)[0])
            scaled[node.inputs[0]] = node.outputs[0], _Substitute(before_it.data, by, before_it.dtype)
    return Changes(frozenset(normalized), passed, scaled)


def to_inference(model: ModelProto, found: Changes) -> None:
    """Change a model to the form of inference.

    Raises ModelError where the file hasn't one of the nodes by its name, as in a function.
    """
    graph = model.graph
    read_before = _read(graph)
    makers = {name: node for node in graph.node for name in node.output}
    there = {*makers, *(tensor.name for tensor in graph.initializer), *(entry.name for entry in graph.input)}
    for name in found.normalized:
        node = _maker(makers, name)
        while node.op_type == "Identity":  # the frontend goes by the last name
            node = _maker(makers, node.input[0])
        if node.op_type != "BatchNormalization":
            raise _missing(name)
        normalize_by_statistics(graph, node)
    for name, substitute in found.passed.items():
        if name not in makers and name in found.scaled:
            name, substitute = found.scaled[name]
        node = _maker(makers, name)
        if any(further in read_before for further in node.output if further != name):
            raise _missing(name)
        if node.op_type == "Dropout":
            substitute = _Substitute(node.input[0], 1.0, substitute.dtype)
        elif substitute.data and substitute.data not in there:
            raise _missing(substitute.data)
        new = _substituted(node, name, substitute, makers)
        place = next(k for k, one in enumerate(graph.node) if one is node or one.output[:1] == node.output[:1])
        del graph.node[place]
        for k, one in enumerate(new):
            graph.node.insert(place + k, one)
    for node in graph.node:  # that drops nothing as it stands there
        if node.op_type == "Dropout" and not node.domain and not read_before.intersection(node.output[1:]):
            node.op_type = "Identity"
            del node.input[1:], node.output[1:], node.attribute[:]
    _prune(graph, read_before)


def _maker(makers: Mapping[str, NodeProto], name: str) -> NodeProto:
    if name not in makers:
        raise _missing(name)
    return makers[name]


def _missing(name: str) -> ModelError:
    return ModelError(
        f"the file has no node that writes {name!r} by that name (a function or a branch holds it), so that its form "
        f"for inference can't be written; {KEEPS}"
    )


def normalize_by_statistics(graph: GraphProto, node: NodeProto) -> None:
    """Put a BatchNormalization into the form of inference; who reads its new statistics gets those that it takes."""
    from onnx import helper

    kept = [attribute for attribute in node.attribute if attribute.name != "training_mode"]
    further = list(node.output[1:])
    del node.attribute[:], node.output[1:]
    node.attribute.extend(kept)
    for old, new in zip(node.input[3:5], further, strict=False):
        if new and new in _read(graph):
            graph.node.append(helper.make_node("Identity", [old], [new]))


def _substituted(
    node: NodeProto, name: str, substitute: _Substitute, makers: Mapping[str, NodeProto]
) -> list[NodeProto]:
    """The nodes that write `name` in inference in the place of `node`."""
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
        own = next(attribute.ints for attribute in draw.attribute if attribute.name == "shape")
        sized = helper.make_node("Constant", [], [shape], value_ints=list(own))
    else:
        sized = helper.make_node("Shape", [draw.input[0]], [shape])
    return [constant, sized, helper.make_node("Expand", [factor, shape], [name], name=node.name)]


def _draw(node: NodeProto, makers: Mapping[str, NodeProto]) -> NodeProto:
    """The node that draws what `node` makes a mask of."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if node.op_type in ("RandomUniform", "RandomUniformLike", "Bernoulli"):
            return node
        waiting += [makers[name] for name in node.input if name in makers]
    raise _missing(node.output[0])


def _read(graph: GraphProto) -> set[str]:
    return {name for node in graph.node for name in node.input} | {entry.name for entry in graph.output}


def _prune(graph: GraphProto, read_before: set[str]) -> None:
    """Leave out what nothing reads any more."""
    while True:
        read = _read(graph)
        dead = [node for node in graph.node if not read.intersection(node.output) and read_before & {*node.output}]
        if not dead:
            break
        for node in dead:
            graph.node.remove(node)
    _keep(graph.initializer, lambda name: name in read or name not in read_before)
    written = {name for node in graph.node for name in node.output}
    _keep(graph.value_info, lambda name: name in written or name in read)


def _keep(entries: object, wanted: Callable[[str], bool]) -> None:
    for k in reversed(range(len(entries))):  # type: ignore[arg-type]
        if not wanted(entries[k].name):  # type: ignore[index]
            del entries[k]  # type: ignore[attr-defined]
