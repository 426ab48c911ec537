"""All kernels of the `c` runtime, and the kernel calls that run an operator, with their scratch.

Kernels are poetopt's own (`poetopt.ops`) and those that other packages register (`poetopt.kernels`). The kernel of a
fused op runs several nodes in a row if it exists and doesn't refuse them. Every other node has its own kernel. A
gradient and the update behind it run in one kernel where there is one (`Gemm+sgd.update`): then the whole gradient
never exists. The planner and the code generator see the same steps.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from poetopt.graph import OWN_DOMAIN, Node, Operator, Tensor, TrainingGraph, Whole
from poetopt.ops import KERNELS
from poetopt.ops.nodes import find, is_inner_view
from poetopt.ops.runtimes.c.kernel import ALIGNMENT, MOST_BYTES, UPDATE, WORD_BYTES, Call, Kernel
from poetopt.ops.runtimes.contract import InnerLayout, Operands
from poetopt.ops.runtimes.workspace import node_by_node
from poetopt.util import imports
from poetopt.util.errors import DeviceError, UnsupportedOpError

if TYPE_CHECKING:
    from poetopt.graph import Array


GROUP = "poetopt.kernels"

Op = tuple[str, str]
"""Domain and op type."""


def kernel_for(node: Node) -> Kernel | None:
    """Return the kernel for an op, whatever its operands; None if there is none."""
    return kernels().get((node.domain, node.op_type))


def reason(call: Call) -> str | None:
    """Return why no kernel runs a call, by shapes and attributes alone; None if its kernel does."""
    kernel = kernel_for(call.node)
    name = f"{call.node.domain}.{call.node.op_type}".lstrip(".")
    if kernel is None:
        return f"there is no kernel for {name}"
    for tensor in (*call.inputs, *call.outputs):
        if tensor is not None and tensor.nbytes >= MOST_BYTES:
            return (
                f"tensor {tensor.name!r} has {tensor.nbytes:,} B, but the limit of loops in C is {MOST_BYTES:,}; use a "
                "smaller batch"
            )
    return kernel.refuses(call)


@cache
def kernels() -> Mapping[Op, Kernel]:
    """Return all kernels.

    Raises
    ------
    DeviceError
        An entry point can't be loaded, or is no kernel.
    """
    by_op: dict[Op, Kernel] = {}
    for module in KERNELS:
        for kernel in importlib.import_module(f"poetopt.ops.{module}").KERNELS:
            op = kernel.domain, kernel.op_type
            if op in by_op:
                raise ValueError(f"two kernels for {op}")
            by_op[op] = kernel
    for point in _entry_points():
        by_op.update(((kernel.domain, kernel.op_type), kernel) for kernel in _load_kernels(point))
    return by_op


@cache
def version(own_version: str) -> str:
    """Return `own` and the packages of other kernels with their versions."""
    others = sorted({f"{p.dist.name} {p.dist.version}" if p.dist else p.name for p in _entry_points()})
    return "+".join((own_version, *others))


def _entry_points() -> list[EntryPoint]:
    return sorted(entry_points(group=GROUP), key=lambda point: point.name)


def _load_kernels(point: EntryPoint) -> Iterator[Kernel]:
    held = imports.load(point, "kernel", DeviceError)
    for kernel in held if isinstance(held, (list, tuple)) else (held,):
        if not isinstance(kernel, Kernel):
            kind = type(kernel).__name__
            origin = imports.origin(point)
            raise DeviceError(f"kernel '{point.name}' ({origin}) is a {kind}, no Kernel; tell its authors")
        yield kernel


@dataclass(frozen=True, slots=True)
class KernelStep:
    """One call of a kernel.

    Attributes
    ----------
    call, kernel
        The call, and the kernel that runs it.
    scratch_offset, scratch_bytes
        Offset of its scratch in the operator's workspace, and its size.
    """

    call: Call
    kernel: Kernel
    scratch_offset: int
    scratch_bytes: int


def steps(
    operator: Operator,
    tensors: Mapping[str, Tensor],
    values: Mapping[str, Array] | None = None,
    alignment: int = ALIGNMENT,
) -> tuple[KernelStep, ...]:
    """Return the calls that run an operator, in order; views have none.

    `layout` has the place of each tensor of a call: `offsets` in the workspace, else its name in `storage`.

    Parameters
    ----------
    tensors
        All tensors of the graph by name.
    values
        The constants of the graph by name: tensors that aren't trained. Without them, no code can be written.
    alignment
        Offsets are multiples of it: the plan's alignment.

    Raises
    ------
    UnsupportedOpError
        No kernel runs a node; the message has the reason.
    """
    ran = as_run(operator, tensors)
    inner = placed(ran, tensors, alignment)
    result: list[KernelStep] = []
    for k, node in enumerate(ran.nodes):
        if operator.view or is_inner_view(node, inner.storage):
            continue
        call = replace(call_of(ran, node, tensors), values={} if values is None else values)
        kernel = kernel_for(node)
        why = reason(call) or (kernel.missing(call) if kernel is not None and values is not None else None)
        if kernel is None or why:
            raise UnsupportedOpError(
                f"operator {operator.name!r}, node {node.name or node.op_type!r} ({node.op_type}): the runtime c can't "
                f"run it: {why}; plan with the runtime onnxruntime, or register a kernel (entry point poetopt.kernels)"
            )
        result.append(KernelStep(call, kernel, inner.kernel_offsets[k], inner.kernel_bytes[k]))
    return tuple(result)


def check_runs(graph: TrainingGraph) -> None:
    """Raise `UnsupportedOpError` if an operator of `graph` has a node that no kernel runs."""
    constants = graph.constants
    for operator in graph.operators:
        steps(operator, graph.tensors, constants)


def layout(operator: Operator, tensors: Mapping[str, Tensor], alignment: int = ALIGNMENT) -> InnerLayout:
    """Return the workspace of an operator: temporaries between its steps, and scratch of its kernels.

    Kernels allocate no bytes beside it: `kernel_bytes` is 0 for each node. `kernel_offsets` has the offset of a step's
    scratch at the first node of the step.
    """
    ran = as_run(operator, tensors)
    inner = placed(ran, tensors, alignment)
    places = dict(zip((run.first for run in _runs(operator, tensors)), inner.kernel_offsets, strict=True))
    count = len(operator.nodes)
    return replace(
        inner,
        temporaries_bytes=inner.total_bytes,
        kernel_bytes=(0,) * count,
        kernel_offsets=tuple(places.get(k, 0) for k in range(count)),
        kept_bytes=sum(_kept_bytes(call_of(ran, node, tensors)) for node in ran.nodes),
    )


def as_run(operator: Operator, tensors: Mapping[str, Tensor]) -> Operator:
    """Return `operator` with the nodes that are run: a fused op is one node if its kernel accepts it."""
    if not operator.whole:
        return operator
    return replace(operator, nodes=tuple(run.node for run in _runs(operator, tensors)), whole=())


def placed(ran: Operator, tensors: Mapping[str, Tensor], alignment: int) -> InnerLayout:
    """Lay out temporaries and scratch; `kernel_bytes` is scratch."""
    return node_by_node(_Scratch(), ran, tensors, alignment)


def call_of(operator: Operator, node: Node, tensors: Mapping[str, Tensor]) -> Call:
    """Return a node with its tensors, without values."""
    inputs, outputs = (
        tuple(find(operator, node, name, tensors) if name else None for name in names)
        for names in (node.inputs, node.outputs)
    )
    return Call(node, inputs, outputs)


def _is_accepted(operator: Operator, node: Node, tensors: Mapping[str, Tensor]) -> bool:
    return reason(call_of(operator, node, tensors)) is None


def _runs(operator: Operator, tensors: Mapping[str, Tensor]) -> list[Whole]:
    """Return the nodes that are run, each with the range of nodes that it replaces."""
    whole = {run.first: run for run in operator.whole}
    runs: list[Whole] = []
    k = 0
    while k < len(operator.nodes):
        run = whole.get(k)
        if run is None or not _is_accepted(operator, run.node, tensors):
            run = Whole(k, 1, operator.nodes[k])
        k += run.count
        both = _fuse_update(runs[-1], run, operator) if runs else None
        if both is not None and _is_accepted(operator, both.node, tensors):
            runs[-1] = both
        else:
            runs.append(run)
    return runs


def _fuse_update(run: Whole, update: Whole, operator: Operator) -> Whole | None:
    """Fuse a gradient and the update that alone reads it; operands are the gradient's, the parameter, scalars."""
    gradient, updating = run.node, update.node
    if (
        updating.domain != OWN_DOMAIN
        or not updating.op_type.endswith(UPDATE)
        or gradient.outputs != updating.inputs[1:2]
    ):
        return None
    nodes = (*operator.nodes[: run.first], *operator.nodes[update.first + update.count :])
    if gradient.outputs[0] in {*operator.outputs, *(name for node in nodes for name in node.inputs)}:
        return None
    node = Node(
        f"{gradient.op_type}+{updating.op_type}",
        (*gradient.inputs, updating.inputs[0], *updating.inputs[2:]),
        updating.outputs,
        gradient.attributes,
        OWN_DOMAIN,
        updating.name,
    )
    return Whole(run.first, run.count + update.count, node)


def _kept_bytes(call: Call) -> int:
    kernel = kernel_for(call.node)
    return 0 if kernel is None else WORD_BYTES * len(kernel.state(call))


class _Scratch:
    """The kernels in the form that `node_by_node` expects: a kernel's memory is its scratch."""

    alignment = ALIGNMENT

    def in_place(self, node: Node) -> tuple[int, ...]:
        """Return the inputs that the output of a node may overwrite."""
        kernel = kernel_for(node)
        return kernel.in_place if kernel is not None else ()

    def kernel_bytes(self, node: Node, inputs: Operands, outputs: Sequence[Tensor]) -> int:
        """Return the scratch of a node's kernel."""
        kernel = kernel_for(node)
        present = iter(outputs)
        call = Call(node, tuple(inputs), tuple(next(present) if name else None for name in node.outputs))
        return 0 if kernel is None or kernel.refuses(call) else kernel.scratch_bytes(call)
