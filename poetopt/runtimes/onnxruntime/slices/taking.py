"""Operators whose output is written over an input: as they are, or slice by slice.

Node by node, dX can't lie on dY as long as a later node reads dY, and masks or products need bytes of their own. Slice
by slice, they are as large as a slice, and dY's slice is read before dX's is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
SMALL = 32
"""A workspace of one such part of the output is small enough: more slices only take time."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is asked: the operator, and by name the input and the output that lies on it."""

    runtime: NodeKernels
    operator: Operator
    tensors: Mapping[str, Tensor]
    alignment: int
    takes: tuple[str, str]

    def layout(self, operator: Operator, tensors: Mapping[str, Tensor]) -> InnerLayout:
        """The workspace of what the operator becomes, on what its tensors become."""
        return node_by_node(self.runtime, operator, tensors, self.alignment)


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
    asked = _Asked(runtime, operator, tensors, alignment, takes)
    kernels = max(asked.layout(operator, tensors).kernel_bytes)
    best: Sliced | None = None
    for found in _ways(asked, values):
        if max(found.layout.kernel_bytes) > kernels:
            continue
        if best is None or found.layout.temporaries_bytes < best.layout.temporaries_bytes:
            best = found
        if best.layout.temporaries_bytes * SMALL <= tensors[takes[1]].nbytes:
            break
    return None if best is None else RuntimeVariant("over", best.layout, detail=best)


def _ways(asked: _Asked, values: Mapping[str, Array]) -> Iterator[Sliced]:
    """Whole, then in more and more slices."""
    operator, tensors, (given, made) = asked.operator, asked.tensors, asked.takes
    layout = asked.layout(_inside(asked, operator.nodes, ()), tensors)
    if _read_first(asked, operator.nodes, layout):
        yield Sliced(0, 1, {}, operator.nodes, (), (), replace(layout, kernel_offsets=()))
    for loop in loops(operator, tensors, (given,), values, in_ram=True):
        if loop.sums or loop.cuts.get(made) != loop.cuts[given]:
            continue
        for size in loop.sizes():
            if size * tensors[made].nbytes < SLICE_BYTES * loop.extent:
                break
            found = _sliced(asked, loop, size)
            if found is not None:
                yield found


def _inside(asked: _Asked, nodes: Sequence[Node], buffered: Sequence[str]) -> Operator:
    """The operator as its workspace is laid out: the output is an update of the input that it takes over."""
    operator = asked.operator
    pairs = (*operator.updates, asked.takes)
    return replace(
        operator,
        nodes=tuple(nodes),
        inputs=tuple(n for n in operator.inputs if n not in buffered),
        outputs=tuple(n for n in operator.outputs if n not in buffered),
        updates=tuple(pair for pair in pairs if not {*pair}.intersection(buffered)),
        over=operator.name,  # so that no temporary lies in an output, whose slices come and go
    )


def _sliced(asked: _Asked, loop: Loop, size: int) -> Sliced | None:
    """In slices of so many steps; None where a view has to copy, or what is in pieces is also read or written whole."""
    operator, tensors, (given, made) = asked.operator, asked.tensors, asked.takes
    outside = [n for n in dict.fromkeys((*operator.inputs, *operator.outputs)) if n in loop.cuts]
    buffered = [n for n in outside if loop.cuts[n].pieces(tensors[n]) > 1]
    once = once_used(loop)
    if once.intersection(buffered) or made in once:
        return None
    each = tuple(moved(loop.each, buffered, operator))
    nodes = (*loop.before, *each, *hold(read=held(loop)), *loop.behind)
    cut = {**tensors, **{n: c.slice(tensors[n], size) for n, c in loop.cuts.items()}}
    layout = asked.layout(_inside(asked, nodes, buffered), cut)
    if any(node.op_type in VIEW_OPS and not is_inner_view(node, layout.storage) for node in each):
        return None
    if given not in buffered and not _read_first(asked, nodes, layout):
        return None
    figures = [need for node, need in zip(nodes, layout.kernel_bytes, strict=True) if node.op_type != HOLD]
    layout = replace(layout, kernel_bytes=tuple(figures), kernel_offsets=())
    return Sliced(loop.extent, size, loop.cuts, loop.before, each, loop.behind, layout, frozenset(buffered))


def _read_first(asked: _Asked, nodes: Sequence[Node], layout: InnerLayout) -> bool:
    """Whether the input has been read, or is written over by a kernel that may, when the output is first written."""

    def storage(name: str) -> str:
        return layout.storage.get(name, name)

    given, made = map(storage, asked.takes)
    if given == made:
        return False
    written = [k for k, node in enumerate(nodes) if made in map(storage, node.outputs)]
    read = [k for k, node in enumerate(nodes) if given in map(storage, filter(None, node.inputs))]
    if not written or not read:
        return False
    first, last = written[0], read[-1]
    if last < first:
        return True
    over = [storage(nodes[first].inputs[index]) for index in asked.runtime.in_place(nodes[first])]
    return last == first and len(nodes[first].outputs) == 1 and given in over
