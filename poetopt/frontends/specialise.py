"""The pass over the nodes: each is rewritten, checked and folded, or the static shapes of its outputs inferred.

Rewritten are Dropout that drops nothing, casts, baked-in shapes and first states of recurrent layers of another batch,
and the scales of a Resize. States whose rows are all alike (zeros, nearly always) are repeated for the batch; a trained
one of a single row is expanded, so that its gradient is the sum over the batch.

Scaled axes become as long as onnxruntime makes them, which multiplies in float32 (ONNX's shape inference: in float64):
7/5 is 1.39999998, and five elements become 6 by the one and 7 by the other. Such a Resize is given the lengths
themselves. Its scales stay what they are: onnxruntime divides the lengths in float32. Where another axis has a scale
that is no such ratio, the one that is too small becomes the next larger float32; nearest neighbours could be others
then, and stay as they are.

Shapes of intermediate tensors that the file declares are used only where inference can't tell: they may be stale
(another batch), and inference from the inputs catches what does not fit.
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
    """Gives what onnxruntime makes of axes of these lengths."""
    return [int(np.float32(length) * scale) for length, scale in zip(before, scales, strict=True)]


def agreed(before: Sequence[int], scales: Floats, *, nearest: bool) -> NDArray[np.int64] | Floats | None:
    """Sizes (int64), or scales (float32), by which both come to the same; None where these scales may stay."""
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
"""No dimension is larger."""


def rewritten(draft: Draft, original: NodeProto, rebatch: Rebatch | None) -> NodeProto:
    """A copy of `original` to be planned; constants that it needs besides, and nodes before it, go into the draft."""
    node = _plain(draft, original)
    if rebatch is not None:
        _rebatch(draft, node, rebatch)
    _measure(draft, node)
    _fit_states(draft, node)
    return node


def _plain(draft: Draft, node: NodeProto) -> NodeProto:
    """A copy of `node`; Dropout that drops nothing and casts to the same type become Identity, CastLike a Cast."""
    copy = copied(node)
    if node.op_type in {"Cast", "CastLike"}:
        return _cast(draft, copy)
    if node.op_type != "Dropout":
        return copy
    at = draft.at(node)
    ratio, training = _setting(draft, at, node, 1, 0.5), _setting(draft, at, node, 2, 0.0)
    if training and ratio:
        return copy
    identity = helper.make_node("Identity", [node.input[0]], [node.output[0]], name=node.name)
    if len(node.output) > 1 and node.output[1]:
        draft.put(node.output[1], np.broadcast_to(np.True_, draft.types[node.input[0]][1]))  # of no bytes
    draft.removed_dropouts += 1
    return identity


def _cast(draft: Draft, node: NodeProto) -> NodeProto:
    """`node`, a Cast or a CastLike, as a Cast, or as an Identity where the type stays."""
    own = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    like = len(node.input) == 2
    to = draft.types[node.input[1]][0] if like else own.get("to")
    if node.input and to == draft.types[node.input[0]][0]:
        return helper.make_node("Identity", node.input[:1], node.output, name=node.name)
    return helper.make_node("Cast", node.input[:1], node.output, name=node.name, to=to) if like else node


def _setting(draft: Draft, at: str, node: NodeProto, index: int, default: float) -> float:
    name = node.input[index] if index < len(node.input) else ""
    if not name:
        return default
    if name not in draft.constants:
        raise UnsupportedOpError(
            f"{at}: its {'ratio' if index == 1 else 'training_mode'} ({name!r}) is not constant; "
            "export the model with it fixed"
        )
    value = np.asarray(draft.constants[name])
    if value.size != 1:
        raise ModelError(f"{at}: its operand {name!r} has {value.size} elements, but must be a number")
    return float(value.reshape(-1)[0])


def _rebatch(draft: Draft, node: NodeProto, rebatch: Rebatch) -> None:
    """Put the new batch into the constant shape of a Reshape or Expand that has the old one in front."""
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


def _measure(draft: Draft, node: NodeProto) -> None:
    """Give a Resize sizes where shape inference would read its scales otherwise than the runtime."""
    scales = draft.constants.get(node.input[2]) if node.op_type == "Resize" and len(node.input) > 2 else None
    # from this opset on a Resize with sizes has no scales
    if scales is None or not scales.size or scales.ndim != 1 or draft.opset < 13:
        return
    if not all(0 < scale < _LARGEST_SCALE for scale in scales.tolist()):
        raise ModelError(f"{draft.at(node)}: its scales {scales.tolist()} are no sizes; export the model again")
    own = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    before = draft.types[node.input[0]][1]
    axes = own.get("axes") or range(len(before))
    if own.get("coordinate_transformation_mode") == b"tf_crop_and_resize" or len(axes) != scales.size:
        return
    if any(not -len(before) <= axis < len(before) for axis in axes):
        return
    found = agreed(
        [before[axis] for axis in axes], scales.astype(np.float32), nearest=own.get("mode", b"nearest") == b"nearest"
    )
    if found is not None:
        sized = found.dtype == np.int64
        name = draft.put_beside(f"{node.output[0]}.{'sizes' if sized else 'scales'}", found)
        del node.input[1:]
        node.input.extend(["", "", name] if sized else ["", name])


def _fit_states(draft: Draft, node: NodeProto) -> None:
    """Replace first states of a recurrent layer that are for another batch.

    Raises `ModelError` where the rows of one differ, or are computed.
    """
    places = [p for p in op_of(node.op_type).first_states if p < len(node.input) and node.input[p]]
    x = draft.types[node.input[0]][1] if places else ()
    for place in places:
        name = node.input[place]
        elem, state = draft.types[name]
        if len(x) != 3 or len(state) != 3 or state[1] == x[1]:
            continue
        shape, value, fresh = (state[0], x[1], state[2]), draft.constants.get(name), f"{name}.{x[1]}_rows"
        constant = value is not None and state[1] and bool(np.all(value == value[:, :1]))
        if not constant and (value is not None or state[1] != 1):
            what = "its rows differ" if value is not None else "it is trained or computed"
            raise ModelError(
                f"{draft.at(node)}: its first state {name!r} is for a batch of {state[1]} and the batch is {x[1]}, and "
                f"{what}; use --batch {state[1]}, or export the model with a first state of zeros (or of one row) that "
                "follows the batch"
            )
        if fresh not in draft.types and value is not None:
            draft.put(fresh, np.repeat(value[:, :1], x[1], axis=1))
        elif fresh not in draft.types:
            draft.put(f"{fresh}.shape", np.array(shape, np.int64))
            draft.nodes.append(helper.make_node("Expand", [name, f"{fresh}.shape"], [fresh], name=fresh))
            draft.types[fresh] = (elem, shape)
        node.input[place] = fresh
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
    """Infer and fold `nodes` (in topological order, opset `opset`).

    types
        Of inputs and of all weights.
    constants
        Weights that are not trained.
    declared
        What the file says of other tensors, where it is static.
    outputs
        Where one of these can be imported, others needn't be: the nodes that only those need are left out.
    budget
        What folding may cost.
    kept
        What is read besides by the nodes. Folded constants that are not, and that no operator reads, are dropped as
        soon as they have been folded into others; by default none is.

    Raises `ModelError` where shapes don't fit each other, `UnsupportedOpError` where they are unknown, naming node and
    tensor.
    """
    draft = Draft(where, opset, types=dict(types), constants=dict(constants), budget=budget or FoldingBudget())
    wanted = list(outputs)
    left, stay = readers(nodes), None if kept is None else {*constants, *kept}
    lost: dict[str, UnsupportedOpError] = {}
    for original in nodes:
        error = next((lost[name] for name in original.input if name in lost), None)
        if error is None:
            try:
                folded = _add(draft, original, declared, rebatch)
                if stay is not None:
                    if not folded:
                        stay.update(original.input)
                    _drop(draft, released(left, original, stay))
                continue
            except UnsupportedOpError as found:
                error = found
        lost.update((name, error) for name in original.output if name)
        if len(wanted) < 2 or all(name in lost for name in wanted):
            raise error
    draft.unread.update((name, str(lost[name])) for name in wanted if name in lost)
    return draft


def _drop(draft: Draft, names: Iterable[str]) -> None:
    for name in names:
        array = draft.constants.pop(name, None)
        if array is not None:
            draft.gone.add(name)
            draft.budget.give_back(array.nbytes)


def _add(draft: Draft, original: NodeProto, declared: Mapping[str, Type], rebatch: Rebatch | None) -> bool:
    """Fold a node, or put it behind the draft's with the types of its outputs; whether it was folded."""
    node = rewritten(draft, original, rebatch)
    shapes = [draft.types[name][1] if name else None for name in node.input]
    at = draft.at(node)
    check_types(at, node, [draft.types[name][0] if name else 0 for name in node.input], draft.opset)
    check_attributes(at, node, shapes, draft.constants, draft.opset)
    check_operands(at, node, shapes, draft.constants)
    if fold(draft, node, declared):
        draft.folded += 1
        return True
    found = infer(draft, node, declared)
    check_window(at, node, shapes, [shape for _, shape in found.values()])
    draft.types.update(found)
    check_view(draft, node)
    draft.nodes.append(node)
    return False
