"""Operators that dequantize the weights that they read, where their kernels do it bit by bit.

A dequantized weight takes several times the bytes of the weight. Where each of its readers, with the DequantizeLinear
among its nodes, needs less workspace than that, they dequantize it themselves, each time that they run: no schedule has
to keep it, or to find room for it. Its numbers are the same, and so are all results.
"""

from __future__ import annotations

from dataclasses import replace

from poetopt.autodiff.passes.in_place import kept_tensors
from poetopt.graph import OWN_DOMAIN, TOGETHER, Node, Operator, Role, TrainingGraph, Whole
from poetopt.ops.runtimes.contract import Runtime

_PRODUCTS = frozenset({"Gemm", "MatMul"})


def dequantized_within(graph: TrainingGraph, runtime: Runtime) -> TrainingGraph:
    """`graph` with the DequantizeLinear of frozen weights in the operators that read them, where that takes less RAM.

    Such an operator's `kind` begins with `DequantizeLinear+`. A graph without any is returned as it is. Raises
    `ModelError` where a node names a tensor that the graph lacks.
    """
    kept, tensors = kept_tensors(graph), graph.tensors
    changed: dict[str, Operator] = {}
    gone: set[str] = set()
    for operator in graph.operators:
        if operator.kind != "DequantizeLinear" or any(tensors[n].role is not Role.CONSTANT for n in operator.inputs):
            continue
        (weight,) = operator.outputs
        readers = [changed.get(reader.name, reader) for reader in graph.readers.get(weight, ())]
        made = [joined for reader in readers if (joined := _joined(operator, reader)) is not None]
        if weight in kept or not made or len(made) < len(readers):
            continue
        apart, within = (
            [runtime.workspace(one, tensors).temporaries_bytes for one in some] for some in (readers, made)
        )
        if all(b < a + tensors[weight].nbytes for a, b in zip(apart, within, strict=True)):
            gone.add(operator.name)
            changed.update((one.name, one) for one in made)
    if not gone:
        return graph
    note = f"{len(gone)} frozen weights are dequantized by the operators that read them, part by part"
    operators = tuple(changed.get(o.name, o) for o in graph.operators if o.name not in gone)
    return replace(graph, operators=operators, notes=(*graph.notes, note))


def _joined(dequantize: Operator, reader: Operator) -> Operator | None:
    """`reader` with the node of `dequantize` right before its first node that reads the weight; None for a view."""
    (node,), (weight,) = dequantize.nodes, dequantize.outputs
    at = next(k for k, one in enumerate(reader.nodes) if weight in one.inputs)
    if reader.view or reader.over or any(one.first < at < one.first + one.count for one in reader.whole):
        return None
    whole = [replace(one, first=one.first + (one.first >= at)) for one in reader.whole]
    product = reader.nodes[at]
    times = sum(one.inputs.count(weight) for one in reader.nodes)
    if product.op_type in _PRODUCTS and not product.domain and times == 1 and product.inputs[1] == weight:
        factor, *rest = (*product.inputs[:1], *product.inputs[2:])
        together = Node(
            f"{node.op_type}{TOGETHER}{product.op_type}",
            (factor, *(*node.inputs, "")[:3], *rest),
            product.outputs,
            {**node.attributes, **product.attributes},
            OWN_DOMAIN,
            product.name,
        )
        whole = sorted([*whole, Whole(at, 2, together)], key=lambda one: one.first)
    return replace(
        reader,
        kind=f"{dequantize.kind}{TOGETHER}{reader.kind}",
        nodes=(*reader.nodes[:at], node, *reader.nodes[at:]),
        inputs=tuple(dict.fromkeys(n for n in (*reader.inputs, *dequantize.inputs) if n != weight)),
        whole=tuple(whole),
    )
