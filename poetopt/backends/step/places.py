"""Describes where every tensor of a step lies: in the arena by the plan's offsets, or in the resident region."""

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
    """The graph to execute: as given, or the one behind the plan. Raises PlanError where there is none."""
    chosen = plan.problem.graph if graph is None else graph
    if chosen is None:
        raise PlanError(
            f"{plan.problem.name}: the plan is of a problem file, which has no network to execute; solve an ONNX model"
        )
    return chosen


def check_trains(graph: TrainingGraph) -> None:
    """Raise OptionError for a network without a loss."""
    if graph.forward_only:
        raise OptionError("the plan is of a network alone (--loss forward-only), which isn't trained; give a loss")


def check_belongs(graph: TrainingGraph, problem: Problem, runtime: Runtime, shown: str) -> None:
    """Refuse a graph that is not the one that `problem` was made of, or not for this runtime. Raises `PlanError`."""
    if problem.runtime not in ("", runtime.name):
        raise PlanError(
            f"{shown}: the plan is for the kernels of the runtime {problem.runtime!r}, and these are those of "
            f"{runtime.name!r}; solve the model again with --runtime {runtime.name}{_elsewhere(problem)}"
        )
    scheduled = [operator for operator in graph.operators if not operator.view]
    names = [operator.name for operator in problem.operators]
    if names != [operator.name for operator in scheduled]:
        raise PlanError(
            f"{shown}: the plan has {len(names)} operators that are not the {len(scheduled)} of the model "
            f"{graph.name!r}; solve the model again"
        )
    for tensor in problem.tensors:
        known: Tensor | None = graph.tensors.get(tensor.name)
        if known is None or known.nbytes != tensor.nbytes:
            raise PlanError(
                f"{shown}: the plan's tensor {tensor.name!r} of {tensor.nbytes} B is not in the model; "
                "solve the model again"
            )
    for operator, costed in zip(scheduled, problem.operators, strict=True):
        if costed.takes:  # asked where it is run
            continue
        needed = runtime.workspace(operator, graph.tensors, problem.alignment).temporaries_bytes
        if needed > costed.workspace_bytes:
            raise PlanError(
                f"{shown}: the plan gives {operator.name!r} {costed.workspace_bytes} B of workspace, it needs "
                f"{needed} with the runtime {runtime.name!r}; solve the model again"
            )
    # How much kernels allocate is known by measurement only, during the step; that they may is known.
    if problem.reserve_bytes < runtime.reserve_bytes(0):
        raise PlanError(
            f"{shown}: the plan sets {problem.reserve_bytes} B aside for what kernels allocate, and none may set less "
            f"than {runtime.reserve_bytes(0)}; solve the model again"
        )


def taken_over(
    runtime: Runtime, graph: TrainingGraph, operator: Operator, problem: Problem, index: int
) -> RuntimeVariant | None:
    """Asks how `operator`, operator `index` of a plan's problem, writes over what it reads; None where it can't."""
    takes = problem.operators[index].takes
    if not takes or not isinstance(runtime, TakesOver):
        return None
    given, made = (problem.tensors[i].name for i in takes)
    read = next((name for name in operator.inputs if graph.root(name) == given), given)
    return runtime.taking(operator, graph.tensors, problem.alignment, takes=(read, made), values=graph.constants)


def streams(operator: str, who: str) -> PlanError:
    """Refuses a plan in which an operator streams, for whoever runs it with its operands in RAM alone."""
    return PlanError(
        f"the plan streams operands of {operator!r} from or to storage, which {who} can't run yet; solve again with "
        "more RAM, so that nothing is streamed"
    )


def in_parts(name: str, what: str) -> PlanError:
    """Gives what is wrong with a plan whose batch comes in parts, for what has none."""
    return PlanError(f"{name}: the plan's batch comes in parts, and {what} has none; solve it without --micro-batch")


def _elsewhere(problem: Problem) -> str:
    """Says where a plan of this runtime can be run."""
    return ", or run it in C (po.execute_on, --on host)" if problem.runtime == "c" else ""


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor's start: `offset` bytes into the arena or, with a `root`, where that resident storage starts."""

    offset: int
    root: str = ""


@dataclass(frozen=True, slots=True)
class Moment:
    """One instruction with the places that hold while it runs.

    number
        Its index in the plan.
    at
        Offset in the arena of each tensor in RAM, by the tensor's index in the problem.
    made
        What the instruction allocates, a workspace last.
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
    """Walk a laid-out plan. `at` is one mapping that changes from moment to moment."""
    waiting = list(buffers(plan))  # in the order of allocation
    does = effects(plan.problem)
    at: dict[int, int] = {}
    ends: dict[int, list[int]] = {}
    place = 0
    for number in range(-1, len(plan.instructions)):
        made: list[Buffer] = []
        while place < len(waiting) and waiting[place].first == number:
            made.append(waiting[place])
            place += 1
        for buffer in made:
            if not buffer.workspace:
                at[buffer.index] = buffer.offset
                ends.setdefault(buffer.last, []).append(buffer.index)
        if number >= 0:
            taken = does.of(plan.instructions[number]).takes
            for index in taken:  # it is where the output that takes it over is
                at[index] = at[plan.problem.operators[plan.instructions[number].target].takes[1]]
            yield Moment(number, plan.instructions[number], at, tuple(made))
            for index in taken:
                del at[index]
            for index in ends.pop(number, ()):
                del at[index]


def input_offsets(plan: Plan) -> Mapping[int, int]:
    """Says where the graph inputs lie before the first instruction, by index in the problem."""
    return {buffer.index: buffer.offset for buffer in buffers(plan) if buffer.first < 0 and not buffer.workspace}


class Places:
    """Says where everything lies that the nodes of an operator read and write."""

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
        """Lays an operator out: tensors that share storage, offsets of its temporaries, what its kernels take."""
        if operator.name not in self._inner:
            self._inner[operator.name] = self.runtime.workspace(operator, self.graph.tensors, self.problem.alignment)
        return self._inner[operator.name]

    def of(self, name: str, operator: Operator, moment: Moment) -> Place:
        """Says where the tensor `name`, as the nodes of `operator` know it, lies at `moment`."""
        inner = self.inner(operator)
        if name in inner.offsets:
            return Place(moment.workspace + inner.offsets[name])
        return self.root(self.graph.root(inner.storage.get(name, name)), moment)

    def root(self, root: str, moment: Moment) -> Place:
        """Says where a storage lies at `moment`."""
        return Place(0, root) if root in self.resident else Place(moment.at[self.index[root]])

    def variant(self, operator: Operator, index: int, number: int) -> RuntimeVariant:
        """The runtime's own variant that is `number`, from 1, of operator `index` of the problem, which is `operator`.

        Raises PlanError where it has none that is so.
        """
        if operator.name not in self._variants:
            given = streamable(operator, self.graph, self.index, self.graph.constants, self.problem.storage_block_bytes)
            found = self.runtime.variants(operator, self.graph.tensors, self.problem.alignment, **given)
            self._variants[operator.name] = tuple(found)
        ways, planned = self._variants[operator.name], self.problem.operators[index].variants[number - 1]
        if number < len(ways) and ways[number].workspace.temporaries_bytes == planned.workspace_bytes:
            return ways[number]
        raise PlanError(
            f"the plan runs {operator.name!r} by its variant {number} with {planned.workspace_bytes} B of workspace, "
            "and the runtime has no such variant; solve the model again"
        )

    def taking(self, operator: Operator, index: int) -> RuntimeVariant:
        """Says how `operator`, which is operator `index` of the problem, writes an output over an input.

        Raises PlanError where the runtime can't, or not in the workspace that the plan has.
        """
        planned = self.problem.operators[index]
        found = taken_over(self.runtime, self.graph, operator, self.problem, index)
        if found is None or found.workspace.temporaries_bytes > planned.workspace_bytes:
            raise PlanError(
                f"the plan has {operator.name!r} write over what it reads in {planned.workspace_bytes} B of workspace, "
                f"and the runtime {self.runtime.name!r} can't; solve the model again"
            )
        return found

    def sliced(self, operator: Operator, instruction: Instruction) -> Sliced:
        """The loop by which a plan runs `operator`. Raises PlanError where the runtime has none."""
        if instruction.variant:
            found = self.variant(operator, instruction.target, instruction.variant).detail
        else:
            found = self.taking(operator, instruction.target).detail
        if not isinstance(found, Sliced):
            raise streams(operator.name, self.runtime.name)
        return found


def slice_nodes(plan: Plan, places: Places) -> Iterator[Node]:
    """The nodes that run on slices in a plan, some more than once."""
    for instruction in plan.instructions:
        if instruction.action is not Action.COMPUTE:
            continue
        costed = plan.problem.operators[instruction.target]
        if instruction.variant or costed.takes:
            sliced = places.sliced(places.operators[costed.name], instruction)
            yield from (node for node in (*sliced.each, *sliced.further.values()) if not node.domain)
