"""Loop nests in C: over the elements of a shape, with each operand's own strides.

Axes of length one are left out, and neighbours that every operand steps over evenly become one, so that most nests are
a single loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

Strides = tuple[int, ...]


def strides_of(shape: Sequence[int]) -> Strides:
    """Elements between neighbours along each axis of a dense tensor."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def broadcast_strides(shape: Sequence[int], to: Sequence[int]) -> Strides:
    """Strides by which a dense tensor of `shape` is read along the axes of `to`: 0 where it is repeated."""
    own = strides_of(shape)
    extra = len(to) - len(shape)
    return (0,) * extra + tuple(0 if length == 1 else step for length, step in zip(shape, own, strict=True))


def merged(shape: Sequence[int], operands: Mapping[str, Strides]) -> tuple[tuple[int, ...], dict[str, Strides]]:
    """Fewer axes that run over the same elements in the same order."""
    axes: list[tuple[int, tuple[int, ...]]] = []
    for axis, length in enumerate(shape):
        if length == 1:
            continue
        steps = tuple(strides[axis] for strides in operands.values())
        if axes and axes[-1][1] == tuple(step * length for step in steps):
            axes[-1] = axes[-1][0] * length, steps
        else:
            axes.append((length, steps))
    lengths = tuple(length for length, _ in axes)
    return lengths, {name: tuple(steps[k] for _, steps in axes) for k, name in enumerate(operands)}


def index(strides: Sequence[int], offset: int = 0, prefix: str = "i") -> str:
    """`i0 * 12 + i1`, `5`, ...: where the element of a loop's variables is."""
    terms = [
        f"{prefix}{axis}" if step == 1 else f"{prefix}{axis} * {step}" for axis, step in enumerate(strides) if step
    ]
    return " + ".join([*terms, *([str(offset)] if offset else [])]).replace("+ -", "- ") or "0"


def loops(shape: Sequence[int], body: str, prefix: str = "i") -> str:
    """`body` for every element of `shape`, with the variables `i0`, `i1`, ... of type int32_t."""
    for axis in reversed(range(len(shape))):
        variable = f"{prefix}{axis}"
        inner = "\n".join(f"    {line}" for line in body.splitlines())
        body = f"for (int32_t {variable} = 0; {variable} < {shape[axis]}; ++{variable}) {{\n{inner}\n}}"
    return body


def block(*lines: str) -> str:
    """One C statement of several."""
    inner = "\n".join(f"    {line}" for text in lines for line in text.splitlines())
    return f"{{\n{inner}\n}}"


def nest(shape: Sequence[int], operands: Mapping[str, Strides], statement: str) -> str:
    """`statement` for every element of `shape`; `{name}` in it becomes the element of that operand."""
    lengths, strides = merged(shape, operands)
    elements = {name: f"{name}[{index(steps)}]" for name, steps in strides.items()}
    return loops(lengths, statement.format(**elements))
