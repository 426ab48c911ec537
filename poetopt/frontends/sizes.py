"""The sizes of inputs: what the file states, what the user says, and what to say where one stays open."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

from poetopt.frontends.reading import ReadOptions, shape_text
from poetopt.util.errors import ModelError, OptionError

_BATCH_NAME = re.compile(r"^_?(n|b|bs|batch|batch_?size|batch_?dim|.*batch.*)$", re.IGNORECASE)

_MADE_UP = re.compile(r"^(unk__\d+|(p2o\.)?DynamicDimension\.\d+)$")
"""What TensorFlow's and Paddle's exporters call a size that has no name; each input has one of its own."""

Shape = tuple[int, ...]
Dims = list[int | str]
"""Of an input: a size, the name of one, or `?` for one without a name."""


class Sizes:
    """What is known of the sizes of inputs.

    batch
        The one that is asked for, with --batch, --dim or --shape.
    old
        The leading size of the first input that has one, where the file states it.
    symbol
        What the file calls the batch, once a shape needed it.
    named
        Sizes by their names in the file.
    """

    def __init__(self, where: str, dims: Mapping[str, Dims], options: ReadOptions) -> None:
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
                raise ModelError(self._open(name, axis, dim))
            found.append(known)
        stated = tuple(dim if isinstance(dim, int) else size for dim, size in zip(self.dims[name], found, strict=True))
        if stated != tuple(found):
            self.replaced[name] = stated, tuple(found)
        return tuple(found)

    def notes(self) -> Iterator[str]:
        """What was fixed, once all shapes were asked for."""
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
        """What to say where the size of a dimension is not known: all that are open, in options."""
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
    """What to say of an input that an option names and the file lacks."""
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
