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


def _part(taps: int) -> int:
    """Return the number of planes whose products are summed up before they join a sum of such sums."""
    return max(1, PART // max(1, taps))


def _sizes(found: Geometry) -> dict[str, int]:
    return {
        "b": found.images, "g": found.groups, "o": found.outs, "c": found.ins, "t": prod(found.kernel),
        "p": prod(found.out), "q": prod(found.size),
    }  # fmt: skip


def _pairs(found: Geometry, *pairs: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    """Return `pairs`, or groups alone if there are several."""
    return (("g", ""),) if found.groups > 1 else pairs


def forward_tilings(call: Call) -> tuple[Tiling, ...]:
    """Return the tilings of a convolution: x, w and bias to y."""
    found = geometry(call, call.input(0), call.input(1), call.output())
    return (*_image_tilings(call, found, forward=True), *forward_rows(call, found))


def input_tilings(call: Call) -> tuple[Tiling, ...]:
    """Return the tilings of a gradient by the input, or of a ConvTranspose: dY and w to dX."""
    found = geometry(call, call.output(), call.input(1), call.input(0))
    return (*_image_tilings(call, found, forward=False), *input_rows(call, found))


def _image_tilings(call: Call, found: Geometry, *, forward: bool) -> tuple[Tiling, ...]:
    """Return the tilings by channels, groups and pixels of images: from x to y, or from dY to dX."""
    given, made, summed, kept = (X, Y, "c", "o") if forward else (Y, X, "o", "c")
    all_given, all_made = (found.ins, found.outs) if forward else (found.outs, found.ins)
    parts = (PART,) if found.pointwise else (_part(prod(found.kernel)),) if forward else _phases(found)
    rest: tuple[str | None, ...] = (None,) * (len(call.inputs) - 2)
    ways = LetterWays(_sizes(found), (given, W, *rest), (made,), summed, {summed: lcm(*parts)})
    both = (("o", ""), ("o", "c"), ("", "c")) if forward else (("", "o"), ("c", "o"), ("c", ""))
    pairs = _pairs(found, *both)

    def code(ways: LetterWays, loops: tuple[str, str], call: Call, chunk: Chunk) -> str:
        letters = ways.outputs[0] or ""
        at_x, x_apart = ways.operand(ways.inputs[0] or "", chunk.inputs[0], loops, chunk)
        at_w, w_apart = ways.operand(W, chunk.inputs[1], loops, chunk)
        at_y, y_apart = ways.operand(letters, chunk.outputs[0], loops, chunk)
        mine, theirs, groups = (ways.count(letter, loops, chunk) for letter in (kept, summed, "g"))
        begin = chunk.begin[INNER]
        began = f"{begin} > 0" if loops[INNER] == summed else "0"
        bias = _bias(ways, loops, call, chunk, f"g{kept}")
        group = [f" + g * {step}" for step in (y_apart["g"], x_apart["g"], w_apart["g"], all_made)]
        y_g, x_g, w_g, c_g = group if found.groups > 1 else [""] * 4
        y, x = f"y + n * {y_apart['b']}{y_g}", f"x + n * {x_apart['b']}{x_g}"
        lying = x, f"w{w_g}", bias if bias == "NULL" else f"c{c_g}"
        to = (y, y if ways.alone else chunk.scratch) if ways.fine else (y,)
        (rows, columns), apart = found.out, w_apart["o"]
        taps = (
            apart, prod(found.kernel), found.kernel[1], 1, -found.before[0], found.steps[0], found.taps[0],
            -found.before[1], found.steps[1], found.taps[1],
        )  # fmt: skip
        image = *found.out, *found.size, *found.kernel, *found.steps, *found.taps, *found.before
        steps = (apart, 1) if forward else (1, apart)
        size = prod(found.out)
        planes: tuple[int, ...]
        if found.pointwise and ways.fine:
            line = called("po_pointwise_piece", *to, *lying, mine, all_given, begin, theirs, size, *steps)
        elif found.pointwise:
            lies = ways.count(letters[-1], loops, chunk), y_apart[kept], x_apart[summed]
            line = called("po_pointwise_image", *to, *lying, mine, theirs, *lies, *steps, began)
        elif forward and ways.fine:
            planes = rows, columns, size, columns, 1, *found.size, *found.kernel
            line = called("po_conv_piece", *to, *lying, mine, all_given, begin, theirs, *planes, *taps)
        elif forward:
            planes = rows, columns, size, columns, 1, prod(found.size), *found.size, *found.kernel
            line = called("po_conv", *to, *lying, mine, theirs, *planes, *taps, began, 0)
        elif ways.fine:
            line = called("po_image_by_input_piece", *to, *lying, all_given, mine, begin, theirs, *image, apart)
        else:
            planes = *image, prod(found.size), size
            line = called("po_image_by_input", *to, *lying, theirs, mine, *planes, apart, began)
        return _for_images(found, groups, (("x", at_x), ("w", at_w)), at_y, bias, line)

    alone = all_given <= min(parts) and not (found.pointwise and call.has(2))
    fine = _fine(ways, found, alone).tilings([pair for pair in pairs if pair[INNER] == summed], code)
    pixels: tuple[Tiling, ...] = ()
    if found.pointwise:  # a product of matrices, in chunks of pixels
        alike = (given.replace("q", "p"), W, *rest), (made.replace("q", "p"),)
        pixels = LetterWays(_sizes(found), *alike).tilings((("p", ""),), code)
    return (*ways.tilings(pairs, code), *fine, *pixels)


def _fine(ways: LetterWays, found: Geometry, alone: bool) -> LetterWays:
    """Return axes with short chunks of the summed axis if there is one image; else axes that give no tilings."""
    if found.images == 1:
        return replace(ways, multiples={}, fine=True, alone=alone)
    return replace(ways, sizes=dict.fromkeys(ways.sizes, 1))


def _phases(found: Geometry) -> tuple[int, ...]:
    """Return the output channels of a part, for each set of taps that some rows and columns meet."""
    (height, width) = found.kernel
    down, right = (step // gcd(step, tap) for step, tap in zip(found.steps, found.taps, strict=True))
    counts = {
        max(0, -(-(height - r) // down)) * max(0, -(-(width - s) // right)) for r in range(down) for s in range(right)
    }
    return tuple(_part(count) for count in counts)


def weight_tilings(optimizer: str = "") -> Callable[[Call], tuple[Tiling, ...]]:
    """Return a function for the tilings of dY and x to dW; with an optimizer, to updated weights and states."""
    updates = 1 + RULES[optimizer].states if optimizer else 0

    def tilings(call: Call) -> tuple[Tiling, ...]:
        plain = geometry(call, call.input(1), call.output(), call.input(0))
        found = plain
        if plain.pointwise:  # a plane is one row
            found = replace(plain, out=(1, prod(plain.out)), size=(1, prod(plain.size)))
        updated = (W,) * updates
        scalars: tuple[str | None, ...] = (None,) * (len(call.inputs) - 2 - updates)
        ways = LetterWays(_sizes(found), (Y, X, *updated, *scalars), updated or (W,))

        def code(ways: LetterWays, loops: tuple[str, str], call: Call, chunk: Chunk) -> str:
            at_dy, dy_apart = ways.operand(Y, chunk.inputs[0], loops, chunk)
            at_x, x_apart = ways.operand(X, chunk.inputs[1], loops, chunk)
            olds = [ways.operand(W, part, loops, chunk)[0] for part in chunk.inputs[2 : 2 + updates]]
            news = [ways.operand(W, part, loops, chunk)[0] for part in chunk.outputs]
            outs, ins, groups = (ways.count(letter, loops, chunk) for letter in "ocg")
            declarations, target = written_to(call, chunk, optimizer, olds, news)
            return block(
                *declarations,
                called(
                    "po_images_by_weight", *target, at_dy, at_x, found.images, groups, outs, ins, *found.out,
                    *found.size, *found.kernel, *found.steps, *found.taps, *found.before, dy_apart["b"], x_apart["b"],
                    prod(found.out), prod(found.size), found.ins * prod(found.kernel), "NULL", 1, 1,
                ),
            )  # fmt: skip

        by_rows = (*weight_rows(call, plain, optimizer), *weight_pixels(call, plain, optimizer))
        return (*ways.tilings(_pairs(found, ("o", ""), ("o", "c")), code), *by_rows)

    return tilings


def _bias(ways: LetterWays, loops: tuple[str, str], call: Call, chunk: Chunk, letters: str) -> str:
    """Return the address of the bias of a chunk's first channel in C; "NULL" without a bias."""
    if not call.has(2):
        return "NULL"
    at = f"(const float *){chunk.inputs[2].at}"
    for letter, step in ((letters[0], ways.sizes[letters[1]]), (letters[1], 1)):
        if letter in loops:
            at += f" + {ways.begin(letter, loops, chunk)} * {step}"
    return at


def _for_images(
    found: Geometry, groups: str, inputs: tuple[tuple[str, str], ...], output: str, bias: str, line: str
) -> str:
    """Return C that runs a call for each group of each image, with the operands x, w, c and y."""
    operands = [f"const float *{name} = {at};" for name, at in inputs]
    operands += [f"float *y = {output};"] + ([] if bias == "NULL" else [f"const float *c = {bias};"])
    if " g * " in line:
        line = f"for (int32_t g = 0; g < {groups}; ++g) {{\n    {line}\n}}"
    inner = "\n".join(f"    {text}" for text in line.splitlines())
    return block(*operands, f"for (int32_t n = 0; n < {found.images}; ++n) {{\n{inner}\n}}")


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
    found = geometry(call, call.input(0), call.input(1), call.output())
    return _all_images(call, arguments, found, "po_convolution", (found.outs, found.ins), (found.ins, 1))


def _by_input(call: Call, arguments: Arguments) -> str:
    found = geometry(call, call.output(), call.input(1), call.input(0))
    return _all_images(call, arguments, found, "po_convolution_by_input", (found.ins, found.outs), (1, found.ins))


def _all_images(
    call: Call, arguments: Arguments, found: Geometry, function: str, planes: tuple[int, int], steps: tuple[int, int]
) -> str:
    """Return C for whole operands; `planes` are those of a written and of a read image, `steps` the weights'."""
    images = "y", "a", "b", "c" if call.has(2) else "NULL"
    if found.pointwise:
        line = called("po_pointwise", *images, found.images, *planes, prod(found.out), *steps)
    else:
        line = called(function, *images, *found.numbers())
    return block(*operands(call, arguments), line)


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
