"""LoRA's pairs, added and merged; weights that onnxruntime's quantizer makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime as ort
import onnxruntime.quantization
import pytest
from onnx import numpy_helper

import poetopt as po
from benchmarks.language import Llama, llama
from poetopt.autodiff import differentiate, linear_loss
from poetopt.frontends.onnx_file import load_onnx
from poetopt.util.errors import ModelError

if TYPE_CHECKING:
    from pathlib import Path

SMALL = Llama(2, 64, 4, 2, 96, 300)
IDS = np.arange(16)[None] * 7


def network() -> onnx.ModelProto:
    return llama(SMALL, 16, rank=0)


def scores(model: onnx.ModelProto) -> Any:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: IDS})[0]


def learned(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same with numbers in each B."""
    draw = np.random.default_rng(0)
    for one in model.graph.initializer:
        if "lora_B" in one.name:
            value = draw.standard_normal(tuple(one.dims), np.float32) / 8
            one.CopyFrom(numpy_helper.from_array(value, one.name))
    return model


def test_pairs_change_nothing_at_first_and_are_trained_alone(tmp_path: Path) -> None:
    made = po.lora(network(), rank=4, out=tmp_path / "net.onnx")
    np.testing.assert_array_equal(scores(made), scores(network()))
    names = [f"model.layers.{k}.{x}_proj.lora_{ab}.weight" for k in range(2) for x in "qv" for ab in "AB"]
    graph = load_onnx(tmp_path / "net.onnx")
    assert list(graph.trained) == names
    assert graph.tensors[names[0]].shape == (64, 4)
    assert graph.tensors[names[3]].shape == (4, 32)
    assert list(differentiate(graph, loss="cross-entropy").gradients) == names


@pytest.mark.parametrize("alpha", [None, 12.0])
def test_merged_weights_are_those_with_their_pairs(alpha: float | None) -> None:
    adapted = learned(po.lora(network(), 4, ["*.q_proj", "*down_proj.weight", "logits"], alpha=alpha))
    merged = po.merge_lora(adapted)
    assert np.abs(scores(adapted) - scores(network())).max() > 0.1
    np.testing.assert_allclose(scores(merged), scores(adapted), rtol=1e-4, atol=1e-4)
    assert not any("lora" in one.name for one in merged.graph.initializer)
    assert len(merged.graph.node) <= len(network().graph.node)
    assert len(load_onnx(merged).trained) > 8  # all is trained again


@pytest.mark.parametrize(("kind", "share", "apart"), [("int4", 0.17, 0.6), ("int8", 0.285, 0.05)])
def test_a_quantized_network_is_near_and_small(
    kind: str, share: float, apart: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnx_ir")
    net = llama(Llama(2, 64, 4, 2, 96, 3000), 16, rank=0)
    made = po.lora(po.quantize(net, kind), 4)
    small = sum(len(one.raw_data) for one in made.graph.initializer if "lora" not in one.name)
    assert small < share * sum(len(one.raw_data) for one in net.graph.initializer)
    gap = scores(made) - scores(net)
    assert np.sqrt((gap**2).mean()) < apart * scores(net).std()
    monkeypatch.setattr(linear_loss, "CLASSES", 512)
    step = differentiate(load_onnx(made), loss="cross-entropy")
    held = sum(step.tensors[name].nbytes for name in step.values if "lora" not in name)
    assert held < 1.1 * small  # the tied table once, and no weight as floats
    with pytest.raises(ModelError, match="is quantized, and can't take up its pair"):
        po.merge_lora(made)
