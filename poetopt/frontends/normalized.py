"""Mean and standard deviation that normalise the graph's input: data, as Keras, MATLAB and others store them.

They stand on the input itself, or behind what only moves its numbers: a difference or a quotient, a product and a sum,
or a BatchNormalization without scale and bias of its own; a Log or Clip may stand before. A module's scale or bias
stands there as well, under the module's name (`affine.weight`), a learned scale has any sign, and a table of positions
is one sum: these stay trained.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto

from poetopt.frontends.draft import Type
from poetopt.frontends.leftovers import scalar_of_module
from poetopt.frontends.operands import FLOATS, filled
from poetopt.frontends.proto import attribute_int
from poetopt.frontends.read import Document, array_of
from poetopt.frontends.views import SAME_NUMBERS
from poetopt.util.notes import Note, listed

_MOVES = SAME_NUMBERS | {"Pad", "Resize"}
_WIDENS = frozenset({"Expand", "Tile", "Unsqueeze"})
_LONGEST = 8
"""No normalization takes more steps."""
_AFFINE = frozenset({"Add", "Div", "Mul", "Sub"})
_CALLED = r"(weights?|bias(es)?|kernel|gamma|beta|[wWbB]\d*|[wb]_\d+)(/read)?(:0)?$"
_OWN = re.compile(r"(^|[./:])" + _CALLED)
"""Names of a module's own scale and bias."""
_ALIKE = re.compile("_" + _CALLED)
"""Names like these; of data as well, where not all that is applied together has one (`data_scale`, `data_bias`)."""
_CURVES = frozenset({"Abs", "Clip", "Log", "Sqrt"})
"""What prepares an input's numbers before they are normalised."""


@dataclass(frozen=True)
class _Step:
    """One affine operation on the input: its op, its constant's weights, and whether that has several numbers."""

    op: str
    names: tuple[str, ...]
    axes: int


def normalization(document: Document, inputs: Mapping[str, Type]) -> tuple[str, ...]:
    """Names of the weights that nothing reads but such an operation on one of `inputs`."""
    producers = {name: node for node in document.proto.graph.node for name in node.output if name}
    constant = _constant(document)
    steps: dict[str, tuple[_Step, ...]] = dict.fromkeys(inputs, ())
    widened: set[str] = set()
    found: dict[str, set[str]] = {}
    on_input: set[int] = set()
    for index, node in enumerate(document.proto.graph.node):
        moves = node.op_type in _MOVES and node.op_type != "Concat"
        data = next((name for name in (node.input[:1] if moves else node.input) if name in steps), None)
        if data is None or len(steps[data]) == _LONGEST:
            continue
        others = [name for name in node.input if name and name != data]
        chain: tuple[_Step, ...] = ()
        if node.op_type in _CURVES:
            pass
        elif node.op_type in _MOVES:
            chain = steps[data]
        elif node.op_type in _AFFINE and len(others) == 1 and others[0] in constant:
            names = _behind(document, producers, [others[0]])
            axes = max((sum(dim != 1 for dim in document.weights[name].dims) for name in names), default=0)
            wide = data in widened or (data in inputs and _widens(document, names, inputs[data][1]))
            if axes > 1 and wide:  # distances from centres, not a mean image
                continue
            if node.op_type in ("Div", "Mul") and others[0] in document.weights and not _positive(document, others[0]):
                continue
            chain = (*steps[data], _Step(node.op_type, names, axes))
        elif _bare(document, node):
            names = tuple(node.input[1:3])
            chain = (*steps[data], _Step(node.op_type, names, 1))
        else:
            continue
        if chain and chain != steps[data]:
            on_input.add(index)
        for name in filter(None, node.output if node.op_type == "Split" else node.output[:1]):
            steps[name] = chain
            if data in widened or node.op_type in _WIDENS:
                widened.add(name)
        if _normalises(chain):
            together = dict.fromkeys(name for step in chain for name in step.names)
            for name in together:
                found.setdefault(name, set()).update(together)
    read = _read_elsewhere(document, producers, constant, on_input)
    other = (name for name, together in found.items() if not _own(name, together) and name not in read)
    return tuple(name for name in other if document.weights[name].data_type in FLOATS and _stored(document, name))


def _widens(document: Document, names: Iterable[str], shape: Sequence[int]) -> bool:
    """Whether one of these weights repeats data of that shape along an axis."""
    dims = (document.weights[name].dims for name in names)
    return any(size == 1 < dim for held in dims for size, dim in zip(reversed(shape), reversed(held), strict=False))


def _own(name: str, together: Iterable[str]) -> bool:
    """Whether the name is a module's own, seen beside the names that are applied with it."""
    if _OWN.search(name):
        return True
    return _ALIKE.search(name) is not None and all(_OWN.search(n) or _ALIKE.search(n) for n in together)


def _stored(document: Document, name: str) -> bool:
    """Whether a weight would be trained anywhere else: a scalar is where it has a module's name."""
    readers = [node for node in document.proto.graph.node if name in node.input]
    return bool(document.weights[name].dims) or scalar_of_module(document, name, readers)


def _positive(document: Document, name: str) -> bool:
    """Whether all numbers of a weight are, as those of a standard deviation."""
    values = document.fills[name] if name in document.fills else array_of(document, name)
    return bool((np.asarray(values, np.float64) > 0).all())


def _bare(document: Document, node: NodeProto) -> bool:
    """Whether a node applies a mean and a variance that are known, and no scale or bias."""
    if node.op_type != "BatchNormalization" or attribute_int(node, "training_mode", 0):
        return False
    idle = filled(document, node.input[1], 1.0) and filled(document, node.input[2], 0.0)
    return idle and not (filled(document, node.input[3], 0.0) and filled(document, node.input[4], 1.0))


def _normalises(chain: Sequence[_Step]) -> bool:
    """Whether these operations together are a normalization rather than a layer's."""
    ops = {step.op for step in chain}
    if ops & {"BatchNormalization", "Div", "Sub"}:
        return True
    several = any(step.op == "Mul" and step.axes for step in chain)
    return {"Add", "Mul"} <= ops and (several or all(step.axes < 2 for step in chain))


def _constant(document: Document) -> set[str]:
    """Tensors that depend on no input, weights included."""
    known = set(document.weights)
    for node in document.proto.graph.node:
        if node.input and all(name in known for name in node.input if name):
            known.update(filter(None, node.output))
    return known


def _behind(document: Document, producers: Mapping[str, NodeProto], names: Iterable[str]) -> tuple[str, ...]:
    """The weights that constant tensors are computed of."""
    todo, seen = list(names), dict[str, None]()
    while todo:
        wanted = todo.pop()
        if wanted in seen:
            continue
        seen[wanted] = None
        if wanted not in document.weights:
            todo.extend(filter(None, producers[wanted].input))
    return tuple(name for name in seen if name in document.weights)


def _read_elsewhere(
    document: Document, producers: Mapping[str, NodeProto], constant: set[str], on_input: set[int]
) -> set[str]:
    """Weights that anything else reads, or what is computed of them alone."""
    outside = [info.name for info in document.proto.graph.output]
    for index, node in enumerate(document.proto.graph.node):
        computed = any(name not in constant for name in node.output if name)
        if computed and index not in on_input:
            outside += [name for name in node.input if name in constant]
    return set(_behind(document, producers, (name for name in outside if name in constant)))


def note(names: Sequence[str]) -> list[str]:
    """What to say of them: one line, or nothing."""
    if not names:
        return []
    text = f"what normalises the input is not trained ({listed(names)})"
    return [Note(f"{text}; --train names it where it is a parameter", short=text)]
