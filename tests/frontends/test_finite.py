"""Parameters that hold NaN or infinities are told, in every type; large and small numbers are none."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import helper

from poetopt.frontends.onnx_file import load_onnx
from poetopt.frontends.trained import finite_note
from tests.frontends.support import floats, model_of

DTYPES = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_value_is_found(dtype: type[np.generic], value: float) -> None:
    arrays: dict[str, Any] = {name: floats(3, 4).astype(dtype) for name in "abc"}
    arrays["b"][2, 1] = arrays["c"][0, 0] = value
    (text,) = finite_note(arrays)
    assert text.startswith("NaN or infinite values in 2 of 3 parameters, 'b' the first")


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_are_numbers(dtype: type[Any]) -> None:
    limits = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    arrays = {"large": np.full((5, 2), limits.max, dtype), "low": np.full(3, limits.min, dtype)}
    assert finite_note({**arrays, "tiny": np.full(1, limits.tiny, dtype), "none": np.zeros((0, 4), dtype)}) == []


def test_masks_of_minus_infinity_are_no_parameters() -> None:
    """What isn't trained may hold infinities for good reasons."""
    added = np.where(np.triu(np.ones((3, 3)), 1) > 0, -np.inf, 0).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Add", ["h", "mask"], ["s"]),
        helper.make_node("Softmax", ["s"], ["y"]),
    ]
    weights = {"w": floats(3, 3), "mask": added}
    notes = load_onnx(model_of(nodes, {"x": [3, 3]}, ["y"], weights)).notes
    assert not any("infinite" in text for text in notes)
    broken = {**weights, "w": np.full((3, 3), np.nan, np.float32)}
    notes = load_onnx(model_of(nodes, {"x": [3, 3]}, ["y"], broken)).notes
    assert any("in 1 of 1 parameters, 'w' the first" in text for text in notes)
