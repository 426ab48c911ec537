"""A Softmax or Sigmoid as a node, or spelled out in several."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from poetopt.autodiff.axes import Axes, place_of
from poetopt.autodiff.behind import Behind
from poetopt.autodiff.passing import harmless, passed_on
from poetopt.graph import Node, Tensor


@dataclass(frozen=True)
class Tail:
    """A Softmax or Sigmoid that an output comes from, element by element.

    kind
        `Softmax` or `Sigmoid`, with `Log` in front where the output has logarithms; how it is spelled out is in
        `spelled`, ops after it in `steps`.
    logits
        What goes into it.
    axis
        Along which axis of the logits the probabilities sum to one; -1 for Sigmoid.
    axes
        The axes of the output as they come from those of the logits.
    parts
        Where Sigmoids lie side by side along `along`: what goes into each; `logits` is the first.
    zero
        Where the output holds 1 - p and p of one Sigmoid along `axis`: the place of the class whose logit is 0.
    """

    kind: str
    logits: Tensor
    axis: int
    axes: Axes = ()
    spelled: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    parts: tuple[Tensor, ...] = ()
    along: int = 0
    zero: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of all logits, with the class whose logit is 0."""
        shape = list(self.logits.shape)
        if self.parts:
            shape[self.along] = sum(part.shape[self.along] for part in self.parts)
        if self.zero is not None:
            shape[self.axis] += 1
        return tuple(shape)

    @property
    def classes(self) -> int | None:
        """Which axis of the output has the classes; None where no axis has them and nothing else."""
        return place_of(self.axes, self.axis, self.shape[self.axis]) if self.axis >= 0 else None


def normalizer(name: str, behind: Behind) -> Tail | None:
    """The Softmax or Sigmoid that writes `name` itself, spelled out or not."""
    node = behind.node(name)
    if node is None:
        return None
    if node.op_type in {"Softmax", "LogSoftmax"}:
        logits, axis = behind.tensors[node.inputs[0]], node.attributes.get("axis", -1)
        return Tail(node.op_type, logits, axis % len(logits.shape)) if isinstance(axis, int) and logits.shape else None
    if node.op_type == "Sigmoid":
        return Tail("Sigmoid", behind.tensors[node.inputs[0]], -1)
    spelled = (_softmax_spelled, _sigmoid_spelled, _logarithm_spelled, _complement)
    return next((found for match in spelled if (found := match(node, behind)) is not None), None)


def shares(node: Node, behind: Behind) -> tuple[str, tuple[int, ...]] | None:
    """What is divided by its own sum, and the axes of the sum, where `node` does that."""
    if node.op_type not in {"Div", "Mul"}:
        return None
    part, total = node.inputs
    if node.op_type == "Mul":
        if not reciprocal_of(total, behind):
            part, total = total, part
        total = reciprocal_of(total, behind)
    while (writer := behind.node(total)) is not None and writer.op_type not in {"ReduceSum", "ReduceL1"}:
        source = passed_on(writer, behind) if writer.op_type != "Expand" else writer.inputs[0]
        if source is None or not (writer.op_type == "Expand" or harmless(writer, False, behind)):
            return None
        total = source
    if writer is None or _uncast(writer.inputs[0], behind) != _uncast(part, behind):
        return None
    axes = reduced_axes(writer, behind)
    return (_uncast(part, behind), axes) if axes else None


def reciprocal_of(name: str, behind: Behind) -> str:
    """What `name` is one over, else ""."""
    node = behind.node(name, "Reciprocal", "Pow")
    if node is None or (node.op_type == "Pow" and not behind.near(node.inputs[1], -1.0)):
        return ""
    return node.inputs[0]


def reduced_axes(node: Node, behind: Behind) -> tuple[int, ...] | None:
    """The axes that a reduction sums over; None where they aren't known."""
    rank = len(behind.tensors[node.inputs[0]].shape)
    given: object = node.attributes.get("axes")
    if len(node.inputs) > 1 and node.inputs[1]:
        given = behind.constant(node.inputs[1])
        if given is None:
            return None
    if given is None:
        return tuple(range(rank))
    return tuple(sorted({int(axis) % rank for axis in np.asarray(given).reshape(-1)}))


def _uncast(name: str, behind: Behind) -> str:
    while (node := behind.node(name, "Cast", "Identity")) is not None:
        name = node.inputs[0]
    return name


def _softmax_spelled(node: Node, behind: Behind) -> Tail | None:
    """Exp(x) over its sum along one axis. What is subtracted from x, the same along that axis, makes no difference."""
    found = shares(node, behind)
    writer = behind.node(found[0], "Exp") if found is not None else None
    if found is None or writer is None or len(found[1]) != 1:
        return None
    return _shifted("Softmax", writer.inputs[0], found[1][0], node, ("Exp", "ReduceSum", node.op_type), behind)


def _logarithm_spelled(node: Node, behind: Behind) -> Tail | None:
    """x less the logarithm of the sum of Exp(x), and -Softplus(-x)."""
    if node.op_type == "Neg" and (softplus := behind.node(node.inputs[0], "Softplus")) is not None:
        minus = behind.node(softplus.inputs[0], "Neg")
        return None if minus is None else Tail("LogSigmoid", behind.tensors[minus.inputs[0]], -1)
    if node.op_type != "Sub":
        return None
    name, total = node.inputs
    if (log := behind.node(total, "Log")) is not None:
        total = log.inputs[0]
    whole = behind.node(total, "ReduceSum" if log is not None else "ReduceLogSumExp")
    exp = behind.node(whole.inputs[0], "Exp") if whole is not None and log is not None else whole
    axes = reduced_axes(whole, behind) if whole is not None else None
    if exp is None or exp.inputs[0] != name or axes is None or len(axes) != 1:
        return None
    return _shifted("LogSoftmax", name, axes[0], node, ("ReduceSum", "Log", "Sub"), behind)


def _shifted(kind: str, name: str, axis: int, node: Node, spelled: tuple[str, ...], behind: Behind) -> Tail | None:
    """A Softmax of `name` that `node` ends; the logits are what `name` is less something that `axis` shares."""
    shape = behind.tensors[name].shape
    less = behind.node(name, "Sub")
    if less is not None:
        x, shift = (behind.tensors[operand] for operand in less.inputs)
        lengths = (*([1] * (len(shape) - len(shift.shape))), *shift.shape)
        if x.shape == shape and lengths[axis] == 1:
            name = x.name
    if behind.tensors[node.outputs[0]].shape != shape:
        return None
    return Tail(kind, behind.tensors[name], axis, spelled=spelled)


def _sigmoid_spelled(node: Node, behind: Behind) -> Tail | None:
    """1 / (1 + Exp(-x)), or Exp(x) / (1 + Exp(x))."""
    if node.op_type == "Div" and (above := behind.node(node.inputs[0], "Exp")) is not None:
        whole = behind.node(node.inputs[1], "Add")
        if whole is None or node.inputs[0] not in whole.inputs or not any(behind.near(n, 1.0) for n in whole.inputs):
            return None
        return Tail("Sigmoid", behind.tensors[above.inputs[0]], -1, spelled=("Exp", "Add", "Div"))
    if node.op_type == "Reciprocal":
        below = node.inputs[0]
    elif node.op_type == "Div" and behind.near(node.inputs[0], 1.0):
        below = node.inputs[1]
    else:
        return None
    total = behind.node(below, "Add")
    if total is None:
        return None
    for one, other in (total.inputs, total.inputs[::-1]):
        exp = behind.node(other, "Exp")
        minus = behind.node(exp.inputs[0], "Neg", "Mul") if exp is not None else None
        if minus is None or not behind.near(one, 1.0):
            continue
        x = minus.inputs[0]
        if minus.op_type == "Mul":
            x = next((a for a, b in (minus.inputs, minus.inputs[::-1]) if behind.near(b, -1.0)), "")
        if x and behind.tensors[x].shape == behind.tensors[node.outputs[0]].shape:
            return Tail("Sigmoid", behind.tensors[x], -1, spelled=("Exp", "Add", node.op_type))
    return None


def _complement(node: Node, behind: Behind) -> Tail | None:
    """Concat of 1 - p and p, where p is a Sigmoid of length one along that axis: as scikit-learn writes two classes."""
    axis = node.attributes.get("axis")
    if node.op_type != "Concat" or len(node.inputs) != 2 or not isinstance(axis, int):
        return None
    for zero, (rest, p) in enumerate((node.inputs, node.inputs[::-1])):
        less = behind.node(rest, "Sub")
        found = normalizer(p, behind) if behind.node(p, "Concat") is None else None
        if less is None or found is None or found.kind != "Sigmoid" or less.inputs[1] != p:
            continue
        place = axis % len(found.logits.shape) if found.logits.shape else 0
        if behind.near(less.inputs[0], 1.0) and found.logits.shape[place : place + 1] == (1,):
            return Tail("Softmax", found.logits, place, spelled=("Sigmoid", "Sub", "Concat"), zero=zero)
    return None
