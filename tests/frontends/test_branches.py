"""An If whose condition is known is the branch that is taken, and a function's call is its body."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser

from poetopt.frontends.onnx_file import load_onnx
from poetopt.frontends.proto import model_proto
from poetopt.util.errors import ModelError
from tests.support.autodiff.oracle import run as run_graph
from tests.support.frontends import floats, run, text_model

BRANCHES = """
<then_branch = th () => (float[3,2] t) <float[4,2] w = {1,2,3,4,5,6,7,8}> { a = Relu (x) t = MatMul (a, w) },
 else_branch = el () => (float[3,2] e) <float[4,2] w2 = {8,7,6,5,4,3,2,1}> { a = Tanh (x) e = MatMul (a, w2) }>
"""


def same(model: onnx.ModelProto, x: np.ndarray[tuple[int, ...], np.dtype[np.float32]], batch: int | None = None) -> str:
    """Hold what is imported against onnxruntime on the file itself; the result has the operators."""
    graph = load_onnx(model, batch=batch)
    (expected,), (found,) = run(model, {"x": x}), run(model_proto(graph), {"x": x})
    np.testing.assert_array_equal(found, expected)
    return " ".join(operator.kind for operator in graph.operators)


@pytest.mark.parametrize(("value", "op"), [(1, "Relu"), (0, "Tanh")])
def test_a_stored_condition(value: int, op: str) -> None:
    model = text_model(f"g (float[3,4] x) => (float[3,2] y) <bool c = {{{value}}}> {{ y = If (c) {BRANCHES} }}")
    assert same(model, floats(3, 4)) == f"{op} MatMul"
    assert load_onnx(model).trained == (("w",) if value else ("w2",))


def test_names_that_are_taken_and_tensors_from_outside() -> None:
    """The branches of two nodes call their tensors and weights alike, and read what stands outside."""
    inner = BRANCHES.replace("(x)", "(k)")
    model = text_model(f"""g (float[3,4] x) => (float[3,2] y) <bool c = {{1}}, bool d = {{0}}> {{
        k = Neg (x)
        p = If (c) {inner}
        q = If (d) {inner}
        r = If (d) <then_branch = f () => (float[3,2] s) {{ s = Neg (q) }},
                    else_branch = g () => (float[3,2] s) {{ u = Identity (q) s = Identity (u) }}>
        t = Add (p, r)
        e = Softmax (t)
        y = Add (e, p) }}""")
    assert same(model, floats(3, 4)).startswith("Neg Relu MatMul Tanh MatMul")
    assert len(load_onnx(model).trained) == 2


LEAKY = """
<domain: "local", opset_import: ["" : 18]>
Leaky <slope: float = 0.4> (a) => (b) { b = LeakyRelu <alpha: float = @slope> (a) }
"""
NESTED = """
<domain: "local", opset_import: ["" : 18, "local" : 1]>
Outer <steep: float = 0.7, plain> (a) => (d) {
    b = local.Leaky <slope: float = @steep> (a)
    c = local.Leaky (b)
    d = local.Leaky <slope: float = @plain> (c)
}
"""
CASES = {
    "left out": ("y = local.Leaky (x)", LEAKY),
    "given": ("y = local.Leaky <slope = 0.2> (x)", LEAKY),
    "both": ("t = local.Leaky <slope = 0.2> (x)\n y = local.Leaky (t)", LEAKY),
    "nested": ("y = local.Outer (x)", LEAKY + NESTED),
    "nested, given": ("t = local.Outer <steep = 0.1> (x)\n y = local.Outer <plain = 0.3> (t)", NESTED + LEAKY),
    "axis": (
        "y = local.Soft (x)",
        """
        <domain: "local", opset_import: ["" : 18]>
        Soft <at: int = 0> (a) => (b) { b = Softmax <axis: int = @at> (a) }
        """,
    ),
    "transposed": (
        "y = local.Product (x, x)",
        """
        <domain: "local", opset_import: ["" : 18]>
        Product <turn: int = 1> (a, b) => (c) { c = Gemm <transB: int = @turn> (a, b) }
        """,
    ),
    "tensor": (
        "y = local.Shifted (x)",
        """
        <domain: "local", opset_import: ["" : 18]>
        Shifted <by: tensor = float[1] { 2.5 }> (a) => (b) {
            c = Constant <value: tensor = @by> ()
            b = Add (a, c)
        }
        """,
    ),
}


def model(nodes: str, functions: str) -> onnx.ModelProto:
    """x [3, 4] through `nodes` to y."""
    graph = f"g (float[3,4] x) => (float[n,m] y) {{ {nodes} }}"
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18, "local" : 1]>\n{graph}\n{functions}')


@pytest.mark.parametrize("case", CASES)
def test_defaults_of_attributes(case: str) -> None:
    proto = model(*CASES[case])
    feeds = {"x": floats(3, 4)}
    graph = load_onnx(proto)
    assert np.array_equal(run_graph(graph, feeds, ("y",))["y"], run(proto, feeds)[0])


def test_functions_that_call_each_other_are_refused() -> None:
    circle = LEAKY.replace("LeakyRelu <alpha: float = @slope>", "local.Leaky")
    with pytest.raises(ModelError, match="can't be inlined"):
        load_onnx(model("y = local.Leaky (x)", circle.replace('"" : 18', '"" : 18, "local" : 1')))
