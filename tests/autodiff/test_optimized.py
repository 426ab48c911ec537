"""Training graphs as a user runs them: one session at onnxruntime's default optimization, unlike this package's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx.helper import make_node as node

from poetopt.autodiff import differentiate
from poetopt.backends.onnxruntime.reference import NodeByNode
from poetopt.backends.onnxruntime.sessions import Sessions
from poetopt.frontends.onnx_file import load_onnx
from poetopt.frontends.proto import model_proto
from poetopt.graph import Graph, TrainingGraph
from tests.support.autodiff.oracle import Array, batch, run
from tests.support.frontends import model_of

TRAIN: Mapping[str, Any] = {"training_mode": 1, "momentum": 0.8}


def branches(channels: int, chained: bool) -> TrainingGraph:
    """Two training BatchNormalizations of as many channels, one after the other or beside each other."""
    rng = np.random.default_rng(channels)
    weights: dict[str, Array] = {"w": rng.standard_normal((channels, 2, 3, 3)).astype(np.float32)}
    nodes = [node("Conv", ["x", "w"], ["h"], pads=[1, 1, 1, 1])]
    for name, read in (("a", "h"), ("b", "a" if chained else "h")):
        weights[f"{name}.scale"] = rng.uniform(0.5, 2, channels).astype(np.float32)
        weights[f"{name}.bias"] = rng.standard_normal(channels).astype(np.float32)
        weights[f"{name}.mean"] = np.zeros(channels, np.float32)
        weights[f"{name}.var"] = np.ones(channels, np.float32)
        read_by = [read, *(f"{name}.{what}" for what in ("scale", "bias", "mean", "var"))]
        nodes.append(node("BatchNormalization", read_by, [f"{name}.y", f"{name}.m", f"{name}.v"], **TRAIN))
        nodes.append(node("Tanh", [f"{name}.y"], [name]))
    nodes.append(node("Mul", ["a", "b"], ["z"]))
    states = [f"{name}.{what}" for name in "ab" for what in "mv"]
    forward = load_onnx(model_of(nodes, {"x": [3, 2, 5, 4]}, ["z", *states], weights))
    return differentiate(forward, loss="mse", output="z")


def optimized(graph: Graph, *, level: str = "ORT_ENABLE_ALL") -> ort.InferenceSession:
    """The session that a user gets without options."""
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(model_proto(graph).SerializeToString(), options)


def outputs(session: ort.InferenceSession, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """By name."""
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def distance(found: Mapping[str, Array], wanted: Mapping[str, Array]) -> float:
    """The largest difference of any output, relative to its norm."""
    assert set(found) == set(wanted)
    return max(
        float(np.linalg.norm(found[name] - want) / (np.linalg.norm(want) + 1e-6)) for name, want in wanted.items()
    )


@pytest.mark.parametrize("level", ["ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"])
@pytest.mark.parametrize("chained", [True, False])
@pytest.mark.parametrize("channels", [1, 4, 16])
def test_batch_statistics_are_overwritten_by_nobody(channels: int, chained: bool, level: str) -> None:
    step = branches(channels, chained)
    feeds = batch(step, 0)
    wanted = run(step, feeds)
    alone = NodeByNode(step, Sessions(step), step.values, tuple(wanted)).run(feeds)
    assert all(alone[name].tobytes() == want.tobytes() for name, want in wanted.items())
    session = optimized(step, level=level)
    assert distance(outputs(session, feeds), wanted) <= 1e-4
    # nothing of a batch that went wrong may stay
    outputs(session, {**feeds, "x": np.full_like(feeds["x"], np.nan)})
    assert distance(outputs(session, feeds), wanted) <= 1e-4
