"""What stands between the nodes of a loop: slices are brought to their buffers and taken away, and some things stay."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from poetopt.graph import OWN_DOMAIN, Node, Operator
from poetopt.runtimes.onnxruntime.slices.axes import reads_rows
from poetopt.runtimes.onnxruntime.slices.loops import Loop
from poetopt.runtimes.sliced import Cut, fetch, store

HOLD = "Hold"


def once_used(loop: Loop) -> set[str]:
    """What nodes outside of the loop read and write whole."""
    nodes = (*loop.before, *loop.behind)
    names = ((node, n) for node in nodes for n in (*node.inputs, *node.outputs))
    return {n for node, n in names if not (loop.cuts.get(n) == Cut(0) and node in loop.before and reads_rows(node, n))}


def held(loop: Loop) -> list[str]:
    """What is there before the loop, and read in each pass."""
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
