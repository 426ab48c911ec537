"""What an operator needs while it runs beyond its inputs and outputs.

Two kinds of bytes. The temporaries that its nodes pass to one another lie in the arena, as the operator's workspace:
each lives from the node that writes it to the last that reads it, and they are packed like any other
buffers. An element-wise node writes over an operand that nobody reads after it (`IN_PLACE`), so that a chain of
them needs one buffer: the operator's output, where it ends in one. What a node's kernel allocates itself, while that
node runs, comes beside the arena (`Problem.reserve_bytes` is the most that any operator's kernels do); the layout
says also where in a larger workspace it would fit, for a runtime that can be told.
"""

from __future__ import annotations

import functools
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from poetopt.arena import pack
from poetopt.graph import Operator, Tensor, inner_storage
from poetopt.operators.nodes import find, is_inner_view
from poetopt.runtimes.onnxruntime.kernels import kernel_bytes

ALIGNMENT = 64
"""Bytes that every buffer starts at a multiple of: a cache line, and the widest vector register."""


_FIRST, _EITHER = (0,), (0, 1)
IN_PLACE: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Max", "Min"), _EITHER),
    **dict.fromkeys(("Neg", "Abs", "Sqrt", "Reciprocal", "Exp", "Log", "Sin", "Cos", "Erf", "Relu", "Clip"), _FIRST),
    **dict.fromkeys(("Sigmoid", "Tanh", "HardSigmoid", "Softplus", "BatchNormalization"), _FIRST),
    **dict.fromkeys(("ScatterElements", "ScatterND"), _FIRST),
}
"""Ops whose kernel gives the same bits where its output lies on an operand of the same size, and which operands."""


@dataclass(frozen=True, slots=True)
class InnerLayout:
    """An operator's workspace in detail.

    storage
        Which tensor names the storage of each that shares another's: see `shared_storage`.
    offsets
        Where each temporary starts in the workspace. Temporaries that share storage share the offset; those that
        share an output's or an input's storage are not here.
    temporaries_bytes
        Size of the workspace: the end of the last temporary.
    kernel_bytes
        For each node, the most that its kernel allocates.
    kernel_offsets, total_bytes
        Were the kernels to allocate in the workspace too: where, beside the temporaries alive, and the end of it all.
    """

    storage: Mapping[str, str]
    offsets: Mapping[str, int]
    temporaries_bytes: int
    kernel_bytes: tuple[int, ...]
    kernel_offsets: tuple[int, ...]
    total_bytes: int


def inner_layout(operator: Operator, tensors: Mapping[str, Tensor], alignment: int = ALIGNMENT) -> InnerLayout:
    """Where the temporaries and the kernels' memory of an operator lie in its workspace.

    tensors
        All tensors of the graph by name, the operator's temporaries among them.
    alignment
        Every offset is a multiple of it.

    Raises `ModelError` where a node names a tensor that `tensors` lacks.
    """
    if len(operator.nodes) == 1 and {*operator.nodes[0].outputs} <= {*operator.outputs}:
        (node,) = operator.nodes  # most operators: nothing is temporary
        read = [find(operator, node, name, tensors) if name else None for name in node.inputs]
        need = (
            0 if operator.view else kernel_bytes(node, read, [find(operator, node, n, tensors) for n in node.outputs])
        )
        return InnerLayout({}, {}, 0, (need,), (0,), need)
    group = shared_storage(operator, tensors)
    outside = {*operator.inputs, *operator.outputs}
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    kernels: list[int] = []
    for k, node in enumerate(operator.nodes):
        inputs = [find(operator, node, name, tensors) if name else None for name in node.inputs]
        outputs = [find(operator, node, name, tensors) for name in node.outputs if name]
        for tensor in (*inputs, *outputs):
            root = group.get(tensor.name, tensor.name) if tensor else ""
            if root and root not in outside:
                first.setdefault(root, k)
                last[root] = k
        still = operator.view or is_inner_view(node, group)
        kernels.append(0 if still else kernel_bytes(node, inputs, outputs))
    names = tuple(first)
    offsets, size = _packed(
        tuple(tensors[name].nbytes for name in names),
        tuple(first[name] for name in names),
        tuple(last[name] + 1 for name in names),
        alignment,
    )
    at = dict(zip(names, offsets, strict=True))
    spans = [(at[name], at[name] + tensors[name].nbytes, first[name], last[name]) for name in names]
    places = _places(kernels, spans, alignment)
    return InnerLayout(
        storage=group,
        offsets={**at, **{name: at[root] for name, root in group.items() if root in at}},
        temporaries_bytes=size,
        kernel_bytes=tuple(kernels),
        kernel_offsets=tuple(places),
        total_bytes=max([size, *(place + need for place, need in zip(places, kernels, strict=True))]),
    )


def _places(kernels: Sequence[int], spans: Sequence[tuple[int, int, int, int]], alignment: int) -> list[int]:
    """For each node, where what its kernel takes fits between the temporaries alive: start, end, first node, last."""
    begins: dict[int, list[tuple[int, int]]] = {}
    ends: dict[int, list[tuple[int, int]]] = {}
    for start, end, begin, last in spans:
        begins.setdefault(begin, []).append((start, end))
        ends.setdefault(last, []).append((start, end))
    alive: list[tuple[int, int]] = []
    places: list[int] = []
    for k, need in enumerate(kernels):
        for span in begins.get(k, ()):
            insort(alive, span)
        places.append(_gap(alive, need, alignment) if need else 0)
        for span in ends.get(k, ()):
            del alive[bisect_left(alive, span)]
    return places


@functools.lru_cache(maxsize=1024)
def _packed(
    sizes: tuple[int, ...], starts: tuple[int, ...], ends: tuple[int, ...], alignment: int
) -> tuple[tuple[int, ...], int]:
    """`pack`, once for all operators of the same shape: equal blocks ask the same again and again."""
    return pack(sizes, starts, ends, alignment)


def shared_storage(operator: Operator, tensors: Mapping[str, Tensor]) -> Mapping[str, str]:
    """Who shares whose bytes inside an operator: views (`poetopt.graph.inner_storage`), and nodes that work in place.

    The result maps a tensor to the one that names its storage: an output or an input of the operator where the
    group has one, else a temporary. Inputs are never written over.
    """
    link = dict(inner_storage(operator))

    def root_of(name: str) -> str:
        top = name
        while top in link:
            top = link[top]
        while name != top:
            link[name], name = top, link[name]
        return top

    read = set(operator.inputs)
    outside = {*operator.inputs, *operator.outputs}
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for k, node in enumerate(operator.nodes):
        for name in filter(None, (*node.inputs, *node.outputs)):
            root = root_of(name)
            first.setdefault(root, k)
            last[root] = k
    for k, node in enumerate(operator.nodes):
        if node.domain or len(node.outputs) != 1 or node.op_type not in IN_PLACE:
            continue
        written = root_of(node.outputs[0])
        if written in read or first[written] != k:
            continue
        size = find(operator, node, node.outputs[0], tensors).nbytes
        for index in IN_PLACE[node.op_type]:
            name = node.inputs[index] if index < len(node.inputs) else ""
            root = root_of(name)
            if not name or root in outside or last[root] != k or root == written:
                continue
            if find(operator, node, name, tensors).nbytes == size == tensors[written].nbytes == tensors[root].nbytes:
                link[root] = written
                first[written] = first[root]
                break
    return {name: root_of(name) for name in link}


def _gap(alive: Sequence[tuple[int, int]], need: int, alignment: int) -> int:
    place = 0
    for start, end in alive:
        if start - place >= need:
            break
        place = max(place, -(-end // alignment) * alignment)
    return place


def workspace_bytes(operator: Operator, tensors: Mapping[str, Tensor], alignment: int = ALIGNMENT) -> int:
    """Bytes of the arena that an operator needs while it runs, beside its inputs and outputs: its temporaries."""
    return inner_layout(operator, tensors, alignment).temporaries_bytes
