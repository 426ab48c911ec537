"""Addresses of a step's tensors: in the arena by the plan's offsets, or in the resident region."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from poetopt.graph import Node, Operator, Tensor, TrainingGraph
from poetopt.graph.problem import Problem
from poetopt.ops.nodes import resident_storages, streamable
from poetopt.ops.runtimes.contract import InnerLayout, Runtime, RuntimeVariant, TakesOver
from poetopt.ops.runtimes.sliced import Sliced
from poetopt.plan.effects import effects
from poetopt.plan.instructions import Action, Instruction, Plan
from poetopt.plan.layout import Buffer, buffers
from poetopt.util.errors import OptionError, PlanError


def graph_of(plan: Plan, graph: TrainingGraph | None = None) -> TrainingGraph:
    """Return `graph`, or the plan's own graph. Raise `PlanError` where there is none."""
    chosen = plan.problem.graph if graph is None else graph
    if chosen is None:
        raise PlanError(
            f"{plan.problem.name}: the plan was made from a problem file, which has no network to execute; solve an "
            "ONNX model"
        )
    return chosen


def check_trains(graph: TrainingGraph) -> None:
    """Raise `OptionError` for a network without a loss."""
    if graph.forward_only:
        raise OptionError("the plan only runs the network forward (--loss forward-only), without training; give a loss")


def check_belongs(graph: TrainingGraph, problem: Problem, runtime: Runtime, plan_name: str) -> None:
    """Raise `PlanError` where `problem` wasn't made from `graph`, or not for `runtime`."""
    if problem.runtime not in ("", runtime.name):
        raise PlanError(
            f"{plan_name}: the plan is for the runtime {problem.runtime!r}, but the runtime {runtime.name!r} executes "
            f"it here; solve the model again with --runtime {runtime.name}{_elsewhere(problem)}"
        )
    scheduled = [operator for operator in graph.operators if not operator.view]
    names = [operator.name for operator in problem.operators]
    if names != [operator.name for operator in scheduled]:
        raise PlanError(
            f"{plan_name}: the plan has {len(names)} operators that are not the {len(scheduled)} of the model "
            f"{graph.name!r}; solve the model again"
        )
    for tensor in problem.tensors:
        graph_tensor: Tensor | None = graph.tensors.get(tensor.name)
        if graph_tensor is None or graph_tensor.nbytes != tensor.nbytes:
            raise PlanError(
                f"{plan_name}: the model has no tensor {tensor.name!r} of {tensor.nbytes} B, which the plan has; "
                "solve the model again"
            )
    for operator, costed in zip(scheduled, problem.operators, strict=True):
        if costed.takes:  # checked as the operator is bound
            continue
        workspace_bytes = runtime.workspace(operator, graph.tensors, problem.alignment).temporaries_bytes
        if workspace_bytes > costed.workspace_bytes:
            raise PlanError(
                f"{plan_name}: the plan reserves {costed.workspace_bytes} B of workspace for {operator.name!r}, which "
                f"needs {workspace_bytes} B with the runtime {runtime.name!r}; solve the model again"
            )
    # only a measurement during the step shows how much kernels allocate; that they may allocate is known
    if problem.reserve_bytes < runtime.reserve_bytes(0):
        raise PlanError(
            f"{plan_name}: the plan reserves {problem.reserve_bytes} B for what kernels allocate, less than the "
            f"minimum of {runtime.reserve_bytes(0)} B; solve the model again"
        )


def taken_over(
    runtime: Runtime, graph: TrainingGraph, operator: Operator, problem: Problem, index: int
) -> RuntimeVariant | None:
    """Return the variant by which operator `index` of a plan's problem writes over its input; None where it can't."""
    takes = problem.operators[index].takes
    if not takes or not isinstance(runtime, TakesOver):
        return None
    input_root, output = (problem.tensors[i].name for i in takes)
    input_name = next((name for name in operator.inputs if graph.root(name) == input_root), input_root)
    return runtime.taking(
        operator, graph.tensors, problem.alignment, takes=(input_name, output), values=graph.constants
    )


def streams(operator: str, who: str) -> PlanError:
    """Return the error for a plan in which an operator streams, where `who` keeps its operands in RAM."""
    return PlanError(
        f"the plan streams operands of {operator!r} from or to storage, which {who} can't run yet; solve again with "
        "more RAM, so that no operator streams"
    )


def in_parts(name: str, what: str) -> PlanError:
    """Return the error for a plan with micro-batches, where `what` has none."""
    return PlanError(
        f"{name}: the plan splits its batch into micro-batches, and {what} doesn't; solve it without --micro-batch"
    )


def _elsewhere(problem: Problem) -> str:
    """Return where else a plan of this runtime can be run."""
    return ", or run it in C (po.execute_on, --on host)" if problem.runtime == "c" else ""


@dataclass(frozen=True, slots=True)
class Place:
    """Address of a tensor: `offset` bytes into the arena, or into the resident storage `root` where that is set."""

    offset: int
    root: str = ""


@dataclass(frozen=True, slots=True)
class Moment:
    """One instruction, and the addresses that are valid while it runs.

    Attributes
    ----------
    number
        Index of the instruction in the plan.
    at
        Offset in the arena of each tensor in RAM, by the tensor's index in the problem.
    made
        Buffers that the instruction allocates, a workspace last.
    """

    number: int
    instruction: Instruction
    at: Mapping[int, int]
    made: tuple[Buffer, ...]

    @property
    def workspace(self) -> int:
        """Offset of the workspace of a COMPUTE."""
        return self.made[-1].offset


def moments(plan: Plan) -> Iterator[Moment]:
    """Yield the layout of each instruction of a laid-out plan. `at` is one mapping that changes between them."""
    pending = list(buffers(plan))  # in the order of allocation
    table = effects(plan.problem)
    at: dict[int, int] = {}
    ends: dict[int, list[int]] = {}
    next_buffer = 0
    for number in range(-1, len(plan.instructions)):
        allocated: list[Buffer] = []
        while next_buffer < len(pending) and pending[next_buffer].first == number:
            allocated.append(pending[next_buffer])
            next_buffer += 1
        for buffer in allocated:
            if not buffer.workspace:
                at[buffer.index] = buffer.offset
                ends.setdefault(buffer.last, []).append(buffer.index)
        if number >= 0:
            overwritten = table.of(plan.instructions[number]).takes
            for index in overwritten:  # the input lies where its output lies
                at[index] = at[plan.problem.operators[plan.instructions[number].target].takes[1]]
            yield Moment(number, plan.instructions[number], at, tuple(allocated))
            for index in overwritten:
                del at[index]
            for index in ends.pop(number, ()):
                del at[index]


def input_offsets(plan: Plan) -> Mapping[int, int]:
    """Return the offsets of the graph inputs before the first instruction, by index in the problem."""
    return {buffer.index: buffer.offset for buffer in buffers(plan) if buffer.first < 0 and not buffer.workspace}


class Places:
    """Addresses of all tensors that the nodes of an operator read and write."""

    def __init__(self, graph: TrainingGraph, problem: Problem, runtime: Runtime) -> None:
        self.graph = graph
        self.problem = problem
        self.runtime = runtime
        self.index = {tensor.name: i for i, tensor in enumerate(problem.tensors)}
        self.resident = {root: role for root, role in resident_storages(graph).items() if root not in self.index}
        self.operators = {operator.name: operator for operator in graph.operators}
        self._inner: dict[str, InnerLayout] = {}
        self._variants: dict[str, tuple[RuntimeVariant, ...]] = {}

    def inner(self, operator: Operator) -> InnerLayout:
        """Return the operator's layout: shared storage, offsets of temporaries, bytes that kernels allocate."""
        if operator.name not in self._inner:
            self._inner[operator.name] = self.runtime.workspace(operator, self.graph.tensors, self.problem.alignment)
        return self._inner[operator.name]

    def of(self, name: str, operator: Operator, moment: Moment) -> Place:
        """Return the address at `moment` of the tensor that the nodes of `operator` call `name`."""
        inner = self.inner(operator)
        if name in inner.offsets:
            return Place(moment.workspace + inner.offsets[name])
        return self.root(self.graph.root(inner.storage.get(name, name)), moment)

    def root(self, root: str, moment: Moment) -> Place:
        """Return the address of a storage at `moment`."""
        return Place(0, root) if root in self.resident else Place(moment.at[self.index[root]])

    def variant(self, operator: Operator, index: int, number: int) -> RuntimeVariant:
        """Return the runtime's variant `number`, from 1, of `operator`, which is operator `index` of the problem.

        Raise `PlanError` where the runtime has no such variant.
        """
        if operator.name not in self._variants:
            operands = streamable(
                operator, self.graph, self.index, self.graph.constants, self.problem.storage_block_bytes
            )
            computed = self.runtime.variants(operator, self.graph.tensors, self.problem.alignment, **operands)
            self._variants[operator.name] = tuple(computed)
        variants, planned = self._variants[operator.name], self.problem.operators[index].variants[number - 1]
        if number < len(variants) and variants[number].workspace.temporaries_bytes == planned.workspace_bytes:
            return variants[number]
        raise PlanError(
            f"the plan runs variant {number} of {operator.name!r} in {planned.workspace_bytes} B of workspace, and the "
            "runtime has no such variant; solve the model again"
        )

    def taking(self, operator: Operator, index: int) -> RuntimeVariant:
        """Return the variant by which operator `index` of the problem, which is `operator`, writes over its input.

        Raise `PlanError` where the runtime has none, or none that needs only the plan's workspace.
        """
        planned = self.problem.operators[index]
        variant = taken_over(self.runtime, self.graph, operator, self.problem, index)
        if variant is None or variant.workspace.temporaries_bytes > planned.workspace_bytes:
            raise PlanError(
                f"the plan lets {operator.name!r} overwrite its input in {planned.workspace_bytes} B of workspace, "
                f"which the runtime {self.runtime.name!r} can't; solve the model again"
            )
        return variant

    def sliced(self, operator: Operator, instruction: Instruction) -> Sliced:
        """Return the loop by which a plan runs `operator`. Raise `PlanError` where the runtime has none."""
        if instruction.variant:
            detail = self.variant(operator, instruction.target, instruction.variant).detail
        else:
            detail = self.taking(operator, instruction.target).detail
        if not isinstance(detail, Sliced):
            raise streams(operator.name, self.runtime.name)
        return detail


def slice_nodes(plan: Plan, places: Places) -> Iterator[Node]:
    """Yield the nodes that run on slices in a plan; some occur more than once."""
    for instruction in plan.instructions:
        if instruction.action is not Action.COMPUTE:
            continue
        costed = plan.problem.operators[instruction.target]
        if instruction.variant or costed.takes:
            sliced = places.sliced(places.operators[costed.name], instruction)
            yield from (node for node in (*sliced.each, *sliced.further.values()) if not node.domain)
