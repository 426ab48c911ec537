"""Inputs whose value is said become constants: they vanish, and with them the branches of an If that aren't taken."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import helper, numpy_helper

from poetopt.frontends.batch import input_dims
from poetopt.frontends.read import Document
from poetopt.frontends.reading import ReadOptions, Sizes, Value, shape_text
from poetopt.frontends.sizes import Dims, no_such_input
from poetopt.util.errors import OptionError

if TYPE_CHECKING:
    from poetopt.graph import Array

LARGEST_BYTES = 2**24
"""Of an input that one number fills."""


def fix_values(document: Document, options: ReadOptions) -> tuple[ReadOptions, list[str]]:
    """Turn inputs of `document` into constants; what is left of `options`, and a note for each.

    Raises `OptionError` for an input that isn't there, or a value that it can't have.
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
        array = _array(f"{document.where}: --value {name}={_shown(value)}", info, dims[name], value, options)
        document.weights[name] = numpy_helper.from_array(array, name)
        document.given.add(name)
        notes.append(f"input {name!r} fixed at {_shown(value)}")
    kept = [info for info in inputs if info.name not in document.given]
    del inputs[:]
    inputs.extend(kept)
    left = {dim for name, shape in dims.items() if name not in document.given for dim in shape}
    gone = {dim for name, shape in dims.items() if name in document.given for dim in shape} - left
    return (
        replace(
            options,
            dims=tuple((name, size) for name, size in options.dims if name not in gone),
            shapes=tuple((name, sizes) for name, sizes in options.shapes if name not in document.given),
        ),
        notes,
    )


def _array(what: str, info: onnx.ValueInfoProto, dims: Dims, value: Value, options: ReadOptions) -> Array:
    """`value` in the type and the shape of an input."""
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type))
    try:
        given = np.asarray(value)
        array = given.astype(dtype)
    except (ValueError, OverflowError):
        raise OptionError(
            f"{what}: not an array of {dtype.name}; give a number, or a list of equally long lists"
        ) from None
    exact = dtype.kind in "iub"
    if given.dtype.kind not in "iufb" or (exact and not np.array_equal(array, given)) or not np.isfinite(array).all():
        raise OptionError(f"{what}: the input takes {dtype.name}, which can't hold that")
    shape = _known(dims, dict(options.shapes).get(info.name), options)
    if not array.ndim and dims:
        sizes = [size for size in shape if size is not None]
        if len(sizes) < len(dims):
            say = f"--shape {info.name}={shape_text(shape)}"
            raise OptionError(f"{what}: the input's shape {dims} is open; give its values as a list, or {say} too")
        if math.prod(sizes) * dtype.itemsize > LARGEST_BYTES:
            raise OptionError(f"{what}: an input of shape {sizes} is too large to become a constant")
        return np.full(tuple(sizes), array)
    fits = array.ndim == len(dims) and all(size in (None, n) for size, n in zip(shape, array.shape, strict=True))
    if not fits:
        raise OptionError(f"{what}: the input has shape {dims}, and this value {list(array.shape)}")
    return array


def _known(dims: Dims, asked: Sizes | None, options: ReadOptions) -> Sizes:
    named = dict(options.dims)
    shape = tuple(dim if isinstance(dim, int) else named.get(dim) for dim in dims)
    if asked is None or len(asked) != len(dims):
        return shape
    return tuple(size if size is not None else known for size, known in zip(asked, shape, strict=True))


def _shown(value: Value) -> str:
    text = str(value).replace("(", "[").replace(",)", "]").replace(")", "]")
    return text if len(text) < 60 else f"{text[:56]}..."
