"""Parameters with values that are no numbers: a file of a training that diverged, or a damaged one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from poetopt.util.notes import About, Note

if TYPE_CHECKING:
    from poetopt.graph import Array

_LEAST_INFINITE = {"float16": 0x7C00, "bfloat16": 0x7F80}
"""The bits of plus infinity, above which are those of what is no number."""


def note(arrays: Mapping[str, Array]) -> list[str]:
    """What to say of parameters with NaN or infinities: one line, or nothing."""
    found = [name for name, array in arrays.items() if not _finite(array)]
    if not found:
        return []
    text = f"NaN or infinite values in {len(found)} of {len(arrays)} parameters, {found[0]!r} the first: loss and "
    text += "gradients won't be numbers either"
    return [Note(f"{text}; export the model from a checkpoint without them", About.GRADIENTS, text)]


def _finite(array: Array) -> bool:
    """Whether all values are numbers, at a few percent of what reading them takes."""
    flat = np.ascontiguousarray(array).reshape(-1)
    least = _LEAST_INFINITE.get(array.dtype.name)
    if least is not None:
        return not array.size or int((flat.view(np.uint16) & 0x7FFF).max()) < least
    # a third of the time of asking each value, which is what is left where the squares are too large
    with np.errstate(all="ignore"):
        return bool(np.isfinite(np.dot(flat, flat))) or bool(np.isfinite(flat).all())
