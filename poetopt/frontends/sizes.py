"""Determine the sizes of inputs from the file and the options, and name the options that open sizes need.

Every input gets a static shape before shape inference.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx

from poetopt.frontends.proto import BATCH, dtype_name
from poetopt.frontends.read import Document, check_size
from poetopt.frontends.reading import ReadOptions, shape_text, size_options
from poetopt.util.errors import ModelError, OpenError, OptionError, UnsupportedOpError

_BATCH_NAME = re.compile(r"^_?(n|b|bs|batch|batch_?size|batch_?dim|.*batch.*)$", re.IGNORECASE)

_INVENTED_NAME = re.compile(r"^(unk__\d+|(p2o\.)?DynamicDimension\.\d+)$")
"""Names that TensorFlow's and Paddle's exporters invent for unnamed sizes, one per input."""

Shape = tuple[int, ...]
Dims = list[int | str]
"""Dimensions of an input: a size, its name in the file, or `?` if it has none."""


class _InputSizes:
    """Known sizes of inputs.

    Attributes
    ----------
    batch
        The batch from --batch, --dim or --shape, or else the default.
    old
        The leading size of the first input that has dimensions, if the file states it.
    symbol
        The file's name of the batch, once a shape needed it.
    named
        Sizes by their names in the file.
    """

    def __init__(self, where: str, dims: Mapping[str, Dims], options: ReadOptions, default: int | None = None) -> None:
        self.where, self.dims, self.symbol = where, dims, ""
        self.batch: int | None = options.batch
        self.requested = dict(options.shapes)
        self.bound_by: dict[str, str] = {}
        self.named: dict[str, int] = {}
        self.replaced: dict[str, tuple[Shape, Shape]] = {}
        self.batches = _batch_symbols(list(dims.values()))
        self._options = {name: f"--shape {name}={shape_text(sizes)}" for name, sizes in self.requested.items()}
        self._batch_option = f"--batch {options.batch}"
        first = next((shape[0] for shape in dims.values() if shape), None)
        self.old: int | None = first if isinstance(first, int) else None
        self._check_shapes()
        for name, size in options.dims:
            self._check_name(name)
            self._bind(name, size, f"--dim {name}={size}")
        for name, requested in self.requested.items():
            for axis, (dim, size_requested) in enumerate(zip(dims[name], requested, strict=True)):
                if size_requested is not None and isinstance(dim, str) and dim != "?":
                    self._bind(dim, size_requested, self._options[name])
                elif size_requested is not None and self._is_batch(dim, axis):
                    self._bind_batch(size_requested, self._options[name], f"dimension 0 of {name!r}")
        if self.batch is None and self.batches:
            self.batch, self._batch_option = default, "the file's batch"
        if self.batch is not None:
            for symbol in self.batches:
                self.named.setdefault(symbol, self.batch)

    def shape(self, name: str) -> Shape:
        """Return the static shape of an input, with the file's batch if it states one. Raise `ModelError`."""
        sizes: list[int] = []
        requested = self.requested.get(name) or (None,) * len(self.dims[name])
        for axis, (dim, size) in enumerate(zip(self.dims[name], requested, strict=True)):
            if isinstance(dim, int):
                sizes.append(dim if size is None or self._is_batch(dim, axis) else size)
                continue
            known = self.named.get(dim) if dim != "?" else size
            if self._is_batch(dim, axis):
                known = self.batch if known is None else known
                self.symbol = dim if known is not None else self.symbol
            if known is None:
                raise OpenError(self._open_message(name, axis, dim))
            sizes.append(known)
        stated = tuple(dim if isinstance(dim, int) else size for dim, size in zip(self.dims[name], sizes, strict=True))
        if stated != tuple(sizes):
            self.replaced[name] = stated, tuple(sizes)
        return tuple(sizes)

    def notes(self) -> Iterator[str]:
        """Yield notes on the sizes that were fixed; call it after `shape` of all inputs."""
        if self.symbol:
            yield f"fixed the batch {self.symbol!r} at {self.batch}"
        others = [f"{name!r} at {size}" for name, size in self.named.items() if name not in self.batches]
        if others:
            yield f"fixed {', '.join(others)}"
        for name, (old, new) in self.replaced.items():
            yield f"input {name!r} has shape {list(new)} in place of the file's {list(old)}"

    def _is_batch(self, dim: int | str, axis: int) -> bool:
        if isinstance(dim, int):
            return axis == 0 and dim == self.old
        return dim in self.batches if dim != "?" else axis == 0

    def _check_shapes(self) -> None:
        for name, requested in self.requested.items():
            if name not in self.dims:
                raise OptionError(f"{self.where}: {self._options[name]}: {no_such_input(name, self.dims)}")
            if len(requested) != len(self.dims[name]):
                raise OptionError(
                    f"{self.where}: {self._options[name]}: the input has {len(self.dims[name])} dimensions (shape "
                    f"{self.dims[name]}), not {len(requested)}. Give --shape {shlex.quote(name)}={self._template(name)}"
                )

    def _check_name(self, name: str) -> None:
        known = list(dict.fromkeys(dim for shape in self.dims.values() for dim in shape if isinstance(dim, str)))
        names = [dim for dim in known if dim != "?"]
        if name in names:
            return
        batch = self.old if isinstance(self.old, int) else 0
        if name.lower() in ("batch", "batch_size", "n") and batch:
            raise OptionError(f"{self.where}: --dim {name}: the batch is {batch} and has no name. Give --batch SIZE")
        if not names:
            raise OptionError(
                f"{self.where}: --dim {name}: the file names no dimension of an input. Give whole shapes: "
                + " ".join(f"--shape {shlex.quote(entry)}={self._template(entry)}" for entry in self.dims)
            )
        shown = ", ".join(map(repr, names))
        raise OptionError(f"{self.where}: --dim {name}: no input has a dimension of that name. The names are {shown}")

    def _bind(self, symbol: str, size: int, option: str) -> None:
        """Record that the dimension `symbol` has `size`."""
        if self.named.setdefault(symbol, size) != size:
            raise OptionError(
                f"{self.where}: {option} contradicts {self.bound_by[symbol]}: the dimension {symbol!r} has one size. "
                "Leave one of them out"
            )
        self.bound_by.setdefault(symbol, option)
        if symbol in self.batches:
            self._bind_batch(size, option, repr(symbol))

    def _bind_batch(self, size: int, option: str, what: str) -> None:
        """Record that the batch, which messages call `what`, has `size`."""
        if self.batch is not None and self.batch != size:
            raise OptionError(
                f"{self.where}: {option} contradicts {self._batch_option}: {what} is the batch. Leave one of them out"
            )
        if self.batch is None:
            self.batch, self._batch_option = size, option

    def _open_message(self, name: str, axis: int, dim: str) -> str:
        """Return the message for an unknown size, with options for all open sizes."""
        problem = f"{self.where}: dimension {axis} of input {name!r} {_describe_open(dim)}"
        places = [(n, a, d) for n, shape in self.dims.items() for a, d in enumerate(shape) if self._is_open(n, a, d)]
        others = [(n, a, d) for n, a, d in places if not self._is_batch(d, a)]
        if not others:
            return f"{problem} (shape {self.dims[name]}). Give its size with --batch N"
        if not self._is_batch(dim, axis):
            problem += " and is not the batch"
        shapes = [f"--shape {shlex.quote(n)}={self._template(n)}" for n in dict.fromkeys(n for n, _, _ in places)]
        remedy = " ".join(shapes)
        if all(d != "?" for _, _, d in others):
            batch = ["--batch 1"] if len(others) < len(places) else []
            dims = [f"--dim {shlex.quote(str(d))}=..." for d in dict.fromkeys(d for _, _, d in others)]
            remedy += f", or {' '.join([*batch, *dims])}"
        return f"{problem} (shape {self.dims[name]}). Give the open sizes with {remedy}"

    def _is_open(self, name: str, axis: int, dim: int | str) -> bool:
        if isinstance(dim, int):
            return False
        known = self.named.get(dim) if dim != "?" else (self.requested.get(name) or {axis: None})[axis]
        return known is None and not (self._is_batch(dim, axis) and self.batch is not None)

    def _template(self, name: str) -> str:
        """Return the shape of an input for `--shape`, with `?` for open sizes, and 1 for an open batch."""
        requested = self.requested.get(name, ())
        entries: list[int | str | None] = []
        for axis, dim in enumerate(self.dims[name]):
            size = requested[axis] if len(requested) == len(self.dims[name]) else None
            known = size or (dim if isinstance(dim, int) else self.named.get(dim))
            entries.append(known or ((self.batch or 1) if self._is_batch(dim, axis) else None))
        return shape_text(entries)


def no_such_input(name: str, inputs: Iterable[str]) -> str:
    """Return the message for an input that an option names and the file lacks."""
    known = list(inputs)
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5) or known[:4]
    return f"no input is called {name!r}. There is {', '.join(map(repr, close))}" if known else "the model has no input"


def _describe_open(dim: str) -> str:
    return "has no size (it is unset, 0 or -1)" if dim == "?" else f"is symbolic ({dim!r})"


def _batch_symbols(shapes: Sequence[Sequence[int | str]]) -> set[str]:
    leading = [dims[0] for dims in shapes if dims and isinstance(dims[0], str) and dims[0] != "?"]
    named = {symbol for symbol in leading if _BATCH_NAME.match(symbol)}
    if named:
        return named
    inner = {dim for dims in shapes for dim in dims if isinstance(dim, str) and _BATCH_NAME.match(dim)}
    return inner or {*leading[:1], *filter(_INVENTED_NAME.match, leading)}


@dataclass(frozen=True)
class FixedInputs:
    """Input types with static shapes.

    Attributes
    ----------
    types
        ONNX element type and shape of each input, in order.
    changed
        Old and new batch if the file has a fixed batch and the user gave another, else None.
    sizes
        Sizes of the dimensions that the file names.
    restated
        Whether an input has another size than the file states, so that declared types of other tensors are void.
    notes
        Notes on the sizes that were fixed.
    """

    types: Mapping[str, tuple[int, Shape]]
    changed: tuple[int, int] | None
    sizes: Mapping[str, int]
    restated: bool
    notes: tuple[str, ...]


def input_dims(document: Document, info: onnx.ValueInfoProto, options: ReadOptions) -> Dims:
    """Return the dims of an input: a positive size, or the name of a symbol (`?` if it has none).

    If the file states no shape, `options` give the number of dims.
    """
    what = f"{document.where}: input {info.name!r}"
    kind = info.type.WhichOneof("value")
    if kind != "tensor_type":
        description = {"sequence_type": "a sequence", "map_type": "a map", "optional_type": "an optional"}.get(
            kind or "", "of an unknown type"
        )
        raise UnsupportedOpError(f"{what} is {description}. Export the model with plain tensors")
    tensor = info.type.tensor_type
    try:
        dtype_name(tensor.elem_type)
    except ModelError as error:
        raise ModelError(f"{what}: {error}") from error
    if not tensor.HasField("shape"):
        requested = dict(options.shapes).get(info.name)
        if requested is None:
            raise OpenError(f"{what} has no shape. Give it, as in --shape {shlex.quote(info.name)}=1x3x160x160")
        return ["?"] * len(requested)
    dims: Dims = []
    for axis, dim in enumerate(tensor.shape.dim):
        if dim.WhichOneof("value") == "dim_value" and dim.dim_value > 0:
            dims.append(int(dim.dim_value))
        elif dim.dim_value < -1:
            raise ModelError(f"{what}: dimension {axis} is {dim.dim_value}, negative. Export the model again")
        else:  # Exporters write unknown sizes as a name, as nothing, as 0, or as -1.
            dims.append(dim.dim_param or "?")
    return dims


def fix_inputs(document: Document, options: ReadOptions) -> FixedInputs:
    """Return the static types of the inputs of `document`, with the sizes in `options`.

    The batch dimension is the leading one of the inputs (of all of them if an exporter invented their symbols), and
    any other with the same symbol.

    Raises
    ------
    ModelError
        If a size stays open; the message has input, dimension, and the options for it.
    OptionError
        For a size that no dimension of the file has, or two that contradict each other.
    """
    shapes = {info.name: input_dims(document, info, options) for info in document.proto.graph.input}
    elems = {info.name: int(info.type.tensor_type.elem_type) for info in document.proto.graph.input}
    sizes = _InputSizes(document.where, shapes, options, _example_batch(document))
    used = size_options(options)
    types: dict[str, tuple[int, Shape]] = {}
    for name in shapes:
        shape = sizes.shape(name)
        check_size(
            f"{document.where}: input {name!r}",
            shape,
            elems[name],
            f"Give smaller sizes with {used}" if used else "",
        )
        types[name] = (elems[name], shape)
    changed = None
    if sizes.batch is not None and not sizes.symbol:
        if sizes.old is None:
            raise ModelError(f"{document.where}: no input has a batch dimension for --batch. Leave it out")
        changed = (sizes.old, sizes.batch) if sizes.old != sizes.batch else None
    return FixedInputs(types, changed, sizes.named, bool(changed or sizes.replaced), tuple(sizes.notes()))


def _example_batch(document: Document) -> int | None:
    """Return the batch of the export's example input, if the file states it."""
    text = next((entry.value for entry in document.proto.metadata_props if entry.key == BATCH), "")
    return int(text) if re.fullmatch(r"[1-9]\d{0,8}", text, re.ASCII) else None


def rebatched(fixed: FixedInputs) -> Mapping[str, tuple[int, Shape]]:
    """Return the input types with the old batch as leading dimension replaced by the new one."""
    if fixed.changed is None:
        return fixed.types
    old, new = fixed.changed
    return {
        name: (elem, (new, *shape[1:]) if shape and shape[0] == old else shape)
        for name, (elem, shape) in fixed.types.items()
    }


def follows_batch(before: Shape, after: Shape, old: int, new: int) -> bool:
    """Return whether `after` is `before` with at most one dimension scaled from the old batch to the new."""
    if len(before) != len(after):
        return False
    differing = [(b, a) for b, a in zip(before, after, strict=True) if b != a]
    return not differing or (len(differing) == 1 and differing[0][0] * new == differing[0][1] * old)
