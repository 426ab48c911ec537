"""Tilings of picked rows and their gradients: a row that is read from storage, or added to, is the only one in RAM.

Rows are added up in the order of their numbers' places, as the plain kernel does.
"""

from __future__ import annotations

from math import prod

from poetopt.graph import DTYPE_BYTES, Tensor
from poetopt.runtimes.c.kernel import Call
from poetopt.runtimes.c.loops import block
from poetopt.runtimes.c.tiles.tiling import OUTER, Chunk, Loop, Slice, Tiling
from poetopt.runtimes.c.write import read, written


def gathered(call: Call) -> tuple[Tiling, ...]:
    """Chunks of the rows that are picked, of a table in RAM, or one whose rows are read one by one."""
    x, numbers, y = call.input(0), call.input(1), call.output()
    length, unit = _rows(call, x)
    if not length or not unit:
        return ()

    def code(call: Call, chunk: Chunk) -> str:
        table = chunk.inputs[0]
        copied = block(
            f"const int32_t at = {_number('po_k', length)};",
            table.read("at"),
            f"memcpy((unsigned char *)y + i * {unit}, (const unsigned char *){table.at}"
            f"{'' if table.picks else f' + at * {unit}'}, {unit});",
        )
        each = f"for (int32_t i = 0; i < {chunk.count[OUTER]}; ++i) {{\n{_step('po_k', chunk)}\n{copied}\n}}"
        return block(read("b", numbers, chunk.inputs[1].at), written("y", y, chunk.outputs[0].at), each)

    rows = Slice(OUTER, unit)
    picked = Slice(OUTER, unit, picks=numbers.size)
    ways = [picked, None] if numbers.size > 1 else [picked]
    return tuple(Tiling(Loop(numbers.size), None, (taken, None), (rows,), code) for taken in ways)


def gradient_tilings(call: Call) -> tuple[Tiling, ...]:
    """Chunks of the table's rows, with dy in RAM, or its rows read one by one."""
    return _added(call, update=False)


def update_tilings(call: Call) -> tuple[Tiling, ...]:
    """The same of a table that sgd updates: dy, numbers, table, rate, what is kept."""
    return _added(call, update=True)


def _added(call: Call, *, update: bool) -> tuple[Tiling, ...]:
    numbers, y = call.input(1), call.output()
    length, unit = _rows(call, y)
    if not length or not unit:
        return ()
    width = DTYPE_BYTES[y.dtype]
    inner = unit // width

    def code(call: Call, chunk: Chunk) -> str:
        given, count, begin = chunk.inputs[0], chunk.count[OUTER], chunk.begin[OUTER]
        first = "y[i] = 0.0f;"
        operands = [read("b", numbers, chunk.inputs[1].at), written("y", y, chunk.outputs[0].at)]
        if update:
            operands += [read(name, call.input(k), chunk.inputs[k].at) for k, name in ((2, "p"), (3, "r"), (4, "e"))]
            first = "y[i] = p[i] * e[0];"
        added = "y[row * {0} + j] -= a[j] * r[0];" if update else "y[row * {0} + j] += a[j];"
        row = block(
            given.read("k"),
            f"const float *a = (const float *){given.at}{'' if given.picks else f' + k * {inner}'};",
            f"for (int32_t j = 0; j < {inner}; ++j) {{\n    {added.format(inner)}\n}}",
        )
        return block(
            *operands,
            f"for (int32_t i = 0; i < {count}; ++i) {{\n    {first}\n}}",
            f"for (int32_t k = 0; k < {numbers.size}; ++k) {{\n"
            f"    const int32_t row = {_number('k', length)} - {begin} / {inner};\n"
            f"    if (row >= 0 && row < {count} / {inner}) {{\n{row}\n    }}\n}}",
        )

    elements = Slice(OUTER, width)  # of whole rows: an update behind it goes by elements
    rest = (None, *((elements, None, None) if update else ()))
    ways = [Slice(OUTER, unit, picks=numbers.size), *([None] if length > 1 else [])]
    return tuple(Tiling(Loop(y.size, inner), None, (taken, *rest), (elements,), code) for taken in ways)


def _rows(call: Call, table: Tensor) -> tuple[int, int]:
    """How many rows a table has, and their bytes; 0 where a row lies in pieces."""
    axis = call.integer("axis", 0) % len(table.shape)
    if prod(table.shape[:axis]) != 1:
        return 0, 0
    return table.shape[axis], prod(table.shape[axis + 1 :]) * DTYPE_BYTES[table.dtype]


def _step(name: str, chunk: Chunk) -> str:
    return f"const int32_t {name} = {chunk.begin[OUTER]} + i;"


def _number(place: str, length: int) -> str:
    return f"(int32_t)(b[{place}] < 0 ? b[{place}] + {length} : b[{place}])"
