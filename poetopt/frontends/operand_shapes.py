"""Do the operands of a node fit each other: their shapes, and the places that they name?

As settings (`attributes`), many of them pass ONNX's shape inference though no runtime takes them, and gradient rules
rely on them. Operators that have no row are free, or shape inference sees to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from onnx import NodeProto

from poetopt.frontends.attributes import Shape, Shapes
from poetopt.frontends.proto import attribute_int
from poetopt.util.errors import ModelError

if TYPE_CHECKING:
    from poetopt.graph import Array

_LISTS: Mapping[str, tuple[int, ...]] = dict.fromkeys((
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "ReduceSumSquare", "CumSum", "Reshape", "Split", "Squeeze", "Trilu", "Unsqueeze",
), (1,)) | {"Clip": (1, 2), "Pad": (1, 3), "Slice": (1, 2, 3, 4)}  # fmt: skip
"""Operands that are one number or a list of them: they have no second axis."""


def check_operands(at: str, node: NodeProto, shapes: Shapes, constants: Mapping[str, Array]) -> None:
    """Raise `ModelError`, naming the node (`at`), where its operands don't fit each other.

    `shapes` are those of its inputs, `constants` the values of those that are known.
    """
    for place in _LISTS.get(node.op_type, ()):
        shape = shapes[place] if place < len(shapes) else None
        if shape is not None and len(shape) > 1:
            raise ModelError(
                f"{at}: its operand {node.input[place]!r} has shape {list(shape)}, but must be a number or a list of "
                "them; export the model again"
            )
    check = _RELATIONS.get(node.op_type)
    if check is None or not shapes or shapes[0] is None:
        return
    if check is _loss and shapes[1] == shapes[0]:
        raise ModelError(
            f"{at}: its labels have the shape {_list(shapes[1])} of its scores: they are probabilities of classes, "
            "which this op doesn't take, though PyTorch's exporters write it; have the module compute the loss as "
            "-(target * scores.log_softmax(1)).sum(1).mean(), and export it again"
        )
    for problem in check(node, shapes[0], shapes, constants):
        raise ModelError(f"{at}: {problem}; the file is damaged or was exported wrongly, export it again")


def _loss(node: NodeProto, x: Shape, shapes: Shapes, constants: Mapping[str, Array]) -> Iterator[str]:
    labels, weights = shapes[1], shapes[2] if len(shapes) > 2 else None
    if len(x) < 2 or labels != (x[0], *x[2:]):
        yield f"its labels have shape {_list(labels)}, which isn't that of its scores {list(x)} without the classes"
    elif 0 in x:
        yield f"its scores have shape {list(x)}: of nothing there is no loss"
    elif weights is not None and (len(weights) != 1 or weights[0] < x[1]):
        yield f"its weights have shape {list(weights)}, but there are {x[1]} classes"


def _instance_normalization(node: NodeProto, x: Shape, shapes: Shapes, constants: Mapping[str, Array]) -> Iterator[str]:
    for shape, name in zip(shapes[1:3], ("scale", "bias"), strict=False):
        if len(x) > 1 and shape != (x[1],):
            yield f"its {name} has shape {_list(shape)}, but its input has {x[1]} channels"


def _elements(node: NodeProto, x: Shape, shapes: Shapes, constants: Mapping[str, Array]) -> Iterator[str]:
    """GatherElements and ScatterElements: a place for each element, within the data but for the axis."""
    places = shapes[1]
    if places is None:
        return
    axis = attribute_int(node, "axis", 0) % max(len(x), 1)
    if not x or len(places) != len(x) or any(n > x[k] for k, n in enumerate(places) if k != axis):
        yield f"its indices have shape {list(places)}, which doesn't lie within its data {list(x)}"
        return
    updates = shapes[2] if len(shapes) > 2 else places
    if updates != places:
        yield f"its updates have shape {_list(updates)}, but its indices {list(places)}"
    yield from _within(node, constants, x[axis])


def _gather(node: NodeProto, x: Shape, shapes: Shapes, constants: Mapping[str, Array]) -> Iterator[str]:
    if x:
        yield from _within(node, constants, x[attribute_int(node, "axis", 0)])


def _scatter_nd(node: NodeProto, x: Shape, shapes: Shapes, constants: Mapping[str, Array]) -> Iterator[str]:
    places, updates = shapes[1], shapes[2] if len(shapes) > 2 else None
    if not places:
        return
    if places[-1] > len(x) or updates != (*places[:-1], *x[places[-1] :]):
        yield (
            f"its updates have shape {_list(updates)}, which doesn't fit its indices {list(places)} and its data "
            f"{list(x)}"
        )


def _einsum(node: NodeProto, x: Shape, shapes: Shapes, constants: Mapping[str, Array]) -> Iterator[str]:
    """A letter has one size; that of an operand may be 1, as in any broadcast."""
    equation = next((a.s.decode(errors="replace") for a in node.attribute if a.name == "equation"), "").replace(" ", "")
    sizes: dict[str, int] = {}
    for term, shape in zip(equation.partition("->")[0].split(","), shapes, strict=False):
        before, dots, after = term.partition("...")
        if shape is None or (len(term) != len(shape) if not dots else len(before) + len(after) > len(shape)):
            continue
        own: dict[str, int] = {}
        for letter, size in (*zip(before, shape, strict=False), *zip(after[::-1], shape[::-1], strict=False)):
            if own.setdefault(letter, size) != size:
                yield f"its axis {letter!r} ({equation}) is of {own[letter]} and of {size} elements in one operand"
        for letter, size in own.items():
            other = sizes.get(letter, size)
            if other != size and 1 not in (other, size):
                yield f"its axis {letter!r} ({equation}) is of {other} and of {size} elements"
            sizes[letter] = max(other, size)


def _within(node: NodeProto, constants: Mapping[str, Array], size: int) -> Iterator[str]:
    """Indices that are known lie on an axis of that size; negative ones count from its end."""
    known = constants.get(node.input[1])
    if known is not None and known.size and not (-size <= int(known.min()) and int(known.max()) < size):
        wrong = int(known.max()) if int(known.max()) >= size else int(known.min())
        yield f"it reads or writes index {wrong} of an axis of {size} elements"


def _list(shape: Shape | None) -> str:
    return "nothing" if shape is None else str(list(shape))


_RELATIONS: Mapping[str, Callable[[NodeProto, Shape, Shapes, Mapping[str, Array]], Iterator[str]]] = {
    "Einsum": _einsum,
    "Gather": _gather,
    "GatherElements": _elements,
    "InstanceNormalization": _instance_normalization,
    "NegativeLogLikelihoodLoss": _loss,
    "ScatterElements": _elements,
    "ScatterND": _scatter_nd,
    "SoftmaxCrossEntropyLoss": _loss,
}
"""What the operands of an operator must be to each other."""
