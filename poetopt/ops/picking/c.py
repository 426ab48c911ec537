"""Ops that select or write by indices in C, and their gradients: whole, and in chunks with a single row in RAM.

Rows are added up in the order of their numbers, in all variants.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

from poetopt.graph import DTYPE_BYTES, OWN_DOMAIN, Tensor
from poetopt.ops.nodes import around
from poetopt.ops.runtimes.c.kernel import (
    C_TYPES,
    Arguments,
    Call,
    Kernel,
    block,
    filled,
    index,
    known_types,
    loops,
    nest,
    operands,
    read,
    strides_of,
    written,
)
from poetopt.ops.runtimes.c.tiling import OUTER, Chunk, ChunkSlice, Loop, Tiling


def gathered(call: Call) -> tuple[Tiling, ...]:
    """Return the tilings by gathered rows, from a table in RAM, or from one whose rows are read one by one."""
    x, numbers, y = call.input(0), call.input(1), call.output()
    length, unit = _table_rows(call, x)
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
        step = f"const int32_t po_k = {chunk.begin[OUTER]} + i;"
        each = f"for (int32_t i = 0; i < {chunk.count[OUTER]}; ++i) {{\n{step}\n{copied}\n}}"
        return block(read("b", numbers, chunk.inputs[1].at), written("y", y, chunk.outputs[0].at), each)

    rows = ChunkSlice(OUTER, unit)
    picked = ChunkSlice(OUTER, unit, picks=numbers.size)
    table_slices = [picked, None] if numbers.size > 1 else [picked]
    return tuple(Tiling(Loop(numbers.size), None, (table_slice, None), (rows,), code) for table_slice in table_slices)


def _add_tilings(call: Call, *, update: bool) -> tuple[Tiling, ...]:
    """Return the tilings by the table's rows, with dy in RAM, or its rows read one by one.

    Parameters
    ----------
    update
        Whether sgd updates the table; inputs are dy, numbers, table, rate, and the factor of weight decay.
    """
    numbers, y = call.input(1), call.output()
    length, unit = _table_rows(call, y)
    if not length or not unit:
        return ()
    width = DTYPE_BYTES[y.dtype]
    inner = unit // width

    def code(call: Call, chunk: Chunk) -> str:
        gradient, count, begin = chunk.inputs[0], chunk.count[OUTER], chunk.begin[OUTER]
        operands = [read("b", numbers, chunk.inputs[1].at), written("y", y, chunk.outputs[0].at)]
        if update:
            operands += [read(name, call.input(k), chunk.inputs[k].at) for k, name in ((2, "p"), (3, "r"), (4, "e"))]
        number, first_row = number_at(length), f"{begin} / {inner}"
        in_chunk = f"row >= {first_row} && row < {first_row} + {count} / {inner}"
        offset = "" if gradient.picks else f" + k * {inner}"
        term = f"{gradient.read('k')}\nconst float *a = (const float *){gradient.at}{offset};"
        y_at = f"y[(row - {first_row}) * {inner} + j]"
        if update:
            first, subtract = "y[i] = p[i] * e[0];", f"{y_at} -= sum[j] * r[0];"
            each = row_sums(numbers.size, inner, number, chunk.scratch, term, "a[j]", subtract, in_chunk)
        else:
            first = "y[i] = 0.0f;"
            row = block(term, f"for (int32_t j = 0; j < {inner}; ++j) {{\n    {y_at} += a[j];\n}}")
            each = (
                f"for (int32_t k = 0; k < {numbers.size}; ++k) {{\n"
                f"    const int32_t row = {number_at(length, 'k')};\n    if ({in_chunk}) {row}\n}}"
            )
        return block(*operands, f"for (int32_t i = 0; i < {count}; ++i) {{\n    {first}\n}}", each)

    elements = ChunkSlice(OUTER, width)  # chunks are whole rows, but an update behind goes by elements
    rest = (None, *((elements, None, None) if update else ()))
    gradient_slices = [ChunkSlice(OUTER, unit, picks=numbers.size), *([None] if length > 1 else [])]
    return tuple(
        Tiling(Loop(y.size, inner), None, (gradient_slice, *rest), (elements,), code)
        for gradient_slice in gradient_slices
    )


def row_sums(
    count: int, inner: int, number: str, sums: str, each: str, term: str, finish: str, condition: str = "1"
) -> str:
    """Return C that sums up the terms of each row among `count` numbers, and runs `finish` for each element of the sum.

    The terms of a row are summed before they are added to the row: a term that is small against the row would be lost.

    Parameters
    ----------
    number
        C of the number at a position, as a template.
    sums
        Address of `inner` floats.
    each, term
        C before the terms of position k, and the term of element j.
    condition
        C condition that selects rows.
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
    if (first == i1 && {condition}) {{
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
            {finish}
        }}
    }}
}}"""


def _table_rows(call: Call, table: Tensor) -> tuple[int, int]:
    """Return the number of rows of a table, and the bytes of a row; 0 if rows aren't contiguous."""
    axis = call.integer("axis", 0) % len(table.shape)
    if prod(table.shape[:axis]) != 1:
        return 0, 0
    return table.shape[axis], prod(table.shape[axis + 1 :]) * DTYPE_BYTES[table.dtype]


def number_at(length: int, place: str = "{}") -> str:
    """Return the C of a row's number; negative numbers count from the end."""
    return f"(int32_t)(b[{place}] < 0 ? b[{place}] + {length} : b[{place}])"


HEADER = "po_math.h"


def _gather(call: Call, arguments: Arguments) -> str:
    x, where, y = call.input(0), call.input(1), call.output()
    axis = call.integer("axis", 0) % len(x.shape)
    outer, length, inner = around(x.shape, axis)
    body = block(
        f"const int32_t at = {number_at(length, 'i1')};",
        f"memcpy(y + (i0 * {where.size} + i1) * {inner}, a + (i0 * {length} + at) * {inner}, "
        f"{inner * y.nbytes // max(y.size, 1)});",
    )
    return block(*operands(call, arguments), loops((outer, where.size), body))


def _gather_elements(call: Call, arguments: Arguments) -> str:
    x, y = call.input(0), call.output()
    axis = call.integer("axis", 0) % len(x.shape)
    x_strides, element = strides_of(x.shape), index(strides_of(y.shape))
    others = index([0 if k == axis else step for k, step in enumerate(x_strides)])
    body = block(
        f"const int32_t at = (int32_t)(b[{element}] < 0 ? b[{element}] + {x.shape[axis]} : b[{element}]);",
        f"y[{element}] = a[{others} + at * {x_strides[axis]}];",
    )
    return block(*operands(call, arguments), loops(y.shape, body))


def _gather_nd(call: Call, arguments: Arguments) -> str:
    x, where, y = call.input(0), call.input(1), call.output()
    batch, depth = call.integer("batch_dims", 0), where.shape[-1]
    x_strides, inner, count = strides_of(x.shape), prod(x.shape[batch + depth :]), prod(where.shape[batch:-1])
    row = _tuple_offset("at", x.shape[batch:], x_strides[batch:], depth)
    body = block(
        f"const int64_t *at = b + (i0 * {count} + i1) * {depth};",
        f"const int32_t from = i0 * {prod(x.shape[batch:])} + (int32_t)({row});",
        f"memcpy(y + (i0 * {count} + i1) * {inner}, a + from, {inner * y.nbytes // max(y.size, 1)});",
    )
    return block(*operands(call, arguments), loops((prod(x.shape[:batch]), count), body))


def _tuple_offset(tuples: str, shape: Sequence[int], strides: Sequence[int], depth: int) -> str:
    """Return the C of the offset that an index tuple names; negative numbers count from the end."""
    numbers = (f"({tuples}[{k}] < 0 ? {tuples}[{k}] + {shape[k]} : {tuples}[{k}]) * {strides[k]}" for k in range(depth))
    return " + ".join(numbers) or "0"


def _top_k(call: Call, arguments: Arguments) -> str:
    """Return the C of TopK: it searches each value behind the one before, without a copy; ties keep their order."""
    x, (values, places) = call.input(0), arguments.outputs + ("",) * (2 - len(arguments.outputs))
    axis = call.integer("axis", -1) % len(x.shape)
    result = next(tensor for tensor in call.outputs if tensor is not None)
    (outer, length, inner), count = around(x.shape, axis), result.shape[axis]
    after, before = ("<", ">") if call.integer("largest", 1) else (">", "<")
    picked = block(
        "int32_t best = -1;",
        f"for (int32_t j = 0; j < {length}; ++j) {{",
        f"    const int behind = last < 0 || line[j * {inner}] {after} line[last * {inner}]",
        f"        || (j > last && line[j * {inner}] == line[last * {inner}]);",
        f"    if (behind && (best < 0 || line[j * {inner}] {before} line[best * {inner}])) {{",
        "        best = j;",
        "    }",
        "}",
        "last = po_larger(best, 0);",
        f"values[(i0 * {count} + r) * {inner} + i1] = line[last * {inner}];" if values else "",
        f"places[(i0 * {count} + r) * {inner} + i1] = last;" if places else "",
    )
    line = block(
        f"const {C_TYPES[x.dtype]} *line = x + i0 * {length * inner} + i1;",
        "int32_t last = -1;",
        f"for (int32_t r = 0; r < {count}; ++r) {picked}",
    )
    declared = [written("values", call.output(0), values)] if values else []
    declared += [written("places", call.output(1), places)] if places else []
    return block(read("x", x, arguments.inputs[0]), *declared, loops((outer, inner), line))


def _gather_gradient(call: Call, arguments: Arguments) -> str:
    count, dx = call.input(1).size, call.output()
    axis = call.integer("axis", 0) % len(dx.shape)
    outer, length, inner = around(dx.shape, axis)
    added = f"y[(i0 * {length} + row) * {inner} + j0] += a[(i0 * {count} + i1) * {inner} + j0];"
    row = block(f"const int32_t row = {number_at(length, 'i1')};", loops((inner,), added, "j"))
    body = block(*operands(call, arguments), loops((outer, count), row))
    return block(filled(dx, arguments.outputs[0], "0.0f"), body)


def _gather_update(call: Call, arguments: Arguments) -> str:
    """Return C that updates the rows that were read by sgd, and multiplies the whole table by weight decay's factor."""
    table, y, count = call.input(2), call.output(), call.input(1).size
    axis = call.integer("axis", 0) % len(y.shape)
    outer, length, inner = around(y.shape, axis)
    term = f"a[(i0 * {count} + k) * {inner} + j]"
    subtract = f"y[(i0 * {length} + row) * {inner} + j] -= sum[j] * r[0];"
    rows = row_sums(count, inner, number_at(length), arguments.scratch, "", term, subtract)
    return block(
        *(read(name, call.input(k), arguments.inputs[k]) for k, name in enumerate("abpre")),
        written("y", y, arguments.outputs[0]),
        nest(table.shape, {"p": strides_of(table.shape), "y": strides_of(y.shape)}, "{y} = {p} * e[0];"),
        loops((outer,), rows),
    )


def _row_bytes(call: Call) -> int:
    y = call.output()
    return 4 * prod(y.shape[call.integer("axis", 0) % len(y.shape) + 1 :])


def _gather_refuses(call: Call) -> str | None:
    if call.output().dtype != "float32":
        return f"rows of {call.output().dtype} are not supported; float32 is"
    return known_types(call)


_COMBINED = {
    "none": "{y} = {u};",
    "add": "{y} += {u};",
    "mul": "{y} *= {u};",
    "max": "if ({u} > {y}) {{\n    {y} = {u};\n}}",
    "min": "if ({u} < {y}) {{\n    {y} = {u};\n}}",
}


def _scatter_operands(call: Call, arguments: Arguments) -> list[str]:
    """Return the declarations of indices b, updates c and result y, and the copy of the data to y."""
    y = call.output()
    return [
        read("b", call.input(1), arguments.inputs[1]),
        read("c", call.input(2), arguments.inputs[2]),
        written("y", y, arguments.outputs[0]),
        f"if ((const void *)y != (const void *)({arguments.inputs[0]})) {{",
        f"    memcpy(y, {arguments.inputs[0]}, {y.nbytes});",
        "}",
    ]


def _scatter_elements(call: Call, arguments: Arguments) -> str:
    y, where = call.output(), call.input(1)
    axis = call.integer("axis", 0) % len(y.shape)
    y_strides = strides_of(y.shape)
    others = index([0 if k == axis else step for k, step in enumerate(y_strides)])
    element = index(strides_of(where.shape))
    text = _COMBINED[call.text("reduction", "none")]
    body = block(
        f"const int32_t at = (int32_t)(b[{element}] < 0 ? b[{element}] + {y.shape[axis]} : b[{element}]);",
        text.format(y=f"y[{others} + at * {y_strides[axis]}]", u=f"c[{element}]"),
    )
    return block(*_scatter_operands(call, arguments), loops(where.shape, body))


def _scatter_nd(call: Call, arguments: Arguments) -> str:
    y, where = call.output(), call.input(1)
    depth = where.shape[-1]
    y_strides, inner = strides_of(y.shape), prod(y.shape[depth:])
    text = _COMBINED[call.text("reduction", "none")]
    body = block(
        f"const int64_t *which = b + i0 * {depth};",
        f"const int32_t at = (int32_t)({_tuple_offset('which', y.shape, y_strides, depth)});",
        loops((inner,), text.format(y="y[at + j0]", u=f"c[i0 * {inner} + j0]"), "j"),
    )
    return block(*_scatter_operands(call, arguments), loops((where.size // max(depth, 1),), body))


def _scatter_refuses(call: Call) -> str | None:
    reduction = call.text("reduction", "none")
    return (
        f"{call.node.op_type} with reduction {reduction} is not supported"
        if reduction not in _COMBINED
        else known_types(call)
    )


KERNELS: tuple[Kernel, ...] = (
    Kernel("Gather", _gather, refuses=known_types, headers=(HEADER,), tilings=gathered),
    Kernel("GatherElements", _gather_elements, refuses=known_types, headers=(HEADER,)),
    Kernel("GatherND", _gather_nd, refuses=known_types, headers=(HEADER,)),
    Kernel("TopK", _top_k, refuses=known_types, headers=(HEADER,)),
    Kernel(
        "Gather.grad_input", _gather_gradient, OWN_DOMAIN, _gather_refuses, headers=(HEADER,),
        tilings=partial(_add_tilings, update=False),
    ),
    Kernel(
        "Gather.grad_input+sgd.update", _gather_update, OWN_DOMAIN, _gather_refuses, _row_bytes, in_place=(2,),
        headers=(HEADER,), tilings=partial(_add_tilings, update=True),
    ),
    Kernel("ScatterElements", _scatter_elements, refuses=_scatter_refuses, in_place=(0,), headers=(HEADER,)),
    Kernel("ScatterND", _scatter_nd, refuses=_scatter_refuses, in_place=(0,), headers=(HEADER,)),
)  # fmt: skip
