"""Weights as tensors of their own: not behind an Identity, merged with a statistic, or filled by a node."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import NodeProto, TensorProto

from poetopt.frontends.operands import layer_operands
from poetopt.frontends.proto import copied
from poetopt.frontends.read import Document, array_of, check_size, tensor_array
from poetopt.frontends.unique import unique
from poetopt.frontends.views import views


def resolve_identities(document: Document) -> dict[str, str]:
    """Let readers of an Identity of a weight read the weight; the result maps the vanished names to the weights'.

    Exporters write such nodes where they merged initializers of equal value: the readers share one parameter.
    """
    graph = document.proto.graph
    outputs = {info.name for info in graph.output}
    aliases: dict[str, str] = {}
    kept: list[NodeProto] = []
    for node in graph.node:
        names = [aliases.get(name, name) for name in node.input]
        if node.op_type == "Identity" and names[0] in document.weights and node.output[0] not in outputs:
            aliases[node.output[0]] = names[0]
            continue
        copy = copied(node)
        if node.op_type != "BatchNormalization":
            copy.input[:] = names
        else:  # The statistics keep their own name for `separate_statistics`.
            copy.input[:] = [*names[:3], *node.input[3:]]
        kept.append(copy)
    del graph.node[:]
    graph.node.extend(kept)
    return aliases


def separate_statistics(document: Document, aliases: Mapping[str, str]) -> list[str]:
    """Give running statistics a tensor of their own where a merged initializer serves another purpose too.

    A fresh network's means (all 0) and variances (all 1) equal its biases and scales, and exporters merge
    what is equal. But a statistic changes with each step, and no gradient flows to it. Returns notes.
    """
    graph = document.proto.graph
    uses: dict[str, int] = {}
    for node in graph.node:
        for name in node.input:
            root = aliases.get(name, name)
            uses[root] = uses.get(root, 0) + 1
    taken = {*document.weights, *(name for node in graph.node for name in node.output), *aliases}
    taken.update(info.name for info in graph.input)
    separated = 0
    for node in graph.node:
        if node.op_type != "BatchNormalization":
            continue
        for index, suffix in ((3, "running_mean"), (4, "running_var")):
            name = node.input[index]
            root = aliases.get(name, name)
            if root not in document.weights or uses[root] == 1:
                node.input[index] = root
                continue
            own = name if name not in document.weights else unique(f"{node.name or node.output[0]}.{suffix}", taken)
            if own not in document.weights:
                proto = TensorProto()
                proto.CopyFrom(document.weights[root])
                proto.name = own
                document.weights[own] = proto
                taken.add(own)
                separated += 1
            node.input[index] = own
            uses[root] -= 1
    if separated:
        return [f"{separated} running statistics that the file merges with equal weights were given their own tensors"]
    return []


def fill_constants(document: Document) -> set[str]:
    """Turn ConstantOfShape nodes that fill a layer's weight into weights; the result has their names.

    Files without their weights (benchmark networks) are written so. The array is made when it is read.
    """
    graph = document.proto.graph
    seen = views(document)
    wanted = {node.input[i] for node in graph.node for i in layer_operands(document, node, seen)}
    kept: list[NodeProto] = []
    filled: set[str] = set()
    for node in graph.node:
        name = node.output[0]
        if node.op_type != "ConstantOfShape" or name not in wanted or node.input[0] not in document.weights:
            kept.append(copied(node))
            continue
        dims = tuple(int(dim) for dim in array_of(document, node.input[0]).reshape(-1))
        value = next((a.t for a in node.attribute if a.name == "value"), None)
        fill = value or TensorProto(data_type=TensorProto.FLOAT, float_data=[0.0], dims=[1])
        check_size(f"{document.where}: tensor {name!r}", dims, fill.data_type)
        document.weights[name] = TensorProto(name=name, data_type=fill.data_type, dims=dims)
        document.fills[name] = tensor_array(f"{document.where}: tensor {name!r}", fill)
        filled.add(name)
    del graph.node[:]
    graph.node.extend(kept)
    return filled
