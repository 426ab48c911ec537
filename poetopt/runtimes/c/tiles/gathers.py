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
            f"const int32_t at = {number_at(length, 'po_k')};",
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
        operands = [read("b", numbers, chunk.inputs[1].at), written("y", y, chunk.outputs[0].at)]
        if update:
            operands += [read(name, call.input(k), chunk.inputs[k].at) for k, name in ((2, "p"), (3, "r"), (4, "e"))]
        number, begun = number_at(length), f"{begin} / {inner}"
        here = f"row >= {begun} && row < {begun} + {count} / {inner}"
        term = (
            f"{given.read('k')}\nconst float *a = (const float *){given.at}{'' if given.picks else f' + k * {inner}'};"
        )
        y_at = f"y[(row - {begun}) * {inner} + j]"
        if update:
            first, done = "y[i] = p[i] * e[0];", f"{y_at} -= sum[j] * r[0];"
            each = row_sums(numbers.size, inner, number, chunk.scratch, term, "a[j]", done, here)
        else:
            first = "y[i] = 0.0f;"
            row = block(term, f"for (int32_t j = 0; j < {inner}; ++j) {{\n    {y_at} += a[j];\n}}")
            each = (
                f"for (int32_t k = 0; k < {numbers.size}; ++k) {{\n"
                f"    const int32_t row = {number_at(length, 'k')};\n    if ({here}) {row}\n}}"
            )
        return block(*operands, f"for (int32_t i = 0; i < {count}; ++i) {{\n    {first}\n}}", each)

    elements = Slice(OUTER, width)  # of whole rows: an update behind it goes by elements
    rest = (None, *((elements, None, None) if update else ()))
    ways = [Slice(OUTER, unit, picks=numbers.size), *([None] if length > 1 else [])]
    return tuple(Tiling(Loop(y.size, inner), None, (taken, *rest), (elements,), code) for taken in ways)


def row_sums(count: int, inner: int, number: str, sums: str, each: str, term: str, done: str, taken: str = "1") -> str:
    """C that sums up what is of one row, for each row among `count` numbers, and does `done` with each of its elements.

    A row's terms are one sum before they meet the row itself: each by itself would be lost where it is small beside it.

    number
        The C of the number at a place, which is to be filled in.
    sums
        Where `inner` floats lie.
    each, term
        What comes before the terms of place k, and the term of element j.
    taken
        Which rows.
    """

    def at(place: str) -> str:
        return number.format(place, place, place)

    return f"""for (int32_t i1 = 0; i1 < {count}; ++i1) {{
    const int32_t row = {at("i1")};
    float *sum = {sums};
    int32_t first = 0;
    while (first < i1 && {at("first")} != row) {{
        ++first;
    }}
    if (first == i1 && {taken}) {{
        for (int32_t j = 0; j < {inner}; ++j) {{
            sum[j] = 0.0f;
        }}
        for (int32_t k = i1; k < {count}; ++k) {{
            if ({at("k")} == row) {{
                {each}
                for (int32_t j = 0; j < {inner}; ++j) {{
                    sum[j] += {term};
                }}
            }}
        }}
        for (int32_t j = 0; j < {inner}; ++j) {{
            {done}
        }}
    }}
}}"""


def _rows(call: Call, table: Tensor) -> tuple[int, int]:
    """How many rows a table has, and their bytes; 0 where a row lies in pieces."""
    axis = call.integer("axis", 0) % len(table.shape)
    if prod(table.shape[:axis]) != 1:
        return 0, 0
    return table.shape[axis], prod(table.shape[axis + 1 :]) * DTYPE_BYTES[table.dtype]


def _step(name: str, chunk: Chunk) -> str:
    return f"const int32_t {name} = {chunk.begin[OUTER]} + i;"


def number_at(length: int, place: str = "{}") -> str:
    """The C of a row's number; negative ones count from the end."""
    return f"(int32_t)(b[{place}] < 0 ? b[{place}] + {length} : b[{place}])"
