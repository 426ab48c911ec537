"""A plan as its compact form with the offsets beside it, and the C that runs an operator by its number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from poetopt.backends.c.names import comment
from poetopt.backends.c.operators import OperatorCode
from poetopt.backends.c.program import DeviceProgram
from poetopt.backends.c.tables import moved
from poetopt.plan.compact import FINGERPRINT_BYTES, encode_compact
from poetopt.plan.instructions import Action
from poetopt.step.places import moments

ROW = 16
"""Numbers in a line."""
WAYS = 256
"""How many ways an operator has at most."""
HEAD_BYTES, TAIL_BYTES = 1 + FINGERPRINT_BYTES, 4
"""Version and fingerprint before, checksum behind the events and exceptions of a compact plan."""


def decoded(program: DeviceProgram) -> Mapping[str, object]:
    """What the decoder's template is filled in with."""
    problem = program.plan.problem
    data = encode_compact(program.plan)[HEAD_BYTES:-TAIL_BYTES]
    offsets = list(_offsets(program))
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
        "operators": "".join(_operator(program)),
        "streamed": "".join(_streamed(program)),
        "tensors": "".join(_tensor(program)),
    }


def _offsets(program: DeviceProgram) -> Iterator[int]:
    """Offsets of what each instruction works on, in the order of the instructions."""
    for moment in moments(program.plan):
        action, target = moment.instruction.action, moment.instruction.target
        if action is Action.COMPUTE:
            code = program.operators[target, moment.instruction.variant]
            yield from (moment.at[index] for index in code.tensors)
            if code.workspace:
                yield moment.workspace
        elif action is not Action.FREE:
            yield moment.at[target]


def _operator(program: DeviceProgram) -> Iterator[str]:
    for (index, way), code in program.operators.items():
        if not way:
            count, operands = _operands(code)
            yield f"    case {index}:\n        {code.function}({', '.join(operands)});\n        return {count};\n"


def _streamed(program: DeviceProgram) -> Iterator[str]:
    for (index, way), code in program.operators.items():
        if way:
            count, operands = _operands(code)
            operands += [f"{program.storage.blocks[stored]}u" for stored in code.stored]
            yield (
                f"    case {index * WAYS + way}:\n        PO_TRY({code.function}({', '.join(operands)}));\n"
                f"        *next = at + {count};\n        return 0;\n"
            )


def _operands(code: OperatorCode) -> tuple[int, list[str]]:
    count = len(code.tensors) + code.workspace
    operands = [*code.given, *(f"PO_OPERAND({k})" for k in range(count))]
    return count, operands + ([f"po_state + {code.state_at}"] if code.state else [])


def _tensor(program: DeviceProgram) -> Iterator[str]:
    for index, block in program.storage.blocks.items():
        tensor = program.plan.problem.tensors[index]
        written, read = (f"{move}({block}u, address, {tensor.nbytes}u)" for move in ("po_write", "po_read"))
        if index in program.tables:
            written, read = (moved(program.tables, index, block, "address", out=out) for out in (True, False))
        yield f"    case {index}: /* {comment(tensor.name)} */\n        return out ? {written} : {read};\n"


def _rows(numbers: bytes | list[int]) -> str:
    rows = (numbers[k : k + ROW] for k in range(0, len(numbers), ROW))
    return ",\n".join("    " + ", ".join(f"{number}u" for number in row) for row in rows)
