"""Values of Constant nodes that are weights like stored ones.

Paddle2ONNX, CNTK and others write every weight as a Constant node, torch's older exporter only what is no parameter.
Which of both a file does, its layers tell: where all their weights stand in nodes, nodes say nothing, and what is no
single number may be a parameter as anything stored may be. Where a file has both, the exporter and the names decide.
"""

from __future__ import annotations

import math
import re
from collections.abc import Set

from poetopt.frontends.leftovers import anonymous, made_up
from poetopt.frontends.operands import FLOATS, biases, layer_weights
from poetopt.frontends.read import Document
from poetopt.frontends.views import Views

_NAMED = re.compile(
    r"[./_:](weights?|bias(es)?|kernel|gamma|beta|scale|offset|embeddings?|alpha|slope|filters?|[wWbB]\d*|[wb]_\d+)$"
)
"""How names of a module's own weights end."""


def weight_named(name: str) -> bool:
    """Whether this is how exporters call a module's weight, and nothing else."""
    return _NAMED.search(name) is not None and not anonymous(name)


def stored(document: Document, constants: Set[str], seen: Views) -> set[str]:
    """Those of `constants`, the values of nodes, that count as stored."""
    layers = layer_weights(document, seen)
    behind = biases(document, seen)
    if layers <= constants and (layers or _all_in_nodes(document, constants)):
        told = layers | behind
        return {name for name in constants if name in told or _several(document, name) or made_up(document, name)}
    families = {_family(name) for name in layers - constants}
    other = _not_by_torch(document)

    def counts(name: str) -> bool:
        in_place = name in layers or name in behind
        named = bool(document.weights[name].dims) and weight_named(name)
        return named or (in_place and (other or (not anonymous(name) and _family(name) in families)))

    return {name for name in constants if counts(name)}


def _all_in_nodes(document: Document, constants: Set[str]) -> bool:
    """Whether no float tensor with axes is an initializer."""
    return all(
        name in constants for name, proto in document.weights.items() if proto.dims and proto.data_type in FLOATS
    )


def _several(document: Document, name: str) -> bool:
    """Whether it has several elements; a scalar counts, too, for its name tells what it is."""
    dims = document.weights[name].dims
    return not dims or math.prod(dims) != 1


def _family(name: str) -> str:
    """Names that differ by a number alone are of one kind: `W1` and `W2`."""
    return re.sub(r"\d+", "0", name)


def _not_by_torch(document: Document) -> bool:
    """Whether another exporter than torch's wrote the file, as far as it says."""
    producer = document.proto.producer_name.lower()
    return bool(producer) and "torch" not in producer and not producer.startswith(("onnx.", "onnxruntime", "onnxs"))
