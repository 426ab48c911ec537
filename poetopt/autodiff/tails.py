"""Probabilities behind which the logits are to be found: a Softmax or Sigmoid, whatever comes after it.

    logits -> Softmax (or Exp, ReduceSum, Div) -> Cast, Clip, Log, Transpose, Reshape, ... -> output

A loss that is computed of the logits has no rounding of log(softmax), and above all no second Softmax.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from poetopt.autodiff.axes import Axes, order_behind, own_axes, reshaped, transposed
from poetopt.autodiff.behind import Behind
from poetopt.autodiff.normalizers import Tail, normalizer
from poetopt.autodiff.passing import SAME, harmless, passed_on
from poetopt.graph import VIEW_OPS, Node, Tensor


def tail_of(name: str, behind: Behind) -> Tail | None:
    """The Softmax or Sigmoid that `name` comes from, if each element is one of its results (Clip: to `SMALL`)."""
    after: list[Node] = []
    at = name
    while (found := normalizer(at, behind) or _side_by_side(at, behind)) is None:
        node = behind.node(at)
        source = passed_on(node, behind) if node is not None else None
        if node is None or source is None:
            return None
        after.append(node)
        at = source
    after.reverse()
    logged = found.kind.startswith("Log")
    for node in after:
        if node.op_type == ("Exp" if logged else "Log"):
            logged = not logged
        elif not harmless(node, logged, behind):
            return None
    axes = _through(found.shape, after, behind)
    if axes is None:
        return None
    kind = ("Log" if logged else "") + found.kind.removeprefix("Log")
    steps = tuple(node.op_type for node in after if node.op_type not in SAME | {"Gather", "Slice"})
    return _nearest(replace(found, kind=kind, axes=axes, steps=steps), after, behind)


def _side_by_side(name: str, behind: Behind) -> Tail | None:
    """Concat of Sigmoids: heads of one output each, as Keras's examples have them."""
    node = behind.node(name, "Concat")
    axis = node.attributes.get("axis") if node is not None else None
    if node is None or not isinstance(axis, int):
        return None
    parts: list[Tensor] = []
    for name in node.inputs:
        writer = behind.node(name)
        found = None if writer is None or writer.op_type == "Concat" else tail_of(name, behind)
        if found is None or found.kind != "Sigmoid" or found.parts or not in_order(found):
            return None
        parts.append(found.logits)
    rank = len(behind.tensors[node.outputs[0]].shape)
    shapes = [behind.tensors[name].shape for name in node.inputs]
    if [part.shape for part in parts] != shapes or len({part.dtype for part in parts}) > 1:
        return None
    return Tail("Sigmoid", parts[0], -1, parts=tuple(parts), along=axis % rank)


def _through(shape: Sequence[int], nodes: Sequence[Node], behind: Behind) -> Axes | None:
    """The axes of what `nodes` make of a tensor of this shape, one after another; None where they mix."""
    axes: Axes | None = own_axes(shape)
    for node in nodes:
        if axes is None:
            return None
        after = behind.tensors[node.outputs[0]].shape
        if node.op_type == "Transpose":
            perm = node.attributes.get("perm")
            order = tuple(map(int, perm)) if isinstance(perm, list | tuple) else tuple(range(len(after)))[::-1]
            axes = transposed(axes, order)
        elif node.op_type in {"DepthToSpace", "SpaceToDepth"}:
            axes = _blocks(axes, node, behind)
        else:
            axes = reshaped(axes, after)
    return axes


def _blocks(axes: Axes, node: Node, behind: Behind) -> Axes | None:
    """`axes` behind a DepthToSpace or SpaceToDepth, each of which is Reshape, Transpose and Reshape."""
    n, c, h, w = behind.tensors[node.inputs[0]].shape
    size = node.attributes.get("blocksize")
    if not isinstance(size, int):
        return None
    if node.op_type == "SpaceToDepth":
        split, perm = (n, c, h // size, size, w // size, size), (0, 3, 5, 1, 2, 4)
    elif node.attributes.get("mode", "DCR") == "CRD":
        split, perm = (n, c // size**2, size, size, h, w), (0, 1, 4, 2, 5, 3)
    else:
        split, perm = (n, size, size, c // size**2, h, w), (0, 3, 4, 1, 5, 2)
    apart = reshaped(axes, split)
    return None if apart is None else reshaped(transposed(apart, perm), behind.tensors[node.outputs[0]].shape)


def _nearest(tail: Tail, after: Sequence[Node], behind: Behind) -> Tail:
    """`tail` with logits from before a Transpose, where that one's elements lie in the output's order."""
    if in_order(tail) or tail.zero is not None or tail.parts:
        return tail
    before: list[Node] = []
    name = tail.logits.name
    while (node := behind.node(name, "Transpose", *VIEW_OPS)) is not None:
        before.insert(0, node)
        name = node.inputs[0]
        logits = behind.tensors[name]
        axes, inner = (_through(logits.shape, nodes, behind) for nodes in ([*before, *after], before))
        if axes is None or inner is None:
            continue
        axis = -1
        if tail.axis >= 0:
            pieces, length = inner[tail.axis], tail.shape[tail.axis]
            axis = pieces[0][0] if pieces else 0
            if pieces != ((axis, 1, length),) or logits.shape[axis] != length:
                continue
        found = replace(tail, logits=logits, axis=axis, axes=axes)
        if in_order(found):
            return found
    return tail


def in_order(tail: Tail) -> bool:
    """Whether the output's elements, without the axis of the classes, lie in the order of the logits'."""
    pieces = [piece for axis in tail.axes for piece in axis if piece[0] != tail.axis]
    return order_behind(pieces) == tuple(range(len(pieces)))
