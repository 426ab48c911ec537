"""An operator that runs slice by slice, as data: what runs once before, for each slice, and once behind.

A loop goes over one axis of some of the operator's tensors, a chunk of it at a time. Of what goes through the loop and
lies elsewhere, on storage or in pieces in RAM, a slice has a buffer in the workspace: `fetch` and `store` are the nodes
that fill it and empty it. Rows of a table on storage are read one by one (`fetch_rows`) or as one run (`fetch_run`),
and written over those of a slice (`put_rows`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod

from poetopt.graph import OWN_DOMAIN, Node, Tensor, bytes_of_elements
from poetopt.ops.runtimes.contract import InnerLayout

FETCH, STORE, FETCH_ROWS, PUT_ROWS = "Fetch", "Store", "FetchRows", "PutRows"


@dataclass(frozen=True, slots=True)
class Cut:
    """Holds what a step of the loop takes of a tensor: so many positions (`per`) of one axis."""

    axis: int
    per: int = 1

    def pieces(self, tensor: Tensor) -> int:
        """Says how many runs of bytes a slice is."""
        return prod(tensor.shape[: self.axis])

    def unit_bytes(self, tensor: Tensor) -> int:
        """Bytes of one step in one piece."""
        return bytes_of_elements(self.per * prod(tensor.shape[self.axis + 1 :]), tensor.dtype)

    def slice(self, tensor: Tensor, count: int) -> Tensor:
        """A slice of so many steps."""
        shape = tensor.shape
        return replace(tensor, shape=(*shape[: self.axis], count * self.per, *shape[self.axis + 1 :]))


@dataclass(frozen=True, slots=True)
class SliceWindow:
    """The bytes of a slice in its whole tensor: pieces of `nbytes`, the first at `start`, `apart` from each other."""

    start: int
    nbytes: int
    pieces: int = 1
    apart: int = 0


@dataclass(frozen=True)
class Sliced:
    """An operator in a loop.

    extent, chunk
        Steps of the loop, and of each chunk; the last one may have fewer.
    cuts
        How each tensor that goes through the loop is cut, by name.
    before, each, behind
        The nodes that run once, for each chunk, and once.
    further
        By what it writes: what runs instead of a node of `each` from the second chunk on. It adds to what the node
        wrote. Both see their operands as matrices.
    buffered
        The operands whose slices have a buffer; those of `streamed` are on storage, the others in RAM.
    layout
        Where temporaries and buffers lie. Its figures of kernels are of `before`, then `each`, then `behind`.
    """

    extent: int
    chunk: int
    cuts: Mapping[str, Cut]
    before: tuple[Node, ...]
    each: tuple[Node, ...]
    behind: tuple[Node, ...]
    layout: InnerLayout
    buffered: frozenset[str] = frozenset()
    streamed: frozenset[str] = frozenset()
    further: Mapping[str, Node] = field(default_factory=dict)

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Begin and steps of each chunk."""
        for begin in range(0, self.extent, self.chunk):
            yield begin, min(self.chunk, self.extent - begin)

    def window(self, tensor: Tensor, begin: int, count: int) -> SliceWindow:
        """Says where a slice lies in its tensor."""
        cut = self.cuts[tensor.name]
        unit, pieces = cut.unit_bytes(tensor), cut.pieces(tensor)
        return SliceWindow(begin * unit, count * unit, pieces, self.extent * unit if pieces > 1 else 0)

    def shapes(self, node: Node, tensors: Mapping[str, Tensor], count: int) -> Mapping[str, Tensor]:
        """The tensors that a node of `each` names, as large as it sees them in a chunk of so many steps."""
        found = {n: tensors[n] for n in (*node.inputs, *node.outputs) if n}
        found.update((n, self.cuts[n].slice(t, count)) for n, t in found.items() if n in self.cuts)
        if node.outputs and node.outputs[0] in self.further:
            found = {n: as_matrix(t) for n, t in found.items()}
        return found


def as_matrix(tensor: Tensor) -> Tensor:
    """The tensor with all axes but the last as one; one without as it is."""
    shape = tensor.shape
    return replace(tensor, shape=(prod(shape[:-1]), shape[-1])) if len(shape) > 2 else tensor


def fetch(name: str) -> Node:
    """Gives what brings a slice into its buffer."""
    return Node(FETCH, (), (name,), domain=OWN_DOMAIN)


def store(name: str) -> Node:
    """Gives what takes a slice from its buffer to where it belongs."""
    return Node(STORE, (name,), (), domain=OWN_DOMAIN)


def fetch_rows(table: str, ids: str, rows: str) -> Node:
    """Gives what reads the rows `ids` of a table on storage."""
    return Node(FETCH_ROWS, (ids,), (rows,), {"table": table}, domain=OWN_DOMAIN)


def fetch_run(table: str, begin: int, rows: str) -> Node:
    """Gives what reads the rows of a table on storage from `begin` on, as many as `rows` has."""
    return Node(FETCH_ROWS, (), (rows,), {"table": table, "begin": begin}, domain=OWN_DOMAIN)


def run_window(node: Node, tensors: Mapping[str, Tensor]) -> SliceWindow:
    """The bytes of a table that such a node reads."""
    rows, begin = tensors[node.outputs[0]], int(str(node.attributes["begin"]))
    return SliceWindow(begin * (rows.nbytes // rows.shape[0]), rows.nbytes)


def put_rows(node: Node) -> Node:
    """A ScatterND of whole rows, of which those within a slice are written."""
    return Node(PUT_ROWS, node.inputs, node.outputs, domain=OWN_DOMAIN)
