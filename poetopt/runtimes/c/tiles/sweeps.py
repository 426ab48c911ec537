"""Tilings in rounds: an operator that goes through its weights once, and again at each step of a sequence."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod

from poetopt.graph import DTYPE_BYTES, Tensor
from poetopt.runtimes.c.kernel import Arguments, Call
from poetopt.runtimes.c.loops import block
from poetopt.runtimes.c.tiles.matrices import PART
from poetopt.runtimes.c.tiles.tiling import FROM, INNER, Chunk, Loop, Part, Round, Slice, Sweep, Tiling, no_code


def in_rounds(
    call: Call,
    rounds: Sequence[Round],
    rows: int,
    inputs: Collection[int],
    outputs: Collection[int],
    scratch_bytes: int = 0,
) -> tuple[Tiling, ...]:
    """The tiling of rounds over matrices [1 or more, `rows`, columns]: these inputs and outputs, by position.

    None where all rows are one part of a sum. What sums over rows keeps the order: chunks are whole parts.
    """
    if rows <= PART:
        return ()

    def cut(tensors: Sequence[Tensor | None], places: Collection[int]) -> tuple[Slice | None, ...]:
        return tuple(
            Slice(INNER, prod(t.shape[2:]) * DTYPE_BYTES[t.dtype]) if t is not None and k in places else None
            for k, t in enumerate(tensors)
        )

    slices = cut(call.inputs, inputs), cut(call.outputs, outputs)
    loop = Loop(rows, PART)
    return (Tiling(None, loop, *slices, no_code, scratch_bytes=lambda outer: scratch_bytes, rounds=tuple(rounds)),)


def at_once(
    call: Call, rounds: Sequence[Round], arguments: Arguments, inputs: Collection[int], outputs: Collection[int]
) -> str:
    """The rounds with operands that are whole, each sweep as one chunk."""

    def parts(
        tensors: Sequence[Tensor | None], at: Sequence[str], places: Collection[int], begin: int
    ) -> tuple[Part, ...]:
        return tuple(
            Part(f"(float *){expression} + {begin * prod(t.shape[2:])}" if k in places and begin else expression, "0")
            if t is not None and expression
            else Part("", "0")
            for k, (t, expression) in enumerate(zip(tensors, at, strict=True))
        )

    def chunk(begin: int, count: int) -> Chunk:
        return Chunk(
            parts(call.inputs, arguments.inputs, inputs, begin),
            parts(call.outputs, arguments.outputs, outputs, begin),
            ("0", FROM[INNER]), ("0", str(count)), arguments.scratch,
        )  # fmt: skip

    lines: list[str] = []
    for turn in rounds:
        body: list[str] = []
        for part in turn.parts:
            if isinstance(part, Sweep):
                code = part.code(call, chunk(part.begin, part.end - part.begin))
                begin = [f"const int32_t {FROM[INNER]} = {part.begin};"] if FROM[INNER] in code else []
                body += [block(*begin, code)] if code else []
            else:
                body.append(part(call, chunk(0, 0)))
        text = "\n".join(body)
        lines.append(f"{turn.head}\n{text}\n}}" if turn.head else text)
    return block(*lines)
