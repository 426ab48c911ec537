"""Which loss an output gets where nobody says, and which output the loss is on.

| what the output is | loss |
|---|---|
| the scalar that a reduction leaves, or one element that is called a loss | none: it is the loss |
| a Softmax or LogSoftmax, whatever passes it on | cross-entropy of what goes into it |
| a Sigmoid, whatever passes it on | bce of what goes into it |
| shares of a whole whose logits can't be read, or -log of probabilities | none is chosen |
| other values between 0 and 1, or partly such | mse |
| of an input's shape, or without two classes | mse |
| anything else | cross-entropy |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from poetopt.autodiff.behind import Behind, going_back
from poetopt.autodiff.classes import class_axis
from poetopt.autodiff.normalizers import Tail, reduced_axes
from poetopt.autodiff.probabilities import Values, values_of
from poetopt.autodiff.registry import is_float
from poetopt.autodiff.tails import tail_of
from poetopt.graph import VIEW_OPS, Graph, Node, Role, Tensor
from poetopt.util.errors import ModelError, OptionError

ASK = "say which loss with --loss (mse takes any output), train the model's own with --loss none, or name another output with --output"  # noqa: E501


@dataclass(frozen=True)
class Choice:
    """A loss for an output.

    kind
        `cross-entropy`, `bce`, `mse`, `none`, or "" where none fits.
    why
        The reason, or why none fits.
    tail
        The Softmax or Sigmoid that the loss reads the logits of.
    """

    kind: str
    why: str
    tail: Tail | None = None


def choose(y: Tensor, graph: Graph, behind: Behind) -> Choice:
    """The loss that `auto` puts on `y`."""
    tail = tail_of(y.name, behind)
    if tail is not None and tail.axis < 0:
        return Choice("bce", f"chosen by the final {tail.kind}", tail)
    if y.size == 1 and tail is None:
        if not _predicts(y, behind):
            return Choice("none", "chosen by the output's shape")
        return Choice("mse", "chosen as its one value is predicted for a batch of one")
    if tail is not None and (fault := unfit(tail)):
        return Choice("", fault)
    if tail is not None:
        return Choice("cross-entropy", f"chosen by the final {tail.kind}", tail)
    values = values_of(y.name, behind)
    classes = len(y.shape) >= 2 and y.shape[class_axis(y, behind)] >= 2
    if values in {Values.SHARES, Values.LOSSES} and classes:
        return Choice("", NO_LOGITS[values])
    if values is not Values.OTHER:
        return Choice("mse", f"chosen as {NO_LOGITS[values]}")
    like = [name for name in graph.inputs if (t := graph.tensors[name]).shape == y.shape and is_float(t)]
    if like and classes:
        return Choice("mse", f"chosen as it has the shape of the input {like[0]!r} (--loss cross-entropy for classes)")
    return Choice("cross-entropy" if classes else "mse", "chosen by the output's shape")


_UNREAD = "and no logits can be read behind them"
NO_LOGITS = {
    Values.SHARES: f"its values come from a Softmax or are shares of a sum, {_UNREAD}",
    Values.SIGMOIDS: f"its values come from a Sigmoid, {_UNREAD}",
    Values.UNIT: f"its values lie between 0 and 1, {_UNREAD}",
    Values.MIXED: "some of its values are probabilities and others aren't",
    Values.LOSSES: "its values are minus the logarithms of probabilities, least for the likeliest class",
}
"""Why no loss of logits fits values of this kind."""


def unfit(tail: Tail) -> str:
    """Why cross-entropy can't read the logits of a Softmax: "" where it can."""
    if tail.shape[tail.axis] == 1:
        return f"its final {tail.kind} is over an axis of length 1, where it is 1 whatever goes in"
    if tail.classes is None:
        return f"its final {tail.kind} is over axis {tail.axis} of {list(tail.shape)}, which is no axis of the output"
    return ""


_LAYERS = frozenset({"Gemm", "MatMul", "Conv", "ConvTranspose", "LSTM", "GRU", "RNN"})
_AFTER = VIEW_OPS | {"Add", "Cast", "Clip", "Div", "Elu", "HardSigmoid", "LeakyRelu", "Mul", "Relu", "Selu", "Sigmoid"}
_AFTER |= {"Slice", "Gather", "Softplus", "Sub", "Tanh", "Transpose"}
_DEEPEST = 30


def _predicts(y: Tensor, behind: Behind) -> bool:
    """Whether the one element of `y` is predicted for a batch of one, by a layer or as a score, and is no loss."""
    if "loss" in y.name.lower():
        return False
    return going_back(y.name, lambda name, ask: _predicted(name, behind, ask), False, _DEEPEST)


def _predicted(name: str, behind: Behind, ask: Callable[[str], bool]) -> bool:
    node = behind.node(name)
    if node is None:
        return False
    free = [n for n in behind.operands(node) if behind.tensors[n].role is not Role.PARAMETER]
    if node.op_type in _AFTER:
        free = free[:1] if node.op_type == "Div" else free
        return bool(free) and all(ask(n) for n in free)
    if node.op_type == "ReduceSum":
        return _scores(node, behind)
    weighs = any(
        behind.tensors[name].role is Role.PARAMETER or behind.constant(name) is not None for name in node.inputs if name
    )
    return node.op_type in _LAYERS and weighs


def _scores(node: Node, behind: Behind) -> bool:
    """Whether a sum is the product of two towers' results for each element of a batch of one."""
    shape, axes = behind.tensors[node.inputs[0]].shape, reduced_axes(node, behind)
    product = behind.node(node.inputs[0], "Mul")
    if product is None or len(shape) < 2 or shape[0] != 1 or axes is None or 0 in axes:
        return False
    return len(set(product.inputs)) == 2 and all(behind.node(name) is not None for name in product.inputs)


def output_of(graph: Graph, output: str | None, loss: str, live: set[str], behind: Behind) -> tuple[str, str]:
    """The output that the loss is on, and what to say of how it was found.

    live
        Tensors that depend on a trained parameter.

    Raises OptionError for a name that isn't there, ModelError where several outputs could be it.
    """
    if output is not None:
        if output in graph.unread:
            raise ModelError(graph.unread[output])
        if output not in graph.outputs:
            raise OptionError(f"{graph.name}: no output {output!r}; there are {', '.join(graph.outputs)}")
        return output, ""
    if len(graph.outputs) == 1 and not graph.unread:
        return graph.outputs[0], ""
    tensors = [behind.tensors[name] for name in graph.outputs]
    able = [t for t in tensors if is_float(t) and t.size and t.name in live]
    own = _own_losses(able, graph, behind)
    if loss in {"auto", "none"} and len(own) == 1:
        return own[0].name, "; it is the only output that is a loss"
    others = [t for t in able if t not in own] if own and loss not in {"auto", "none"} else able
    if len(others) == 1:
        return others[0].name, "; no other output can have one: " + ", ".join(_unable(graph, tensors, others, live))
    if not able:
        reason = next((w for w in graph.unread.values() if "zipmap" in w), next(iter(graph.unread.values()), ""))
        if reason:
            raise ModelError(reason)
    listed = "; ".join([*(_listed(t, graph, behind) for t in able), *_unable(graph, tensors, able, live)])
    raise ModelError(f"{graph.name}: several outputs; say which one the loss is on with --output NAME: {listed}")


def _own_losses(able: Sequence[Tensor], graph: Graph, behind: Behind) -> list[Tensor]:
    """Those outputs that are losses of the model's own: the one that is called so, or all."""
    own = [t for t in able if t.size == 1 and choose(t, graph, behind).kind == "none"]
    for named in (lambda name: name.lower() == "loss", lambda name: "loss" in name.lower()):
        found = [t for t in own if named(t.name)]
        if len(found) == 1:
            return found
    return own


def _listed(y: Tensor, graph: Graph, behind: Behind) -> str:
    choice = choose(y, graph, behind)
    what = {"": "no loss fits it", "none": "a loss itself"}.get(choice.kind, choice.kind)
    return f"{y.name!r} ({shape_text(y)}: {what})"


def _unable(graph: Graph, tensors: Sequence[Tensor], able: Sequence[Tensor], live: set[str]) -> Iterator[str]:
    for tensor in tensors:
        if tensor in able:
            continue
        why = "no trained parameter reaches it" if is_float(tensor) and tensor.size else f"of type {tensor.dtype}"
        yield f"{tensor.name!r} ({shape_text(tensor)}: {why})"
    for name in graph.unread:
        yield f"{name!r} (can't be imported)"


def shape_text(tensor: Tensor) -> str:
    """The shape as notes show it."""
    return "x".join(map(str, tensor.shape)) or "scalar"
