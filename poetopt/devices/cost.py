"""A training graph on a device becomes a scheduling problem: bytes, seconds and joules.

Two things disappear. A view is its root's bytes, so its readers read the root. A tensor of the resident region
(parameters, their gradients, constants, statistics, the loss) is nobody's input or output; it only adds
to `resident_bytes`. A storage is resident as soon as one of the tensors that share it is: the gradient of a weight
that is reshaped last is written straight into the resident region.

What an operator needs besides is split: its temporaries are its workspace in the arena; what kernels allocate
themselves is one reserve beside the arena for the whole step, the most that any kernel does. It comes in pages, the
unit in which a system hands out memory: a block that starts and ends within a page takes both.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from poetopt.devices.model import Device
from poetopt.devices.sanity import unusable
from poetopt.errors import DeviceError, ModelError
from poetopt.graph import Operator, Role, TrainingGraph
from poetopt.operators.work import work
from poetopt.passes.joining import TOGETHER
from poetopt.problem import Problem, ProblemOperator, ProblemTensor
from poetopt.runtimes.workspace import ALIGNMENT, inner_layout

_FEW_KERNELS = ("bfloat16", "float64")

PARTS: Mapping[Role, str] = {
    Role.PARAMETER: "parameters",
    Role.PARAMETER_GRADIENT: "gradients",
    Role.CONSTANT: "constants",
    Role.STATE: "states",
    Role.LOSS: "loss",
}
"""What the resident region consists of, by the role of the tensors."""

PAGE = 4096
"""Bytes of a page of memory."""


def resident_storages(graph: TrainingGraph) -> Mapping[str, Role]:
    """The storages (root tensors) of the resident region, each with the role that makes it resident.

    In the order of `graph.tensors`. What only lives inside an operator is not here, whatever its role.
    """
    found: dict[str, Role] = {}
    for name, tensor in graph.tensors.items():
        given = tensor.role in (Role.PARAMETER, Role.CONSTANT)
        if tensor.resident and (given or name in graph.producers):
            root = graph.tensors[graph.root(name)]
            # a constant whose view is somebody's gradient stays a constant
            found.setdefault(root.name, root.role if root.resident else tensor.role)
    return found


def resident_breakdown(graph: TrainingGraph) -> Mapping[str, int]:
    """Bytes of the resident region by what they are: the values of `PARTS`, each storage counted once."""
    sums = dict.fromkeys(PARTS.values(), 0)
    for root, role in resident_storages(graph).items():
        sums[PARTS[role]] += graph.tensors[root].nbytes
    return sums


def cost(graph: TrainingGraph, device: Device, alignment: int = ALIGNMENT) -> Problem:
    """The scheduling problem of one training step on a device.

    Tensors come in the order: graph inputs as in the file, then what each operator writes, operator by operator;
    operators in the graph's order without views. Times are seconds, energies joules, sizes bytes.

    Raises `ModelError` where an operator names a tensor that the graph lacks, `DeviceError` for a device made in Python
    whose figures nothing can be counted with.
    """
    wrong = unusable(device)
    if wrong is not None:
        raise DeviceError(wrong)
    resident = resident_storages(graph)
    index: dict[str, int] = {}
    tensors: list[ProblemTensor] = []
    operators: list[ProblemOperator] = []
    reserve = 0

    def add(name: str, producer: int) -> None:
        nbytes = graph.tensors[name].nbytes
        index[name] = len(tensors)
        tensors.append(
            ProblemTensor(
                name=name,
                nbytes=nbytes,
                producer=producer,
                transfers=device.transfers(nbytes),
            )
        )

    for name in graph.inputs:
        if graph.root(name) not in resident:
            add(name, -1)
    for operator in graph.operators:
        if operator.view:
            continue
        for name in operator.outputs:
            if graph.root(name) not in resident:
                add(name, len(operators))
        layout = inner_layout(operator, graph.tensors, alignment)
        reserve = max((reserve, *layout.kernel_bytes))
        operators.append(_operator(graph, operator, device, index, resident, layout.temporaries_bytes))
    return Problem(
        name=graph.name,
        device=device.name,
        operators=tuple(operators),
        tensors=tuple(tensors),
        paging=device.storage is not None,
        dma=device.dma and device.storage is not None,
        alignment=alignment,
        reserve_bytes=reserve_bytes(reserve),
        wake_j=device.storage.wake_j if device.storage is not None else 0.0,
        storage_bytes=device.storage.capacity_bytes if device.storage is not None else None,
        storage_block_bytes=device.storage.block_bytes if device.storage is not None else 1,
        resident_bytes=sum(graph.tensors[root].nbytes for root in resident),
        device_ram_bytes=device.ram_bytes,
        graph=graph,
        model_ref=graph.source,
        model_hash=graph.content_hash,
        notes=(*storage_notes(device, tensors), *type_notes(graph)),
    )


def reserve_bytes(kernels: int) -> int:
    """What is set aside for kernels that allocate at most `kernels` bytes at once: whole pages, cut at both ends."""
    return (-(-kernels // PAGE) + 2) * PAGE


def storage_notes(device: Device, tensors: Sequence[ProblemTensor]) -> tuple[str, ...]:
    """What a schedule on this device must do without, in words."""
    storage = device.storage
    if storage is None:
        return (f"{device.name} has no storage: schedules can only recompute",)
    everything = sum(storage.moved_bytes(tensor.nbytes) for tensor in tensors)
    if storage.capacity_bytes is not None and everything > storage.capacity_bytes:
        return (
            f"{device.name}'s storage holds {storage.capacity_bytes:,} B and all tensors take {everything:,} B: "
            "schedules write out only what fits",
        )
    return ()


def type_notes(graph: TrainingGraph) -> tuple[str, ...]:
    """That operators compute in types for which onnxruntime leaves out kernels of the CPU, in words.

    Costs and schedules are right all the same. Which kernels there are differs between versions, so `run` finds out.
    """
    kinds: dict[str, dict[str, None]] = {dtype: {} for dtype in _FEW_KERNELS}
    for operator in graph.operators:
        for name in operator.outputs if not operator.backward and not operator.view else ():
            kinds.get(graph.tensors[name].dtype, {}).update(dict.fromkeys(operator.kind.split(TOGETHER)))
    return tuple(
        f"operators in {dtype} ({', '.join(list(found)[:4])}{', ...' if len(found) > 4 else ''}): onnxruntime may have "
        "no kernels for them on the CPU, and then `run` can't execute the plan; export the model in float32 for that"
        for dtype, found in kinds.items()
        if found
    )


def _operator(
    graph: TrainingGraph,
    operator: Operator,
    device: Device,
    index: Mapping[str, int],
    resident: Container[str],
    workspace_bytes: int,
) -> ProblemOperator:
    nodes = work(operator, graph.tensors)
    read = {root for root in map(graph.root, operator.inputs) if root not in resident}
    if unknown := sorted(root for root in read if root not in index):
        raise ModelError(
            f"operator {operator.name!r} reads {', '.join(map(repr, unknown))}, which is neither a graph input nor "
            "written by an operator before it; the graph's operators must be in topological order"
        )
    return ProblemOperator(
        name=operator.name,
        inputs=tuple(sorted(index[name] for name in read)),
        outputs=tuple(sorted(index[name] for name in operator.outputs if name in index)),
        time_s=device.compute_s(nodes),
        energy_j=device.compute_j(nodes),
        workspace_bytes=workspace_bytes,
        recomputable=operator.recomputable,
        backward=operator.backward,
        kind=operator.kind,
        count=max(1, len(operator.members)),
    )
