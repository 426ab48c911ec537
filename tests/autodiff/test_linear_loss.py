"""A frozen layer under cross-entropy: loss and gradient in one pass over chunks of classes, and no scores at all."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from onnx import helper

import poetopt as po
from poetopt.autodiff import differentiate, linear_loss
from poetopt.autodiff.inference import predicting
from poetopt.frontends.onnx_file import load_onnx
from poetopt.frontends.proto import save_model
from poetopt.graph import LabelRule, TrainingGraph
from poetopt.ops.losses import LINEAR
from tests.seeds import seeds
from tests.support.autodiff.build import graph
from tests.support.autodiff.oracle import run
from tests.support.frontends import model_of
from tests.support.quantized import KINDS, weight

if TYPE_CHECKING:
    from poetopt.graph import Array

LAYERS = {
    "gemm": ("g = Gemm<transB=1>(h, head, bias)", True, True),
    "gemm turned": ("g = Gemm(h, head)", False, False),
    "product": ("g = MatMul(h, head)", False, False),
    "with bias": ("p = MatMul(h, head)\ng = Add(bias, p)", False, True),
    "transposed": ("t = Transpose<perm=[1 0]>(head)\ng = MatMul(h, t)", True, False),
}


TRAINED = {"gemm": ["w", "w,head,bias", "head", "bias"], "transposed": ["w", "w,head"]}
"""What is trained, of the layers that may be."""


class Drawn:
    """A matrix before a layer, whose weight is [classes, size]; what is trained of it, of these names."""

    def __init__(
        self, layer: str, rows: int, size: int, classes: int, behind: str = "y = Identity(g)", trained: str = "w"
    ) -> None:
        text, by_class, bias = LAYERS[layer]
        draw = np.random.default_rng(rows + size + classes)
        self.w = draw.standard_normal((size, size), np.float32)
        self.head = draw.standard_normal((classes, size), np.float32) * 2
        self.bias = draw.standard_normal(classes, np.float32) * bias
        weights = {"w": self.w, "head": self.head if by_class else np.ascontiguousarray(self.head.T)}
        weights |= {"bias": self.bias} if bias else {}
        self.trained = trained.split(",")
        self.graph = graph(f"h = MatMul(x, w)\n{text}\n{behind}", {"x": [rows, size]}, weights, ["y"], trained)

    def by_hand(self, given: Array, labels: Array, rule: LabelRule) -> tuple[float, dict[str, Any]]:
        """Loss and the gradients by name, in float64."""
        x, w, head = (np.asarray(v, np.float64) for v in (given, self.w, self.head))
        scores = x @ w @ head.T + self.bias
        kept = (labels != rule.ignore_index) * 1.0
        at = np.arange(len(labels)), np.where(kept > 0, labels, 0)
        powers = np.exp(scores - scores.max(1, keepdims=True))
        parts = powers / powers.sum(1, keepdims=True)
        each = -np.log(parts[at])
        parts[at] -= 1
        parts *= kept[:, None] / kept.sum()
        found = {"w": x.T @ parts @ head, "head": parts.T @ (x @ w), "bias": parts.sum(0)}
        return float((each * kept).sum() / kept.sum()), {name: found[name] for name in self.trained}


@pytest.mark.parametrize("seed", seeds(500))
def test_loss_and_gradient_are_those_of_whole_scores(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    rows, size = draw.randint(1, 12), draw.randint(1, 9)
    classes = draw.randint(size + 2, 110)
    monkeypatch.setattr(linear_loss, "CLASSES", draw.randint(1, (rows * classes - 1) // (rows + size)))
    layer = draw.choice(sorted(LAYERS))
    net = Drawn(layer, rows, size, classes, trained=draw.choice(TRAINED.get(layer, ["w"])))
    rule = LabelRule(draw.choice([None, -100, 0]))
    numbers = np.random.default_rng(seed)
    labels = numbers.integers(0, classes, rows)
    if rule.ignore_index is not None:
        labels[numbers.random(rows) < 0.4] = rule.ignore_index
        labels[0] = classes - 1
    feeds: dict[str, Array] = {"x": numbers.standard_normal((rows, size), np.float32), "labels": labels}
    step = differentiate(net.graph, loss="cross-entropy", label_rule=rule)
    assert kinds(step).count(LINEAR) == (net.trained == ["w"] or rows > size)
    loss, gradients = net.by_hand(feeds["x"], labels, rule)
    found = run(step, feeds)
    assert found["loss"] == pytest.approx(loss, rel=1e-5, abs=3e-6)  # of scores around 16
    for name, gradient in gradients.items():
        atol = 2e-5 * max(1.0, float(np.abs(gradient).max()))
        np.testing.assert_allclose(found[f"{name}.grad"], gradient, rtol=1e-4, atol=atol)


def test_a_step_has_no_scores_and_predictions_have_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_loss, "CLASSES", 16)
    net = Drawn("product", 5, 4, 90, behind="y = Softmax<axis=-1>(g)")
    step = differentiate(net.graph)
    assert {o.name for o in step.aside}.isdisjoint(o.name for o in step.operators)
    made = {name for operator in step.operators for name in operator.outputs}
    assert max(step.tensors[name].size for name in made) < 5 * 90
    held = [name for name in step.values if step.tensors[name].size == 4 * 90]
    assert len(held) == 1  # the layer's weight, turned: one copy
    predicted = predicting(step)
    assert predicted is not None
    x = np.random.default_rng(1).standard_normal((5, 4), np.float32)
    scores = x @ net.w @ net.head.T
    powers = np.exp(scores - scores.max(1, keepdims=True))
    np.testing.assert_allclose(
        run(predicted, {"x": x}, ("y",))["y"], powers / powers.sum(1, keepdims=True), rtol=2e-5, atol=1e-7
    )


def test_a_tied_table_is_there_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_loss, "CLASSES", 16)
    table = np.random.default_rng(0).standard_normal((90, 4), np.float32)
    weights = {"table": table, "w": np.ones((4, 4), np.float32)}
    text = (
        "i = Cast<to=7>(x)\ne = Gather(table, i)\nh = MatMul(e, w)\nt = Transpose<perm=[1 0]>(table)\ny = MatMul(h, t)"
    )
    step = differentiate(graph(text, {"x": [5]}, weights, ["y"], "w"))
    assert [name for name in step.values if step.tensors[name].size == table.size] == ["table"]
    feeds = {"x": np.array([5, 7, 5, 0, 9], np.float32), "labels": np.array([7, 89, 0, 0, 1])}
    both = differentiate(graph(text, {"x": [5]}, weights, ["y"]))
    assert f"{LINEAR}.grad_weight" in kinds(both)
    together = run(both, feeds)
    monkeypatch.setattr(linear_loss, "CLASSES", 90)
    apart = run(differentiate(graph(text, {"x": [5]}, weights, ["y"])), feeds)
    for name in ("loss", "w.grad", "table.grad"):
        np.testing.assert_allclose(together[name], apart[name], rtol=1e-4, atol=1e-5)


def test_a_part_of_a_batch_has_its_share_of_the_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_loss, "CLASSES", 16)
    net = Drawn("gemm", 9, 4, 90, trained="w,head,bias").graph
    feeds: dict[str, Array] = {"x": np.random.default_rng(0).standard_normal((9, 4), np.float32)}
    feeds["labels"] = np.arange(9) * 10
    whole, half = differentiate(net), differentiate(replace(net, parts=2))
    found, wanted = run(half, feeds), run(whole, feeds)
    for name in ("w.grad", "head.grad", "bias.grad"):
        np.testing.assert_allclose(found[name], wanted[name] / 2, rtol=1e-5, atol=1e-7)
    told = [one.node.inputs[5] for o in half.operators for one in o.whole if f"{LINEAR}." in one.node.op_type]
    assert len(told) == 2
    assert all(told)  # C multiplies by it


def kinds(step: TrainingGraph) -> list[str]:
    return [operator.kind for operator in step.operators]


def test_few_classes_a_trained_layer_of_columns_or_other_rules_keep_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    assert LINEAR not in kinds(differentiate(Drawn("gemm", 3, 4, linear_loss.CLASSES).graph))
    assert LINEAR not in kinds(differentiate(Drawn("gemm", 2, 64, 9000).graph))  # a chunk of the weight takes more
    monkeypatch.setattr(linear_loss, "CLASSES", 16)
    net = Drawn("gemm", 3, 4, 90).graph
    assert LINEAR in kinds(differentiate(net))
    assert LINEAR not in kinds(differentiate(net, label_rule=LabelRule(smoothing=0.1)))
    assert LINEAR not in kinds(differentiate(net, loss="mse"))
    squares = Drawn("gemm", 3, 4, 90, "y = Mul(g, g)").graph
    assert LINEAR not in kinds(differentiate(squares, loss="cross-entropy"))
    for text, rows, shape in [("y = MatMul(x, w)", 9, (4, 90)), ("y = Gemm<transB=1>(x, w)", 4, (90, 4))]:
        trained = graph(text, {"x": [rows, 4]}, {"w": np.ones(shape, np.float32)}, ["y"])
        assert LINEAR not in kinds(differentiate(trained))


@pytest.mark.parametrize("runtime", ["onnxruntime", "c"])
@pytest.mark.parametrize("trained", [False, True])
def test_a_layer_on_storage_is_read_once_a_pass_chunk_by_chunk(*, trained: bool, runtime: str, tmp_path: Path) -> None:
    classes, size = 40_000, 32
    text = "h = MatMul(x, w)\ny = Gemm<transB=1>(h, head, bias)"
    draw = np.random.default_rng(0)
    weights = {
        "w": draw.standard_normal((size, size), np.float32),
        "head": draw.standard_normal((classes, size), np.float32),
        "bias": draw.standard_normal(classes, np.float32),
    }
    train = "w,head" if trained else "w"
    save_model(graph(text, {"x": [40 if trained else 4, size]}, weights, ["y"], train), tmp_path / "net.onnx")
    step = po.load(tmp_path / "net.onnx", train=train).differentiate(loss="cross-entropy", optimizer="sgd")
    problem = step.cost(po.device("a72"), parameters="paged", runtime=runtime)
    report = po.solve(problem, total_ram="4MB" if trained else "1MB", time_limit="5s")
    assert report.plan is not None
    passes = 3 if trained else 1  # forwards; then to be updated, and written
    assert passes * classes * size * 4 <= po.simulate(report.plan).bytes_streamed < passes * 1.1 * classes * size * 4
    done = po.execute(report) if runtime == "onnxruntime" else po.execute_on(report, "host")
    assert done.bit_identical


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int4", "uint4"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("turned", [False, True])
def test_a_quantized_layer_stays_quantized(
    dtype: str, kind: str, turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose blocks and channels go along what it sums up."""
    shape, rng = ((32, 90) if turned else (90, 32)), np.random.default_rng(3)
    held, attributes = weight(rng, shape, dtype, kind, axis=0 if turned else 1)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("DequantizeLinear", [*held], ["head"], **attributes),  # type: ignore[arg-type]
        helper.make_node("Gemm", ["h", "head"], ["y"], transB=int(not turned)),
    ]
    stored = {**held, "w": rng.standard_normal((32, 32), np.float32)}
    net = load_onnx(model_of(nodes, {"x": [4, 32]}, ["y"], stored, opset=21, ir_version=10), train="w")
    feeds: dict[str, Array] = {"x": rng.standard_normal((4, 32), np.float32), "labels": np.array([89, 0, 7, 64])}
    whole = run(differentiate(net, loss="cross-entropy"), feeds)
    monkeypatch.setattr(linear_loss, "CLASSES", 9)
    step = differentiate(net, loss="cross-entropy")
    assert LINEAR in kinds(step)
    nbytes = sum(value.nbytes for name, value in step.values.items() if step.tensors[name].dtype.endswith("int8"))
    assert nbytes <= held["q"].size * (0.5 if "4" in dtype else 1) + held["z"].size + 1
    found = run(step, feeds)
    assert found["loss"] == pytest.approx(float(whole["loss"]), rel=1e-5)
    np.testing.assert_allclose(found["w.grad"], whole["w.grad"], rtol=1e-4, atol=1e-5)
    predicted = predicting(step)
    assert predicted is not None
    np.testing.assert_array_equal(run(predicted, {"x": feeds["x"]}, ("y",))["y"].shape, (4, 90))
