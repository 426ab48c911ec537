"""LoRA's pairs, added and merged; weights that onnxruntime's quantizer makes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime as ort
import onnxruntime.quantization
import pytest
from onnx import helper, numpy_helper

import poetopt as po
from benchmarks.language import Llama, llama
from poetopt.autodiff import differentiate, linear_loss
from poetopt.frontends.onnx_file import load_onnx
from poetopt.util.errors import BackendUnavailableError, ModelError, OptionError
from tests.support.frontends import model_of

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


def test_pairs_of_a_layer_with_a_bias_are_merged_into_its_weight() -> None:
    nodes = [helper.make_node("Gemm", ["x", "w", "c"], ["y"], name="layer", transB=1, alpha=0.5)]
    draw = np.random.default_rng(0)
    stored = {"w": draw.standard_normal((3, 16), np.float32), "c": np.ones(3, np.float32)}
    adapted = learned(po.lora(model_of(nodes, {"x": [1, 16]}, ["y"], stored), 2, "layer"))
    merged = po.merge_lora(adapted)
    x = draw.standard_normal((1, 16), np.float32)
    mine, theirs = (
        ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
        for m in (adapted, merged)
    )
    np.testing.assert_allclose(mine, theirs, rtol=1e-5)
    assert [node.op_type for node in merged.graph.node] == ["Gemm", "Identity"]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"targets": "*k_porj"}, r"'\*k_porj' match no product with a stored matrix.*k_proj"),
        ({"targets": " , "}, "no pattern"),
        ({"rank": 0}, "rank 0"),
        ({"alpha": 0.0}, "alpha 0"),
        ({"alpha": 1e40}, "float32's range"),
    ],
)
def test_what_says_nothing_is_named(options: dict[str, Any], what: str) -> None:
    with pytest.raises(OptionError, match=what):
        po.lora(network(), **options)


def test_a_weight_of_two_products_has_a_pair_beside_each() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("MatMul", ["a", "w"], ["y"])]
    stored = {"w": np.random.default_rng(0).standard_normal((8, 8), np.float32)}
    adapted = learned(po.lora(model_of(nodes, {"x": [1, 8]}, ["y"], stored), 2, "w"))
    x = np.random.default_rng(1).standard_normal((1, 8), np.float32)
    mine, theirs = (
        ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
        for m in (adapted, po.merge_lora(adapted))
    )
    np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)
    with pytest.raises(ModelError, match="adapters already"):
        po.lora(adapted, 2, "w")


def test_weights_in_a_file_beside_the_model_are_not_overwritten(tmp_path: Path) -> None:
    path, beside = tmp_path / "net.onnx", tmp_path / "net.bin"
    onnx.save_model(network(), path, save_as_external_data=True, location=beside.name, size_threshold=100)
    before = beside.read_bytes()
    with pytest.raises(OptionError, match="it has weights of"):
        po.lora(path, out=beside)
    assert beside.read_bytes() == before


def test_a_network_without_pairs_has_nothing_to_merge() -> None:
    with pytest.raises(ModelError, match="no product with a stored matrix has a LoRA adapter"):
        po.merge_lora(network())


# --- quantized --------------------------------------------------------------------------------------------------------


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
    with pytest.raises(ModelError, match="is quantized, and can't hold its adapter"):
        po.merge_lora(made)


@pytest.mark.parametrize(("options", "what"), [({"kind": "int5"}, "int4 or int8"), ({"block": 24}, "must be one of")])
def test_other_kinds_and_blocks_are_refused(options: dict[str, Any], what: str) -> None:
    with pytest.raises(OptionError, match=what):
        po.quantize(network(), **options)


def test_what_the_quantizer_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "onnxruntime.quantization.matmul_nbits_quantizer", raising=False)
    monkeypatch.delattr(onnxruntime.quantization, "matmul_nbits_quantizer", raising=False)
    monkeypatch.setitem(sys.modules, "onnx_ir", None)
    with pytest.raises(BackendUnavailableError, match=r"poetopt\[quantize\]"):
        po.quantize(network())
