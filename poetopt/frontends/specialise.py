"""Pass over the nodes: rewrite and check each, then fold it or infer the static shapes of its outputs.

Rewritten are inactive Dropout, casts, stored shapes and initial states of recurrent layers for another batch, and the
scales of a Resize. Initial states with equal rows (nearly always zeros) are repeated for the batch; a trained state of
a single row is expanded, so that its gradient is the sum over the batch.

A scaled axis gets the length that onnxruntime computes in float32 (ONNX's shape inference uses float64): 7/5 is
1.39999998, and five elements become 6 in float32 and 7 in float64. Such a Resize gets the lengths instead. Its scales
don't change, because onnxruntime divides the lengths in float32. If another axis has a scale that isn't such a ratio,
the scale that is too small becomes the next larger float32. With nearest-neighbour sampling, that could change the
result, so these scales don't change.

Shapes of intermediate tensors that the file declares are used only if inference fails: they may be stale
(another batch), and inference from the inputs detects inconsistencies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, helper

from poetopt.frontends.checks import check_attributes, check_operands, check_types, check_window
from poetopt.frontends.draft import Draft, FoldingBudget, Rebatch, Type, readers, released
from poetopt.frontends.fold import check_view, fold, infer
from poetopt.frontends.proto import copied
from poetopt.ops.op import op_of
from poetopt.util.errors import ModelError, UnsupportedOpError

if TYPE_CHECKING:
    from poetopt.graph import Array


Floats = NDArray[np.float32]


def lengths(before: Sequence[int], scales: Floats) -> list[int]:
    """Return the lengths that onnxruntime gives scaled axes."""
    return [int(np.float32(length) * scale) for length, scale in zip(before, scales, strict=True)]


def agreed(before: Sequence[int], scales: Floats, *, nearest: bool) -> NDArray[np.int64] | Floats | None:
    """Return sizes (int64) or scales (float32) for which float32 and float64 agree; None to keep the scales."""
    after = lengths(before, scales)
    short = [int(np.floor(n * float(s))) != m for n, s, m in zip(before, scales, after, strict=True)]
    if not any(short):
        return None
    ratios = [np.float32(m) / np.float32(n) for n, m in zip(before, after, strict=True)]
    if all(ratio == scale for ratio, scale in zip(ratios, scales, strict=True)):
        return np.array(after, np.int64)
    if nearest:
        return None
    return np.where(short, np.nextafter(scales, np.float32(np.inf)), scales).astype(np.float32)


Shape = tuple[int, ...]

_LARGEST_SCALE = 2.0**31
"""Limit of a scale: no dimension is larger."""


def rewritten(draft: Draft, original: NodeProto, rebatch: Rebatch | None) -> NodeProto:
    """Return a rewritten copy of `original`; constants and nodes that it needs are added to the draft."""
    node = _simplify(draft, original)
    if rebatch is not None:
        _rebatch(draft, node, rebatch)
    _set_resize_lengths(draft, node)
    _repeat_states(draft, node)
    return node


def _simplify(draft: Draft, node: NodeProto) -> NodeProto:
    """Return a copy of `node`; inactive Dropout and casts to the same type become Identity, CastLike a Cast."""
    copy = copied(node)
    if node.op_type in {"Cast", "CastLike"}:
        return _simplify_cast(draft, copy)
    if node.op_type != "Dropout":
        return copy
    at = draft.at(node)
    ratio, training = _constant_setting(draft, at, node, 1, 0.5), _constant_setting(draft, at, node, 2, 0.0)
    if training and ratio:
        return copy
    identity = helper.make_node("Identity", [node.input[0]], [node.output[0]], name=node.name)
    if len(node.output) > 1 and node.output[1]:
        draft.put(node.output[1], np.broadcast_to(np.True_, draft.types[node.input[0]][1]))  # a view, without memory
    draft.removed_dropouts += 1
    return identity


def _simplify_cast(draft: Draft, node: NodeProto) -> NodeProto:
    """Return a Cast or CastLike as a Cast, or as an Identity if the type doesn't change."""
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    is_like = len(node.input) == 2
    to = draft.types[node.input[1]][0] if is_like else attributes.get("to")
    if node.input and to == draft.types[node.input[0]][0]:
        return helper.make_node("Identity", node.input[:1], node.output, name=node.name)
    return helper.make_node("Cast", node.input[:1], node.output, name=node.name, to=to) if is_like else node


def _constant_setting(draft: Draft, at: str, node: NodeProto, index: int, default: float) -> float:
    name = node.input[index] if index < len(node.input) else ""
    if not name:
        return default
    if name not in draft.constants:
        raise UnsupportedOpError(
            f"{at}: its {'ratio' if index == 1 else 'training_mode'} ({name!r}) is not constant. "
            "Export the model with it fixed"
        )
    value = np.asarray(draft.constants[name])
    if value.size != 1:
        raise ModelError(f"{at}: its operand {name!r} has {value.size} elements, but must be a scalar")
    return float(value.reshape(-1)[0])


def _rebatch(draft: Draft, node: NodeProto, rebatch: Rebatch) -> None:
    """Put the new batch into the constant shape of a Reshape or Expand that begins with the old one."""
    if node.op_type not in ("Reshape", "Expand") or len(node.input) < 2 or node.input[1] not in draft.constants:
        return
    shape = draft.constants[node.input[1]]
    data = rebatch.before.get(node.input[0])
    result = rebatch.before.get(node.output[0])
    if not shape.size or data is None or result is None or not data[1] or not result[1]:
        return
    leads = (rebatch.old,) if node.op_type == "Reshape" else (rebatch.old, 1)
    if int(shape.reshape(-1)[0]) == rebatch.old == result[1][0] and data[1][0] in leads:
        node.input[1] = draft.put_beside(f"{node.output[0]}.shape", np.array([rebatch.new, *shape[1:]], np.int64))


def _set_resize_lengths(draft: Draft, node: NodeProto) -> None:
    """Replace the scales of a Resize by sizes if shape inference and onnxruntime compute different lengths."""
    scales = draft.constants.get(node.input[2]) if node.op_type == "Resize" and len(node.input) > 2 else None
    # since opset 13 a Resize with sizes has no scales
    if scales is None or not scales.size or scales.ndim != 1 or draft.opset < 13:
        return
    if not all(0 < scale < _LARGEST_SCALE for scale in scales.tolist()):
        raise ModelError(f"{draft.at(node)}: its scales {scales.tolist()} aren't within 0 and 2^31. Export it again")
    attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    before = draft.types[node.input[0]][1]
    axes = attrs.get("axes") or range(len(before))
    if attrs.get("coordinate_transformation_mode") == b"tf_crop_and_resize" or len(axes) != scales.size:
        return
    if any(not -len(before) <= axis < len(before) for axis in axes):
        return
    new = agreed(
        [before[axis] for axis in axes],
        scales.astype(np.float32),
        nearest=attrs.get("mode", b"nearest") == b"nearest",
    )
    if new is not None:
        has_sizes = new.dtype == np.int64
        name = draft.put_beside(f"{node.output[0]}.{'sizes' if has_sizes else 'scales'}", new)
        del node.input[1:]
        node.input.extend(["", "", name] if has_sizes else ["", name])


def _repeat_states(draft: Draft, node: NodeProto) -> None:
    """Replace initial states of a recurrent layer that are for another batch.

    Raise `ModelError` if the rows of a state differ, or are computed.
    """
    operands = [p for p in op_of(node.op_type).first_states if p < len(node.input) and node.input[p]]
    x = draft.types[node.input[0]][1] if operands else ()
    for operand in operands:
        name = node.input[operand]
        elem, state = draft.types[name]
        if len(x) != 3 or len(state) != 3 or state[1] == x[1]:
            continue
        shape, value, repeated = (state[0], x[1], state[2]), draft.constants.get(name), f"{name}.{x[1]}_rows"
        is_repeatable = value is not None and state[1] and bool(np.all(value == value[:, :1]))
        if not is_repeatable and (value is not None or state[1] != 1):
            reason = "its rows differ" if value is not None else "it is trained or computed"
            raise ModelError(
                f"{draft.at(node)}: its initial state {name!r} is for a batch of {state[1]} and the batch is {x[1]}, "
                f"and {reason}. Use --batch {state[1]}, or export the model with an initial state of zeros (or of one "
                "row) that follows the batch"
            )
        if repeated not in draft.types and value is not None:
            draft.put(repeated, np.repeat(value[:, :1], x[1], axis=1))
        elif repeated not in draft.types:
            draft.put(f"{repeated}.shape", np.array(shape, np.int64))
            draft.nodes.append(helper.make_node("Expand", [name, f"{repeated}.shape"], [repeated], name=repeated))
            draft.types[repeated] = (elem, shape)
        node.input[operand] = repeated
        draft.repeated[name] = x[1]


def specialise(
    where: str,
    opset: int,
    nodes: Sequence[NodeProto],
    types: Mapping[str, Type],
    constants: Mapping[str, Array],
    declared: Mapping[str, Type],
    rebatch: Rebatch | None = None,
    outputs: Iterable[str] = (),
    budget: FoldingBudget | None = None,
    kept: Iterable[str] | None = None,
) -> Draft:
    """Rewrite, fold and infer `nodes` (in topological order, opset `opset`).

    Parameters
    ----------
    types
        Types of inputs and of all weights.
    constants
        Weights that are not trained.
    declared
        Static types of other tensors that the file declares.
    outputs
        If some of these can be imported, others are dropped, with the nodes that only they need.
    budget
        Budget of folding.
    kept
        Tensors that are read outside of `nodes`. Other folded constants that no operator reads are dropped once they
        are folded into others; with None, all are kept.

    Raises
    ------
    ModelError
        For inconsistent shapes; the message has node and tensor.
    UnsupportedOpError
        For unknown shapes.
    """
    draft = Draft(where, opset, types=dict(types), constants=dict(constants), budget=budget or FoldingBudget())
    output_names = list(outputs)
    reads_left, kept_names = readers(nodes), None if kept is None else {*constants, *kept}
    errors: dict[str, UnsupportedOpError] = {}
    for original in nodes:
        error = next((errors[name] for name in original.input if name in errors), None)
        if error is None:
            try:
                folded = _add_node(draft, original, declared, rebatch)
                if kept_names is not None:
                    if not folded:
                        kept_names.update(original.input)
                    _drop_constants(draft, released(reads_left, original, kept_names))
                continue
            except UnsupportedOpError as unsupported:
                error = unsupported
        errors.update((name, error) for name in original.output if name)
        if len(output_names) < 2 or all(name in errors for name in output_names):
            raise error
    draft.unread.update((name, str(errors[name])) for name in output_names if name in errors)
    return draft


def _drop_constants(draft: Draft, names: Iterable[str]) -> None:
    for name in names:
        array = draft.constants.pop(name, None)
        if array is not None:
            draft.gone.add(name)
            draft.budget.give_back(array.nbytes)


def _add_node(draft: Draft, original: NodeProto, declared: Mapping[str, Type], rebatch: Rebatch | None) -> bool:
    """Fold a node, or append it to the draft with the types of its outputs; return whether it was folded."""
    node = rewritten(draft, original, rebatch)
    shapes = [draft.types[name][1] if name else None for name in node.input]
    at = draft.at(node)
    check_types(at, node, [draft.types[name][0] if name else 0 for name in node.input], draft.opset)
    check_attributes(at, node, shapes, draft.constants, draft.opset)
    check_operands(at, node, shapes, draft.constants)
    if fold(draft, node, declared):
        draft.folded += 1
        return True
    types = infer(draft, node, declared)
    check_window(at, node, shapes, [shape for _, shape in types.values()])
    draft.types.update(types)
    check_view(draft, node)
    draft.nodes.append(node)
    return False
