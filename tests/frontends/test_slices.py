"""Parts of a parameter that a file stores apart are told; tensors that only look alike are not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from poetopt.frontends.onnx_file import load_onnx
from poetopt.frontends.slices import parts
from tests.frontends.support import floats

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

TABLE = floats(7, 5)
CUT: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "rows": lambda a: a[2:4],
    "one row": lambda a: a[3],
    "flip": lambda a: a[::-1],
    "columns": lambda a: a[:, 1:3],
    "columns, turned": lambda a: a[:, 1:3].T,
    "rows, unsqueezed": lambda a: a[None, 2:3],
    "every other": lambda a: a[::2],
}


@pytest.mark.parametrize("case", CUT)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_parts_are_found(case: str, dtype: type[np.generic]) -> None:
    table = TABLE.astype(dtype)
    arrays = {"part": np.ascontiguousarray(CUT[case](table)), "table": table, "other": floats(7, 5, seed=1)}
    assert set(map(frozenset, parts(arrays))) == {frozenset(("part", "table"))}


def test_a_part_of_a_vector() -> None:
    bias = floats(12)
    assert parts({"bias": bias, "part": bias[4:9].copy()}) == [("part", "bias")]


@pytest.mark.parametrize(
    "other",
    [TABLE, TABLE.T, TABLE + np.float32(1), np.zeros((3, 5), np.float32), np.ones((2, 5), np.float32), TABLE[:2, :3]],
    ids=["equal", "turned", "moved", "zeros", "ones", "a corner"],
)
def test_what_is_no_part(other: NDArray[np.float32]) -> None:
    arrays = {"table": TABLE, "other": np.ascontiguousarray(other), "fresh": np.zeros((7, 5), np.float32)}
    assert parts({**arrays, "scale": np.ones((4, 5), np.float32)}) == []


def test_a_pruned_weight_is_no_part() -> None:
    sparse = np.where(floats(64, 64) > 1.5, floats(64, 64), np.float32(0))
    assert parts({"sparse": sparse, "half": np.where(floats(32, 64, seed=1) > 1, sparse[:32], np.float32(0))}) == []


@pytest.mark.torch
def test_the_older_exporter_cuts_a_parameter() -> None:
    torch = pytest.importorskip("torch")
    from tests.frontends.test_torch_exports import export

    class Cut(torch.nn.Module):  # type: ignore[misc,name-defined,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Parameter(torch.randn(6, 8))

        def forward(self, x: Any) -> Any:
            return (x * self.table[0] + self.table[1:3].sum(0)) @ self.table.flip(0).t()

    torch.manual_seed(0)
    notes = load_onnx(export(Cut(), torch.randn(4, 8), opset_version=17)).notes
    assert any("tensors hold rows of others" in note and "by its own uses alone" in note for note in notes)
