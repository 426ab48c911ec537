"""Turn inputs with a given value into constants, which also decides the branches of an If.

A message about a condition or a shape that inputs decide names the `--value` option that would fix it.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from poetopt.frontends.read import Document, stored
from poetopt.frontends.reading import ReadOptions, Sizes, Value, shape_text
from poetopt.frontends.sizes import Dims, input_dims, no_such_input
from poetopt.ops.op import op_of
from poetopt.util.errors import OptionError

if TYPE_CHECKING:
    from poetopt.graph import Array


FEW = 16
"""Largest length of a list of integers that can be a setting; longer ones, higher ranks and floats are data."""

_COMPARISONS = frozenset({"Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"})

_INTEGERS = frozenset({
    TensorProto.BOOL, TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64,
    TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64,
})  # fmt: skip

Lookup = Callable[[str], NDArray[np.generic] | None]


def is_setting(elem: int, dims: Sequence[int]) -> bool:
    """Return whether an input of this type and shape can be a setting; a size below 1 is unknown."""
    return elem in _INTEGERS and len(dims) < 2 and all(size <= FEW for size in dims)


def value_options(
    nodes: Iterable[NodeProto], inputs: Mapping[str, bool], constant: Lookup, names: Iterable[str]
) -> str:
    """Return the options that would decide `names`, such as `--value sr=16000`; "" if data decides.

    The value is one that the file compares the input with, else `...`.

    Parameters
    ----------
    inputs
        Inputs of the graph, and whether each can be a setting.
    constant
        Returns the value of a constant tensor, else None.
    """
    producers = {output: node for node in nodes for output in node.output if output}
    options: dict[str, str] = {}
    seen: set[str] = set()
    todo = list(names)
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in inputs:
            if not inputs[name]:
                return ""
            options.setdefault(name, "...")
        node = producers.get(name)
        if node is None or op_of(node.op_type).asks_shape:
            continue
        todo.extend(filter(None, node.input))
        if node.op_type not in _COMPARISONS or len(node.input) != 2:
            continue
        for compared, other in (node.input, reversed(node.input)):
            value = constant(other)
            if compared in inputs and value is not None and value.size == 1 and value.dtype.kind in "iufb":
                options[compared] = str(value.reshape(-1)[0])
    return " ".join(f"--value {shlex.quote(name)}={value}" for name, value in options.items())


def deciding(document: Document, name: str) -> str:
    """Return `value_options` for one tensor of a file."""
    graph = document.proto.graph
    inputs = {}
    for info in graph.input:
        tensor = info.type.tensor_type
        inputs[info.name] = is_setting(tensor.elem_type, [dim.dim_value for dim in tensor.shape.dim])
    return value_options(graph.node, inputs, partial(stored, document), [name])


def fix_values(document: Document, options: ReadOptions) -> tuple[ReadOptions, list[str]]:
    """Turn inputs of `document` into constants; return the remaining options, and a note for each input.

    Raise `OptionError` for an unknown input, or a value that it can't have.
    """
    if not options.values:
        return options, []
    inputs = document.proto.graph.input
    dims = {info.name: input_dims(document, info, options) for info in inputs}
    notes = []
    for name, value in options.values:
        info = next((info for info in inputs if info.name == name), None)
        if info is None:
            raise OptionError(f"{document.where}: --value {name}: {no_such_input(name, dims)}")
        array = _constant_of(f"{document.where}: --value {name}={_shown(value)}", info, dims[name], value, options)
        document.weights[name] = numpy_helper.from_array(array, name)
        document.given.add(name)
        notes.append(f"fixed the input {name!r} at {_shown(value)}")
    kept = [info for info in inputs if info.name not in document.given]
    del inputs[:]
    inputs.extend(kept)
    kept_symbols = {dim for name, shape in dims.items() if name not in document.given for dim in shape}
    removed_symbols = {dim for name, shape in dims.items() if name in document.given for dim in shape} - kept_symbols
    return (
        replace(
            options,
            dims=tuple((name, size) for name, size in options.dims if name not in removed_symbols),
            shapes=tuple((name, sizes) for name, sizes in options.shapes if name not in document.given),
        ),
        notes,
    )


def _constant_of(what: str, info: onnx.ValueInfoProto, dims: Dims, value: Value, options: ReadOptions) -> Array:
    """Return `value` in the type and the shape of an input."""
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type))
    try:
        raw = np.asarray(value)
        array = raw.astype(dtype)
    except (ValueError, OverflowError):
        raise OptionError(
            f"{what}: not an array of {dtype.name}. Give a number, or a list of equally long lists"
        ) from None
    is_integer = dtype.kind in "iub"
    if raw.dtype.kind not in "iufb" or (is_integer and not np.array_equal(array, raw)) or not np.isfinite(array).all():
        raise OptionError(f"{what}: the input's type {dtype.name} can't hold this value. Give another")
    shape = _known_shape(dims, dict(options.shapes).get(info.name), options)
    if not array.ndim and dims:
        sizes = [size for size in shape if size is not None]
        if len(sizes) < len(dims):
            shape_option = f"--shape {info.name}={shape_text(shape)}"
            raise OptionError(f"{what}: its shape {dims} is open. Give its values as a list, or {shape_option} too")
        # the constant is stored entirely, though one number fills it
        if math.prod(sizes) * dtype.itemsize > 2**24:
            raise OptionError(f"{what}: an input of shape {sizes} is too large to become a constant. Leave --value out")
        return np.full(tuple(sizes), array)
    has_shape = array.ndim == len(dims) and all(size in (None, n) for size, n in zip(shape, array.shape, strict=True))
    if not has_shape:
        raise OptionError(f"{what}: the input has shape {dims}, and this value {list(array.shape)}. Give another")
    return array


def _known_shape(dims: Dims, requested: Sizes | None, options: ReadOptions) -> Sizes:
    named = dict(options.dims)
    shape = tuple(dim if isinstance(dim, int) else named.get(dim) for dim in dims)
    if requested is None or len(requested) != len(dims):
        return shape
    return tuple(size if size is not None else declared for size, declared in zip(requested, shape, strict=True))


def _shown(value: Value) -> str:
    text = str(value).replace("(", "[").replace(",)", "]").replace(")", "]")
    return text if len(text) < 60 else f"{text[:56]}..."
