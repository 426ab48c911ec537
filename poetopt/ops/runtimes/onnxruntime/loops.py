"""Describes which nodes of an operator go through one loop together, from one axis of one tensor on."""

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
"""About so many chunks are tried."""


@dataclass(frozen=True)
class SliceLoop:
    """A loop over some of an operator's nodes.

    extent
        Its steps.
    cuts
        How each tensor that goes through it is cut.
    before, each, behind
        The nodes that run once, for each chunk, and once.
    sums
        What nodes of `each` sum up over all chunks.
    multiple, least
        Steps of a chunk: a multiple, and the fewest, of the last one too.
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
        """Steps of a chunk for about as many chunks as `COUNTS` has, each once."""
        found: set[int] = set()
        for count in COUNTS:
            size = -(-self.extent // count)
            size = -(-size // self.multiple) * self.multiple
            last = self.extent % size if size < self.extent else 0
            if self.least <= size < self.extent and (not last or last >= self.least) and size not in found:
                found.add(size)
                yield size


def loops(
    operator: Operator,
    tensors: Mapping[str, Tensor],
    names: Sequence[str],
    values: Mapping[str, Array],
    *,
    in_ram: bool = False,
) -> Iterator[SliceLoop]:
    """The loops that one of `names` goes through, each once.

    in_ram
        Whether all slices are of what is in RAM: there may be many small ones then.
    """
    found: list[Mapping[str, Cut]] = []
    for name in names:
        for axis, size in enumerate(tensors[name].shape):
            if size > 1 and not any(cuts.get(name) == Cut(axis) for cuts in found):
                loop = _loop(operator, tensors, name, axis, values, in_ram=in_ram)
                if loop is not None and loop.cuts not in found:
                    found.append(loop.cuts)
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
    ways: dict[int, Through] = {}
    waiting = [name]
    while waiting:
        cut = waiting.pop()
        for k in users.get(cut, ()):
            if cuts[cut] == Cut(0) and cut in operator.inputs and reads_rows(operator.nodes[k], cut):
                continue
            way = through(operator.nodes[k], cut, cuts[cut], tensors, values, in_ram=in_ram)
            if way is None or (k in ways and ways[k].cuts != way.cuts):
                return None
            ways[k] = way
            for operand, one in way.cuts.items():
                if operand not in cuts:
                    cuts[operand] = one
                    waiting.append(operand)
                elif cuts[operand] != one:
                    return None
    if any(tensors[n].shape[c.axis] != extent * c.per for n, c in cuts.items()):
        return None
    for k, way in ways.items():
        node = operator.nodes[k]
        if {n for n in (*node.inputs, *node.outputs) if n in cuts} != set(way.cuts):
            return None
    order = _ordered(operator.nodes, ways)
    if order is None:
        return None
    sums = frozenset(operator.nodes[k].outputs[0] for k, way in ways.items() if way.summed)
    multiple, least = 1, 1
    for way in ways.values():
        multiple = lcm(multiple, way.multiple // gcd(way.multiple, way.per))
        least = max(least, -(-way.least // way.per))
    for cut_name, one in cuts.items():
        if in_ram and all(ways[k].exact for k in users[cut_name] if k in ways):
            continue
        unit = one.unit_bytes(tensors[cut_name])
        whole = ELEMENTS * tensors[cut_name].nbytes // max(tensors[cut_name].size, 1)
        own = whole // gcd(whole, unit)
        if one.pieces(tensors[cut_name]) > 1 and extent % own and any(way.aligned for way in ways.values()):
            return None
        multiple = lcm(multiple, own)
    return SliceLoop(extent, cuts, *order, sums, multiple, least)


def _ordered(
    nodes: Sequence[Node], ways: Mapping[int, Through]
) -> tuple[tuple[Node, ...], tuple[Node, ...], tuple[Node, ...]] | None:
    """Gives what runs before the loop, in it, and behind it; None where something in it waits for what is behind it."""
    before, each, behind = [], [], []
    late: set[str] = set()
    for k, node in enumerate(nodes):
        if k in ways:
            if late.intersection(node.inputs):
                return None
            each.append(node)
            late.update(node.outputs if ways[k].summed else ())
        elif late.intersection(node.inputs):
            behind.append(node)
            late.update(node.outputs)
        else:
            before.append(node)
    return tuple(before), tuple(each), tuple(behind)


HOLD = "Hold"


def once_used(loop: SliceLoop) -> set[str]:
    """Gives what nodes outside of the loop read and write whole."""
    nodes = (*loop.before, *loop.behind)
    names = ((node, n) for node in nodes for n in (*node.inputs, *node.outputs))
    return {n for node, n in names if not (loop.cuts.get(n) == Cut(0) and node in loop.before and reads_rows(node, n))}


def held(loop: SliceLoop) -> list[str]:
    """Gives what is there before the loop, and read in each pass."""
    made = {n for node in loop.before for n in node.outputs if n}
    return sorted(made.intersection(n for node in loop.each for n in node.inputs))


def hold(read: Sequence[str] = (), written: Sequence[str] = ()) -> tuple[Node, ...]:
    """A node that does nothing, but that its operands live up to there, or from there on."""
    return (Node(HOLD, tuple(read), tuple(written), domain=OWN_DOMAIN),) if read or written else ()


def moved(each: Sequence[Node], buffered: Collection[str], operator: Operator) -> Iterator[Node]:
    """The nodes of each chunk, each with what brings its slices before it, and what takes them away behind it."""
    there: set[str] = set()
    for node in each:
        for name in node.inputs:
            if name in buffered and name in operator.inputs and name not in there:
                there.add(name)
                yield fetch(name)
        yield node
        yield from (store(name) for name in node.outputs if name in buffered and name in operator.outputs)
