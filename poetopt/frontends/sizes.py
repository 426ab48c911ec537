"""The sizes of inputs: what the file states, what the user says, and what to say where one stays open.

Every input gets a static shape before anything is inferred from it.
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

_MADE_UP = re.compile(r"^(unk__\d+|(p2o\.)?DynamicDimension\.\d+)$")
"""What TensorFlow's and Paddle's exporters call a size that has no name; each input has one of its own."""

Shape = tuple[int, ...]
Dims = list[int | str]
"""Of an input: a size, the name of one, or `?` for one without a name."""


class _InputSizes:
    """Sizes of inputs, as far as they are known.

    batch
        The one that is asked for, with --batch, --dim or --shape, or else the default.
    old
        The leading size of the first input that has one, where the file states it.
    symbol
        What the file calls the batch, once a shape needed it.
    named
        Sizes by their names in the file.
    """

    def __init__(self, where: str, dims: Mapping[str, Dims], options: ReadOptions, default: int | None = None) -> None:
        self.where, self.dims, self.symbol = where, dims, ""
        self.batch: int | None = options.batch
        self.given = dict(options.shapes)
        self.said: dict[str, str] = {}
        self.named: dict[str, int] = {}
        self.replaced: dict[str, tuple[Shape, Shape]] = {}
        self.batches = _batch_symbols(list(dims.values()))
        self._options = {name: f"--shape {name}={shape_text(sizes)}" for name, sizes in self.given.items()}
        self._batch_option = f"--batch {options.batch}"
        first = next((shape[0] for shape in dims.values() if shape), None)
        self.old: int | None = first if isinstance(first, int) else None
        self._check_shapes()
        for name, size in options.dims:
            self._check_name(name)
            self._bind(name, size, f"--dim {name}={size}")
        for name, asked in self.given.items():
            for axis, (dim, wanted) in enumerate(zip(dims[name], asked, strict=True)):
                if wanted is not None and isinstance(dim, str) and dim != "?":
                    self._bind(dim, wanted, self._options[name])
                elif wanted is not None and self._is_batch(dim, axis):
                    self._bind_batch(wanted, self._options[name], f"dimension 0 of {name!r}")
        if self.batch is None and self.batches:
            self.batch, self._batch_option = default, "the file's own batch"
        if self.batch is not None:
            for symbol in self.batches:
                self.named.setdefault(symbol, self.batch)

    def shape(self, name: str) -> Shape:
        """The static shape of an input, still of the file's batch where that is stated. Raises `ModelError`."""
        found: list[int] = []
        asked = self.given.get(name) or (None,) * len(self.dims[name])
        for axis, (dim, size) in enumerate(zip(self.dims[name], asked, strict=True)):
            if isinstance(dim, int):
                found.append(dim if size is None or self._is_batch(dim, axis) else size)
                continue
            known = self.named.get(dim) if dim != "?" else size
            if self._is_batch(dim, axis):
                known = self.batch if known is None else known
                self.symbol = dim if known is not None else self.symbol
            if known is None:
                raise OpenError(self._open(name, axis, dim))
            found.append(known)
        stated = tuple(dim if isinstance(dim, int) else size for dim, size in zip(self.dims[name], found, strict=True))
        if stated != tuple(found):
            self.replaced[name] = stated, tuple(found)
        return tuple(found)

    def notes(self) -> Iterator[str]:
        """Gives what was fixed, once all shapes were asked for."""
        if self.symbol:
            yield f"batch {self.symbol!r} fixed at {self.batch}"
        others = [f"{name!r} at {size}" for name, size in self.named.items() if name not in self.batches]
        if others:
            yield f"fixed: {', '.join(others)}"
        for name, (old, new) in self.replaced.items():
            yield f"input {name!r} has shape {list(new)} in place of the file's {list(old)}"

    def _is_batch(self, dim: int | str, axis: int) -> bool:
        if isinstance(dim, int):
            return axis == 0 and dim == self.old
        return dim in self.batches if dim != "?" else axis == 0

    def _check_shapes(self) -> None:
        for name, asked in self.given.items():
            if name not in self.dims:
                raise OptionError(f"{self.where}: {self._options[name]}: {no_such_input(name, self.dims)}")
            if len(asked) != len(self.dims[name]):
                raise OptionError(
                    f"{self.where}: {self._options[name]}: the input has {len(self.dims[name])} dimensions (shape "
                    f"{self.dims[name]}), not {len(asked)}; say --shape {shlex.quote(name)}={self._to_fill(name)}"
                )

    def _check_name(self, name: str) -> None:
        known = list(dict.fromkeys(dim for shape in self.dims.values() for dim in shape if isinstance(dim, str)))
        names = [dim for dim in known if dim != "?"]
        if name in names:
            return
        batch = self.old if isinstance(self.old, int) else 0
        if name.lower() in ("batch", "batch_size", "n") and batch:
            raise OptionError(f"{self.where}: --dim {name}: the batch is {batch} and has no name; say --batch SIZE")
        if not names:
            raise OptionError(
                f"{self.where}: --dim {name}: the file names no dimension of an input; give whole shapes: "
                + " ".join(f"--shape {shlex.quote(entry)}={self._to_fill(entry)}" for entry in self.dims)
            )
        shown = ", ".join(map(repr, names))
        raise OptionError(f"{self.where}: --dim {name}: no input has a dimension of that name; there is {shown}")

    def _bind(self, symbol: str, size: int, option: str) -> None:
        """`symbol` is `size`."""
        if self.named.setdefault(symbol, size) != size:
            raise OptionError(
                f"{self.where}: {option} contradicts {self.said[symbol]}: the dimension {symbol!r} has one size; "
                "leave one of them out"
            )
        self.said.setdefault(symbol, option)
        if symbol in self.batches:
            self._bind_batch(size, option, repr(symbol))

    def _bind_batch(self, size: int, option: str, what: str) -> None:
        """`what`, which is the batch, is `size`."""
        if self.batch is not None and self.batch != size:
            raise OptionError(
                f"{self.where}: {option} contradicts {self._batch_option}: {what} is the batch; leave one of them out"
            )
        if self.batch is None:
            self.batch, self._batch_option = size, option

    def _open(self, name: str, axis: int, dim: str) -> str:
        """Says what holds where the size of a dimension is not known: all that are open, in options."""
        told = f"{self.where}: dimension {axis} of input {name!r} {_unfixed(dim)}"
        places = [(n, a, d) for n, shape in self.dims.items() for a, d in enumerate(shape) if self._is_open(n, a, d)]
        others = [(n, a, d) for n, a, d in places if not self._is_batch(d, a)]
        if not others:
            return f"{told} (shape {self.dims[name]}); give its size with --batch N"
        if not self._is_batch(dim, axis):
            told += " and is not the batch"
        whole = [f"--shape {shlex.quote(n)}={self._to_fill(n)}" for n in dict.fromkeys(n for n, _, _ in places)]
        remedy = " ".join(whole)
        if all(d != "?" for _, _, d in others):
            batch = ["--batch 1"] if len(others) < len(places) else []
            dims = [f"--dim {shlex.quote(str(d))}=..." for d in dict.fromkeys(d for _, _, d in others)]
            remedy += f", or {' '.join([*batch, *dims])}"
        return f"{told} (shape {self.dims[name]}); give what is open with {remedy}"

    def _is_open(self, name: str, axis: int, dim: int | str) -> bool:
        if isinstance(dim, int):
            return False
        known = self.named.get(dim) if dim != "?" else (self.given.get(name) or {axis: None})[axis]
        return known is None and not (self._is_batch(dim, axis) and self.batch is not None)

    def _to_fill(self, name: str) -> str:
        """The shape of an input as `--shape` takes it, with `?` to be filled in, and 1 for a batch that is open."""
        asked = self.given.get(name, ())
        entries: list[int | str | None] = []
        for axis, dim in enumerate(self.dims[name]):
            said = asked[axis] if len(asked) == len(self.dims[name]) else None
            known = said or (dim if isinstance(dim, int) else self.named.get(dim))
            entries.append(known or ((self.batch or 1) if self._is_batch(dim, axis) else None))
        return shape_text(entries)


def no_such_input(name: str, inputs: Iterable[str]) -> str:
    """Gives the notes on an input that an option names and the file lacks."""
    known = list(inputs)
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5) or known[:4]
    return f"no input is called {name!r}; there is {', '.join(map(repr, close))}" if known else "the model has no input"


def _unfixed(dim: str) -> str:
    return "has no size (it is unset, 0 or -1)" if dim == "?" else f"is symbolic ({dim!r})"


def _batch_symbols(shapes: Sequence[Sequence[int | str]]) -> set[str]:
    leading = [dims[0] for dims in shapes if dims and isinstance(dims[0], str) and dims[0] != "?"]
    named = {symbol for symbol in leading if _BATCH_NAME.match(symbol)}
    if named:
        return named
    inner = {dim for dims in shapes for dim in dims if isinstance(dim, str) and _BATCH_NAME.match(dim)}
    return inner or {*leading[:1], *filter(_MADE_UP.match, leading)}


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
            raise OpenError(f"{what} has no shape; give it, as in --shape {shlex.quote(info.name)}=1x3x160x160")
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
    sizes = _InputSizes(document.where, shapes, options, _own_batch(document))
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


def _own_batch(document: Document) -> int | None:
    """The batch of the export's example, where the file says it."""
    said = next((entry.value for entry in document.proto.metadata_props if entry.key == BATCH), "")
    return int(said) if re.fullmatch(r"[1-9]\d{0,8}", said, re.ASCII) else None


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
    """Says whether `after` is `before` with at most one dimension scaled from the old batch to the new."""
    if len(before) != len(after):
        return False
    differing = [(b, a) for b, a in zip(before, after, strict=True) if b != a]
    return not differing or (len(differing) == 1 and differing[0][0] * new == differing[0][1] * old)
