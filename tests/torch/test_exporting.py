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
from poetopt.training.evaluate import Forward
from poetopt.util.errors import BackendUnavailableError, ModelError, OptionError, PlanError
from tests.support.autodiff.oracle import run as run_graph
from tests.support.later import later, uses_torch
from tests.support.torch.modules import image, labels, mixed, one_thread

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
@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float64"])
def test_other_types_keep_their_bits(kind: str) -> None:
    module = drawn(nn.BatchNorm1d(6)).to(getattr(torch, kind))
    target = copy.deepcopy(module)
    nn.init.zeros_(target.weight)
    arrays = {
        name: onnx.numpy_helper.to_array(
            onnx.helper.make_tensor(name, onnx.TensorProto.DataType.Value(kind.upper().replace("FLOAT64", "DOUBLE")),
                                    tensor.shape, tensor.view(torch.uint8).numpy().tobytes(), raw=True)
        )
        for name, tensor in module.state_dict().items() if "num_batches" not in name
    }  # fmt: skip
    po.torch.load(target, arrays)
    assert all(
        torch.equal(a, b) for a, b in zip(target.state_dict().values(), module.state_dict().values(), strict=True)
    )


@uses_torch
def test_what_does_not_fit_is_named_in_one_message_and_nothing_changes(exported: tuple[Path, Any, po.Model]) -> None:
    path, module, _ = exported
    target = copy.deepcopy(module)
    target.conv = nn.Conv2d(3, 8, 5)
    target.bn.double()
    target.more = nn.Linear(2, 2)
    del target.frozen
    before = state(target)
    with pytest.raises(ModelError) as raised:
        po.torch.load(target, path)
    said = str(raised.value)
    assert "missing there: conv.bias, more.weight, more.bias;" in said
    assert "conv.weight (8x3x3x3 instead of 8x3x5x5)" in said
    assert "bn.weight (float32 instead of float64)" in said
    assert "not in the module: frozen.weight, frozen.bias" in said
    assert state(target) == before
    partly = {name: parameter.detach().numpy() for name, parameter in module.named_parameters()}
    partly.pop("fc.bias")
    with pytest.raises(ModelError, match=r"missing there: fc\.bias; nothing was changed"):
        po.torch.load(module, partly)
    with pytest.raises(ModelError, match="not in the module: strange"):
        po.torch.load(module, {**partly, "fc.bias": np.zeros(5, np.float32), "strange": np.zeros(2)})
    untied = {"words.weight": np.zeros((128, 128), np.float32), "again.weight": np.ones((128, 128), np.float32)}
    with pytest.raises(ModelError, match=r"several values there: words\.weight and again\.weight"):
        po.torch.load(module, untied)


@uses_torch
def test_what_cannot_be_read_or_is_no_module_is_said(tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("no network")
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04cut")
    module = nn.Linear(2, 2)
    with pytest.raises(PlanError, match="no checkpoint in it"):
        po.torch.load(module, tmp_path)
    for trained in (tmp_path / "gone.onnx", tmp_path / "text.onnx", tmp_path / "cut.npz", 3):
        with pytest.raises(ModelError):
            po.torch.load(module, trained)
    with pytest.raises(ModelError, match=r"weight \(there it has no memory: device meta\)"):
        po.torch.load(nn.Linear(2, 2, device="meta"), {"weight": np.zeros((2, 2)), "bias": np.zeros(2)})
    with pytest.raises(ModelError, match=r"torch\.nn\.Module is needed here, not a str"):
        po.torch.load("module", {})


@uses_torch
def test_an_export_that_cannot_be_read_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch 2.13 does so with EmbeddingBag."""
    pytest.importorskip("onnxscript")
    from poetopt.torch import exporting

    traced = exporting._trace

    def incomplete(*asked: Any) -> onnx.ModelProto:
        model = traced(*asked)
        relu = next(node for node in model.graph.node if node.op_type == "Relu")
        relu.input[0] = "nobody's"
        return model

    monkeypatch.setattr(exporting, "_trace", incomplete)
    path = tmp_path / "net.onnx"
    path.write_bytes(b"of before")
    with pytest.raises(ModelError, match=r"^Sequential: .* \(node .*\"nobody's\", which .*provides\)\. Write"):
        po.torch.export(nn.Sequential(nn.Linear(3, 2), nn.ReLU()), torch.ones(2, 3), path)
    assert path.read_bytes() == b"of before"


@uses_torch
def test_exports_that_lose_something_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    from poetopt.torch import exporting
    from poetopt.torch.tensors import stored_in

    module, x = mixed(), image()
    traced = exporting._trace(import_module("torch"), module, (x,), None, ["image"], None)
    exporting._unify_names(traced, stored_in(module))
    unused = exporting._check_tensors(import_module("torch"), module, (x,), stored_in(module), traced)
    assert unused[0] == "aside.weight"
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
            exporting._check_tensors(import_module("torch"), module, (x,), stored_in(module), damaged)


@uses_torch
def test_what_cannot_be_exported_is_refused_and_nothing_is_written(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxscript")

    class Jumps(nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return x * 2 if x.sum() > 0 else x

    path = tmp_path / "net.onnx"
    with pytest.raises(ModelError, match="Jumps: torch can't export it"):
        po.torch.export(Jumps(), torch.zeros(2, 3), path)
    assert capfd.readouterr().err == ""
    with pytest.raises(OptionError, match="dynamic_batch=False"):
        po.torch.export(nn.Linear(3, 3), torch.zeros(1, 3), path)
    with pytest.raises(OptionError, match="input_names: 2 of them, and Linear has 1 inputs"):
        po.torch.export(nn.Linear(3, 3), torch.zeros(2, 3), path, input_names=["x", "y"], dynamic_batch=False)
    cumulative = nn.BatchNorm1d(3, momentum=None)
    with pytest.raises(ModelError, match="momentum=None"):
        po.torch.export(cumulative, torch.zeros(2, 3), path)
    assert not list(tmp_path.iterdir())


@uses_torch
@pytest.mark.parametrize("weighed", [False, True])
def test_label_smoothing_stays(tmp_path: Path, weighed: bool) -> None:
    pytest.importorskip("onnxscript")

    class Smoothed(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(6, 4)
            self.loss = nn.CrossEntropyLoss(torch.arange(1.0, 5.0) if weighed else None, label_smoothing=0.3)

        def forward(self, x: Any, y: Any) -> Any:
            return self.loss(self.fc(x), y)

    torch.manual_seed(0)
    module, x, y = Smoothed(), torch.randn(4, 6), torch.tensor([0, 1, -100, 3])
    before, drawn_next = state(module), torch.random.get_rng_state()
    po.torch.export(module, (x, y), tmp_path / "net.onnx", output_names=["loss"])
    assert state(module) == before
    assert torch.equal(torch.random.get_rng_state(), drawn_next)
    session = import_module("onnxruntime").InferenceSession(tmp_path / "net.onnx")
    fed = dict(zip([entry.name for entry in session.get_inputs()], (x.numpy(), y.numpy()), strict=True))
    assert session.run(["loss"], fed)[0] == pytest.approx(module(x, y).item(), rel=1e-5)


@uses_torch
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_probabilities_of_classes_are_labels(tmp_path: Path, smoothing: float, reduction: str) -> None:
    pytest.importorskip("onnxscript")

    class Soft(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Conv1d(3, 4, 1)
            self.loss = nn.CrossEntropyLoss(torch.arange(1.0, 5.0), label_smoothing=smoothing, reduction=reduction)

        def forward(self, x: Any, y: Any) -> Any:
            return self.loss(self.fc(x), y)

    given = torch.randn(2, 3, 5), torch.rand(2, 4, 5).softmax(1)
    model = po.torch.export(Soft(), given, tmp_path / "net.onnx", dynamic_batch=False)  # checked, gradients too
    assert model.training_graph(loss="none" if reduction != "none" else "mse").gradients


@uses_torch
def test_the_examples_batch_is_what_nobody_says(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    path = tmp_path / "net.onnx"
    po.torch.export(nn.Linear(4, 2), torch.randn(6, 4), path)
    for batch, wanted in ((None, 6), (3, 3)):
        loaded = po.load(path, batch=batch)
        assert isinstance(loaded, po.Model)
        assert loaded.graph.tensors[loaded.graph.inputs[0]].shape == (wanted, 4)
    other = onnx.load(path)
    next(entry for entry in other.metadata_props if entry.key == "poetopt.batch").value = "many"
    with pytest.raises(ModelError, match="Give its size with --batch N"):
        po.load(other)


@uses_torch
@pytest.mark.parametrize("mask", ["none", "bool", "float", "causal", "groups"])
def test_dropout_of_attention_is_written_out(tmp_path: Path, mask: str) -> None:
    """torch's exporter loses it; the check beside the module compares outputs and gradients in both modes."""
    pytest.importorskip("onnxscript")

    class Attention(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.own = nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            query, key = (y.unflatten(-1, (2, 4)).transpose(1, 2) for y in (self.own(x), x))
            given = {"bool": torch.ones(5, 5, dtype=torch.bool).tril(1), "float": torch.arange(25.0).view(5, 5) / 9}
            return nn.functional.scaled_dot_product_attention(
                query, key[:, :1] if mask == "groups" else key, key[:, :1] if mask == "groups" else key,
                attn_mask=given.get(mask), dropout_p=0.2 if self.training else 0.0, is_causal=mask == "causal",
                enable_gqa=mask == "groups",
            )  # fmt: skip

    model = po.torch.export(Attention(), torch.randn(3, 5, 8), tmp_path / "net.onnx")
    assert [operator.kind for operator in model.graph.operators].count("Dropout") == 1


@uses_torch
def test_draws_that_the_exporter_loses_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxscript")
    from poetopt.torch import exporting

    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
    asked = layer, torch.randn(3, 5, 8), tmp_path / "net.onnx"
    kinds = [operator.kind for operator in po.torch.export(*asked).graph.operators]
    assert kinds.count("Dropout") == 4
    asked[2].unlink()
    with monkeypatch.context() as alone:
        alone.setattr(exporting, "_exact_functions", nullcontext)
        with pytest.raises(ModelError, match=r"lost 1 of 4 random draws \(such as Dropout\) in self_attn. Set"):
            po.torch.export(*asked)
    assert not list(tmp_path.iterdir())


@uses_torch
def test_dropout_in_place_and_what_torch_has_no_gradient_of(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    layers = nn.Linear(8, 8), nn.Hardswish(), nn.Dropout(0.3, inplace=True), nn.Linear(8, 3)
    model = po.torch.export(nn.Sequential(*layers), torch.randn(4, 8), tmp_path / "net.onnx")
    assert [operator.kind for operator in model.graph.operators].count("Dropout") == 1
    wrong = nn.Sequential(layers[0], nn.ReLU(), *layers[2:])
    with pytest.raises(ModelError, match=r"torch can't differentiate it \(one of the variables .* in place"):
        po.torch.export(wrong, torch.randn(4, 8), tmp_path / "wrong.onnx")


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

    traced = exporting._trace

    def other(*asked: Any) -> onnx.ModelProto:
        model = traced(*asked)
        for node in model.graph.node:
            if node.op_type == "Relu":
                node.op_type = kind
        return model

    monkeypatch.setattr(exporting, "_trace", other)
    module = nn.Sequential(nn.Linear(3, 2), Behind())
    path = tmp_path / "net.onnx"
    path.write_bytes(b"of before")
    asked: dict[str, Any] = {"output_names": ["y"]}
    with pytest.raises(ModelError, match=rf"the file's {what} differs from torch's by "):
        po.torch.export(module, torch.ones(2, 3), path, **asked)
    assert path.read_bytes() == b"of before"
    po.torch.export(module, torch.ones(2, 3), path, check=False, **asked)


@uses_torch
@pytest.mark.parametrize("behind", ["Dropout2d", "Det"])
def test_outputs_are_compared_with_channels_dropped_or_without_a_gradient_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind: str
) -> None:
    pytest.importorskip("onnxscript")
    from poetopt.torch import exporting

    class Det(nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return torch.linalg.det(x)

    module = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Dropout2d() if behind == "Dropout2d" else Det())
    path, x = tmp_path / "net.onnx", torch.randn(2, 4, 3, 3)
    po.torch.export(module, x, path)
    traced = exporting._trace

    def other(*asked: Any) -> onnx.ModelProto:
        model = traced(*asked)
        (node,) = (node for node in model.graph.node if node.op_type == "Relu")
        node.op_type = "Sigmoid"
        return model

    monkeypatch.setattr(exporting, "_trace", other)
    with pytest.raises(ModelError, match=r"the file's output \w+ differs from torch's by "):
        po.torch.export(module, x, path)


@uses_torch
@pytest.mark.parametrize(("dims", "shape"), [(1, (3, 4, 5)), (1, (4, 5)), (2, (3, 4, 5, 2)), (3, (3, 4, 5, 2, 2))])
def test_whole_channels_are_dropped_by_a_dropout(tmp_path: Path, dims: int, shape: tuple[int, ...]) -> None:
    pytest.importorskip("onnxscript")
    width = shape[-1]
    module = nn.Sequential(nn.Linear(width, width), getattr(nn, f"Dropout{dims}d")(0.25))
    x = torch.randn(shape)
    model = po.torch.export(module, x, tmp_path / "net.onnx", dynamic_batch=len(shape) > 2)
    (node,) = (node for op in model.graph.operators for node in op.nodes if node.op_type == "Dropout")
    channels = shape[: len(shape) - dims]
    assert model.graph.tensors[node.outputs[0]].shape == (*channels, *[1] * dims)
    assert module.training
    assert module[1].training
    step = model.training_graph(loss="mse")
    feeds = {name: x.numpy() for name in model.graph.inputs}
    found = run_graph(step, {**feeds, step.added_inputs[0]: x.numpy()}, model.graph.outputs)[model.graph.outputs[0]]
    shares = found / module.eval()(x).detach().numpy()
    of_each = shares.reshape(*channels, -1)
    assert np.allclose(of_each, of_each[..., :1], atol=1e-4)
    assert set(np.unique(shares.round(3))) <= {np.float32(0), np.float32(1.333)}
    kinds = {node.op_type for operator in Forward.of(step).graph.operators for node in operator.nodes}
    assert "RandomUniform" not in kinds
    evaluated = po.torch.export(module, x, tmp_path / "net.onnx", dynamic_batch=len(shape) > 2)
    assert "Mul" not in {operator.kind for operator in evaluated.graph.operators}


@uses_torch
@pytest.mark.parametrize("kind", ["statistics", "branch", "gradients", "outputs", "fails"])
def test_a_module_that_evaluates_otherwise_than_its_file_is_refused(tmp_path: Path, kind: str) -> None:
    """A file is evaluated with the running statistics of BatchNormalization and without Dropout, and as it is else."""
    pytest.importorskip("onnxscript")

    class Other(nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            if self.training:
                return (x, 2 * x) if kind == "outputs" else 2 * x
            if kind == "fails":
                raise KeyError("evaluation")
            return 2 * x.detach() + 0 * x if kind == "gradients" else x

    other = nn.InstanceNorm2d(4, track_running_stats=True) if kind == "statistics" else Other()
    module = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Dropout(0.2), other)
    module[1].eval()
    path, x = tmp_path / "net.onnx", torch.randn(3, 3, 5, 5)
    with pytest.raises(ModelError, match=r"in evaluation mode.*check=False to export without"):
        po.torch.export(module, x, path)
    assert not path.exists()
    assert [part.training for part in module.modules()] == [True, True, False, True, True]
    po.torch.export(module, x, path, check=False)
    if kind not in ("fails", "gradients"):
        po.torch.export(module.eval(), x, path)


@uses_torch
def test_a_forward_of_any_number_of_arguments_leaves_the_batch_open(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")

    class Sums(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 2)

        def forward(self, x: Any, *more: Any) -> Any:
            return self.fc(sum(more, x))

    po.torch.export(Sums(), tuple(torch.randn(3, 4, 3)), tmp_path / "net.onnx")
    model = po.load(tmp_path / "net.onnx", batch=7)
    assert isinstance(model, po.Model)
    assert [model.graph.tensors[name].shape for name in model.graph.inputs] == [(7, 3)] * 3


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
    message = f"6 {missing} is not installed. Install it with: pip install 'poetopt[torch]'"
    assert run.stdout.splitlines()[0] == message, run.stderr


def test_the_package_does_not_import_torch() -> None:
    code = "import sys, poetopt as po; po.torch.export; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
    assert issubclass(BackendUnavailableError, ImportError)


@uses_torch
@pytest.mark.parametrize("how", ["detach", "no_grad"])
def test_what_no_gradient_reaches_is_frozen_in_the_file_too(tmp_path: Path, how: str) -> None:
    pytest.importorskip("onnxscript")

    class Taught(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.teacher, self.pupil = nn.Linear(6, 5), nn.Linear(6, 5)

        def forward(self, x: Any) -> Any:
            with torch.set_grad_enabled(how != "no_grad"):
                taught = self.teacher(x)
            return ((self.pupil(x) - taught.detach()) ** 2).mean()

    path = tmp_path / "net.onnx"
    model = po.torch.export(Taught(), torch.randn(4, 6), path)
    assert set(model.graph.trained) == {"pupil.weight", "pupil.bias"}
    read = po.load(path, batch=4)
    assert isinstance(read, po.Model)
    assert set(read.graph.trained) == {"pupil.weight", "pupil.bias"}


@uses_torch
def test_a_buffer_that_forward_changes_is_named(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")

    class Averaging(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 5)
            self.register_buffer("mu", torch.zeros(5))

        def forward(self, x: Any) -> Any:
            y = self.layer(x)
            loss = ((y - self.mu) ** 2).mean()
            self.mu.mul_(0.9).add_(0.1 * y.detach().mean(0))
            return loss

    with pytest.raises(ModelError, match=r"forward changes the buffer mu.*check=False"):
        po.torch.export(Averaging(), torch.randn(4, 6), tmp_path / "net.onnx")


@uses_torch
def test_a_row_that_is_masked_as_a_whole_has_torchs_gradients(tmp_path: Path) -> None:
    """Its softmax is NaN, and nothing that is read depends on it."""
    pytest.importorskip("onnxscript")

    class Masked(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 5)

        def forward(self, x: Any, mask: Any) -> Any:
            shares = torch.softmax(self.layer(x).masked_fill(mask, float("-inf")), 1)
            return torch.where(mask.all(1, keepdim=True), torch.zeros(()), shares).pow(2).sum()

    module, x, mask = Masked(), torch.randn(4, 6), torch.rand(4, 5) > 0.7
    mask[1] = True
    po.torch.export(module, (x, mask), tmp_path / "net.onnx")  # its check compares the gradients


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


@uses_torch
def test_what_is_scattered_without_what_was_there_is_refused(tmp_path: Path) -> None:
    """On an example without duplicates the numbers agree."""
    pytest.importorskip("onnxscript")

    class Scattered(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 5)

        def forward(self, x: Any, indices: Any) -> Any:
            y = torch.ones(4, 5).scatter_reduce(1, indices, self.layer(x), "mean", include_self=False)
            return y.pow(2).sum()

    indices = torch.stack([torch.randperm(5) for _ in range(4)])
    with pytest.raises(ModelError, match="include_self=False"):
        po.torch.export(Scattered(), (torch.randn(4, 6), indices), tmp_path / "net.onnx", dynamic_batch=False)
