"""Random calls of normalizations, softmax and cross-entropy, and of their gradients."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from poetopt.graph import OWN_DOMAIN
from tests.support.contract.kernel import Case, node_case
from tests.support.draws.pieces import Draw, Random, network, normal, onnx_node, random_shape
from tests.support.draws.steps import step_cases
from tests.support.draws.windows import random_planes

if TYPE_CHECKING:
    from poetopt.graph import Array


def _batch_norm(random: Random) -> list[Case]:
    shape = random_planes(random)
    vectors = [normal(random, shape[1:2]) for _ in range(3)]
    return [node_case("BatchNormalization", normal(random, shape), *vectors, np.abs(vectors[0]) + np.float32(0.2))]


def batch_norm_step(op_type: str, random: Random) -> list[Case]:
    """What a training step has of a BatchNormalization."""
    shape = (int(random.integers(2, 4)), *random_planes(random)[1:])
    names = ("scale", "bias", "mean", "variance")
    vectors = {name: np.abs(normal(random, shape[1:2])) + np.float32(0.2) for name in names}
    node = onnx_node(
        "BatchNormalization", ["h", *names], ["y", "new_mean", "new_variance"], attributes={"training_mode": 1}
    )
    return step_cases(network(random, shape, [node], vectors), op_type, random)


def _layer_norm(random: Random) -> list[Case]:
    x = normal(random, random_shape(random, 2, 4))
    axis = int(random.integers(1, x.ndim))
    scale, bias = (normal(random, x.shape[axis:]) for _ in range(2))
    operands = (scale, bias) if random.random() < 0.7 else (scale,)
    outputs = ("float32",) * int(random.choice([1, 3]))
    return [node_case("LayerNormalization", x, *operands, outputs=outputs, attributes={"axis": axis})]


def group_norm(op_type: str, random: Random) -> list[Case]:
    """InstanceNormalization, or GroupNormalization of any number of groups."""
    images, channels, *size = random_planes(random)
    groups = int(random.integers(1, 4))
    shape = (images, channels * groups, *size)
    attributes = {"num_groups": groups} if op_type == "GroupNormalization" else {}
    vectors = [normal(random, shape[1:2]) for _ in range(2)]
    return [node_case(op_type, normal(random, shape), *vectors, attributes=attributes)]


def _layer_norm_gradient(random: Random) -> list[Case]:
    shape = (*random_shape(random, 1, 3), int(random.choice([5, 9, 70])))
    vectors = {name: normal(random, shape[-1:]) for name in ("scale", "bias")}
    model = network(random, shape, [onnx_node("LayerNormalization", ["h", "scale", "bias"])], vectors)
    return step_cases(model, "LayerNormalization.gradient", random)


def softmax(op_type: str, random: Random) -> list[Case]:
    """Softmax or LogSoftmax along any axis."""
    x = np.multiply(normal(random, random_shape(random, 1)), 4)
    return [node_case(op_type, x, attributes={"axis": int(random.integers(-x.ndim, x.ndim))})]


def _likelihood(random: Random) -> list[Case]:
    x = normal(random, (*random_shape(random, 2, 2), *random_shape(random, 0, 2)))
    labels = random.integers(0, x.shape[1], (x.shape[0], *x.shape[2:]))
    return [node_case("NegativeLogLikelihoodLoss", x, labels, attributes=_reduced(random, labels))]


def _loss(random: Random) -> list[Case]:
    x = normal(random, (*random_shape(random, 2, 2), *random_shape(random, 0, 2)))
    labels = random.integers(0, x.shape[1], (x.shape[0], *x.shape[2:]))
    written = ("float32", "float32")[: int(random.integers(1, 3))]
    return [node_case("SoftmaxCrossEntropyLoss", x, labels, outputs=written, attributes=_reduced(random, labels))]


def _reduced(random: Random, labels: Array) -> dict[str, Any]:
    """Attributes of a loss; now and then some of its labels are left out."""
    chosen: dict[str, Any] = {"reduction": str(random.choice(["mean", "sum"]))}
    if random.random() < 0.4:
        chosen["ignore_index"] = -100
        labels.reshape(-1)[1:][random.random(labels.size - 1) < 0.3] = -100
    return chosen


def _cross_entropy(random: Random) -> list[Case]:
    behind = random_shape(random, 2, 2) if random.random() < 0.5 else ()
    shape = (int(random.integers(1, 5)), int(random.integers(2, 9)), *behind)
    model = network(random, shape, [onnx_node("Identity", ["h"])], {})
    return step_cases(model, "SoftmaxCrossEntropyLoss.grad_input", random, loss="cross-entropy")


DRAWS: Mapping[tuple[str, str], Draw] = {
    ("", "BatchNormalization"): _batch_norm,
    ("", "LayerNormalization"): _layer_norm,
    **{("", name): partial(group_norm, name) for name in ("InstanceNormalization", "GroupNormalization")},
    ("", "Softmax"): partial(softmax, "Softmax"),
    ("", "LogSoftmax"): partial(softmax, "LogSoftmax"),
    ("", "NegativeLogLikelihoodLoss"): _likelihood,
    ("", "SoftmaxCrossEntropyLoss"): _loss,
    **{
        (OWN_DOMAIN, f"BatchNormalization.{k}"): partial(batch_norm_step, f"BatchNormalization.{k}")
        for k in ("training", "grad_weight")
    },
    (OWN_DOMAIN, "LayerNormalization.gradient"): _layer_norm_gradient,
    (OWN_DOMAIN, "SoftmaxCrossEntropyLoss.grad_input"): _cross_entropy,
}
