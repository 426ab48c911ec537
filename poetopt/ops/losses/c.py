"""Softmax and cross-entropy in C with their gradients, in chunks of rows or of positions behind the axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

from poetopt.graph import DTYPE_BYTES, OWN_DOMAIN, Tensor
from poetopt.ops.elementwise.updates import RULES, declared, update_inputs
from poetopt.ops.losses import LINEAR
from poetopt.ops.nodes import around
from poetopt.ops.runtimes.c.axes import Code, along, arguments_of, by_row
from poetopt.ops.runtimes.c.kernel import UPDATE, Arguments, Call, Kernel, block, c_number, called, read, real
from poetopt.ops.runtimes.c.tiling import ELEMENT_BYTES, OUTER, Chunk, ChunkSlice, Loop, Rows, Tiling

Sizes = tuple[int, int, int]
"""Elements before the axis, its length, and the positions behind it."""


@dataclass(frozen=True, slots=True)
class Positions:
    """The positions of a call, and the strides of its operands, as C expressions.

    Attributes
    ----------
    outputs, inputs
        For each operand the elements between neighbours along the axis; without that axis, between its rows.
    begun, ends
        C conditions: whether positions came before these, and whether these are the last.
    """

    count: str
    outputs: tuple[str, ...]
    inputs: tuple[str, ...]
    begun: str = "0"
    ends: str = "1"


Line = Callable[[Call, Arguments, Positions], str]


def all_positions(call: Call, sizes: Sizes) -> Positions:
    """Return the positions of whole operands."""
    inner = str(sizes[2])
    return Positions(inner, (inner,) * len(call.outputs), (inner,) * len(call.inputs))


def by_position(line: Line, call: Call, sizes: Sizes, scratch_bytes: int = 0) -> tuple[Tiling, ...]:
    """Return the tiling by positions; none for one position. Operands without positions are whole."""
    outer, size, inner = sizes
    if inner < 2:
        return ()

    def cut(tensor: Tensor | None) -> ChunkSlice | None:
        pieces = 0 if tensor is None else {outer * size * inner: outer * size, outer * inner: outer}.get(tensor.size, 0)
        if not pieces or tensor is None:
            return None
        return ChunkSlice(OUTER, DTYPE_BYTES[tensor.dtype], pieces, Rows(inner) if pieces > 1 else None)

    def code(call: Call, chunk: Chunk) -> str:
        begin, count = chunk.begin[OUTER], chunk.count[OUTER]
        outputs, inputs = (tuple(f"({part.apart})" for part in of) for of in (chunk.outputs, chunk.inputs))
        positions = Positions(count, outputs, inputs, f"{begin} > 0", f"{begin} + {count} == {inner}")
        return line(call, arguments_of(chunk), positions)

    inputs, outputs = (tuple(map(cut, of)) for of in (call.inputs, call.outputs))
    return (Tiling(Loop(inner), None, inputs, outputs, code, scratch_bytes=lambda outer: scratch_bytes),)


HEADER = "po_norm.h"


def _axis_sizes(call: Call) -> Sizes:
    """Return the elements before a softmax's axis, its length, and the elements behind it."""
    shape = call.input(0).shape
    axis = call.integer("axis", -1) % len(shape)
    return around(shape, axis)


def _class_sizes(call: Call) -> Sizes:
    """Return `_axis_sizes` for a loss, whose classes are the second axis."""
    shape = call.input(0).shape
    return shape[0], shape[1], prod(shape[2:])


def _softmax(call: Call, arguments: Arguments, at: Positions) -> str:
    outer, size, _ = _axis_sizes(call)
    logarithm = int(call.node.op_type == "LogSoftmax")
    operands = arguments.outputs[0], arguments.inputs[0]
    return called("po_softmax", *operands, outer, size, at.count, at.outputs[0], at.inputs[0], logarithm)


def _softmax_gradient(call: Call, arguments: Arguments, at: Positions) -> str:
    outer, size, _ = _axis_sizes(call)
    operands = arguments.outputs[0], *arguments.inputs[:2]
    return called("po_softmax_gradient", *operands, outer, size, at.count, at.outputs[0], *at.inputs[:2])


def _labels_refuse(call: Call) -> str | None:
    if call.input(0).dtype != "float32" or call.input(1).dtype != "int64":
        return f"{call.node.op_type} of {call.input(0).dtype} with labels of {call.input(1).dtype} is not supported"
    return None


def _factor_refuses(call: Call) -> str | None:
    per_label = call.has(2) and call.input(2).size != 1
    return "a factor for each label is not supported" if per_label else _labels_refuse(call)


def _cross_entropy_gradient(call: Call, arguments: Arguments, at: Positions) -> str:
    outer, size, _ = _class_sizes(call)
    factor = "1.0f"
    declared = [read("b", call.input(1), arguments.inputs[1])]
    if call.has(2):
        declared.append(read("c", call.input(2), arguments.inputs[2]))
        factor = "c[0]"
    operands = arguments.outputs[0], arguments.inputs[0], "b"
    steps = at.outputs[0], *at.inputs[:2]
    return block(*declared, called("po_cross_entropy_gradient", *operands, factor, outer, size, at.count, *steps))


def _likelihood_refuses(call: Call) -> str | None:
    if call.has(2) or call.text("reduction", "mean") == "none":
        return f"{call.node.op_type} with weights or without reduction is not supported"
    return _labels_refuse(call)


def _factor(call: Call) -> float:
    return 1.0 / call.input(1).size if call.text("reduction", "mean") == "mean" else 1.0


def _likelihood(call: Call, arguments: Arguments, at: Positions, factor: float, parts: str = "NULL") -> str:
    """Return the C of a likelihood; `parts` is the address of partial sums for the first axis."""
    outer, size, _ = _class_sizes(call)
    operands = arguments.outputs[0], *arguments.inputs[:2]
    sums = parts, at.begun, at.ends, factor
    return called("po_likelihood_loss", *operands, outer, size, at.count, *at.inputs[:2], *sums)


def _cross_entropy(call: Call, arguments: Arguments, at: Positions, factor: float, parts: str = "NULL") -> str:
    """Return the C of log-probabilities and of their loss."""
    outer, size, _ = _class_sizes(call)
    logs, step = arguments.outputs[1], at.outputs[1]
    known = Arguments((logs, *arguments.inputs[1:]), arguments.outputs)
    return block(
        called("po_softmax", logs, arguments.inputs[0], outer, size, at.count, step, at.inputs[0], 1),
        _likelihood(call, known, replace(at, inputs=(step, *at.inputs[1:])), factor, parts),
    )


def _goes_by_label(call: Call) -> bool:
    """Return whether a loss goes label by label: it ignores labels, or writes no log-probabilities."""
    scores = call.node.op_type == "SoftmaxCrossEntropyLoss" and (len(call.outputs) < 2 or call.outputs[1] is None)
    return scores or "ignore_index" in call.node.attributes


def _labels_loss(call: Call, arguments: Arguments) -> str:
    outer, size, inner = _class_sizes(call)
    scores, logs = call.node.op_type == "SoftmaxCrossEntropyLoss", arguments.outputs[1] if arguments.outputs[1:] else ""
    first = called("po_softmax", logs, arguments.inputs[0], outer, size, inner, inner, inner, 1) if logs else ""
    ignores, ignored = int("ignore_index" in call.node.attributes), call.integer("ignore_index", 0)
    numbers = outer, size, inner, int(bool(logs) or not scores), ignores, c_number(ignored, "int64")
    mean = int(call.text("reduction", "mean") == "mean")
    read_of = logs or arguments.inputs[0]
    return block(first, called("po_labels_loss", arguments.outputs[0], read_of, arguments.inputs[1], *numbers, mean))


def _whole_code(line: Line, sizes: Callable[[Call], Sizes]) -> Code:
    def code(call: Call, arguments: Arguments) -> str:
        return line(call, arguments, all_positions(call, sizes(call)))

    return code


def _kernel(op_type: str, line: Line, inputs: tuple[int, ...], domain: str = "") -> Kernel:
    """Return the kernel of a softmax; `inputs` and the output have its axis."""
    code = _whole_code(line, _axis_sizes)
    rows = by_row(code, inputs, 1)

    def tilings(call: Call) -> tuple[Tiling, ...]:
        return (*rows(call), *by_position(line, call, _axis_sizes(call)))

    return Kernel(op_type, code, domain, real, in_place=(0,), tilings=tilings, headers=(HEADER,))


def _gradient_tilings(call: Call) -> tuple[Tiling, ...]:
    rows = along(
        _whole_code(_cross_entropy_gradient, _class_sizes), call, [0, 0, *(None for _ in call.inputs[2:])], [0]
    )
    return (*rows, *by_position(_cross_entropy_gradient, call, _class_sizes(call)))


def _loss(op_type: str, line: Callable[..., str]) -> Kernel:
    """Return the kernel of a sum over all labels; a second output has the log-probabilities."""

    def code(call: Call, arguments: Arguments) -> str:
        if _goes_by_label(call):
            return _labels_loss(call, arguments)
        return line(call, arguments, all_positions(call, _class_sizes(call)), _factor(call))

    def tilings(call: Call) -> tuple[Tiling, ...]:
        if _goes_by_label(call):
            return ()
        sizes, factor = _class_sizes(call), _factor(call)
        extent = sizes[0]

        def rows(call: Call, arguments: Arguments, begin: str) -> str:
            ends = f"{begin} + {call.input(0).shape[0]} == {extent}"
            at = replace(all_positions(call, sizes), begun=f"{begin} > 0", ends=ends)
            return line(call, arguments, at, factor)

        def positions(call: Call, arguments: Arguments, at: Positions) -> str:
            return line(call, arguments, at, factor, arguments.scratch)

        axes = [None, *(0 for _ in call.outputs[1:])]
        by_rows = along(code, call, [0, 0, *(None for _ in call.inputs[2:])], axes, rows)
        return (*by_rows, *by_position(positions, call, sizes, ELEMENT_BYTES * extent))

    return Kernel(op_type, code, refuses=_likelihood_refuses, tilings=tilings, headers=(HEADER,))


def _linear(call: Call, arguments: Arguments, begin: str = "0", classes: int = 0) -> str:
    """Return the C of a chunk of classes, for x, W, labels and bias; `classes` is the total (0: those of W)."""
    (rows, size), count = call.input(0).shape, call.input(1).shape[0]
    ends = f"{begin} + {count} == {classes or count}"
    names, (x, w, bias, labels), ignored = _operands(call, arguments, 3)
    outputs = (*arguments.outputs, "NULL")[:3]
    operands = *outputs, x, w, bias, labels, f"(float *){arguments.scratch}"
    return block(*names, called("po_linear_loss", *operands, rows, size, begin, count, ends, *ignored))


def _operands(call: Call, arguments: Arguments, bias: int) -> tuple[list[str], Sequence[str], tuple[int, str]]:
    """Return the declarations of x, W, bias and labels, their names, and the arguments for ignored labels."""
    names = ("x", "w", "labels")
    declared = [read(name, call.input(k), arguments.inputs[k]) for k, name in enumerate(names)]
    ignores, ignored = int("ignore_index" in call.node.attributes), call.integer("ignore_index", 0)
    bias_at = f"(const float *){arguments.inputs[bias]}" if call.has(bias) else "NULL"
    return declared, ("x", "w", bias_at, "labels"), (ignores, c_number(ignored, "int64"))


def _linear_tilings(call: Call) -> tuple[Tiling, ...]:
    def chunk(cut: Call, arguments: Arguments, begin: str) -> str:
        return _linear(cut, arguments, begin, call.input(1).shape[0])

    return along(_linear, call, [None, 0, None, *(0 for _ in call.inputs[3:])], [None] * len(call.outputs), chunk)


def _linear_refuses(call: Call) -> str | None:
    dtype = call.input(0).dtype
    return None if dtype == "float32" else f"a layer of {dtype} is not supported; float32 is"


def _linear_gradient(of: str, optimizer: str = "") -> Kernel:
    """Return the kernel of the gradient by weight or bias, class by class.

    Its inputs are x, W, labels, logarithms, bias and a factor; with an update also the parameter, states and scalars.
    """
    states = RULES[optimizer].states if optimizer else -1

    def code(call: Call, arguments: Arguments, begin: str = "0") -> str:
        (rows, size), count = call.input(0).shape, call.input(1).shape[0]
        names, read_of, ignored = _operands(call, arguments, 4)
        gradient, update, factor = arguments.outputs[0], "NULL", "1.0f"
        if call.has(5):
            names.append(read("by", call.input(5), arguments.inputs[5]))
            factor = "by[0]"
        if optimizer:
            gradient, update = f"(float *){arguments.scratch}", "&u"
            names += declared(call, arguments, optimizer, tuple(range(6, 7 + states)), 7 + states)
        numbers = factor, rows, size, int(of == "grad_bias"), begin, count
        operands = gradient, update, *read_of, f"(const float *){arguments.inputs[3]}"
        return block(*names, called("po_linear_loss_weight", *operands, *numbers, *ignored))

    def tilings(call: Call) -> tuple[Tiling, ...]:
        inputs = [None, 0, None, None, 0, None, *(0 for _ in range(1 + states))]
        inputs += [None] * (len(call.inputs) - len(inputs))
        return along(code, call, inputs, [0] * len(call.outputs), code)

    def refuses(call: Call) -> str | None:
        other = optimizer and len(call.inputs) != update_inputs(optimizer, 6)
        return (
            f"an update by {optimizer} of {len(call.inputs)} operands is not supported"
            if other
            else _linear_refuses(call)
        )

    def scratch(call: Call) -> int:
        return ELEMENT_BYTES * (call.input(0).shape[1] if of == "grad_weight" else 1) if optimizer else 0

    name, in_place = (f"{LINEAR}.{of}+{optimizer}{UPDATE}", (6,)) if optimizer else (f"{LINEAR}.{of}", ())
    return Kernel(
        name, code, OWN_DOMAIN, refuses, scratch, in_place=in_place,
        tilings=tilings, headers=(HEADER,),
    )  # fmt: skip


KERNELS: tuple[Kernel, ...] = (
    *(_linear_gradient(of, optimizer) for of in ("grad_weight", "grad_bias") for optimizer in ("", *RULES)),
    Kernel(
        LINEAR,
        _linear,
        OWN_DOMAIN,
        _linear_refuses,
        lambda call: ELEMENT_BYTES * call.input(0).shape[0] * (3 + call.input(0).shape[1]),
        tilings=_linear_tilings,
        headers=(HEADER,),
    ),
    _kernel("Softmax", _softmax, (0,)),
    _kernel("LogSoftmax", _softmax, (0,)),
    _kernel("Softmax.grad_input", _softmax_gradient, (0, 1), OWN_DOMAIN),
    _loss("NegativeLogLikelihoodLoss", _likelihood),
    _loss("SoftmaxCrossEntropyLoss", _cross_entropy),
    Kernel(
        "SoftmaxCrossEntropyLoss.grad_input",
        _whole_code(_cross_entropy_gradient, _class_sizes),
        OWN_DOMAIN,
        _factor_refuses,
        in_place=(0,),
        tilings=_gradient_tilings,
        headers=(HEADER,),
    ),
)
