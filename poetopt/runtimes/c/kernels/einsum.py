"""Einsum, direct: one loop nest over the result's labels, and one inside it over those that are summed."""

from __future__ import annotations

from poetopt.operators.einsum import labels
from poetopt.runtimes.c.kernel import Arguments, Call, Kernel
from poetopt.runtimes.c.loops import Strides, block, index, loops, merged, strides_of
from poetopt.runtimes.c.write import operands, refuse_types


def _labels(call: Call) -> tuple[list[str], str]:
    ranks = [len(tensor.shape) for tensor in call.inputs if tensor is not None]
    return labels(call.text("equation", ""), ranks)


def _refuses(call: Call) -> str | None:
    _, result = _labels(call)
    if len(set(result)) < len(result) or len(call.inputs) > len("abcdefgh"):
        return f"Einsum of {len(call.inputs)} operands ({call.text('equation', '')})"
    return refuse_types(call, "float32")


def _einsum(call: Call, arguments: Arguments) -> str:
    """Sums are taken in parts of PO_PART terms."""
    terms, result = _labels(call)
    sizes: dict[str, int] = {}
    steps: dict[str, dict[str, int]] = {}
    for letter, term, k in zip("abcdefgh", terms, range(len(call.inputs)), strict=False):
        shape = call.input(k).shape
        own = steps.setdefault(letter, {})
        for label, length, step in zip(term, shape, strides_of(shape), strict=True):
            sizes[label] = max(sizes.get(label, 1), length)
            own[label] = own.get(label, 0) + (step if length > 1 else 0)
    steps["y"] = dict(zip(result, strides_of(call.output().shape), strict=True))

    def nested(axes: list[str]) -> tuple[tuple[int, ...], dict[str, Strides]]:
        strides = {name: tuple(own.get(label, 0) for label in axes) for name, own in steps.items()}
        return merged([sizes[label] for label in axes], strides)

    outer, at = nested(list(result))
    inner, along = nested([label for label in sizes if label not in result])
    product = " * ".join(f"{name}[{_place(at[name], along[name])}]" for name in steps if name != "y")
    y = f"y[{index(at['y'])}]"
    body = f"{y} = {product};"
    if inner:
        part = block(f"part += {product};", "if (++terms == PO_PART) {", "    sum += part;", "    part = 0.0f;",
                     "    terms = 0;", "}")  # fmt: skip
        body = block(
            "float sum = 0.0f, part = 0.0f;", "int32_t terms = 0;", loops(inner, part, "j"), f"{y} = sum + part;"
        )
    return block(*operands(call, arguments), loops(outer, body))


def _place(at: Strides, along: Strides) -> str:
    return " + ".join(text for text in (index(at), index(along, prefix="j")) if text != "0") or "0"


KERNELS: tuple[Kernel, ...] = (Kernel("Einsum", _einsum, refuses=_refuses, headers=("po_math.h",)),)
