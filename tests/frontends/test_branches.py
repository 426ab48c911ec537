"""An If whose condition is known is the branch that is taken."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from poetopt.autodiff import differentiate
from poetopt.frontends import inlining as branches
from poetopt.frontends.onnx_file import load_onnx
from poetopt.frontends.proto import model_proto
from poetopt.util.errors import ModelError, UnsupportedOpError
from tests.frontends.support import floats, run, text_model

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


def test_a_condition_on_shapes() -> None:
    text = f"""g (float[N,4] x) => (float[3,2] y) <int64 three = {{3}}, int64 zero = {{0}}> {{
        h = Relu (x)
        s = Shape (h)
        n = Gather (s, zero)
        c = Equal (n, three)
        z = If (c) {BRANCHES}
        y = Neg (z) }}"""
    assert same(text_model(text), floats(3, 4), batch=3) == "Relu MatMul Neg"
    assert load_onnx(text_model(text.replace("[3,2]", "[M,2]")), batch=2).operators[0].kind == "Tanh"
    with pytest.raises(ModelError, match="give its size with --batch N"):
        load_onnx(text_model(text))


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


def test_branches_inside_a_branch() -> None:
    model = text_model("""g (float[3,4] x) => (float[3,4] y) <bool c = {1}, float[4] w = {1,2,3,4}> {
        h = Mul (x, w)
        y = If (c) <
            then_branch = th () => (float[3,4] t) {
                d = Not (c)
                k = Neg (h)
                t = If (d) <then_branch = a () => (float[3,4] u) { u = Relu (k) },
                            else_branch = b () => (float[3,4] v) { l = Tanh (k) v = Add (l, h) }> },
            else_branch = el () => (float[3,4] e) { e = Relu (h) }> }""")
    assert same(model, floats(3, 4)) == "Mul Neg Tanh Add"
    step = differentiate(load_onnx(model), loss="mse")
    assert set(step.gradients) == {"w"}


def test_a_condition_on_a_weight_is_not_known() -> None:
    """Training changes it."""
    model = text_model(f"""g (float[3,4] x) => (float[3,2] y) <float[1] w0 = {{1}}, float[1] zero = {{0}}> {{
        c = Greater (w0, zero) y = If (c) {BRANCHES} }}""")
    with pytest.raises(UnsupportedOpError, match="its condition 'c' isn't known"):
        load_onnx(model)


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", ["diagonal", "response"])
def test_what_torch_leaves_behind(name: str, dynamic: bool) -> None:
    torch = pytest.importorskip("torch")
    import io

    class Diagonal(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[name-defined]
            return torch.diagonal(self.layer(x), dim1=-2, dim2=-1)

    class Response(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Conv2d(3, 6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[name-defined]
            return torch.nn.functional.local_response_norm(self.layer(x), 3)

    module, shape = (Diagonal(), (2, 4, 4)) if name == "diagonal" else (Response(), (2, 3, 6, 6))
    file = io.BytesIO()
    axes = {"x": {0: "N"}} if dynamic else None
    torch.onnx.export(
        module, (torch.randn(*shape),), file, opset_version=17, dynamo=False, input_names=["x"], dynamic_axes=axes
    )
    model = onnx.load_from_string(file.getvalue())
    assert any(node.op_type == "If" for node in model.graph.node)
    graph = load_onnx(model, batch=2 if dynamic else None)
    x = floats(*shape)
    (found,) = run(model_proto(graph), {"x": x})
    np.testing.assert_allclose(found, module(torch.from_numpy(x)).detach().numpy(), atol=1e-5)
    assert set(differentiate(graph, loss="mse").gradients)


def test_damaged_names_inside_a_branch(tmp_path: Path) -> None:
    model = text_model(f"g (float[3,4] x) => (float[3,2] y) <bool c = {{1}}> {{ y = If (c) {BRANCHES} }}")
    model.graph.node[0].attribute[0].g.node[0].output[0] = "QQQQ"
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString().replace(b"QQQQ", b"Q\xffQQ"))
    with pytest.raises(ModelError, match="some names are not text"):
        load_onnx(path)


def test_an_unknown_operator_before_a_condition() -> None:
    model = text_model(f"""g (float[3,4] x) => (float[3,2] y) {{
        s = Shape (x) c = Konstant (s) y = If (c) {BRANCHES} }}""")
    with pytest.raises(UnsupportedOpError, match=r"\(Konstant, opset 18\): no such operator"):
        load_onnx(model)


def test_branches_are_taken_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each node's names are asked for a few times, however many branches there are; the result is that of the file."""
    asked: list[str] = []
    names = branches._names

    def counted(node: onnx.NodeProto) -> set[str]:
        asked.append(node.op_type)
        return names(node)

    monkeypatch.setattr(branches, "_names", counted)
    counts = []
    for count in (10, 20, 40):
        steps = [
            f"t{k + 1} = If ({'cd'[k % 2]}) <then_branch = a{k} () => (float[3,4] u) {{ v = Relu (t{k}) u = Neg (v) }},"
            f" else_branch = b{k} () => (float[3,4] u) {{ v = Tanh (t{k}) u = Exp (v) }}>"
            for k in range(count)
        ]
        text = "\n".join(["t0 = Identity (x)", *steps, f"y = Identity (t{count})"])
        model = text_model(f"g (float[3,4] x) => (float[3,4] y) <bool c = {{1}}, bool d = {{0}}> {{ {text} }}")
        asked.clear()
        kinds = same(model, floats(3, 4))
        counts.append(len(asked) / 2)  # it was read once more to be executed
        assert kinds.split().count("Relu") == kinds.split().count("Tanh") == count // 2
    assert counts[1] < 2.2 * counts[0]
    assert counts[2] < 2.2 * counts[1]
