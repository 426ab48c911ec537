"""Resize: a linear map along each axis, whose weights onnxruntime tells; the gradient is that of its transpose.

An element of y reads a few neighbours along an axis, so an element of x is read by a few: their gradients are gathered,
weighed and added, one after another (`sparse`). Where the map only repeats each element s times (nearest neighbours,
whole scale), the gradient is a sum over blocks of s: a view and one ReduceSum. Reads nothing but dY; up to three
temporaries of dY's size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp
from poetopt.autodiff.rules.sparse import Entries, Numbers, along
from poetopt.errors import MissingVjpError
from poetopt.frontends.one_node import computed
from poetopt.frontends.proto import node_proto
from poetopt.graph import Node, Tensor

Floats = NDArray[np.float32]
Settings = tuple[tuple[str, object], ...]

_LONGEST = 2**24
"""Elements of an axis that float32 can count."""

_PROBE_ELEMENTS = 2**22
"""So many elements at a time when weights are asked for."""


@register_vjp("Resize", since=11)
def resize(op: Primal, cotangents: Cotangents) -> Gradients:
    """See above."""
    mode = op.attr_text("coordinate_transformation_mode", "half_pixel")
    if mode == "tf_crop_and_resize":
        raise MissingVjpError(
            f"{op.where}: there is no gradient rule for coordinate_transformation_mode {mode!r}; write a fixed "
            "region as a Slice and a Resize ('half_pixel', say), or train what comes after it (--train PATTERN)"
        )
    dy = op.only(cotangents)
    if op.x.shape == op.y.shape:  # copied, whatever the scales are
        return dy, None, None, None
    rank = len(op.x.shape)
    axes = [axis % rank for axis in op.attr_ints("axes") or range(rank)]
    given = op.value(2)
    scales = np.asarray(given, np.float64).reshape(-1) if given is not None and given.size else None
    common = _common_scale(op, axes) if scales is None else None
    settings = _settings(op, scales is not None or common is not None)
    k = op.emit("grad_input")
    # the axis that shrinks the gradient most goes first
    for axis in sorted(range(rank), key=lambda a: round(op.x.shape[a] / max(op.y.shape[a], 1), 2)):
        before, after = op.x.shape[axis], op.y.shape[axis]
        scale = float(scales[axes.index(axis)]) if scales is not None and axis in axes else after / before
        try:
            if common is not None and axis in axes:
                dy = along(k, dy, axis, before, _beyond(before, after, common, settings))
            elif before != after or scale != 1.0:
                dy = _along(k, dy, axis, before, scale, settings)
        except MissingVjpError as error:
            raise MissingVjpError(f"{op.where}: {error}") from None
    return dy, None, None, None


def _common_scale(op: Primal, axes: Sequence[int]) -> float | None:
    """The scale of all axes where sizes only bound it (keep_aspect_ratio_policy); None where each axis has its own.

    The lengths are rounded, the scale is not. Where corners are aligned, the lengths alone count.
    """
    policy = op.attr_text("keep_aspect_ratio_policy", "stretch")
    mode = op.attr_text("coordinate_transformation_mode", "half_pixel")
    if policy == "stretch" or mode == "align_corners":
        return None
    alone = mode == "pytorch_half_pixel" and any(op.y.shape[axis] == 1 for axis in axes)
    if alone or mode == "half_pixel_symmetric" or op.attr_int("antialias", 0) or op.attr_int("exclude_outside", 0):
        raise MissingVjpError(
            f"{op.where}: there is no gradient rule for keep_aspect_ratio_policy {policy!r} with these settings; "
            "give the output sizes themselves (policy 'stretch')"
        )
    ratios = [int(size) / op.x.shape[axis] for size, axis in zip(op.known(3).reshape(-1), axes, strict=True)]
    return min(ratios) if policy == "not_larger" else max(ratios)


def _beyond(before: int, after: int, scale: float, settings: Settings) -> Entries:
    """As `weights`, for a scale that would not reach the last places that rounding added.

    The line is made longer by repeating its last element, which is what the places beyond it read anyway.
    """
    longer = before + 4 + math.ceil(1 / scale)
    found = weights(longer, 0, scale, settings).until(after)
    return replace(found, read=np.minimum(found.read, before - 1))


def _settings(op: Primal, scaled: bool) -> Settings:
    defaults: Mapping[str, object] = {
        "antialias": 0, "coordinate_transformation_mode": "half_pixel", "cubic_coeff_a": -0.75,
        "exclude_outside": 0, "mode": "nearest", "nearest_mode": "round_prefer_floor",
    }  # fmt: skip
    found = {name: op.node.attributes.get(name, default) for name, default in defaults.items()}
    return (*sorted(found.items()), ("opset", max(op.opset, 13)), ("scaled", scaled))


def _along(k: OperatorBuilder, dy: Tensor, axis: int, before: int, scale: float, settings: Settings) -> Tensor:
    after = dy.shape[axis]
    entries = weights(before, after, scale, settings)
    if dict(settings)["mode"] == "nearest" and after % before == 0:
        repeats = after // before
        if np.array_equal(entries.read, np.arange(after) // repeats):
            blocks = k.reshape(dy, (*dy.shape[:axis], before, repeats, *dy.shape[axis + 1 :]))
            return k.reduce_sum(blocks, [axis + 1], keepdims=False)
    return along(k, dy, axis, before, entries.until(after))


@lru_cache(maxsize=16)
def weights(before: int, after: int, scale: float, settings: Settings) -> Entries:
    """What each element of y reads along one axis and how much of it, as onnxruntime computes it.

    What runs decides: where corners are aligned and the scaled length is not whole, onnx's reference implementation
    has another idea than the kernels (and torch) of where between two elements a position lies.

    A place reads neighbours, fewer than `span`. So lines with ones at every span-th element tell the weights, each of
    at most one element a place; and the same lines with the elements' numbers for ones tell which element it is.

    after
        Read where the settings go by sizes (`scaled` is false).

    Raises `MissingVjpError` where onnxruntime refuses the settings, or an axis has more than 2**24 elements.
    """
    length = max(after, math.floor(before * scale))
    if max(before, length) > _LONGEST:
        raise MissingVjpError(
            f"there is no gradient rule for {before} elements that become {length} along one axis, beyond what float32 "
            "can count; cut the axis into parts"
        )
    own = dict(settings)
    numbers = np.arange(before, dtype=np.float32)
    if own["mode"] == "nearest":
        read = _resized(numbers[:, None], after, scale, settings)[:, 0].astype(np.int64)
        return Entries(np.arange(read.size), read, np.ones(read.size))
    reach = math.ceil(before / max(length, 1)) if own["antialias"] else 1
    span = min(before, 2 * (2 if own["mode"] == "cubic" else 1) * reach + 4)
    columns = max(1, _PROBE_ELEMENTS // max(before, length))
    parts = [
        _told(before, span, range(low, min(low + columns, span)), after, scale, settings)
        for low in range(0, span, columns)
    ]
    places, read, share = (np.concatenate(each) for each in zip(*parts, strict=True))
    order = np.lexsort((read, places))
    return Entries(places[order], read[order], share[order])


def _told(
    before: int, span: int, offsets: range, after: int, scale: float, settings: Settings
) -> tuple[Numbers, Numbers, NDArray[np.float64]]:
    """Places, what they read, and weights, of the elements whose numbers leave one of `offsets` over `span`."""
    numbers = np.arange(before)
    ones = (numbers[:, None] % span == np.array(offsets)).astype(np.float32)
    share = _resized(ones, after, scale, settings)
    total = _resized(ones * numbers[:, None].astype(np.float32), after, scale, settings)
    places, columns = np.nonzero(np.abs(share) > np.finfo(np.float32).tiny)
    weight = share[places, columns].astype(np.float64)
    about = total[places, columns] / weight
    offset = np.array(offsets)[columns]
    # of the elements with this remainder the nearest: rounding is off by far less than half a span
    read = np.rint((about - offset) / span).astype(np.int64) * span + offset
    return places, read, weight


def _resized(x: Floats, after: int, scale: float, settings: Settings) -> Floats:
    """The columns of x, resized by onnxruntime.

    A tensor whose shape stays is copied whatever its scales are. So columns that keep their length go one by one, each
    made two of.
    """
    own: dict[str, Any] = dict(settings)
    opset, scaled = own.pop("opset"), own.pop("scaled")
    kept = scaled and int(np.float32(len(x)) * np.float32(scale)) == len(x) and scale != 1.0
    if kept and x.shape[1] > 1:
        return np.concatenate([_resized(column, after, scale, settings) for column in np.hsplit(x, x.shape[1])], 1)
    wide = 2.0 if kept else 1.0
    given = np.array([scale, wide], np.float32) if scaled else np.array([after, x.shape[1]], np.int64)
    node = node_proto(
        Node("Resize", ("x", "", "given") if scaled else ("x", "", "", "given"), ("y",), _known(own, opset))
    )
    found = computed(node, {"x": x, "given": given}, opset)
    if found is None:
        shown = ", ".join(f"{name} {value}" for name, value in own.items())
        raise MissingVjpError(f"there is no gradient rule for what onnxruntime doesn't compute ({shown})")
    return np.asarray(found["y"][:, : x.shape[1]], np.float32)


def _known(settings: Mapping[str, Any], opset: int) -> dict[str, Any]:
    """The settings without those that this opset's Resize doesn't have."""
    return {name: value for name, value in settings.items() if name != "antialias" or opset >= 18}
