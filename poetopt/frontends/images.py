"""Simple functions of a weight that a file stores beside it: the weight's gradient lacks the share through them.

PyTorch's older exporter folds `1 - w` into an `onnx::Mul_1247`, and nothing says what that was. Where the weight itself
is left in the file, values tell; nothing is changed, for the function was rounded by the exporter's kernels, not by the
runtime's. Copies with other axes are tied (see `ties`), rows of a weight told by `slices`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from poetopt.frontends.leftovers import named_by_exporter
from poetopt.frontends.operands import FLOATS
from poetopt.frontends.read import Document, array_of
from poetopt.util.notes import About, Note

Values = NDArray[np.float64]

_LEAST_VALUES = 16
"""With fewer different values two tensors may be alike by chance."""
_CLOSE = 1e-6
_FUNCTIONS: Mapping[str, Callable[[Values], Values]] = {
    "-{w}": lambda w: -w,
    "1 - {w}": lambda w: 1 - w,
    "1 + {w}": lambda w: 1 + w,
    "exp({w})": np.exp,
    "-exp({w})": lambda w: -np.exp(w),
    "sigmoid({w})": lambda w: 1 / (1 + np.exp(-w)),
    "tanh({w})": np.tanh,
    "{w}^2": np.square,
}


def images(document: Document) -> dict[str, tuple[str, str]]:
    """Tensors with a name that an exporter made up -> what function they hold, and of which weight."""
    read = {name for node in document.proto.graph.node for name in node.input}
    sizes: dict[int, list[str]] = {}
    for name, proto in document.weights.items():
        size = math.prod(proto.dims)
        if name in read and name not in document.fills and proto.data_type in FLOATS and size >= _LEAST_VALUES:
            sizes.setdefault(size, []).append(name)
    found: dict[str, tuple[str, str]] = {}
    for group in sizes.values():
        own = [name for name in group if not named_by_exporter(name)]
        made_up = [name for name in group if named_by_exporter(name)]
        if not own or not made_up:
            continue
        heads = np.stack([_values(document, name, _LEAST_VALUES) for name in own])
        with np.errstate(all="ignore"):
            expected = {text: function(heads) for text, function in _FUNCTIONS.items()}
        for name in made_up:
            head = _values(document, name, _LEAST_VALUES)
            for text, rows in expected.items():
                for place in np.flatnonzero(_close(rows, head).all(axis=1)):
                    value, weight = _values(document, name), _values(document, own[place])
                    with np.errstate(all="ignore"):
                        equal = _close(_FUNCTIONS[text](weight), value).all()
                    if equal and np.unique(weight).size >= _LEAST_VALUES:
                        found.setdefault(name, (text.format(w=own[place]), own[place]))
    return found


def _values(document: Document, name: str, count: int | None = None) -> Values:
    """The first `count` numbers of a weight, or all of them."""
    return np.asarray(array_of(document, name).reshape(-1)[:count], np.float64)


def _close(left: Values, right: Values) -> NDArray[np.bool_]:
    with np.errstate(all="ignore"):
        close: NDArray[np.bool_] = np.abs(left - right) <= _CLOSE * (1 + np.abs(right))
    return close


def note(found: Mapping[str, tuple[str, str]], trained: Iterable[str]) -> list[str]:
    """What to say of those of trained weights: one line, or nothing."""
    kept = set(trained)
    shares = {name: text for name, (text, weight) in found.items() if weight in kept}
    if not shares:
        return []
    shown = ", ".join(f"{name} is {text}" for name, text in list(shares.items())[:3])
    shown += ", ..." if len(shares) > 3 else ""
    text = (
        f"the file holds functions of weights beside them ({shown}): the gradient of a weight lacks the share through "
    )
    text += "its function"
    return [Note(f"{text}; export with do_constant_folding=False", About.GRADIENTS, text)]
