"""C99 on the device: kernels without malloc, whose scratch is part of the arena, so that nothing lies beside it.

It answers from shapes alone and compiles nothing. `poetopt.ops.runtimes.c.kernel` is the contract of its kernels,
`poetopt.ops.runtimes.c.steps` what it runs of an operator.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from poetopt.graph import VIEW_OPS, Node, Operator, Role, Tensor, TrainingGraph
from poetopt.ops.runtimes.c import windows
from poetopt.ops.runtimes.c.choice import names_of, outline, worth
from poetopt.ops.runtimes.c.kernel import ALIGNMENT, WORD_BYTES
from poetopt.ops.runtimes.c.steps import as_run, call_of, kernel_for, layout, reason, version
from poetopt.ops.runtimes.c.variants import StreamCandidate, StreamWays
from poetopt.ops.runtimes.contract import InnerLayout, Operands, RuntimeVariant

if TYPE_CHECKING:
    from poetopt.graph import Array

VERSION = "2"
"""The version of our own kernels, raised whenever results or scratch of one change."""


STORED = frozenset({Role.PARAMETER, Role.OPTIMIZER_STATE, Role.CONSTANT})
"""The roles of what begins on storage, where it isn't in RAM for good."""


_chosen: dict[Hashable, tuple[StreamCandidate, ...]] = {}
"""The ways that are kept of operators that are alike, with their tensors by number."""


def _renamed(way: StreamCandidate, names: Mapping[str, str]) -> StreamCandidate:
    return way._replace(streamed=tuple(names[name] for name in way.streamed))


class CRuntime:
    """The kernels of `poetopt.ops`, and those that other packages register."""

    name = "c"
    alignment = ALIGNMENT
    rows_of_parts = False
    """Batches come part by part, and nobody knows the rows of all of them before the first one."""

    @property
    def version(self) -> str:
        """Of our own kernels, and the packages of others."""
        return version(VERSION)

    def in_place(self, node: Node) -> tuple[int, ...]:
        """See `Runtime.in_place`."""
        kernel = kernel_for(node)
        return kernel.in_place if kernel is not None else ()

    def kernel_bytes(self, node: Node, inputs: Operands, outputs: Sequence[Tensor]) -> int:
        """Nothing: scratch is part of the workspace."""
        return 0

    def block_bytes(self, unit: int) -> int:
        """Gives what it moves at once to and from a storage of blocks of `unit` bytes."""
        return windows.block_bytes(unit)

    def row_numbers_bytes(self, count: int) -> int:
        """Bytes kept of a table by rows: the numbers of those that a batch uses, `count` at most, and how many."""
        return WORD_BYTES * (count + 1)

    def losses_bytes(self, graph: TrainingGraph) -> int:
        """Gives what it keeps of a batch in parts: the sum of the losses of those that have run."""
        return graph.tensors[graph.loss].nbytes if graph.parts > 1 else 0

    def workspace(self, operator: Operator, tensors: Mapping[str, Tensor], alignment: int | None = None) -> InnerLayout:
        """Temporaries between the steps of an operator, and scratch."""
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
        """See `Runtime.variants`: the plain one, then those of `variants`."""
        alignment = ALIGNMENT if alignment is None else alignment
        yield RuntimeVariant("plain", self.workspace(operator, tensors, alignment))
        if movable or listed:
            block = windows.block_bytes(block_bytes)
            ways = StreamWays(operator, tensors, alignment, movable=movable, listed=listed, values=values, block=block)
            names = names_of(operator)
            numbers = {name: f"{k:04}" for k, name in enumerate(names)}
            key = block, alignment, ways.kernels, outline(operator, tensors, values, movable, listed)
            if key not in _chosen:
                sizes = {numbers[name]: tensors[name].nbytes for name in (*movable, *listed)}
                stored = [numbers[name] for name in (*movable, *listed) if tensors[name].role in STORED]
                numbered = (_renamed(way, numbers) for way in ways.candidates())
                _chosen[key] = tuple(worth(numbered, sizes, stored))
            named = dict(zip(numbers.values(), names, strict=True))
            yield from (ways.variant(_renamed(way, named)) for way in _chosen[key])

    def reserve_bytes(self, kernels: int) -> int:
        """Nothing but what kernels allocate, and they don't."""
        return kernels

    def notes(self, graph: TrainingGraph) -> tuple[str, ...]:
        """Says which ops it has no kernel for."""
        found: dict[str, None] = {}
        for operator in graph.operators:
            ran = as_run(operator, graph.tensors)
            for node in () if operator.view else ran.nodes:
                why = (
                    None if node.op_type in VIEW_OPS and not node.domain else reason(call_of(ran, node, graph.tensors))
                )
                if why:
                    found[why] = None
        shown = list(found)
        if not shown:
            return ()
        more = f", and {len(shown) - 4} more" if len(shown) > 4 else ""
        return (
            "the runtime c can't run all of this network, and no C is emitted for its plans: "
            f"{'; '.join(shown[:4])}{more} (--runtime onnxruntime plans for kernels that do)",
        )


runtime = CRuntime()
