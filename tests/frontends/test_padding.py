"""Dilated windows with automatic pads: explicit ones that mean the same, or one clear refusal."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx.helper import make_node

from poetopt.autodiff import differentiate
from poetopt.frontends.onnx_file import load_onnx
from poetopt.util.errors import ModelError
from tests.autodiff.oracle import Array, batch, run
from tests.frontends.support import floats, model_of
from tests.frontends.support import run as run_model

W = np.random.default_rng(0).standard_normal((2, 2, 4, 3)).astype(np.float32)
PADS = {"SAME_UPPER": [4, 2, 5, 2], "SAME_LOWER": [5, 2, 4, 2]}


def gradients(**padding: Any) -> dict[str, Array]:
    node = make_node("Conv", ["x", "w"], ["y"], dilations=[3, 2], **padding)
    step = differentiate(load_onnx(model_of([node], {"x": [1, 2, 9, 7]}, ["y"], {"w": W})), loss="mse")
    return run(step, batch(step, 0))


@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER"])
def test_a_dilated_convolution(auto: str) -> None:
    found, wanted = gradients(auto_pad=auto), gradients(pads=PADS[auto])
    assert found["y"].shape == (1, 2, 9, 7)
    assert all(found[name].tobytes() == want.tobytes() for name, want in wanted.items())


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
def test_torch_pads_alike() -> None:
    torch = pytest.importorskip("torch")
    node = make_node("Conv", ["x", "w"], ["y"], auto_pad="SAME_UPPER", dilations=[3, 2])
    step = differentiate(load_onnx(model_of([node], {"x": [1, 2, 9, 7]}, ["y"], {"w": W})), loss="mse")
    feeds = batch(step, 0)
    wanted = torch.nn.functional.conv2d(
        torch.from_numpy(feeds["x"]), torch.from_numpy(W), padding="same", dilation=(3, 2)
    )
    assert np.allclose(run(step, feeds)["y"], wanted.numpy(), atol=1e-4)


@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER"])
def test_padding_of_the_output(auto: str) -> None:
    def model(*added: int) -> onnx.ModelProto:
        settings: dict[str, Any] = {"output_padding": list(added)} if added else {}
        node = make_node("ConvTranspose", ["x", "w"], ["y"], "up", auto_pad=auto, strides=[3, 2], **settings)
        return model_of([node], {"x": [1, 2, 5, 4]}, ["y"], {"w": W})

    with pytest.raises(
        ModelError, match=rf"'up' \(ConvTranspose, opset 18\): auto_pad {auto} with output_padding \[1, 0\]"
    ):
        load_onnx(model(1, 0))
    for allowed in (model(), model(0, 0)):
        graph, feeds = load_onnx(allowed), {"x": floats(1, 2, 5, 4)}
        assert run(graph, feeds)["y"].tobytes() == run_model(allowed, feeds)[0].tobytes()
        assert run(graph, feeds)["y"].shape == graph.tensors["y"].shape


@pytest.mark.parametrize(("op", "kernel"), [("Conv", None), ("MaxPool", [3, 3])])
def test_strides_are_refused(op: str, kernel: list[int] | None) -> None:
    read = ["x", "w"] if op == "Conv" else ["h"]
    settings: dict[str, Any] = {"kernel_shape": kernel} if kernel else {}
    node = make_node(op, read, ["y"], auto_pad="SAME_UPPER", strides=[2, 1], dilations=[2, 2], **settings)
    before = [] if op == "Conv" else [make_node("Conv", ["x", "w"], ["h"])]
    with pytest.raises(ModelError, match=rf"\({op}, opset 18\): auto_pad SAME_UPPER.*with explicit pads"):
        load_onnx(model_of([*before, node], {"x": [1, 2, 9, 7]}, ["y"], {"w": W}))
