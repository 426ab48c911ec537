"""Single numbers beside the weights: what a formula needs, or a parameter of one element.

Exporters store the 1 of `1 - p`, the 0.5 of a Gelu and an epsilon with shape [] or [1]. Torch's older exporter writes
Python's numbers as Constant nodes, so that what is an initializer under a name of its own is the module's tensor.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Set

import numpy as np

from poetopt.frontends.leftovers import anonymous
from poetopt.frontends.operands import FLOATS
from poetopt.frontends.read import Document, array_of
from poetopt.util.notes import Note, listed

_OF_FORMULAS = (0.5, 1.0, 2.0, 3.0, 6.0, 1 / 6, math.sqrt(2), math.sqrt(0.5), math.sqrt(2 / math.pi), 0.044715, 1.702)
_SMALL = 1e-3
"""No larger epsilon is usual."""
_LIKE_PARAMETERS = re.compile(
    r"(^|[./_])(w\d*|b\d*|alpha|beta|gamma|bias|weight|slope|scale|tau|temperature|logit_scale|[a-z]_?scale)(/read)?(:0)?$",
    re.I,
)
_VARIABLE = re.compile(r"ReadVariableOp|\w\.[A-Za-z_]\w*$")
"""Names of a module's or TensorFlow's own tensors."""


def constants(document: Document, biases: Set[str]) -> set[str]:
    """Float weights of shape [1], [1, 1] and so on that are numbers of a formula.

    Of `biases`, which stand behind layers, only what is an epsilon: a unit's bias may begin with 1.
    """
    return {
        name
        for name, proto in document.weights.items()
        if proto.dims
        and proto.data_type in FLOATS
        and math.prod(proto.dims) == 1
        and not (_VARIABLE.search(name) or _LIKE_PARAMETERS.search(name))
        and not _by_torch(document, name)
        and (_epsilon(document, name) or (name not in biases and _of_formula(document, name)))
    }


def note(document: Document, left: Iterable[str], known: bool) -> list[str]:
    """What to say of single numbers that aren't trained: an important note where some look like parameters.

    known
        Whether the file says what its parameters are.
    """
    names = list(left)
    if not names:
        return []
    text = f"scalars are not trained ({', '.join(names)}); --train names them where they are parameters"
    likely = [] if known else [name for name in names if _likely(document, name)]
    if not likely:
        return [text]
    return [Note(text, short=f"scalars are not trained ({listed(likely)}); --train names them")]


def _likely(document: Document, name: str) -> bool:
    """Whether a number may be a parameter, by its name, and its value where torch's exporter didn't write it."""
    if _by_torch(document, name):
        return True
    return _LIKE_PARAMETERS.search(name) is not None and not anonymous(name) and not _of_formula(document, name)


def _by_torch(document: Document, name: str) -> bool:
    """Whether torch's exporter wrote the file, and the name is the module's."""
    return "torch" in document.proto.producer_name.lower() and not anonymous(name)


def _of_formula(document: Document, name: str) -> bool:
    value = _value(document, name)
    return _epsilon(document, name) or any(math.isclose(abs(value), number, rel_tol=1e-4) for number in _OF_FORMULAS)


def _epsilon(document: Document, name: str) -> bool:
    """Whether it is a small number of one decimal digit, which nothing trained is."""
    value = _value(document, name)
    return 0 < value <= _SMALL and math.isclose(value, float(f"{value:.0e}"), rel_tol=1e-6)


def _value(document: Document, name: str) -> float:
    return float(np.asarray(array_of(document, name), np.float64).reshape(-1)[0])
