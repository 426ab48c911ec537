"""Costs of a training graph on a device: seconds and joules of operators, and homes of tensors."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from poetopt.autodiff.passes.in_place import takings
from poetopt.devices.model import Device
from poetopt.devices.sanity import check_usable
from poetopt.graph import Operator, Role, TrainingGraph, residence
from poetopt.graph.problem import CLOSING, Home, Problem, ProblemOperator, ProblemTensor, Transfers, Variant
from poetopt.ops.flops import work
from poetopt.ops.nodes import resident_storages, streamable
from poetopt.ops.runtimes import runtime as runtime_of
from poetopt.ops.runtimes.contract import Runtime, RuntimeVariant
from poetopt.util.errors import DeviceError, ModelError, OptionError


def fed_from_storage(problem: Problem, graph: TrainingGraph) -> Problem:
    """Return `problem` with its largest inputs on storage, until those in RAM fit the largest working set.

    The caller of the step writes each batch to storage; reading it needs no page-out. Inputs with row numbers of tables
    stay in RAM.
    """
    least = max(map(problem.least_working_set_bytes, range(len(problem.operators))), default=0)
    ids = {graph.root(rows.ids) for rows in graph.rows.values() if rows.ids}
    start_bytes = problem.start_bytes
    inputs = [i for i, t in enumerate(problem.tensors) if not t.computed and t.home is Home.RAM and t.name not in ids]
    tensors = list(problem.tensors)
    notes: list[str] = []
    for i in sorted(inputs, key=lambda i: (-tensors[i].nbytes, i)):
        if start_bytes <= least:
            break
        start_bytes -= tensors[i].nbytes
        tensors[i] = replace(tensors[i], home=Home.STORAGE, carried=True, of_batch=True)
        notes.append(
            f"the input {tensors[i].name!r} of {tensors[i].nbytes:,} B begins on storage: in RAM it would take more "
            "than any operator needs. Write the batch of each step there"
        )
    return replace(problem, tensors=tuple(tensors), notes=(*problem.notes, *notes)) if notes else problem


PARAMETERS = ("resident", "paged")
"""Places of parameters in a problem: always in RAM, or scheduled like other tensors."""
WEIGHTS = frozenset({Role.PARAMETER, Role.CONSTANT})
"""Roles whose tensors may be in mapped flash, unless they last from step to step."""
SCHEDULED = WEIGHTS | {Role.GRADIENT_SUM, Role.OPTIMIZER_STATE}
"""Roles whose tensors may have their home on storage."""
STREAM = ("auto", "never")
"""Modes of streaming operands from and to storage."""


@dataclass(frozen=True)
class Homes:
    """Storages (root tensors) that exist when a step begins.

    Attributes
    ----------
    ram
        The resident region.
    storage
        Those with their home on storage, each with the name of the operator that updates it, or "".
    flash
        Those in mapped flash.
    """

    ram: Mapping[str, Role]
    storage: Mapping[str, str]
    flash: Mapping[str, Role]


def homes(graph: TrainingGraph, device: Device, parameters: str = PARAMETERS[0]) -> Homes:
    """Return the home of each root tensor.

    Parameters
    ----------
    parameters
        `resident` or `paged`.

    Raises
    ------
    OptionError
        For another word.
    DeviceError
        If a device without storage should page.
    """
    if parameters not in PARAMETERS:
        raise OptionError(f"--parameters {parameters}: must be auto, {' or '.join(PARAMETERS)}")
    if parameters == "paged" and device.storage is None:
        raise DeviceError(f"{device.name} has no storage to page parameters to. Leave out --parameters paged")
    resident = dict(resident_storages(graph))
    updaters = {graph.root(old): operator.name for old, operator in graph.updaters.items()}
    sizes = {name: graph.tensors[name].nbytes for name in resident}
    flash = {name: resident.pop(name) for name in in_flash(graph, device.flash_room_bytes)}
    storage: dict[str, str] = {}
    beside = {graph.root(name) for name in graph.beside}
    if parameters == "paged":
        for name, role in list(resident.items()):
            # A tensor of up to 64 bytes stays in RAM: paging it gains nothing.
            if role in SCHEDULED and sizes[name] > 64 and name not in beside:
                storage[name] = updaters.get(name, "")
                del resident[name]
    return Homes(resident, storage, flash)


def in_flash(graph: TrainingGraph, room_bytes: int) -> tuple[str, ...]:
    """Return the root tensors that fit `room_bytes` of mapped flash, the largest first."""
    lasting = {graph.root(name) for name in graph.lasting}
    frozen = [name for name, role in resident_storages(graph).items() if role in WEIGHTS and name not in lasting]
    chosen: list[str] = []
    for name in sorted(frozen, key=lambda name: (-graph.tensors[name].nbytes, name)):
        if graph.tensors[name].nbytes <= room_bytes:
            chosen.append(name)
            room_bytes -= graph.tensors[name].nbytes
    return tuple(chosen)


def cost(
    graph: TrainingGraph,
    device: Device,
    runtime: Runtime | None = None,
    parameters: str = PARAMETERS[0],
    stream: str = STREAM[1],
    *,
    over: bool = True,
    where: Homes | None = None,
) -> Problem:
    """Return the scheduling problem of one training step on a device.

    Tensors come in this order: graph inputs as in the file, outputs of each operator in turn, then tensors whose home
    is storage. Operators come in the graph's order without views. Times are seconds, energies joules, sizes bytes.

    Parameters
    ----------
    runtime
        Runtime of the operators; by default the device's.
    parameters
        `resident`, or `paged`: parameters, optimizer states and constants have their home on storage, and are
        scheduled.
    stream
        `auto`: operators may stream operands from and to storage if the runtime has such variants; or `never`.
    over
        Whether operators may overwrite their inputs (`poetopt.autodiff.passes.in_place`).
    where
        Homes, if another step determines them.

    Raises
    ------
    ModelError
        If an operator reads a tensor that the graph lacks.
    DeviceError
        For a device made in Python with unusable figures or an unknown runtime.
    OptionError
        For another value of `stream` or `parameters`.
    """
    check_usable(device)
    if stream not in STREAM:
        raise OptionError(f"stream={stream!r}: must be {' or '.join(STREAM)}")
    takes = runtime_of(device.runtime) if runtime is None else runtime
    where = homes(graph, device, parameters) if where is None else where
    resident = {**where.ram, **where.flash}
    index: dict[str, int] = {}
    tensors: list[ProblemTensor] = []
    operators: list[ProblemOperator] = []
    kernel_bytes = kept_bytes = 0
    streams = stream == STREAM[0] and device.storage is not None
    block_bytes = 1 if device.storage is None else device.storage.block_bytes
    constants = graph.constants
    taken = takings(graph, takes).by_operator if over else {}

    def add(name: str, producer: int) -> None:
        nbytes, role_residence = graph.tensors[name].nbytes, residence(graph.tensors[name].role)
        index[name] = len(tensors)
        tensors.append(
            ProblemTensor(
                name=name,
                nbytes=nbytes,
                producer=producer,
                transfers=device.transfers(nbytes),
                home=role_residence.home,
                carried=role_residence.carried,
                result=role_residence.result,
            )
        )

    for name in graph.inputs:
        if graph.root(name) not in resident:
            add(name, -1)
    scheduled = [operator for operator in graph.operators if not operator.view]
    for k, operator in enumerate(scheduled):
        for name in operator.outputs:
            if graph.root(name) not in resident and graph.root(name) not in where.storage:
                add(name, k)
    index_of_operator = {operator.name: k for k, operator in enumerate(scheduled)}
    for name, updater in where.storage.items():
        index[name] = len(tensors)
        nbytes = graph.tensors[name].nbytes
        tensors.append(
            ProblemTensor(
                name=name,
                nbytes=nbytes,
                producer=-1,
                transfers=_transfers_of(graph, name, device),
                of_batch=name in graph.rows,
                home=Home.STORAGE,
                carried=True,
                updated_by=index_of_operator.get(updater, -1),
                zero_first=name in zero_first(graph),
            )
        )
    tables = [name for name, rows in graph.rows.items() if rows.ids in graph.inputs and not rows.of]
    kept_bytes += sum(takes.row_numbers_bytes(graph.tensors[name].shape[0]) for name in tables)
    kept_bytes += takes.losses_bytes(graph)
    available = {*graph.inputs, *where.storage}
    for operator in scheduled:
        given = streamable(operator, graph, index, constants, block_bytes) if streams else {}
        without_streaming, *streaming = takes.variants(operator, graph.tensors, **given)
        in_place = taken.get(operator.name)
        layout = without_streaming.workspace if in_place is None else in_place.way.workspace
        kernel_bytes = max((kernel_bytes, *layout.kernel_bytes))
        kept_bytes += layout.kept_bytes
        read = {root for root in map(graph.root, operator.inputs) if root not in resident}
        if unknown := sorted(read - available):
            raise ModelError(
                f"operator {operator.name!r} reads {', '.join(map(repr, unknown))}, which is neither a graph input nor "
                "written by an operator before it; the graph's operators must be in topological order"
            )
        available.update(operator.outputs)
        operator_work = work(operator, graph.tensors)
        operators.append(
            ProblemOperator(
                name=operator.name,
                inputs=tuple(sorted(index[name] for name in read)),
                outputs=tuple(sorted(index[name] for name in operator.outputs if name in index)),
                workspace_bytes=layout.temporaries_bytes,
                recomputable=operator.recomputable and in_place is None,
                takes=() if in_place is None else (index[graph.root(in_place.input)], index[in_place.output]),
                backward=operator.backward,
                kind=operator.kind,
                count=max(1, len(operator.members)),
                time_s=device.compute_s(operator_work),
                energy_j=device.compute_j(operator_work),
                variants=tuple(_cost_variant(variant, operator, graph, index, device) for variant in streaming),
            )
        )
    problem = Problem(
        name=graph.name,
        device=device.name,
        operators=_with_updaters(graph, operators, where),
        tensors=tuple(tensors),
        paging=device.storage is not None,
        dma=device.dma and device.storage is not None,
        alignment=takes.alignment,
        reserve_bytes=takes.reserve_bytes(kernel_bytes),
        wake_j=device.storage.wake_j if device.storage is not None else 0.0,
        storage_bytes=device.storage.capacity_bytes if device.storage is not None else None,
        storage_block_bytes=block_bytes,
        storage_erase_bytes=device.storage.erase_bytes if device.storage is not None else 1,
        resident_bytes=sum(graph.tensors[root].nbytes for root in where.ram) + kept_bytes,
        stack_bytes=device.stack_bytes,
        flash_bytes=sum(graph.tensors[root].nbytes for root in where.flash),
        device_ram_bytes=device.ram_bytes,
        runtime=takes.name,
        runtime_version=takes.version,
        graph=graph,
        model_ref=graph.source,
        model_hash=graph.content_hash,
        structure_hash=graph.structure_hash,
        notes=(*storage_notes(device, tensors), *takes.notes(graph)),
    )
    return fed_from_storage(problem, graph) if any(operator.variants for operator in operators) else problem


def _transfers_of(graph: TrainingGraph, name: str, device: Device) -> Transfers:
    """Return the costs of moving a tensor with its home on storage; a table moves row by row."""
    tensor = graph.tensors[name]
    if name in zero_first(graph):
        full, share = device.transfers(tensor.nbytes), 1 - 1 / graph.parts
        return replace(full, page_in_s=share * full.page_in_s, page_in_j=share * full.page_in_j)
    if name not in graph.rows:
        return device.transfers(tensor.nbytes)
    row = device.transfers(tensor.nbytes // tensor.shape[0])
    return Transfers(*(tensor.shape[0] * getattr(row, figure.name) for figure in fields(Transfers)))


def zero_first(graph: TrainingGraph) -> Collection[str]:
    """Return the tensors that are zero when the first part of a batch begins: one read fewer than parts."""
    return graph.sums.values()


def _cost_variant(
    variant: RuntimeVariant, operator: Operator, graph: TrainingGraph, index: Mapping[str, int], device: Device
) -> Variant:
    """Return the costs of a runtime's variant on a device: transfers wait for each other and for the kernel."""

    def places(names: Iterable[str]) -> tuple[int, ...]:
        return tuple(sorted({index[graph.root(name)] for name in names}))

    operator_work = work(operator, graph.tensors)
    updated = [old for old, _ in operator.updates if old in variant.streamed_in]
    reads, writes = variant.reads, variant.writes
    zeros = [moved for name in variant.streamed_in if name in zero_first(graph) for moved in variant.reads_of[name]]
    unread = 1 / graph.parts
    return Variant(
        streamed_in=places(variant.streamed_in),
        streamed_out=places((*variant.streamed_out, *updated)),
        workspace_bytes=variant.workspace.temporaries_bytes,
        time_s=device.compute_s(operator_work)
        + sum(count * device.page_in_s(nbytes) for nbytes, count in reads)
        - unread * sum(count * device.page_in_s(nbytes) for nbytes, count in zeros)
        + sum(count * device.page_out_s(nbytes) for nbytes, count in writes),
        energy_j=device.compute_j(operator_work)
        + sum(count * device.page_in_j(nbytes) for nbytes, count in reads)
        - unread * sum(count * device.page_in_j(nbytes) for nbytes, count in zeros)
        + sum(count * device.page_out_j(nbytes) for nbytes, count in writes),
        read_bytes=variant.read_bytes,
        written_bytes=variant.written_bytes,
        zero_first_bytes=sum(nbytes * count for nbytes, count in zeros),
    )


def _with_updaters(
    graph: TrainingGraph, operators: Sequence[ProblemOperator], where: Homes
) -> tuple[ProblemOperator, ...]:
    """Return `operators`, each with the operators that update its inputs in the resident region."""
    index = {operator.name: k for k, operator in enumerate(operators)}
    updaters = {
        graph.root(old): index[operator.name]
        for old, operator in graph.updaters.items()
        if graph.root(old) not in where.storage
    }
    scheduled = (operator for operator in graph.operators if not operator.view)
    result: list[ProblemOperator] = []
    for k, (costed, operator) in enumerate(zip(operators, scheduled, strict=True)):
        later = {updaters[root] for root in map(graph.root, operator.inputs) if root in updaters} - {k}
        result.append(replace(costed, updaters=tuple(sorted(later))) if later else costed)
    return tuple(result)


def storage_notes(device: Device, tensors: Sequence[ProblemTensor]) -> tuple[str, ...]:
    """Return notes on limits that the device's storage sets to schedules."""
    storage = device.storage
    if storage is None:
        return (f"{device.name} has no storage: schedules can only recompute",)
    all_bytes = sum(storage.moved_bytes(tensor.nbytes) for tensor in tensors)
    if storage.capacity_bytes is not None and all_bytes > storage.capacity_bytes:
        return (
            f"{device.name}'s storage holds {storage.capacity_bytes:,} B and all tensors take {all_bytes:,} B: "
            "schedules write out only what fits",
        )
    return ()


def of_all_parts(
    part: Problem, closing: Problem | None, graph: TrainingGraph, device: Device, parameters: str
) -> Problem:
    """Return the problem of a whole step from that of one part.

    Parameters
    ----------
    part, closing
        Problems of `graph` and of `graph.closing` (the updates) on the device, with these `parameters`.
    """
    step = replace(
        part,
        operators=tuple(_operator_of_all_parts(operator, graph.parts) for operator in part.operators),
        tensors=tuple(_tensor_of_all_parts(tensor, graph.parts) for tensor in part.tensors),
        wake_j=graph.parts * part.wake_j,
        parts=graph.parts,
    )
    if closing is None or graph.closing is None:
        return step
    reserve_bytes = max(part.reserve_bytes, closing.reserve_bytes)
    part_ram = homes(graph, device, parameters).ram
    shared = [name for name in homes(graph.closing, device, parameters).ram if name in part_ram]
    return replace(
        step,
        reserve_bytes=reserve_bytes,
        resident_bytes=part.resident_bytes
        + closing.resident_bytes
        - sum(graph.closing.tensors[name].nbytes for name in shared),
        flash_bytes=part.flash_bytes + closing.flash_bytes,
        closing=replace(closing, reserve_bytes=reserve_bytes, graph=None, **CLOSING),
    )


def _operator_of_all_parts(operator: ProblemOperator, parts: int) -> ProblemOperator:
    return replace(
        operator,
        time_s=parts * operator.time_s,
        energy_j=parts * operator.energy_j,
        variants=tuple(
            replace(variant, time_s=parts * variant.time_s, energy_j=parts * variant.energy_j)
            for variant in operator.variants
        ),
    )


def _tensor_of_all_parts(tensor: ProblemTensor, parts: int) -> ProblemTensor:
    figures = {field.name: parts * getattr(tensor.transfers, field.name) for field in fields(Transfers)}
    return tensor.moved_for(**figures)
