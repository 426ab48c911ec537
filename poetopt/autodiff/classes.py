"""Which axis of an output has the classes where no Softmax says so.

From rank four a model may say it by what it does last: a dense layer, whose results lie along the last axis, or a
Transpose that puts channels last, which exporters of TensorFlow write. ONNX has no other word for it.
"""

from __future__ import annotations

from poetopt.autodiff.behind import Behind
from poetopt.graph import VIEW_OPS, Node, Role, Tensor


def class_axis(y: Tensor, behind: Behind) -> int:
    """The axis of the classes: the last, or axis 1 from rank four unless the model puts channels last."""
    rank = len(y.shape)
    if rank < 4:
        return rank - 1
    node = behind.node(y.name)
    while node is not None and node.op_type in VIEW_OPS:
        node = behind.node(node.inputs[0])
    if node is None or behind.tensors[node.outputs[0]].shape[-1:] != y.shape[-1:]:
        return 1
    perm = node.attributes.get("perm") if node.op_type == "Transpose" else None
    last = isinstance(perm, list | tuple) and tuple(map(int, perm)) == (0, *range(2, rank), 1)
    return rank - 1 if last or dense(node, behind) else 1


def dense(node: Node, behind: Behind) -> bool:
    """Whether `node` is the product with a trained matrix, or the sum with a trained vector."""
    rank = {"MatMul": 2, "Add": 1}.get(node.op_type)
    if rank is None:
        return False
    weights = [behind.tensors[name] for name in node.inputs if behind.tensors[name].role is Role.PARAMETER]
    return any(len(weight.shape) == rank and weight.shape[-1] > 1 for weight in weights)
