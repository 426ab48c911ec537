"""Operators that dequantize the weights that they read, where they do it part by part.

A dequantized weight takes several times the bytes of the weight. Where each of its readers, with the DequantizeLinear
among its nodes, needs no more workspace than that, they dequantize it themselves, each time that they run: no schedule
has to keep it, to move it, or to find room for it. In C any product takes less, and on onnxruntime what streams the
weight from storage. Its numbers are the same, and so are all results.
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
    """`graph` with the DequantizeLinear of frozen weights in the operators that read them, if that takes no more RAM.

    Such an operator's `kind` begins with `DequantizeLinear+`. A graph without any is returned as it is. Raises
    `ModelError` where a node names a tensor that the graph lacks.
    """
    kept, tensors, changed = kept_tensors(graph), dict(graph.tensors), dict[str, Operator]()
    constants, gone = graph.constants, set[str]()
    for operator in graph.operators:
        if operator.kind != "DequantizeLinear" or any(tensors[n].role is not Role.CONSTANT for n in operator.inputs):
            continue
        (weight,) = operator.outputs
        readers = [changed.get(reader.name, reader) for reader in graph.readers.get(weight, ())]
        own = {reader.name: _free(f"{reader.name}/{weight}", tensors) for reader in readers}
        made = [one for reader in readers if (one := _joined(operator, reader, own[reader.name])) is not None]
        if weight in kept or not made or len(made) < len(readers):
            continue
        there = tensors | {name: replace(tensors[weight], name=name) for name in own.values()}
        apart = [runtime.workspace(one, tensors).temporaries_bytes for one in readers]
        within = [_least_bytes(one, operator.inputs, there, constants, runtime) for one in made]
        if all(b <= a + tensors[weight].nbytes for a, b in zip(apart, within, strict=True)):
            gone.add(operator.name)
            tensors = {name: tensor for name, tensor in there.items() if name != weight}
            changed.update((one.name, one) for one in made)
    if not gone:
        return graph
    note = f"{len(gone)} frozen weights are dequantized by the operators that read them, part by part"
    operators = tuple(changed.get(o.name, o) for o in graph.operators if o.name not in gone)
    return replace(graph, operators=operators, tensors=tensors, notes=(*graph.notes, note))


def _free(name: str, taken: Container[str]) -> str:
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
    """The least workspace of `operator`, plain or with what is `stored` streamed."""
    found = runtime.variants(operator, tensors, movable=stored, values=constants)
    return min(variant.workspace.temporaries_bytes for variant in found)


def _joined(dequantize: Operator, reader: Operator, name: str) -> Operator | None:
    """`reader` with the node of `dequantize`, which writes `name` there, before the first that reads the weight.

    None for a view.
    """
    (weight,) = dequantize.outputs
    node = replace(dequantize.nodes[0], outputs=(name,), name=name)
    at = next(k for k, one in enumerate(reader.nodes) if weight in one.inputs)
    run = next((one for one in reader.whole if one.first <= at < one.first + one.count), Whole(at, 1, reader.nodes[at]))
    if reader.view or reader.over:
        return None
    others = [replace(one, first=one.first + (one.first > at)) for one in reader.whole if one != run]
    at, last = run.first, run.first + run.count
    product = run.node
    alone = not any(weight in one.inputs for one in reader.nodes[last:]) and product.inputs.count(weight) == 1
    back = (product.domain, product.op_type) == (OWN_DOMAIN, "Conv.grad_input")
    within = back or (not product.domain and op_of(product.op_type).reads_quantized)
    if within and alone and product.inputs[1] == weight:
        factor, *rest = (*product.inputs[:1], *product.inputs[2:])
        op, own = f"{node.op_type}{TOGETHER}{product.op_type}", (factor, *(*node.inputs, "")[:3], *rest)
        attributes = {**node.attributes, **product.attributes}
        others.append(Whole(at, run.count + 1, Node(op, own, product.outputs, attributes, OWN_DOMAIN, product.name)))
    elif run in reader.whole:
        others.append(replace(run, first=at + 1, node=_reading(product, weight, name)))
    return replace(
        reader,
        kind=f"{dequantize.kind}{TOGETHER}{reader.kind}",
        nodes=(*reader.nodes[:at], node, *(_reading(one, weight, name) for one in reader.nodes[at:])),
        inputs=tuple(dict.fromkeys(n for n in (*reader.inputs, *dequantize.inputs) if n != weight)),
        whole=tuple(sorted(others, key=lambda one: one.first)),
    )


def _reading(node: Node, old: str, new: str) -> Node:
    return replace(node, inputs=tuple(new if name == old else name for name in node.inputs))
