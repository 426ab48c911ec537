"""The step as C statements: one call an instruction, with the plan's offsets written out."""

from __future__ import annotations

from collections.abc import Iterator

from poetopt.backends.c.names import comment
from poetopt.backends.c.operators import OperatorCode
from poetopt.backends.c.routine import Routine
from poetopt.plan.instructions import Action
from poetopt.step.places import Moment, moments


def calls(routine: Routine) -> Iterator[str]:
    """A statement for each instruction that does something, with the instruction's number and its operator's name."""
    problem = routine.plan.problem
    for moment in moments(routine.plan):
        action, target = moment.instruction.action, moment.instruction.target
        if action is Action.COMPUTE:
            code = routine.operators[target, moment.instruction.variant]
            given = [*operands(moment, code), *routine.stored(code)]
            call = f"{code.function}({', '.join(given)})"
            yield f"{f'PO_TRY({call})' if code.stored else call}; /* {moment.number} */"
        elif action is not Action.FREE:
            call = routine.paged(target, f"PO_ARENA({moment.at[target]}u)", out=action is Action.PAGE_OUT)
            yield f"PO_TRY({call}); /* {moment.number}: {comment(problem.tensors[target].name)} */"


def operands(moment: Moment, code: OperatorCode) -> Iterator[str]:
    """What an operator's function is called with at `moment`."""
    yield from code.given
    for index in code.tensors:
        yield f"PO_ARENA({moment.at[index]}u)"
    if code.workspace:
        yield f"PO_ARENA({moment.workspace}u)"
    if code.state:
        yield f"po_state + {code.state_at}"
