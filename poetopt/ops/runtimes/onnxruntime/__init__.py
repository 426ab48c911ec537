"""onnxruntime on the CPU: RAM of its kernels, operands that they overwrite, and types without kernels.

The figures were measured as `poetopt.ops.runtimes.onnxruntime.kernels` describes. The library itself is not imported.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from poetopt.graph import TOGETHER, Node, Operator, Tensor, TrainingGraph
from poetopt.ops.op import op_of
from poetopt.ops.runtimes.contract import InnerLayout, Operands, Runtime, RuntimeVariant
from poetopt.ops.runtimes.onnxruntime.kernels import MEASURED, kernel_bytes
from poetopt.ops.runtimes.onnxruntime.ways import taking, ways
from poetopt.ops.runtimes.workspace import node_by_node

if TYPE_CHECKING:
    from poetopt.graph import Array


def in_place(node: Node) -> tuple[int, ...]:
    """Return the positions of the inputs that a node's kernel may overwrite."""
    places = () if node.domain else op_of(node.op_type).in_place
    return tuple(place for place in places if place < len(node.inputs))


FEW_KERNELS = ("bfloat16", "float64")
"""Types for which many ops have no kernel."""


def type_notes(graph: TrainingGraph) -> tuple[str, ...]:
    """Return notes on operators in types for which onnxruntime lacks many CPU kernels.

    Costs and schedules are right nevertheless. Versions have different kernels, so that only `run` finds out.
    """
    kinds: dict[str, dict[str, None]] = {dtype: {} for dtype in FEW_KERNELS}
    for operator in graph.operators:
        for name in operator.outputs if not operator.backward and not operator.view else ():
            kinds.get(graph.tensors[name].dtype, {}).update(dict.fromkeys(operator.kind.split(TOGETHER)))
    return tuple(
        f"operators in {dtype} ({', '.join(list(names)[:4])}{', ...' if len(names) > 4 else ''}): onnxruntime may have "
        "no CPU kernels for them, and then `run` can't execute the plan; export the model in float32 to execute it"
        for dtype, names in kinds.items()
        if names
    )


PAGE = 4096
"""Bytes of a page of memory."""


class OnnxRuntime(Runtime):
    """onnxruntime's CPU provider with one thread and graph optimisations off, so that each node runs separately."""

    name = "onnxruntime"
    version = MEASURED
    alignment = 64
    """A cache line, and the widest vector register."""
    chunk_bytes = 2**20
    """Operators stream in chunks of at least so many bytes."""

    def in_place(self, node: Node) -> tuple[int, ...]:
        """Return the inputs that the output may overwrite (`Runtime.in_place`)."""
        return in_place(node)

    def kernel_bytes(self, node: Node, inputs: Operands, outputs: Sequence[Tensor]) -> int:
        """Return the most bytes that the kernel of a node allocates (`Runtime.kernel_bytes`)."""
        return kernel_bytes(node, inputs, outputs)

    def workspace(self, operator: Operator, tensors: Mapping[str, Tensor], alignment: int | None = None) -> InnerLayout:
        """Return the layout of the temporaries that the nodes pass to one another."""
        return node_by_node(self, operator, tensors, alignment)

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
        alignment = self.alignment if alignment is None else alignment
        plain = self.workspace(operator, tensors, alignment)
        yield RuntimeVariant("plain", plain)
        if movable:
            yield from ways(self, operator, tensors, alignment, movable, values or {}, plain, self.chunk_bytes)

    def taking(
        self,
        operator: Operator,
        tensors: Mapping[str, Tensor],
        alignment: int | None = None,
        *,
        takes: tuple[str, str],
        values: Mapping[str, Array] | None = None,
    ) -> RuntimeVariant | None:
        """Return the variant that writes an output over an input; None if there is none."""
        return taking(self, operator, tensors, self.alignment if alignment is None else alignment, takes, values or {})

    def reserve_bytes(self, kernels: int) -> int:
        """Return whole pages: a block of the heap that starts and ends within a page occupies both pages."""
        return (-(-kernels // PAGE) + 2) * PAGE

    def notes(self, graph: TrainingGraph) -> tuple[str, ...]:
        """Return notes on operators in types with few kernels."""
        return type_notes(graph)


runtime = OnnxRuntime()
