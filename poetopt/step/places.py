"""Where every tensor of a step lies: in the arena by the plan's offsets, or in the resident region."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from poetopt.errors import PlanError
from poetopt.graph import Operator, TrainingGraph
from poetopt.operators.constants import constants_of
from poetopt.operators.movable import streamable
from poetopt.operators.resident import resident_storages
from poetopt.plan.effects import effects
from poetopt.plan.instructions import Instruction, Plan
from poetopt.plan.layout import Buffer, buffers
from poetopt.problem import Problem
from poetopt.runtimes.contract import InnerLayout, Runtime, RuntimeVariant
from poetopt.runtimes.sliced import Sliced
from poetopt.step.belongs import streams, taken_over


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor starts: `offset` bytes into the arena or, with a `root`, where that resident storage starts."""

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
    """Where the graph inputs lie before the first instruction, by index in the problem."""
    return {buffer.index: buffer.offset for buffer in buffers(plan) if buffer.first < 0 and not buffer.workspace}


class Places:
    """Where everything lies that the nodes of an operator read and write."""

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
        """Which tensors of an operator share storage, the offsets of its temporaries, and what its kernels take."""
        if operator.name not in self._inner:
            self._inner[operator.name] = self.runtime.workspace(operator, self.graph.tensors, self.problem.alignment)
        return self._inner[operator.name]

    def of(self, name: str, operator: Operator, moment: Moment) -> Place:
        """Where the tensor `name`, as the nodes of `operator` know it, lies at `moment`."""
        inner = self.inner(operator)
        if name in inner.offsets:
            return Place(moment.workspace + inner.offsets[name])
        return self.root(self.graph.root(inner.storage.get(name, name)), moment)

    def root(self, root: str, moment: Moment) -> Place:
        """Where a storage lies at `moment`."""
        return Place(0, root) if root in self.resident else Place(moment.at[self.index[root]])

    def variant(self, operator: Operator, index: int, number: int) -> RuntimeVariant:
        """The runtime's own variant that is `number`, from 1, of operator `index` of the problem, which is `operator`.

        Raises PlanError where it has none that is so.
        """
        if operator.name not in self._variants:
            given = streamable(operator, self.graph, self.index, constants_of(self.graph))
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
        """How `operator`, which is operator `index` of the problem, writes an output over an input.

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
