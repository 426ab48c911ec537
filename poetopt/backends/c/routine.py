"""A plan's instructions as one function of the emitted code, with those of the operators that it calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from poetopt.backends.c.operators import PREFIX, OperatorCode, Run, Still, operator_code
from poetopt.backends.c.sharing import shared
from poetopt.backends.c.streamed import streamed_code
from poetopt.backends.c.tables import Table, moved
from poetopt.graph import TrainingGraph
from poetopt.plan.closing import closing_plan
from poetopt.plan.instructions import Action, Plan
from poetopt.runtimes.c import runtime as c_runtime
from poetopt.runtimes.c.steps import layout
from poetopt.step.places import Places

PREFIXES = PREFIX, "po_last"
"""What the names of operators' functions begin with: those of the plan, and of what follows a batch's last part."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, and what it is of."""

    plan: Plan
    graph: TrainingGraph
    places: Places

    @property
    def kept_bytes(self) -> int:
        """What kernels keep from step to step."""
        operators = (self.places.operators[operator.name] for operator in self.plan.problem.operators)
        alignment = self.plan.problem.alignment
        return sum(layout(operator, self.graph.tensors, alignment).kept_bytes for operator in operators)

    @property
    def sums(self) -> frozenset[int]:
        """The sums of gradients that it adds to, by their index in the problem."""
        return frozenset(self.places.index[name] for name in self.graph.sums.values() if name in self.places.index)


@dataclass(frozen=True, slots=True)
class Routine:
    """What one function of the emitted code runs.

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
    tables: Mapping[int, Table]
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
        """What an operator that streams is called with behind all else."""
        return [*(f"{self.blocks[index]}u" for index in code.stored), *(["part != 0u"] if code.sums else [])]


def planned(plan: Plan, graph: TrainingGraph) -> tuple[Planned, ...]:
    """What a step runs: the plan, and of a batch in parts what follows the last one, where anything does."""
    found = [Planned(plan, graph, Places(graph, plan.problem, c_runtime))]
    after = closing_plan(plan)
    if after is not None and graph.closing is not None:
        found.append(Planned(after, graph.closing, Places(graph.closing, after.problem, c_runtime)))
    return tuple(found)


def operators_of(planned: Sequence[Planned], still: Still) -> list[Mapping[Run, OperatorCode]]:
    """The functions of each one's operators. Raises `UnsupportedOpError` where no kernel runs one of their nodes."""
    found: dict[tuple[int, Run], OperatorCode] = {}
    words = 0
    for which, one in enumerate(planned):
        computed = {(s.target, s.variant) for s in one.plan.instructions if s.action is Action.COMPUTE}
        for index, way in sorted(computed):
            where = one.graph, one.plan.problem, one.places, still, words, PREFIXES[which]
            code = streamed_code(index, way, *where) if way else operator_code(index, *where)
            found[which, (index, way)] = code
            words += len(code.state)
    codes = shared(found)
    return [{run: code for (k, run), code in codes.items() if k == which} for which in range(len(planned))]
