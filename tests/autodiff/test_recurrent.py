"""Recurrent layers whose sequences end early, against onnxruntime's own kernels and torch's packed sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from poetopt.graph import Node
from poetopt.ops.recurrent.steps import DEFAULTS, USUAL
from tests.autodiff.test_refusals import GATES
from tests.support.autodiff.float64 import gru_step, lstm_step, rnn_step, unrolled
from tests.support.autodiff.specs import Array, evaluate

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
