"""The workspace of an operator whose nodes a runtime runs one after another.

There are two kinds of bytes. The temporaries that its nodes pass to one another lie in the arena: they are the
operator's workspace. Each lives from the node that writes it to the last node that reads it, and they are packed like
other buffers. Where the runtime allows it (`Runtime.in_place`), a node overwrites an operand that no later node reads:
a chain of element-wise nodes needs one buffer, which is the operator's output if the chain ends in one. Until an output
is written, its bytes hold temporaries that are no longer read by then.

The bytes that a node's kernel allocates while it runs (`Runtime.kernel_bytes`) lie beside the arena.
`Problem.reserve_bytes` covers the most that any operator's kernels allocate. The layout also has offsets for them in a
larger workspace, for a runtime whose kernels can use memory that is passed to them.
"""

from __future__ import annotations

import functools
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence

from poetopt.graph import Operator, Tensor, inner_storage
from poetopt.graph.arena import pack
from poetopt.ops.nodes import find, is_inner_view
from poetopt.ops.runtimes.contract import InnerLayout, NodeKernels


def node_by_node(
    runtime: NodeKernels, operator: Operator, tensors: Mapping[str, Tensor], alignment: int | None = None
) -> InnerLayout:
    """Lay out the temporaries and the kernels' memory of an operator, as `Runtime.workspace` returns them.

    Parameters
    ----------
    runtime
        Source of the bytes that kernels allocate and of the operands that they overwrite.
    tensors
        All tensors of the graph by name, with the operator's temporaries.
    alignment
        Every offset is a multiple of it; by default the runtime's own.

    Raises
    ------
    ModelError
        A node names a tensor that `tensors` lacks.
    """
    alignment = runtime.alignment if alignment is None else alignment
    if len(operator.nodes) == 1 and {*operator.nodes[0].outputs} <= {*operator.outputs}:
        (node,) = operator.nodes  # most operators have no temporaries
        read = [find(operator, node, name, tensors) if name else None for name in node.inputs]
        need = (
            0
            if operator.view
            else runtime.kernel_bytes(node, read, [find(operator, node, n, tensors) for n in node.outputs])
        )
        return InnerLayout({}, {}, 0, (need,), (0,), need)
    group = shared_storage(runtime, operator, tensors)
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
        moves_nothing = operator.view or is_inner_view(node, group)
        kernels.append(0 if moves_nothing else runtime.kernel_bytes(node, inputs, outputs))
    names = tuple(first)
    offsets, size = _pack_cached(
        tuple(tensors[name].nbytes for name in names),
        tuple(first[name] for name in names),
        tuple(last[name] + 1 for name in names),
        alignment,
    )
    at = dict(zip(names, offsets, strict=True))
    spans = [(at[name], at[name] + tensors[name].nbytes, first[name], last[name]) for name in names]
    places = _kernel_offsets(kernels, spans, alignment)
    return InnerLayout(
        storage=group,
        offsets={**at, **{name: at[root] for name, root in group.items() if root in at}},
        temporaries_bytes=size,
        kernel_bytes=tuple(kernels),
        kernel_offsets=tuple(places),
        total_bytes=max([size, *(place + need for place, need in zip(places, kernels, strict=True))]),
    )


def _kernel_offsets(kernels: Sequence[int], spans: Sequence[tuple[int, int, int, int]], alignment: int) -> list[int]:
    """Return for each node the offset at which its kernel's memory fits between the temporaries alive.

    `spans` are start, end, first and last node of each temporary.
    """
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
        places.append(_find_gap(alive, need, alignment) if need else 0)
        for span in ends.get(k, ()):
            del alive[bisect_left(alive, span)]
    return places


@functools.lru_cache(maxsize=1024)
def _pack_cached(
    sizes: tuple[int, ...], starts: tuple[int, ...], ends: tuple[int, ...], alignment: int
) -> tuple[tuple[int, ...], int]:
    """Call `pack` once for all operators of the same shape: networks repeat equal blocks."""
    return pack(sizes, starts, ends, alignment, brief=True)


def shared_storage(runtime: NodeKernels, operator: Operator, tensors: Mapping[str, Tensor]) -> Mapping[str, str]:
    """Return which tensors share bytes inside an operator: views and outputs of nodes that work in place.

    The result maps a tensor to the one that names its storage: an output or an input of the operator if the group has
    one, else a temporary. Views are those of `poetopt.graph.inner_storage`. Inputs are never overwritten, except for
    tensors that the operator updates. The new value lies there, so that a tensor that shares its storage is written
    only once all nodes have read the old value.

    Finally, a temporary lies in an output's bytes if no node reads it after the first write to that output.
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
    replaced = {new: old for old, new in operator.updates}

    def done_with(old: str, k: int) -> bool:
        """Return whether node k may overwrite `old`: no later node reads it, and k itself may work in place."""
        if last[old] != k:
            return last[old] < k
        return old in (operator.nodes[k].inputs[index] for index in runtime.in_place(operator.nodes[k]))

    for k, node in enumerate(operator.nodes):
        overwritable = runtime.in_place(node) if len(node.outputs) == 1 else ()
        if not overwritable:
            continue
        written = root_of(node.outputs[0])
        if written in read or first[written] != k:
            continue
        size = find(operator, node, node.outputs[0], tensors).nbytes
        for index in overwritable:
            name = node.inputs[index] if index < len(node.inputs) else ""
            root = root_of(name)
            if not name or root in outside or last[root] != k or root == written:
                continue
            if written in replaced and not done_with(replaced[written], first[root]):
                continue
            if find(operator, node, name, tensors).nbytes == size == tensors[written].nbytes == tensors[root].nbytes:
                link[root] = written
                first[written] = first[root]
                break
    # a tensor that the graph lacks is reported where its size is needed
    known = [name for name in first if root_of(name) == name and name in tensors]
    temporaries = [name for name in known if name not in outside]
    idle = [name for name in known if name in operator.outputs and _is_idle_at_first(name, operator, tensors)]
    link.update(_place_in_outputs(temporaries, idle, first, last, tensors))
    return {name: root_of(name) for name in link}


def _is_idle_at_first(output: str, operator: Operator, tensors: Mapping[str, Tensor]) -> bool:
    """Return whether an output's bytes are in the arena and unused until it is written."""
    lies_on_old = operator.over or output in (new for _, new in operator.updates)
    return not (operator.view or lies_on_old or tensors[output].resident)


def _place_in_outputs(
    temporaries: Sequence[str],
    outputs: Sequence[str],
    first: Mapping[str, int],
    last: Mapping[str, int],
    tensors: Mapping[str, Tensor],
) -> Mapping[str, str]:
    """Return temporaries that lie in an output until it is written, each with the output.

    The largest temporaries come first, each into the smallest output with room. No two of one output are alive
    together.

    Parameters
    ----------
    first, last
        The nodes that use each storage first and last.
    """
    lodging: dict[str, str] = {}
    busy: dict[str, list[tuple[int, int]]] = {name: [] for name in outputs if name in first}
    rooms = sorted(busy, key=lambda name: tensors[name].nbytes)
    for name in sorted(temporaries, key=lambda name: -tensors[name].nbytes):
        start, end = first[name], last[name]
        for output in rooms:
            fits = tensors[name].nbytes <= tensors[output].nbytes and end < first[output]
            if fits and all(end < begin or stop < start for begin, stop in busy[output]):
                busy[output].append((start, end))
                lodging[name] = output
                break
    return lodging


def _find_gap(alive: Sequence[tuple[int, int]], need: int, alignment: int) -> int:
    place = 0
    for start, end in alive:
        if start - place >= need:
            break
        place = max(place, -(-end // alignment) * alignment)
    return place
