"""Recurrent layers whose sequences end early, against onnxruntime's own kernels and torch's packed sequences."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
import onnx
import pytest

from poetopt.autodiff import differentiate
from poetopt.frontends.onnx_file import load_onnx
from poetopt.graph import Node
from poetopt.ops.recurrent.steps import DEFAULTS, USUAL
from tests.autodiff.float64 import gru_step, lstm_step, rnn_step, unrolled
from tests.autodiff.oracle import run
from tests.autodiff.specs import Array, evaluate
from tests.autodiff.test_refusals import GATES, layer

STEPS: dict[str, Any] = {"LSTM": lstm_step, "GRU": gru_step, "RNN": rnn_step}
DIRECTIONS = ("forward", "reverse", "bidirectional")


EACH = {"LSTM": 3, "GRU": 2, "RNN": 1}


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("name", DEFAULTS)
def test_activations_are_those_of_onnxruntime(op: str, name: str) -> None:
    """By default and with numbers given, in each place: the float64 layers, and what gradients are computed with."""
    rng = np.random.default_rng(0)
    shapes = [(4, 3, 4), (1, GATES[op] * 3, 4), (1, GATES[op] * 3, 3), (1, 2 * GATES[op] * 3)]
    x, w, r, b = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    values: dict[str, Array] = dict(zip("xwrb", (x, w, r, b), strict=True))
    for place in range(EACH[op]):
        names = [*USUAL[op]]
        names[place] = name
        for given in ({}, {"activation_alpha": [0.3], "activation_beta": [0.4]}):
            attributes: dict[str, Any] = {"hidden_size": 3, "direction": "forward", "activations": names, **given}
            states = 2 if op == "LSTM" else 1
            found = evaluate(Node(op, tuple(values), tuple(f"y{k}" for k in range(1 + states)), attributes), values, 18)
            wanted = unrolled(
                STEPS[op], states, x, w, r, b, None, [None] * states, {**attributes, "linear_before_reset": 0}
            )
            for got, want in zip(found, wanted, strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("op", GATES)
def test_the_float64_layers_are_those_of_onnxruntime(op: str, direction: str) -> None:
    rng, ends = np.random.default_rng(0), np.array([5, 1, 3], np.int32)
    d, hidden, states = 2 if direction == "bidirectional" else 1, 3, 2 if op == "LSTM" else 1
    shapes = [(5, 3, 4), (d, GATES[op] * hidden, 4), (d, GATES[op] * hidden, hidden), (d, 2 * GATES[op] * hidden)]
    x, w, r, b = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    first: list[Array] = [rng.standard_normal((d, 3, hidden)).astype(np.float32) for _ in range(states)]
    values: dict[str, Array] = dict(zip("xwrblhc", (x, w, r, b, ends, *first), strict=False))
    attributes = {"hidden_size": hidden, "direction": direction}
    results = tuple(f"y{k}" for k in range(1 + states))
    found = evaluate(Node(op, tuple(values), results, attributes), values, 18)
    wanted = unrolled(STEPS[op], states, x, w, r, b, ends, [*first], {**attributes, "linear_before_reset": 0})
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("op", GATES)
def test_lengths_that_cut_nothing_cost_nothing(op: str) -> None:
    plain = differentiate(layer(op, 4), loss="mse")
    whole = differentiate(layer(op, 4, inputs="x, w, r, , n", extra={"n": np.array([4], np.int32)}), loss="mse")
    cut = differentiate(layer(op, 4, inputs="x, w, r, , n", extra={"n": np.array([3], np.int32)}), loss="mse")
    counts = [sum(len(o.nodes) for o in step.operators if o.backward) for step in (plain, whole, cut)]
    assert counts[0] == counts[1] < counts[2]


@pytest.mark.parametrize("op", GATES)
def test_runs_of_steps_are_joined_in_order(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(shape).astype(np.float32) for shape in ((7, 1, 2), (7, 1, 1, 2)))
    once = differentiate(layer(op, 7), loss="mse")
    monkeypatch.setattr("poetopt.ops.recurrent.steps.FEW", 6)
    monkeypatch.setattr("poetopt.ops.recurrent.steps.RUN", 3)
    joined = differentiate(layer(op, 7), loss="mse")
    assert sum(len(o.nodes) for o in joined.operators) > sum(len(o.nodes) for o in once.operators)
    batch = {"x": x, "target": y}
    found = [run(step, batch, tuple(step.gradients.values())) for step in (once, joined)]
    assert len(found[0]) == 2
    for name, value in found[0].items():
        assert np.array_equal(value, found[1][name])


@pytest.mark.torch
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("op", GATES)
def test_packed_sequences_of_torch(op: str, bidirectional: bool) -> None:
    torch = pytest.importorskip("torch")
    nn: Any = torch.nn

    class Tagger(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = getattr(nn, op)(3, 4, 2, bidirectional=bidirectional)
            self.classify = nn.Linear(8 if bidirectional else 4, 5)

        def forward(self, x: Any, lengths: Any) -> Any:
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=True)
            found, last = self.layers(packed)
            padded, _ = nn.utils.rnn.pad_packed_sequence(found)
            last = last[0] if op == "LSTM" else last
            return self.classify(padded).mean(0) + last.sum(0).mean(1, keepdim=True)

    torch.manual_seed(1)
    module, x, lengths = Tagger(), torch.randn(6, 3, 3), torch.tensor([6, 3, 1])
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, (x, lengths), file, dynamo=False, input_names=["x", "lengths"], opset_version=17,
            training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False,
        )  # fmt: skip
    model = onnx.load_from_string(file.getvalue())
    assert [n.op_type for n in model.graph.node].count(op) == 2
    step = differentiate(load_onnx(model), loss="mse")
    target = torch.randn(3, 5)
    (module(x, lengths) - target).square().mean().backward()
    batch = {"x": x.numpy(), "lengths": lengths.numpy(), "target": target.numpy()}
    found = run(step, batch, tuple(step.gradients.values()))
    parameters = dict(module.named_parameters())
    assert set(step.gradients) == set(parameters)
    for name, parameter in parameters.items():
        want = parameter.grad.numpy()
        assert np.linalg.norm(found[step.gradients[name]] - want) < 1e-5 * max(1.0, float(np.linalg.norm(want)))
