"""Products of matrices and Einsum in C, whole and in chunks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from poetopt.graph import OWN_DOMAIN
from poetopt.ops.elementwise.updates import RULES, declared, update_inputs
from poetopt.ops.flops import labels
from poetopt.ops.runtimes.c.axes import aligned, along, leading
from poetopt.ops.runtimes.c.kernel import (
    UPDATE,
    Arguments,
    Call,
    Kernel,
    Strides,
    block,
    broadcast_strides,
    called,
    index,
    loops,
    merged,
    operands,
    real,
    strides_of,
)
from poetopt.ops.runtimes.c.tiling import (
    ELEMENT_BYTES,
    FROM,
    INNER,
    OUTER,
    PART,
    WHOLE,
    Chunk,
    ChunkSlice,
    LetterWays,
    Loop,
    Part,
    Rows,
    Tiling,
    whole,
)

Sizes = tuple[int, int, int]
"""Rows, columns and depth of each matrix of the result."""
Steps = tuple[int, int]


def rows_of_many(count: int, sizes: Sizes, b_steps: Steps, *, one_left: bool = False) -> tuple[Tiling, ...]:
    """Return the tiling by rows of a and y, for `count` products y = a b; `b_steps` are b's by depth and by column.

    Parameters
    ----------
    one_left
        Whether all products share one matrix a: it stays whole.
    """
    rows, columns, depth = sizes
    if rows < 2:
        return ()

    def product(first: str, many: str, number: str) -> str:
        a_row = f"({FROM[OUTER]} + {first}) % {rows}" if one_left else first
        y, a, b = f"y + {first} * {columns}", f"a + {a_row} * {depth}", f"b + {number} * {depth * columns}"
        return called("po_product", y, a, b, many, columns, depth, columns, 1, depth, 1, *b_steps, 0)

    a = None if one_left else ChunkSlice(OUTER, ELEMENT_BYTES * depth)
    y = ChunkSlice(OUTER, ELEMENT_BYTES * columns)
    b = ChunkSlice(OUTER, ELEMENT_BYTES * depth * columns, 1, _matrix_rows(count, rows))
    return (Tiling(Loop(count * rows), None, (a, b), (y,), _each_matrix(rows, product)),)


def depth_of_many(count: int, sizes: Sizes) -> tuple[Tiling, ...]:
    """Return the tilings by depth, for `count` products y = a' b; the inputs are b and a, and y may stay whole."""
    rows, columns, depth = sizes
    if depth <= PART or (count > 1 and depth % PART):
        return ()

    def product(first: str, many: str, number: str) -> str:
        y, a, b = f"y + {number} * {rows * columns}", f"b + {first} * {rows}", f"a + {first} * {columns}"
        adds = f"({FROM[OUTER]} + {first}) % {depth} > 0"
        return called("po_product", y, a, b, rows, columns, many, columns, 1, 1, rows, columns, 1, adds)

    loop, b, a = (
        Loop(count * depth, PART),
        ChunkSlice(OUTER, ELEMENT_BYTES * columns),
        ChunkSlice(OUTER, ELEMENT_BYTES * rows),
    )
    y = ChunkSlice(OUTER, ELEMENT_BYTES * rows * columns, 1, _matrix_rows(count, depth))
    whole_y = Tiling(loop, None, (b, a), (None,), _each_matrix(depth, product, whole=True))
    return (whole_y, Tiling(loop, None, (b, a), (y,), _each_matrix(depth, product))) if count > 1 else (whole_y,)


def _matrix_rows(count: int, rows: int) -> Rows:
    """Return which of `count` matrices match rows of other matrices of `rows` each."""
    return Rows(count, 1, rows, 0, rows - 1)


def _each_matrix(
    rows: int, product: Callable[[str, str, str], str], *, whole: bool = False
) -> Callable[[Call, Chunk], str]:
    """Return the code of a chunk: a product for each matrix that it overlaps, with `many` rows from `first` on.

    Rows count from the chunk's begin, and so do matrices unless they are `whole`.
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


HEADER = "po_gemm.h"
LOOPS = (("n", ""), ("", "k"), ("m", ""), ("n", "k"), ("m", "k"), ("m", "n"))
"""Pairs of outer and inner loops for a product of rows m, columns n and depth k."""
Pair = tuple[str, str]


def _gemm_variants(call: Call) -> LetterWays:
    (rows, columns), a = call.output().shape, call.input(0)
    return _product_variants(call, rows, columns, a.shape[0] if call.integer("transA", 0) else a.shape[1])


def _product_variants(call: Call, rows: int, columns: int, depth: int) -> LetterWays:
    """Return the axes of the operands a, b and y; further operands stay whole."""
    a = "km" if call.integer("transA", 0) else "mk"
    b = "nk" if call.integer("transB", 0) else "kn"
    rest: tuple[str | None, ...] = (None,) * (len(call.inputs) - 2)
    return LetterWays({"m": rows, "n": columns, "k": depth}, (a, b, *rest), ("mn",), "k", {"k": PART})


def _product(variants: LetterWays, loops: tuple[str, str], call: Call, chunk: Chunk, then: str = "") -> str:
    """Return the C of one chunk of y = a b, or of its sums, followed by `then`."""
    a, a_apart = variants.operand(variants.inputs[0] or "", chunk.inputs[0], loops, chunk)
    b, b_apart = variants.operand(variants.inputs[1] or "", chunk.inputs[1], loops, chunk)
    y, y_apart = variants.operand("mn", chunk.outputs[0], loops, chunk)
    m, n, k = (variants.count(letter, loops, chunk) for letter in "mnk")
    adds = f"{chunk.begin[INNER]} > 0" if loops[INNER] == "k" else "0"
    steps = y_apart["m"], 1, a_apart["m"], a_apart["k"], b_apart["k"], b_apart["n"]
    if variants.fine:
        depth, begin = variants.sizes["k"], chunk.begin[INNER]
        product = called("po_product_piece", "y", chunk.scratch, "a", "b", m, n, depth, begin, k, *steps, 0)
    else:
        product = called("po_product", "y", "a", "b", m, n, k, *steps, adds)
    return block(f"const float *a = {a};", f"const float *b = {b};", f"float *y = {y};", product, then)


def _all_tilings(variants: LetterWays, code: Callable[[LetterWays, Pair, Call, Chunk], str]) -> tuple[Tiling, ...]:
    """Return the tilings of `ways`, and those with short chunks of the depth."""
    fine = replace(variants, multiples={}, fine=True)
    return (*variants.tilings(LOOPS, code), *fine.tilings([pair for pair in LOOPS if pair[INNER] == "k"], code))


def _gemm_chunk(variants: LetterWays, loops: tuple[str, str], call: Call, chunk: Chunk) -> str:
    alpha, beta = call.number("alpha", 1.0), call.number("beta", 1.0)
    m, n = (variants.count(letter, loops, chunk) for letter in "mn")
    _, apart = variants.operand("mn", chunk.outputs[0], loops, chunk)
    scaled = ""
    if call.has(2) and beta:
        c = call.input(2)
        row, column = broadcast_strides(c.shape, call.output().shape)
        at = f"(const float *){chunk.inputs[2].at}"
        for letter, step in (("m", row), ("n", column)):
            if step and letter in loops:
                at += f" + {variants.begin(letter, loops, chunk)} * {step}"
        scaled = called("po_scaled", "y", at, m, n, apart["m"], row, column, float(alpha), float(beta))
    elif alpha != 1.0:
        scaled = called("po_scaled", "y", "NULL", m, n, apart["m"], 0, 0, float(alpha), 0.0)
    if scaled and loops[INNER] == "k":  # scales only complete sums
        scaled = f"if ({chunk.begin[INNER]} + {chunk.count[INNER]} == {variants.sizes['k']}) {{\n    {scaled}\n}}"
    return _product(variants, loops, call, chunk, scaled)


def _matmul_tilings(call: Call) -> tuple[Tiling, ...]:
    a, b, y = call.input(0), call.input(1), call.output()
    if min(len(a.shape), len(b.shape)) < 2:
        return ()
    if prod(b.shape[:-2]) == 1:
        variants = _product_variants(call, prod(a.shape[:-1]), b.shape[-1], b.shape[-2])
        return _all_tilings(variants, _product)
    axis, rank = leading(y.shape, len(y.shape) - 2), len(y.shape)
    cut = () if axis is None else along(_matmul, call, (aligned(a, axis, rank), aligned(b, axis, rank)), (axis,))
    many = a.shape[:-2] == b.shape[:-2]
    if b.shape[:-2] != y.shape[:-2] or not (many or prod(a.shape[:-2]) == 1):
        return cut
    sizes = y.shape[-2], y.shape[-1], a.shape[-1]
    return (*cut, *rows_of_many(prod(y.shape[:-2]), sizes, (y.shape[-1], 1), one_left=not many))


def _matrix_tilings(code: Callable[[Call, Arguments], str], call: Call) -> tuple[Tiling, ...]:
    """Return the tiling by matrices."""
    axis = leading(call.output().shape, len(call.output().shape) - 2)
    return () if axis is None else along(code, call, (axis, axis), (axis,))


def _matmul(call: Call, arguments: Arguments) -> str:
    a, b, y = call.input(0), call.input(1), call.output()
    left = a.shape if len(a.shape) > 1 else (1, *a.shape)
    right = b.shape if len(b.shape) > 1 else (*b.shape, 1)
    rows, columns, depth = left[-2], right[-1], left[-1]
    batch = y.shape[: len(y.shape) - (len(a.shape) > 1) - (len(b.shape) > 1)]
    if prod(right[:-2]) == 1:  # one matrix on the right: all rows of the left in one product
        rows, batch = rows * prod(batch), ()
    lengths, steps = merged(
        batch,
        {
            "a": tuple(s * rows * depth for s in broadcast_strides(left[:-2], batch)) if batch else (),
            "b": tuple(s * depth * columns for s in broadcast_strides(right[:-2], batch)) if batch else (),
            "y": tuple(s * rows * columns for s in strides_of(batch)),
        },
    )
    y_at, a_at, b_at = (f"{name} + {index(steps[name])}" if lengths else name for name in "yab")
    product = called("po_product", y_at, a_at, b_at, rows, columns, depth, columns, 1, depth, 1, columns, 1, 0)
    return block(
        *operands(call, arguments),
        loops(lengths, product),
    )


def _empty_refuses(call: Call) -> str | None:
    if any(tensor.size == 0 for tensor in (*call.inputs, *call.outputs) if tensor is not None):
        return f"{call.node.op_type} has an operand without elements"
    return real(call)


def _batch_products(
    call: Call, arguments: Arguments, sizes: tuple[int, int, int], steps: tuple[int, int, int, int]
) -> str:
    """Return C with a product of `sizes` (rows, columns, depth) per matrix of the batch; `steps` are a's and b's."""
    (rows, columns, depth), count = sizes, prod(call.output().shape[:-2])
    at = (f"y + i0 * {rows * columns}", f"a + i0 * {rows * depth}", f"b + i0 * {depth * columns}")
    product = called("po_product", *at, rows, columns, depth, columns, 1, *steps, 0)
    return block(*operands(call, arguments), loops((count,), product))


def _input_sizes(call: Call) -> tuple[int, int, int]:
    (rows, depth), columns = call.input(0).shape[-2:], call.output().shape[-1]
    return rows, columns, depth


def _weight_sizes(call: Call) -> tuple[int, int, int]:
    (depth, columns), rows = call.input(0).shape[-2:], call.output().shape[-2]
    return rows, columns, depth


def _matmul_by_input(call: Call, arguments: Arguments) -> str:
    """Return dA = dY B'."""
    depth = call.input(0).shape[-1]
    return _batch_products(call, arguments, _input_sizes(call), (depth, 1, 1, depth))


def _matmul_by_weight(call: Call, arguments: Arguments) -> str:
    """Return the C of dB = A' dY; the inputs are dY and A."""
    rows, columns, depth = _weight_sizes(call)
    turned = replace(call, inputs=(call.inputs[1], call.inputs[0]))
    places = replace(arguments, inputs=(arguments.inputs[1], arguments.inputs[0]))
    return _batch_products(turned, places, (rows, columns, depth), (1, rows, columns, 1))


def _with_update(optimizer: str) -> Kernel:
    """Return the kernel of a Gemm that is a gradient, and of its update; inputs: a, b, parameter, states, scalars."""
    states = RULES[optimizer].states

    def code(call: Call, arguments: Arguments) -> str:
        return chunk_code(variants_of(call), WHOLE, call, whole(arguments))

    def variants_of(call: Call) -> LetterWays:
        plain = _gemm_variants(call)
        updated = ("mn",) * (1 + states)
        scalars: tuple[str | None, ...] = (None,) * (len(call.inputs) - 3 - states)
        return replace(plain, inputs=(*plain.inputs[:2], *updated, *scalars), outputs=updated)

    def tilings(call: Call) -> tuple[Tiling, ...]:
        variants = variants_of(call)
        summed = replace(variants, buffers=1)
        return (
            *variants.tilings((("m", ""), ("m", "n"), ("n", "")), chunk_code),
            *summed.tilings((("m", "k"), ("", "k")), summed_code),
            *replace(summed, multiples={}, fine=True).tilings((("m", "k"), ("", "k")), summed_code),
        )

    def summed_code(variants: LetterWays, loops: tuple[str, str], call: Call, chunk: Chunk) -> str:
        """Return C that sums a chunk's gradient in the scratch, and applies the complete sum."""
        m, n = variants.count("m", loops, chunk), variants.sizes["n"]
        sums = Part(f"po_sums + {m} * {n}" if variants.fine else "", "0")
        sums_chunk = Chunk(chunk.inputs, (Part("po_sums", "0"),), chunk.begin, chunk.count, sums.at)
        olds = [variants.operand("mn", part, loops, chunk)[0] for part in chunk.inputs[2 : 3 + states]]
        news = [variants.operand("mn", part, loops, chunk)[0] for part in chunk.outputs]
        scalars = tuple(part.at for part in chunk.inputs[3 + states :])
        arguments = Arguments(("", "", *olds, *scalars), tuple(news))
        update = block(
            *declared(call, arguments, optimizer, tuple(range(2, 3 + states)), 3 + states),
            called("po_update_scaled", "&u", "po_sums", f"{m} * {n}", float(call.number("alpha", 1.0))),
        )
        last = f"{chunk.begin[INNER]} + {chunk.count[INNER]} == {variants.sizes['k']}"
        inner = "\n".join(f"    {line}" for line in update.splitlines())
        return block(
            f"float *po_sums = {chunk.scratch};",
            _product(replace(variants, outputs=("mn",)), loops, call, sums_chunk),
            f"if ({last}) {{\n{inner}\n}}",
        )

    def chunk_code(variants: LetterWays, loops: tuple[str, str], call: Call, chunk: Chunk) -> str:
        a, a_apart = variants.operand(variants.inputs[0] or "", chunk.inputs[0], loops, chunk)
        b, b_apart = variants.operand(variants.inputs[1] or "", chunk.inputs[1], loops, chunk)
        news = [variants.operand("mn", part, loops, chunk) for part in chunk.outputs]
        olds = [variants.operand("mn", part, loops, chunk)[0] for part in chunk.inputs[2 : 3 + states]]
        m, n, k = (variants.count(letter, loops, chunk) for letter in "mnk")
        scalars = tuple(part.at for part in chunk.inputs[3 + states :])
        arguments = Arguments(("", "", *olds, *scalars), tuple(at for at, _ in news))
        return block(
            *declared(call, arguments, optimizer, tuple(range(2, 3 + states)), 3 + states),
            called(
                "po_product_update", "&u", a, b, m, n, k, news[0][1]["m"], a_apart["m"], a_apart["k"], b_apart["k"],
                b_apart["n"], float(call.number("alpha", 1.0)),
            ),
        )  # fmt: skip

    def refuses(call: Call) -> str | None:
        return (
            "an update by a product with an addend is not supported"
            if len(call.inputs) != update_inputs(optimizer, 2)
            else _empty_refuses(call)
        )

    return Kernel(
        f"Gemm+{optimizer}{UPDATE}", code, OWN_DOMAIN, refuses, in_place=(2,), headers=(HEADER,), tilings=tilings
    )


def _labels(call: Call) -> tuple[list[str], str]:
    ranks = [len(tensor.shape) for tensor in call.inputs if tensor is not None]
    return labels(call.text("equation", ""), ranks)


def _einsum_refuses(call: Call) -> str | None:
    _, result = _labels(call)
    if len(set(result)) < len(result) or len(call.inputs) > len("abcdefgh"):
        return f"Einsum of {len(call.inputs)} operands ({call.text('equation', '')}) is not supported"
    return real(call)


def _einsum(call: Call, arguments: Arguments) -> str:
    """Return the C of an Einsum; sums have parts of PO_PART terms."""
    terms, result = _labels(call)
    sizes: dict[str, int] = {}
    steps: dict[str, dict[str, int]] = {}
    for letter, term, k in zip("abcdefgh", terms, range(len(call.inputs)), strict=False):
        shape = call.input(k).shape
        label_steps = steps.setdefault(letter, {})
        for label, length, step in zip(term, shape, strides_of(shape), strict=True):
            sizes[label] = max(sizes.get(label, 1), length)
            label_steps[label] = label_steps.get(label, 0) + (step if length > 1 else 0)
    steps["y"] = dict(zip(result, strides_of(call.output().shape), strict=True))

    def nested(axes: list[str]) -> tuple[tuple[int, ...], dict[str, Strides]]:
        strides = {name: tuple(label_steps.get(label, 0) for label in axes) for name, label_steps in steps.items()}
        return merged([sizes[label] for label in axes], strides)

    outer, at = nested(list(result))
    inner, along = nested([label for label in sizes if label not in result])
    product = " * ".join(f"{name}[{_joint_index(at[name], along[name])}]" for name in steps if name != "y")
    y = f"y[{index(at['y'])}]"
    body = f"{y} = {product};"
    if inner:
        part = block(f"part += {product};", "if (++terms == PO_PART) {", "    sum += part;", "    part = 0.0f;",
                     "    terms = 0;", "}")  # fmt: skip
        body = block(
            "float sum = 0.0f, part = 0.0f;", "int32_t terms = 0;", loops(inner, part, "j"), f"{y} = sum + part;"
        )
    return block(*operands(call, arguments), loops(outer, body))


def _joint_index(at: Strides, along: Strides) -> str:
    return " + ".join(text for text in (index(at), index(along, prefix="j")) if text != "0") or "0"


KERNELS: tuple[Kernel, ...] = (
    *(_with_update(optimizer) for optimizer in RULES),
    Kernel(
        "Gemm", lambda call, arguments: _gemm_chunk(_gemm_variants(call), WHOLE, call, whole(arguments)),
        refuses=_empty_refuses, headers=(HEADER,), tilings=lambda call: _all_tilings(_gemm_variants(call), _gemm_chunk),
    ),
    Kernel(
        "MatMul.grad_input", _matmul_by_input, OWN_DOMAIN, _empty_refuses, headers=(HEADER,),
        tilings=lambda call: (
            *_matrix_tilings(_matmul_by_input, call),
            *rows_of_many(prod(call.output().shape[:-2]), _input_sizes(call), (1, _input_sizes(call)[2])),
        ),
    ),
    Kernel(
        "MatMul.grad_weight", _matmul_by_weight, OWN_DOMAIN, _empty_refuses, headers=(HEADER,),
        tilings=lambda call: (
            *_matrix_tilings(_matmul_by_weight, call),
            *depth_of_many(prod(call.output().shape[:-2]), _weight_sizes(call)),
        ),
    ),
    Kernel("MatMul", _matmul, refuses=_empty_refuses, headers=(HEADER,), tilings=_matmul_tilings),
    Kernel("Einsum", _einsum, refuses=_einsum_refuses, headers=("po_math.h",)),
)  # fmt: skip
