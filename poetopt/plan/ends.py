"""The end of a step as an operator, for models that know no other: what has to be there then, it reads."""

from __future__ import annotations

from dataclasses import replace

from poetopt.graph.problem import Home, Problem, ProblemOperator, ProblemTensor, Transfers
from poetopt.plan.instructions import Action, Instruction, Plan
from poetopt.util.errors import ProblemError

LAST = "end of the step"
"""The name of the operator that reads what has to be there."""


def without_ends(problem: Problem) -> Problem:
    """The same problem, with plans that `with_ends` makes those of `problem`.

    Raises ProblemError where an operator updates more than one tensor that is carried in RAM, or streams or takes over
    another one beside that: its output can take over one input.
    """
    tensors = [_plain(tensor) for tensor in problem.tensors]
    operators = list(problem.operators)
    ends = []
    for i in problem.at_end:
        held = problem.tensors[i]
        if not held.updated:
            ends.append(i)
            continue
        u, new = held.updated_by, len(tensors)
        if operators[u].takes or operators[u].variants or held.backed:
            raise ProblemError(
                f"operator {operators[u].name!r} updates {held.name!r}, which is carried in RAM, and takes over or "
                "streams something beside that, or storage has a copy of it, which can't be planned yet; "
                "give it its home on storage"
            )
        tensors.append(replace(tensors[i], name=f"{held.name}, updated", producer=u, home=Home.NOWHERE, updated_by=-1))
        outputs = (*operators[u].outputs, new)
        operators[u] = replace(operators[u], outputs=outputs, takes=(i, new), recomputable=False)
        ends.append(new)
    if ends:
        operators.append(ProblemOperator(LAST, tuple(sorted(ends)), (), 0.0, 0.0, recomputable=False, backward=True))
    return replace(problem, operators=tuple(operators), tensors=tuple(tensors))


def _plain(tensor: ProblemTensor) -> ProblemTensor:
    if tensor.home is Home.FLASH:
        return replace(tensor, home=Home.RAM, nbytes=0, transfers=Transfers())
    carried = tensor.carried and tensor.home is not Home.RAM
    return replace(tensor, carried=carried, result=False)


def with_ends(problem: Problem, plan: Plan) -> Plan:
    """A plan of `without_ends(problem)` as one of `problem`, not laid out."""
    new = (i for i in problem.at_end if problem.tensors[i].updated)
    own = dict(enumerate(new, len(problem.tensors)))
    updated: set[int] = set()
    steps: list[Instruction] = []
    for step in plan.instructions:
        if step.action is Action.COMPUTE:
            if step.target < len(problem.operators):
                steps.append(step)
                updated.update(problem.updates[step.target])
            else:
                updated.update(own)  # and what stays is not freed
                updated.update(problem.at_end)
            continue
        i = own.get(step.target, step.target)
        gone = step.target in updated and step.action is Action.FREE and i in problem.at_end
        if problem.tensors[i].home is not Home.FLASH and not gone:
            steps.append(Instruction(step.action, i))
    kept = [i for i in plan.problem.lasting if problem.tensors[i].home is Home.STORAGE]
    return Plan(problem.keeping(kept), tuple(steps))
