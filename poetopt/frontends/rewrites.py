"""Nodes as they are planned: Dropout that drops nothing, casts, shapes and states of another batch, scales."""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, helper

from poetopt.frontends.draft import Draft, Rebatch
from poetopt.frontends.operands import FIRST_STATES
from poetopt.frontends.proto import copied
from poetopt.frontends.resizes import agreed
from poetopt.frontends.states import fitted
from poetopt.util.errors import UnsupportedOpError

_OPTIONAL_SCALES_SINCE = 13
"""From this opset on a Resize with sizes has no scales."""


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
        mask = np.ones(draft.types[node.input[0]][1], dtype=np.bool_)
        draft.put(node.output[1], mask)
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
    return float(np.asarray(draft.constants[name]).reshape(-1)[0])


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
    if scales is None or not scales.size or draft.opset < _OPTIONAL_SCALES_SINCE:
        return
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
    """Replace first states of a recurrent layer that are for another batch."""
    if node.op_type not in FIRST_STATES:
        return
    at = draft.at(node)
    shapes = {name: draft.types[name][1] for name in node.input if name}
    for state in fitted(at, node, shapes, draft.constants):
        if state.name not in draft.types:
            if state.value is not None:
                draft.put(state.name, state.value)
            elif state.target is not None:
                draft.put(f"{state.name}.shape", state.target)
                draft.nodes.append(state.expansion(f"{state.name}.shape"))
                draft.types[state.name] = (draft.types[state.old][0], state.shape)
        node.input[state.place] = state.name
        draft.repeated[state.old] = state.shape[1]
