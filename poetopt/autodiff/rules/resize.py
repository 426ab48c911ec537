"""Resize: a linear map along each axis, whose matrix is known; the gradient is the product with its transpose.

Where the map only repeats each element s times (nearest neighbours, whole scale), the gradient is a sum over blocks of
s: a view and one ReduceSum. Reads nothing but dY; one temporary an axis but the last.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp
from poetopt.autodiff.rules.rearrange import along
from poetopt.errors import MissingVjpError
from poetopt.frontends.proto import node_proto
from poetopt.graph import Node, Tensor

Matrix = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


@register_vjp("Resize", since=11)
def resize(op: Primal, cotangents: Cotangents) -> Gradients:
    """See above."""
    mode = op.attr_text("coordinate_transformation_mode", "half_pixel")
    if mode == "tf_crop_and_resize":
        raise MissingVjpError(f"{op.where}: there is no gradient rule for coordinate_transformation_mode {mode!r}")
    dy = op.only(cotangents)
    rank = len(op.x.shape)
    axes = [axis % rank for axis in op.attr_ints("axes") or range(rank)]
    given = op.value(2)
    scales = np.asarray(given, np.float64).reshape(-1) if given is not None and given.size else None
    common = _common_scale(op, axes) if scales is None else None
    k = op.emit("grad_input")
    # the axis that shrinks the gradient most goes first
    for axis in sorted(range(rank), key=lambda a: op.x.shape[a] / max(op.y.shape[a], 1)):
        before, after = op.x.shape[axis], op.y.shape[axis]
        scale = float(scales[axes.index(axis)]) if scales is not None and axis in axes else after / before
        if common is not None and axis in axes:
            dy = _along(k, dy, axis, _beyond(before, after, common, _settings(op, True)))
        elif before != after or scale != 1.0:
            dy = _along(k, dy, axis, line_matrix(before, after, scale, _settings(op, scales is not None)))
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


def _beyond(before: int, after: int, scale: float, settings: tuple[tuple[str, object], ...]) -> Matrix:
    """[after, before]: as `line_matrix`, for a scale that would not reach the last rows that rounding added.

    The line is made longer by repeating its last element, which is what the positions beyond it read anyway.
    """
    longer = before + 4 + math.ceil(1 / scale)
    matrix = line_matrix(longer, 0, scale, settings)[:after]
    return np.concatenate([matrix[:, : before - 1], matrix[:, before - 1 :].sum(1, keepdims=True)], 1)


def _settings(op: Primal, scaled: bool) -> tuple[tuple[str, object], ...]:
    defaults: Mapping[str, object] = {
        "antialias": 0, "coordinate_transformation_mode": "half_pixel", "cubic_coeff_a": -0.75,
        "exclude_outside": 0, "mode": "nearest", "nearest_mode": "round_prefer_floor",
    }  # fmt: skip
    found = {name: op.node.attributes.get(name, default) for name, default in defaults.items()}
    return (*sorted(found.items()), ("scaled", scaled))


@lru_cache(maxsize=64)
def line_matrix(before: int, after: int, scale: float, settings: tuple[tuple[str, object], ...]) -> Matrix:
    """[after, before]: what Resize does to one axis, found by resizing the unit vectors with onnx's own definition."""
    from onnx.reference import ReferenceEvaluator

    attributes = {name: value for name, value in settings if name != "scaled"}
    scaled = dict(settings)["scaled"]
    names = ("x", "", "s", "") if scaled else ("x", "", "", "n")
    node = node_proto(Node("Resize", names, ("y",), attributes))
    feeds: dict[str, object] = {"x": np.eye(before)}
    feeds |= {"s": np.array([scale, 1.0], np.float32)} if scaled else {"n": np.array([after, before], np.int64)}
    (found,) = ReferenceEvaluator(node, opsets={"": 19}).run(None, feeds)
    return np.asarray(found, np.float64)


def _along(k: OperatorBuilder, dy: Tensor, axis: int, matrix: Matrix) -> Tensor:
    after, before = matrix.shape
    if after % before == 0 and np.array_equal(matrix, np.repeat(np.eye(before), after // before, 0)):
        blocks = k.reshape(dy, (*dy.shape[:axis], before, after // before, *dy.shape[axis + 1 :]))
        return k.reduce_sum(blocks, [axis + 1], keepdims=False)
    return along(k, dy, axis, np.ascontiguousarray(matrix.T))
