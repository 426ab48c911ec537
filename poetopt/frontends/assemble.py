"""Turn a draft into the frozen `Graph`: names, roles, views, and the statistics that training writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from onnx import NodeProto, helper, numpy_helper

from poetopt.frontends.draft import Draft
from poetopt.frontends.proto import attribute_int, copied, dtype_name, elem_type, from_node_proto, unique
from poetopt.frontends.read import Document
from poetopt.frontends.structure import needed
from poetopt.graph import PACKED, VIEW_OPS, Graph, Operator, Role, Tensor
from poetopt.ops.op import op_of
from poetopt.util.errors import ModelError

if TYPE_CHECKING:
    from poetopt.graph import Array


def assemble(
    draft: Draft,
    name: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    trained: Mapping[str, Array],
    *,
    source: str,
    content_hash: str,
    notes: Sequence[str],
    unread: Mapping[str, str],
) -> Graph:
    """Return the graph that `draft` describes: one operator per node, without nodes that no output needs.

    Parameters and inputs that no kept node reads are dropped.

    Parameters
    ----------
    trained
        Values of the trained parameters, in the order of the file.
    unread
        Outputs that can't be imported, and why.
    """
    nodes = needed(draft.nodes, outputs)
    if not nodes:
        raise ModelError(f"{draft.where}: every output is constant: nothing to train. Export the model again")
    notes = list(notes)
    types = dict(draft.types)
    _list_masks(nodes, types)
    states = _updated_statistics(nodes)
    seeded_count = _seed_dropouts(nodes)
    if seeded_count:
        notes.append(f"each of {seeded_count} Dropout nodes without a seed got one, so that runs can be compared")
    read_names = {name for node in nodes for name in node.input if name} | set(outputs)
    unused = [name for name in inputs if name not in read_names]
    if unused:
        notes.append(f"removed the inputs that no operator reads: {', '.join(unused)}")
    values = {name: _pack(array) for name, array in (*trained.items(), *draft.constants.items()) if name in read_names}
    tensors: dict[str, Tensor] = {}

    def add_tensor(name: str, role: Role) -> None:
        elem, shape = types[name]
        tensors[name] = Tensor(name, shape, dtype_name(elem), role)

    for tensor in inputs:
        if tensor in read_names:
            add_tensor(tensor, Role.INPUT)
    for tensor in values:
        add_tensor(tensor, Role.PARAMETER if tensor in trained else Role.CONSTANT)
    operators = []
    names = _operator_names(nodes)
    for node, operator_name in zip(nodes, names, strict=True):
        for tensor in filter(None, node.output):
            add_tensor(tensor, Role.STATE if tensor in states else Role.ACTIVATION)
        operators.append(_operator(node, operator_name))
    return Graph(
        name=name,
        tensors=tensors,
        operators=tuple(operators),
        inputs=tuple(tensor for tensor in inputs if tensor in read_names),
        outputs=tuple(outputs),
        values=values,
        trained=tuple(tensor for tensor in trained if tensor in read_names),
        opset=draft.opset,
        source=source,
        content_hash=content_hash,
        notes=tuple(notes),
        unread=dict(unread),
    )


def _pack(array: Array) -> Array:
    """Return `array`, or the bytes that hold its elements (`poetopt.graph.PACKED`)."""
    if array.dtype.name not in PACKED:
        return array
    packed = np.frombuffer(numpy_helper.from_array(array).raw_data, np.uint8)
    packed.setflags(write=False)
    return packed


def list_statistics(document: Document) -> None:
    """List the updated statistics among the outputs of each training-mode BatchNormalization.

    ONNX makes them optional, but a runtime overwrites the old ones in place if the new ones are not listed.
    """
    nodes = document.proto.graph.node
    used_names = document.names
    for node in nodes:
        if node.op_type == "BatchNormalization" and attribute_int(node, "training_mode", 0):
            node.output.extend([""] * (3 - len(node.output)))
            for index, suffix in ((1, "running_mean"), (2, "running_var")):
                if not node.output[index]:
                    node.output[index] = unique(f"{node.output[0]}.{suffix}", used_names)
                    used_names.add(node.output[index])


def _list_masks(nodes: Sequence[NodeProto], types: dict[str, tuple[int, tuple[int, ...]]]) -> None:
    """List the mask among the outputs of each Dropout: the backward pass needs it."""
    for node in nodes:
        if node.op_type == "Dropout":
            node.output.extend([""] * (2 - len(node.output)))
            if not node.output[1]:
                node.output[1] = unique(f"{node.output[0]}.mask", types)
                types[node.output[1]] = (elem_type("bool"), types[node.input[0]][1])


def _updated_statistics(nodes: Sequence[NodeProto]) -> set[str]:
    return {
        name
        for node in nodes
        if node.op_type == "BatchNormalization" and attribute_int(node, "training_mode", 0)
        for name in node.output[1:3]
    }


def _seed_dropouts(nodes: Sequence[NodeProto]) -> int:
    count = 0
    for index, node in enumerate(nodes):
        if node.op_type == "Dropout" and not any(attribute.name == "seed" for attribute in node.attribute):
            node.attribute.append(helper.make_attribute("seed", index + 1))
            count += 1
    return count


def _operator_names(nodes: Sequence[NodeProto]) -> list[str]:
    """Return unique names: the first node of a name keeps it; others get the name or op type with a number."""
    used_names = {node.name for node in nodes if node.name}
    assigned: set[str] = set()
    numbers: dict[str, int] = {}
    names = []
    for index, node in enumerate(nodes):
        if node.name and node.name not in assigned:
            name = node.name
        else:
            name = unique(node.name or f"{node.op_type}_{index}", used_names, numbers)
        used_names.add(name)
        assigned.add(name)
        names.append(name)
    return names


def _operator(node: NodeProto, name: str) -> Operator:
    copy = copied(node)
    copy.name = name
    return Operator(
        name=name,
        kind=node.op_type,
        nodes=(from_node_proto(copy),),
        inputs=tuple(dict.fromkeys(filter(None, node.input))),
        outputs=tuple(filter(None, node.output)),
        view=node.op_type in VIEW_OPS and not node.domain,
        recomputable=not op_of(node.op_type).random,
    )
