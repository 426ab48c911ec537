"""All that is emitted of a plan, as data: operators' functions, and where everything lies on the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from poetopt.backends.c.operators import OperatorCode, Run, operator_code
from poetopt.backends.c.resident import Resident, lay_out_resident
from poetopt.backends.c.sharing import shared
from poetopt.backends.c.storage import BLOCK_BYTES, Storage, lay_out_storage
from poetopt.backends.c.streamed import streamed_code
from poetopt.backends.c.tables import Table, tables_of
from poetopt.errors import PlanError
from poetopt.graph import Tensor, TrainingGraph
from poetopt.plan.instructions import Action, Plan
from poetopt.plan.layout import arena_bytes, check_layout
from poetopt.plan.simulate import simulate
from poetopt.runtimes.c import runtime as c_runtime
from poetopt.runtimes.c.steps import layout
from poetopt.step.belongs import check_belongs, in_parts
from poetopt.step.places import Place, Places, input_offsets

RUNTIME = "c"


@dataclass(frozen=True, slots=True)
class Row:
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

    operators
        The function of each operator that the plan computes, by its index in the problem, and its variant.
    resident, flash
        What no schedule moves: in RAM, and in mapped flash.
    weights
        Blocks at the start of the storage that hold the resident region's first values; 0 where they are in flash.
    tables
        Those whose rows go between RAM and storage one by one, by their index in the problem.
    inputs, results, parameters, hyperparameters
        The tables of po.h. An input that nothing reads has no place, and is in none.
    carried
        Statistics that the step doesn't update in place: after the step, before it.
    """

    plan: Plan
    graph: TrainingGraph
    operators: Mapping[Run, OperatorCode]
    resident: Resident
    flash: Resident
    storage: Storage
    weights: int
    tables: Mapping[int, Table]
    inputs: tuple[Row, ...]
    results: tuple[Row, ...]
    parameters: tuple[Row, ...]
    hyperparameters: tuple[Row, ...]
    carried: tuple[tuple[Row, Row], ...]

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
        """What reports call the model."""
        return self.plan.problem.model_ref or self.plan.problem.name


def device_program(plan: Plan, graph: TrainingGraph, *, weights_on_storage: bool = False) -> DeviceProgram:
    """`plan` of `graph` as it is written in C.

    Raises `PlanError` for a plan that the simulator refuses, or of another network, runtime or version of its kernels;
    `UnsupportedOpError` where an operator has a node without a kernel.
    """
    problem = plan.problem
    shown = problem.model_ref or problem.name
    c = c_runtime
    check_planned_for_c(plan)
    if graph.parts > 1:
        raise in_parts(shown, "the step in C")
    check_belongs(graph, problem, c, shown)
    simulate(plan)
    check_layout(plan)
    places = Places(graph, problem, c)
    kept_bytes = sum(
        layout(places.operators[operator.name], graph.tensors, problem.alignment).kept_bytes
        for operator in problem.operators
    )
    row_bytes = sum(
        c.row_numbers_bytes(graph.tensors[name].shape[0]) for name, t in graph.rows.items() if t.ids and not t.of
    )
    resident, flash = lay_out_resident(graph, problem, kept_bytes + row_bytes)
    tables = tables_of(graph, places, resident.kept + kept_bytes)
    operators: dict[Run, OperatorCode] = {}
    words = 0
    for index, way in sorted(
        {(step.target, step.variant) for step in plan.instructions if step.action is Action.COMPUTE}
    ):
        where = graph, problem, places, (resident, flash), words
        operators[index, way] = streamed_code(index, way, *where) if way else operator_code(index, *where)
        words += len(operators[index, way].state)
    spans = resident.given if weights_on_storage else ()
    weights = sum(-(-span.nbytes // BLOCK_BYTES) for span in spans)
    offsets = input_offsets(plan)
    storage = lay_out_storage(plan, weights, {index: table.whole.nbytes for index, table in tables.items()})

    def kept(name: str, shown: str = "") -> Row:
        tensor, root = graph.tensors[name], graph.root(name)
        index = places.index.get(root)
        if index in tables:
            return Row(shown or name, tables[index].whole, Place(0), storage.blocks[index])
        if index is None:
            return Row(shown or name, tensor, Place(0, root))
        if index in offsets:
            return Row(shown or name, tensor, Place(offsets[index]))
        return Row(shown or name, tensor, Place(0), storage.blocks[index])

    def fed(name: str) -> Row | None:
        if graph.root(name) in resident.offsets:
            return kept(name)
        return kept(name) if name in places.index else None

    return DeviceProgram(
        plan,
        graph,
        shared(operators),
        resident,
        flash,
        storage,
        weights,
        tables,
        inputs=tuple(row for name in graph.inputs if (row := fed(name)) is not None),
        results=(
            kept(graph.loss),
            *(kept(made, f"{name}.grad") for name, made in graph.gradients.items()),
            *(kept(name) for name in graph.states.values()),
        ),
        parameters=tuple(kept(name) for name in graph.trained if name in resident.offsets or name in places.index),
        hyperparameters=tuple(kept(name, what) for what, name in graph.hyperparameters.items()),
        carried=tuple(
            (kept(new), kept(old))
            for old, new in graph.states.items()
            if graph.root(old) in resident.offsets and graph.root(new) != graph.root(old)
        ),
    )


def check_planned_for_c(plan: Plan) -> None:
    """Refuse a plan that was made for other kernels. Raises `PlanError`."""
    problem = plan.problem
    shown, own = problem.model_ref or problem.name, c_runtime.version
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
