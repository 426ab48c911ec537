"""How far from onnxruntime's a step in C may be: what one ulp of data and parameters moves, tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import poetopt as po
from poetopt.backends.c.execute import execute_on, train_on
from poetopt.graph import OWN_DOMAIN
from poetopt.ops.runtimes.c import steps as registry
from poetopt.ops.runtimes.c.kernel import Arguments, Call, Kernel
from poetopt.plan.assemble import store_all
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import lay_out
from poetopt.zoo.network import Network
from tests.backends.c.support import needs_host, network
from tests.draws.pieces import network as drawn_network
from tests.draws.pieces import normal, onnx_node

BATCH, TOKENS, WIDE = 3, 6, 12


def masked() -> po.Model:
    """The mean of the tokens' embeddings that a mask of 0 and 1, its only floats, leaves; a layer in front of it."""
    net = Network("masked", 5)
    ids = net.input("ids", (BATCH, TOKENS), TensorProto.INT64)
    mask = net.input("mask", (BATCH, TOKENS, 1))
    table = net.weight("table", net.rng.standard_normal((20, WIDE)).astype(np.float32))
    x = net.add("Gather", [table, ids], "embedded")
    for k in range(4):
        weight = net.he(f"w{k}", (WIDE, WIDE), WIDE)
        x = net.add("Tanh", [net.add("MatMul", [x, weight], f"matmul{k}")], f"tanh{k}")
    axis = net.constant("axis", np.array([1]))
    total = net.add("ReduceSum", [net.add("Mul", [x, mask], "left"), axis], "total", keepdims=0)
    mean = net.add("Div", [total, net.add("ReduceSum", [mask, axis], "count", keepdims=0)], "mean")
    return _model(net, net.linear(mean, "head", WIDE, 4), (BATCH, 4))


def normalized() -> po.Model:
    """A LayerNormalization and a Softmax between linear layers."""
    net = Network("normalized", 8)
    x = net.linear(net.input("x", (BATCH, 9)), "first", 9, WIDE)
    scale, shift = (net.weight(n, net.rng.standard_normal(WIDE).astype(np.float32)) for n in ("scale", "shift"))
    x = net.add("LayerNormalization", [x, scale, shift], "norm")
    x = net.linear(net.add("Softmax", [x], "softmax"), "second", WIDE, 4)
    return _model(net, x, (BATCH, 4))


def _model(net: Network, output: str, shape: tuple[int, ...]) -> po.Model:
    found = po.load(net.model(output, shape))
    assert isinstance(found, po.Model)
    return found


@cache
def plan(name: str, optimizer: str = "none") -> Plan:
    made: Mapping[str, Callable[[], po.Model]]
    made = {"masked": masked, "normalized": normalized, "convolutions": network}
    model = made[name]()
    return lay_out(store_all(model.differentiate(loss="cross-entropy", optimizer=optimizer).cost("m4", runtime="c")))


def data() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    mask = (np.arange(TOKENS) == np.array([[0], [3], [5]])).astype(np.float32)[..., None]
    return {"ids": rng.integers(0, 20, (BATCH, TOKENS)), "mask": mask, "labels": rng.integers(0, 4, BATCH)}


@needs_host
def test_parameters_move_where_the_only_floats_of_the_batch_are_a_mask() -> None:
    found = execute_on(plan("masked"), "host", data=data())
    assert found.ok, found.message
    assert 5e-8 < found.sensitivity < 1e-5


@needs_host
def test_an_ulp_of_the_parameters_is_no_part_of_how_far_they_go() -> None:
    """By a rate of 1e-4 they go some 100 ulps; the first value itself, an ulp off, would be 1e-2 of it."""
    found = train_on(plan("masked", "sgd"), "host", 3, 1e-4, data=data())
    assert found.ok, found.message
    assert found.sensitivity < 2e-3


@needs_host
@pytest.mark.parametrize(
    ("name", "domain", "op"),
    [
        ("masked", "", "ReduceSum"),
        ("masked", OWN_DOMAIN, "Tanh.grad_input"),
        ("masked", OWN_DOMAIN, "Gather.grad_input"),
        ("normalized", "", "LayerNormalization"),
        ("normalized", OWN_DOMAIN, "Softmax.grad_input"),
        ("convolutions", OWN_DOMAIN, "Conv.grad_weight"),
        ("convolutions", "", "ReduceSum"),
    ],
)
def test_one_element_that_is_a_little_off_is_found(
    name: str, domain: str, op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The schedule and the step that computes everything once have the same wrong kernel, and the same bits."""
    known = registry.kernels()
    right = known[domain, op]

    def code(call: Call, arguments: Arguments) -> str:
        size = call.output().size
        return f"{right.code(call, arguments)}\n((float *){arguments.outputs[0]})[{size // 2}] *= 1.0003f;"

    wrong: Kernel = replace(right, code=code)
    monkeypatch.setattr(registry, "kernels", lambda: {**known, (domain, op): wrong})
    found = execute_on(plan(name), "host", data=data() if name == "masked" else None)
    assert found.bit_identical
    assert not found.ok
    assert "away from onnxruntime's" in found.message


@needs_host
def test_what_many_tokens_have_of_one_row_is_not_lost_beside_it() -> None:
    """Of 600 tokens each moves its row by less than half an ulp."""
    net = Network("alike", 2)
    ids = net.input("ids", (600,), TensorProto.INT64)
    x = net.add("Gather", [net.weight("table", 1 + net.rng.random((3, 8), np.float32)), ids], "embedded")
    problem = _model(net, net.linear(x, "head", 8, 4), (600, 4)).differentiate(loss="mse", optimizer="sgd")
    plan = lay_out(store_all(problem.cost("m4", runtime="c")))
    batch = {"ids": np.ones(600, np.int64), "target": np.zeros((600, 4), np.float32)}
    found = train_on(plan, "host", 1, 1e-4, data=batch)
    assert found.ok, found.message
    assert np.any(found.values["table"][1] != plan.problem.graph.values["table"][1])  # type: ignore[union-attr]


def _node(op: str, *more: str, **attributes: object) -> onnx.NodeProto:
    return onnx_node(op, ["h", *more], ["y"], attributes)


PICKED = np.array([[0, 1], [2, -1], [0, 1]])
STRIDED = {"kernel_shape": [3, 3], "strides": [2, 2], "dilations": [3, 3], "pads": [2, 1, 1, 2]}
CASES: Mapping[str, tuple[tuple[int, ...], onnx.NodeProto, Mapping[str, object]]] = {
    "Einsum": ((2, 3, 4), _node("Einsum", "w", equation="bij,jk->kb"), {"w": (4, 5)}),
    "TopK": ((2, 5, 6), onnx_node("TopK", ["h", "k"], ["y", "places"], {"axis": 1}), {"k": np.array([3])}),
    "Tile": ((2, 3, 4), _node("Tile", "times"), {"times": np.array([1, 2, 3])}),
    "GatherND": ((4, 3, 5), _node("GatherND", "at"), {"at": PICKED}),
    "ConvTranspose": ((2, 4, 5, 6), _node("ConvTranspose", "w", **STRIDED), {"w": (4, 3, 3, 3)}),
    "Conv": ((2, 4, 11, 12), _node("Conv", "w", **STRIDED), {"w": (3, 4, 3, 3)}),
    "Resize": (
        (1, 2, 5, 6),
        _node("Resize", "", "", "to", mode="cubic"),
        {"to": np.array([1, 2, 9, 4])},
    ),
    **{
        mode: ((2, 5, 6), _node("Pad", "pads", mode=mode), {"pads": np.array([0, 2, 1, 1, 0, 3])})
        for mode in ("wrap", "reflect", "edge")
    },
}
"""Operators: the shape of what they read, the node, and constants, or the shapes of parameters, beside."""


@needs_host
@pytest.mark.parametrize("name", CASES)
def test_gradients_of_an_operator_are_onnxruntimes(name: str) -> None:
    shape, node, beside = CASES[name]
    random = np.random.default_rng(4)
    given = {key: normal(random, value) if isinstance(value, tuple) else value for key, value in beside.items()}
    model = po.load(drawn_network(random, shape, [node], {k: np.asarray(v) for k, v in given.items()}), train="*")
    assert isinstance(model, po.Model)
    problem = model.differentiate(loss="mse").cost("m4", runtime="c")
    found = execute_on(lay_out(store_all(problem)), "host")
    assert found.ok, found.message
    assert found.gradients == 1 + sum(isinstance(value, tuple) for value in beside.values())


@needs_host
@pytest.mark.parametrize("ignored", [True, False])
def test_a_models_own_loss_needs_no_log_probabilities(ignored: bool) -> None:
    random = np.random.default_rng(6)
    attributes: dict[str, object] = {"ignore_index": -100} if ignored else {}
    proto = drawn_network(random, (4, 5), [onnx_node("SoftmaxCrossEntropyLoss", ["h", "l"], ["y"], attributes)], {})
    proto.graph.input.append(onnx.helper.make_tensor_value_info("l", TensorProto.INT64, [4]))
    model = po.load(proto)
    assert isinstance(model, po.Model)
    problem = model.differentiate(loss="none").cost("m4", runtime="c")
    labels = np.array([1, -100 if ignored else 2, 0, 4])
    found = execute_on(lay_out(store_all(problem)), "host", data={"x": normal(random, (4, 5)), "l": labels})
    assert found.ok, found.message
    assert not ignored or not found.results["p.grad"][1].any()
