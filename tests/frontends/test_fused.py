"""onnxruntime's own operators, read as what its optimizer made them of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import poetopt as po
from poetopt.backends.onnxruntime.reference import NodeByNode
from poetopt.backends.onnxruntime.sessions import Sessions
from poetopt.frontends.fused import OWN
from poetopt.util.errors import ModelError, UnsupportedOpError

FORMS = {
    "Gelu": (1, {}),
    "BiasGelu": (2, {}),
    "FastGelu": (1, {}),
    "FastGelu with bias": (2, {}),
    "QuickGelu": (1, {"alpha": 1.5}),
    "SimplifiedLayerNormalization": (2, {"epsilon": 1e-3, "axis": -1}),
    "SkipLayerNormalization": (3, {"epsilon": 1e-3}),
    "SkipLayerNormalization with all": (5, {"epsilon": 1e-3}),
    "SkipSimplifiedLayerNormalization": (3, {"epsilon": 1e-3}),
    "SkipSimplifiedLayerNormalization with bias": (4, {"epsilon": 1e-3}),
}
"""How many operands, and attributes."""


def model(what: str, opset: int, count: int | None = None) -> onnx.ModelProto:
    """x W through the operator, [2, 3, 8] -> [2, 3, 8]; where it skips, over x."""
    op, (operands, attributes) = what.split()[0], FORMS[what]
    skips = "Skip" in op
    given = ["h", *(["x"] if skips else []), "a", "b", "c"][: operands if count is None else count]
    rng = np.random.default_rng(1)
    weights: dict[str, NDArray[np.floating]] = {"W": rng.standard_normal((8, 8), np.float32) / 3}
    weights |= {name: rng.standard_normal(8, np.float32) for name in "abc" if name in given}
    domain = "" if op == "SimplifiedLayerNormalization" else OWN
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["h"]),
        helper.make_node(op, given, ["y"], domain=domain, name="fused", **attributes),  # type: ignore[arg-type]
    ]
    places = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3, 8]) for name in "xy"]
    stored = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "fused", places[:1], places[1:], stored)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(OWN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("opset", [13, 17, 20])
@pytest.mark.parametrize("what", FORMS)
def test_outputs_are_onnxruntimes_own(what: str, opset: int) -> None:
    made = model(what, opset)
    x = np.random.default_rng(0).standard_normal((2, 3, 8), np.float32)
    theirs = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    loaded = po.load(made)
    assert isinstance(loaded, po.Model)
    graph = loaded.differentiate(loss="mse").graph
    assert set(graph.trained) == {name.name for name in made.graph.initializer}
    batch = {name: np.zeros((2, 3, 8), np.float32) for name in graph.inputs} | {"x": x}
    mine = NodeByNode(graph, Sessions(graph, 1), graph.values, ("y",)).run(batch)["y"]
    np.testing.assert_allclose(np.asarray(mine), np.asarray(theirs.run(None, {"x": x})[0]), rtol=2e-5, atol=2e-6)


def test_what_lacks_operands_or_gives_more_is_refused(tmp_path: Path) -> None:
    onnx.save(model("SkipLayerNormalization", 17, count=2), tmp_path / "short.onnx")
    with pytest.raises(ModelError, match="it lacks operands"):
        po.load(tmp_path / "short.onnx")
    more = model("SkipLayerNormalization", 17)
    more.graph.node[1].output.extend(["mean"])
    onnx.save(more, tmp_path / "more.onnx")
    with pytest.raises(UnsupportedOpError, match="SkipLayerNormalization"):
        po.load(tmp_path / "more.onnx")
