"""A stored mask of attention is data by its values and its place; anything that could be learned is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import helper

from poetopt.frontends.onnx_file import load_onnx
from tests.frontends.support import floats, model_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from poetopt.graph import Array

    Floats = NDArray[np.float32]

CAUSAL = np.triu(np.ones((3, 3), np.float32), 1)
SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"


def mask(low: float) -> Floats:
    """0 where a row looks back, `low` where it would look ahead."""
    return np.where(CAUSAL > 0, np.float32(low), np.float32(0))


def scores(added: Floats, *, elsewhere: bool = False) -> onnx.ModelProto:
    """Softmax of x w plus a bias plus `added`, which may be read by a product too."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Add", ["bias", "h"], ["b"]),
        helper.make_node("Unsqueeze", ["added", "front"], ["m"]),
        helper.make_node("Add", ["b", "m"], ["s"]),
        helper.make_node("Reshape", ["s", "shape"], ["r"]),
        helper.make_node("Softmax", ["r"], ["p"]),
        helper.make_node("Mul", ["p", "added" if elsewhere else "x"], ["y"]),
    ]
    weights: dict[str, Array] = {
        "w": floats(3, 3),
        "bias": floats(3, 3, seed=1),
        "added": added,
        "front": np.array([0]),
    }
    return model_of(nodes, {"x": [2, 3, 3]}, ["y"], {**weights, "shape": np.array([2, 3, 3])})


@pytest.mark.parametrize("low", [-100.0, -1e4, -np.inf, float(np.finfo(np.float32).min)])
def test_a_mask_is_data(low: float) -> None:
    graph = load_onnx(scores(mask(low)))
    assert graph.trained == ("w", "bias")
    assert any("masks added before a Softmax are data (added)" in note for note in graph.notes)


def test_a_mask_is_trained_where_the_file_or_the_user_says_so() -> None:
    model = scores(mask(-100))
    assert "added" in load_onnx(model, train="*").trained
    said = [f"p_{name}: PARAMETER target='{name}'" for name in ("w", "bias", "added")]
    model.graph.metadata_props.add(key=SIGNATURE, value="\n".join(said))
    graph = load_onnx(model)
    assert graph.trained == ("w", "bias", "added")
    assert not any("masks" in note for note in graph.notes)


@pytest.mark.parametrize(
    "added",
    [
        mask(0),
        mask(-3),
        mask(100),
        mask(-100) + np.float32(0.1),
        mask(-100) - 100,
        floats(3, 3) * mask(-100) + mask(50),
    ],
    ids=["fresh", "near", "high", "moved", "low everywhere", "learned"],
)
def test_what_could_be_learned_is_trained(added: Floats) -> None:
    assert load_onnx(scores(added)).trained == ("w", "bias", "added")


def test_what_something_else_reads_is_trained() -> None:
    assert "added" in load_onnx(scores(mask(-100), elsewhere=True)).trained


@pytest.mark.torch
def test_the_older_exporter_folds_a_buffer_away() -> None:
    torch = pytest.importorskip("torch")
    from tests.frontends.test_torch_exports import export

    class Windows(torch.nn.Module):  # type: ignore[misc,name-defined,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.scores = torch.nn.Linear(4, 4, bias=False)
            self.relative = torch.nn.Parameter(torch.randn(2, 4, 4))
            self.register_buffer("mask", torch.tensor([0.0, -100.0])[torch.randint(2, (3, 4, 4))])

        def forward(self, x: object) -> object:
            s = self.scores(x) + self.relative.transpose(1, 2).unsqueeze(0)
            s = s.view(2, 3, 2, 4, 4) + self.mask.unsqueeze(1).unsqueeze(0)
            return s.view(6, 2, 4, 4).softmax(-1)

    torch.manual_seed(0)
    model = export(Windows(), torch.randn(6, 2, 4, 4), opset_version=17)
    found = {tuple(load_onnx(model).tensors[name].shape) for name in load_onnx(model).trained}
    assert found == {(4, 4), (1, 2, 4, 4)}
