"""A small perceptron, its gradients and the optimizers in plain numpy: what updates in a graph are held against."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from poetopt.autodiff import differentiate
from poetopt.autodiff.optimizers import with_updates
from poetopt.frontends.onnx_file import load_onnx
from poetopt.frontends.proto import elem_type, model_proto
from poetopt.graph import TrainingGraph

Array = NDArray[Any]
Arrays = dict[str, Array]
NODES = "h = Gemm(x, w1, b1); a = Tanh(h); y = Gemm(a, w2, b2)"
SHAPES = {"w1": (3, 5), "b1": (5,), "w2": (5, 2), "b2": (2,)}
SETTINGS: Mapping[str, Mapping[str, float]] = {
    "sgd": {"lr": 0.1, "weight_decay": 0.02},
    "momentum": {"lr": 0.05, "momentum": 0.8, "weight_decay": 0.02},
    "adam": {"lr": 0.01, "beta1": 0.85, "beta2": 0.99, "eps": 1e-7, "weight_decay": 0.02},
    "adamw": {"lr": 0.01, "beta1": 0.85, "beta2": 0.99, "eps": 1e-7, "weight_decay": 0.1},
}


def weights(dtype: str) -> Arrays:
    rng = np.random.default_rng(3)
    return {name: rng.standard_normal(shape).astype("float32").astype(dtype) for name, shape in SHAPES.items()}


def data(dtype: str, step: int) -> Arrays:
    rng = np.random.default_rng(100 + step)  # float32 numbers, whatever the type
    return {"x": rng.standard_normal((4, 3)).astype(dtype), "target": rng.standard_normal((4, 2)).astype(dtype)}


def perceptron(dtype: str, train: str | None = None) -> TrainingGraph:
    """Two layers, mean squared error, without updates."""
    nodes = []
    for line in NODES.split("; "):
        written, _, call = line.partition(" = ")
        op, _, read = call.rstrip(")").partition("(")
        nodes.append(helper.make_node(op, read.split(", "), [written], name=written))
    body = helper.make_graph(
        nodes,
        "perceptron",
        [helper.make_tensor_value_info("x", elem_type(dtype), [4, 3])],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(value, name) for name, value in weights(dtype).items()],
    )
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return differentiate(load_onnx(model, train=train), loss="mse")


def gradients(p: Arrays, feeds: Arrays) -> tuple[float, Arrays]:
    """Loss and gradients of the perceptron, by hand."""
    a = np.tanh(feeds["x"] @ p["w1"] + p["b1"])
    difference = a @ p["w2"] + p["b2"] - feeds["target"]
    dy = 2 * difference / difference.size
    dh = (dy @ p["w2"].T) * (1 - a * a)
    found = {"w1": feeds["x"].T @ dh, "b1": dh.sum(0), "w2": a.T @ dy, "b2": dy.sum(0)}
    return float(np.mean(difference**2)), found


def update(optimizer: str, p: Array, g: Array, state: Arrays, step: int, by: Mapping[str, float]) -> Array:
    """The parameter after step `step`, from 1; `state` changes. As the papers have it."""
    decay = by["weight_decay"]
    if optimizer == "sgd":
        return np.asarray(p - by["lr"] * (g + decay * p))
    if optimizer == "momentum":
        state["v"] = by["momentum"] * state.get("v", 0) + g + decay * p
        return np.asarray(p - by["lr"] * state["v"])
    if optimizer == "adam":
        g = g + decay * p
    else:
        p = p - by["lr"] * decay * p
    state["m"] = by["beta1"] * state.get("m", 0) + (1 - by["beta1"]) * g
    state["s"] = by["beta2"] * state.get("s", 0) + (1 - by["beta2"]) * g**2
    m, s = state["m"] / (1 - by["beta1"] ** step), state["s"] / (1 - by["beta2"] ** step)
    return np.asarray(p - by["lr"] * m / (np.sqrt(s) + by["eps"]))


def by_hand(
    optimizer: str, steps: int, trained: tuple[str, ...] = tuple(SHAPES), rates: Mapping[str, float] | None = None
) -> tuple[list[float], Arrays]:
    """Losses, and all parameters after `steps` steps in float64."""
    p = {name: value.astype(np.float64) for name, value in weights("float32").items()}
    states: dict[str, Arrays] = {name: {} for name in p}
    losses = []
    for step in range(1, steps + 1):
        loss, g = gradients(p, {name: a.astype(np.float64) for name, a in data("float32", step).items()})
        losses.append(loss)
        for name in trained:
            by = SETTINGS[optimizer]
            by = {**by, "lr": by["lr"] * (rates or {}).get(name, 1.0)}
            p[name] = update(optimizer, p[name], g[name], states[name], step, by)
    return losses, p


def with_optimizer(dtype: str, optimizer: str, train: str | None = None, *, fuse: bool = True) -> TrainingGraph:
    return with_updates(perceptron(dtype, train), optimizer, fuse=fuse)


def trained(graph: TrainingGraph, steps: int, dtype: str) -> tuple[list[float], Arrays]:
    """Losses, and all that is carried after `steps` steps: the graph's own file in a plain loop on onnxruntime."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(model_proto(graph).SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    settings = {name: np.array(value) for name, value in SETTINGS[graph.optimizer].items()}
    counts = any(put.name == "step" for put in session.get_inputs())
    carried: Arrays = {}
    losses = []
    for step in range(1, steps + 1):
        feeds = {**data("float32", step), **carried, **settings, **({"step": np.array(step)} if counts else {})}
        feeds |= {name: feeds[name].astype(dtype) for name in ("x", "target")}
        found = dict(zip(names, session.run(names, feeds), strict=True))
        losses.append(float(found["loss"]))
        carried = {name.removesuffix(".new"): value for name, value in found.items() if name.endswith(".new")}
    return losses, carried
