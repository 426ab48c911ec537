"""A plan as a program in C: its instructions, the functions that they call, and where everything lies."""

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
"""The place of what po_predict runs, where there is anything."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, and what it is of."""

    plan: Plan
    graph: TrainingGraph
    places: Places

    @property
    def kept_bytes(self) -> int:
        """Gives what kernels keep from step to step."""
        operators = (self.places.operators[operator.name] for operator in self.plan.problem.operators)
        alignment = self.plan.problem.alignment
        return sum(layout(operator, self.graph.tensors, alignment).kept_bytes for operator in operators)

    @property
    def sums(self) -> frozenset[int]:
        """The sums of gradients that it adds to, by their index in the problem."""
        return frozenset(self.places.index[name] for name in self.graph.sums.values() if name in self.places.index)


@dataclass(frozen=True, slots=True)
class Routine:
    """Holds what one function of the emitted code runs.

    operators
        The function of each operator that the plan computes, by its index in the problem, and its variant.
    blocks
        Where on the storage each tensor begins that is there at any time, by its index in the problem.
    tables
        Those whose rows go between RAM and storage one by one, by their index in the problem.
    sums
        The sums of gradients, by their index in the problem: zeros in the first part of a batch, and not read there.
    """

    plan: Plan
    operators: Mapping[Run, OperatorCode]
    blocks: Mapping[int, int]
    tables: Mapping[int, ListedTable]
    sums: frozenset[int] = frozenset()

    def paged(self, index: int, address: str, *, out: bool) -> str:
        """The expression that moves a tensor from an address in RAM to storage, or back."""
        block, nbytes = self.blocks[index], self.plan.problem.tensors[index].nbytes
        if index in self.tables:
            call = moved(self.tables, index, block, address, out=out)
        else:
            call = f"{'po_write' if out else 'po_read'}({block}u, {address}, {nbytes}u)"
        if out or index not in self.sums:
            return call
        return f"part == 0u ? ((void)memset({address}, 0, {nbytes}u), 0) : {call}"

    def stored(self, code: OperatorCode) -> list[str]:
        """Gives what an operator that streams is called with behind all else."""
        return [*(f"{self.blocks[index]}u" for index in code.stored), *(["part != 0u"] if code.sums else [])]


def planned(plan: Plan, graph: TrainingGraph) -> tuple[Planned, ...]:
    """Gives what a step runs: the plan, and of a batch in parts what follows the last one, where anything does."""
    found = [Planned(plan, graph, Places(graph, plan.problem, c_runtime))]
    after = closing_plan(plan)
    if after is not None and graph.closing is not None:
        found.append(Planned(after, graph.closing, Places(graph.closing, after.problem, c_runtime)))
    return tuple(found)


def operators_of(planned: Mapping[int, Planned], still: Still) -> dict[int, Mapping[Run, OperatorCode]]:
    """The functions of each one's operators. Raises `UnsupportedOpError` where no kernel runs one of their nodes."""
    found: dict[tuple[int, Run], OperatorCode] = {}
    words = 0
    for which, one in planned.items():
        computed = {(s.target, s.variant) for s in one.plan.instructions if s.action is Action.COMPUTE}
        for index, way in sorted(computed):
            # prefixes of operators' functions: of the plan, of what follows a batch's last part, of po_predict
            where = one.graph, one.plan.problem, one.places, still, words, (PREFIX, "po_last", "po_seen")[which]
            code = streamed_code(index, way, *where) if way else operator_code(index, *where)
            found[which, (index, way)] = code
            words += len(code.state)
    codes = shared(found)
    return {which: {run: code for (k, run), code in codes.items() if k == which} for which in planned}


RUNTIME = "c"


@dataclass(frozen=True, slots=True)
class TableRow:
    """A tensor of the tables: what it is called there, and where it lies between steps.

    block
        Where on the storage, if it isn't in RAM then; else -1.
    """

    name: str
    tensor: Tensor
    place: Place
    block: int = -1


@dataclass(frozen=True, slots=True)
class DeviceProgram:
    """A plan as it is written in C.

    routines
        The plan; of a batch in parts that of each part, and behind it what follows the last one.
    graph
        All of a step's tensors.
    resident, flash
        What no schedule moves: in RAM, and in mapped flash.
    weights
        Blocks at the start of the storage, in whole erase blocks, that hold the resident region's first values; 0
        where they are in flash.
    losses_at
        Where in the resident region the sum of the losses of a batch's parts is.
    inputs, results, parameters, hyperparameters
        The tables of po.h. An input that nothing reads has no place, and is in none.
    carried
        Statistics that the step doesn't update in place: before it, after it.
    predicts
        What po_predict runs; None where there is none.
    asked, outputs
        The tables of what it reads and gives.
    golden
        What po_selftest checks; None where there is none.
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
        """The plan that was given."""
        return self.routines[0].plan

    @property
    def codes(self) -> tuple[OperatorCode, ...]:
        """The functions of all operators."""
        every = self.routines if self.predicts is None else (*self.routines, self.predicts)
        return tuple(code for routine in every for code in routine.operators.values())

    @property
    def operator_names(self) -> tuple[str, ...]:
        """Of all operators, those of a part before those that follow the last."""
        return tuple(operator.name for routine in self.routines for operator in routine.plan.problem.operators)

    @property
    def tabled(self) -> bool:
        """Says whether rows of tables are moved one by one."""
        return any(routine.tables for routine in self.routines)

    @property
    def instructions(self) -> int:
        """Says how many there are."""
        return sum(len(routine.plan.instructions) for routine in self.routines)

    @property
    def arena_bytes(self) -> int:
        """Size of the arena."""
        return arena_bytes(self.plan)

    @property
    def ram_bytes(self) -> int:
        """Arena and resident region: what the linker has to place."""
        return self.arena_bytes + self.resident.nbytes

    @property
    def shown(self) -> str:
        """Gives what reports call the model."""
        return self.plan.problem.called


def device_program(
    plan: Plan, graph: TrainingGraph, *, weights_on_storage: bool = False, prediction: Plan | None = None
) -> DeviceProgram:
    """`plan` of `graph` as it is written in C.

    prediction
        What po_predict runs (`poetopt.search.predicting`), of the same arena.

    Raises `PlanError` for a plan that the simulator refuses, or of another network, runtime or version of its kernels;
    `UnsupportedOpError` where an operator has a node without a kernel.
    """
    problem = plan.problem
    shown = problem.called
    check_planned_for_c(plan)
    simulate(plan)
    runs = planned(plan, graph)
    for run in runs:
        check_belongs(run.graph, run.plan.problem, c_runtime, shown)
        check_layout(run.plan)
    every = dict(enumerate(runs))
    if prediction is not None:
        simulate(prediction)
        check_layout(prediction, arena_bytes(plan))
        network = graph_of(prediction)
        every[PREDICTS] = Planned(prediction, network, Places(network, prediction.problem, c_runtime))
    places, step = runs[0].places, graph.joint
    words = sum(run.kept_bytes for run in runs)
    lists = sum(
        c_runtime.row_numbers_bytes(graph.tensors[name].shape[0])
        for name, t in graph.rows.items()
        if t.ids and not t.of
    )
    resident, flash = lay_out_resident(step, problem, words + lists + c_runtime.losses_bytes(graph))
    check_counted(resident.nbytes, problem, shown)
    check_links(arena_bytes(plan) + resident.nbytes + flash.nbytes, shown)
    block, unit = c_runtime.block_bytes(problem.storage_block_bytes), erased_blocks(problem)
    tables = tables_of(graph, places, resident.kept + words, block)
    spans = resident.given if weights_on_storage else ()
    weights = sum(-(-span.nbytes // block) for span in spans)
    weights = -(-weights // unit) * unit  # what is never written shares nothing with what is
    by_name = {problem.tensors[index].name: table.whole for index, table in tables.items()}
    plans, whole = [run.plan for run in every.values()], {n: table.nbytes for n, table in by_name.items()}
    storage = lay_out_storage(plans, weights, whole, graph.sums.values())
    offsets = {problem.tensors[index].name: offset for index, offset in input_offsets(plan).items()}
    scheduled = scheduled_names(problem)
    operators = operators_of(every, (resident, flash))
    routines = {
        k: Routine(run.plan, operators[k], storage.of(run.plan.problem), {} if k else tables, run.sums)
        for k, run in every.items()
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
        resident.kept + words + lists,
        inputs=tuple(row for name in graph.inputs if (row := fed(name)) is not None),
        results=(
            *map(kept, graph.targets),
            *(kept(made, f"{name}.grad") for name, made in graph.gradients.items()),
            *(kept(name) for name in graph.states.values()),
        ),
        parameters=tuple(kept(name) for name in graph.trained if name in resident.offsets or name in scheduled),
        hyperparameters=tuple(kept(name, what) for what, name in graph.hyperparameters.items()),
        carried=tuple((kept(old), kept(new)) for old, new in graph.beside.items()),
        predicts=routines.get(PREDICTS),
        asked=() if prediction is None else tuple(_begun(prediction, storage)),
        outputs=() if prediction is None else tuple(_ended(prediction)),
    )


def _begun(prediction: Plan, storage: BlockStorage) -> Iterator[TableRow]:
    """The inputs of a prediction."""
    network, offsets = graph_of(prediction), input_offsets(prediction)
    for i, held in enumerate(prediction.problem.tensors):
        if held.name in network.inputs:
            there = i in offsets
            block = -1 if there else storage.blocks[held.name]
            yield TableRow(held.name, network.tensors[held.name], Place(offsets.get(i, 0)), block)


def _ended(prediction: Plan) -> Iterator[TableRow]:
    """Its outputs."""
    network, index = graph_of(prediction), {t.name: i for i, t in enumerate(prediction.problem.tensors)}
    last = len(prediction.instructions) - 1
    ends = {b.index: b.offset for b in buffers(prediction) if b.last == last and not b.workspace}
    for name in network.outputs:
        yield TableRow(name, network.tensors[name], Place(ends[index[network.root(name)]]))


def check_counted(nbytes: int, problem: Problem, shown: str) -> None:
    """Refuse a plan that counts less than the resident region's bytes, as it has in flash what changes."""
    if nbytes > problem.resident_bytes:
        raise PlanError(
            f"{shown}: what stays in RAM takes {nbytes:,} B, and the plan counts {problem.resident_bytes:,}, as an "
            "older version had running statistics in flash; solve the model again"
        )


def check_links(nbytes: int, shown: str) -> None:
    """Raise `PlanError` where arena, resident region and flash have so many bytes that no linker places them."""
    if nbytes >= MOST_BYTES:
        raise PlanError(
            f"{shown}: arena, resident region and constants take {nbytes:,} B, and a program in C links less than "
            f"{MOST_BYTES:,} of them; solve with a smaller --ram or --batch, or with --runtime onnxruntime"
        )


def check_planned_for_c(plan: Plan) -> None:
    """Refuse a plan that was made for other kernels. Raises `PlanError`."""
    problem = plan.problem
    shown, own = problem.called, c_runtime.version
    if problem.runtime != RUNTIME:
        raise PlanError(
            f"{shown}: the plan is for the runtime {problem.runtime or 'onnxruntime'}, whose kernels aren't in C; "
            f"solve with --runtime {RUNTIME}"
        )
    if problem.runtime_version != own:
        raise PlanError(
            f"{shown}: the plan is for version {problem.runtime_version} of the kernels in C, and these are version "
            f"{own}; solve the model again"
        )
