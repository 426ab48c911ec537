"""Costs of a training graph on a device: seconds and joules of operators, and where tensors are as a step begins."""

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
    """`problem`, whose largest inputs begin on storage until what begins in RAM takes no more than an operator has to.

    Whoever feeds the step writes a batch there, and reading it needs no page-out. What says which rows of a table are
    read stays in RAM.
    """
    least = max(map(problem.least_working_set_bytes, range(len(problem.operators))), default=0)
    ids = {graph.root(rows.ids) for rows in graph.rows.values() if rows.ids}
    start = problem.start_bytes
    inputs = [i for i, t in enumerate(problem.tensors) if not t.computed and t.home is Home.RAM and t.name not in ids]
    tensors = list(problem.tensors)
    notes: list[str] = []
    for i in sorted(inputs, key=lambda i: (-tensors[i].nbytes, i)):
        if start <= least:
            break
        start -= tensors[i].nbytes
        tensors[i] = replace(tensors[i], home=Home.STORAGE, carried=True, of_batch=True)
        notes.append(
            f"the input {tensors[i].name!r} of {tensors[i].nbytes:,} B begins on storage, where each step's batch is "
            "to be written: in RAM it would take more than any operator"
        )
    return replace(problem, tensors=tuple(tensors), notes=(*problem.notes, *notes)) if notes else problem


PARAMETERS = ("resident", "paged")
"""What a problem may be made with: parameters in RAM for good, or scheduled like everything else."""
WEIGHTS = frozenset({Role.PARAMETER, Role.CONSTANT})
"""The roles whose tensors may lie in mapped flash, where nothing that lasts from step to step does."""
SCHEDULED = WEIGHTS | {Role.GRADIENT_SUM, Role.OPTIMIZER_STATE}
"""The roles whose tensors may have their home on storage."""
STREAM = ("auto", "never")
"""Whether operators may stream operands from and to storage."""


@dataclass(frozen=True)
class Homes:
    """The storages (root tensors) of what a step finds when it begins.

    ram
        The resident region.
    storage
        Those with their home on storage, and the operator that updates each, by name; empty for none.
    flash
        Those in mapped flash.
    """

    ram: Mapping[str, Role]
    storage: Mapping[str, str]
    flash: Mapping[str, Role]


def homes(graph: TrainingGraph, device: Device, parameters: str = PARAMETERS[0]) -> Homes:
    """Says where everything is.

    parameters
        `resident` or `paged`.

    Raises OptionError for another word, DeviceError where a device without storage is to page.
    """
    if parameters not in PARAMETERS:
        raise OptionError(f"--parameters {parameters}: must be auto, {' or '.join(PARAMETERS)}")
    if parameters == "paged" and device.storage is None:
        raise DeviceError(f"{device.name} has no storage to page parameters to; leave out --parameters paged")
    resident = dict(resident_storages(graph))
    updaters = {graph.root(old): operator.name for old, operator in graph.updaters.items()}
    sizes = {name: graph.tensors[name].nbytes for name in resident}
    flash = {name: resident.pop(name) for name in in_flash(graph, device.flash_room_bytes)}
    storage: dict[str, str] = {}
    beside = {graph.root(name) for name in graph.beside}
    if parameters == "paged":
        for name, role in list(resident.items()):
            # what takes less stays in RAM: a place of its own on storage is worth nothing there
            if role in SCHEDULED and sizes[name] > 64 and name not in beside:
                storage[name] = updaters.get(name, "")
                del resident[name]
    return Homes(resident, storage, flash)


def in_flash(graph: TrainingGraph, room_bytes: int) -> tuple[str, ...]:
    """The storages that lie in mapped flash of so many bytes; the same ones for the sum of theirs."""
    lasting = {graph.root(name) for name in graph.lasting}
    frozen = [name for name, role in resident_storages(graph).items() if role in WEIGHTS and name not in lasting]
    found: list[str] = []
    for name in sorted(frozen, key=lambda name: (-graph.tensors[name].nbytes, name)):
        if graph.tensors[name].nbytes <= room_bytes:
            found.append(name)
            room_bytes -= graph.tensors[name].nbytes
    return tuple(found)


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
    """The scheduling problem of one training step on a device.

    runtime
        What runs the operators; by default the one that the device names.
    parameters
        `resident`, or `paged`: parameters, optimizer states and constants have their home on storage, and are
        scheduled.
    stream
        `auto`: operators may stream operands from and to storage, where the runtime has ways; or `never`.
    over
        Whether operators may write over what they read (`poetopt.autodiff.passes.in_place`).
    where
        What begins where, if another step says that.

    Tensors come in the order: graph inputs as in the file, then what each operator writes, operator by operator, then
    those whose home is storage; operators in the graph's order without views. Times are seconds, energies joules, sizes
    bytes.

    Raises `ModelError` where an operator names a tensor that the graph lacks, `DeviceError` for a device made in Python
    whose figures nothing can be counted with, or whose runtime there isn't.
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
    kernels = kept = 0
    streams = stream == STREAM[0] and device.storage is not None
    block = 1 if device.storage is None else device.storage.block_bytes
    constants = graph.constants
    taken = takings(graph, takes).by_operator if over else {}

    def add(name: str, producer: int) -> None:
        nbytes, held = graph.tensors[name].nbytes, residence(graph.tensors[name].role)
        index[name] = len(tensors)
        tensors.append(
            ProblemTensor(
                name=name,
                nbytes=nbytes,
                producer=producer,
                transfers=device.transfers(nbytes),
                home=held.home,
                carried=held.carried,
                result=held.result,
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
    place = {operator.name: k for k, operator in enumerate(scheduled)}
    for name, updater in where.storage.items():
        index[name] = len(tensors)
        nbytes = graph.tensors[name].nbytes
        tensors.append(
            ProblemTensor(
                name=name,
                nbytes=nbytes,
                producer=-1,
                transfers=_moved(graph, name, device),
                of_batch=name in graph.rows,
                home=Home.STORAGE,
                carried=True,
                updated_by=place.get(updater, -1),
                zero_first=name in zero_first(graph),
            )
        )
    chosen = [name for name, rows in graph.rows.items() if rows.ids in graph.inputs and not rows.of]
    kept += sum(takes.row_numbers_bytes(graph.tensors[name].shape[0]) for name in chosen)
    kept += takes.losses_bytes(graph)
    known = {*graph.inputs, *where.storage}
    for operator in scheduled:
        given = streamable(operator, graph, index, constants, block) if streams else {}
        plain, *others = takes.variants(operator, graph.tensors, **given)
        taking = taken.get(operator.name)
        layout = plain.workspace if taking is None else taking.way.workspace
        kernels = max((kernels, *layout.kernel_bytes))
        kept += layout.kept_bytes
        read = {root for root in map(graph.root, operator.inputs) if root not in resident}
        if unknown := sorted(read - known):
            raise ModelError(
                f"operator {operator.name!r} reads {', '.join(map(repr, unknown))}, which is neither a graph input nor "
                "written by an operator before it; the graph's operators must be in topological order"
            )
        known.update(operator.outputs)
        done = work(operator, graph.tensors)
        operators.append(
            ProblemOperator(
                name=operator.name,
                inputs=tuple(sorted(index[name] for name in read)),
                outputs=tuple(sorted(index[name] for name in operator.outputs if name in index)),
                workspace_bytes=layout.temporaries_bytes,
                recomputable=operator.recomputable and taking is None,
                takes=() if taking is None else (index[graph.root(taking.input)], index[taking.output]),
                backward=operator.backward,
                kind=operator.kind,
                count=max(1, len(operator.members)),
                time_s=device.compute_s(done),
                energy_j=device.compute_j(done),
                variants=tuple(_streamed(variant, operator, graph, index, device) for variant in others),
            )
        )
    problem = Problem(
        name=graph.name,
        device=device.name,
        operators=_overtaken(graph, operators, where),
        tensors=tuple(tensors),
        paging=device.storage is not None,
        dma=device.dma and device.storage is not None,
        alignment=takes.alignment,
        reserve_bytes=takes.reserve_bytes(kernels),
        wake_j=device.storage.wake_j if device.storage is not None else 0.0,
        storage_bytes=device.storage.capacity_bytes if device.storage is not None else None,
        storage_block_bytes=block,
        storage_erase_bytes=device.storage.erase_bytes if device.storage is not None else 1,
        resident_bytes=sum(graph.tensors[root].nbytes for root in where.ram) + kept,
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


def _moved(graph: TrainingGraph, name: str, device: Device) -> Transfers:
    """Gives what moving a tensor with its home on storage takes: the rows of a table one by one."""
    tensor = graph.tensors[name]
    if name in zero_first(graph):
        whole, read = device.transfers(tensor.nbytes), 1 - 1 / graph.parts
        return replace(whole, page_in_s=read * whole.page_in_s, page_in_j=read * whole.page_in_j)
    if name not in graph.rows:
        return device.transfers(tensor.nbytes)
    one = device.transfers(tensor.nbytes // tensor.shape[0])
    return Transfers(*(tensor.shape[0] * getattr(one, part.name) for part in fields(Transfers)))


def zero_first(graph: TrainingGraph) -> Collection[str]:
    """Finds what is zero as the first part of a batch begins: in one of several, on the average, it is not read."""
    return graph.sums.values()


def _streamed(
    variant: RuntimeVariant, operator: Operator, graph: TrainingGraph, index: Mapping[str, int], device: Device
) -> Variant:
    """A runtime's variant on a device: transfers wait for one another and for the kernel."""

    def places(names: Iterable[str]) -> tuple[int, ...]:
        return tuple(sorted({index[graph.root(name)] for name in names}))

    done = work(operator, graph.tensors)
    updated = [old for old, _ in operator.updates if old in variant.streamed_in]
    reads, writes = variant.reads, variant.writes
    zeros = [moved for name in variant.streamed_in if name in zero_first(graph) for moved in variant.reads_of[name]]
    unread = 1 / graph.parts
    return Variant(
        streamed_in=places(variant.streamed_in),
        streamed_out=places((*variant.streamed_out, *updated)),
        workspace_bytes=variant.workspace.temporaries_bytes,
        time_s=device.compute_s(done)
        + sum(count * device.page_in_s(nbytes) for nbytes, count in reads)
        - unread * sum(count * device.page_in_s(nbytes) for nbytes, count in zeros)
        + sum(count * device.page_out_s(nbytes) for nbytes, count in writes),
        energy_j=device.compute_j(done)
        + sum(count * device.page_in_j(nbytes) for nbytes, count in reads)
        - unread * sum(count * device.page_in_j(nbytes) for nbytes, count in zeros)
        + sum(count * device.page_out_j(nbytes) for nbytes, count in writes),
        read_bytes=variant.read_bytes,
        written_bytes=variant.written_bytes,
        zero_first_bytes=sum(nbytes * count for nbytes, count in zeros),
    )


def _overtaken(graph: TrainingGraph, operators: Sequence[ProblemOperator], where: Homes) -> tuple[ProblemOperator, ...]:
    """`operators`, each with those that update what it reads in the resident region."""
    index = {operator.name: k for k, operator in enumerate(operators)}
    updaters = {
        graph.root(old): index[operator.name]
        for old, operator in graph.updaters.items()
        if graph.root(old) not in where.storage
    }
    scheduled = (operator for operator in graph.operators if not operator.view)
    found: list[ProblemOperator] = []
    for k, (costed, operator) in enumerate(zip(operators, scheduled, strict=True)):
        after = {updaters[root] for root in map(graph.root, operator.inputs) if root in updaters} - {k}
        found.append(replace(costed, updaters=tuple(sorted(after))) if after else costed)
    return tuple(found)


def storage_notes(device: Device, tensors: Sequence[ProblemTensor]) -> tuple[str, ...]:
    """Gives what a schedule on this device must do without, in words."""
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


def of_all_parts(
    part: Problem, closing: Problem | None, graph: TrainingGraph, device: Device, parameters: str
) -> Problem:
    """The step whose parts are alike: `part` is of one run, `closing` of what follows the last.

    part, closing
        Of `graph` and of `graph.closing` on the device, with such `parameters`.
    """
    step = replace(
        part,
        operators=tuple(_times(operator, graph.parts) for operator in part.operators),
        tensors=tuple(_moved_times(tensor, graph.parts) for tensor in part.tensors),
        wake_j=graph.parts * part.wake_j,
        parts=graph.parts,
    )
    if closing is None or graph.closing is None:
        return step
    reserve = max(part.reserve_bytes, closing.reserve_bytes)
    there = homes(graph, device, parameters).ram
    again = [name for name in homes(graph.closing, device, parameters).ram if name in there]
    return replace(
        step,
        reserve_bytes=reserve,
        resident_bytes=part.resident_bytes
        + closing.resident_bytes
        - sum(graph.closing.tensors[name].nbytes for name in again),
        flash_bytes=part.flash_bytes + closing.flash_bytes,
        closing=replace(closing, reserve_bytes=reserve, graph=None, **CLOSING),
    )


def _times(operator: ProblemOperator, parts: int) -> ProblemOperator:
    return replace(
        operator,
        time_s=parts * operator.time_s,
        energy_j=parts * operator.energy_j,
        variants=tuple(
            replace(way, time_s=parts * way.time_s, energy_j=parts * way.energy_j) for way in operator.variants
        ),
    )


def _moved_times(tensor: ProblemTensor, parts: int) -> ProblemTensor:
    figures = {field.name: parts * getattr(tensor.transfers, field.name) for field in fields(Transfers)}
    return tensor.moved_for(**figures)
