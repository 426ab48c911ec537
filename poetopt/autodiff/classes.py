"""Which axis of an output has the classes where no Softmax says so.

From rank three a model may say it by what it does last: a convolution, whose channels lie along axis 1; a dense layer,
whose results lie along the last axis; or a Transpose that puts channels last, which exporters of TensorFlow write. ONNX
has no other word for it.
"""

from __future__ import annotations

from collections.abc import Callable

from poetopt.autodiff.behind import Behind, going_back
from poetopt.graph import VIEW_OPS, Node, Role, Tensor

_CHANNELS_SECOND = frozenset({"AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "MaxPool"})
_AS_THEY_LIE = VIEW_OPS | {"Add", "Cast", "Clip", "Div", "Elu", "LeakyRelu", "Mul", "Relu", "Resize", "Sub"}
"""Ops behind which channels lie where they were; views only where the first two axes stay."""
_DEEPEST = 20


def class_axis(y: Tensor, behind: Behind) -> int:
    """The axis of the classes: the last up to rank three, else axis 1, unless the model says otherwise."""
    rank = len(y.shape)
    if rank < 3:
        return rank - 1
    if rank == 3:
        return 1 if going_back(y.name, lambda name, ask: _convolved(name, behind, ask), False, _DEEPEST) else 2
    node = behind.node(y.name)
    while node is not None and node.op_type in VIEW_OPS:
        node = behind.node(node.inputs[0])
    if node is None or behind.tensors[node.outputs[0]].shape[-1:] != y.shape[-1:]:
        return 1
    perm = node.attributes.get("perm") if node.op_type == "Transpose" else None
    last = isinstance(perm, list | tuple) and tuple(map(int, perm)) == (0, *range(2, rank), 1)
    return rank - 1 if last or dense(node, behind) else 1


def _convolved(name: str, behind: Behind, ask: Callable[[str], bool]) -> bool:
    """Whether the channels of a convolution (or of what comes after one) lie along axis 1 of `name`."""
    node = behind.node(name)
    if node is None:
        return False
    if node.op_type in _CHANNELS_SECOND:
        return True
    shape = behind.tensors[name].shape
    read = [n for n in behind.operands(node) if n not in behind.values]
    if node.op_type not in _AS_THEY_LIE or not read or any(behind.tensors[n].shape[:2] != shape[:2] for n in read):
        return False
    return all(ask(n) for n in read)


def dense(node: Node, behind: Behind) -> bool:
    """Whether `node` is the product with a trained matrix, or the sum with a trained vector."""
    rank = {"MatMul": 2, "Add": 1}.get(node.op_type)
    if rank is None:
        return False
    weights = [behind.tensors[name] for name in node.inputs if behind.tensors[name].role is Role.PARAMETER]
    return any(len(weight.shape) == rank and weight.shape[-1] > 1 for weight in weights)
