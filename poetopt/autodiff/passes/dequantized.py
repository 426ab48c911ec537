"""Operators that dequantize the weights that they read, part by part.

A dequantized weight takes several times the bytes of the quantized one. If each of its readers, together with the
DequantizeLinear node, needs no more workspace than that, the readers dequantize the weight whenever they run. No
schedule then has to keep or move the dequantized weight. In C every matrix product qualifies; on onnxruntime, operators
that stream the weight from storage. All results keep their bits.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from poetopt.autodiff.passes.in_place import kept_tensors
from poetopt.graph import OWN_DOMAIN, TOGETHER, Node, Operator, Role, Tensor, TrainingGraph, Whole
from poetopt.ops.op import op_of
from poetopt.ops.runtimes.contract import Runtime

if TYPE_CHECKING:
    from poetopt.graph import Array


def dequantized_within(graph: TrainingGraph, runtime: Runtime) -> TrainingGraph:
    """Return `graph` with DequantizeLinear of frozen weights moved into their readers, where that takes no more RAM.

    Such an operator's `kind` begins with `DequantizeLinear+`. The result is `graph` itself where there is none.

    Raises
    ------
    ModelError
        A node names a tensor that the graph lacks.
    """
    kept, tensors, changed = kept_tensors(graph), dict(graph.tensors), dict[str, Operator]()
    constants, removed = graph.constants, set[str]()
    for operator in graph.operators:
        if operator.kind != "DequantizeLinear" or any(tensors[n].role is not Role.CONSTANT for n in operator.inputs):
            continue
        (weight,) = operator.outputs
        readers = [changed.get(reader.name, reader) for reader in graph.readers.get(weight, ())]
        local_names = {reader.name: _unused_name(f"{reader.name}/{weight}", tensors) for reader in readers}
        with_dequantize = [
            one
            for reader in readers
            if (one := _with_dequantize(operator, reader, local_names[reader.name])) is not None
        ]
        if weight in kept or not with_dequantize or len(with_dequantize) < len(readers):
            continue
        extended = tensors | {name: replace(tensors[weight], name=name) for name in local_names.values()}
        separate = [runtime.workspace(one, tensors).temporaries_bytes for one in readers]
        together = [_least_bytes(one, operator.inputs, extended, constants, runtime) for one in with_dequantize]
        if all(b <= a + tensors[weight].nbytes for a, b in zip(separate, together, strict=True)):
            removed.add(operator.name)
            tensors = {name: tensor for name, tensor in extended.items() if name != weight}
            changed.update((one.name, one) for one in with_dequantize)
    if not removed:
        return graph
    note = f"{len(removed)} frozen weights are dequantized by the operators that read them, part by part"
    operators = tuple(changed.get(o.name, o) for o in graph.operators if o.name not in removed)
    return replace(graph, operators=operators, tensors=tensors, notes=(*graph.notes, note))


def _unused_name(name: str, taken: Container[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _least_bytes(
    operator: Operator,
    stored: Sequence[str],
    tensors: Mapping[str, Tensor],
    constants: Mapping[str, Array],
    runtime: Runtime,
) -> int:
    """Return the least workspace of `operator` in bytes, with or without streaming the tensors `stored`."""
    variants = runtime.variants(operator, tensors, movable=stored, values=constants)
    return min(variant.workspace.temporaries_bytes for variant in variants)


def _with_dequantize(dequantize: Operator, reader: Operator, name: str) -> Operator | None:
    """Return `reader` with the node of `dequantize`, which then writes `name`, before the first reader of the weight.

    The result is None for a view and for an operator that works in place.
    """
    (weight,) = dequantize.outputs
    node = replace(dequantize.nodes[0], outputs=(name,), name=name)
    position = next(k for k, one in enumerate(reader.nodes) if weight in one.inputs)
    fused = next(
        (one for one in reader.whole if one.first <= position < one.first + one.count),
        Whole(position, 1, reader.nodes[position]),
    )
    if reader.view or reader.over:
        return None
    others = [replace(one, first=one.first + (one.first > position)) for one in reader.whole if one != fused]
    position, last = fused.first, fused.first + fused.count
    fused_node = fused.node
    is_only_read = not any(weight in one.inputs for one in reader.nodes[last:]) and fused_node.inputs.count(weight) == 1
    is_conv_gradient = (fused_node.domain, fused_node.op_type) == (OWN_DOMAIN, "Conv.grad_input")
    can_fuse = is_conv_gradient or (not fused_node.domain and op_of(fused_node.op_type).reads_quantized)
    if can_fuse and is_only_read and fused_node.inputs[1] == weight:
        factor, *rest = (*fused_node.inputs[:1], *fused_node.inputs[2:])
        op, inputs = f"{node.op_type}{TOGETHER}{fused_node.op_type}", (factor, *(*node.inputs, "")[:3], *rest)
        attributes = {**node.attributes, **fused_node.attributes}
        others.append(
            Whole(
                position, fused.count + 1, Node(op, inputs, fused_node.outputs, attributes, OWN_DOMAIN, fused_node.name)
            )
        )
    elif fused in reader.whole:
        others.append(replace(fused, first=position + 1, node=_replace_input(fused_node, weight, name)))
    return replace(
        reader,
        kind=f"{dequantize.kind}{TOGETHER}{reader.kind}",
        nodes=(*reader.nodes[:position], node, *(_replace_input(one, weight, name) for one in reader.nodes[position:])),
        inputs=tuple(dict.fromkeys(n for n in (*reader.inputs, *dequantize.inputs) if n != weight)),
        whole=tuple(sorted(others, key=lambda one: one.first)),
    )


def _replace_input(node: Node, old: str, new: str) -> Node:
    return replace(node, inputs=tuple(new if name == old else name for name in node.inputs))
