"""An operator that runs slice by slice, as data: nodes that run once before, for each slice, and once behind.

A loop goes over one axis of some of the operator's tensors, one chunk at a time. A tensor of the loop that lies on
storage, or in separate runs in RAM, has a buffer for one slice in the workspace. The nodes `fetch` and `store` fill the
buffer and empty it. Rows of a table on storage are read one by one (`fetch_rows`) or as one run (`fetch_run`), and
written over those of a slice (`put_rows`).
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
    """The part of a tensor that one step of the loop covers: `per` positions of one axis."""

    axis: int
    per: int = 1

    def pieces(self, tensor: Tensor) -> int:
        """Return the number of runs of bytes of a slice."""
        return prod(tensor.shape[: self.axis])

    def unit_bytes(self, tensor: Tensor) -> int:
        """Return the bytes of one step in one run."""
        return bytes_of_elements(self.per * prod(tensor.shape[self.axis + 1 :]), tensor.dtype)

    def slice(self, tensor: Tensor, count: int) -> Tensor:
        """Return a slice of `count` steps."""
        shape = tensor.shape
        return replace(tensor, shape=(*shape[: self.axis], count * self.per, *shape[self.axis + 1 :]))


@dataclass(frozen=True, slots=True)
class SliceWindow:
    """The bytes of a slice in its tensor: runs of `nbytes`, the first at `start`, their begins `apart` bytes apart."""

    start: int
    nbytes: int
    pieces: int = 1
    apart: int = 0


@dataclass(frozen=True)
class Sliced:
    """An operator in a loop.

    Attributes
    ----------
    extent, chunk
        Steps of the loop, and of each chunk; the last chunk may have fewer.
    cuts
        The cut of each tensor of the loop, by name.
    before, each, behind
        The nodes that run once before the loop, for each chunk, and once behind it.
    further
        Nodes that replace a node of `each` from the second chunk on, by their output. They add to that output. Both
        nodes see their operands as matrices.
    buffered
        The operands whose slices have a buffer. Those of `streamed` are on storage, the others in RAM.
    layout
        Offsets of temporaries and buffers. Its figures of kernels are those of `before`, then `each`, then `behind`.
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
        """Yield begin and number of steps of each chunk."""
        for begin in range(0, self.extent, self.chunk):
            yield begin, min(self.chunk, self.extent - begin)

    def window(self, tensor: Tensor, begin: int, count: int) -> SliceWindow:
        """Return the bytes of a slice in its tensor."""
        cut = self.cuts[tensor.name]
        unit, pieces = cut.unit_bytes(tensor), cut.pieces(tensor)
        return SliceWindow(begin * unit, count * unit, pieces, self.extent * unit if pieces > 1 else 0)

    def shapes(self, node: Node, tensors: Mapping[str, Tensor], count: int) -> Mapping[str, Tensor]:
        """Return the tensors of a node of `each`, with the shapes that they have in a chunk of `count` steps."""
        shapes = {n: tensors[n] for n in (*node.inputs, *node.outputs) if n}
        shapes.update((n, self.cuts[n].slice(t, count)) for n, t in shapes.items() if n in self.cuts)
        if node.outputs and node.outputs[0] in self.further:
            shapes = {n: as_matrix(t) for n, t in shapes.items()}
        return shapes


def as_matrix(tensor: Tensor) -> Tensor:
    """Return the tensor with all axes but the last merged into one; a tensor of fewer than three axes is unchanged."""
    shape = tensor.shape
    return replace(tensor, shape=(prod(shape[:-1]), shape[-1])) if len(shape) > 2 else tensor


def fetch(name: str) -> Node:
    """Return the node that reads a slice into its buffer."""
    return Node(FETCH, (), (name,), domain=OWN_DOMAIN)


def store(name: str) -> Node:
    """Return the node that writes a slice from its buffer to its tensor."""
    return Node(STORE, (name,), (), domain=OWN_DOMAIN)


def fetch_rows(table: str, ids: str, rows: str) -> Node:
    """Return the node that reads the rows `ids` of a table on storage."""
    return Node(FETCH_ROWS, (ids,), (rows,), {"table": table}, domain=OWN_DOMAIN)


def fetch_run(table: str, begin: int, rows: str) -> Node:
    """Return the node that reads as many rows of a table on storage as `rows` has, from `begin` on."""
    return Node(FETCH_ROWS, (), (rows,), {"table": table, "begin": begin}, domain=OWN_DOMAIN)


def run_window(node: Node, tensors: Mapping[str, Tensor]) -> SliceWindow:
    """Return the bytes of a table that a node of `fetch_run` reads."""
    rows, begin = tensors[node.outputs[0]], int(str(node.attributes["begin"]))
    return SliceWindow(begin * (rows.nbytes // rows.shape[0]), rows.nbytes)


def put_rows(node: Node) -> Node:
    """Return a node that writes those rows of a ScatterND of whole rows that lie within a slice."""
    return Node(PUT_ROWS, node.inputs, node.outputs, domain=OWN_DOMAIN)
