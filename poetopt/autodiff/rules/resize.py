"""Resize: a linear map along each axis, whose matrix onnxruntime tells; the gradient is the product with its transpose.

Where the map only repeats each element s times (nearest neighbours, whole scale), the gradient is a sum over blocks of
s: a view and one ReduceSum. Reads nothing but dY; one temporary an axis but the last.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp
from poetopt.autodiff.rules.rearrange import along
from poetopt.errors import MissingVjpError
from poetopt.frontends.one_node import computed
from poetopt.frontends.proto import node_proto
from poetopt.graph import Node, Tensor

Matrix = NDArray[np.float64]
Settings = tuple[tuple[str, object], ...]

_LARGEST_MATRIX = 2**26
"""Elements of a matrix that is stored with the graph: 256 MiB of float32."""


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
    settings = _settings(op, scales is not None or common is not None)
    k = op.emit("grad_input")
    # the axis that shrinks the gradient most goes first
    for axis in sorted(range(rank), key=lambda a: op.x.shape[a] / max(op.y.shape[a], 1)):
        before, after = op.x.shape[axis], op.y.shape[axis]
        scale = float(scales[axes.index(axis)]) if scales is not None and axis in axes else after / before
        try:
            if common is not None and axis in axes:
                dy = along(k, dy, axis, np.ascontiguousarray(_beyond(before, after, common, settings).T))
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


def _beyond(before: int, after: int, scale: float, settings: Settings) -> Matrix:
    """[after, before]: as `line_matrix`, for a scale that would not reach the last rows that rounding added.

    The line is made longer by repeating its last element, which is what the positions beyond it read anyway.
    """
    longer = before + 4 + math.ceil(1 / scale)
    matrix = line_matrix(longer, 0, scale, settings)[:after]
    return np.concatenate([matrix[:, : before - 1], matrix[:, before - 1 :].sum(1, keepdims=True)], 1)


def _settings(op: Primal, scaled: bool) -> Settings:
    defaults: Mapping[str, object] = {
        "antialias": 0, "coordinate_transformation_mode": "half_pixel", "cubic_coeff_a": -0.75,
        "exclude_outside": 0, "mode": "nearest", "nearest_mode": "round_prefer_floor",
    }  # fmt: skip
    found = {name: op.node.attributes.get(name, default) for name, default in defaults.items()}
    return (*sorted(found.items()), ("opset", max(op.opset, 13)), ("scaled", scaled))


def _along(k: OperatorBuilder, dy: Tensor, axis: int, before: int, scale: float, settings: Settings) -> Tensor:
    after = dy.shape[axis]
    if dict(settings)["mode"] == "nearest" and after % before == 0:
        repeats = after // before
        if np.array_equal(_nearest(before, after, scale, settings), np.arange(after) // repeats):
            blocks = k.reshape(dy, (*dy.shape[:axis], before, repeats, *dy.shape[axis + 1 :]))
            return k.reduce_sum(blocks, [axis + 1], keepdims=False)
    return along(k, dy, axis, np.ascontiguousarray(line_matrix(before, after, scale, settings).T))


@lru_cache(maxsize=16)
def line_matrix(before: int, after: int, scale: float, settings: Settings) -> Matrix:
    """[after, before]: what Resize does to one axis, found by letting onnxruntime resize the unit vectors.

    What runs decides: where corners are aligned and the scaled length is not whole, onnx's reference implementation
    has another idea than the kernels (and torch) of where between two elements a position lies.

    after
        Read where the settings go by sizes (`scaled` is false).

    Raises `MissingVjpError` where onnxruntime refuses the settings, or the matrix has more than 2**26 elements.
    """
    length = max(after, math.floor(before * scale))
    if before * length > _LARGEST_MATRIX:
        raise MissingVjpError(
            f"there is no gradient rule for {before} elements that become {length} along one axis, the matrix would be "
            "too large; use ConvTranspose, or nearest neighbours with a whole scale"
        )
    if dict(settings)["mode"] == "nearest":
        places = _nearest(before, after, scale, settings)
        return np.asarray(np.arange(before) == places[:, None], np.float64)
    return _resized(np.eye(before, dtype=np.float32), after, scale, settings).astype(np.float64)


def _nearest(before: int, after: int, scale: float, settings: Settings) -> NDArray[np.int64]:
    """Which element each position repeats."""
    return _resized(np.arange(before, dtype=np.float32)[:, None], after, scale, settings)[:, 0].astype(np.int64)


def _resized(x: NDArray[np.float32], after: int, scale: float, settings: Settings) -> NDArray[np.float32]:
    """The columns of x, resized by onnxruntime."""
    own: dict[str, Any] = dict(settings)
    opset, scaled = own.pop("opset"), own.pop("scaled")
    given = np.array([scale, 1.0], np.float32) if scaled else np.array([after, x.shape[1]], np.int64)
    node = node_proto(
        Node("Resize", ("x", "", "given") if scaled else ("x", "", "", "given"), ("y",), _known(own, opset))
    )
    found = computed(node, {"x": x, "given": given}, opset)
    if found is None:
        shown = ", ".join(f"{name} {value}" for name, value in own.items())
        raise MissingVjpError(f"there is no gradient rule for what onnxruntime doesn't compute ({shown})")
    return np.asarray(found["y"], np.float32)


def _known(settings: Mapping[str, Any], opset: int) -> dict[str, Any]:
    """The settings without those that this opset's Resize doesn't have."""
    return {name: value for name, value in settings.items() if name != "antialias" or opset >= 18}
