"""Images as they are trained on, otherwise in each epoch: by seed, epoch and batch alone, so that a resumed training
sees the same.

flip    each image left to right, with a probability of one half
crop    each image moved by up to an eighth of its height and width, and black where nothing is left
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

Own = Callable[[Mapping[str, Any], np.random.RandomState], Mapping[str, Any]]
"""Of a batch, arrays by input name, and random numbers of its own: the batch that is trained on."""
Asked = str | Own | Iterable[str | Own]


class Augmented:
    """Gives the batches of `source`, changed; as what is trained on (`poetopt.training.source.Source`)."""

    def __init__(self, source: Source, asked: Asked, graph: TrainingGraph, seed: int) -> None:
        self.source, self.graph, self.seed = source, graph, seed
        self.shown, self.batches = source.shown, source.batches
        self.left_out, self.rows = source.left_out, source.rows
        self.once = getattr(source, "once", False)
        given = [asked] if callable(asked) else asked.split(",") if isinstance(asked, str) else asked
        self._changes = [one if callable(one) else _named(one.strip(), graph) for one in given]

    def check(self, told: Told) -> str | None:
        """See `Source`."""
        return self.source.check(told)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Mapping[str, Array]]:
        """See `Source`."""
        for k, batch in enumerate(self.source.epoch(epoch, start), start):
            # numpy's legacy generator, whose numbers never change
            random = np.random.RandomState([self.seed % 2**32, epoch, k])
            for change in self._changes:
                batch = change(batch, random)
            yield checked_batch(self.graph, batch, f"batch {k} of epoch {epoch + 1}, augmented")


def augment_words(asked: Asked) -> str:
    """The words of a checkpoint for it."""
    parts = [asked] if isinstance(asked, str) or callable(asked) else asked
    return ",".join(getattr(one, "__name__", type(one).__name__) if callable(one) else one for one in parts)


def _named(name: str, graph: TrainingGraph) -> Own:
    if name not in _CHANGES:
        raise OptionError(
            f"--with augment={name}: unknown{closest(name, _CHANGES)}; there are {', '.join(_CHANGES)}, and in Python "
            "functions of your own"
        )
    images = image_input(graph)
    if images is None:
        raise ModelError(
            f"--with augment={name}: it is for one input of images [batch, channels, height, width] with a class each; "
            "change other batches by a function of your own in Python, fit(..., augment=function)"
        )
    first, change = 2 if graph.tensors[images].shape[1] in MODES else 1, _CHANGES[name]
    return lambda batch, random: {**batch, images: change(batch[images], first, random)}


def _flip(images: Any, first: int, random: np.random.RandomState) -> Any:
    turned = random.random_sample(len(images)) < 0.5
    found = images.copy()
    found[turned] = np.flip(images[turned], first + 1)
    return found


def _crop(images: Any, first: int, random: np.random.RandomState) -> Any:
    found = np.zeros_like(images)
    # images move by up to this part of their size
    most = [size // 8 for size in images.shape[first : first + 2]]
    moves = np.stack([random.randint(-part, part + 1, len(images)) for part in most], 1).tolist()
    for k, move in enumerate(moves):
        place: list[Any] = [slice(None)] * (images.ndim - 1)
        source = list(place)
        for axis, by in enumerate(move, first - 1):
            size = images.shape[axis + 1]
            place[axis], source[axis] = slice(max(0, by), size + min(0, by)), slice(max(0, -by), size - max(0, by))
        found[k][tuple(place)] = images[k][tuple(source)]
    return found


_CHANGES: dict[str, Callable[[Any, int, np.random.RandomState], Any]] = {"flip": _flip, "crop": _crop}
