"""Loops over the nodes of an operator: all nodes that have to be cut if one axis of one tensor is."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd, lcm
from typing import TYPE_CHECKING

from poetopt.graph import OWN_DOMAIN, Node, Operator, Tensor
from poetopt.ops.runtimes.onnxruntime.axes import ELEMENTS, Through, reads_rows, through
from poetopt.ops.runtimes.sliced import Cut, fetch, store

if TYPE_CHECKING:
    from poetopt.graph import Array


COUNTS = (2, 4, 8, 16, 32, 64, 128, 256)
"""Approximate numbers of chunks that are tried."""


@dataclass(frozen=True)
class SliceLoop:
    """A loop over some of an operator's nodes.

    Attributes
    ----------
    extent
        Its steps.
    cuts
        Cut of each tensor of the loop, by name.
    before, each, behind
        The nodes that run once before the loop, for each chunk, and once behind it.
    sums
        Outputs that nodes of `each` sum up over all chunks.
    multiple, least
        Chunks have a multiple of `multiple` steps, and at least `least`; this includes the last chunk.
    """

    extent: int
    cuts: Mapping[str, Cut]
    before: tuple[Node, ...]
    each: tuple[Node, ...]
    behind: tuple[Node, ...]
    sums: frozenset[str]
    multiple: int
    least: int

    def sizes(self) -> Iterator[int]:
        """Yield the steps of a chunk for about each number of chunks in `COUNTS`, each once."""
        seen: set[int] = set()
        for count in COUNTS:
            size = -(-self.extent // count)
            size = -(-size // self.multiple) * self.multiple
            last = self.extent % size if size < self.extent else 0
            if self.least <= size < self.extent and (not last or last >= self.least) and size not in seen:
                seen.add(size)
                yield size


def loops(
    operator: Operator,
    tensors: Mapping[str, Tensor],
    names: Sequence[str],
    values: Mapping[str, Array],
    *,
    in_ram: bool = False,
) -> Iterator[SliceLoop]:
    """Yield the loops over an axis of one of `names`, each once.

    Parameters
    ----------
    in_ram
        Whether all cut tensors are in RAM: then slices may be many and small.
    """
    seen: list[Mapping[str, Cut]] = []
    for name in names:
        for axis, size in enumerate(tensors[name].shape):
            if size > 1 and not any(cuts.get(name) == Cut(axis) for cuts in seen):
                loop = _loop(operator, tensors, name, axis, values, in_ram=in_ram)
                if loop is not None and loop.cuts not in seen:
                    seen.append(loop.cuts)
                    yield loop


def _loop(
    operator: Operator,
    tensors: Mapping[str, Tensor],
    name: str,
    axis: int,
    values: Mapping[str, Array],
    *,
    in_ram: bool,
) -> SliceLoop | None:
    extent = tensors[name].shape[axis]
    users: dict[str, list[int]] = {}
    for k, node in enumerate(operator.nodes):
        for used in {*node.inputs, *node.outputs} - {""}:
            users.setdefault(used, []).append(k)
    cuts = {name: Cut(axis)}
    sliced_nodes: dict[int, Through] = {}
    waiting = [name]
    while waiting:
        cut = waiting.pop()
        for k in users.get(cut, ()):
            if cuts[cut] == Cut(0) and cut in operator.inputs and reads_rows(operator.nodes[k], cut):
                continue
            sliced_node = through(operator.nodes[k], cut, cuts[cut], tensors, values, in_ram=in_ram)
            if sliced_node is None or (k in sliced_nodes and sliced_nodes[k].cuts != sliced_node.cuts):
                return None
            sliced_nodes[k] = sliced_node
            for operand, one in sliced_node.cuts.items():
                if operand not in cuts:
                    cuts[operand] = one
                    waiting.append(operand)
                elif cuts[operand] != one:
                    return None
    if any(tensors[n].shape[c.axis] != extent * c.per for n, c in cuts.items()):
        return None
    for k, sliced_node in sliced_nodes.items():
        node = operator.nodes[k]
        if {n for n in (*node.inputs, *node.outputs) if n in cuts} != set(sliced_node.cuts):
            return None
    order = _split_nodes(operator.nodes, sliced_nodes)
    if order is None:
        return None
    sums = frozenset(operator.nodes[k].outputs[0] for k, sliced_node in sliced_nodes.items() if sliced_node.summed)
    multiple, least = 1, 1
    for sliced_node in sliced_nodes.values():
        multiple = lcm(multiple, sliced_node.multiple // gcd(sliced_node.multiple, sliced_node.per))
        least = max(least, -(-sliced_node.least // sliced_node.per))
    for cut_name, one in cuts.items():
        if in_ram and all(sliced_nodes[k].exact for k in users[cut_name] if k in sliced_nodes):
            continue
        unit = one.unit_bytes(tensors[cut_name])
        whole = ELEMENTS * tensors[cut_name].nbytes // max(tensors[cut_name].size, 1)
        multiple_here = whole // gcd(whole, unit)
        if (
            one.pieces(tensors[cut_name]) > 1
            and extent % multiple_here
            and any(sliced_node.aligned for sliced_node in sliced_nodes.values())
        ):
            return None
        multiple = lcm(multiple, multiple_here)
    return SliceLoop(extent, cuts, *order, sums, multiple, least)


def _split_nodes(
    nodes: Sequence[Node], sliced_nodes: Mapping[int, Through]
) -> tuple[tuple[Node, ...], tuple[Node, ...], tuple[Node, ...]] | None:
    """Return the nodes before, in and behind the loop; None if a node in it needs a result from behind it."""
    before, each, behind = [], [], []
    late: set[str] = set()
    for k, node in enumerate(nodes):
        if k in sliced_nodes:
            if late.intersection(node.inputs):
                return None
            each.append(node)
            late.update(node.outputs if sliced_nodes[k].summed else ())
        elif late.intersection(node.inputs):
            behind.append(node)
            late.update(node.outputs)
        else:
            before.append(node)
    return tuple(before), tuple(each), tuple(behind)


HOLD = "Hold"


def once_used(loop: SliceLoop) -> set[str]:
    """Return the tensors that nodes outside of the loop read and write whole."""
    nodes = (*loop.before, *loop.behind)
    names = ((node, n) for node in nodes for n in (*node.inputs, *node.outputs))
    return {n for node, n in names if not (loop.cuts.get(n) == Cut(0) and node in loop.before and reads_rows(node, n))}


def held(loop: SliceLoop) -> list[str]:
    """Return the tensors that are computed before the loop, and read in each pass."""
    computed = {n for node in loop.before for n in node.outputs if n}
    return sorted(computed.intersection(n for node in loop.each for n in node.inputs))


def hold(read: Sequence[str] = (), written: Sequence[str] = ()) -> tuple[Node, ...]:
    """Return a node that computes nothing and keeps `read` alive up to it, and `written` from it on; often none."""
    return (Node(HOLD, tuple(read), tuple(written), domain=OWN_DOMAIN),) if read or written else ()


def moved(each: Sequence[Node], buffered: Collection[str], operator: Operator) -> Iterator[Node]:
    """Yield the nodes of each chunk, with nodes that fetch slices before them and store slices behind them."""
    fetched: set[str] = set()
    for node in each:
        for name in node.inputs:
            if name in buffered and name in operator.inputs and name not in fetched:
                fetched.add(name)
                yield fetch(name)
        yield node
        yield from (store(name) for name in node.outputs if name in buffered and name in operator.outputs)
