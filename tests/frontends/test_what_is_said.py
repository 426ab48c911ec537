"""What an exporter did to a module is said, with what to ask of it instead."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from poetopt.frontends.onnx_file import load_onnx
from poetopt.frontends.origins import EXPORT
from poetopt.util.errors import ModelError
from poetopt.util.notes import important
from tests.frontends.kinds import kind, node
from tests.frontends.support import floats
from tests.frontends.test_torch_exports import export
from tests.later import ALL_USE_TORCH, later

torch = later("torch")
pytestmark = ALL_USE_TORCH
nn = later("torch.nn")


def normalized() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))


def lora(merged: bool) -> Any:
    """A dense layer with a low-rank matrix beside it, or added to its weight."""

    class LoRA(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.base, self.merged = nn.Linear(6, 5), merged
            self.lora_a, self.lora_b = (nn.Parameter(torch.randn(shape)) for shape in ((2, 6), (5, 2)))

        def forward(self, x: Any) -> Any:
            if self.merged:
                return nn.functional.linear(x, self.base.weight + self.lora_b @ self.lora_a, self.base.bias)
            return self.base(x) + x @ self.lora_a.T @ self.lora_b.T

    return LoRA()


def said(graph: Any) -> str:
    return "\n".join(important(graph.notes))


def test_normalization_that_the_older_exporter_merged_is_said() -> None:
    merged = load_onnx(export(normalized(), torch.zeros(2, 3, 8, 8)))
    assert len(merged.trained) == 4
    assert "merged BatchNormalization into 1 convolution (onnx::Conv_" in said(merged)
    assert EXPORT in said(merged)
    apart = load_onnx(export(normalized(), torch.zeros(2, 3, 8, 8), training=True))
    assert len(apart.trained) == 6
    assert "merged" not in said(apart)


@pytest.mark.parametrize(
    ("names", "merged"),
    [
        (("onnx::Conv_55", "onnx::Conv_56"), True),
        (("54", "55"), True),
        (("ConvBnFusion_W_conv.weight", "ConvBnFusion_BN_B_bn.bias"), True),
        (("call/conv/Conv2D_weights_fused_bn", "call/conv/Conv2D_bias_fused_bn"), True),
        (("onnx::Conv_55", "conv.bias"), False),
        (("conv.weight", "conv.bias"), False),
    ],
)
def test_names_of_merged_convolutions(names: tuple[str, str], merged: bool) -> None:
    weights = {names[0]: floats(2, 3, 1, 1), names[1]: floats(2)}
    graph = load_onnx(kind([node("Conv", f"x {names[0]} {names[1]}", "y")], [1, 3, 4, 4], weights).model())
    assert set(graph.trained) == set(names)
    assert ("merged BatchNormalization into 1 convolution" in said(graph)) is merged
    assert (EXPORT in said(graph)) is (merged and "Conv2D" not in names[0] and "ConvBn" not in names[0])


@pytest.mark.parametrize("merged", [False, True])
def test_parameters_that_the_newer_exporter_folded_away_are_named(merged: bool) -> None:
    pytest.importorskip("onnxscript")
    model = export(lora(merged), torch.zeros(3, 6), dynamo=True, external_data=False)
    if merged:
        with pytest.raises(ModelError, match="matches no weight of the file: the exporter folded lora_a, lora_b into"):
            load_onnx(model, train="*lora*")
        with pytest.raises(ModelError) as raised:
            load_onnx(model, train="lora_a")
        assert EXPORT in str(raised.value)
    else:
        assert len(load_onnx(model, train="*lora*").trained) == 2
    whole = export(lora(merged), torch.zeros(3, 6), dynamo=True, external_data=False, optimize=False)
    assert set(load_onnx(whole, train="*lora*").trained) == {"lora_a", "lora_b"}


def test_parameters_that_the_older_exporter_renamed_are_named() -> None:
    with pytest.raises(ModelError, match="the exporter folded parameters into onnx::MatMul_") as raised:
        load_onnx(export(lora(merged=False), torch.zeros(3, 6)), train="*lora*")
    assert EXPORT in str(raised.value)
    kept = export(lora(merged=False), torch.zeros(3, 6), training=True)
    assert set(load_onnx(kept, train="*lora*").trained) == {"lora_a", "lora_b"}
    rows = load_onnx(export(nn.Sequential(nn.Linear(6, 5)), torch.zeros(2, 3, 6)), train="0.*")
    assert rows.trained == ("0.bias",)
    assert "1 weight has a name of the exporter's, and --train left it out (onnx::MatMul_" in said(rows)


def test_the_last_layer_is_the_first_hint() -> None:
    nodes = [
        node("MatMul", "x body.weight", "a"), node("Add", "a body.bias", "b"), node("Relu", "b", "c"),
        node("MatMul", "c classifier.weight", "d"), node("Add", "d classifier.bias", "e"), node("Softmax", "e", "y"),
    ]  # fmt: skip
    weights = {"body.weight": floats(4, 5), "body.bias": floats(5), "classifier.weight": floats(5, 3)}
    model = kind(nodes, [2, 4], {**weights, "classifier.bias": floats(3), "unread": np.zeros(3, np.float32)}).model()
    with pytest.raises(
        ModelError,
        match=r"'fc\.\*' matches no weight; the last layer's are classifier.weight, classifier.bias; the closest",
    ):
        load_onnx(model, train="fc.*")
