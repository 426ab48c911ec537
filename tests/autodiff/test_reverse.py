"""The loop and what surrounds it: accumulation, names, roles, states, masks, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from poetopt.autodiff import declare_nondifferentiable, differentiate, register_vjp, registry, unsupported
from poetopt.graph import Role, TrainingGraph
from poetopt.util.errors import MissingVjpError, ModelError
from tests.support.autodiff.build import graph
from tests.support.autodiff.oracle import batch, run

Array = NDArray[Any]


def weight(*shape: int, seed: int = 0) -> Array:
    """A float32 parameter."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def consistent(step: TrainingGraph) -> None:
    """Order, names and roles hold together."""
    written = {*step.inputs, *step.values}
    for operator in step.operators:
        assert set(operator.inputs) <= written, operator.name
        assert not written.intersection(operator.outputs), operator.name
        inner = {n for node in operator.nodes for n in node.outputs if n}
        assert set(operator.outputs) <= inner
        assert {n for node in operator.nodes for n in node.inputs if n} - inner == set(operator.inputs)
        assert inner <= set(step.tensors)
        written.update(operator.outputs)
        if operator.backward:
            roles = {step.tensors[n].role for n in operator.outputs}
            assert roles <= {Role.GRADIENT, Role.PARAMETER_GRADIENT}
    names = [operator.name for operator in step.operators]
    assert len(set(names)) == len(names)
    for name, gradient in step.gradients.items():
        assert gradient == f"{name}.grad"
        assert step.tensors[gradient].role is Role.PARAMETER_GRADIENT
        assert step.tensors[gradient].shape == step.tensors[name].shape
        assert gradient in written


def test_contributions_of_several_readers_add_up() -> None:
    w = weight(3, 3)
    step = differentiate(
        graph("a = MatMul(x, w)\nb = MatMul(a, w)\nc = Add(a, b)\ny = Mul(c, a)", {"x": [2, 3]}, {"w": w}, ["y"]),
        loss="mse",
    )
    consistent(step)
    assert sum(o.kind == "Add.accumulate" for o in step.operators) == 3
    feeds = batch(step, 1)
    found = run(step, feeds)["w.grad"]

    def loss(value: Array) -> float:
        x, t = (feeds[n].astype(np.float64) for n in ("x", "target"))
        a = x @ value
        return float(np.mean(((a + a @ value) * a - t) ** 2))

    exact, step_size = w.astype(np.float64), 1e-6
    for index in np.ndindex(3, 3):
        moved = np.zeros((3, 3))
        moved[index] = step_size
        slope = (loss(exact + moved) - loss(exact - moved)) / (2 * step_size)
        assert found[index] == pytest.approx(slope, rel=1e-4, abs=1e-4)


def test_backward_stops_where_nothing_upstream_is_trained() -> None:
    weights = {"v": weight(4, 4), "w": weight(4, 4, seed=1)}
    model = graph("a = MatMul(x, v)\nb = Erf(a)\ny = MatMul(b, w)", {"x": [2, 4]}, weights, ["y"], train="w")
    step = differentiate(model, loss="mse")
    assert [o.kind for o in step.operators if o.backward] == ["MeanSquaredError.grad_input", "MatMul.grad_weight"]
    assert dict(step.gradients) == {"w": "w.grad"}


def test_a_gradient_shared_by_two_parameters_has_bytes_for_each() -> None:
    weights = {"a": weight(2, 3), "b": weight(2, 3, seed=1), "c": weight(6, seed=2)}
    step = differentiate(
        graph("s = Constant<value_ints=[2 3]>()\nc2 = Reshape(c, s)\nu = Sum(x, a, b, c2)", {"x": [2, 3]}, weights,
              ["u"]),
        loss="mse",
    )  # fmt: skip
    consistent(step)
    roots = {step.root(name) for name in step.gradients.values()}
    assert len(roots) == 3
    assert all(step.tensors[root].role is Role.PARAMETER_GRADIENT for root in roots)
    found = run(step, batch(step, 0))
    assert np.array_equal(found["a.grad"], found["b.grad"])
    assert np.array_equal(found["a.grad"].reshape(-1), found["c.grad"])


@pytest.mark.parametrize("product", ["MatMul(h, t)", "Gemm<alpha=0.5>(h, t)", "Gemm<transA=1>(g, t)"])
def test_the_gradient_of_a_transposed_parameter_is_one_product(product: str) -> None:
    weights = {"w": weight(4, 3), "v": weight(5, 3)}
    text = f"h = MatMul(x, v)\ng = Transpose(h)\nt = Transpose(w)\ny = {product}"
    step = differentiate(graph(text, {"x": [2, 5]}, weights, ["y"], train="w"), loss="mse")
    consistent(step)
    (operator,) = (o for o in step.operators if "w.grad" in o.outputs)
    assert operator.kind.endswith(".grad_weight")
    assert not any("Transpose" in o.kind for o in step.operators if o.backward)
    feeds = batch(step, 0)
    h = feeds["x"] @ weights["v"]
    factor = 0.5 if "alpha" in product else 1.0
    difference = factor * h @ weights["w"].T - feeds["target"]
    wanted = factor * 2 / difference.size * difference.T @ h
    assert np.allclose(run(step, feeds)["w.grad"], wanted, rtol=1e-4, atol=1e-5)


def test_running_statistics_are_those_of_the_original_node() -> None:
    weights = {n: np.abs(weight(3, seed=k)) + 0.5 for k, n in enumerate(("s", "b", "m", "v"))}
    text = "y, m2, v2 = BatchNormalization<training_mode=1;momentum=0.75>(x, s, b, m, v)"
    model = graph(text, {"x": [4, 3, 5, 5]}, weights, ["y", "m2", "v2"])
    step = differentiate(model, loss="mse", output="y")
    consistent(step)
    assert dict(step.states) == {"m": "m2", "v": "v2"}
    assert all(step.tensors[name].role is Role.STATE for name in step.states.values())
    feeds = batch(step, 0)
    found, wanted = run(step, feeds), run(model, {"x": feeds["x"]})
    assert np.array_equal(found["y"], wanted["y"])
    for name in ("m2", "v2"):
        assert np.allclose(found[name], wanted[name], rtol=1e-6)
    assert run(step, feeds)["m2"].tobytes() == found["m2"].tobytes()


def test_a_dropout_mask_is_drawn_once_and_from_a_fixed_seed() -> None:
    weights = {"w": weight(8, 8), "r": np.array(0.25, np.float32), "t": np.array(True)}
    model = graph("h = MatMul(x, w)\nd = Dropout(h, r, t)\ny = Relu(d)", {"x": [64, 8]}, weights, ["y"])
    step = differentiate(model, loss="mse")
    consistent(step)
    draw = next(o for o in step.operators if o.kind == "Dropout.mask")
    assert not draw.recomputable
    assert not set(draw.inputs) - set(step.values)
    (mask,) = draw.outputs
    assert step.tensors[mask].dtype == "bool"
    assert next(o for o in step.operators if o.kind == "Dropout").recomputable
    feeds = batch(step, 0)
    names = (mask, "d", "h", "w.grad")
    first, second = run(step, feeds, names), run(differentiate(model, loss="mse"), feeds, names)
    assert all(np.array_equal(first[name], second[name]) for name in names)
    assert 0.65 < first[mask].mean() < 0.85
    assert np.allclose(first["d"], first["h"] * first[mask] / 0.75, rtol=1e-6)


def test_a_missing_rule_names_node_op_opset_and_remedy() -> None:
    model = graph("h = MatMul(x, w)\ny = Det(h)", {"x": [3, 3]}, {"w": weight(3, 3)}, ["y"])
    with pytest.raises(MissingVjpError, match=r"'det1'.*Det .*ai\.onnx.*opset \d+.*no rule.*register_vjp\('Det'"):
        differentiate(model, loss="none")
    assert unsupported(model) == [("det1", "Det")]


def test_what_nothing_flows_through_needs_no_rule() -> None:
    model = graph("h = MatMul(x, w)\ns = Sign(h)\ny = Mul(h, s)", {"x": [3, 3]}, {"w": weight(3, 3)}, ["y"])
    assert unsupported(model) == []
    consistent(differentiate(model, loss="mse"))


def test_parameters_that_miss_the_loss() -> None:
    model = graph("y = MatMul(x, w)\nz = MatMul(x, v)", {"x": [3, 3]}, {"w": weight(3, 3), "v": weight(3, 2)},
                  ["y", "z"])  # fmt: skip
    step = differentiate(model, loss="mse", output="y")
    assert dict(step.gradients) == {"w": "w.grad"}
    assert "v" in step.notes[-1]
    assert step.outputs == ("y", "z")
    only = graph("y = MatMul(x, w)\nz = MatMul(x, v)", {"x": [3, 3]}, {"w": weight(3, 3), "v": weight(3, 2)},
                 ["y", "z"], train="v")  # fmt: skip
    with pytest.raises(ModelError, match=r"no trained parameter \(v\) reaches the loss"):
        differentiate(only, loss="mse", output="y")


def test_a_name_that_a_gradient_needs_must_be_free() -> None:
    model = graph("w.grad = MatMul(x, w)\ny = Relu(w.grad)", {"x": [3, 3]}, {"w": weight(3, 3)}, ["y"])
    with pytest.raises(ModelError, match=r"'w\.grad' already"):
        differentiate(model, loss="mse")


def test_registration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_RULES", {**registry._RULES})
    monkeypatch.setattr(registry, "_NONDIFFERENTIABLE", {**registry._NONDIFFERENTIABLE})

    @register_vjp("Det", since=11)
    def old(op: registry.Primal, cotangents: registry.Cotangents) -> registry.Gradients:
        return (None,)

    @register_vjp("Det", since=22)
    def new(op: registry.Primal, cotangents: registry.Cotangents) -> registry.Gradients:
        return (None,)

    operator = graph("y = Det(x)", {"x": [3, 3]}, {"w": weight(1)}, ["y"], train=None).operators[0]
    assert registry.find_rule(operator, 10) is None
    assert registry.find_rule(operator, 21) is old
    assert registry.find_rule(operator, 22) is new
    with pytest.raises(MissingVjpError, match="since opset 11, 22"):
        registry.rule_of(operator, 10)
    with pytest.raises(ModelError, match="registered already"):
        register_vjp("Det", since=11)(old)
    declare_nondifferentiable("Det")
    with pytest.raises(ModelError, match="declared non-differentiable already"):
        declare_nondifferentiable("Det")
