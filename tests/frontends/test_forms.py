"""Forms that exporters and optimizers write, read as what they mean, with onnxruntime's own numbers."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.helper import make_node

import poetopt as po
from poetopt.autodiff import differentiate
from poetopt.backends.onnxruntime.reference import NodeByNode
from poetopt.backends.onnxruntime.sessions import Sessions
from poetopt.frontends.fused import OWN
from poetopt.frontends.onnx_file import load_onnx
from poetopt.frontends.trained import finite_note
from tests.support.autodiff.oracle import Array, batch, run
from tests.support.autodiff.oracle import run as executed
from tests.support.frontends import floats, model_of

FORMS = {
    "Gelu": (1, {}), "BiasGelu": (2, {}), "FastGelu": (1, {}), "FastGelu with bias": (2, {}),
    "QuickGelu": (1, {"alpha": 1.5}), "SimplifiedLayerNormalization": (2, {"epsilon": 1e-3, "axis": -1}),
    "SkipLayerNormalization": (3, {"epsilon": 1e-3}), "SkipLayerNormalization with all": (5, {"epsilon": 1e-3}),
    "SkipSimplifiedLayerNormalization": (3, {"epsilon": 1e-3}),
    "SkipSimplifiedLayerNormalization with bias": (4, {"epsilon": 1e-3}),
}  # fmt: skip
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


KEPT = 0.75
EVEN = "u = RandomUniformLike <seed = 1.0> (y)  p = Constant <value_float = 0.75> ()"
REST = "q = Constant <value_float = 0.25> ()"
PRODUCT = "f = Cast <to = 1> (m)  z = Mul (y, f)"
DROPOUTS_FORMS = {
    "less": f"{EVEN}  m = Less (u, p)  {PRODUCT}",
    "turned": f"{EVEN}  m = GreaterOrEqual (p, u)  f = Cast <to = 1> (m)  z = Mul (f, y)",
    "not": f"{EVEN} {REST}  b = Less (u, q)  m = Not (b)  {PRODUCT}",
    "scaled": f"{EVEN} {REST}  m = Greater (u, q)  f = Cast <to = 1> (m)  s = Div (f, p)  z = Mul (y, s)",
    "floor": f"{EVEN}  a = Add (p, u)  f = Floor (a)  z = Mul (y, f)",
    "bernoulli": f"{EVEN}  n = Shape (y)  b = Expand (p, n)  f = Bernoulli <seed = 1.0> (b)  z = Mul (y, f)",
    "where": f"{EVEN} {REST}  m = Less (u, q)  o = Constant <value_float = 0.0> ()  z = Where (m, o, y)",
    "where kept": f"{EVEN}  m = Less (u, p)  o = Constant <value_float = 0.0> ()  z = Where (m, y, o)",
    "range": f"{EVEN.replace('seed', 'low = -1.5, high = 2.5, seed')}  r = Sum (p, p)  m = Less (u, r)  {PRODUCT}",
    "channels": f"{EVEN.replace('Like <', ' <shape = [8, 6, 1],').replace('(y)', '()')}  m = Less (u, p)  {PRODUCT}",
    "twice": f"{EVEN}  m = Less (u, p)  f = Cast <to = 1> (m)  t = Mul (y, f)  z = Mul (t, f)",
}
"""Each `z` is `y`, with probability 0.75 for each element, and else 0; divided by 0.75 where it is scaled."""


def read(lines: str) -> po.Model:
    """`x` through a trained product, `y`; what `lines` make of it, `z`; and the mean of its squares."""
    one = "1,0,0,0,0,1,0,0,0,0,1,0,0,0,0,1"
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> masked (float[8,6,4] x) => (float loss) <float[4,4] w = {{{one}}}>'
        f"{{ y = MatMul (x, w) {lines}  square = Mul (z, z)  loss = ReduceMean <keepdims = 0> (square) }}"
    )
    loaded = po.load(model, train="w")
    assert isinstance(loaded, po.Model)
    return loaded


@pytest.mark.parametrize("form", DROPOUTS_FORMS)
def test_a_mask_by_hand_is_a_dropout(form: str) -> None:
    loaded = read(DROPOUTS_FORMS[form])
    kinds = [operator.kind for operator in loaded.graph.operators]
    assert kinds.count("Dropout") == 1
    assert {*kinds} <= {"MatMul", "Dropout", "Mul", "ReduceMean"}
    mean = {"scaled": 1.0, "twice": KEPT * KEPT}.get(form, KEPT)
    whole = 1 / KEPT**2 if form == "scaled" else 1.0
    batch = {"x": np.ones((8, 6, 4), np.float32)}
    report = po.solve(loaded.differentiate(loss="none").cost("a72"), ram="100%")
    with po.Trainer(report) as trainer:
        assert trainer.evaluate(batch).loss == pytest.approx(mean**2, rel=1e-5)
        drawn = trainer.step(batch, lr=0.0)
    assert drawn < whole
    assert drawn == pytest.approx(whole * KEPT, rel=0.25)


W = np.random.default_rng(0).standard_normal((2, 2, 4, 3)).astype(np.float32)
PADS = {"SAME_UPPER": [4, 2, 5, 2], "SAME_LOWER": [5, 2, 4, 2]}


def gradients(**padding: Any) -> dict[str, Array]:
    node = make_node("Conv", ["x", "w"], ["y"], dilations=[3, 2], **padding)
    step = differentiate(load_onnx(model_of([node], {"x": [1, 2, 9, 7]}, ["y"], {"w": W})), loss="mse")
    return run(step, batch(step, 0))


@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER"])
def test_a_dilated_convolution(auto: str) -> None:
    found, wanted = gradients(auto_pad=auto), gradients(pads=PADS[auto])
    assert found["y"].shape == (1, 2, 9, 7)
    assert all(found[name].tobytes() == want.tobytes() for name, want in wanted.items())


GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def layer(op: str, first: Array, name: str = "h0") -> onnx.ModelProto:
    """A recurrent layer of 3 units over 4 steps of any batch, with this first state."""
    weights = {"w": floats(1, GATES[op] * 3, 2), "r": floats(1, GATES[op] * 3, 3), name: first}
    states = [name, name] if op == "LSTM" else [name]
    node = make_node(op, ["x", "w", "r", "", "", *states], ["y"], "layer", hidden_size=3)
    return model_of([node], {"x": [4, "batch", 2]}, ["y"], weights)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("op", GATES)
def test_alike_rows_are_repeated(op: str, rows: int) -> None:
    """The same network whose first state is left out, which means zeros; and each sequence by itself."""
    step = differentiate(load_onnx(layer(op, np.zeros((1, rows, 3), np.float32)), batch=5), loss="mse")
    assert any("another batch: h0 for 5" in note for note in step.notes)
    plain = model_of([make_node(op, ["x", "w", "r"], ["y"], hidden_size=3)], {"x": [4, 5, 2]}, ["y"],
                     {"w": floats(1, GATES[op] * 3, 2), "r": floats(1, GATES[op] * 3, 3)})  # fmt: skip
    other = differentiate(load_onnx(plain), loss="mse")
    feeds = {"x": floats(4, 5, 2), "target": floats(4, 1, 5, 3)}
    found, wanted = (executed(s, feeds, ("y", "w.grad", "r.grad")) for s in (step, other))
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value)


@pytest.mark.parametrize("op", GATES)
def test_a_trained_row_gets_the_sum_over_the_batch(op: str) -> None:
    first = floats(1, 1, 3)
    step = differentiate(load_onnx(layer(op, first), batch=3, train="*"), loss="mse")
    whole = differentiate(load_onnx(layer(op, np.repeat(first, 3, 1)), batch=3, train="*"), loss="mse")
    feeds = {"x": floats(4, 3, 2), "target": floats(4, 1, 3, 3)}
    found, wanted = (executed(s, feeds, ("h0.grad",))["h0.grad"] for s in (step, whole))
    assert found.shape == (1, 1, 3)
    np.testing.assert_allclose(found, wanted.sum(1, keepdims=True), rtol=1e-5, atol=1e-7)


DTYPES = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_value_is_found(dtype: type[np.generic], value: float) -> None:
    arrays: dict[str, Any] = {name: floats(3, 4).astype(dtype) for name in "abc"}
    arrays["b"][2, 1] = arrays["c"][0, 0] = value
    (text,) = finite_note(arrays)
    assert text.startswith("NaN or infinite values in 2 of 3 parameters, 'b' the first")
