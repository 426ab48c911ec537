"""The best variants that stream an operator, or that write its output over an input.

There are few streamed variants, and none if all tensors are small.

An output is written over an input by the whole operator, or slice by slice. Node by node, dX can't lie on dY while a
later node reads dY, and masks or products need memory of their own. Slice by slice, they are as large as a slice, and
dY's slice is read before dX's is written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from poetopt.graph import VIEW_OPS, Node, Operator, Role, Tensor
from poetopt.ops.nodes import is_inner_view
from poetopt.ops.runtimes.contract import STORED, InnerLayout, NodeKernels, RuntimeVariant
from poetopt.ops.runtimes.onnxruntime.axes import reads_rows, row_range
from poetopt.ops.runtimes.onnxruntime.loops import HOLD, SliceLoop, held, hold, loops, moved, once_used
from poetopt.ops.runtimes.sliced import FETCH_ROWS, Sliced, fetch_rows, fetch_run, put_rows, run_window
from poetopt.ops.runtimes.workspace import node_by_node

if TYPE_CHECKING:
    from poetopt.graph import Array


@dataclass(frozen=True, slots=True)
class _VariantRequest:
    """An operator whose variants are requested.

    Attributes
    ----------
    kernels
        The most bytes that a kernel may allocate: the most of the plain operator's kernels.
    takes
        Names of an input and the output that lies on it; empty if there is none.
    """

    runtime: NodeKernels
    operator: Operator
    tensors: Mapping[str, Tensor]
    alignment: int
    kernels: int
    takes: tuple[str, ...] = ()

    def layout(self, nodes: Sequence[Node], tensors: Mapping[str, Tensor], buffered: Collection[str]) -> InnerLayout:
        """Return the workspace of these nodes with buffers; an output that overwrites an input is its update."""
        operator, pairs = self.operator, self.operator.updates
        if self.takes:
            pairs = (*pairs, (self.takes[0], self.takes[1]))
        inside = replace(
            operator,
            nodes=tuple(nodes),
            inputs=tuple(n for n in operator.inputs if n not in buffered),
            outputs=tuple(n for n in operator.outputs if n not in buffered),
            updates=tuple(pair for pair in pairs if not {*pair}.intersection(buffered)),
            over=operator.name,  # no temporary may lie in an output, whose slices change
        )
        return node_by_node(self.runtime, inside, tensors, self.alignment)

    def sliced(self, loop: SliceLoop, size: int, transferred: Collection[str] = ()) -> Sliced | None:
        """Return the operator in slices of `size` steps, where `transferred` tensors move from and to storage.

        None if a kernel would allocate more, a view has to copy, or a tensor with a buffer is also used whole.
        """
        operator, tensors = self.operator, self.tensors
        outside = [n for n in (*operator.inputs, *operator.outputs) if n in loop.cuts]
        buffered = frozenset((*transferred, *(n for n in outside if loop.cuts[n].pieces(tensors[n]) > 1)))
        once = once_used(loop)
        if once.intersection((*buffered, *self.takes[1:])):
            return None
        adding, further = _accumulate(loop)
        each = tuple(moved(adding, buffered, operator))
        before = tuple(_read_rows(loop.before, buffered))
        nodes = (*before, *hold(written=sorted(loop.sums)), *each, *hold(read=held(loop)), *loop.behind)
        cut = {**tensors, **{n: c.slice(tensors[n], size) for n, c in loop.cuts.items()}}
        layout = self.layout(nodes, cut, buffered)
        if max(layout.kernel_bytes) > self.kernels or any(
            node.op_type in VIEW_OPS and not is_inner_view(node, layout.storage) for node in each
        ):
            return None
        if self.takes and self.takes[0] not in buffered and not _is_read_before_write(self, nodes, layout):
            return None
        figures = [need for node, need in zip(nodes, layout.kernel_bytes, strict=True) if node.op_type != HOLD]
        layout = replace(layout, kernel_bytes=tuple(figures), kernel_offsets=())
        return Sliced(
            loop.extent, size, loop.cuts, before, each, loop.behind, layout, buffered, frozenset(transferred), further
        )


def taking(
    runtime: NodeKernels,
    operator: Operator,
    tensors: Mapping[str, Tensor],
    alignment: int,
    takes: tuple[str, str],
    values: Mapping[str, Array],
) -> RuntimeVariant | None:
    """Return the variant that writes an output over an input of the same size; None if there is none.

    It is the first variant whose workspace is small, else the one with the least workspace.

    Parameters
    ----------
    takes
        Names of the input and the output.
    values
        Known constants by name.
    """
    kernels = max(node_by_node(runtime, operator, tensors, alignment).kernel_bytes)
    best: Sliced | None = None
    for sliced in _in_place_variants(_VariantRequest(runtime, operator, tensors, alignment, kernels, takes), values):
        if best is None or sliced.layout.temporaries_bytes < best.layout.temporaries_bytes:
            best = sliced
        # a workspace of 1/32 of the output is small enough: more slices only cost time
        if best.layout.temporaries_bytes * 32 <= tensors[takes[1]].nbytes:
            break
    return None if best is None else RuntimeVariant("over", best.layout, detail=best)


def _in_place_variants(request: _VariantRequest, values: Mapping[str, Array]) -> Iterator[Sliced]:
    """Yield the whole operator, then the operator in more and more slices."""
    operator, tensors, (source, target) = request.operator, request.tensors, request.takes
    layout = request.layout(operator.nodes, tensors, ())
    if max(layout.kernel_bytes) <= request.kernels and _is_read_before_write(request, operator.nodes, layout):
        yield Sliced(0, 1, {}, operator.nodes, (), (), replace(layout, kernel_offsets=()))
    for loop in loops(operator, tensors, (source,), values, in_ram=True):
        if loop.sums or loop.cuts.get(target) != loop.cuts[source]:
            continue
        for size in loop.sizes():
            # calls of smaller slices of the output take longer than their computation
            if size * tensors[target].nbytes < 2**17 * loop.extent:
                break
            sliced = request.sliced(loop, size)
            if sliced is not None:
                yield sliced


def _is_read_before_write(request: _VariantRequest, nodes: Sequence[Node], layout: InnerLayout) -> bool:
    """Return whether the output is written after the last read of the input, or by a kernel that may overwrite it."""

    def storage(name: str) -> str:
        return layout.storage.get(name, name)

    source, target = map(storage, request.takes)
    if source == target:
        return False
    written = [k for k, node in enumerate(nodes) if target in map(storage, node.outputs)]
    read = [k for k, node in enumerate(nodes) if source in map(storage, filter(None, node.inputs))]
    if not written or not read:
        return False
    first, last = written[0], read[-1]
    if last < first:
        return True
    overwritable = [storage(nodes[first].inputs[index]) for index in request.runtime.in_place(nodes[first])]
    return last == first and len(nodes[first].outputs) == 1 and source in overwritable


MOST = 4
"""The most streamed variants of an operator."""
READ_BYTES, WRITE_BYTES = 1 << 15, 1 << 16
"""Bytes that an SD card could read and write while one of its transfers starts, approximately."""


@dataclass(frozen=True)
class _RatedVariant:
    """A variant with its RAM while it runs, and the cost of its transfers in bytes beyond reading stored operands."""

    variant: RuntimeVariant
    ram_bytes: int
    price: int


def ways(
    runtime: NodeKernels,
    operator: Operator,
    tensors: Mapping[str, Tensor],
    alignment: int,
    movable: Collection[str],
    values: Mapping[str, Array],
    plain: InnerLayout,
    chunk_bytes: int,
) -> list[RuntimeVariant]:
    """Return at most MOST variants that stream some of `movable`; the one with the least RAM is first.

    Parameters
    ----------
    plain
        The operator's layout without streaming: no kernel may allocate more than in it.
    chunk_bytes
        The largest streamed tensor has chunks of at least so many bytes. A tensor below two chunks isn't streamed.
    """
    large = [name for name in movable if tensors[name].nbytes >= 2 * chunk_bytes]
    if not large or operator.view:
        return []
    whole = sum(tensors[n].nbytes for n in _operands(operator)) + plain.temporaries_bytes
    request = _VariantRequest(runtime, operator, tensors, alignment, max(plain.kernel_bytes))
    scales = [n for node in operator.nodes if node.op_type == "DequantizeLinear" for n in node.inputs[1:2]]
    variants = [
        variant
        for loop in loops(operator, tensors, [*large, *scales], values)
        for variant in _loop_variants(request, loop, large, chunk_bytes)
    ]
    # a variant needs at most 90 % of the plain operator's RAM
    variants = [
        variant for variant in (*variants, *_row_variants(request, large, values)) if variant.ram_bytes <= 0.9 * whole
    ]
    return [variant.variant for variant in _select_variants(variants, whole)]


def _operands(operator: Operator) -> list[str]:
    """Return the tensors that are in RAM while the operator runs plain; updated tensors once."""
    new = {new for _, new in operator.updates}
    return [n for n in dict.fromkeys((*operator.inputs, *operator.outputs)) if n not in new]


def _select_variants(variants: Iterable[_RatedVariant], whole: int) -> list[_RatedVariant]:
    """Return the Pareto optimum with the least RAM, and the cheapest ones at some levels of RAM above it."""
    front: list[_RatedVariant] = []
    for variant in sorted(variants, key=lambda w: (w.ram_bytes, w.price, w.variant.name)):
        if not front or variant.price < front[-1].price:
            front.append(variant)
    if len(front) <= MOST:
        return front
    least = front[0].ram_bytes
    kept = {0: front[0]}
    for k in range(1, MOST):
        level = least * (whole / least) ** (k / MOST)
        at = max(i for i, variant in enumerate(front) if variant.ram_bytes <= level)
        kept[at] = front[at]
    return [kept[at] for at in sorted(kept)]


def _loop_variants(
    request: _VariantRequest, loop: SliceLoop, large: Sequence[str], chunk_bytes: int
) -> Iterator[_RatedVariant]:
    tensors, new, once = request.tensors, dict(request.operator.updates), once_used(loop)
    allowed = [n for n in large if n in loop.cuts and n not in once]
    subsets = [
        [n for n in allowed if tensors[n].role is Role.OPTIMIZER_STATE],
        [n for n in allowed if tensors[n].role in STORED],
        [n for n in allowed if tensors[n].role not in STORED],
        allowed,
    ]
    for number, streamed in enumerate(subsets):
        if not streamed or streamed in subsets[:number]:
            continue
        transferred = {*streamed, *(new[n] for n in streamed if n in new)}
        for size in loop.sizes():
            largest = max(size * tensors[n].nbytes // loop.extent for n in streamed)
            sliced = request.sliced(loop, size, transferred) if largest >= chunk_bytes else None
            if sliced is not None:
                yield _rate_variant(request.operator, tensors, sliced, streamed)


def _accumulate(loop: SliceLoop) -> tuple[tuple[Node, ...], Mapping[str, Node]]:
    """Return the nodes of each chunk, with sums as matrix products, and their replacements from the second chunk on."""
    each: list[Node] = []
    further: dict[str, Node] = {}
    for node in loop.each:
        if node.outputs[0] in loop.sums:
            node = replace(node, op_type="Gemm")
            written = node.outputs[0]
            further[written] = replace(
                node, inputs=(*node.inputs[:2], written), attributes={**node.attributes, "beta": 1.0}
            )
        each.append(put_rows(node) if node.op_type == "ScatterND" else node)
    return tuple(each), further


def _read_rows(
    nodes: Sequence[Node], streamed: Collection[str], runs: Mapping[str, range] = MappingProxyType({})
) -> Iterator[Node]:
    """Yield the nodes; reads of streamed tables read storage. `runs` has the contiguous ranges of rows by output."""
    for node in nodes:
        table = next((n for n in node.inputs if n in streamed), "")
        if table and node.outputs[0] in runs:
            yield fetch_run(table, runs[node.outputs[0]].start, node.outputs[0])
        else:
            yield fetch_rows(table, node.inputs[1], node.outputs[0]) if table else node


def _row_variants(
    request: _VariantRequest, large: Sequence[str], values: Mapping[str, Array]
) -> Iterator[_RatedVariant]:
    """Yield the variant that reads rows of tables from storage, if nodes read only rows of them."""
    operator, tensors = request.operator, request.tensors
    readers = {n: [node for node in operator.nodes if n in node.inputs] for n in large if n in operator.inputs}
    ranges = ((node.outputs[0], row_range(node, n, tensors, values)) for n, nodes in readers.items() for node in nodes)
    runs = {output: rows for output, rows in ranges if rows is not None}
    tables = [
        n
        for n, nodes in readers.items()
        if nodes and all(node.outputs[0] in runs or reads_rows(node, n) for node in nodes)
    ]
    if not tables or operator.updates:
        return
    nodes = tuple(_read_rows(operator.nodes, tables, runs))
    inside = replace(operator, nodes=nodes, inputs=tuple(n for n in operator.inputs if n not in tables))
    layout = node_by_node(request.runtime, inside, tensors, request.alignment)
    if max(layout.kernel_bytes) <= request.kernels:
        layout = replace(layout, kernel_offsets=())
        yield _rate_variant(
            operator, tensors, Sliced(0, 1, {}, nodes, (), (), layout, frozenset(tables), frozenset(tables)), tables
        )


def _rate_variant(
    operator: Operator, tensors: Mapping[str, Tensor], sliced: Sliced, streamed: Sequence[str]
) -> _RatedVariant:
    """Return the variant with its transfers."""
    old = {old for old, _ in operator.updates}
    reads: Counter[int] = Counter()
    writes: Counter[int] = Counter()
    for node in sliced.before:
        if node.op_type == FETCH_ROWS and node.domain and not node.inputs:
            reads[run_window(node, tensors).nbytes] += 1
        elif node.op_type == FETCH_ROWS and node.domain:
            rows = tensors[node.inputs[0]].size
            reads[tensors[node.outputs[0]].nbytes // max(rows, 1)] += rows
    reads_of: dict[str, tuple[tuple[int, int], ...]] = {}
    for name in streamed:
        tensor_reads: Counter[int] = Counter()
        for begin, count in sliced.chunks():
            window = sliced.window(tensors[name], begin, count)
            if name in operator.inputs:
                tensor_reads[window.nbytes] += window.pieces
            if name in operator.outputs or name in old:
                writes[window.nbytes] += window.pieces
        reads.update(tensor_reads)
        reads_of[name] = tuple(sorted(tensor_reads.items()))
    whole = sum(tensors[n].nbytes for n in _operands(operator) if n not in streamed)
    variant = RuntimeVariant(
        f"{sliced.chunk}.{'.'.join(streamed)}",
        sliced.layout,
        tuple(n for n in streamed if n in operator.inputs),
        tuple(n for n in streamed if n not in operator.inputs),
        tuple(sorted(reads.items())),
        tuple(sorted(writes.items())),
        sliced,
        reads_of,
    )
    price = sum((n + READ_BYTES) * count for n, count in reads.items())
    price += sum((n + WRITE_BYTES) * count for n, count in writes.items())
    price -= sum(tensors[n].nbytes + READ_BYTES for n in streamed if tensors[n].role in STORED)
    return _RatedVariant(variant, whole + sliced.layout.temporaries_bytes, price)
