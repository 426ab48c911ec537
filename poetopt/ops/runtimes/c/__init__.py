"""C99 on the device: kernels without malloc. Their scratch is part of the arena, so that no RAM lies beside it.

The runtime answers from shapes alone and compiles nothing. `poetopt.ops.runtimes.c.kernel` is the contract of its
kernels. `poetopt.ops.runtimes.c.steps` lists the kernel calls of an operator.

Of the many variants that stream an operator, the runtime keeps a short list by RAM and by the cost of transfers.
Operators that differ only in names have the same list. A transfer costs its bytes, and the bytes that the storage could
have moved while the transfer started. The list is the same for every device, as a plan belongs to a network's structure
and a runtime's version.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from poetopt.graph import VIEW_OPS, Node, Operator, Tensor, TrainingGraph
from poetopt.ops.runtimes.c import windows
from poetopt.ops.runtimes.c.kernel import ALIGNMENT, WORD_BYTES
from poetopt.ops.runtimes.c.steps import as_run, call_of, kernel_for, layout, reason, version
from poetopt.ops.runtimes.c.variants import READ_BYTES, StreamCandidate, StreamWays
from poetopt.ops.runtimes.contract import STORED, InnerLayout, Operands, Runtime, RuntimeVariant

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from poetopt.graph import Array


def names_of(operator: Operator) -> tuple[str, ...]:
    """Return all tensors of an operator, each once, in the order of their first mention."""
    names = dict.fromkeys((*operator.inputs, *operator.outputs, *(n for pair in operator.updates for n in pair)))
    for node in (*operator.nodes, *(whole.node for whole in operator.whole)):
        names.update(dict.fromkeys(name for name in (*node.inputs, *node.outputs) if name))
    return tuple(names)


def outline(
    operator: Operator, tensors: Mapping[str, Tensor], values: Mapping[str, Array] | None, *marked: Collection[str]
) -> Hashable:
    """Return a key that is equal for operators that differ only in names; `marked` are sets of names that count too."""
    names = names_of(operator)
    place = {name: k for k, name in enumerate(names)}

    def places(of: Collection[str]) -> Hashable:
        return tuple(place[name] if name else -1 for name in of)

    def node_outline(node: Node) -> Hashable:
        attributes = tuple((name, _freeze(value)) for name, value in sorted(node.attributes.items()))
        return node.domain, node.op_type, places(node.inputs), places(node.outputs), attributes

    def tensor_outline(name: str) -> Hashable:
        tensor = tensors.get(name)
        value = (values or {}).get(name)
        # kernels may look at the bytes of a small constant: axes, shapes, pads
        known = None if value is None or value.nbytes > 4096 else _freeze(value)
        shape = None if tensor is None else (tensor.shape, tensor.dtype, tensor.role)
        return shape, *(name in names for names in marked), value is None, known

    return (
        operator.view,
        operator.over in place,
        places(operator.inputs),
        places(operator.outputs),
        tuple(places(pair) for pair in operator.updates),
        tuple(map(node_outline, operator.nodes)),
        tuple((whole.first, whole.count, node_outline(whole.node)) for whole in operator.whole),
        tuple(map(tensor_outline, names)),
    )


def _freeze(value: object) -> Hashable:
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype.str, value.tobytes()
    if isinstance(value, (list, tuple)):
        return tuple(map(_freeze, value))
    return value if isinstance(value, Hashable) else repr(value)


MOST = 14
"""The most variants of an operator."""
DIGITS = 6
"""Decimal digits of the cost that a variant saves."""


def worth(
    candidates: Iterable[StreamCandidate], sizes: Mapping[str, int], stored: Iterable[str]
) -> list[StreamCandidate]:
    """Return at most MOST candidates, by workspace: the one with the least RAM, then those that save most traffic.

    The saving of a variant is a mean over levels of RAM, in logarithms, and over cases. In the usual case each tensor
    that begins on storage has to be read, whole or in chunks, and every other tensor is in RAM unless it is streamed.
    Each further case reverses this for one operand: it is kept in RAM, or has to be moved.

    Parameters
    ----------
    sizes
        Bytes of the streamed tensors, by name.
    stored
        Tensors that lie on storage at the beginning: parameters, optimizer states.
    """
    sets: dict[tuple[str, ...], list[StreamCandidate]] = {}
    for candidate in candidates:
        sets.setdefault(candidate.streamed, []).append(candidate)
    variants = list(chain(*map(_pareto_front, sets.values())))
    if not variants:
        return []
    ram, price = _candidate_figures(variants, sizes, frozenset(stored))
    least = int(ram.min())
    # variants are compared at 48 levels of RAM, from the least of any variant to all operands whole
    levels = np.geomspace(least, max(sum(sizes.values()), least + 1), 48)
    fits = ram[:, None] <= levels * (1 + 1e-9)
    cost = np.where(fits[:, None, :], price[:, :, None], np.inf).reshape(len(variants), -1)
    first = min(range(len(variants)), key=lambda k: (int(ram[k]), variants[k].traffic, variants[k]))
    return sorted((variants[k] for k in _greedy_cover(cost, first)), key=lambda way: (way.workspace_bytes, way))


def _pareto_front(candidates: Iterable[StreamCandidate]) -> list[StreamCandidate]:
    """Return the Pareto front of workspace and traffic; the candidate with the least workspace is first."""
    kept: list[StreamCandidate] = []
    for candidate in sorted(
        candidates, key=lambda candidate: (candidate.workspace_bytes, candidate.traffic, candidate)
    ):
        if not kept or candidate.traffic < kept[-1].traffic:
            kept.append(candidate)
    return kept


def _candidate_figures(
    candidates: Sequence[StreamCandidate], sizes: Mapping[str, int], stored: frozenset[str]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the RAM of each candidate, and the weighted logarithm of the bytes that it moves in each case."""
    names, each = list(sizes), np.array(list(sizes.values()))
    whole = ~np.array([[name in candidate.streamed for name in names] for candidate in candidates])
    ram = np.array([candidate.workspace_bytes for candidate in candidates]) + whole @ each
    usual = np.array([name in stored for name in names])
    cases = np.array([usual, *(usual ^ other for other in np.eye(len(names), dtype=bool))])
    moved = np.array([candidate.traffic for candidate in candidates])[:, None] + whole @ (cases * (each + READ_BYTES)).T
    # the usual case weighs as much as all others together, three times
    weights = np.array([3.0, *(1 / len(names) for _ in names)])
    # differences in traffic below an eighth of an operator's bytes hardly count
    return ram, np.log(1 / 8 * each.sum() + moved) * weights


def _greedy_cover(cost: NDArray[np.float64], first: int) -> list[int]:
    """Choose `first` and up to MOST - 1 more rows, so that the sum of the columns' minima is small.

    Rows are added greedily. Then each is exchanged for another if that is better. Sums are rounded, so that they are
    equal on all machines.
    """

    def best(now: NDArray[np.float64]) -> tuple[int, float]:
        spared = np.maximum(now - cost, 0).sum(axis=1).round(DIGITS)
        k = int(spared.argmax())
        return k, float(spared[k])

    kept = [first]
    while len(kept) < MOST:
        k, spared = best(cost[kept].min(axis=0))
        if spared <= 0:
            break
        kept.append(k)
    for k in kept[1:]:
        rest = [other for other in kept if other != k]
        now = cost[rest].min(axis=0)
        to, spared = best(now)
        if spared > round(float(np.maximum(now - cost[k], 0).sum()), DIGITS):
            kept = [*rest, to]
    return kept


_kept_candidates: dict[Hashable, tuple[StreamCandidate, ...]] = {}
"""The candidates that are kept for equal operators; tensors are numbers."""


def _rename_streamed(candidate: StreamCandidate, names: Mapping[str, str]) -> StreamCandidate:
    return candidate._replace(streamed=tuple(names[name] for name in candidate.streamed))


class _CRuntime(Runtime):
    """The kernels of `poetopt.ops` and of other packages."""

    name = "c"
    alignment = ALIGNMENT
    rows_of_parts = False
    """False: batches arrive part by part, so that the rows of later parts are unknown before the first one."""

    @property
    def version(self) -> str:
        """Version of poetopt's own kernels, and of the packages of others."""
        # raised whenever results or scratch of one of our own kernels change
        return version("2")

    def in_place(self, node: Node) -> tuple[int, ...]:
        """Return the inputs that the output may overwrite (`Runtime.in_place`)."""
        kernel = kernel_for(node)
        return kernel.in_place if kernel is not None else ()

    def kernel_bytes(self, node: Node, inputs: Operands, outputs: Sequence[Tensor]) -> int:
        """Return 0: scratch is part of the workspace."""
        return 0

    def block_bytes(self, unit: int) -> int:
        """Return the bytes that the program moves at once to and from a storage of blocks of `unit` bytes."""
        return windows.block_bytes(unit)

    def row_numbers_bytes(self, count: int) -> int:
        """Return the bytes kept of a table by rows: the numbers of at most `count` rows of a batch, and their count."""
        return WORD_BYTES * (count + 1)

    def losses_bytes(self, graph: TrainingGraph) -> int:
        """Return the bytes of the sum of the losses of those parts of a batch that have run."""
        return graph.tensors[graph.loss].nbytes if graph.parts > 1 else 0

    def workspace(self, operator: Operator, tensors: Mapping[str, Tensor], alignment: int | None = None) -> InnerLayout:
        """Return the layout of temporaries between the steps of an operator, and of scratch."""
        return layout(operator, tensors, ALIGNMENT if alignment is None else alignment)

    def variants(
        self,
        operator: Operator,
        tensors: Mapping[str, Tensor],
        alignment: int | None = None,
        *,
        movable: Collection[str] = (),
        listed: Collection[str] = (),
        values: Mapping[str, Array] | None = None,
        block_bytes: int = 1,
    ) -> Iterator[RuntimeVariant]:
        """Yield the plain variant, then those that stream (`Runtime.variants`)."""
        alignment = ALIGNMENT if alignment is None else alignment
        yield RuntimeVariant("plain", self.workspace(operator, tensors, alignment))
        if movable or listed:
            block = windows.block_bytes(block_bytes)
            generator = StreamWays(
                operator, tensors, alignment, movable=movable, listed=listed, values=values, block=block
            )
            names = names_of(operator)
            numbers = {name: f"{k:04}" for k, name in enumerate(names)}
            key = block, alignment, generator.kernels, outline(operator, tensors, values, movable, listed)
            if key not in _kept_candidates:
                sizes = {numbers[name]: tensors[name].nbytes for name in (*movable, *listed)}
                stored = [numbers[name] for name in (*movable, *listed) if tensors[name].role in STORED]
                numbered = (_rename_streamed(candidate, numbers) for candidate in generator.candidates())
                _kept_candidates[key] = tuple(worth(numbered, sizes, stored))
            named = dict(zip(numbers.values(), names, strict=True))
            yield from (generator.variant(_rename_streamed(candidate, named)) for candidate in _kept_candidates[key])

    def reserve_bytes(self, kernels: int) -> int:
        """Return the bytes that kernels allocate, which is 0 for poetopt's own."""
        return kernels

    def notes(self, graph: TrainingGraph) -> tuple[str, ...]:
        """Return a note on the ops without a kernel."""
        reasons: dict[str, None] = {}
        for operator in graph.operators:
            ran = as_run(operator, graph.tensors)
            for node in () if operator.view else ran.nodes:
                why = (
                    None if node.op_type in VIEW_OPS and not node.domain else reason(call_of(ran, node, graph.tensors))
                )
                if why:
                    reasons[why] = None
        texts = list(reasons)
        if not texts:
            return ()
        more = f", and {len(texts) - 4} more" if len(texts) > 4 else ""
        return (
            "the runtime c lacks kernels for this network, so that no C can be emitted for its plans: "
            f"{'; '.join(texts[:4])}{more}; plan with the runtime onnxruntime",
        )


runtime = _CRuntime()
