"""A module as ONNX and back: nothing is lost, what trains it is torch's mathematics, and every bit comes back."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import poetopt as po
from poetopt.util.errors import BackendUnavailableError, ModelError
from tests.later import later, uses_torch
from tests.pytorch.modules import image, labels, mixed, one_thread

torch = later("torch")
nn = later("torch.nn")
KEPT = ("trained.onnx", "kept")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, po.Model]:
    """The file of `mixed`, the module, and the model that was read."""
    pytest.importorskip("onnxscript")
    path, module = tmp_path_factory.mktemp("torch") / "mixed.onnx", mixed()
    before = state(module)
    with one_thread():
        model = po.torch.export(module, image(), path, input_names=["image"], output_names=["logits"])
    assert state(module) == before
    return path, module, model


@pytest.fixture(autouse=True)
def alone(request: pytest.FixtureRequest) -> Iterator[None]:
    """torch on one thread."""
    with one_thread() if request.node.get_closest_marker("torch") else nullcontext():
        yield


def state(module: Any) -> dict[str, bytes]:
    """The bits of all that a module saves."""
    return {name: tensor.numpy().tobytes() for name, tensor in module.state_dict().items()}


def drawn(module: Any) -> Any:
    """The module with every float that it saves drawn anew, oddities of floats included."""
    for name, tensor in module.state_dict().items():
        if tensor.dtype.is_floating_point:
            torch.nn.init.uniform_(tensor, 0.1, 1.0)
            if name == "fc.bias":
                tensor[:4] = torch.tensor([float("nan"), -0.0, float("inf"), 1e-42])
    return module


@uses_torch
def test_names_modes_and_bits_are_the_modules(exported: tuple[Path, Any, po.Model]) -> None:
    path, module, model = exported
    wanted = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    assert set(model.graph.trained) == wanted
    file = onnx.load(path)
    values = {tensor.name: numpy_helper.to_array(tensor).tobytes() for tensor in file.graph.initializer}
    left_out = {"again.weight", "aside.weight", "aside.bias", "bn.num_batches_tracked", "frozen.num_batches_tracked"}
    for name, content in state(module).items():
        assert values.get(name) == (None if name in left_out else content), name
    assert {"conv/Conv", "bn/BatchNormalization", "Relu", "fc/Gemm"} <= {node.name for node in file.graph.node}
    norms = {node.input[1]: node for node in file.graph.node if node.op_type == "BatchNormalization"}
    settings = {name: {a.name: a.i or a.f for a in node.attribute} for name, node in norms.items()}
    assert settings["bn.weight"]["training_mode"] == 1
    assert settings["bn.weight"]["momentum"] == pytest.approx(0.8)
    assert not settings["frozen.weight"].get("training_mode")
    assert [operator.kind for operator in model.graph.operators].count("Dropout") == 1
    assert model.graph.tensors["image"].shape[0] == 4
    other = po.load(path, batch=7)
    assert isinstance(other, po.Model)
    assert other.graph.tensors["image"].shape[0] == 7


@uses_torch
def test_what_a_plan_trains_goes_back_and_is_torchs(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    module = mixed()
    module.drop.eval()
    nn.init.normal_(module.own.bias)
    twin = copy.deepcopy(module)
    model = po.torch.export(module, image(), tmp_path / "net.onnx", input_names=["image"], dynamic_batch=False)
    report = po.solve(model.differentiate().cost("a72"), ram="100%")
    data = {"image": image().numpy(), "labels": labels().numpy()}
    ended = po.train(report, 3, 0.05, data=data, dump=tmp_path / "end.npz")
    optimizer = torch.optim.SGD(twin.parameters(), 0.05)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(twin(image()), labels())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert ended.losses == pytest.approx(losses, rel=1e-4)
    assert po.torch.load(module, ended) is module
    for (name, found), wanted in zip(module.state_dict().items(), twin.state_dict().values(), strict=True):
        if name not in ("bn.num_batches_tracked", "bn.running_var"):  # the latter's variance is the biased one
            assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-5), name
    step = model.differentiate(loss="cross-entropy", optimizer="adam").cost("a72")
    with po.Trainer(po.solve(step, ram="100%"), lr=0.01) as trainer:
        trainer.step(data)
        trainer.export(tmp_path / "trained.onnx")
        trainer.save(tmp_path / "kept")
        values = {name: np.array(array) for name, array in trainer.values().items()}
        found = [state(po.torch.load(mixed(), source)) for source in (trainer, *map(tmp_path.joinpath, KEPT))]
    assert found[0] == found[1] == found[2]
    assert all(found[0][name] == values[name].tobytes() for name in ("fc.bias", "bn.running_mean", "words.weight"))
    assert state(po.torch.load(mixed(), tmp_path / "end.npz"))["conv.weight"] == state(module)["conv.weight"]


@uses_torch
def test_every_bit_comes_back(exported: tuple[Path, Any, po.Model], tmp_path: Path) -> None:
    _, module, _ = exported
    source = drawn(copy.deepcopy(module))
    again = onnx.load(exported[0])
    for tensor in again.graph.initializer:
        if tensor.name in source.state_dict():
            tensor.CopyFrom(numpy_helper.from_array(source.state_dict()[tensor.name].numpy(), tensor.name))
    onnx.save(again, tmp_path / "trained.onnx")
    for trained in (tmp_path / "trained.onnx", again):
        target = po.torch.load(copy.deepcopy(module), trained)
        assert target.again.weight is target.words.weight
        for name, content in state(source).items():
            assert (state(target)[name] == content) is not name.startswith("aside."), name


@uses_torch
def test_exports_that_lose_something_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    from poetopt.torch import exporting
    from poetopt.torch.tensors import stored_in

    module, x = mixed(), image()
    traced = exporting._traced(import_module("torch"), module, (x,), None, ["image"], None)
    exporting._name(traced, stored_in(module))
    assert exporting._check(import_module("torch"), module, (x,), stored_in(module), traced)[0] == "aside.weight"
    for change, said in {
        "rename": "conv.weight is missing",
        "value": "fc.bias has other values",
        "type": "fc.bias is float64 instead of float32",
        "twice": "words.weight and again.weight are one tensor in the module and 2 in the file",
    }.items():
        damaged = onnx.ModelProto()
        damaged.CopyFrom(traced)
        weights = {tensor.name: tensor for tensor in damaged.graph.initializer}
        if change == "rename":
            weights["conv.weight"].name = "onnx::Conv_26"
        elif change == "twice":
            damaged.graph.initializer.add().CopyFrom(weights["words.weight"])
            damaged.graph.initializer[-1].name = "again.weight"
        else:
            array = numpy_helper.to_array(weights["fc.bias"]).astype(np.float64 if change == "type" else np.float32)
            weights["fc.bias"].CopyFrom(numpy_helper.from_array(array + (change == "value"), "fc.bias"))
        with pytest.raises(ModelError, match=said):
            exporting._check(import_module("torch"), module, (x,), stored_in(module), damaged)


@uses_torch
@pytest.mark.parametrize(("kind", "what"), [("Sigmoid", "output y"), ("Identity", "gradient of 0.weight")])
def test_a_file_that_computes_something_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, what: str
) -> None:
    """As torch's exporter has written some functions; what is detached differs in its gradient alone."""
    pytest.importorskip("onnxscript")
    from poetopt.torch import exporting

    class Behind(nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return x.detach() + 0 * x if kind == "Identity" else torch.relu(x)

    traced = exporting._traced

    def other(*asked: Any) -> onnx.ModelProto:
        model = traced(*asked)
        for node in model.graph.node:
            if node.op_type == "Relu":
                node.op_type = kind
        return model

    monkeypatch.setattr(exporting, "_traced", other)
    module = nn.Sequential(nn.Linear(3, 2), Behind())
    path = tmp_path / "net.onnx"
    path.write_bytes(b"of before")
    asked: dict[str, Any] = {"output_names": ["y"]}
    with pytest.raises(ModelError, match=rf"the file's {what} differs from torch's by "):
        po.torch.export(module, torch.ones(2, 3), path, **asked)
    assert path.read_bytes() == b"of before"
    po.torch.export(module, torch.ones(2, 3), path, check=False, **asked)


@pytest.mark.parametrize("missing", ["torch", "onnxscript"])
def test_without_torch_one_message_says_how_to_get_it(missing: str) -> None:
    code = f"""if True:
        import sys
        sys.modules["torch"] = sys.modules["onnxscript"] = None
        if "{missing}" == "onnxscript":
            sys.modules["torch"] = type(sys)("torch")
        import poetopt as po
        for call in (lambda: po.torch.export(None, None, "net.onnx"), lambda: po.torch.load(None, {{}})):
            try:
                call()
            except po.PoetError as error:
                print(error.exit_code, error)
    """
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    message = f"6 {missing} is not installed; install it with: pip install 'poetopt[torch]'"
    assert run.stdout.splitlines()[0] == message, run.stderr


def test_the_package_does_not_import_torch() -> None:
    code = "import sys, poetopt as po; po.torch.export; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
    assert issubclass(BackendUnavailableError, ImportError)


@uses_torch
@pytest.mark.parametrize("kind", ["plain", "weighed", "logarithm"])
def test_logits_of_any_size_have_torchs_losses(tmp_path: Path, kind: str) -> None:
    """The exporter takes the logarithm of a sigmoid: it is infinite from logits of some hundred on."""
    pytest.importorskip("onnxscript")

    class Loss(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 5)
            weights = {"pos_weight": torch.rand(5) + 1, "weight": torch.rand(5)} if kind == "weighed" else {}
            self.loss = nn.BCEWithLogitsLoss(**weights)

        def forward(self, x: Any, labels: Any) -> Any:
            y = self.layer(x)
            return -(labels * nn.functional.logsigmoid(y)).mean() if kind == "logarithm" else self.loss(y, labels)

    module, path = Loss(), tmp_path / "net.onnx"
    po.torch.export(module, (torch.randn(4, 6), torch.rand(4, 5)), path)
    x, labels = 1e4 * torch.randn(4, 6), torch.rand(4, 5)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]
    found = session.run(None, dict(zip(names, (x.numpy(), labels.numpy()), strict=True)))
    assert np.allclose(found[0], module(x, labels).detach().numpy(), rtol=1e-5)
