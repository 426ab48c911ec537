"""Tensors that must be in RAM when a step ends, for models that have no such rule: one more operator reads them."""

from __future__ import annotations

from dataclasses import replace

from poetopt.graph.problem import Home, Problem, ProblemOperator, ProblemTensor, Transfers
from poetopt.plan.instructions import Action, Instruction, Plan
from poetopt.util.errors import ProblemError

LAST = "end of the step"
"""Name of the operator that reads the tensors that must be in RAM at the end."""


def without_ends(problem: Problem) -> Problem:
    """Return an equivalent problem without carried tensors, whose plans `with_ends` turns into plans of `problem`.

    Raises
    ------
    ProblemError
        If an operator updates more than one tensor that is carried in RAM, or also streams or overwrites another one:
        its output can replace only one input.
    """
    tensors = [_plain(tensor) for tensor in problem.tensors]
    operators = list(problem.operators)
    at_end = []
    for i in problem.at_end:
        tensor = problem.tensors[i]
        if not tensor.updated:
            at_end.append(i)
            continue
        u, new = tensor.updated_by, len(tensors)
        if operators[u].takes or operators[u].variants or tensor.backed:
            raise ProblemError(
                f"operator {operators[u].name!r} updates {tensor.name!r}, which is carried in RAM. It also overwrites "
                "or streams another tensor, or storage has a copy of this one. Such an update can't be planned yet. "
                "Give the tensor its home on storage"
            )
        tensors.append(
            replace(tensors[i], name=f"{tensor.name}, updated", producer=u, home=Home.NOWHERE, updated_by=-1)
        )
        outputs = (*operators[u].outputs, new)
        operators[u] = replace(operators[u], outputs=outputs, takes=(i, new), recomputable=False)
        at_end.append(new)
    if at_end:
        operators.append(ProblemOperator(LAST, tuple(sorted(at_end)), (), 0.0, 0.0, recomputable=False, backward=True))
    return replace(problem, operators=tuple(operators), tensors=tuple(tensors))


def _plain(tensor: ProblemTensor) -> ProblemTensor:
    if tensor.home is Home.FLASH:
        return replace(tensor, home=Home.RAM, nbytes=0, transfers=Transfers())
    carried = tensor.carried and tensor.home is not Home.RAM
    return replace(tensor, carried=carried, result=False)


def with_ends(problem: Problem, plan: Plan) -> Plan:
    """Return a plan of `without_ends(problem)` as a plan of `problem`, without offsets."""
    carried = (i for i in problem.at_end if problem.tensors[i].updated)
    carried_of = dict(enumerate(carried, len(problem.tensors)))
    updated: set[int] = set()
    steps: list[Instruction] = []
    for step in plan.instructions:
        if step.action is Action.COMPUTE:
            if step.target < len(problem.operators):
                steps.append(step)
                updated.update(problem.updates[step.target])
            else:
                updated.update(carried_of)  # tensors that stay in RAM are not freed
                updated.update(problem.at_end)
            continue
        i = carried_of.get(step.target, step.target)
        is_overwritten = step.target in updated and step.action is Action.FREE and i in problem.at_end
        if problem.tensors[i].home is not Home.FLASH and not is_overwritten:
            steps.append(Instruction(step.action, i))
    kept = [i for i in plan.problem.lasting if problem.tensors[i].home is Home.STORAGE]
    return Plan(problem.keeping(kept), tuple(steps))
