"""Matrix products: Gemm, and MatMul with its batches."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from poetopt.graph import OWN_DOMAIN
from poetopt.runtimes.c.kernel import UPDATE, Arguments, Call, Kernel
from poetopt.runtimes.c.kernels.update import RULES, declared, operands
from poetopt.runtimes.c.loops import block, broadcast_strides, index, loops, merged, strides_of
from poetopt.runtimes.c.write import called, read, refuse_types, written

HEADER = "po_gemm.h"


def _real(call: Call) -> str | None:
    return refuse_types(call, "float32")


def _gemm(call: Call, arguments: Arguments) -> str:
    a, b, y = call.input(0), call.input(1), call.output()
    turned_a, turned_b = call.integer("transA", 0), call.integer("transB", 0)
    alpha, beta = call.number("alpha", 1.0), call.number("beta", 1.0)
    rows, columns = y.shape
    depth = a.shape[0] if turned_a else a.shape[1]
    a_steps = (1, rows) if turned_a else (depth, 1)
    b_steps = (1, depth) if turned_b else (columns, 1)
    product = called("po_product", "y", "a", "b", rows, columns, depth, columns, 1, *a_steps, *b_steps, 0)
    lines = [
        read("a", a, arguments.inputs[0]), read("b", b, arguments.inputs[1]), written("y", y, arguments.outputs[0]),
        product,
    ]  # fmt: skip
    if call.has(2) and beta:
        c = call.input(2)
        lines.insert(0, read("c", c, arguments.inputs[2]))
        lines.append(
            called(
                "po_scaled", "y", "c", rows, columns, *broadcast_strides(c.shape, y.shape), float(alpha), float(beta)
            )
        )
    elif alpha != 1.0:
        lines.append(called("po_scaled", "y", "NULL", rows, columns, 0, 0, float(alpha), 0.0))
    return block(*lines)


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
        read("a", a, arguments.inputs[0]),
        read("b", b, arguments.inputs[1]),
        written("y", y, arguments.outputs[0]),
        loops(lengths, product),
    )


def _empty(call: Call) -> str | None:
    if any(tensor.size == 0 for tensor in (*call.inputs, *call.outputs) if tensor is not None):
        return f"{call.node.op_type} of no elements"
    return _real(call)


def _batched(call: Call, arguments: Arguments, sizes: tuple[int, int, int], steps: tuple[int, int, int, int]) -> str:
    """Products of `sizes` (rows, columns, depth), one for each matrix of the batch; a's and b's steps."""
    a, b, y = call.input(0), call.input(1), call.output()
    rows, columns, depth = sizes
    at = (f"y + i0 * {rows * columns}", f"a + i0 * {rows * depth}", f"b + i0 * {depth * columns}")
    return block(
        read("a", a, arguments.inputs[0]),
        read("b", b, arguments.inputs[1]),
        written("y", y, arguments.outputs[0]),
        loops((prod(y.shape[:-2]),), called("po_product", *at, rows, columns, depth, columns, 1, *steps, 0)),
    )


def _matmul_by_input(call: Call, arguments: Arguments) -> str:
    """dA = dY B'."""
    (rows, depth), columns = call.input(0).shape[-2:], call.output().shape[-1]
    return _batched(call, arguments, (rows, columns, depth), (depth, 1, 1, depth))


def _matmul_by_weight(call: Call, arguments: Arguments) -> str:
    """dB = A' dY: the inputs are dY and A."""
    (depth, columns), rows = call.input(0).shape[-2:], call.output().shape[-2]
    turned = replace(call, inputs=(call.inputs[1], call.inputs[0]))
    places = replace(arguments, inputs=(arguments.inputs[1], arguments.inputs[0]))
    return _batched(turned, places, (rows, columns, depth), (1, rows, columns, 1))


def _with_update(optimizer: str) -> Kernel:
    """Gemm, whose product is the gradient that a parameter is updated by: a, b, the parameter, states, scalars."""
    states = RULES[optimizer].states

    def code(call: Call, arguments: Arguments) -> str:
        a, b = call.input(0), call.input(1)
        turned_a, turned_b = call.integer("transA", 0), call.integer("transB", 0)
        rows, columns = (a.shape[1] if turned_a else a.shape[0]), (b.shape[0] if turned_b else b.shape[1])
        depth = a.shape[0] if turned_a else a.shape[1]
        steps = (*((1, rows) if turned_a else (depth, 1)), *((1, depth) if turned_b else (columns, 1)))
        alpha = float(call.number("alpha", 1.0))
        return block(
            *declared(call, arguments, optimizer, tuple(range(2, 3 + states)), 3 + states),
            called("po_product_update", "&u", *arguments.inputs[:2], rows, columns, depth, *steps, alpha),
        )

    def refuses(call: Call) -> str | None:
        return (
            "a product with something added, and an update"
            if len(call.inputs) != operands(optimizer, 2)
            else _empty(call)
        )

    return Kernel(f"Gemm+{optimizer}{UPDATE}", code, OWN_DOMAIN, refuses, in_place=(2,), headers=(HEADER,))


KERNELS: tuple[Kernel, ...] = (
    *(_with_update(optimizer) for optimizer in RULES),
    Kernel("Gemm", _gemm, refuses=_empty, headers=(HEADER,)),
    Kernel("MatMul.grad_input", _matmul_by_input, OWN_DOMAIN, _empty, headers=(HEADER,)),
    Kernel("MatMul.grad_weight", _matmul_by_weight, OWN_DOMAIN, _empty, headers=(HEADER,)),
    Kernel("MatMul", _matmul, refuses=_empty, headers=(HEADER,)),
)
