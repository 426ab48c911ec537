"""A folder of folders of images: each folder is a class, numbered from 0 in the order of their names.

An image (BMP, GIF, JPEG, PNG, TIFF, WebP) becomes the model's one input: scaled to its height and width, with as many
channels as that has (1: grey, 3: colours, 4: with transparency), channels first or last as in its shape, and numbers
from 0 to 1, or from 0 to 255 where the input is uint8. Other scalings belong into the model, or into an iterable of
one's own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from poetopt.errors import BackendUnavailableError, ModelError
from poetopt.graph import TrainingGraph
from poetopt.inputs import open_regular
from poetopt.step.memory import numpy_dtype
from poetopt.telling import Told, silent
from poetopt.training.data.arrays import fault
from poetopt.training.data.digest import Digest

if TYPE_CHECKING:
    from poetopt.graph import Array

ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")
"""All that Pillow is let try, whatever a file is called: for others it starts programs."""
PIXELS = 2**26
"""The most that an image may have: it takes up to four bytes for each."""
MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""Pillow's word for so many channels."""


class Images:
    """Images by their paths, each with its class; decoded when they are taken."""

    def __init__(self, graph: TrainingGraph, shown: str, paths: Sequence[Path], labels: Sequence[int]) -> None:
        self.graph, self.shown, self.paths = graph, shown, paths
        self.rows = len(paths)
        (self._name,) = (name for name in graph.inputs if name not in graph.added_inputs)
        (self._labels_name,) = graph.added_inputs
        self._labels: Array = np.array(labels, np.int64)
        shape = graph.tensors[self._name].shape
        self._last = shape[1] not in MODES
        self._height, self._width = shape[1:3] if self._last else shape[2:4]
        self._mode = MODES[shape[3] if self._last else shape[1]]
        self._dtype = numpy_dtype(graph.tensors[self._name].dtype)
        self._pillow = pillow()

    def take(self, rows: Array) -> Mapping[str, Array]:
        """See `DataSet`."""
        images = np.stack([self._image(self.paths[row]) for row in rows.tolist()])
        return {self._name: images, self._labels_name: self._labels[rows]}

    def where(self, row: int) -> str:
        """See `DataSet`."""
        return str(self.paths[row])

    def check(self, told: Told = silent) -> str:
        """Of the labels alone: each image is looked at when it is read."""
        for row in range(self.rows):
            if what := fault(self.graph, self._labels_name, self._labels[row : row + 1]):
                raise ModelError(f"{self.where(row)}: {what}: {self.shown} has a folder for each class")
        try:
            return Digest.of(f"{path.parent.name}/{path.name} {path.stat().st_size}" for path in self.paths)
        except OSError as error:
            raise ModelError(f"can't read {error.filename}: {error.strerror or error}") from error

    def _image(self, path: Path) -> Array:
        try:
            with open_regular(path) as file, self._pillow.open(file, formats=FORMATS) as image:
                if image.width * image.height > PIXELS:
                    raise ValueError(f"it has {image.width * image.height:,} pixels, and at most {PIXELS:,} are read")
                sized = image.convert(self._mode).resize((self._width, self._height), self._pillow.Resampling.BILINEAR)
        except Exception as error:
            what = f"none of {', '.join(FORMATS)}" if type(error) is self._pillow.UnidentifiedImageError else error
            what = error.strerror or error if isinstance(error, OSError) and error.errno else what
            raise ModelError(f"{path}: no image that can be read ({what}); remove it, or write it again") from error
        pixels = np.asarray(sized).reshape(self._height, self._width, -1)
        made = pixels if self._dtype == np.uint8 else (pixels / np.float32(255)).astype(self._dtype)
        found: Array = made if self._last else made.transpose(2, 0, 1)
        return found


def pillow() -> Any:
    """Pillow's module of images. Raises BackendUnavailableError."""
    try:
        from PIL import Image
    except ImportError as error:
        raise BackendUnavailableError(
            "images are read by Pillow, which is not installed; install it with: pip install pillow"
        ) from error
    return Image


def of_images(graph: TrainingGraph, folder: Path, classes: Sequence[Path]) -> Images:
    """The images of a folder. Raises ModelError where there are none, or the model has no input for them."""
    paths: list[Path] = []
    labels: list[int] = []
    for number, place in enumerate(classes):
        try:
            names = sorted(entry.name for entry in os.scandir(place) if entry.name.lower().endswith(ENDINGS))
        except OSError as error:
            raise ModelError(f"can't read the folder {place}: {error.strerror or error}") from error
        if not names:
            raise ModelError(f"{place}: it holds no image; remove the folder, or its class has no sample")
        paths += [place / name for name in names]
        labels += [number] * len(names)
    if not paths:
        raise ModelError(f"{folder}: it holds neither .npz files nor folders of images, one for each class")
    given = [name for name in graph.inputs if name not in graph.added_inputs]
    shape = graph.tensors[given[0]].shape if len(given) == 1 else ()
    fits = len(shape) == 4 and (shape[1] in MODES or shape[3] in MODES)
    if not fits or graph.loss_kind != "cross-entropy" or len(graph.tensors[graph.added_inputs[0]].shape) != 1:
        raise ModelError(
            f"{folder}: images in folders are for a model with one input [batch, channels, height, width] and "
            "cross-entropy on its classes; give the arrays of this one as .npz"
        )
    return Images(graph, str(folder), paths, labels)
