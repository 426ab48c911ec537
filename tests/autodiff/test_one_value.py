"""BatchNormalization that trains on one value a channel is said, and its gradients are 0."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from poetopt.autodiff import differentiate
from poetopt.frontends.onnx_file import load_onnx
from poetopt.util.notes import important
from tests.autodiff.oracle import batch, run
from tests.frontends.kinds import kind, node
from tests.frontends.support import floats


def network(n: int, size: int = 1, trains: int = 1) -> onnx.ModelProto:
    """Two branches, one through a BatchNormalization of [n, 4, size, size]."""
    nodes = [
        node("Conv", "x w1", "a"), node("BatchNormalization", "a s b m v", "n", name="bn", training_mode=trains),
        node("Conv", "x w2", "c"), node("Add", "n c", "h"), node("Flatten", "h", "y"),
    ]  # fmt: skip
    weights = {"w1": floats(4, 2, 1, 1), "w2": floats(4, 2, 1, 1, seed=1), "s": floats(4), "b": floats(4)}
    return kind(nodes, [n, 2, size, size], {**weights, "m": floats(4), "v": np.abs(floats(4))}).model()


def test_it_is_said_and_the_gradients_are_zero() -> None:
    step = differentiate(load_onnx(network(1)), loss="mse")
    (said,) = [note for note in important(step.notes) if note.about == "gradients"]
    assert "one value a channel (bn)" in said
    assert "at least 2 of 4 gradients are exactly 0" in said
    found = run(step, batch(step, 0))
    zero = {name for name, gradient in step.gradients.items() if not np.any(found[gradient])}
    assert zero == {"w1", "s"}


@pytest.mark.parametrize(("n", "size", "trains"), [(2, 1, 1), (1, 2, 1), (1, 1, 0)])
def test_nothing_is_said_of_others(n: int, size: int, trains: int) -> None:
    step = differentiate(load_onnx(network(n, size, trains)), loss="mse")
    assert not [note for note in important(step.notes) if note.about == "gradients"]
