"""Fix the sizes: every input gets a static shape before anything is inferred from it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

import onnx

from poetopt.frontends.proto import dtype_name
from poetopt.frontends.read import Document, check_size
from poetopt.frontends.reading import ReadOptions, size_options
from poetopt.frontends.sizes import Dims, Shape, Sizes
from poetopt.util.errors import ModelError, UnsupportedOpError


@dataclass(frozen=True)
class FixedInputs:
    """Input types with static shapes.

    types
        ONNX element type and shape of each input, in order.
    changed
        Old and new batch where the file has a fixed batch and another was asked for, else None.
    sizes
        Of every dimension that the file names.
    restated
        Whether an input has another size than the file states, so that what it states of other tensors is void.
    notes
        What was fixed.
    """

    types: Mapping[str, tuple[int, Shape]]
    changed: tuple[int, int] | None
    sizes: Mapping[str, int]
    restated: bool
    notes: tuple[str, ...]


def input_dims(document: Document, info: onnx.ValueInfoProto, options: ReadOptions) -> Dims:
    """The dims of an input: a positive size, or the name of a symbol (`?` where it has none).

    Where the file gives none at all, there are as many as `options` say.
    """
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
        asked = dict(options.shapes).get(info.name)
        if asked is None:
            raise ModelError(f"{what} has no shape; give it, as in --shape {shlex.quote(info.name)}=1x3x160x160")
        return ["?"] * len(asked)
    dims: Dims = []
    for axis, dim in enumerate(tensor.shape.dim):
        if dim.WhichOneof("value") == "dim_value" and dim.dim_value > 0:
            dims.append(int(dim.dim_value))
        elif dim.dim_value < -1:
            raise ModelError(f"{what}: dimension {axis} is {dim.dim_value}, negative; export the model again")
        else:  # Exporters write unknown sizes as a name, as nothing, as 0, or as -1.
            dims.append(dim.dim_param or "?")
    return dims


def fix_inputs(document: Document, options: ReadOptions) -> FixedInputs:
    """Static types of the inputs of `document`, with the sizes that `options` give.

    The batch dimension is the leading one of the inputs (of all of them where an exporter made up their symbols), and
    any that has the same symbol. Raises `ModelError` naming input and dimension, and the options that give it, where a
    size stays open; `OptionError` for a size that nothing in the file has, or for two that contradict each other.
    """
    shapes = {info.name: input_dims(document, info, options) for info in document.proto.graph.input}
    elems = {info.name: int(info.type.tensor_type.elem_type) for info in document.proto.graph.input}
    sizes = Sizes(document.where, shapes, options)
    given = size_options(options)
    types: dict[str, tuple[int, Shape]] = {}
    for name in shapes:
        shape = sizes.shape(name)
        check_size(
            f"{document.where}: input {name!r}", shape, elems[name], f"give smaller sizes with {given}" if given else ""
        )
        types[name] = (elems[name], shape)
    changed = None
    if sizes.batch is not None and not sizes.symbol:
        if sizes.old is None:
            raise ModelError(f"{document.where}: no input has a batch dimension that --batch could fix; leave it out")
        changed = (sizes.old, sizes.batch) if sizes.old != sizes.batch else None
    return FixedInputs(types, changed, sizes.named, bool(changed or sizes.replaced), tuple(sizes.notes()))


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
