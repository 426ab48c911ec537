"""Checks of a node: existing axes, groups that divide the channels, positive sizes, operands that fit each other.

ONNX's shape inference reads only the settings that decide a shape, and accepts others that no runtime loads, or that a
runtime divides by. This module checks settings against the rank and the shape of the operands, as the op's declaration
demands. Other settings and operands are arbitrary, or shape inference checks them.
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

if TYPE_CHECKING:  # ops declare checks, and executing a plan imports ops, but must not import onnx
    from onnx import AttributeProto, NodeProto

    from poetopt.graph import Array


Shape = tuple[int, ...]
Shapes = Sequence[Shape | None]
"""Shapes of the inputs of a node, by position; None for an omitted input."""


GROUP_NORMALIZATION_BY_CHANNEL = 21
"""First opset in which scale and bias of GroupNormalization have one element per channel, not per group."""


def check_attributes(at: str, node: NodeProto, shapes: Shapes, constants: Mapping[str, Array], opset: int) -> None:
    """Raise `ModelError`, naming the node (`at`) and the setting, if a setting of `node` is invalid.

    `shapes` are those of its inputs, `constants` the known values of inputs.
    """
    check_settings(at, node)
    for problem in _problems(node, _settings(node), shapes, constants, opset):
        raise ModelError(f"{at}: {problem}. The file is damaged or was exported wrongly: export it again")


def check_settings(at: str, node: NodeProto) -> None:
    """Raise `ModelError`, naming the node (`at`), if a setting of `node` is invalid for all operands."""
    for problem in _invalid_settings(node):
        raise ModelError(f"{at}: {problem}. The file is damaged or was exported wrongly: export it again")


def _settings(node: NodeProto) -> Mapping[str, tuple[int, ...]]:
    return {a.name: _integers(a) for a in node.attribute if a.type in (a.INT, a.INTS)}


def check_types(at: str, node: NodeProto, types: Sequence[int], opset: int) -> None:
    """Raise `ModelError`, naming the node (`at`), if its operator doesn't support inputs of these element types.

    `types` are ONNX element types by position; 0 for an omitted input.
    """
    formal = _input_types(node.op_type, opset)
    bound: dict[str, int] = {}
    for position, elem in enumerate(types):
        if not elem or not formal:
            continue
        allowed, variable = formal[min(position, len(formal) - 1)]
        shown = f"{at}: its input {node.input[position]!r} is of type {_type_name(elem)}"
        if elem not in allowed:
            names = ", ".join(sorted(map(_type_name, allowed)))
            raise ModelError(
                f"{shown}, which this operator doesn't support (it supports {names}). Export the model again"
            )
        if variable and bound.setdefault(variable, elem) != elem:
            raise ModelError(
                f"{shown}, but another one of {_type_name(bound[variable])}, and this operator needs equal types. "
                "Export the model again"
            )


@cache
def _input_types(op: str, opset: int) -> Sequence[tuple[frozenset[int], str]]:
    """Return the allowed element types of each input, and a type variable if several inputs share their type."""
    from onnx import defs

    types = []
    for formal in defs.get_schema(op, opset).inputs:
        names = {text.removeprefix("tensor(").removesuffix(")") for text in formal.types}
        elems = frozenset(elem for name, elem in _elem_types().items() if name in names)
        is_free = formal.option == defs.OpSchema.FormalParameterOption.Variadic and not formal.is_homogeneous
        types.append((elems, "" if is_free else formal.type_str))
    return types


@cache
def _elem_types() -> Mapping[str, int]:
    """Return ONNX element types by their names in schemas."""
    from onnx import TensorProto

    return {name.lower(): elem for name, elem in TensorProto.DataType.items() if elem}


def _type_name(elem: int) -> str:
    return next((name for name, number in _elem_types().items() if number == elem), str(elem))


def check_window(at: str, node: NodeProto, shapes: Shapes, results: Sequence[Shape]) -> None:
    """Raise `ModelError` if the window of a convolution or a pool is larger than its padded input."""
    if not op_of(node.op_type).window or not shapes or shapes[0] is None or 0 in shapes[0]:
        return
    if any(0 in result for result in results):
        raise ModelError(
            f"{at}: its window (kernel_shape, dilations) is larger than its padded input of shape {list(shapes[0])}: "
            f"its output would have shape {list(results[0])}. Give a larger input, or export the model with one"
        )


def attribute_int(node: NodeProto, name: str, default: int) -> int:
    """Return an integer attribute of `node`."""
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
    """Yield the problems of `node`, the worst first."""
    op = op_of(node.op_type)
    data = shapes[0] if shapes else None
    if data is None:
        return
    if op.axis is not None:
        yield from _axes_problem("axis", settings.get("axis", ()), data, more=op.axis)
    if (axes_input := op.axes) is not None:
        name = node.input[axes_input] if 0 < axes_input < len(node.input) else ""
        axes = [int(axis) for axis in constants[name].reshape(-1)] if name in constants else settings.get("axes", ())
        yield from _axes_problem("axes", axes, data)
    if node.op_type == "OneHot":
        yield from _axes_problem("axis", settings.get("axis", ()), (*data, 0))
    if node.op_type == "GroupNormalization":
        yield from _group_normalization(settings, shapes, opset)
    if op.settings_check is not None:
        yield from op.settings_check(settings, shapes)


def _invalid_settings(node: NodeProto) -> Iterator[str]:
    """Yield settings that are always invalid: ONNX's inference may count to such numbers, or loop on an equation."""
    op, settings = node.op_type, _settings(node)
    texts = {a.name: a.s.decode(errors="replace") for a in node.attribute if a.type == a.STRING}
    for name, allowed in op_of(op).attributes.items():
        values = settings.get(name, ())
        if isinstance(allowed, tuple):
            if (name in settings and not (values and values[0] in allowed)) or texts.get(
                name, allowed[0]
            ) not in allowed:
                shown = _shorten(texts[name]) if name in texts else _numbers_text(values)
                yield f"its {name} is {shown}, but must be {' or '.join(map(str, filter(None, allowed)))}"
        # runtimes keep counts in 32 bits
        elif not all(allowed <= value < 2**31 for value in values):
            yield f"its {name} is {_numbers_text(values)}, but must be at least {allowed} and fit into 32 bits"
    part_count = settings.get("num_outputs")
    if op == "Split" and part_count is not None and part_count != (len(node.output),):
        yield f"its num_outputs is {_numbers_text(part_count)}, but it has {len(node.output)} outputs"
    if op == "Einsum" and (equation := _equation(node)) is not None:
        terms, _, result = equation.partition("->")
        term = r"[A-Za-z]*(\.\.\.)?[A-Za-z]*"
        if not re.fullmatch(rf"{term}(,{term})*(->{term})?", equation) or not set(result) <= {*terms, "."}:
            yield (
                f"its equation {_shorten(equation)} must have letters for axes, at most one '...' per operand, commas "
                "between operands, and '->' before the result"
            )
        elif terms.count(",") + 1 != len(node.input):
            yield f"its equation {_shorten(equation)} has {terms.count(',') + 1} operands, but it has {len(node.input)}"


def _equation(node: NodeProto) -> str | None:
    texts = (a.s.decode(errors="replace") for a in node.attribute if a.name == "equation")
    return next((text.replace(" ", "") for text in texts), None)


def _shorten(text: str) -> str:
    return repr(text if len(text) <= 64 else text[:60] + "...")


def _axes_problem(name: str, axes: Iterable[int], shape: Shape, more: int = 0) -> Iterator[str]:
    rank = len(shape)
    wrong = [axis for axis in axes if not -max(rank, 1) <= axis < max(rank, 1) + more]
    if wrong:
        yield f"its {name} names {_numbers_text(wrong)}, but its input has {rank} axes (shape {list(shape)})"


def _numbers_text(values: Sequence[int]) -> str:
    return str(values[0]) if len(values) == 1 else str(list(values)) if len(values) < 16 else f"{len(values)} numbers"


def convolution(settings: Mapping[str, tuple[int, ...]], shapes: Shapes) -> Iterator[str]:
    """Yield problems of a convolution: channels of groups, one stride, dilation and two pads per spatial axis."""
    x, w = shapes[0], shapes[1] if len(shapes) > 1 else None
    if x is None or w is None or len(x) < 3 or len(w) != len(x):
        return
    group = settings.get("group", (1,))[0]
    if x[1] != w[1] * group or w[0] % group:
        yield (
            f"its group is {group}, which doesn't fit {x[1]} channels and filters of shape {list(w)} "
            "(each reads the channels of one group)"
        )
    yield from _check_bias(shapes, w[0])
    yield from _check_kernel(settings, w[2:])


def transposed_convolution(settings: Mapping[str, tuple[int, ...]], shapes: Shapes) -> Iterator[str]:
    """Yield problems of a transposed convolution: channels of groups, output padding below stride or dilation."""
    x, w = shapes[0], shapes[1] if len(shapes) > 1 else None
    if x is None or w is None or len(x) < 3 or len(w) != len(x):
        return
    group = settings.get("group", (1,))[0]
    if x[1] != w[0] or x[1] % group:
        yield f"its group is {group}, which doesn't fit {x[1]} channels and filters of shape {list(w)}"
    yield from _check_bias(shapes, w[1] * group)
    yield from _check_kernel(settings, w[2:])
    strides, dilations = (settings.get(name, ()) or (1,) * (len(w) - 2) for name in ("strides", "dilations"))
    added = settings.get("output_padding", ())
    if any(n >= max(step, dilation) for n, step, dilation in zip(added, strides, dilations, strict=False)):
        yield f"its output_padding is {list(added)}, but must be smaller than its strides {list(strides)} or dilations"


def _check_bias(shapes: Shapes, channels: int) -> Iterator[str]:
    bias = shapes[2] if len(shapes) > 2 else None
    if bias is not None and bias != (channels,):
        yield f"its bias has shape {list(bias)}, but its output has {channels} channels"


def _check_kernel(settings: Mapping[str, tuple[int, ...]], kernel: Shape) -> Iterator[str]:
    kernel_shape = settings.get("kernel_shape", kernel)
    if kernel_shape != kernel:
        yield f"its kernel_shape is {list(kernel_shape)}, but its filters have shape {list(kernel)}"
    for name, factor in (("strides", 1), ("dilations", 1), ("pads", 2), ("output_padding", 1)):
        values = settings.get(name)
        if values and len(values) != factor * len(kernel):
            yield f"its {name} are {list(values)}, but there are {len(kernel)} spatial axes"


def pool(settings: Mapping[str, tuple[int, ...]], shapes: Shapes) -> Iterator[str]:
    """Yield problems of a pool: a window inside the padding has no value."""
    kernel = settings.get("kernel_shape", ())
    pads = settings.get("pads", ())
    if len(pads) == 2 * len(kernel) and any(pad >= size for pad, size in zip(pads, (*kernel, *kernel), strict=True)):
        yield f"its pads {list(pads)} reach as far as its kernel_shape {list(kernel)}"


def layer_normalization(settings: Mapping[str, tuple[int, ...]], shapes: Shapes) -> Iterator[str]:
    """Yield problems of LayerNormalization: scale and bias must broadcast to the normalized axes."""
    x = shapes[0]
    normalized = () if x is None else x[settings.get("axis", (-1,))[0] :]
    for shape, name in zip(shapes[1:3], ("scale", "bias"), strict=False):
        dims = shape or ()
        tail = normalized[len(normalized) - len(dims) :]
        if len(tail) < len(dims) or any(size not in (1, full) for size, full in zip(dims, tail, strict=True)):
            yield f"its {name} has shape {list(dims)}, which doesn't fit the axes that it normalizes {list(normalized)}"


def _group_normalization(settings: Mapping[str, tuple[int, ...]], shapes: Shapes, opset: int) -> Iterator[str]:
    x, groups = shapes[0], settings.get("num_groups", (1,))[0]
    if x is None or len(x) < 2:
        return
    if x[1] % groups:
        yield f"its num_groups is {groups}, which doesn't divide {x[1]} channels"
    unit, size = ("channel", x[1]) if opset >= GROUP_NORMALIZATION_BY_CHANNEL else ("group", groups)
    for shape, name in zip(shapes[1:3], ("scale", "bias"), strict=False):
        if shape is not None and shape != (size,):
            yield f"its {name} has shape {list(shape)}, but opset {opset} needs one element per {unit}: [{size}]"


def blocks(settings: Mapping[str, tuple[int, ...]], shapes: Shapes) -> Iterator[str]:
    """Yield problems of DepthToSpace: the blocks must divide the channels."""
    x, size = shapes[0], settings.get("blocksize", (1,))[0]
    if x is not None and len(x) == 4 and x[1] % (size * size):
        yield f"its blocksize is {size}, but {x[1]} channels can't be split into {size * size} parts"


def local_response(settings: Mapping[str, tuple[int, ...]], shapes: Shapes) -> Iterator[str]:
    """Yield problems of LRN: the window around a channel must have an odd size."""
    size = settings.get("size", (1,))[0]
    if size % 2 == 0:
        yield f"its size is {size}, but the window around a channel must have an odd size"


def recurrent(settings: Mapping[str, tuple[int, ...]], shapes: Shapes) -> Iterator[str]:
    """Yield problems of recurrent layers: the hidden size must be that of the recurrent weight."""
    r, hidden = shapes[2] if len(shapes) > 2 else None, settings.get("hidden_size")
    if r is not None and hidden and r[-1:] != hidden:
        yield f"its hidden_size is {hidden[0]}, but its recurrent weight has shape {list(r)}"


def attention(settings: Mapping[str, tuple[int, ...]], shapes: Shapes) -> Iterator[str]:
    """Yield problems of attention: the number of heads must divide the columns."""
    heads = [settings.get(name, (0,))[0] for name in ("q_num_heads", "kv_num_heads", "kv_num_heads")]
    for shape, count, letter in zip(shapes, heads, "QKV", strict=False):
        if shape is not None and len(shape) == 3 and (not count or shape[2] % count):
            name = f"{'q' if letter == 'Q' else 'kv'}_num_heads"
            yield f"its {name} is {count or 'not given'}, which doesn't divide the {shape[2]} columns of {letter}"


def rotary(settings: Mapping[str, tuple[int, ...]], shapes: Shapes) -> Iterator[str]:
    """Yield problems of RotaryEmbedding: heads must divide the columns, and the rotated part must fit a head."""
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
    """Yield problems of GatherND: there must be fewer batch axes than axes."""
    ranks = [len(shape) for shape in shapes[:2] if shape is not None]
    batch = settings.get("batch_dims", (0,))[0]
    if ranks and batch >= min(ranks):
        yield f"its batch_dims is {batch}, but its inputs have {' and '.join(map(str, ranks))} axes"


MOST_AXES = 64
"""Limit of axes of a tensor, as numpy's."""


def check_operands(at: str, node: NodeProto, shapes: Shapes, constants: Mapping[str, Array]) -> None:
    """Raise `ModelError`, naming the node (`at`), if its operands don't fit each other.

    `shapes` are those of its inputs, `constants` the known values of inputs.
    """
    op = op_of(node.op_type)
    for index in op.lists:
        shape = shapes[index] if index < len(shapes) else None
        if shape is not None and len(shape) > 1:
            raise ModelError(
                f"{at}: its operand {node.input[index]!r} has shape {list(shape)}, but must be a scalar or a list. "
                "Export the model again"
            )
        if shape is not None and node.op_type != "Split" and math.prod(shape) > 2 * MOST_AXES:
            raise ModelError(
                f"{at}: its operand {node.input[index]!r} has {math.prod(shape)} elements, and no tensor has more than "
                f"{MOST_AXES} axes. The file is damaged or was exported wrongly: export it again"
            )
    check = op.operands_check
    if check is None or not shapes or shapes[0] is None:
        return
    if check is loss and shapes[1] == shapes[0]:
        raise ModelError(
            f"{at}: its labels have the shape {_shape_text(shapes[1])} of its scores: they are class probabilities, "
            "which this op doesn't support, though PyTorch's exporters write it. Let the module compute the loss as "
            "-(target * scores.log_softmax(1)).sum(1).mean(), and export it again"
        )
    for problem in check(node, shapes[0], shapes, constants):
        raise ModelError(f"{at}: {problem}. The file is damaged or was exported wrongly: export it again")


def loss(node: NodeProto, x: Shape, shapes: Shapes, constants: Mapping[str, Array]) -> Iterator[str]:
    """Yield problems of losses: labels must fit the scores, and weights the classes."""
    labels, weights = shapes[1], shapes[2] if len(shapes) > 2 else None
    if len(x) < 2 or labels != (x[0], *x[2:]):
        yield f"its labels have shape {_shape_text(labels)}, not that of its scores {list(x)} without classes"
    elif 0 in x:
        yield f"its scores have shape {list(x)}, but a loss needs elements"
    elif weights is not None and (len(weights) != 1 or weights[0] < x[1]):
        yield f"its weights have shape {list(weights)}, but there are {x[1]} classes"


def instance_normalization(node: NodeProto, x: Shape, shapes: Shapes, constants: Mapping[str, Array]) -> Iterator[str]:
    """Yield problems of InstanceNormalization: scale and bias must have one element per channel."""
    for shape, name in zip(shapes[1:3], ("scale", "bias"), strict=False):
        if len(x) > 1 and shape != (x[1],):
            yield f"its {name} has shape {_shape_text(shape)}, but its input has {x[1]} channels"


def elements(node: NodeProto, x: Shape, shapes: Shapes, constants: Mapping[str, Array]) -> Iterator[str]:
    """Yield problems of GatherElements and ScatterElements: indices within the data, updates of their shape."""
    indices = shapes[1]
    if indices is None:
        return
    axis = attribute_int(node, "axis", 0) % max(len(x), 1)
    if not x or len(indices) != len(x) or any(n > x[k] for k, n in enumerate(indices) if k != axis):
        yield f"its indices have shape {list(indices)}, which doesn't lie within its data {list(x)}"
        return
    updates = shapes[2] if len(shapes) > 2 else indices
    if updates != indices:
        yield f"its updates have shape {_shape_text(updates)}, but its indices {list(indices)}"
    yield from _check_indices(node, constants, x[axis])


def gather(node: NodeProto, x: Shape, shapes: Shapes, constants: Mapping[str, Array]) -> Iterator[str]:
    """Yield problems of Gather: indices must lie on the axis."""
    if x:
        yield from _check_indices(node, constants, x[attribute_int(node, "axis", 0)])


def scatter_nd(node: NodeProto, x: Shape, shapes: Shapes, constants: Mapping[str, Array]) -> Iterator[str]:
    """Yield problems of ScatterND: updates must fit indices and data."""
    ids, updates = shapes[1], shapes[2] if len(shapes) > 2 else None
    if not ids:
        return
    if ids[-1] > len(x) or updates != (*ids[:-1], *x[ids[-1] :]):
        yield (
            f"its updates have shape {_shape_text(updates)}, which doesn't fit its indices {list(ids)} and its data "
            f"{list(x)}"
        )
        return
    yield from _check_nd_indices(node, constants, x)


def divisor(node: NodeProto, x: Shape, shapes: Shapes, constants: Mapping[str, Array]) -> Iterator[str]:
    """Yield problems of Div and Mod: an integer division by 0 would kill the process."""
    known = constants.get(node.input[1])
    if known is not None and known.dtype.kind in "iu" and not known.all():
        yield "it divides integers by 0"


def gather_nd_indices(node: NodeProto, x: Shape, shapes: Shapes, constants: Mapping[str, Array]) -> Iterator[str]:
    """Yield problems of GatherND: indices must lie on the axes after those of the batch."""
    yield from _check_nd_indices(node, constants, x[attribute_int(node, "batch_dims", 0) :])


def einsum(node: NodeProto, x: Shape, shapes: Shapes, constants: Mapping[str, Array]) -> Iterator[str]:
    """Yield problems of Einsum: a letter must have one size, or 1 in an operand that broadcasts."""
    equation = _equation(node) or ""
    sizes: dict[str, int] = {}
    for term, shape in zip(equation.partition("->")[0].split(","), shapes, strict=False):
        leading, dots, trailing = term.partition("...")
        if shape is None or (len(term) != len(shape) if not dots else len(leading) + len(trailing) > len(shape)):
            continue
        letters: dict[str, int] = {}
        for letter, size in (*zip(leading, shape, strict=False), *zip(trailing[::-1], shape[::-1], strict=False)):
            if letters.setdefault(letter, size) != size:
                yield f"its axis {letter!r} ({equation}) is of {letters[letter]} and of {size} elements in one operand"
        for letter, size in letters.items():
            other = sizes.get(letter, size)
            if other != size and 1 not in (other, size):
                yield f"its axis {letter!r} ({equation}) is of {other} and of {size} elements"
            sizes[letter] = max(other, size)


def _check_nd_indices(node: NodeProto, constants: Mapping[str, Array], sizes: Sequence[int]) -> Iterator[str]:
    """Check known indices whose last axis enumerates axes of these sizes."""
    known = constants.get(node.input[1])
    if known is not None and known.ndim and known.shape[-1] <= len(sizes):
        for k, size in enumerate(sizes[: known.shape[-1]]):
            yield from _check_on_axis(known[..., k], size)


def _check_indices(node: NodeProto, constants: Mapping[str, Array], size: int) -> Iterator[str]:
    """Check known indices of one axis of this size."""
    yield from _check_on_axis(constants.get(node.input[1]), size)


def _check_on_axis(known: Array | None, size: int) -> Iterator[str]:
    """Yield the problem if indices don't lie on an axis of this size; negative ones count from its end."""
    if known is not None and known.size and not (-size <= int(known.min()) and int(known.max()) < size):
        wrong = int(known.max()) if int(known.max()) >= size else int(known.min())
        yield f"it reads or writes index {wrong} of an axis of {size} elements"


def dequantize(node: NodeProto, x: Shape, shapes: Shapes, constants: Mapping[str, Array]) -> Iterator[str]:
    """Yield problems of DequantizeLinear: scales must fit the axis or blocks, be finite, and match the zero points."""
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


def _shape_text(shape: Shape | None) -> str:
    return "nothing" if shape is None else str(list(shape))
