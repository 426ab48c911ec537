"""onnxruntime's attention and rotary embedding, read as standard operators: its own numbers, and their slopes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from poetopt.autodiff import differentiate
from poetopt.frontends.fused import OWN
from poetopt.frontends.onnx_file import load_onnx
from tests.support.autodiff.oracle import run

TOKENS, HEADS, SIZE = 6, 4, 16
WIDTH = HEADS * SIZE
ROTARY = ("RotaryEmbedding", ["q", "places", "cos", "sin"])
MANY = ("MultiHeadAttention", ["q", "k", "v"])
GROUPS = ("GroupQueryAttention", ["q", "k", "v", "", "", "lengths", "most"])
TURNS = ["cos", "sin"]
Case = tuple[tuple[str, list[str]], list[str], dict[str, tuple[int, ...]], dict[str, Any]]
QKV: dict[str, tuple[int, ...]] = {"x": (2, TOKENS, WIDTH), "k": (2, TOKENS, WIDTH), "v": (2, TOKENS, WIDTH)}
SHARED: dict[str, tuple[int, ...]] = {"x": (2, TOKENS, WIDTH), "k": (2, TOKENS, 2 * SIZE), "v": (2, TOKENS, 2 * SIZE)}
LONG: dict[str, tuple[int, ...]] = {"lengths": (2,), "most": (1,)}
GROUPED: dict[str, Any] = {"num_heads": HEADS, "kv_num_heads": 2}
CASES: dict[str, Case] = {
    "rotary": (ROTARY, [], {"x": (2, TOKENS, WIDTH), "places": (2, TOKENS)}, {}),
    "rotary, interleaved, from a place on": (
        ROTARY, [], {"x": (2, TOKENS, WIDTH), "places": (1,)}, {"interleaved": 1},
    ),
    "rotary of heads": (ROTARY, [], {"x": (2, HEADS, TOKENS, SIZE), "places": (2, TOKENS)}, {"interleaved": 1}),
    "rotary of a part": (
        (ROTARY[0], ["q", "places", "cos_of_part", "sin_of_part"]), [],
        {"x": (2, TOKENS, WIDTH), "places": (2, TOKENS)}, {"num_heads": HEADS, "rotary_embedding_dim": 4},
    ),
    "many heads": (MANY, [], QKV, {"num_heads": HEADS}),
    "many heads, causal": (MANY, [], QKV, {"num_heads": HEADS, "unidirectional": 1}),
    "many heads, other keys and a bias": (
        (MANY[0], [*MANY[1], "bias"]), [], {"x": QKV["x"], "k": (2, 5, WIDTH), "v": (2, 5, HEADS * 4)},
        {"num_heads": HEADS, "scale": 0.3},
    ),
    "many heads, a bias of scores": (
        (MANY[0], [*MANY[1], "", "", "scores"]), [], {**QKV, "scores": (1, HEADS, TOKENS, TOKENS)},
        {"num_heads": HEADS},
    ),
    "groups": (GROUPS, ["keys", "values"], {**SHARED, **LONG}, GROUPED),
    "groups, turned and capped": (
        (GROUPS[0], [*GROUPS[1], *TURNS]), ["keys", "values"], {**SHARED, **LONG},
        {**GROUPED, "do_rotary": 1, "rotary_interleaved": 1, "softcap": 2.0, "scale": 0.5},
    ),
    "groups, packed": (
        (GROUPS[0], ["q", "", "", "", "", "lengths", "most", *TURNS]), [],
        {"x": (2, TOKENS, WIDTH + 4 * SIZE), **LONG}, {**GROUPED, "do_rotary": 1},
    ),
    "groups, behind a past": (
        (GROUPS[0], ["q", "k", "v", "before", "said", "lengths", "most", *TURNS]), ["keys", "values"],
        {
            **{name: (1, *shape[1:]) for name, shape in SHARED.items()}, "before": (1, 2, 3, SIZE),
            "said": (1, 2, 3, SIZE), "lengths": (1,), "most": (1,),
        },
        {**GROUPED, "do_rotary": 1},
    ),
}  # fmt: skip


def made(what: str, slope: float = 1.5) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """A network that multiplies its input by a trained number before the operator, and a batch."""
    (op, given), more, shapes, attributes = CASES[what]
    rng = np.random.default_rng(0)
    angles = rng.uniform(0, 6, (16, SIZE // 2)).astype(np.float32)
    stored = {"cos": np.cos(angles), "sin": np.sin(angles)}
    stored |= {"cos_of_part": stored["cos"][:, :2], "sin_of_part": stored["sin"][:, :2]}
    stored |= {"bias": rng.standard_normal(2 * WIDTH + HEADS * 4, np.float32), "w": np.array([slope], np.float32)}
    tokens = TOKENS + shapes.get("before", (0, 0, 0))[2]
    whole: dict[str, Any] = {
        "places": rng.integers(0, 9, shapes.get("places", (1,))),
        "lengths": np.full(shapes.get("lengths", (1,)), tokens - 1, np.int32),
        "most": np.array([tokens], np.int32),
    }
    feeds = {n: whole[n] if n in whole else rng.standard_normal(shape, np.float32) for n, shape in shapes.items()}
    kinds = {"places": TensorProto.INT64, "lengths": TensorProto.INT32, "most": TensorProto.INT32}
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["q"]),
        helper.make_node(op, given, ["y", *more], domain=OWN, name="own", **attributes),
    ]
    graph = helper.make_graph(
        nodes, "own", [helper.make_tensor_value_info(n, kinds.get(n, TensorProto.FLOAT), s) for n, s in shapes.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("y", *more)],
        [numpy_helper.from_array(v, n) for n, v in stored.items() if n in given or n == "w"],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(OWN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9), feeds


def own(what: str, slope: float = 1.5) -> list[Any]:
    model, feeds = made(what, slope)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


@pytest.mark.parametrize("what", CASES)
def test_outputs_and_slopes_are_those_of_onnxruntimes_own_kernel(what: str) -> None:
    model, feeds = made(what)
    step = differentiate(load_onnx(model, train="w"), loss="mse", output="y")
    batch = {name: feeds[name] for name in feeds if name in step.inputs} | {"target": np.zeros_like(own(what)[0])}
    names = tuple(info.name for info in model.graph.output)
    found = run(step, batch, (*names, step.gradients["w"]))
    for name, theirs in zip(names, own(what), strict=True):
        np.testing.assert_allclose(found[name], theirs, rtol=1e-5, atol=2e-6)
    above, below = (float((own(what, 1.5 + h)[0].astype(np.float64) ** 2).mean()) for h in (0.02, -0.02))
    assert found[step.gradients["w"]][0] == pytest.approx((above - below) / 0.04, rel=3e-3, abs=1e-5)
