"""Where every tensor of a step lies: in the arena by the plan's offsets, or in the resident region."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from poetopt.backends.ort.memory import Block, aligned_copy, pack_apart
from poetopt.errors import PlanError
from poetopt.graph import Operator, Tensor, TrainingGraph
from poetopt.operators.resident import resident_storages
from poetopt.plan.instructions import Instruction, Plan
from poetopt.plan.layout import Buffer, buffers
from poetopt.problem import Problem
from poetopt.runtimes.contract import InnerLayout
from poetopt.runtimes.onnxruntime import runtime

if TYPE_CHECKING:
    from poetopt.graph import Array


@dataclass(frozen=True)
class Region:
    """The resident region of a step.

    given
        Parameters and constants by name: what the step reads. Read-only.
    written
        Gradients, statistics and the loss by name of their storage: what the step leaves behind.
    block
        The memory of `written`.
    """

    given: Mapping[str, Array]
    written: Mapping[str, Array]
    block: Block

    @classmethod
    def of(cls, graph: TrainingGraph) -> Region:
        """The region of `graph`; what is given is copied only where it isn't aligned."""
        roots = resident_storages(graph)
        given = {name: aligned_copy(graph.values[name]) for name in roots if name in graph.values}
        written, block = pack_apart(graph.tensors[name] for name in roots if name not in given)
        return cls(given, written, block)

    def address(self, root: str) -> int:
        """Where the storage `root` starts."""
        array = self.given[root] if root in self.given else self.written[root]
        return int(array.ctypes.data)

    def value(self, graph: TrainingGraph, name: str) -> Array:
        """A resident tensor that the step has written, a view of its storage, without a copy."""
        return self.written[graph.root(name)].reshape(graph.tensors[name].shape)


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
            yield Moment(number, plan.instructions[number], at, tuple(made))
            for index in ends.pop(number, ()):
                del at[index]


def input_offsets(plan: Plan) -> Mapping[int, int]:
    """Where the graph inputs lie before the first instruction, by index in the problem."""
    return {buffer.index: buffer.offset for buffer in buffers(plan) if buffer.first < 0 and not buffer.workspace}


class Addresses:
    """Addresses of what the nodes of an operator read and write."""

    def __init__(self, graph: TrainingGraph, problem: Problem, region: Region, arena: Block) -> None:
        self.graph = graph
        self.problem = problem
        self.region = region
        self.arena = arena
        self.resident = resident_storages(graph)
        self.index = {tensor.name: i for i, tensor in enumerate(problem.tensors)}
        self.operators = {operator.name: operator for operator in graph.operators}
        self._inner: dict[str, InnerLayout] = {}

    def inner(self, operator: Operator) -> InnerLayout:
        """Which tensors of an operator share storage, the offsets of its temporaries, and what its kernels take."""
        if operator.name not in self._inner:
            self._inner[operator.name] = runtime.workspace(operator, self.graph.tensors, self.problem.alignment)
        return self._inner[operator.name]

    def of(self, name: str, operator: Operator, moment: Moment) -> int:
        """Where the tensor `name`, as the nodes of `operator` know it, lies at `moment`."""
        inner = self.inner(operator)
        if name in inner.offsets:
            return self.arena.address + moment.workspace + inner.offsets[name]
        root = self.graph.root(inner.storage.get(name, name))
        if root in self.resident:
            return self.region.address(root)
        return self.arena.address + moment.at[self.index[root]]


def check_belongs(graph: TrainingGraph, problem: Problem, shown: str) -> None:
    """Refuse a graph that is not the one that `problem` was made of. Raises `PlanError`."""
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
        needed = runtime.workspace(operator, graph.tensors, problem.alignment).temporaries_bytes
        if needed > costed.workspace_bytes:
            raise PlanError(
                f"{shown}: the plan gives {operator.name!r} {costed.workspace_bytes} B of workspace, it needs "
                f"{needed}; solve the model again"
            )
    # How much kernels allocate is known by measurement only, during the step; that they may is known.
    if problem.reserve_bytes < runtime.reserve_bytes(0):
        raise PlanError(
            f"{shown}: the plan sets {problem.reserve_bytes} B aside for what kernels allocate, and none may set less "
            f"than {runtime.reserve_bytes(0)}; solve the model again"
        )
