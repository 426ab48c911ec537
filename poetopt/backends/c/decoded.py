"""A plan as its compact form with the offsets beside it, and the C that runs an operator by its number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from poetopt.backends.c.names import comment
from poetopt.backends.c.operators import OperatorCode
from poetopt.backends.c.routine import Routine
from poetopt.plan.compact import FINGERPRINT_BYTES, encode_compact
from poetopt.plan.instructions import Action
from poetopt.step.places import moments

ROW = 16
"""Numbers in a line."""
WAYS = 256
"""How many ways an operator has at most."""
HEAD_BYTES, TAIL_BYTES = 1 + FINGERPRINT_BYTES, 4
"""Version and fingerprint before, checksum behind the events and exceptions of a compact plan."""


def decoded(routine: Routine) -> Mapping[str, object]:
    """What the decoder's template is filled in with."""
    problem = routine.plan.problem
    data = encode_compact(routine.plan)[HEAD_BYTES:-TAIL_BYTES]
    offsets = list(_offsets(routine))
    alignment = problem.alignment
    small = max(offsets, default=0) // alignment < 1 << 16
    written = [problem.written_after(k) for k in range(len(problem.operators))]
    read = [operator.inputs for operator in problem.operators]
    return {
        "plan_bytes": len(data),
        "plan": _rows(data),
        "unit": alignment,
        "offset_type": "uint16_t" if small else "uint32_t",
        "offsets": _rows([offset // alignment for offset in offsets] or [0]),
        "count": len(problem.operators),
        "ways": WAYS,
        "written": _rows([tensors[0] if tensors else 0 for tensors in written]),
        "read": _rows([tensors[0] if tensors else 0 for tensors in read]),
        "operators": "".join(_operator(routine)),
        "streamed": "".join(_streamed(routine)),
        "tensors": "".join(_tensor(routine)),
    }


def _offsets(routine: Routine) -> Iterator[int]:
    """Offsets of what each instruction works on, in the order of the instructions."""
    for moment in moments(routine.plan):
        action, target = moment.instruction.action, moment.instruction.target
        if action is Action.COMPUTE:
            code = routine.operators[target, moment.instruction.variant]
            yield from (moment.at[index] for index in code.tensors)
            if code.workspace:
                yield moment.workspace
        elif action is not Action.FREE:
            yield moment.at[target]


def _operator(routine: Routine) -> Iterator[str]:
    for (index, way), code in routine.operators.items():
        if not way:
            count, operands = _operands(code)
            yield f"    case {index}:\n        {code.function}({', '.join(operands)});\n        return {count};\n"


def _streamed(routine: Routine) -> Iterator[str]:
    for (index, way), code in routine.operators.items():
        if way:
            count, operands = _operands(code)
            operands += routine.stored(code)
            yield (
                f"    case {index * WAYS + way}:\n        PO_TRY({code.function}({', '.join(operands)}));\n"
                f"        *next = at + {count};\n        return 0;\n"
            )


def _operands(code: OperatorCode) -> tuple[int, list[str]]:
    count = len(code.tensors) + code.workspace
    operands = [*code.given, *(f"PO_OPERAND({k})" for k in range(count))]
    return count, operands + ([f"po_state + {code.state_at}"] if code.state else [])


def _tensor(routine: Routine) -> Iterator[str]:
    paged = {s.target for s in routine.plan.instructions if s.action in (Action.PAGE_OUT, Action.PAGE_IN)}
    for index in sorted(paged):
        name = routine.plan.problem.tensors[index].name
        written, read = (routine.paged(index, "address", out=out) for out in (True, False))
        yield f"    case {index}: /* {comment(name)} */\n        return out ? {written} : {read};\n"


def _rows(numbers: bytes | list[int]) -> str:
    rows = (numbers[k : k + ROW] for k in range(0, len(numbers), ROW))
    return ",\n".join("    " + ", ".join(f"{number}u" for number in row) for row in rows)
