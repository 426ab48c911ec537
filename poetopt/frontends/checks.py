"""Checks of a node: axes that the tensor has, groups that divide its channels, sizes above zero, operands that fit.

ONNX's shape inference reads only the settings that decide a shape, and lets others pass that no runtime loads, or that
a runtime divides by. Here each of them is held against the rank and the shape of what it is about, as the op's
declaration says. Settings and operands that it doesn't name are free, or shape inference sees to them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from poetopt.ops.op import op_of
from poetopt.ops.quantization import sharing
from poetopt.util.errors import ModelError

if TYPE_CHECKING:  # ops declare checks, and what runs a plan asks ops: it goes without onnx
    from onnx import AttributeProto, NodeProto

    from poetopt.graph import Array


Shape = tuple[int, ...]
Shapes = Sequence[Shape | None]
"""Of the inputs of a node, by position; None where one is left out."""


GROUP_NORMALIZATION_BY_CHANNEL = 21
"""The opset since which scale and bias of GroupNormalization have an element a channel; before it, a group."""


def check_attributes(at: str, node: NodeProto, shapes: Shapes, constants: Mapping[str, Array], opset: int) -> None:
    """Raise `ModelError`, naming the node (`at`) and the setting, where a setting of `node` is impossible.

    `shapes` are those of its inputs, `constants` the values of those that are known.
    """
    check_settings(at, node)
    for problem in _problems(node, _settings(node), shapes, constants, opset):
        raise ModelError(f"{at}: {problem}; the file is damaged or was exported wrongly, export it again")


def check_settings(at: str, node: NodeProto) -> None:
    """Raise `ModelError`, naming the node (`at`), where a setting of `node` is impossible whatever it reads."""
    for problem in _impossible(node):
        raise ModelError(f"{at}: {problem}; the file is damaged or was exported wrongly, export it again")


def _settings(node: NodeProto) -> Mapping[str, tuple[int, ...]]:
    return {a.name: _integers(a) for a in node.attribute if a.type in (a.INT, a.INTS)}


def check_types(at: str, node: NodeProto, types: Sequence[int], opset: int) -> None:
    """Raise `ModelError`, naming the node (`at`), where its operator doesn't take inputs of those element types.

    types
        ONNX's number of each input's type, by position; 0 where one is left out.
    """
    formal = _formal(node.op_type, opset)
    bound: dict[str, int] = {}
    for place, elem in enumerate(types):
        if not elem or not formal:
            continue
        allowed, letter = formal[min(place, len(formal) - 1)]
        shown = f"{at}: its input {node.input[place]!r} is of type {_type_name(elem)}"
        if elem not in allowed:
            known = ", ".join(sorted(map(_type_name, allowed)))
            raise ModelError(f"{shown}, which this operator doesn't take (it takes {known}); export the model again")
        if letter and bound.setdefault(letter, elem) != elem:
            raise ModelError(
                f"{shown}, but another one of {_type_name(bound[letter])}, and this operator takes both of one type; "
                "export the model again"
            )


@cache
def _formal(op: str, opset: int) -> Sequence[tuple[frozenset[int], str]]:
    """Of each input: the element types that it may have, and a name where all of that name have the same."""
    from onnx import defs

    found = []
    for one in defs.get_schema(op, opset).inputs:
        names = {text.removeprefix("tensor(").removesuffix(")") for text in one.types}
        elems = frozenset(elem for name, elem in _types().items() if name in names)
        alone = one.option == defs.OpSchema.FormalParameterOption.Variadic and not one.is_homogeneous
        found.append((elems, "" if alone else one.type_str))
    return found


@cache
def _types() -> Mapping[str, int]:
    """Element types of tensors, as schemas call them."""
    from onnx import TensorProto

    return {name.lower(): elem for name, elem in TensorProto.DataType.items() if elem}


def _type_name(elem: int) -> str:
    return next((name for name, own in _types().items() if own == elem), str(elem))


def check_window(at: str, node: NodeProto, shapes: Shapes, results: Sequence[Shape]) -> None:
    """Raise `ModelError` where the window of a convolution or a pool fits nowhere: nothing would be left."""
    if not op_of(node.op_type).window or not shapes or shapes[0] is None or 0 in shapes[0]:
        return
    if any(0 in result for result in results):
        raise ModelError(
            f"{at}: its window (kernel_shape, dilations) is larger than its padded input of shape {list(shapes[0])}: "
            f"its output would have shape {list(results[0])}; give a larger input, or export the model with one"
        )


def attribute_int(node: NodeProto, name: str, default: int) -> int:
    """An integer attribute of `node`."""
    return next((int(a.i) for a in node.attribute if a.name == name and a.type == a.INT), default)


def _integers(attribute: AttributeProto) -> tuple[int, ...]:
    return (int(attribute.i),) if attribute.type == attribute.INT else tuple(map(int, attribute.ints))


def _problems(
    node: NodeProto,
    settings: Mapping[str, tuple[int, ...]],
    shapes: Shapes,
    constants: Mapping[str, Array],
    opset: int,
) -> Iterator[str]:
    """Gives what is wrong with `node`, worst first."""
    op = op_of(node.op_type)
    data = shapes[0] if shapes else None
    if data is None:
        return
    if op.axis is not None:
        yield from _axes_problem("axis", settings.get("axis", ()), data, more=op.axis)
    if (place := op.axes) is not None:
        name = node.input[place] if 0 < place < len(node.input) else ""
        given = [int(axis) for axis in constants[name].reshape(-1)] if name in constants else settings.get("axes", ())
        yield from _axes_problem("axes", given, data)
    if node.op_type == "OneHot":
        yield from _axes_problem("axis", settings.get("axis", ()), (*data, 0))
    if node.op_type == "GroupNormalization":
        yield from _group_normalization(settings, shapes, opset)
    if op.settings_check is not None:
        yield from op.settings_check(settings, shapes)


def _impossible(node: NodeProto) -> Iterator[str]:
    """Gives what no node can have. ONNX's inference counts to such numbers, or loops for ever over such an equation."""
    op, settings = node.op_type, _settings(node)
    words = {a.name: a.s.decode(errors="replace") for a in node.attribute if a.type == a.STRING}
    for name, known in op_of(op).attributes.items():
        values = settings.get(name, ())
        if isinstance(known, tuple):
            if (name in settings and not (values and values[0] in known)) or words.get(name, known[0]) not in known:
                shown = _cut(words[name]) if name in words else _shown(values)
                yield f"its {name} is {shown}, but can only be {' or '.join(map(str, filter(None, known)))}"
        # runtimes keep counts in 32 bits
        elif not all(known <= value < 2**31 for value in values):
            yield f"its {name} is {_shown(values)}, but must be {known} or more (and fit into 32 bits)"
    parts = settings.get("num_outputs")
    if op == "Split" and parts is not None and parts != (len(node.output),):
        yield f"its num_outputs is {_shown(parts)}, but it has {len(node.output)} outputs"
    if op == "Einsum" and (equation := _equation(node)) is not None:
        terms, _, result = equation.partition("->")
        term = r"[A-Za-z]*(\.\.\.)?[A-Za-z]*"
        if not re.fullmatch(rf"{term}(,{term})*(->{term})?", equation) or not set(result) <= {*terms, "."}:
            yield (
                f"its equation {_cut(equation)} must be letters for axes, at most one '...' an operand, commas between "
                "the operands, and '->' before the result"
            )
        elif terms.count(",") + 1 != len(node.input):
            yield f"its equation {_cut(equation)} has {terms.count(',') + 1} operands, but it has {len(node.input)}"


def _equation(node: NodeProto) -> str | None:
    texts = (a.s.decode(errors="replace") for a in node.attribute if a.name == "equation")
    return next((text.replace(" ", "") for text in texts), None)


def _cut(text: str) -> str:
    return repr(text if len(text) <= 64 else text[:60] + "...")


def _axes_problem(name: str, axes: Iterable[int], shape: Shape, more: int = 0) -> Iterator[str]:
    rank = len(shape)
    wrong = [axis for axis in axes if not -max(rank, 1) <= axis < max(rank, 1) + more]
    if wrong:
        yield f"its {name} names {_shown(wrong)}, but its input has {rank} axes (shape {list(shape)})"


def _shown(values: Sequence[int]) -> str:
    return str(values[0]) if len(values) == 1 else str(list(values)) if len(values) < 16 else f"{len(values)} numbers"


def convolution(settings: Mapping[str, tuple[int, ...]], shapes: Shapes) -> Iterator[str]:
    """Every filter reads the channels of its group; a stride, a dilation and two pads for each axis of space."""
    x, w = shapes[0], shapes[1] if len(shapes) > 1 else None
    if x is None or w is None or len(x) < 3 or len(w) != len(x):
        return
    group = settings.get("group", (1,))[0]
    if x[1] != w[1] * group or w[0] % group:
        yield (
            f"its group is {group}, which doesn't fit {x[1]} channels and filters of shape {list(w)} "
            "(each reads the channels of one group)"
        )
    yield from _bias(shapes, w[0])
    yield from _kernel(settings, w[2:])


def transposed_convolution(settings: Mapping[str, tuple[int, ...]], shapes: Shapes) -> Iterator[str]:
    """Every filter reads the channels of its group, and no more is added than a stride."""
    x, w = shapes[0], shapes[1] if len(shapes) > 1 else None
    if x is None or w is None or len(x) < 3 or len(w) != len(x):
        return
    group = settings.get("group", (1,))[0]
    if x[1] != w[0] or x[1] % group:
        yield f"its group is {group}, which doesn't fit {x[1]} channels and filters of shape {list(w)}"
    yield from _bias(shapes, w[1] * group)
    yield from _kernel(settings, w[2:])
    strides, dilations = (settings.get(name, ()) or (1,) * (len(w) - 2) for name in ("strides", "dilations"))
    added = settings.get("output_padding", ())
    if any(n >= max(step, dilation) for n, step, dilation in zip(added, strides, dilations, strict=False)):
        yield f"its output_padding is {list(added)}, but must be smaller than its strides {list(strides)} or dilations"


def _bias(shapes: Shapes, channels: int) -> Iterator[str]:
    bias = shapes[2] if len(shapes) > 2 else None
    if bias is not None and bias != (channels,):
        yield f"its bias has shape {list(bias)}, but its output has {channels} channels"


def _kernel(settings: Mapping[str, tuple[int, ...]], kernel: Shape) -> Iterator[str]:
    given = settings.get("kernel_shape", kernel)
    if given != kernel:
        yield f"its kernel_shape is {list(given)}, but its filters have shape {list(kernel)}"
    for name, factor in (("strides", 1), ("dilations", 1), ("pads", 2), ("output_padding", 1)):
        values = settings.get(name)
        if values and len(values) != factor * len(kernel):
            yield f"its {name} are {list(values)}, but there are {len(kernel)} axes of space"


def pool(settings: Mapping[str, tuple[int, ...]], shapes: Shapes) -> Iterator[str]:
    """A window that lies in the padding alone has no value."""
    kernel = settings.get("kernel_shape", ())
    pads = settings.get("pads", ())
    if len(pads) == 2 * len(kernel) and any(pad >= size for pad, size in zip(pads, (*kernel, *kernel), strict=True)):
        yield f"its pads {list(pads)} reach as far as its kernel_shape {list(kernel)}"


def layer_normalization(settings: Mapping[str, tuple[int, ...]], shapes: Shapes) -> Iterator[str]:
    """Scale and bias have the shape of what is normalized, or broadcast to it."""
    x = shapes[0]
    normalized = () if x is None else x[settings.get("axis", (-1,))[0] :]
    for shape, name in zip(shapes[1:3], ("scale", "bias"), strict=False):
        own = shape or ()
        tail = normalized[len(normalized) - len(own) :]
        if len(tail) < len(own) or any(size not in (1, most) for size, most in zip(own, tail, strict=True)):
            yield f"its {name} has shape {list(own)}, which doesn't fit the axes that it normalizes {list(normalized)}"


def _group_normalization(settings: Mapping[str, tuple[int, ...]], shapes: Shapes, opset: int) -> Iterator[str]:
    x, groups = shapes[0], settings.get("num_groups", (1,))[0]
    if x is None or len(x) < 2:
        return
    if x[1] % groups:
        yield f"its num_groups is {groups}, which doesn't divide {x[1]} channels"
    each, wanted = ("channel", x[1]) if opset >= GROUP_NORMALIZATION_BY_CHANNEL else ("group", groups)
    for shape, name in zip(shapes[1:3], ("scale", "bias"), strict=False):
        if shape is not None and shape != (wanted,):
            yield f"its {name} has shape {list(shape)}, but in opset {opset} must have one element a {each}: [{wanted}]"


def blocks(settings: Mapping[str, tuple[int, ...]], shapes: Shapes) -> Iterator[str]:
    """Channels can be cut into blocks."""
    x, size = shapes[0], settings.get("blocksize", (1,))[0]
    if x is not None and len(x) == 4 and x[1] % (size * size):
        yield f"its blocksize is {size}, but {x[1]} channels can't be cut into {size * size} parts"


def local_response(settings: Mapping[str, tuple[int, ...]], shapes: Shapes) -> Iterator[str]:
    """The window around a channel has a middle."""
    size = settings.get("size", (1,))[0]
    if size % 2 == 0:
        yield f"its size is {size}, but the window around a channel has an odd number of them"


def recurrent(settings: Mapping[str, tuple[int, ...]], shapes: Shapes) -> Iterator[str]:
    """The hidden size is that of the recurrent weight."""
    r, hidden = shapes[2] if len(shapes) > 2 else None, settings.get("hidden_size")
    if r is not None and hidden and r[-1:] != hidden:
        yield f"its hidden_size is {hidden[0]}, but its recurrent weight has shape {list(r)}"


def attention(settings: Mapping[str, tuple[int, ...]], shapes: Shapes) -> Iterator[str]:
    """Heads divide columns."""
    heads = [settings.get(name, (0,))[0] for name in ("q_num_heads", "kv_num_heads", "kv_num_heads")]
    for shape, count, letter in zip(shapes, heads, "QKV", strict=False):
        if shape is not None and len(shape) == 3 and (not count or shape[2] % count):
            name = f"{'q' if letter == 'Q' else 'kv'}_num_heads"
            yield f"its {name} is {count or 'not given'}, which doesn't divide the {shape[2]} columns of {letter}"


def rotary(settings: Mapping[str, tuple[int, ...]], shapes: Shapes) -> Iterator[str]:
    """Heads divide columns, and what is turned fits into a head."""
    x = shapes[0]
    if x is None or len(x) not in (3, 4):
        return
    heads, size = settings.get("num_heads", (0,))[0], settings.get("rotary_embedding_dim", (0,))[0]
    if len(x) == 3 and (not heads or x[2] % heads):
        yield f"its num_heads is {heads}, which doesn't divide the {x[2]} columns of its input"
    width = x[3] if len(x) == 4 else x[2] // max(heads, 1)
    if size > width or size % 2:
        yield f"its rotary_embedding_dim is {size}, but must be even and at most the {width} columns of a head"


def gather_nd(settings: Mapping[str, tuple[int, ...]], shapes: Shapes) -> Iterator[str]:
    """Batch axes are fewer than all axes."""
    ranks = [len(shape) for shape in shapes[:2] if shape is not None]
    batch = settings.get("batch_dims", (0,))[0]
    if ranks and batch >= min(ranks):
        yield f"its batch_dims is {batch}, but its inputs have {' and '.join(map(str, ranks))} axes"


MOST_AXES = 64
"""Of a tensor; numpy has no more."""


def check_operands(at: str, node: NodeProto, shapes: Shapes, constants: Mapping[str, Array]) -> None:
    """Raise `ModelError`, naming the node (`at`), where its operands don't fit each other.

    `shapes` are those of its inputs, `constants` the values of those that are known.
    """
    op = op_of(node.op_type)
    for place in op.lists:
        shape = shapes[place] if place < len(shapes) else None
        if shape is not None and len(shape) > 1:
            raise ModelError(
                f"{at}: its operand {node.input[place]!r} has shape {list(shape)}, but must be a number or a list of "
                "them; export the model again"
            )
        if shape is not None and node.op_type != "Split" and math.prod(shape) > 2 * MOST_AXES:
            raise ModelError(
                f"{at}: its operand {node.input[place]!r} has {math.prod(shape)} elements, and no tensor has more than "
                f"{MOST_AXES} axes; the file is damaged or was exported wrongly, export it again"
            )
    check = op.operands_check
    if check is None or not shapes or shapes[0] is None:
        return
    if check is loss and shapes[1] == shapes[0]:
        raise ModelError(
            f"{at}: its labels have the shape {_list(shapes[1])} of its scores: they are probabilities of classes, "
            "which this op doesn't take, though PyTorch's exporters write it; have the module compute the loss as "
            "-(target * scores.log_softmax(1)).sum(1).mean(), and export it again"
        )
    for problem in check(node, shapes[0], shapes, constants):
        raise ModelError(f"{at}: {problem}; the file is damaged or was exported wrongly, export it again")


def loss(node: NodeProto, x: Shape, shapes: Shapes, constants: Mapping[str, Array]) -> Iterator[str]:
    """Labels fit scores, and weights classes."""
    labels, weights = shapes[1], shapes[2] if len(shapes) > 2 else None
    if len(x) < 2 or labels != (x[0], *x[2:]):
        yield f"its labels have shape {_list(labels)}, which isn't that of its scores {list(x)} without the classes"
    elif 0 in x:
        yield f"its scores have shape {list(x)}: of nothing there is no loss"
    elif weights is not None and (len(weights) != 1 or weights[0] < x[1]):
        yield f"its weights have shape {list(weights)}, but there are {x[1]} classes"


def instance_normalization(node: NodeProto, x: Shape, shapes: Shapes, constants: Mapping[str, Array]) -> Iterator[str]:
    """Scale and bias have an element a channel."""
    for shape, name in zip(shapes[1:3], ("scale", "bias"), strict=False):
        if len(x) > 1 and shape != (x[1],):
            yield f"its {name} has shape {_list(shape)}, but its input has {x[1]} channels"


def elements(node: NodeProto, x: Shape, shapes: Shapes, constants: Mapping[str, Array]) -> Iterator[str]:
    """GatherElements and ScatterElements: a place for each element, within the data but for the axis."""
    places = shapes[1]
    if places is None:
        return
    axis = attribute_int(node, "axis", 0) % max(len(x), 1)
    if not x or len(places) != len(x) or any(n > x[k] for k, n in enumerate(places) if k != axis):
        yield f"its indices have shape {list(places)}, which doesn't lie within its data {list(x)}"
        return
    updates = shapes[2] if len(shapes) > 2 else places
    if updates != places:
        yield f"its updates have shape {_list(updates)}, but its indices {list(places)}"
    yield from _within(node, constants, x[axis])


def gather(node: NodeProto, x: Shape, shapes: Shapes, constants: Mapping[str, Array]) -> Iterator[str]:
    """Indices lie on the axis."""
    if x:
        yield from _within(node, constants, x[attribute_int(node, "axis", 0)])


def scatter_nd(node: NodeProto, x: Shape, shapes: Shapes, constants: Mapping[str, Array]) -> Iterator[str]:
    """Updates fit indices and data."""
    places, updates = shapes[1], shapes[2] if len(shapes) > 2 else None
    if not places:
        return
    if places[-1] > len(x) or updates != (*places[:-1], *x[places[-1] :]):
        yield (
            f"its updates have shape {_list(updates)}, which doesn't fit its indices {list(places)} and its data "
            f"{list(x)}"
        )
        return
    yield from _all_within(node, constants, x)


def divisor(node: NodeProto, x: Shape, shapes: Shapes, constants: Mapping[str, Array]) -> Iterator[str]:
    """Whole numbers aren't divided by 0, which ends a process."""
    known = constants.get(node.input[1])
    if known is not None and known.dtype.kind in "iu" and not known.all():
        yield "it divides whole numbers by 0"


def gather_nd_indices(node: NodeProto, x: Shape, shapes: Shapes, constants: Mapping[str, Array]) -> Iterator[str]:
    """Indices lie on the axes behind those of the batch."""
    yield from _all_within(node, constants, x[attribute_int(node, "batch_dims", 0) :])


def einsum(node: NodeProto, x: Shape, shapes: Shapes, constants: Mapping[str, Array]) -> Iterator[str]:
    """A letter has one size; that of an operand may be 1, as in any broadcast."""
    equation = _equation(node) or ""
    sizes: dict[str, int] = {}
    for term, shape in zip(equation.partition("->")[0].split(","), shapes, strict=False):
        before, dots, after = term.partition("...")
        if shape is None or (len(term) != len(shape) if not dots else len(before) + len(after) > len(shape)):
            continue
        own: dict[str, int] = {}
        for letter, size in (*zip(before, shape, strict=False), *zip(after[::-1], shape[::-1], strict=False)):
            if own.setdefault(letter, size) != size:
                yield f"its axis {letter!r} ({equation}) is of {own[letter]} and of {size} elements in one operand"
        for letter, size in own.items():
            other = sizes.get(letter, size)
            if other != size and 1 not in (other, size):
                yield f"its axis {letter!r} ({equation}) is of {other} and of {size} elements"
            sizes[letter] = max(other, size)


def _all_within(node: NodeProto, constants: Mapping[str, Array], sizes: Sequence[int]) -> Iterator[str]:
    """Check known indices whose last axis counts axes of those sizes."""
    known = constants.get(node.input[1])
    if known is not None and known.ndim and known.shape[-1] <= len(sizes):
        for k, size in enumerate(sizes[: known.shape[-1]]):
            yield from _on_axis(known[..., k], size)


def _within(node: NodeProto, constants: Mapping[str, Array], size: int) -> Iterator[str]:
    """Check known indices of one axis of that size."""
    yield from _on_axis(constants.get(node.input[1]), size)


def _on_axis(known: Array | None, size: int) -> Iterator[str]:
    """Indices lie on an axis of that size; negative ones count from its end."""
    if known is not None and known.size and not (-size <= int(known.min()) and int(known.max()) < size):
        wrong = int(known.max()) if int(known.max()) >= size else int(known.min())
        yield f"it reads or writes index {wrong} of an axis of {size} elements"


def dequantize(node: NodeProto, x: Shape, shapes: Shapes, constants: Mapping[str, Array]) -> Iterator[str]:
    """Scales fit the axis or the blocks and are finite; zero points have the shape of the scales."""
    scale, zero = shapes[1] or (), shapes[2] if len(shapes) > 2 else None
    try:
        sharing(x, scale, attribute_int(node, "axis", 1), attribute_int(node, "block_size", 0))
    except ValueError as error:
        yield str(error)
    if zero is not None and zero != scale:
        yield f"its zero point has shape {list(zero)}, but its scale {list(scale)}"
    factors = constants.get(node.input[1])
    if factors is not None and not np.isfinite(factors.astype(np.float64)).all():
        yield "its scale has NaN or infinite values"


def _list(shape: Shape | None) -> str:
    return "nothing" if shape is None else str(list(shape))
