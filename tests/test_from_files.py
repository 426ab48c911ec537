"""A user's whole way, from files alone: network, device, profile and batch; plan, execution, gradients.

It is also what runs with the lowest version of each dependency (`make lowest`), so it needs pytest and nothing else.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from poetopt.cli.app import invoke

BOARD = """
name = "board"
description = "A board with a card"

[dma]
value = true
kind = "datasheet"
source = "reference manual"
"""
FIGURES = {
    "ram_bytes": (64, "MiB"), "flop_per_s": (500, "MFLOP/s"), "active_power_w": (2, "W"),
    "page_in_latency_s": (0.2, "ms"), "page_in_bytes_per_s": (40, "MB/s"), "page_out_latency_s": (0.4, "ms"),
    "page_out_bytes_per_s": (20, "MB/s"), "storage_power_w": (200, "mW"), "transfer_cpu_power_w": (100, "mW"),
}  # fmt: skip


def network(path: Path) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    """Three layers of 64 with Tanh and four classes, written to `path`; its weights."""
    rng = np.random.default_rng(3)
    sizes = [16, 64, 64, 4]
    weights = {
        f"fc{k}.weight": (rng.standard_normal((sizes[k + 1], sizes[k])) / 4).astype(np.float32) for k in range(3)
    }
    nodes, last = [], "x"
    for k in range(3):
        out = "logits" if k == 2 else f"h{k}"
        nodes.append(helper.make_node("Gemm", [last, f"fc{k}.weight"], [out], f"fc{k}", transB=1))
        if k < 2:
            nodes.append(helper.make_node("Tanh", [out], [f"a{k}"], f"tanh{k}"))
        last = f"a{k}"
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 16])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 4])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return weights


def test_from_files_to_gradients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    weights = network(Path("net.onnx"))
    figures = "\n".join(
        f'[figures.{name}]\nvalue = {value}\nunit = "{unit}"\nkind = "estimate"\nsource = "a test"\n'
        for name, (value, unit) in FIGURES.items()
    )
    Path("board.toml").write_text(BOARD + figures, encoding="utf-8")
    rng = np.random.default_rng(4)
    x, labels = rng.standard_normal((32, 16)).astype(np.float32), rng.integers(0, 4, 32)
    np.savez("batch.npz", x=x, labels=labels)

    assert invoke(["profile", "net.onnx", "--batch", "32", "--power", "2W", "-o", "profile.toml"]) == 0
    for more in ([], ["--profile", "profile.toml"]):
        arguments = ["--batch", "32", "--device", "board.toml", "--ram", "88%", "--time-limit", "20s", *more]
        assert invoke(["solve", "net.onnx", *arguments, "-o", "plan.json", "--json", "solve.json"]) == 0
        found = json.loads(Path("solve.json").read_text(encoding="utf-8"))
        assert found["status"] in ("optimal", "within-gap")
        assert found["recomputes"] + found["page_ins"] > 0
        assert invoke(["run", "plan.json", "--data", "batch.npz", "--dump", "step.npz", "--json", "run.json"]) == 0
        ran = json.loads(Path("run.json").read_text(encoding="utf-8"))
        assert ran["bit_identical"] is True
        assert ran["arena_bytes"] <= ran["budget_bytes"]

    # the gradient of the last layer, by hand
    step = np.load("step.npz")
    hidden = np.tanh(np.tanh(x @ weights["fc0.weight"].T) @ weights["fc1.weight"].T)
    scores = np.exp(hidden @ weights["fc2.weight"].T)
    error = scores / scores.sum(axis=1, keepdims=True) - np.eye(4)[labels]
    assert step["fc2.weight.grad"] == pytest.approx(error.T @ hidden / 32, abs=1e-6)
    assert invoke(["show", "plan.json", "-o", "page.html"]) == 0
    assert invoke(["verify", "plan.json"]) == 0
    assert invoke(["grad", "net.onnx", "--batch", "32", "-o", "train.onnx"]) == 0
