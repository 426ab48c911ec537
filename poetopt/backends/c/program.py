"""A plan as a program in C: its instructions, the functions that they call, and the addresses of all tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from poetopt.backends.c.operators import (
    PREFIX,
    OperatorCode,
    Resident,
    Run,
    Still,
    lay_out_resident,
    operator_code,
    shared,
)
from poetopt.backends.c.storage import (
    BlockStorage,
    ListedTable,
    erased_blocks,
    lay_out_storage,
    moved,
    tables_of,
)
from poetopt.backends.c.streamed import streamed_code
from poetopt.backends.step.parted import scheduled_names
from poetopt.backends.step.places import Place, Places, check_belongs, graph_of, input_offsets
from poetopt.graph import Tensor, TrainingGraph
from poetopt.graph.problem import Problem
from poetopt.ops.runtimes.c import runtime as c_runtime
from poetopt.ops.runtimes.c.kernel import MOST_BYTES
from poetopt.ops.runtimes.c.steps import layout
from poetopt.plan.closing import closing_plan
from poetopt.plan.instructions import Action, Plan
from poetopt.plan.layout import arena_bytes, buffers, check_layout
from poetopt.plan.simulate import simulate
from poetopt.util.errors import PlanError

if TYPE_CHECKING:
    from poetopt.backends.c.golden import Golden

PREDICTS = 2
"""Key of the prediction's plan, where there is one."""


@dataclass(frozen=True, slots=True)
class Planned:
    """Plan with its graph and addresses."""

    plan: Plan
    graph: TrainingGraph
    places: Places

    @property
    def kept_bytes(self) -> int:
        """Bytes that kernels keep from step to step."""
        operators = (self.places.operators[operator.name] for operator in self.plan.problem.operators)
        alignment = self.plan.problem.alignment
        return sum(layout(operator, self.graph.tensors, alignment).kept_bytes for operator in operators)

    @property
    def sums(self) -> frozenset[int]:
        """Sums of gradients that it adds to, by index in the problem."""
        return frozenset(self.places.index[name] for name in self.graph.sums.values() if name in self.places.index)


@dataclass(frozen=True, slots=True)
class Routine:
    """Content of one function of the emitted code.

    Attributes
    ----------
    operators
        Function of each operator that the plan computes, by its index in the problem and its variant.
    blocks
        First block of each tensor that is on the storage at any time, by its index in the problem.
    tables
        Tables whose rows are paged one by one, by their index in the problem.
    sums
        Sums of gradients, by their index in the problem: zeros in the first part of a batch, and not read there.
    """

    plan: Plan
    operators: Mapping[Run, OperatorCode]
    blocks: Mapping[int, int]
    tables: Mapping[int, ListedTable]
    sums: frozenset[int] = frozenset()

    def paged(self, index: int, address: str, *, out: bool) -> str:
        """Return the expression that moves a tensor from an address in RAM to storage, or back."""
        block, nbytes = self.blocks[index], self.plan.problem.tensors[index].nbytes
        if index in self.tables:
            call = moved(self.tables, index, block, address, out=out)
        else:
            call = f"{'po_write' if out else 'po_read'}({block}u, {address}, {nbytes}u)"
        if out or index not in self.sums:
            return call
        return f"part == 0u ? ((void)memset({address}, 0, {nbytes}u), 0) : {call}"

    def stored(self, code: OperatorCode) -> list[str]:
        """Return the last arguments of an operator that streams."""
        return [*(f"{self.blocks[index]}u" for index in code.stored), *(["part != 0u"] if code.sums else [])]


def planned(plan: Plan, graph: TrainingGraph) -> tuple[Planned, ...]:
    """Return the plans of a step: the plan itself, and for a split batch the update phase, where there is one."""
    plans = [Planned(plan, graph, Places(graph, plan.problem, c_runtime))]
    update_plan = closing_plan(plan)
    if update_plan is not None and graph.closing is not None:
        plans.append(Planned(update_plan, graph.closing, Places(graph.closing, update_plan.problem, c_runtime)))
    return tuple(plans)


def operators_of(planned: Mapping[int, Planned], still: Still) -> dict[int, Mapping[Run, OperatorCode]]:
    """Return the functions of each plan's operators. Raise `UnsupportedOpError` where a kernel is missing."""
    codes_by_run: dict[tuple[int, Run], OperatorCode] = {}
    words = 0
    for which, addressed in planned.items():
        computed = {(s.target, s.variant) for s in addressed.plan.instructions if s.action is Action.COMPUTE}
        for index, variant in sorted(computed):
            # prefixes of operators' functions: of the plan, of the update phase, of po_predict
            arguments = (
                addressed.graph,
                addressed.plan.problem,
                addressed.places,
                still,
                words,
                (PREFIX, "po_last", "po_seen")[which],
            )
            code = streamed_code(index, variant, *arguments) if variant else operator_code(index, *arguments)
            codes_by_run[which, (index, variant)] = code
            words += len(code.state)
    codes = shared(codes_by_run)
    return {which: {run: code for (k, run), code in codes.items() if k == which} for which in planned}


RUNTIME = "c"


@dataclass(frozen=True, slots=True)
class TableRow:
    """Tensor of the tables: its name there, and its address between steps.

    Attributes
    ----------
    block
        First block on the storage, if it isn't in RAM between steps; else -1.
    """

    name: str
    tensor: Tensor
    place: Place
    block: int = -1


@dataclass(frozen=True, slots=True)
class DeviceProgram:
    """Plan as it is written in C.

    Attributes
    ----------
    routines
        The plan; for a split batch that of each part, followed by the update phase.
    graph
        Graph of all of a step's tensors.
    resident, flash
        Unscheduled tensors: in RAM, and in mapped flash.
    weights
        Blocks at the start of the storage, in whole erase blocks, with the resident region's first values; 0 where they
        are in flash.
    losses_at
        Offset in the resident region of the sum of the losses of a batch's parts.
    inputs, results, parameters, hyperparameters
        Tables of po.h. An input that nothing reads is in none.
    carried
        Statistics that the step doesn't update in place: before it, after it.
    predicts
        Routine of po_predict; None where there is none.
    asked, outputs
        Tables of its inputs and outputs.
    golden
        Reference of po_selftest; None where there is none.
    """

    routines: tuple[Routine, ...]
    graph: TrainingGraph
    resident: Resident
    flash: Resident
    storage: BlockStorage
    weights: int
    losses_at: int
    inputs: tuple[TableRow, ...]
    results: tuple[TableRow, ...]
    parameters: tuple[TableRow, ...]
    hyperparameters: tuple[TableRow, ...]
    carried: tuple[tuple[TableRow, TableRow], ...]
    predicts: Routine | None = None
    asked: tuple[TableRow, ...] = ()
    outputs: tuple[TableRow, ...] = ()
    golden: Golden | None = None

    @property
    def plan(self) -> Plan:
        """Plan of the step."""
        return self.routines[0].plan

    @property
    def codes(self) -> tuple[OperatorCode, ...]:
        """Functions of all operators."""
        every = self.routines if self.predicts is None else (*self.routines, self.predicts)
        return tuple(code for routine in every for code in routine.operators.values())

    @property
    def operator_names(self) -> tuple[str, ...]:
        """Names of all operators, those of a part before those of the update phase."""
        return tuple(operator.name for routine in self.routines for operator in routine.plan.problem.operators)

    @property
    def tabled(self) -> bool:
        """Return whether rows of tables are paged one by one."""
        return any(routine.tables for routine in self.routines)

    @property
    def instructions(self) -> int:
        """Number of instructions."""
        return sum(len(routine.plan.instructions) for routine in self.routines)

    @property
    def arena_bytes(self) -> int:
        """Size of the arena."""
        return arena_bytes(self.plan)

    @property
    def ram_bytes(self) -> int:
        """Bytes that the linker has to place: arena and resident region."""
        return self.arena_bytes + self.resident.nbytes

    @property
    def shown(self) -> str:
        """Name of the model in reports."""
        return self.plan.problem.called


def device_program(
    plan: Plan, graph: TrainingGraph, *, weights_on_storage: bool = False, prediction: Plan | None = None
) -> DeviceProgram:
    """Return `plan` of `graph` as it is written in C.

    Parameters
    ----------
    prediction
        Plan of po_predict (`poetopt.search.predicting`), for the same arena.

    Raises
    ------
    PlanError
        The simulator refuses the plan, or it is of another network, runtime or version of its kernels.
    UnsupportedOpError
        An operator has a node without a kernel.
    """
    problem = plan.problem
    shown = problem.called
    check_planned_for_c(plan)
    simulate(plan)
    runs = planned(plan, graph)
    for run in runs:
        check_belongs(run.graph, run.plan.problem, c_runtime, shown)
        check_layout(run.plan)
    all_plans = dict(enumerate(runs))
    if prediction is not None:
        simulate(prediction)
        check_layout(prediction, arena_bytes(plan))
        network = graph_of(prediction)
        all_plans[PREDICTS] = Planned(prediction, network, Places(network, prediction.problem, c_runtime))
    places, step = runs[0].places, graph.joint
    kept_bytes = sum(run.kept_bytes for run in runs)
    list_bytes = sum(
        c_runtime.row_numbers_bytes(graph.tensors[name].shape[0])
        for name, t in graph.rows.items()
        if t.ids and not t.of
    )
    resident, flash = lay_out_resident(step, problem, kept_bytes + list_bytes + c_runtime.losses_bytes(graph))
    check_counted(resident.nbytes, problem, shown)
    check_links(arena_bytes(plan) + resident.nbytes + flash.nbytes, shown)
    block, unit = c_runtime.block_bytes(problem.storage_block_bytes), erased_blocks(problem)
    tables = tables_of(graph, places, resident.kept + kept_bytes, block)
    spans = resident.given if weights_on_storage else ()
    weights = sum(-(-span.nbytes // block) for span in spans)
    weights = -(-weights // unit) * unit  # read-only blocks share no erase block with others
    by_name = {problem.tensors[index].name: table.whole for index, table in tables.items()}
    plans, table_bytes = [run.plan for run in all_plans.values()], {n: table.nbytes for n, table in by_name.items()}
    storage = lay_out_storage(plans, weights, table_bytes, graph.sums.values())
    offsets = {problem.tensors[index].name: offset for index, offset in input_offsets(plan).items()}
    scheduled = scheduled_names(problem)
    operators = operators_of(all_plans, (resident, flash))
    routines = {
        k: Routine(run.plan, operators[k], storage.of(run.plan.problem), {} if k else tables, run.sums)
        for k, run in all_plans.items()
    }

    def kept(name: str, shown: str = "") -> TableRow:
        tensor, root = step.tensors[name], step.root(name)
        if root in by_name:
            return TableRow(shown or name, by_name[root], Place(0), storage.blocks[root])
        if root not in scheduled:
            return TableRow(shown or name, tensor, Place(0, root))
        if root in offsets:
            return TableRow(shown or name, tensor, Place(offsets[root]))
        return TableRow(shown or name, tensor, Place(0), storage.blocks[root])

    def fed(name: str) -> TableRow | None:
        if graph.root(name) in resident.offsets:
            return kept(name)
        return kept(name) if name in places.index else None

    return DeviceProgram(
        tuple(routines[k] for k in range(len(runs))),
        graph,
        resident,
        flash,
        storage,
        weights,
        resident.kept + kept_bytes + list_bytes,
        inputs=tuple(row for name in graph.inputs if (row := fed(name)) is not None),
        results=(
            *map(kept, graph.targets),
            *(kept(new_name, f"{name}.grad") for name, new_name in graph.gradients.items()),
            *(kept(name) for name in graph.states.values()),
        ),
        parameters=tuple(kept(name) for name in graph.trained if name in resident.offsets or name in scheduled),
        hyperparameters=tuple(kept(name, shown_name) for shown_name, name in graph.hyperparameters.items()),
        carried=tuple((kept(old), kept(new)) for old, new in graph.beside.items()),
        predicts=routines.get(PREDICTS),
        asked=() if prediction is None else tuple(_input_rows(prediction, storage)),
        outputs=() if prediction is None else tuple(_output_rows(prediction)),
    )


def _input_rows(prediction: Plan, storage: BlockStorage) -> Iterator[TableRow]:
    """Yield the inputs of a prediction."""
    network, offsets = graph_of(prediction), input_offsets(prediction)
    for i, tensor in enumerate(prediction.problem.tensors):
        if tensor.name in network.inputs:
            is_in_ram = i in offsets
            block = -1 if is_in_ram else storage.blocks[tensor.name]
            yield TableRow(tensor.name, network.tensors[tensor.name], Place(offsets.get(i, 0)), block)


def _output_rows(prediction: Plan) -> Iterator[TableRow]:
    """Yield the outputs of a prediction."""
    network, index = graph_of(prediction), {t.name: i for i, t in enumerate(prediction.problem.tensors)}
    last_instruction = len(prediction.instructions) - 1
    ends = {b.index: b.offset for b in buffers(prediction) if b.last == last_instruction and not b.workspace}
    for name in network.outputs:
        yield TableRow(name, network.tensors[name], Place(ends[index[network.root(name)]]))


def check_counted(nbytes: int, problem: Problem, shown: str) -> None:
    """Raise `PlanError` for a plan that counts less than the resident region's bytes, with variables in flash."""
    if nbytes > problem.resident_bytes:
        raise PlanError(
            f"{shown}: resident tensors take {nbytes:,} B, but the plan counts {problem.resident_bytes:,} B, because "
            "an older version kept running statistics in flash; solve the model again"
        )


def check_links(nbytes: int, shown: str) -> None:
    """Raise `PlanError` where arena, resident region and flash are too large for a linker."""
    if nbytes >= MOST_BYTES:
        raise PlanError(
            f"{shown}: arena, resident region and constants take {nbytes:,} B, but a program in C links only with less "
            f"than {MOST_BYTES:,} B; solve with a smaller --ram or --batch, or with --runtime onnxruntime"
        )


def check_planned_for_c(plan: Plan) -> None:
    """Raise `PlanError` for a plan that was made for other kernels."""
    problem = plan.problem
    shown, version = problem.called, c_runtime.version
    if problem.runtime != RUNTIME:
        raise PlanError(
            f"{shown}: the plan is for the runtime {problem.runtime or 'onnxruntime'}, and C needs a plan for the "
            f"runtime {RUNTIME}; solve with --runtime {RUNTIME}"
        )
    if problem.runtime_version != version:
        raise PlanError(
            f"{shown}: the plan is for version {problem.runtime_version} of the kernels in C, but this is version "
            f"{version}; solve the model again"
        )
