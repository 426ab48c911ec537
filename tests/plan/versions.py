"""What a plan of tensors with homes has to do, told by versions: two steps in a row, by hand, without the package.

Every value carries the step and the update that it is of. RAM and storage are dictionaries from tensors to values, and
what is carried is never put back between the steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from poetopt.plan.instructions import Action, Instruction
from poetopt.problem import Home, Problem

Value = tuple[int, bool]
"""The step in which it was made or given, and whether the update has written it anew."""


class BrokenError(Exception):
    """A step reads what it must not, or leaves what the next one can't begin from."""


def run_twice(problem: Problem, steps: Sequence[Instruction]) -> list[int]:
    """The live bytes of the second step. Raises BrokenError where one of the two can't be run."""
    ram: dict[int, Value] = {}
    storage: dict[int, Value] = {}
    for i, tensor in enumerate(problem.tensors):
        if tensor.home is Home.RAM:
            ram[i] = (0, False)
        if tensor.home is Home.STORAGE:
            storage[i] = (0, False)
    live: list[int] = []
    for number in range(2):
        live = _run(problem, steps, number, ram, storage)
        _between(problem, number, ram, storage)
    return live


def _fresh(problem: Problem, i: int, number: int, updated: bool) -> Value:
    """The value of tensor i that the step may read before (after) its update."""
    tensor = problem.tensors[i]
    if tensor.carried and tensor.updated:
        return (number, updated)
    if tensor.carried or tensor.home in (Home.STORAGE, Home.FLASH):
        return (0, updated)
    return (number, updated)


def _run(
    problem: Problem, steps: Sequence[Instruction], number: int, ram: dict[int, Value], storage: dict[int, Value]
) -> list[int]:
    runs = [0] * len(problem.operators)
    live: list[int] = []

    def value(i: int) -> Value:
        by = problem.tensors[i].updated_by
        return _fresh(problem, i, number, by >= 0 and runs[by] > 0)

    for step in steps:
        k = step.target
        if not 0 <= k < len(problem.operators if step.action is Action.COMPUTE else problem.tensors):
            raise BrokenError
        before = dict(ram)
        workspace = 0
        if step.action is Action.COMPUTE:
            operator = problem.operators[k]
            if 0 in runs[:k] or (runs[k] and not operator.recomputable):
                raise BrokenError
            for i in operator.inputs:
                old = _fresh(problem, i, number, False)
                if problem.tensors[i].home is not Home.FLASH and ram.get(i) != old:
                    raise BrokenError
            runs[k] += 1
            for i in operator.outputs:
                ram[i] = value(i)
            for i, tensor in enumerate(problem.tensors):
                if tensor.updated_by == k:
                    ram[i] = value(i)
            workspace = operator.workspace_bytes
        elif step.action is Action.FREE:
            if k not in ram:
                raise BrokenError
            del ram[k]
        elif step.action is Action.PAGE_OUT:
            if k not in ram or not problem.paging:
                raise BrokenError
            storage[k] = ram[k]
        else:
            if k in ram or storage.get(k) != value(k) or not problem.paging:
                raise BrokenError
            ram[k] = storage[k]
        held = {**before, **ram}
        live.append(sum(problem.tensors[i].nbytes for i in held) + workspace + problem.reserve_bytes)
    if 0 in runs:
        raise BrokenError
    for i, tensor in enumerate(problem.tensors):
        if tensor.result and i not in ram:
            raise BrokenError
        if tensor.carried and tensor.home is Home.RAM and ram.get(i) != value(i):
            raise BrokenError
        if tensor.carried and tensor.home is Home.STORAGE and storage.get(i) != value(i):
            raise BrokenError
    return live


def _between(problem: Problem, number: int, ram: dict[int, Value], storage: dict[int, Value]) -> None:
    """From one step to the next: what is carried stays where it is, what is given is given anew, all else is lost."""
    for i, tensor in enumerate(problem.tensors):
        for place, home in ((ram, Home.RAM), (storage, Home.STORAGE)):
            if tensor.home is not home:
                place.pop(i, None)
            elif tensor.carried and tensor.updated:
                assert place[i] == (number, True)
                place[i] = (number + 1, False)
            elif not tensor.carried:
                place[i] = _fresh(problem, i, number + 1, False)
