"""Grids, anchors and strides that a detector decodes its boxes with: data, stored as floats beside the weights.

Such a tensor is added to or multiplied with what was computed, and has round numbers: whole or half ones (the places of
a grid, a stride, boxes in pixels), or eighths to sixty-fourths (boxes in strides). A weight has such a place, too, but
not three different round numbers and no other, or two strides (8 and 16): fresh ones are all equal, or random.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from poetopt.frontends.operands import FLOATS, biases
from poetopt.frontends.read import Document, array_of
from poetopt.frontends.views import Views, reads
from poetopt.util.notes import Note, listed

if TYPE_CHECKING:
    from poetopt.graph import Array

_ELEMENTWISE = frozenset({"Add", "Concat", "Div", "Mul", "Pow", "Sub", "Sum"})
_CALLED = re.compile(
    r"anchor|(^|[./_])(m?grids?|strides?|priors?|prior_?boxe?s?|default_?boxe?s?|dboxes)([./_:]|$)", re.I
)
_OWN = re.compile(r"\w[./:](weights?|bias(es)?|kernel|gamma|beta)(/read)?(:0)?$")
"""Names of a module's own scale and bias; `grid_offset` and `stride_scale` are names of data as well."""
_FIRST = 64
"""So many numbers are looked at before all of them are."""
_DIFFERENT = 3


def grids(document: Document, seen: Views) -> tuple[str, ...]:
    """Names of the float weights that are such tensors, by their readers and their numbers (or their name)."""
    elementwise: dict[str, set[str]] = {}
    other = biases(document, seen)
    for node in document.proto.graph.node:
        for _, name in reads(document, seen, node):
            if any(output in seen for output in node.output):
                continue
            if node.op_type in _ELEMENTWISE:
                elementwise.setdefault(name, set()).add(node.op_type)
            else:
                other.add(name)
    return tuple(
        name
        for name, ops in elementwise.items()
        if name not in other
        and document.weights[name].dims
        and document.weights[name].data_type in FLOATS
        and name not in document.fills
        and not _OWN.search(name)
        and (_CALLED.search(name) or _round(array_of(document, name), ops))
    )


def _round(array: Array, ops: set[str]) -> bool:
    """Whether all numbers are round, and several are different."""
    values = np.asarray(array, np.float64).reshape(-1)
    if "Mul" in ops and 2 <= values.size <= _FIRST and np.unique(values).size > 1 and _strides(values):
        return True
    for share in (2, 64) if "Mul" in ops else (2,):
        if values.size >= _DIFFERENT and _multiples(values[:_FIRST], share) and _multiples(values, share):
            return np.unique(values).size >= _DIFFERENT
    return False


def _strides(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> bool:
    """Whether all are powers of two from 2 on."""
    with np.errstate(all="ignore"):
        return bool((values >= 2).all()) and bool((np.frexp(values)[0] == 0.5).all())


def _multiples(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]], share: int) -> bool:
    """Whether all are finite multiples of 1 / share."""
    with np.errstate(all="ignore"):
        scaled = values * share
        return bool(np.isfinite(values).all()) and bool((scaled == np.round(scaled)).all())


def note(names: Sequence[str]) -> list[str]:
    """What to say of them: one line, or nothing."""
    if not names:
        return []
    text = f"grids, anchors and strides are data ({listed(names)})"
    return [Note(f"{text}; --train names them where they are parameters", short=f"{text}, not trained")]
