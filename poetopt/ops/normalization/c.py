"""BatchNormalization, LayerNormalization and other normalizations in C, with their gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from poetopt.graph import OWN_DOMAIN, Tensor
from poetopt.ops.runtimes.c.axes import Code, along, by_row, flat
from poetopt.ops.runtimes.c.kernel import Arguments, Call, Kernel, called, real
from poetopt.ops.runtimes.c.tiling import OUTER, Chunk, ChunkSlice, Loop, Tiling

HEADER = "po_norm.h"


def _channels(x: Tensor) -> tuple[int, int, int]:
    """Return images, channels and elements of a plane."""
    return x.shape[0], x.shape[1] if len(x.shape) > 1 else 1, prod(x.shape[2:])


def _out(arguments: Arguments, index: int) -> str:
    address = arguments.outputs[index] if index < len(arguments.outputs) else ""
    return address or "NULL"


def _batch_norm(call: Call, arguments: Arguments) -> str:
    x = call.input(0)
    epsilon = float(call.number("epsilon", 1e-5))
    names = [arguments.inputs[k] for k in range(5)]
    if not call.integer("training_mode", 0):
        return called("po_batch_norm", arguments.outputs[0], *names, *_channels(x), epsilon)
    # with a momentum of 0 the updated statistics are the batch's, which the outputs hold
    return called(
        "po_batch_norm_training", arguments.outputs[0], arguments.outputs[1], arguments.outputs[2], "NULL", "NULL",
        *names, *_channels(x), epsilon, 0.0, 1.0,
    )  # fmt: skip


def _batch_norm_refuses(call: Call) -> str | None:
    if call.integer("training_mode", 0):
        if call.number("momentum", 0.9):
            return "a single BatchNormalization node in training mode with a momentum is not supported"
        if len(call.outputs) < 3 or None in call.outputs[:3]:
            return "BatchNormalization in training mode without outputs for its statistics is not supported"
    return real(call)


def _batch_norm_training(call: Call, arguments: Arguments) -> str:
    x, momentum = call.input(0), float(call.number("momentum", 0.9))
    return called(
        "po_batch_norm_training", *(_out(arguments, k) for k in range(5)),
        *(arguments.inputs[k] or "NULL" for k in range(5)), *_channels(x),
        float(call.number("epsilon", 1e-5)), momentum, 1.0 - momentum,
    )  # fmt: skip


def _batch_norm_sums(call: Call, arguments: Arguments) -> str:
    x = call.input(1)
    return called(
        "po_batch_norm_sums", *(_out(arguments, k) for k in range(3)), *arguments.inputs[:4], *_channels(x),
        float(call.number("epsilon", 1e-5)),
    )  # fmt: skip


def _rows(call: Call, x: Tensor) -> tuple[int, int]:
    axis = call.integer("axis", -1) % len(x.shape)
    return prod(x.shape[:axis]), prod(x.shape[axis:])


def _layer_norm(call: Call, arguments: Arguments) -> str:
    bias = arguments.inputs[2] if call.has(2) else "NULL"
    return called(
        "po_layer_norm", *(_out(arguments, k) for k in range(3)), *arguments.inputs[:2], bias,
        *_rows(call, call.input(0)), float(call.number("epsilon", 1e-5)),
    )  # fmt: skip


def _layer_norm_refuses(call: Call) -> str | None:
    if call.input(1).size != _rows(call, call.input(0))[1]:
        return "LayerNormalization with a scale that broadcasts is not supported"
    return real(call)


def _group_norm(call: Call, arguments: Arguments) -> str:
    images, channels, size = _channels(call.input(0))
    groups = channels if call.node.op_type == "InstanceNormalization" else call.integer("num_groups", 1)
    by_group = int(call.input(1).size != channels)
    return called(
        "po_group_norm", arguments.outputs[0], *arguments.inputs[:3], images, groups, channels // groups, size,
        by_group, float(call.number("epsilon", 1e-5)),
    )  # fmt: skip


def _group_norm_tilings(call: Call) -> tuple[Tiling, ...]:
    """Return the tiling by the groups of one image."""
    x, scale = call.input(0), call.input(1)
    images, channels, size = _channels(x)
    groups = call.integer("num_groups", 1)
    if images != 1 or groups < 2:
        return ()
    each, of_group = channels // groups, scale.size // groups

    def code(call: Call, chunk: Chunk) -> str:
        operands = (part.at for part in (*chunk.outputs, *chunk.inputs))
        by_group, epsilon = int(scale.size != channels), float(call.number("epsilon", 1e-5))
        return called("po_group_norm", *operands, 1, chunk.count[OUTER], each, size, by_group, epsilon)

    whole, parameters = ChunkSlice(OUTER, x.nbytes // groups), ChunkSlice(OUTER, of_group * scale.nbytes // scale.size)
    return (Tiling(Loop(groups), None, (whole, parameters, parameters), (whole,), code),)


def _layer_norm_gradient(call: Call, arguments: Arguments, begun: str = "0") -> str:
    return called(
        "po_layer_norm_gradient", *(_out(arguments, k) for k in range(3)), *arguments.inputs[:5],
        *_rows(call, call.input(1)), begun,
    )  # fmt: skip


def _layer_norm_gradient_tilings(call: Call) -> tuple[Tiling, ...]:
    """Return the tiling by rows; sums over all rows stay in RAM."""
    shape = call.input(1).shape
    axis = call.integer("axis", -1) % len(shape) - 1
    if axis < 0:
        return ()

    def begun(call: Call, arguments: Arguments, begin: str) -> str:
        return _layer_norm_gradient(call, arguments, f"{begin} > 0")

    outputs = [axis, None, None][: len(call.outputs)]
    return along(_layer_norm_gradient, call, [axis, axis, None, axis, axis], outputs, begun, merged=True)


def _by_channel(code: Code, wide_inputs: tuple[int, ...]) -> Callable[[Call], tuple[Tiling, ...]]:
    """Return a function for the tiling by channels.

    Channels are the second axis of `wide_inputs` and of the first output, and the first axis of all other operands.
    """

    def tilings(call: Call) -> tuple[Tiling, ...]:
        if len(call.output().shape) < 2:
            return ()
        inputs = [1 if k in wide_inputs else 0 for k in range(len(call.inputs))]
        return along(code, call, inputs, [1, *(0 for _ in call.outputs[1:])])

    return tilings


def _batch_norm_tilings(call: Call) -> tuple[Tiling, ...]:
    """Return the tiling by channels; chunks of any length for one channel with given statistics."""
    if call.integer("training_mode", 0) or _channels(call.input(0))[1] > 1:
        return _by_channel(_batch_norm, (0,))(call)

    def one(call: Call, arguments: Arguments) -> str:
        x = replace(call.input(0), shape=(1, 1, call.input(0).size))
        return _batch_norm(replace(call, inputs=(x, *call.inputs[1:])), arguments)

    return flat(one, call)


KERNELS: tuple[Kernel, ...] = (
    Kernel(
        "BatchNormalization", _batch_norm, refuses=_batch_norm_refuses, in_place=(0,), headers=(HEADER,),
        tilings=_batch_norm_tilings,
    ),
    Kernel(
        "BatchNormalization.training", _batch_norm_training, OWN_DOMAIN, real, in_place=(0,), headers=(HEADER,),
        tilings=_by_channel(_batch_norm_training, (0,)),
    ),
    Kernel(
        "BatchNormalization.grad_weight", _batch_norm_sums, OWN_DOMAIN, real, in_place=(0,), headers=(HEADER,),
        tilings=_by_channel(_batch_norm_sums, (0, 1)),
    ),
    Kernel(
        "LayerNormalization", _layer_norm, refuses=_layer_norm_refuses, in_place=(0,), headers=(HEADER,),
        tilings=by_row(_layer_norm, (0,), 3),
    ),
    Kernel(
        "InstanceNormalization", _group_norm, refuses=real, in_place=(0,), headers=(HEADER,),
        tilings=_by_channel(_group_norm, (0,)),
    ),
    Kernel(
        "GroupNormalization", _group_norm, refuses=real, in_place=(0,), headers=(HEADER,), tilings=_group_norm_tilings
    ),
    Kernel(
        "LayerNormalization.gradient", _layer_norm_gradient, OWN_DOMAIN, real, in_place=(0,), headers=(HEADER,),
        tilings=_layer_norm_gradient_tilings,
    ),
)  # fmt: skip
