"""Options of reading a model file: what the user says of it, above all where it leaves something open.

    --batch 4                        the batch dimension
    --dim height=160                 a dimension that the file names, wherever it stands
    --shape input=1x3x160x160        the whole shape of an input; `?` where the file, --batch or --dim says it
    --value sr=16000                 an input that becomes a constant
    --train 'fc.*'                   the parameters to train
    --micro-batch 4                  one of so many parts of the batch
    --with allow-symlinks            weights may lie outside of the model's folder, behind symbolic links

A plan file keeps them (`to_recipe`), so that its model is read in the same way again; but for the links, which whoever
reads the plan has to allow.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from poetopt.util.errors import ModelError, OptionError
from poetopt.util.numbers import read_float32, read_whole

LARGEST_SIZE = 2**31 - 1
"""Of a batch, and of any other dimension."""

MOST_VALUES = 4096
"""In `--value`; one number fills an input of any size."""

Value = bool | int | float | tuple["Value", ...]
Sizes = tuple[int | None, ...]


@dataclass(frozen=True)
class ReadOptions:
    """Holds what `read_options` has checked.

    batch
        Size of the batch dimension, where it is open or is to be changed.
    train
        Glob patterns of the parameters to train; None: see `roles`.
    dims
        Size of each dimension that the file names.
    shapes
        Of inputs; None where a size is said elsewhere.
    values
        Of inputs that become constants: a number for all elements, or nested tuples.
    allow_symlinks
        Whether external data may lie outside of the model's folder, behind symbolic links.
    micro_batches
        Into how many parts the batch is cut; the network is read as one of them.
    micro_batch_statistics
        Whether each part may be normalized with statistics of its own.
    """

    batch: int | None = None
    train: str | tuple[str, ...] | None = None
    dims: tuple[tuple[str, int], ...] = ()
    shapes: tuple[tuple[str, Sizes], ...] = ()
    values: tuple[tuple[str, Value], ...] = ()
    allow_symlinks: bool = False
    micro_batches: int = 1
    micro_batch_statistics: bool = False

    def to_recipe(self) -> dict[str, object]:
        """Writes plain JSON values; what isn't asked for is left out, but for `batch` and `train`."""
        train = list(self.train) if isinstance(self.train, tuple) else self.train
        found: dict[str, object] = {"batch": self.batch, "train": train}
        if self.dims:
            found["dims"] = dict(self.dims)
        if self.shapes:
            found["shapes"] = {name: list(sizes) for name, sizes in self.shapes}
        if self.values:
            found["values"] = {name: _listed(value) for name, value in self.values}
        if self.micro_batches > 1:
            found["micro_batches"] = self.micro_batches
        if self.micro_batch_statistics:
            found["micro_batch_statistics"] = True
        return found

    def named(self) -> dict[str, object]:
        """All but the batch as the arguments of `read_options`."""
        return {
            "train": self.train,
            "dims": dict(self.dims),
            "shapes": dict(self.shapes),
            "values": dict(self.values),
            "allow_symlinks": self.allow_symlinks,
            "micro_batch_statistics": self.micro_batch_statistics,
        }

    @property
    def fixes_inputs(self) -> list[str]:
        """Those of --dim, --shape and --value that are given."""
        given = {"--dim": self.dims, "--shape": self.shapes, "--value": self.values}
        return [option for option, asked in given.items() if asked]


def read_options(
    *,
    batch: int | None = None,
    train: str | Sequence[str] | None = None,
    dims: Mapping[str, int | str] | None = None,
    shapes: Mapping[str, str | Sequence[int | None]] | None = None,
    values: Mapping[str, object] | None = None,
    allow_symlinks: bool = False,
    micro_batch: int | None = None,
    micro_batch_statistics: bool = False,
) -> ReadOptions:
    """Check what is said of a model file. Sizes, shapes and values may be texts, as on the command line.

    Raises ModelError for a batch, OptionError for anything else, that can't be.
    """
    if batch is not None and (not _whole(batch) or not 1 <= batch <= LARGEST_SIZE):
        raise ModelError(
            f"the batch must be a whole number from 1 to {LARGEST_SIZE:,}, not {batch!r}; give another --batch"
        )
    if micro_batch is not None and (not _whole(micro_batch) or not 1 <= micro_batch <= LARGEST_SIZE):
        raise OptionError(f"--micro-batch {micro_batch}: must be a whole number of parts from 1 on")
    return ReadOptions(
        batch,
        train if train is None or isinstance(train, str) else tuple(train),
        tuple((name, _size(f"--dim {name}={size}", size)) for name, size in (dims or {}).items()),
        tuple((name, _sizes(name, shape)) for name, shape in (shapes or {}).items()),
        tuple((name, _value(name, value)) for name, value in (values or {}).items()),
        allow_symlinks,
        1 if micro_batch is None else micro_batch,
        micro_batch_statistics,
    )


def from_recipe(recipe: Mapping[str, object], *, allow_symlinks: bool = False) -> ReadOptions:
    """Gives what a plan file says. Raises as `read_options`."""
    batch, train = recipe.get("batch"), recipe.get("train")
    dims, shapes, values = (_table(recipe, key) for key in ("dims", "shapes", "values"))
    return read_options(
        batch=batch if isinstance(batch, int) and _whole(batch) else None,
        train=list(map(str, train)) if isinstance(train, list) else train if isinstance(train, str) else None,
        dims={name: size if isinstance(size, (int, str)) else str(size) for name, size in dims.items()},
        shapes={name: sizes if isinstance(sizes, (list, str)) else str(sizes) for name, sizes in shapes.items()},
        values=values,
        allow_symlinks=allow_symlinks,
        micro_batch=parts if isinstance(parts := recipe.get("micro_batches"), int) else None,
        micro_batch_statistics=recipe.get("micro_batch_statistics") is True,
    )


def shape_text(sizes: Sequence[int | str | None]) -> str:
    """Writes a shape as `--shape` takes it."""
    return "x".join("?" if size is None else str(size) for size in sizes) or "scalar"


def _table(recipe: Mapping[str, object], key: str) -> Mapping[str, object]:
    found = recipe.get(key)
    return {str(name): value for name, value in found.items()} if isinstance(found, dict) else {}


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _size(option: str, given: object) -> int:
    try:
        size = read_whole(given)
    except ValueError:
        size = 0
    if not 1 <= size <= LARGEST_SIZE:
        raise OptionError(f"{option}: a size is a whole number from 1 to {LARGEST_SIZE:,}")
    return size


def _sizes(name: str, given: str | Sequence[int | None]) -> Sizes:
    shown = given if isinstance(given, str) else shape_text(given)
    option = f"--shape {name}={shown}"
    if isinstance(given, str):
        text = given.strip().strip("[]()").lower().replace("×", "x").replace(",", "x")
        entries: Sequence[object] = [] if text in ("", "scalar") else [entry.strip() for entry in text.split("x")]
        if not text:
            raise OptionError(f"{option}: say every size, as in --shape {name}=1x3x160x160")
    else:
        entries = given
    try:
        return tuple(None if entry is None or entry == "?" else _size(option, entry) for entry in entries)
    except OptionError as error:
        raise OptionError(
            f"{error}, as in --shape {name}=1x3x160x160; ? stands where the file, --batch or --dim says it"
        ) from None


def _value(name: str, given: object) -> Value:
    """Numbers, from a text, an array, or nested sequences."""
    shown = str(given) if len(str(given)) < 40 else f"{str(given)[:36]}..."
    what = f"--value {name}={shown}"
    found = given.tolist() if hasattr(given, "tolist") else given
    if isinstance(found, str):
        try:
            text = f"[{found}]" if "," in found and not found.lstrip().startswith("[") else found.lower()
            found = json.loads(text, parse_float=read_float32, parse_int=read_whole)
        except (ValueError, RecursionError):
            raise OptionError(f"{what}: give a number, true, false, or a list: 16000, 0.5, [1,3,64,64]") from None
    value = _plain(what, found)
    if _count(value) > MOST_VALUES:
        raise OptionError(f"{what}: more than {MOST_VALUES:,} values; one number fills an input of any size")
    return value


def _plain(what: str, value: object, depth: int = 0) -> Value:
    if isinstance(value, (list, tuple)) and depth < 8:
        return tuple(_plain(what, entry, depth + 1) for entry in value)
    if isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise OptionError(f"{what}: give finite numbers, true or false, or a list of them: 16000, 0.5, [1,3,64,64]")


def _count(value: Value) -> int:
    return sum(map(_count, value)) if isinstance(value, tuple) else 1


def _listed(value: Value) -> object:
    return [_listed(entry) for entry in value] if isinstance(value, tuple) else value


def size_options(options: ReadOptions) -> str:
    """The options that gave sizes, for messages: `--batch or --dim`; "" where none did."""
    given = {"--batch": options.batch, "--dim": options.dims, "--shape": options.shapes}
    return " or ".join(option for option, value in given.items() if value)
