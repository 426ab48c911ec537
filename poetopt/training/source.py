"""Sources of batches, epoch by epoch: a data set in a given order, or an iterable in its own order.

Schedules of the learning rate are functions of the step's number alone:

constant          lr
cosine            lr (1 + cos(pi step / steps)) / 2
step:EPOCHS:BY    lr BY^(epoch // EPOCHS); `step:10:0.1` multiplies by 0.1 every ten epochs
warmup:STEPS,...  the schedule that follows, times (step + 1) / STEPS in the first STEPS, which a cosine doesn't count
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np

from poetopt.graph import TrainingGraph
from poetopt.training.data import DataSet, open_data
from poetopt.training.data.arrays import fault
from poetopt.util.errors import ModelError, OptionError
from poetopt.util.numbers import LEAST, read_number, read_whole
from poetopt.util.progress import Told

if TYPE_CHECKING:
    from poetopt.graph import Array


ORDERS = ("shuffle", "sequential")


def rows_in_order(rows: int, order: str, seed: int, epoch: int) -> Array:
    """Return the numbers of all rows in the order of an epoch (from 0). Raises OptionError for an unknown order.

    Shuffling uses numpy's legacy generator, whose numbers never change: a resumed training may run with another numpy.
    """
    if order not in ORDERS:
        raise OptionError(f"--batch-order {order}: must be {' or '.join(ORDERS)}")
    order_of_rows: Array = np.arange(rows, dtype=np.uint32 if rows < 2**32 else np.uint64)
    if order == "shuffle":
        np.random.RandomState([seed % 2**32, epoch]).shuffle(order_of_rows)
    return order_of_rows


EXAMPLES = (
    "constant, cosine, or step:EPOCHS:FACTOR as in step:10:0.1, optionally after warmup:STEPS as in "
    "warmup:500,cosine or warmup:5%,cosine"
)


@dataclass(frozen=True)
class RateSchedule:
    """Schedule of the learning rate.

    Attributes
    ----------
    kind
        `constant`, `cosine` or `step`.
    every, by
        For `step`: the number of epochs, and the factor after each.
    warmup
        Steps in which the rate rises evenly to its full value; below 1, a share of all steps.
    """

    kind: str
    every: int = 1
    by: float = 1.0
    warmup: float = 0

    @property
    def needs_length(self) -> bool:
        """Return whether the rate depends on the total number of steps."""
        return self.kind == "cosine" or 0 < self.warmup < 1

    def rate(self, lr: float, step: int, epoch: int, steps: int) -> float:
        """Return the rate of a step in an epoch (both from 0) of a training of `steps`; 0 below all float32s."""
        value = self._rate(lr, step, epoch, steps)
        return value if value >= LEAST else 0.0

    def _rate(self, lr: float, step: int, epoch: int, steps: int) -> float:
        warmup_steps = math.ceil(self.warmup * steps) if self.warmup < 1 else int(self.warmup)
        if step < warmup_steps:
            lr *= (step + 1) / warmup_steps
        if self.kind == "cosine":
            return lr * (1 + math.cos(math.pi * max(0, step - warmup_steps) / max(1, steps - warmup_steps))) / 2
        try:
            return float(lr * self.by ** (epoch // self.every))
        except OverflowError:
            return math.inf


def parse_schedule(text: str) -> RateSchedule:
    """Parse the option `--lr-schedule`. Raises OptionError."""
    first, comma, then = text.partition(",")
    warmup_text = first.removeprefix("warmup:")
    kind, *rest = (then if comma else "constant").split(":") if warmup_text != first else text.split(":")
    try:
        warmup = (
            0.0
            if warmup_text == first
            else read_number(warmup_text[:-1]) / 100
            if warmup_text.endswith("%")
            else read_whole(warmup_text)
        )
        is_valid = 0 < warmup < 1 if warmup_text.endswith("%") else warmup >= (warmup_text != first)
        if is_valid and kind in ("constant", "cosine") and not rest:
            return RateSchedule(kind, warmup=warmup)
        if is_valid and kind == "step" and len(rest) == 2:
            every, factor = read_whole(rest[0]), read_number(rest[1])
            if every >= 1 and factor > 0:
                return RateSchedule(kind, every, factor, warmup)
    except ValueError:
        pass
    raise OptionError(f"--lr-schedule {text}: must be {EXAMPLES}")


if TYPE_CHECKING:
    from poetopt.graph import Array

    Batch = Mapping[str, Array]

Batches = Iterable[object] | Callable[[int], Iterable[object]]
"""Custom batches: arrays by input name, or a sequence of arrays in input order.

A function is called with the number of each epoch, from 0.
"""
Data = Mapping[str, object] | str | os.PathLike[str] | DataSet | Batches


USED_UP = (
    "the data is an iterator, which yields its batches only once. "
    "Give a list, a loader, or a function that takes the epoch."
)


class Source(Protocol):
    """Source of the batches of a training.

    Attributes
    ----------
    shown
        Its name in messages.
    batches
        Full batches of an epoch; None if unknown.
    left_out
        Rows at the end of an epoch that fill no batch.
    rows
        Number of rows; None if unknown.
    """

    @property
    def shown(self) -> str: ...
    @property
    def batches(self) -> int | None: ...
    @property
    def left_out(self) -> int: ...
    @property
    def rows(self) -> int | None: ...

    def check(self, told: Told) -> str | None:
        """Check all values if that is faster than training; return their digest, or None if it is unknown.

        Raises ModelError for an invalid value.
        """

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch without the first `start`. Raises ModelError for an invalid batch."""


def source_of(data: Data, graph: TrainingGraph, order: str, seed: int, workdir: Path | None = None) -> Source:
    """Open `data` as a source of batches. Raises ModelError for data that can't be read, or fit no input."""
    if isinstance(data, (str, os.PathLike, Mapping)):
        return _OrderedSource(open_data(data, graph, workdir), graph, order, seed)
    if hasattr(data, "take") and hasattr(data, "where"):
        return _OrderedSource(cast(DataSet, data), graph, order, seed)
    if isinstance(data, (tuple, list)) and 0 < len(data) <= len(graph.inputs) and all(map(_is_array, data)):
        example = ", ".join(f'"{name}": ...' for name in graph.inputs)
        raise ModelError(f"the data is a {type(data).__name__} of arrays. Give them by input name: {{{example}}}.")
    if not callable(data) and not hasattr(data, "__iter__"):
        raise ModelError(
            f"the data has type {type(data).__name__}. Give arrays by input name, a path, or an iterable of batches."
        )
    return _IterableSource(data, graph)


def _is_array(data: object) -> bool:
    """Return whether `data` is an array rather than a batch of arrays."""
    return hasattr(data, "shape") and hasattr(data, "dtype")


class _OrderedSource:
    """Source of a data set's rows, in the order of a seed."""

    def __init__(self, data: DataSet, graph: TrainingGraph, order: str, seed: int) -> None:
        self.data, self.graph, self.order, self.seed = data, graph, order, seed
        self.shown, self.rows = data.shown, data.rows
        self.size = batch_size(graph)
        self.batches, self.left_out = divmod(data.rows, self.size)
        rows_in_order(0, order, seed, 0)
        if not self.batches:
            raise ModelError(
                f"{data.shown}: it has {data.rows} rows, and a batch of this plan has {self.size}. Give more rows, "
                f"or solve with --batch {data.rows}."
            )

    def check(self, told: Told) -> str:
        return self.data.check(told)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        rows = rows_in_order(self.data.rows, self.order, self.seed, epoch)
        for k in range(start, self.batches or 0):
            numbers = rows[k * self.size : (k + 1) * self.size].astype(np.int64)
            batch = self.data.take(numbers)
            for name, array in batch.items():
                if fault_text := fault(self.graph, name, array):
                    bad_row = next(
                        (row for n, row in enumerate(numbers) if fault(self.graph, name, array[n : n + 1])), numbers[0]
                    )
                    raise ModelError(f"{self.data.where(int(bad_row))}: {fault_text}")
            yield batch


class _IterableSource:
    """Source of the batches of a custom iterable."""

    def __init__(self, batches: Batches, graph: TrainingGraph) -> None:
        self._given, self.graph = batches, graph
        self.shown, self.left_out, self.rows = "the data", 0, None
        # Decided by its type: `iter` of a loader would start its workers, and draw from its generator.
        self.once = isinstance(batches, Iterator)
        self._begun = False
        self.batches = len(batches) if isinstance(batches, Sized) else None

    def check(self, told: Told) -> None:
        """Return None: each batch is checked when it comes."""

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        iterable = self._given(epoch) if callable(self._given) else self._given
        if self.once and self._begun:
            raise ModelError(f"epoch {epoch + 1}: {USED_UP}")
        self._begun = True
        count = start
        for count, batch in enumerate(itertools.islice(iterable, start, None), start + 1):
            yield checked_batch(self.graph, batch, f"batch {count - 1} of epoch {epoch + 1}")
        if not count:
            raise ModelError(f"epoch {epoch + 1}: the data has no batches")


def checked_batch(graph: TrainingGraph, batch: object, shown: str) -> Batch:
    """Return a custom batch as arrays by input name, free of NaN and with labels in range.

    Parameters
    ----------
    shown
        Its name in messages.

    Raises
    ------
    ModelError
        For a batch that fits no input, or invalid values.
    """
    names = graph.inputs
    if not isinstance(batch, Mapping):
        if not isinstance(batch, Sequence) or len(batch) != len(names):
            raise ModelError(
                f"{shown}: it must be arrays by name, or one array for each of {', '.join(map(repr, names))} in order"
            )
        batch = dict(zip(names, batch, strict=True))
    arrays: dict[str, Array] = {}
    for name in names:
        if name not in batch:
            raise ModelError(f"{shown}: it lacks the input {name!r}; it has {', '.join(map(repr, batch))}")
        try:
            arrays[name] = np.asarray(batch[name])
        except (ValueError, TypeError, RuntimeError) as error:
            raise ModelError(f"{shown}: {name!r} is not an array: {error}") from error
        if fault_text := fault(graph, name, arrays[name]):
            raise ModelError(f"{shown}: {fault_text}")
    return arrays


def batch_size(graph: TrainingGraph) -> int:
    """Return the rows of a batch: the first axis of the first input that has axes."""
    return next((graph.tensors[name].shape[0] for name in graph.inputs if graph.tensors[name].shape), 1)
