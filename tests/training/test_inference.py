"""The trained file alone, at any batch, gives what validation said; nothing in it trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import poetopt as po

DRAWN = "u = RandomUniformLike (r)  m = Less (u, p)  f = Cast <to = 1> (m)"
LAYERS = {
    "none": "z = Identity (r)",
    "dropout": "z = Dropout <seed = 3> (r, q, yes)",
    "by hand": f"{DRAWN}  s = Div (f, p)  z = Mul (r, s)",
    "unscaled": f"{DRAWN}  t = Mul (r, f)  z = Div (t, p)",
    "samples": "n = Constant <value_ints = [1, 1]> ()  b = Shape <end = 1> (r)  k = Constant <value_ints = [1]> () "
    "h = Concat <axis = 0> (b, k)  o = Expand (p, h)  f = Bernoulli (o)  t = Mul (r, f)  z = Div (t, p)",
}
ROWS = 33


def network(layer: str) -> onnx.ModelProto:
    """A product, BatchNormalization in training form, Relu, what drops, and a product; its batch is open."""
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> net (float[N,6] x) => (float[N,3] logits) {'
        " p = Constant <value_float = 0.5> ()  q = Constant <value_float = 0.5> ()  yes = Cast <to = 9> (q)"
        " zero = Constant <value_float = 0.0> ()  y = MatMul (x, w)"
        " g, ma, va = BatchNormalization <training_mode = 1, momentum = 0.7> (y, scale, bias, mean, var)"
        f" r = Relu (g)  {LAYERS[layer]}  no = Cast <to = 9> (zero)  e = Dropout (z, q, no)  logits = Gemm (e, v, c) }}"
    )
    sizes: dict[str, Any] = {"w": (6, 16), "scale": 16, "bias": 16, "mean": 16, "var": 16, "v": (16, 3), "c": 3}
    for name, shape in sizes.items():
        value = np.ones(shape) if name in ("scale", "var") else rng.normal(0.0, 0.4, shape)
        model.graph.initializer.append(numpy_helper.from_array(value.astype(np.float32), name))
    return model


def rows(seed: int) -> dict[str, Any]:
    x = np.random.default_rng(seed).standard_normal((ROWS, 6), np.float32) + 1
    return {"x": x, "labels": (x[:, 0] > 1).astype(np.int64) + (x[:, 1] > 1.4)}


@pytest.fixture(params=["file", "memory", "beside"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Gives what makes a source of a model: a file, the model itself, or a file with its data beside it."""

    def made(model: onnx.ModelProto) -> Any:
        if request.param == "memory":
            return model
        beside: dict[str, Any] = {"save_as_external_data": True, "location": "net.bin", "size_threshold": 8}
        onnx.save(model, tmp_path / "net.onnx", **(beside if request.param == "beside" else {}))
        return tmp_path / "net.onnx"

    return made


def trained(source: Any) -> po.Trainer:
    model = po.load(source, batch=8)
    assert isinstance(model, po.Model)
    report = po.solve(
        model.differentiate(loss="cross-entropy", output=model.graph.outputs[0], optimizer="adam").cost("a72"),
        ram="100%",
    )
    return po.Trainer(report, model=source, lr=0.02)


def alone(path: Path, batch: dict[str, Any], size: int) -> Any:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    parts = [session.run(None, {"x": batch["x"][k : k + size]})[0] for k in range(0, ROWS, size)]
    return np.concatenate(parts)


@pytest.mark.parametrize("layer", LAYERS)
def test_the_file_alone_is_what_validation_said(layer: str, source: Any, tmp_path: Path) -> None:
    held_out, out, kept = rows(1), tmp_path / "out" / "trained.onnx", tmp_path / "out" / "kept.onnx"
    out.parent.mkdir()
    with trained(source(network(layer))) as trainer:
        ended = trainer.fit(rows(0), epochs=3, validate=held_out)
        trainer.export(out)
        trainer.export(kept, training_form=True)
        said = trainer.evaluate(held_out)
        values = {name: np.array(value) for name, value in trainer.values().items()}
    assert ended.accuracy == said.accuracy
    for size in (1, 8, 32):
        found = alone(out, held_out, size)
        assert (found.argmax(axis=1) == held_out["labels"]).mean() == said.accuracy
    file, training = onnx.load(out), onnx.load(kept)
    kinds = {node.op_type for node in file.graph.node}
    assert not kinds & {"Dropout", "RandomUniformLike", "Bernoulli", "Less"}
    assert [len(node.output) for node in file.graph.node if node.op_type == "BatchNormalization"] == [1]
    assert {*kinds} != {node.op_type for node in training.graph.node} or layer == "none"
    for one in (file, training):
        onnx.checker.check_model(one, full_check=True)
        assert (one.graph.input, one.graph.output) == (network(layer).graph.input, network(layer).graph.output)
        for proto in one.graph.initializer:
            np.testing.assert_array_equal(numpy_helper.to_array(proto), values[proto.name])
    wrong = alone(kept, held_out, 1)
    assert np.abs(wrong - alone(out, held_out, 1)).max() > 0.1  # statistics of one row
