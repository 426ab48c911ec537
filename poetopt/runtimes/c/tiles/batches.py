"""Tilings of products of many matrices, as attention has them: chunks of rows, each with the matrices it needs."""

from __future__ import annotations

from collections.abc import Callable

from poetopt.runtimes.c.kernel import Call
from poetopt.runtimes.c.loops import block
from poetopt.runtimes.c.tiles.matrices import ELEMENT_BYTES, PART
from poetopt.runtimes.c.tiles.tiling import FROM, OUTER, Chunk, Loop, Rows, Slice, Tiling
from poetopt.runtimes.c.write import called

Sizes = tuple[int, int, int]
"""Rows, columns and depth of each matrix of the result."""
Steps = tuple[int, int]


def rows_of_many(count: int, sizes: Sizes, b_steps: Steps, *, one_left: bool = False) -> tuple[Tiling, ...]:
    """Chunks of rows of a and y, of `count` products y = a b; b's steps are those by depth and by column.

    one_left
        Whether a is one matrix, the same for each b: it stays whole.
    """
    rows, columns, depth = sizes
    if rows < 2:
        return ()

    def product(first: str, many: str, number: str) -> str:
        own = f"({FROM[OUTER]} + {first}) % {rows}" if one_left else first
        y, a, b = f"y + {first} * {columns}", f"a + {own} * {depth}", f"b + {number} * {depth * columns}"
        return called("po_product", y, a, b, many, columns, depth, columns, 1, depth, 1, *b_steps, 0)

    a = None if one_left else Slice(OUTER, ELEMENT_BYTES * depth)
    y = Slice(OUTER, ELEMENT_BYTES * columns)
    b = Slice(OUTER, ELEMENT_BYTES * depth * columns, 1, _matrices(count, rows))
    return (Tiling(Loop(count * rows), None, (a, b), (y,), _by_matrix(rows, product)),)


def depth_of_many(count: int, sizes: Sizes) -> tuple[Tiling, ...]:
    """Chunks of what is summed up, of `count` products y = a' b; the inputs are b and a, and y may stay whole."""
    rows, columns, depth = sizes
    if depth <= PART or (count > 1 and depth % PART):
        return ()

    def product(first: str, many: str, number: str) -> str:
        y, a, b = f"y + {number} * {rows * columns}", f"b + {first} * {rows}", f"a + {first} * {columns}"
        adds = f"({FROM[OUTER]} + {first}) % {depth} > 0"
        return called("po_product", y, a, b, rows, columns, many, columns, 1, 1, rows, columns, 1, adds)

    loop, b, a = Loop(count * depth, PART), Slice(OUTER, ELEMENT_BYTES * columns), Slice(OUTER, ELEMENT_BYTES * rows)
    y = Slice(OUTER, ELEMENT_BYTES * rows * columns, 1, _matrices(count, depth))
    made = Tiling(loop, None, (b, a), (None,), _by_matrix(depth, product, whole=True))
    return (made, Tiling(loop, None, (b, a), (y,), _by_matrix(depth, product))) if count > 1 else (made,)


def _matrices(count: int, rows: int) -> Rows:
    """Which of `count` matrices go with rows of others of `rows` each."""
    return Rows(count, 1, rows, 0, rows - 1)


def _by_matrix(
    rows: int, product: Callable[[str, str, str], str], *, whole: bool = False
) -> Callable[[Call, Chunk], str]:
    """The code of a chunk: a product for each matrix that it meets, of which it has `many` rows from `first` on.

    Rows are counted from the chunk's begin, matrices too unless they are `whole`.
    """

    def code(call: Call, chunk: Chunk) -> str:
        begin, count = chunk.begin[OUTER], chunk.count[OUTER]
        before = "" if whole else f" - {begin} / {rows}"
        return block(
            f"const float *a = {chunk.inputs[0].at};",
            f"const float *b = {chunk.inputs[1].at};",
            f"float *y = {chunk.outputs[0].at};",
            "int32_t first, many;",
            f"for (first = 0; first < {count}; first += many) {{",
            f"    const int32_t number = ({begin} + first) / {rows}{before};",
            f"    const int32_t rest = {rows} - ({begin} + first) % {rows};",
            f"    many = {count} - first < rest ? {count} - first : rest;",
            f"    {product('first', 'many', 'number')}",
            "}",
        )

    return code
