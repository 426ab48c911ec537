"""Random changes of training images, different in each epoch.

They depend on seed, epoch and batch alone, so that a resumed training repeats them.

flip    mirror each image left to right, with a probability of one half
crop    shift each image by up to an eighth of its height and width; the uncovered border is black
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from poetopt.graph import TrainingGraph
from poetopt.training.data.files import MODES, image_input
from poetopt.training.source import Source, checked_batch
from poetopt.util.errors import ModelError, OptionError
from poetopt.util.progress import Told
from poetopt.util.text import closest

if TYPE_CHECKING:
    from poetopt.graph import Array

BatchFunction = Callable[[Mapping[str, Any], np.random.RandomState], Mapping[str, Any]]
"""A function of a batch (arrays by input name) and its random generator, that returns the batch to train on."""
Asked = str | BatchFunction | Iterable[str | BatchFunction]


class Augmented:
    """Source (`poetopt.training.source.Source`) that changes the batches of another source."""

    def __init__(self, source: Source, augment: Asked, graph: TrainingGraph, seed: int) -> None:
        self.source, self.graph, self.seed = source, graph, seed
        self.shown, self.batches = source.shown, source.batches
        self.left_out, self.rows = source.left_out, source.rows
        self.once = getattr(source, "once", False)
        parts = [augment] if callable(augment) else augment.split(",") if isinstance(augment, str) else augment
        self._changes = [part if callable(part) else _named(part.strip(), graph) for part in parts]

    def check(self, told: Told) -> str | None:
        return self.source.check(told)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Mapping[str, Array]]:
        for k, batch in enumerate(self.source.epoch(epoch, start), start):
            # numpy's legacy generator: its numbers never change between versions
            random = np.random.RandomState([self.seed % 2**32, epoch, k])
            for change in self._changes:
                batch = change(batch, random)
            yield checked_batch(self.graph, batch, f"batch {k} of epoch {epoch + 1}, augmented")


def augment_words(augment: Asked) -> str:
    """Return the names of the changes, for a checkpoint."""
    parts = [augment] if isinstance(augment, str) or callable(augment) else augment
    return ",".join(getattr(part, "__name__", type(part).__name__) if callable(part) else part for part in parts)


def _named(name: str, graph: TrainingGraph) -> BatchFunction:
    if name not in _CHANGES:
        raise OptionError(
            f"--augment {name}: unknown{closest(name, _CHANGES)}. There are {', '.join(_CHANGES)}; in Python, "
            "augment= also takes functions."
        )
    image_name = image_input(graph)
    if image_name is None:
        raise ModelError(
            f"--augment {name}: it needs one input of images [batch, channels, height, width] with a class each. "
            "Change other batches by a function in Python: fit(..., augment=function)."
        )
    first, change = 2 if graph.tensors[image_name].shape[1] in MODES else 1, _CHANGES[name]
    return lambda batch, random: {**batch, image_name: change(batch[image_name], first, random)}


def _flip(images: Any, first: int, random: np.random.RandomState) -> Any:
    is_flipped = random.random_sample(len(images)) < 0.5
    flipped = images.copy()
    flipped[is_flipped] = np.flip(images[is_flipped], first + 1)
    return flipped


def _crop(images: Any, first: int, random: np.random.RandomState) -> Any:
    cropped = np.zeros_like(images)
    limits = [size // 8 for size in images.shape[first : first + 2]]
    shifts = np.stack([random.randint(-limit, limit + 1, len(images)) for limit in limits], 1).tolist()
    for k, shift in enumerate(shifts):
        target: list[Any] = [slice(None)] * (images.ndim - 1)
        source = list(target)
        for axis, offset in enumerate(shift, first - 1):
            size = images.shape[axis + 1]
            target[axis], source[axis] = (
                slice(max(0, offset), size + min(0, offset)),
                slice(max(0, -offset), size - max(0, offset)),
            )
        cropped[k][tuple(target)] = images[k][tuple(source)]
    return cropped


_CHANGES: dict[str, Callable[[Any, int, np.random.RandomState], Any]] = {"flip": _flip, "crop": _crop}
