"""Convolutions and their gradients in C, whole and in chunks of channels, groups and pixels.

Convolutions of one or two axes and their gradients are direct: they don't unfold, so they need no workspace.

One axis is treated as two with a height of one. A ConvTranspose is the gradient of a convolution by its input.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import gcd, lcm, prod

from poetopt.graph import OWN_DOMAIN
from poetopt.ops.convolution.c_rows import (
    Geometry,
    forward_rows,
    geometry,
    input_rows,
    weight_pixels,
    weight_rows,
    written_to,
)
from poetopt.ops.elementwise.updates import RULES, declared, update_inputs
from poetopt.ops.runtimes.c.kernel import (
    UPDATE,
    Arguments,
    Call,
    Kernel,
    block,
    called,
    operands,
    real,
    written,
)
from poetopt.ops.runtimes.c.tiling import INNER, PART, Chunk, LetterWays, Tiling

# Axes: images b, groups g, output channels o and input channels c of a group, taps t, pixels of y p and of x q.
X, W, Y = "bgcq", "goct", "bgop"


def _part_planes(taps: int) -> int:
    """Return the number of planes whose products are summed up before they join a sum of such sums."""
    return max(1, PART // max(1, taps))


def _axis_sizes(dims: Geometry) -> dict[str, int]:
    return {
        "b": dims.images, "g": dims.groups, "o": dims.outs, "c": dims.ins, "t": prod(dims.kernel),
        "p": prod(dims.out), "q": prod(dims.size),
    }  # fmt: skip


def _loop_pairs(dims: Geometry, *pairs: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    """Return `pairs`, or groups alone if there are several."""
    return (("g", ""),) if dims.groups > 1 else pairs


def forward_tilings(call: Call) -> tuple[Tiling, ...]:
    """Return the tilings of a convolution: x, w and bias to y."""
    dims = geometry(call, call.input(0), call.input(1), call.output())
    return (*_channel_tilings(call, dims, forward=True), *forward_rows(call, dims))


def input_tilings(call: Call) -> tuple[Tiling, ...]:
    """Return the tilings of a gradient by the input, or of a ConvTranspose: dY and w to dX."""
    dims = geometry(call, call.output(), call.input(1), call.input(0))
    return (*_channel_tilings(call, dims, forward=False), *input_rows(call, dims))


def _channel_tilings(call: Call, dims: Geometry, *, forward: bool) -> tuple[Tiling, ...]:
    """Return the tilings by channels, groups and pixels of images: from x to y, or from dY to dX."""
    source, target, summed, channels = (X, Y, "c", "o") if forward else (Y, X, "o", "c")
    all_source, all_target = (dims.ins, dims.outs) if forward else (dims.outs, dims.ins)
    parts = (PART,) if dims.pointwise else (_part_planes(prod(dims.kernel)),) if forward else _part_channels(dims)
    rest: tuple[str | None, ...] = (None,) * (len(call.inputs) - 2)
    variants = LetterWays(_axis_sizes(dims), (source, W, *rest), (target,), summed, {summed: lcm(*parts)})
    both = (("o", ""), ("o", "c"), ("", "c")) if forward else (("", "o"), ("c", "o"), ("c", ""))
    pairs = _loop_pairs(dims, *both)

    def code(variants: LetterWays, loops: tuple[str, str], call: Call, chunk: Chunk) -> str:
        letters = variants.outputs[0] or ""
        at_x, x_apart = variants.operand(variants.inputs[0] or "", chunk.inputs[0], loops, chunk)
        at_w, w_apart = variants.operand(W, chunk.inputs[1], loops, chunk)
        at_y, y_apart = variants.operand(letters, chunk.outputs[0], loops, chunk)
        own_channels, summed_channels, groups = (
            variants.count(letter, loops, chunk) for letter in (channels, summed, "g")
        )
        begin = chunk.begin[INNER]
        adds = f"{begin} > 0" if loops[INNER] == summed else "0"
        bias = _bias(variants, loops, call, chunk, f"g{channels}")
        group = [f" + g * {step}" for step in (y_apart["g"], x_apart["g"], w_apart["g"], all_target)]
        y_g, x_g, w_g, c_g = group if dims.groups > 1 else [""] * 4
        y, x = f"y + n * {y_apart['b']}{y_g}", f"x + n * {x_apart['b']}{x_g}"
        addresses = x, f"w{w_g}", bias if bias == "NULL" else f"c{c_g}"
        to = (y, y if variants.alone else chunk.scratch) if variants.fine else (y,)
        (rows, columns), apart = dims.out, w_apart["o"]
        taps = (
            apart, prod(dims.kernel), dims.kernel[1], 1, -dims.before[0], dims.steps[0], dims.taps[0],
            -dims.before[1], dims.steps[1], dims.taps[1],
        )  # fmt: skip
        image = *dims.out, *dims.size, *dims.kernel, *dims.steps, *dims.taps, *dims.before
        steps = (apart, 1) if forward else (1, apart)
        size = prod(dims.out)
        planes: tuple[int, ...]
        if dims.pointwise and variants.fine:
            line = called(
                "po_pointwise_piece", *to, *addresses, own_channels, all_source, begin, summed_channels, size, *steps
            )
        elif dims.pointwise:
            lies = variants.count(letters[-1], loops, chunk), y_apart[channels], x_apart[summed]
            line = called("po_pointwise_image", *to, *addresses, own_channels, summed_channels, *lies, *steps, adds)
        elif forward and variants.fine:
            planes = rows, columns, size, columns, 1, *dims.size, *dims.kernel
            line = called(
                "po_conv_piece", *to, *addresses, own_channels, all_source, begin, summed_channels, *planes, *taps
            )
        elif forward:
            planes = rows, columns, size, columns, 1, prod(dims.size), *dims.size, *dims.kernel
            line = called("po_conv", *to, *addresses, own_channels, summed_channels, *planes, *taps, adds, 0)
        elif variants.fine:
            line = called(
                "po_image_by_input_piece",
                *to,
                *addresses,
                all_source,
                own_channels,
                begin,
                summed_channels,
                *image,
                apart,
            )
        else:
            planes = *image, prod(dims.size), size
            line = called("po_image_by_input", *to, *addresses, summed_channels, own_channels, *planes, apart, adds)
        return _for_images(dims, groups, (("x", at_x), ("w", at_w)), at_y, bias, line)

    alone = all_source <= min(parts) and not (dims.pointwise and call.has(2))
    fine = _with_short_chunks(variants, dims, alone).tilings([pair for pair in pairs if pair[INNER] == summed], code)
    pixels: tuple[Tiling, ...] = ()
    if dims.pointwise:  # a product of matrices, in chunks of pixels
        alike = (source.replace("q", "p"), W, *rest), (target.replace("q", "p"),)
        pixels = LetterWays(_axis_sizes(dims), *alike).tilings((("p", ""),), code)
    return (*variants.tilings(pairs, code), *fine, *pixels)


def _with_short_chunks(variants: LetterWays, dims: Geometry, alone: bool) -> LetterWays:
    """Return axes with short chunks of the summed axis if there is one image; else axes that give no tilings."""
    if dims.images == 1:
        return replace(variants, multiples={}, fine=True, alone=alone)
    return replace(variants, sizes=dict.fromkeys(variants.sizes, 1))


def _part_channels(dims: Geometry) -> tuple[int, ...]:
    """Return the output channels of a part, for each set of taps that some rows and columns meet."""
    (height, width) = dims.kernel
    down, right = (step // gcd(step, tap) for step, tap in zip(dims.steps, dims.taps, strict=True))
    counts = {
        max(0, -(-(height - r) // down)) * max(0, -(-(width - s) // right)) for r in range(down) for s in range(right)
    }
    return tuple(_part_planes(count) for count in counts)


def weight_tilings(optimizer: str = "") -> Callable[[Call], tuple[Tiling, ...]]:
    """Return a function for the tilings of dY and x to dW; with an optimizer, to updated weights and states."""
    updates = 1 + RULES[optimizer].states if optimizer else 0

    def tilings(call: Call) -> tuple[Tiling, ...]:
        plain = geometry(call, call.input(1), call.output(), call.input(0))
        dims = plain
        if plain.pointwise:  # a plane is one row
            dims = replace(plain, out=(1, prod(plain.out)), size=(1, prod(plain.size)))
        updated = (W,) * updates
        scalars: tuple[str | None, ...] = (None,) * (len(call.inputs) - 2 - updates)
        variants = LetterWays(_axis_sizes(dims), (Y, X, *updated, *scalars), updated or (W,))

        def code(variants: LetterWays, loops: tuple[str, str], call: Call, chunk: Chunk) -> str:
            at_dy, dy_apart = variants.operand(Y, chunk.inputs[0], loops, chunk)
            at_x, x_apart = variants.operand(X, chunk.inputs[1], loops, chunk)
            olds = [variants.operand(W, part, loops, chunk)[0] for part in chunk.inputs[2 : 2 + updates]]
            news = [variants.operand(W, part, loops, chunk)[0] for part in chunk.outputs]
            outs, ins, groups = (variants.count(letter, loops, chunk) for letter in "ocg")
            declarations, target = written_to(call, chunk, optimizer, olds, news)
            return block(
                *declarations,
                called(
                    "po_images_by_weight", *target, at_dy, at_x, dims.images, groups, outs, ins, *dims.out,
                    *dims.size, *dims.kernel, *dims.steps, *dims.taps, *dims.before, dy_apart["b"], x_apart["b"],
                    prod(dims.out), prod(dims.size), dims.ins * prod(dims.kernel), "NULL", 1, 1,
                ),
            )  # fmt: skip

        by_rows = (*weight_rows(call, plain, optimizer), *weight_pixels(call, plain, optimizer))
        return (*variants.tilings(_loop_pairs(dims, ("o", ""), ("o", "c")), code), *by_rows)

    return tilings


def _bias(variants: LetterWays, loops: tuple[str, str], call: Call, chunk: Chunk, letters: str) -> str:
    """Return the address of the bias of a chunk's first channel in C; "NULL" without a bias."""
    if not call.has(2):
        return "NULL"
    at = f"(const float *){chunk.inputs[2].at}"
    for letter, step in ((letters[0], variants.sizes[letters[1]]), (letters[1], 1)):
        if letter in loops:
            at += f" + {variants.begin(letter, loops, chunk)} * {step}"
    return at


def _for_images(
    dims: Geometry, groups: str, inputs: tuple[tuple[str, str], ...], output: str, bias: str, line: str
) -> str:
    """Return C that runs a call for each group of each image, with the operands x, w, c and y."""
    operands = [f"const float *{name} = {at};" for name, at in inputs]
    operands += [f"float *y = {output};"] + ([] if bias == "NULL" else [f"const float *c = {bias};"])
    if " g * " in line:
        line = f"for (int32_t g = 0; g < {groups}; ++g) {{\n    {line}\n}}"
    inner = "\n".join(f"    {text}" for text in line.splitlines())
    return block(*operands, f"for (int32_t n = 0; n < {dims.images}; ++n) {{\n{inner}\n}}")


HEADER = "po_conv.h"


def _refuses(call: Call) -> str | None:
    ranks = {len(tensor.shape) for tensor in (call.input(0), call.input(1))}
    if not ranks <= {3, 4}:
        return f"{call.node.op_type} over {max(ranks) - 2} axes is not supported; one or two are"
    if any(tensor.size == 0 for tensor in (*call.inputs, *call.outputs) if tensor is not None):
        return f"{call.node.op_type} has an operand without elements"
    return real(call)


def _refuses_transposed(call: Call) -> str | None:
    if call.text("auto_pad", "NOTSET") != "NOTSET" or "output_shape" in call.node.attributes:
        return "ConvTranspose with auto_pad or output_shape is not supported"
    return _refuses(call)


def _conv(call: Call, arguments: Arguments) -> str:
    dims = geometry(call, call.input(0), call.input(1), call.output())
    return _image_calls(call, arguments, dims, "po_convolution", (dims.outs, dims.ins), (dims.ins, 1))


def _by_input(call: Call, arguments: Arguments) -> str:
    dims = geometry(call, call.output(), call.input(1), call.input(0))
    return _image_calls(call, arguments, dims, "po_convolution_by_input", (dims.ins, dims.outs), (1, dims.ins))


def _image_calls(
    call: Call, arguments: Arguments, dims: Geometry, function: str, planes: tuple[int, int], steps: tuple[int, int]
) -> str:
    """Return C for whole operands; `planes` are those of a written and of a read image, `steps` the weights'."""
    images = "y", "a", "b", "c" if call.has(2) else "NULL"
    if dims.pointwise:
        line = called("po_pointwise", *images, dims.images, *planes, prod(dims.out), *steps)
    else:
        line = called(function, *images, *dims.numbers())
    return block(*operands(call, arguments), line)


def _by_weight(call: Call, arguments: Arguments) -> str:
    target = f"y, NULL, {', '.join(arguments.inputs[:2])}"
    dw = written("y", call.output(), arguments.outputs[0])
    return block(dw, called("po_convolution_by_weight", target, *_weight_numbers(call)))


def _weight_numbers(call: Call) -> tuple[int, ...]:
    dims = geometry(call, call.input(1), call.output(), call.input(0))
    if dims.pointwise:  # a plane is one row
        dims = replace(dims, out=(1, prod(dims.out)), size=(1, prod(dims.size)))
    return dims.numbers()


def _with_update(optimizer: str) -> Kernel:
    """Return the kernel of the gradient by the weights and their update; inputs: dY, x, weights, states, scalars."""
    states = RULES[optimizer].states

    def code(call: Call, arguments: Arguments) -> str:
        target = f"NULL, &u, {', '.join(arguments.inputs[:2])}"
        return block(
            *declared(call, arguments, optimizer, tuple(range(2, 3 + states)), 3 + states),
            called("po_convolution_by_weight", target, *_weight_numbers(call)),
        )

    def refuses(call: Call) -> str | None:
        if len(call.inputs) != update_inputs(optimizer, 2):
            return f"an update by {optimizer} of {len(call.inputs)} operands is not supported"
        return _refuses(call)

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
