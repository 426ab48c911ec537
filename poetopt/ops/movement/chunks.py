"""Concat, Split, Slice, Pad and Transpose in C chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from poetopt.graph import DTYPE_BYTES, Tensor
from poetopt.ops.runtimes.c.axes import leading
from poetopt.ops.runtimes.c.kernel import C_TYPES, Call, block, strides_of
from poetopt.ops.runtimes.c.tiling import OUTER, Chunk, ChunkSlice, Loop, Part, Rows, Tiling


def one_by_one(call: Call, axis: int, *, together: bool) -> tuple[Tiling, ...]:
    """Return the tilings of a Concat or Split along the first axis, with the slices that each chunk has of the parts.

    Parameters
    ----------
    together
        Whether it is a Concat; else it is a Split of the first input.
    """
    whole, others = (call.output(), call.inputs) if together else (call.input(0), call.outputs)
    if leading(whole.shape, axis) is not None or any(t is None or not t.size for t in others):
        return ()

    def tiling(inner: int) -> Tiling:
        parts, unit = _part_rows(others, axis, inner), _step_bytes(whole, axis) // inner

        def code(call: Call, chunk: Chunk) -> str:
            (one,), rest = (chunk.outputs, chunk.inputs) if together else (chunk.inputs[:1], chunk.outputs)
            at = f"({'' if together else 'const '}unsigned char *){one.at} + %s"
            ends = ((at, part.at) if together else (part.at, at) for part in rest)
            return block(*(_copy_part(chunk, rows, *pair, unit) for rows, pair in zip(parts, ends, strict=True)))

        one, each = (ChunkSlice(OUTER, unit),), tuple(ChunkSlice(OUTER, unit, 1, rows) for rows in parts)
        inputs, outputs = (each, one) if together else ((*one, *(None for _ in call.inputs[1:])), each)
        return Tiling(Loop(whole.shape[axis] * inner), None, inputs, outputs, code)

    # one step is a row, or an element
    return tuple(map(tiling, dict.fromkeys((1, prod(whole.shape[axis + 1 :])))))


def cut_out(call: Call, starts: Sequence[int], steps: Sequence[int]) -> tuple[Tiling, ...]:
    """Return the tiling of a Slice, every `steps`-th element of x from `starts` on, along its first axis."""
    x, y = call.input(0), call.output()
    axis = leading(y.shape, len(y.shape))
    if axis is None or steps[axis] < 1:
        return ()
    x_strides = strides_of(x.shape)
    # rows are counted over all axes up to this one; y has one index on each of the axes before it
    first = sum(
        start * stride for start, stride in zip(starts[: axis + 1], strides_of(x.shape[: axis + 1]), strict=True)
    )
    step = steps[axis]
    at = sum(start * stride for start, stride in zip(starts[axis + 1 :], x_strides[axis + 1 :], strict=True))
    strides = [stride * by for stride, by in zip(x_strides, steps, strict=True)]

    def code(call: Call, chunk: Chunk) -> str:
        lengths = [chunk.count[OUTER] if k == axis else str(length) for k, length in enumerate(y.shape)]
        return _copy_strided(chunk, y, lengths, (f" + {at}", strides), ("", strides_of(y.shape)))

    x_slice = ChunkSlice(
        OUTER, _step_bytes(x, axis), 1, Rows(prod(x.shape[: axis + 1]), step, 1, first, first - step + 1)
    )
    inputs = (None for _ in call.inputs[1:])
    return (Tiling(Loop(y.shape[axis]), None, (x_slice, *inputs), (ChunkSlice(OUTER, _step_bytes(y, axis)),), code),)


def _step_bytes(tensor: Tensor, axis: int) -> int:
    return prod(tensor.shape[axis + 1 :]) * DTYPE_BYTES[tensor.dtype]


def _part_rows(tensors: Sequence[Tensor | None], axis: int, inner: int) -> list[Rows]:
    """Return the steps of each of consecutive tensors that a chunk of all of them covers."""
    rows: list[Rows] = []
    place = 0
    for tensor in tensors:
        assert tensor is not None
        rows.append(Rows(tensor.shape[axis] * inner, 1, 1, -place, -place))
        place += tensor.shape[axis] * inner
    return rows


def _copy_part(chunk: Chunk, rows: Rows, to: str, at: str, unit: int) -> str:
    """Return C that copies a chunk's slice of a part; %s in an address is the slice's offset in the chunk."""
    begin, count = chunk.begin[OUTER], chunk.count[OUTER]
    first, last = rows.in_c(begin, f"{begin} + {count}")
    place = f"(first + {-rows.low} - {begin}) * {unit}"
    to, at = (text.replace("%s", place) for text in (to, at))
    return block(
        f"const int32_t first = {first}, last = {last};", f"memcpy({to}, {at}, (uint32_t)(last - first) * {unit}u);"
    )


def _copy_strided(
    chunk: Chunk,
    y: Tensor,
    lengths: Sequence[str],
    x_at: tuple[str, Sequence[object]],
    y_at: tuple[str, Sequence[object]],
) -> str:
    """Return C that copies elements by strides."""
    axes = [axis for axis, length in enumerate(lengths) if length != "1"]
    to, at = (" + ".join(f"i{axis} * {steps[axis]}" for axis in axes) or "0" for _, steps in (y_at, x_at))
    body = f"y[{to}] = x[{at}];"
    for axis in reversed(axes):
        body = f"for (int32_t i{axis} = 0; i{axis} < {lengths[axis]}; ++i{axis}) {{\n    {body}\n}}"
    kind = C_TYPES[y.dtype]
    x, into = chunk.inputs[0].at, chunk.outputs[0].at
    return block(f"const {kind} *x = (const {kind} *){x}{x_at[0]};", f"{kind} *y = ({kind} *){into}{y_at[0]};", body)


def padded(call: Call, before: Sequence[int], after: Sequence[int], value: str) -> tuple[Tiling, ...]:
    """Return the tilings of a Pad of x into y; none unless exactly one axis is padded, by no negative number."""
    x, y = call.input(0), call.output()
    axes = [axis for axis, more in enumerate(zip(before, after, strict=True)) if any(more)]
    if len(axes) != 1 or min((*before, *after)) < 0 or not x.size:
        return ()
    (axis,) = axes
    inner, outer = prod(y.shape[axis + 1 :]), prod(y.shape[:axis])
    rows = _pad_tiling(call, (x.shape[axis], y.shape[axis], before[axis]), inner, outer, value)
    if outer > 1 or inner == 1:
        return (rows,)
    flat = x.size, y.size, before[axis] * inner
    return rows, _pad_tiling(call, flat, 1, 1, value)  # by elements, like the op that adds it up


def _pad_tiling(call: Call, lengths: tuple[int, int, int], inner: int, outer: int, value: str) -> Tiling:
    """Return the tiling by y's rows of `inner` elements; lengths are x's and y's, and the begin of x in y."""
    y = call.output()
    x_length, length, first = lengths
    needed = Rows(x_length, low=-first, high=-first)
    unit = inner * DTYPE_BYTES[y.dtype]

    def code(call: Call, chunk: Chunk) -> str:
        begin, count = chunk.begin[OUTER], chunk.count[OUTER]
        low, high = needed.in_c(begin, f"{begin} + {count}")
        kind = C_TYPES[y.dtype]
        of_piece = block(
            f"{kind} *to = y + p * ({chunk.outputs[0].apart});",
            f"for (int32_t i = 0; i < {count} * {inner}; ++i) {{\n    to[i] = {value};\n}}",
            "if (low < high) {",
            f"    memcpy(to + (low + {first} - {begin}) * {inner}, x + p * ({chunk.inputs[0].apart}), "
            f"(uint32_t)(high - low) * {unit}u);",
            "}",
        )
        return block(
            f"const {kind} *x = {chunk.inputs[0].at};",
            f"{kind} *y = {chunk.outputs[0].at};",
            f"const int32_t low = {low}, high = {high};",
            f"for (int32_t p = 0; p < {outer}; ++p) {of_piece}",
        )

    x_slices = ChunkSlice(OUTER, unit, outer, needed), *(None for _ in call.inputs[1:])
    y_slice = ChunkSlice(OUTER, unit, outer, Rows(length) if outer > 1 else None)
    return Tiling(Loop(length), None, x_slices, (y_slice,), code)


def transposed(call: Call, perm: Sequence[int]) -> tuple[Tiling, ...]:
    """Return the tilings of a Transpose along each axis; y's axis k is x's axis perm[k]."""
    x, y = call.input(0), call.output()
    axes = [axis for axis, extent in enumerate(y.shape) if extent > 1]

    def tiling(axis: int) -> Tiling:
        def code(call: Call, chunk: Chunk) -> str:
            x_steps, steps = _steps(x, perm[axis], chunk.inputs[0]), _steps(y, axis, chunk.outputs[0])
            lengths = [chunk.count[OUTER] if k == axis else str(length) for k, length in enumerate(y.shape)]
            return _copy_strided(chunk, y, lengths, ("", [x_steps[k] for k in perm]), ("", steps))

        return Tiling(Loop(y.shape[axis]), None, (_slice(x, perm[axis]),), (_slice(y, axis),), code)

    return tuple(map(tiling, axes)) if len(axes) > 1 else ()


def _slice(tensor: Tensor, axis: int) -> ChunkSlice:
    """Return the slice along an axis; pieces go through windows."""
    pieces = prod(tensor.shape[:axis])
    return ChunkSlice(OUTER, _step_bytes(tensor, axis), pieces, Rows(tensor.shape[axis]) if pieces > 1 else None)


def _steps(tensor: Tensor, axis: int, part: Part) -> list[str]:
    """Return the elements between neighbours along each axis of a chunk along `axis`."""
    shape = tensor.shape
    return [
        str(prod(shape[k + 1 :])) if k >= axis else f"{prod(shape[k + 1 : axis])} * ({part.apart})"
        for k in range(len(shape))
    ]
