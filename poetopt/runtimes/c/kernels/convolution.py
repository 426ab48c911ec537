"""Convolutions of one or two axes, and their gradients, direct: no unfolding, so no workspace.

One axis is two with a height of one. A ConvTranspose is the gradient of a convolution by its input.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from poetopt.graph import OWN_DOMAIN
from poetopt.runtimes.c.kernel import UPDATE, Arguments, Call, Kernel
from poetopt.runtimes.c.kernels.geometry import geometry
from poetopt.runtimes.c.kernels.update import RULES, declared, operands
from poetopt.runtimes.c.loops import block
from poetopt.runtimes.c.tiles.convolutions import forward_tilings, input_tilings, weight_tilings
from poetopt.runtimes.c.write import called, read, refuse_types, written

HEADER = "po_conv.h"


def _refuses(call: Call) -> str | None:
    ranks = {len(tensor.shape) for tensor in (call.input(0), call.input(1))}
    if not ranks <= {3, 4}:
        return f"{call.node.op_type} over {max(ranks) - 2} axes; it has one or two"
    if any(tensor.size == 0 for tensor in (*call.inputs, *call.outputs) if tensor is not None):
        return f"{call.node.op_type} of no elements"
    return refuse_types(call, "float32")


def _refuses_transposed(call: Call) -> str | None:
    if call.text("auto_pad", "NOTSET") != "NOTSET" or "output_shape" in call.node.attributes:
        return "ConvTranspose with auto_pad or output_shape"
    return _refuses(call)


def _bias(call: Call, arguments: Arguments) -> tuple[list[str], str]:
    if not call.has(2):
        return [], "NULL"
    return [read("c", call.input(2), arguments.inputs[2])], "c"


def _conv(call: Call, arguments: Arguments) -> str:
    x, w, y = call.input(0), call.input(1), call.output()
    found = geometry(call, x, w, y)
    declared, bias = _bias(call, arguments)
    operands = [*declared, read("a", x, arguments.inputs[0]), read("b", w, arguments.inputs[1])]
    if found.pointwise:
        size = prod(found.out)
        line = called("po_pointwise", "y", "a", "b", bias, found.images, found.outs, found.ins, size, found.ins, 1)
    else:
        line = called("po_convolution", "y", "a", "b", bias, *found.numbers())
    return block(*operands, written("y", y, arguments.outputs[0]), line)


def _by_input(call: Call, arguments: Arguments) -> str:
    dy, w, dx = call.input(0), call.input(1), call.output()
    found = geometry(call, dx, w, dy)
    declared, bias = _bias(call, arguments)
    operands = [*declared, read("a", dy, arguments.inputs[0]), read("b", w, arguments.inputs[1])]
    if found.pointwise:
        size = prod(found.out)
        line = called("po_pointwise", "y", "a", "b", bias, found.images, found.ins, found.outs, size, 1, found.ins)
    else:
        line = called("po_convolution_by_input", "y", "a", "b", bias, *found.numbers())
    return block(*operands, written("y", dx, arguments.outputs[0]), line)


def _by_weight(call: Call, arguments: Arguments) -> str:
    target = f"y, NULL, {', '.join(arguments.inputs[:2])}"
    dw = written("y", call.output(), arguments.outputs[0])
    return block(dw, called("po_convolution_by_weight", target, *_weight_numbers(call)))


def _weight_numbers(call: Call) -> tuple[int, ...]:
    found = geometry(call, call.input(1), call.output(), call.input(0))
    if found.pointwise:  # a plane is one row
        found = replace(found, out=(1, prod(found.out)), size=(1, prod(found.size)))
    return found.numbers()


def _with_update(optimizer: str) -> Kernel:
    """The gradient by the weights, and their update by it: dY, x, the weights, states, scalars."""
    states = RULES[optimizer].states

    def code(call: Call, arguments: Arguments) -> str:
        target = f"NULL, &u, {', '.join(arguments.inputs[:2])}"
        return block(
            *declared(call, arguments, optimizer, tuple(range(2, 3 + states)), 3 + states),
            called("po_convolution_by_weight", target, *_weight_numbers(call)),
        )

    def refuses(call: Call) -> str | None:
        return "another number of operands" if len(call.inputs) != operands(optimizer, 2) else _refuses(call)

    return Kernel(
        f"Conv.grad_weight+{optimizer}{UPDATE}", code, OWN_DOMAIN, refuses, in_place=(2,), headers=(HEADER,),
        tilings=weight_tilings(optimizer),
    )  # fmt: skip


KERNELS: tuple[Kernel, ...] = (
    Kernel("Conv", _conv, refuses=_refuses, headers=(HEADER,), tilings=forward_tilings),
    Kernel("ConvTranspose", _by_input, refuses=_refuses_transposed, headers=(HEADER,), tilings=input_tilings),
    Kernel("Conv.grad_input", _by_input, OWN_DOMAIN, _refuses, headers=(HEADER,), tilings=input_tilings),
    Kernel("Conv.grad_weight", _by_weight, OWN_DOMAIN, _refuses, headers=(HEADER,), tilings=weight_tilings()),
    *(_with_update(optimizer) for optimizer in RULES),
)
