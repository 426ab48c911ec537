"""Fix the batch: every input gets a static shape before anything is inferred from it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx

from poetopt.errors import ModelError, UnsupportedOpError
from poetopt.frontends.proto import dtype_name
from poetopt.frontends.read import Document, check_size

_BATCH_NAME = re.compile(r"^_?(n|b|bs|batch|batch_?size|batch_?dim|.*batch.*)$", re.IGNORECASE)

_MADE_UP = re.compile(r"^(unk__\d+|DynamicDimension\.\d+)$")
"""What TensorFlow's and Paddle's exporters call a size that has no name; each input has one of its own."""

Shape = tuple[int, ...]


@dataclass(frozen=True)
class FixedInputs:
    """Input types with static shapes.

    types
        ONNX element type and shape of each input, in order.
    changed
        Old and new batch where the file has a fixed batch and another was asked for, else None.
    symbol
        Name of the symbolic batch dimension that was fixed, or "".
    """

    types: Mapping[str, tuple[int, Shape]]
    changed: tuple[int, int] | None
    symbol: str


def _dims(document: Document, info: onnx.ValueInfoProto) -> list[int | str]:
    """The dims of an input: a positive size, or the name of a symbol (`?` where it has none)."""
    what = f"{document.where}: input {info.name!r}"
    kind = info.type.WhichOneof("value")
    if kind != "tensor_type":
        found = {"sequence_type": "a sequence", "map_type": "a map", "optional_type": "an optional"}.get(
            kind or "", "of an unknown type"
        )
        raise UnsupportedOpError(f"{what} is {found}; only plain tensors are supported, export the model with those")
    tensor = info.type.tensor_type
    try:
        dtype_name(tensor.elem_type)
    except ModelError as error:
        raise ModelError(f"{what}: {error}") from error
    if not tensor.HasField("shape"):
        raise ModelError(f"{what} has no shape; export the model with static shapes")
    dims: list[int | str] = []
    for axis, dim in enumerate(tensor.shape.dim):
        if dim.WhichOneof("value") == "dim_value" and dim.dim_value > 0:
            dims.append(int(dim.dim_value))
        elif dim.dim_value < -1:
            raise ModelError(f"{what}: dimension {axis} is {dim.dim_value}, negative; export the model again")
        else:  # Exporters write unknown sizes as a name, as nothing, as 0, or as -1.
            dims.append(dim.dim_param or "?")
    return dims


def fix_inputs(document: Document, batch: int | None) -> FixedInputs:
    """Static types of the inputs of `document` with `batch` put in place of the batch dimension.

    The batch dimension is the leading one of the inputs (of all of them where an exporter made up their symbols), and
    any that has the same symbol. Raises `ModelError` naming input and dimension where another one is symbolic, or where
    no batch is given.
    """
    if batch is not None and batch < 1:
        raise ModelError(f"{document.where}: the batch must be at least 1, not {batch}; give another --batch")
    shapes = {info.name: _dims(document, info) for info in document.proto.graph.input}
    elems = {info.name: int(info.type.tensor_type.elem_type) for info in document.proto.graph.input}
    symbols = _batch_symbols(list(shapes.values()))
    types: dict[str, tuple[int, Shape]] = {}
    used = ""
    for name, dims in shapes.items():
        fixed: list[int] = []
        for axis, dim in enumerate(dims):
            if isinstance(dim, int):
                fixed.append(dim)
                continue
            if not (dim in symbols if dim != "?" else axis == 0):
                raise ModelError(
                    f"{document.where}: dimension {axis} of input {name!r} {_unfixed(dim)} and is not the batch "
                    f"(shape {dims}); --batch fixes only the batch, so export the model with this size static"
                )
            if batch is None:
                raise ModelError(
                    f"{document.where}: dimension {axis} of input {name!r} {_unfixed(dim)} (shape {dims}); "
                    "give its size with --batch N"
                )
            fixed.append(batch)
            used = dim
        check_size(f"{document.where}: input {name!r}", tuple(fixed), elems[name])
        types[name] = (elems[name], tuple(fixed))
    changed = None
    if batch is not None and not used:
        old = next((shape[0] for _, shape in types.values() if shape), None)
        if old is None:
            raise ModelError(f"{document.where}: no input has a batch dimension that --batch could fix; leave it out")
        changed = (old, batch) if old != batch else None
    return FixedInputs(types, changed, used)


def _unfixed(dim: str) -> str:
    return "has no size (it is unset, 0 or -1)" if dim == "?" else f"is symbolic ({dim!r})"


def _batch_symbols(shapes: Sequence[Sequence[int | str]]) -> set[str]:
    leading = [dims[0] for dims in shapes if dims and isinstance(dims[0], str) and dims[0] != "?"]
    named = {symbol for symbol in leading if _BATCH_NAME.match(symbol)}
    if named:
        return named
    inner = {dim for dims in shapes for dim in dims if isinstance(dim, str) and _BATCH_NAME.match(dim)}
    return inner or {*leading[:1], *filter(_MADE_UP.match, leading)}


def rebatched(fixed: FixedInputs) -> Mapping[str, tuple[int, Shape]]:
    """The input types with the old batch replaced by the new one, where a leading dimension has it."""
    if fixed.changed is None:
        return fixed.types
    old, new = fixed.changed
    return {
        name: (elem, (new, *shape[1:]) if shape and shape[0] == old else shape)
        for name, (elem, shape) in fixed.types.items()
    }


def follows_batch(before: Shape, after: Shape, old: int, new: int) -> bool:
    """Whether `after` is `before` with at most one dimension scaled from the old batch to the new."""
    if len(before) != len(after):
        return False
    differing = [(b, a) for b, a in zip(before, after, strict=True) if b != a]
    return not differing or (len(differing) == 1 and differing[0][0] * new == differing[0][1] * old)
