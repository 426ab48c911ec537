"""How far from onnxruntime's a step in C may be: what one ulp of data and parameters moves, tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from onnx import TensorProto

import poetopt as po
from poetopt.backends.c.execute import execute_on
from poetopt.graph import OWN_DOMAIN
from poetopt.ops.runtimes.c import steps as registry
from poetopt.ops.runtimes.c.kernel import Arguments, Call, Kernel
from poetopt.plan.assemble import store_all
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import lay_out
from poetopt.zoo.network import Network
from tests.support.c import needs_host, network

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
@pytest.mark.parametrize(
    ("name", "domain", "op"),
    [("masked", "", "ReduceSum"), ("masked", OWN_DOMAIN, "Tanh.grad_input"),
     ("masked", OWN_DOMAIN, "Gather.grad_input"), ("normalized", "", "LayerNormalization"),
     ("normalized", OWN_DOMAIN, "Softmax.grad_input"), ("convolutions", OWN_DOMAIN, "Conv.grad_weight"),
     ("convolutions", "", "ReduceSum")],
)  # fmt: skip
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
