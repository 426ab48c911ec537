"""Options for reading a model file, above all for what the file leaves open.

    --batch 4                        the batch dimension
    --dim height=160                 a dimension that the file names, in every shape
    --shape input=1x3x160x160        the whole shape of an input; `?` for a size from the file, --batch or --dim
    --value sr=16000                 an input that becomes a constant
    --train 'fc.*'                   the parameters to train
    --micro-batch 4                  the number of parts of the batch
    --allow-symlinks                 weights may lie outside of the model's folder, behind symbolic links

A plan file stores them (`to_recipe`), so that its model is read in the same way again, except the permission for links,
which the reader of the plan has to give.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from poetopt.util.errors import ModelError, OptionError
from poetopt.util.numbers import read_float32, read_whole

LARGEST_SIZE = 2**31 - 1
"""Limit of a batch, and of any other dimension."""

MOST_VALUES = 4096
"""Limit of elements in `--value`; one number fills an input of any size."""

Value = bool | int | float | tuple["Value", ...]
Sizes = tuple[int | None, ...]


@dataclass(frozen=True)
class ReadOptions:
    """Options that `read_options` has checked.

    Attributes
    ----------
    batch
        Size of the batch dimension, if it is open or has to change.
    train
        Glob patterns of the parameters to train; None: see `trained`.
    dims
        Size of each dimension that the file names.
    shapes
        Shapes of inputs; None for a size that the file or another option states.
    values
        Values of inputs that become constants: a number for all elements, or nested tuples.
    allow_symlinks
        Whether external data may lie outside of the model's folder, behind symbolic links.
    micro_batches
        Number of parts of the batch; the network is read as one of them.
    micro_batch_statistics
        Whether each part may be normalized with its own statistics.
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
        """Return plain JSON values, without defaults except for `batch` and `train`."""
        train = list(self.train) if isinstance(self.train, tuple) else self.train
        recipe: dict[str, object] = {"batch": self.batch, "train": train}
        if self.dims:
            recipe["dims"] = dict(self.dims)
        if self.shapes:
            recipe["shapes"] = {name: list(sizes) for name, sizes in self.shapes}
        if self.values:
            recipe["values"] = {name: _as_lists(value) for name, value in self.values}
        if self.micro_batches > 1:
            recipe["micro_batches"] = self.micro_batches
        if self.micro_batch_statistics:
            recipe["micro_batch_statistics"] = True
        return recipe

    def named(self) -> dict[str, object]:
        """Return all options but the batch as arguments of `read_options`."""
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
        """Names of the options among --dim, --shape and --value that the user gave."""
        options = {"--dim": self.dims, "--shape": self.shapes, "--value": self.values}
        return [option for option, value in options.items() if value]


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
    """Check the options for a model file. Sizes, shapes and values may be texts, as on the command line.

    Raises
    ------
    ModelError
        For an invalid batch.
    OptionError
        For any other invalid option.
    """
    if batch is not None and (not _is_integer(batch) or not 1 <= batch <= LARGEST_SIZE):
        raise ModelError(
            f"the batch must be a whole number from 1 to {LARGEST_SIZE:,}, not {batch!r}. Give another --batch"
        )
    if micro_batch is not None and (not _is_integer(micro_batch) or not 1 <= micro_batch <= LARGEST_SIZE):
        raise OptionError(f"--micro-batch {micro_batch}: must be a whole number of parts, at least 1")
    return ReadOptions(
        batch,
        train if train is None or isinstance(train, str) else tuple(train),
        tuple((name, _read_size(f"--dim {name}={size}", size)) for name, size in (dims or {}).items()),
        tuple((name, _read_sizes(name, shape)) for name, shape in (shapes or {}).items()),
        tuple((name, _read_value(name, value)) for name, value in (values or {}).items()),
        allow_symlinks,
        1 if micro_batch is None else micro_batch,
        micro_batch_statistics,
    )


def from_recipe(recipe: Mapping[str, object], *, allow_symlinks: bool = False) -> ReadOptions:
    """Return the options that a plan file stores. Raise as `read_options` does."""
    batch, train = recipe.get("batch"), recipe.get("train")
    dims, shapes, values = (_get_table(recipe, key) for key in ("dims", "shapes", "values"))
    return read_options(
        batch=batch if isinstance(batch, int) and _is_integer(batch) else None,
        train=list(map(str, train)) if isinstance(train, list) else train if isinstance(train, str) else None,
        dims={name: size if isinstance(size, (int, str)) else str(size) for name, size in dims.items()},
        shapes={name: sizes if isinstance(sizes, (list, str)) else str(sizes) for name, sizes in shapes.items()},
        values=values,
        allow_symlinks=allow_symlinks,
        micro_batch=parts if isinstance(parts := recipe.get("micro_batches"), int) else None,
        micro_batch_statistics=recipe.get("micro_batch_statistics") is True,
    )


def shape_text(sizes: Sequence[int | str | None]) -> str:
    """Return a shape in the syntax of `--shape`."""
    return "x".join("?" if size is None else str(size) for size in sizes) or "scalar"


def _get_table(recipe: Mapping[str, object], key: str) -> Mapping[str, object]:
    table = recipe.get(key)
    return {str(name): value for name, value in table.items()} if isinstance(table, dict) else {}


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _read_size(option: str, value: object) -> int:
    try:
        size = read_whole(value)
    except ValueError:
        size = 0
    if not 1 <= size <= LARGEST_SIZE:
        raise OptionError(f"{option}: a size must be a whole number from 1 to {LARGEST_SIZE:,}")
    return size


def _read_sizes(name: str, sizes: str | Sequence[int | None]) -> Sizes:
    shown = sizes if isinstance(sizes, str) else shape_text(sizes)
    option = f"--shape {name}={shown}"
    if isinstance(sizes, str):
        text = sizes.strip().strip("[]()").lower().replace("×", "x").replace(",", "x")
        entries: Sequence[object] = [] if text in ("", "scalar") else [entry.strip() for entry in text.split("x")]
        if not text:
            raise OptionError(f"{option}: give every size, as in --shape {name}=1x3x160x160")
    else:
        entries = sizes
    try:
        return tuple(None if entry is None or entry == "?" else _read_size(option, entry) for entry in entries)
    except OptionError as error:
        raise OptionError(
            f"{error}, as in --shape {name}=1x3x160x160; ? stands for a size from the file, --batch or --dim"
        ) from None


def _read_value(name: str, value: object) -> Value:
    """Return the numbers in a text, an array, or nested sequences."""
    shown = str(value) if len(str(value)) < 40 else f"{str(value)[:36]}..."
    option = f"--value {name}={shown}"
    parsed = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(parsed, str):
        try:
            text = f"[{parsed}]" if "," in parsed and not parsed.lstrip().startswith("[") else parsed.lower()
            parsed = json.loads(text, parse_float=read_float32, parse_int=read_whole)
        except (ValueError, RecursionError):
            raise OptionError(f"{option}: give a number, true, false, or a list: 16000, 0.5, [1,3,64,64]") from None
    result = _check_value(option, parsed)
    if _count_numbers(result) > MOST_VALUES:
        raise OptionError(f"{option}: more than {MOST_VALUES:,} values. One number fills an input of any size")
    return result


def _check_value(option: str, value: object, depth: int = 0) -> Value:
    if isinstance(value, (list, tuple)) and depth < 8:
        return tuple(_check_value(option, entry, depth + 1) for entry in value)
    if isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise OptionError(f"{option}: give finite numbers, true or false, or a list of them: 16000, 0.5, [1,3,64,64]")


def _count_numbers(value: Value) -> int:
    return sum(map(_count_numbers, value)) if isinstance(value, tuple) else 1


def _as_lists(value: Value) -> object:
    return [_as_lists(entry) for entry in value] if isinstance(value, tuple) else value


def size_options(options: ReadOptions) -> str:
    """Return the options that gave sizes, for messages: `--batch or --dim`; "" if none did."""
    options_with_sizes = {"--batch": options.batch, "--dim": options.dims, "--shape": options.shapes}
    return " or ".join(option for option, value in options_with_sizes.items() if value)
