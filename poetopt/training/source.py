"""Batches, epoch by epoch: of a data set in an order of ours, or of an iterable in its own.

Learning rates by step: a function of the step's number alone.

constant          lr
cosine            lr (1 + cos(pi step / steps)) / 2
step:EPOCHS:BY    lr BY^(epoch // EPOCHS), so `step:10:0.1` takes a tenth every ten epochs
warmup:STEPS,...  that times (step + 1) / STEPS in the first STEPS, which a cosine doesn't count
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
    """The numbers of all rows in the order of an epoch (from 0). Raises OptionError for an unknown order.

    What is shuffled comes from numpy's legacy generator, whose numbers never change: a resumed training may have
    another numpy.
    """
    if order not in ORDERS:
        raise OptionError(f"--batch-order {order}: must be {' or '.join(ORDERS)}")
    found: Array = np.arange(rows, dtype=np.uint32 if rows < 2**32 else np.uint64)
    if order == "shuffle":
        np.random.RandomState([seed % 2**32, epoch]).shuffle(found)
    return found


EXAMPLES = (
    "constant, cosine, or step:EPOCHS:FACTOR as in step:10:0.1; before it may stand warmup:STEPS, as in "
    "warmup:500,cosine or warmup:5%,cosine"
)


@dataclass(frozen=True)
class RateSchedule:
    """Holds what becomes of a learning rate.

    kind
        `constant`, `cosine` or `step`.
    every, by
        Of `step`: after how many epochs, and by what.
    warmup
        Steps in which the rate rises evenly to the whole one; below 1 a share of all steps.
    """

    kind: str
    every: int = 1
    by: float = 1.0
    warmup: float = 0

    @property
    def needs_length(self) -> bool:
        """Says whether it depends on how many steps there will be."""
        return self.kind == "cosine" or 0 < self.warmup < 1

    def rate(self, lr: float, step: int, epoch: int, steps: int) -> float:
        """The rate of a step (from 0) in an epoch (from 0) of a training of `steps`; 0 below all float32s."""
        found = self._rate(lr, step, epoch, steps)
        return found if found >= LEAST else 0.0

    def _rate(self, lr: float, step: int, epoch: int, steps: int) -> float:
        rising = math.ceil(self.warmup * steps) if self.warmup < 1 else int(self.warmup)
        if step < rising:
            lr *= (step + 1) / rising
        if self.kind == "cosine":
            return lr * (1 + math.cos(math.pi * max(0, step - rising) / max(1, steps - rising))) / 2
        try:
            return float(lr * self.by ** (epoch // self.every))
        except OverflowError:
            return math.inf


def parse_schedule(text: str) -> RateSchedule:
    """A `--lr-schedule`. Raises OptionError."""
    first, comma, then = text.partition(",")
    warm = first.removeprefix("warmup:")
    kind, *rest = (then if comma else "constant").split(":") if warm != first else text.split(":")
    try:
        warmup = 0.0 if warm == first else read_number(warm[:-1]) / 100 if warm.endswith("%") else read_whole(warm)
        fits = 0 < warmup < 1 if warm.endswith("%") else warmup >= (warm != first)
        if fits and kind in ("constant", "cosine") and not rest:
            return RateSchedule(kind, warmup=warmup)
        if fits and kind == "step" and len(rest) == 2:
            every, by = read_whole(rest[0]), read_number(rest[1])
            if every >= 1 and by > 0:
                return RateSchedule(kind, every, by, warmup)
    except ValueError:
        pass
    raise OptionError(f"--lr-schedule {text}: must be {EXAMPLES}")


if TYPE_CHECKING:
    from poetopt.graph import Array

    Batch = Mapping[str, Array]

Batches = Iterable[object] | Callable[[int], Iterable[object]]
"""Batches of one's own: arrays by input name, or a sequence of arrays in the order of the inputs. A function is asked
for each epoch's, from 0."""
Data = Mapping[str, object] | str | os.PathLike[str] | DataSet | Batches


USED_UP = (
    "the data is an iterator, which gives its batches once; give a list, a loader, or a function that takes the epoch"
)


class Source(Protocol):
    """Holds what is trained on.

    shown
        What messages call it.
    batches
        How many whole ones an epoch has; None where nobody knows.
    left_out
        Rows at the end of an epoch that fill no batch.
    rows
        How many rows it has; None where nobody knows.
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
        """Look at all values, where that takes less than training does; their digest, None where nobody knows.

        Raises ModelError for one that is none.
        """

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, without the first `start`. Raises ModelError for one that can't be trained on."""


def source_of(data: Data, graph: TrainingGraph, order: str, seed: int, workdir: Path | None = None) -> Source:
    """Batches of `data`. Raises ModelError for what can't be read, or fits no input."""
    if isinstance(data, (str, os.PathLike, Mapping)):
        return _Ordered(open_data(data, graph, workdir), graph, order, seed)
    if hasattr(data, "take") and hasattr(data, "where"):
        return _Ordered(cast(DataSet, data), graph, order, seed)
    if isinstance(data, (tuple, list)) and 0 < len(data) <= len(graph.inputs) and all(map(_of_rows, data)):
        named = ", ".join(f'"{name}": ...' for name in graph.inputs)
        raise ModelError(f"the data is a {type(data).__name__} of arrays; say which is which: {{{named}}}")
    if not callable(data) and not hasattr(data, "__iter__"):
        raise ModelError(
            f"the data is of type {type(data).__name__}; give arrays by input name, a path, or an iterable of batches"
        )
    return _Own(data, graph)


def _of_rows(data: object) -> bool:
    """Tell whether it is an array, and no batch of arrays."""
    return hasattr(data, "shape") and hasattr(data, "dtype")


class _Ordered:
    """Of a data set, in the order of a seed."""

    def __init__(self, data: DataSet, graph: TrainingGraph, order: str, seed: int) -> None:
        self.data, self.graph, self.order, self.seed = data, graph, order, seed
        self.shown, self.rows = data.shown, data.rows
        self.size = batch_size(graph)
        self.batches, self.left_out = divmod(data.rows, self.size)
        rows_in_order(0, order, seed, 0)
        if not self.batches:
            raise ModelError(
                f"{data.shown}: it holds {data.rows} rows, and a batch of this plan has {self.size}; give more rows, "
                f"or solve with --batch {data.rows}"
            )

    def check(self, told: Told) -> str:
        """See `Source`."""
        return self.data.check(told)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """See `Source`."""
        rows = rows_in_order(self.data.rows, self.order, self.seed, epoch)
        for k in range(start, self.batches or 0):
            taken = rows[k * self.size : (k + 1) * self.size].astype(np.int64)
            batch = self.data.take(taken)
            for name, array in batch.items():
                if what := fault(self.graph, name, array):
                    at = next(
                        (row for n, row in enumerate(taken) if fault(self.graph, name, array[n : n + 1])), taken[0]
                    )
                    raise ModelError(f"{self.data.where(int(at))}: {what}")
            yield batch


class _Own:
    """Of an iterable of the user's."""

    def __init__(self, batches: Batches, graph: TrainingGraph) -> None:
        self._given, self.graph = batches, graph
        self.shown, self.left_out, self.rows = "the data", 0, None
        # Told by its kind: `iter` of a loader would start its workers, and draw from its generator.
        self.once = isinstance(batches, Iterator)
        self._begun = False
        self.batches = len(batches) if isinstance(batches, Sized) else None

    def check(self, told: Told) -> None:
        """None: each batch is looked at when it comes."""

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """See `Source`."""
        given = self._given(epoch) if callable(self._given) else self._given
        if self.once and self._begun:
            raise ModelError(f"epoch {epoch + 1}: {USED_UP}")
        self._begun = True
        count = start
        for count, batch in enumerate(itertools.islice(given, start, None), start + 1):
            yield checked_batch(self.graph, batch, f"batch {count - 1} of epoch {epoch + 1}")
        if not count:
            raise ModelError(f"epoch {epoch + 1}: the data gives no batches")


def checked_batch(graph: TrainingGraph, batch: object, shown: str) -> Batch:
    """A batch of the user's own as arrays by input name, without NaN and with labels in their range.

    shown
        What messages call it.

    Raises ModelError.
    """
    names = graph.inputs
    if not isinstance(batch, Mapping):
        if not isinstance(batch, Sequence) or len(batch) != len(names):
            raise ModelError(
                f"{shown}: it must be arrays by name, or one for each of {', '.join(map(repr, names))} in order"
            )
        batch = dict(zip(names, batch, strict=True))
    found: dict[str, Array] = {}
    for name in names:
        if name not in batch:
            raise ModelError(f"{shown}: it lacks the input {name!r}; it has {', '.join(map(repr, batch))}")
        try:
            found[name] = np.asarray(batch[name])
        except (ValueError, TypeError, RuntimeError) as error:
            raise ModelError(f"{shown}: {name!r} is no array: {error}") from error
        if what := fault(graph, name, found[name]):
            raise ModelError(f"{shown}: {what}")
    return found


def batch_size(graph: TrainingGraph) -> int:
    """Rows of a batch: the first axis of the first input that has one."""
    return next((graph.tensors[name].shape[0] for name in graph.inputs if graph.tensors[name].shape), 1)
