"""Functions that a file defines: what a call leaves out has the definition's default, and onnxruntime agrees."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser

from poetopt.frontends.onnx_file import load_onnx
from poetopt.util.errors import ModelError, UnsupportedOpError
from tests.autodiff.oracle import run as run_graph
from tests.frontends.support import floats, run

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


def test_a_default_inside_a_branch() -> None:
    proto = model(
        "yes = Constant <value = bool { 1 }> ()\n"
        "y = If (yes) <then_branch = t () => (float[3,4] u) { u = local.Leaky (x) },"
        " else_branch = e () => (float[3,4] v) { v = Relu (x) }>",
        LEAKY,
    )
    feeds = {"x": floats(3, 4)}
    assert np.array_equal(run_graph(load_onnx(proto), feeds, ("y",))["y"], run(proto, feeds)[0])


def test_a_function_of_another_opset_is_refused_as_such() -> None:
    inner = LEAKY.replace(": 18", ": 17")
    for nodes, functions in (CASES["left out"][0], inner), (CASES["nested"][0], inner + NESTED):
        with pytest.raises(UnsupportedOpError, match=r"Leaky.*opset 17 of ai\.onnx, and the model is in opset 18"):
            load_onnx(model(nodes, functions))
    assert load_onnx(model("y = Relu (x)", inner)).operators[0].kind == "Relu"


def test_functions_that_call_each_other_are_refused() -> None:
    circle = LEAKY.replace("LeakyRelu <alpha: float = @slope>", "local.Leaky")
    with pytest.raises(ModelError, match="can't be inlined"):
        load_onnx(model("y = local.Leaky (x)", circle.replace('"" : 18', '"" : 18, "local" : 1')))


def doubling(levels: int) -> str:
    """A function that calls the one before twice, and so on down to a Relu: 2^levels nodes."""
    texts = ['<domain: "local", opset_import: ["" : 18]>\nF0 (a) => (b) { b = Relu (a) }']
    for k in range(1, levels + 1):
        called = f"local.F{k - 1}"
        texts.append(
            f'<domain: "local", opset_import: ["" : 18, "local" : 1]>\n'
            f"F{k} (a) => (c) {{ b = {called} (a)\n c = {called} (b) }}"
        )
    return "\n".join(texts)


def test_functions_are_written_out_up_to_a_number_of_nodes() -> None:
    assert len(load_onnx(model("y = local.F6 (x)", doubling(6))).operators) == 64
    for levels, count in (16, "65,536"), (40, "1,099,511,627,776"), (64, r"more than 10\^15"):
        with pytest.raises(ModelError, match=rf"local\.F{levels}.*{count} nodes.*at most 50,000.*without functions"):
            load_onnx(model(f"y = local.F{levels} (x)", doubling(levels)))


def test_a_branch_that_calls_them_counts_too() -> None:
    call = (
        "yes = Constant <value = bool { 1 }> ()\n"
        "y = If (yes) <then_branch = t () => (float[3,4] u) { u = local.F20 (x) },"
        " else_branch = e () => (float[3,4] v) { v = Relu (x) }>"
    )
    with pytest.raises(ModelError, match=r"local\.F20.*1,048,576 nodes"):
        load_onnx(model(call, doubling(20)))
