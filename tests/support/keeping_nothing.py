"""Plans that need no search, to try runtimes and their ways with."""

from __future__ import annotations

from collections.abc import Sequence

from poetopt.graph.problem import Home, Problem
from poetopt.plan.instructions import Action, Instruction, Plan
from poetopt.plan.layout import lay_out


def keeping_nothing(problem: Problem, ways: Sequence[int] = ()) -> Plan:
    """Each operator once; what it has in RAM comes from storage and goes there.

    ways
        By which variant each operator runs; by default by the one that takes the least RAM.
    """

    def leanest(k: int) -> int:
        return min(range(1 + len(problem.operators[k].variants)), key=lambda v: problem.working_set_bytes(k, v))

    steps: list[Instruction] = []
    for i, tensor in enumerate(problem.tensors):
        if tensor.home is Home.RAM:
            steps += [Instruction(Action.PAGE_OUT, i), Instruction(Action.FREE, i)]
    for k, operator in enumerate(problem.operators):
        number = ways[k] if ways else leanest(k)
        chosen = operator.variant(number)
        whole = [i for i in operator.inputs if i not in chosen.streamed_in]
        made = [i for i in operator.outputs if i not in chosen.streamed_out]
        made += [i for i in whole if problem.tensors[i].updated_by == k]
        steps += [*(Instruction(Action.PAGE_IN, i) for i in whole), Instruction(Action.COMPUTE, k, number)]
        steps += [Instruction(Action.PAGE_OUT, i) for i in made]
        steps += [Instruction(Action.FREE, i) for i in dict.fromkeys((*whole, *made))]
    return lay_out(Plan(problem, tuple(steps)))
