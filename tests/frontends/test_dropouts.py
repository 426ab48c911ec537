"""Masks that a file draws by hand: Dropout in the graph, the same numbers on average, and their mean in evaluation."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import poetopt as po

KEPT = 0.75
EVEN = "u = RandomUniformLike <seed = 1.0> (y)  p = Constant <value_float = 0.75> ()"
REST = "q = Constant <value_float = 0.25> ()"
PRODUCT = "f = Cast <to = 1> (m)  z = Mul (y, f)"
FORMS = {
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
LEFT = {
    "normal": f"{EVEN.replace('Uniform', 'Normal')}  m = Less (u, p)  {PRODUCT}",
    "noise": f"{EVEN}  z = Add (y, u)",
    "of data": f"{EVEN}  m = Less (u, y)  {PRODUCT}",
    "of several shares": f"{EVEN}  r = Constant <value_floats = [0.1, 0.2, 0.3, 0.4]> ()  m = Less (u, r)  {PRODUCT}",
    "always": f"{EVEN}  r = Constant <value_float = 1.5> ()  m = Less (u, r)  {PRODUCT}",
}


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


@pytest.mark.parametrize("form", FORMS)
def test_a_mask_by_hand_is_a_dropout(form: str) -> None:
    loaded = read(FORMS[form])
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


@pytest.mark.parametrize("form", LEFT)
def test_other_draws_stay(form: str) -> None:
    kinds = [operator.kind for operator in read(LEFT[form]).graph.operators]
    assert "Dropout" not in kinds
    assert {"RandomUniformLike", "RandomNormalLike"} & {*kinds}
