"""What the pages on leaving PyTorch tell people to do: training form of BatchNormalization, and running variances."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import poetopt as po

ROOT = Path(__file__).resolve().parents[1]
BATCH, CHANNELS, SIZE, CLASSES = 3, 4, 2, 5
rng = np.random.default_rng(5)
WEIGHTS = {
    "conv.weight": rng.standard_normal((CHANNELS, 2, 1, 1)).astype(np.float32),
    "norm.weight": np.ones(CHANNELS, np.float32),
    "norm.bias": np.zeros(CHANNELS, np.float32),
    "norm.running_mean": rng.standard_normal(CHANNELS).astype(np.float32),
    "norm.running_var": (0.5 + rng.random(CHANNELS)).astype(np.float32),
    "fc.weight": rng.standard_normal((CLASSES, CHANNELS)).astype(np.float32),
}
IMAGE = rng.standard_normal((BATCH, 2, SIZE, SIZE)).astype(np.float32)
LABELS = np.arange(BATCH) % CLASSES


def exported() -> onnx.ModelProto:
    """A network as the newer exporter writes it: a BatchNormalization of inference form."""
    nodes = [
        helper.make_node("Conv", ["image", "conv.weight"], ["conv"], "conv"),
        helper.make_node(
            "BatchNormalization",
            ["conv", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"],
            ["normed"], "norm", epsilon=1e-5, momentum=0.0,
        ),
        helper.make_node("Relu", ["normed"], ["relu"], "relu"),
        helper.make_node("GlobalAveragePool", ["relu"], ["pooled"], "pool"),
        helper.make_node("Flatten", ["pooled"], ["flat"], "flat"),
        helper.make_node("Gemm", ["flat", "fc.weight"], ["logits"], "fc", transB=1),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, IMAGE.shape)],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, (BATCH, CLASSES))],
        [numpy_helper.from_array(value, name) for name, value in WEIGHTS.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def converter() -> Any:
    """The script of the page."""
    spec = importlib.util.spec_from_file_location("train_batchnorm", ROOT / "docs/examples/train_batchnorm.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def correction() -> Any:
    """The function of the page on running variances, as it stands there."""
    block = re.search(
        r"```python\n(.*?)```", (ROOT / "docs/running-variance.md").read_text(encoding="utf-8"), re.DOTALL
    )
    assert block is not None
    names: dict[str, Any] = {}
    exec(block[1], names)
    return names["torch_variance"]


def test_running_variances_are_the_batch_s_own_and_the_page_corrects_them() -> None:
    model, steps, momentum = exported(), 4, 0.9
    converter().to_training(model, momentum)
    problem = po.load(model).differentiate().cost("a72")
    report = po.solve(problem, ram="100%")
    ended = po.train(report, steps=steps, lr=1e-30, data={"image": IMAGE, "labels": LABELS})
    conv = np.einsum("oc,nchw->nohw", WEIGHTS["conv.weight"][:, :, 0, 0].astype(np.float64), IMAGE)
    biased, unbiased = (conv.var(axis=(0, 2, 3), ddof=ddof) for ddof in (0, 1))
    start = WEIGHTS["norm.running_var"].astype(np.float64)
    ours, torch_s = start, start
    for _ in range(steps):
        ours = momentum * ours + (1 - momentum) * biased
        torch_s = momentum * torch_s + (1 - momentum) * unbiased
    found = ended.values["norm.running_var"]
    assert found == pytest.approx(ours, rel=1e-5)
    assert found != pytest.approx(torch_s, rel=1e-3)
    corrected = correction()(found, start, BATCH * SIZE * SIZE, steps, momentum)
    assert corrected == pytest.approx(torch_s, rel=1e-5)
