"""Operators whose output is written over an input: as they are, or slice by slice.

Node by node, dX can't lie on dY as long as a later node reads dY, and masks or products need bytes of their own. Slice
by slice, they are as large as a slice, and dY's slice is read before dX's is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from poetopt.graph import VIEW_OPS, Node, Operator, Tensor
from poetopt.operators.nodes import is_inner_view
from poetopt.runtimes.contract import InnerLayout, RuntimeVariant
from poetopt.runtimes.onnxruntime.slices.loops import Loop, loops
from poetopt.runtimes.onnxruntime.slices.moves import HOLD, held, hold, moved, once_used
from poetopt.runtimes.sliced import Sliced
from poetopt.runtimes.workspace import NodeKernels, node_by_node

if TYPE_CHECKING:
    from poetopt.graph import Array

SLICE_BYTES = 2**17
"""The least of the output that a slice has: what is smaller takes longer to call than to compute."""
COUNTS = (2, 4, 8, 16, 32, 64, 128, 256)
"""About so many slices are tried."""
SMALL = 32
"""A workspace of one such part of the output is small enough: more slices only take time."""


def taking(
    runtime: NodeKernels,
    operator: Operator,
    tensors: Mapping[str, Tensor],
    alignment: int,
    takes: tuple[str, str],
    values: Mapping[str, Array],
) -> RuntimeVariant | None:
    """The operator with an output over the bytes of an input of the same size; None where that can't be.

    takes
        The input and the output.
    values
        Constants by name.

    Of the ways that there are, the first whose workspace is small, else the one that takes the least.
    """
    kernels = max(node_by_node(runtime, operator, tensors, alignment).kernel_bytes)
    best: Sliced | None = None
    for found in _ways(runtime, operator, tensors, alignment, takes, values):
        if max(found.layout.kernel_bytes) > kernels:
            continue
        if best is None or found.layout.temporaries_bytes < best.layout.temporaries_bytes:
            best = found
        if best.layout.temporaries_bytes * SMALL <= tensors[takes[1]].nbytes:
            break
    return None if best is None else RuntimeVariant("over", best.layout, detail=best)


def _ways(
    runtime: NodeKernels,
    operator: Operator,
    tensors: Mapping[str, Tensor],
    alignment: int,
    takes: tuple[str, str],
    values: Mapping[str, Array],
) -> Iterator[Sliced]:
    """Whole, then in more and more slices."""
    inside = _inside(operator, takes, operator.nodes, ())
    layout = node_by_node(runtime, inside, tensors, alignment)
    if _read_first(runtime, operator.nodes, takes, layout):
        yield Sliced(0, 1, {}, operator.nodes, (), (), replace(layout, kernel_offsets=()))
    for loop in loops(operator, tensors, takes[:1], values, in_ram=True):
        if loop.sums or loop.cuts.get(takes[1]) != loop.cuts[takes[0]]:
            continue
        for size in loop.sizes(COUNTS):
            if size * tensors[takes[1]].nbytes < SLICE_BYTES * loop.extent:
                break
            found = _sliced(runtime, operator, tensors, alignment, takes, loop, size)
            if found is not None:
                yield found


def _inside(operator: Operator, takes: tuple[str, str], nodes: Sequence[Node], buffered: Sequence[str]) -> Operator:
    """The operator as its workspace is laid out: the output is an update of the input that it takes over."""
    pairs = (*operator.updates, takes)
    return replace(
        operator,
        nodes=tuple(nodes),
        inputs=tuple(n for n in operator.inputs if n not in buffered),
        outputs=tuple(n for n in operator.outputs if n not in buffered),
        updates=tuple(pair for pair in pairs if not {*pair}.intersection(buffered)),
        over=operator.name,  # so that no temporary lies in an output, whose slices come and go
    )


def _sliced(
    runtime: NodeKernels,
    operator: Operator,
    tensors: Mapping[str, Tensor],
    alignment: int,
    takes: tuple[str, str],
    loop: Loop,
    size: int,
) -> Sliced | None:
    """In slices of so many steps; None where a view has to copy, or what is in pieces is also read or written whole."""
    outside = [n for n in dict.fromkeys((*operator.inputs, *operator.outputs)) if n in loop.cuts]
    buffered = [n for n in outside if loop.cuts[n].pieces(tensors[n]) > 1]
    once = once_used(loop)
    if once.intersection(buffered) or takes[1] in once:
        return None
    each = tuple(moved(loop.each, buffered, operator))
    nodes = (*loop.before, *each, *hold(read=held(loop)), *loop.behind)
    cut = {**tensors, **{n: c.slice(tensors[n], size) for n, c in loop.cuts.items()}}
    layout = node_by_node(runtime, _inside(operator, takes, nodes, buffered), cut, alignment)
    if any(node.op_type in VIEW_OPS and not is_inner_view(node, layout.storage) for node in each):
        return None
    if takes[0] not in buffered and not _read_first(runtime, nodes, takes, layout):
        return None
    figures = [need for node, need in zip(nodes, layout.kernel_bytes, strict=True) if node.op_type != HOLD]
    layout = replace(layout, kernel_bytes=tuple(figures), kernel_offsets=())
    return Sliced(loop.extent, size, loop.cuts, loop.before, each, loop.behind, layout, frozenset(buffered))


def _read_first(runtime: NodeKernels, nodes: Sequence[Node], takes: tuple[str, str], layout: InnerLayout) -> bool:
    """Whether the input has been read, or is written over by a kernel that may, when the output is first written."""

    def storage(name: str) -> str:
        return layout.storage.get(name, name)

    given, made = map(storage, takes)
    if given == made:
        return False
    written = [k for k, node in enumerate(nodes) if made in map(storage, node.outputs)]
    read = [k for k, node in enumerate(nodes) if given in map(storage, filter(None, node.inputs))]
    if not written or not read:
        return False
    first, last = written[0], read[-1]
    if last < first:
        return True
    over = [storage(nodes[first].inputs[index]) for index in runtime.in_place(nodes[first])]
    return last == first and len(nodes[first].outputs) == 1 and given in over
