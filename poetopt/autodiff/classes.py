"""Which axis of an output has the classes, and what goes into the Softmax behind it.

A model says so by what it does last: a Softmax; from rank four a dense layer, whose results lie along the last axis, or
a Transpose that puts channels last, which exporters of TensorFlow write. ONNX has no other word for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from poetopt.graph import VIEW_OPS, Node, Operator, Role, Tensor


def class_axis(shape: tuple[int, ...]) -> int:
    """The axis of the classes where the model doesn't say: the last, or axis 1 from rank four."""
    return 1 if len(shape) >= 4 else len(shape) - 1


_LAST = frozenset({"Add", "MatMul", "Transpose"})
"""Operators by which a model may put classes last."""


@dataclass(frozen=True)
class Final:
    """What a model does last: the op, the axis of the classes in the output, and what goes into a Softmax.

    The latter has the output's shape, or other rows of the same classes where these are last, or the classes along
    axis 1 where a Transpose puts them last.
    """

    kind: str
    axis: int
    logits: Tensor | None = None
    transposed: bool = False


def final_op(y: Tensor, forward: tuple[Operator, ...], tensors: Mapping[str, Tensor]) -> Final | None:
    """What `y` comes from, through views, where it says which axis has the classes, else None.

    That is a Softmax or LogSoftmax, a Transpose to channels last, or a dense layer.
    """
    rank = len(y.shape)
    writers = {name: op.nodes[0] for op in forward if len(op.nodes) == 1 for name in op.outputs}
    node = _behind_views(writers, y.name)
    if node is None:
        return None
    found = _softmax(node, y.shape, writers, tensors)
    if (
        found is not None
        or rank < 4
        or node.op_type not in _LAST
        or tensors[node.outputs[0]].shape[-1:] != y.shape[-1:]
    ):
        return found
    if _dense(node, tensors):
        return Final(node.op_type, rank - 1)
    perm = _perm(node)
    if perm is None or len(perm) != rank:
        return None
    before = tensors[node.inputs[0]]
    behind = _behind_views(writers, before.name)
    found = _softmax(behind, before.shape, writers, tensors) if behind is not None else None
    logits = found.logits if found is not None else None
    if found is not None and logits is not None and logits.shape == before.shape:
        # up to opset 12 exporters put the axis last, and back
        other = writers.get(logits.name)
        back = _perm(other) if other is not None else None
        if other is not None and back is not None and [back[axis] for axis in perm] == list(range(rank)):
            return Final(found.kind, perm.index(found.axis), tensors[other.inputs[0]])
    if perm != (0, *range(2, rank), 1):
        return None
    if found is None or logits is None or found.axis != 1 or logits.shape != before.shape:
        return Final("Transpose", rank - 1)
    return Final(found.kind, rank - 1, logits, transposed=True)


def _softmax(
    node: Node, shape: tuple[int, ...], writers: Mapping[str, Node], tensors: Mapping[str, Tensor]
) -> Final | None:
    """`node` as the Softmax of a tensor of this shape; ONNX's converter writes one of opset 12 as one of rows."""
    at = node.attributes.get("axis", -1)
    if node.op_type not in {"Softmax", "LogSoftmax"} or not isinstance(at, int):
        return None
    logits = tensors[node.inputs[0]]
    axis = at % len(logits.shape)
    if logits.shape != shape:
        if axis != len(logits.shape) - 1 or logits.shape[-1:] != shape[-1:]:
            return None
        axis = len(shape) - 1
    behind, view = [logits], writers.get(logits.name)
    while view is not None and view.op_type in VIEW_OPS:
        behind.append(tensors[view.inputs[0]])
        view = writers.get(behind[-1].name)
    logits = next((tensor for tensor in reversed(behind) if tensor.shape == shape), logits)
    return Final(node.op_type, axis, logits) if axis or len(shape) == 1 else None


def _perm(node: Node) -> tuple[int, ...] | None:
    """How a Transpose permutes axes; None for another op, and where it doesn't say."""
    perm = node.attributes.get("perm") if node.op_type == "Transpose" else None
    return tuple(map(int, perm)) if isinstance(perm, list | tuple) else None


def _dense(node: Node, tensors: Mapping[str, Tensor]) -> bool:
    """Whether `node` is the product with a trained matrix, or the sum with a trained vector."""
    rank = {"MatMul": 2, "Add": 1}.get(node.op_type)
    if rank is None:
        return False
    weights = [tensors[name] for name in node.inputs if tensors[name].role is Role.PARAMETER]
    return any(len(weight.shape) == rank and weight.shape[-1] > 1 for weight in weights)


def _behind_views(writers: Mapping[str, Node], name: str) -> Node | None:
    node = writers.get(name)
    while node is not None and node.op_type in VIEW_OPS:
        node = writers.get(node.inputs[0])
    return node
