"""`po.fit`: a module trained in one call, and one message for what it can't take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import poetopt as po
from poetopt.torch.fitting import in_python
from poetopt.util.errors import ModelError, OptionError
from tests.support.later import later, uses_torch

torch = later("torch")
nn = later("torch.nn")


def rows() -> tuple[Any, Any]:
    x = torch.randn(192, 8, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()


def net() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3))


def right(module: Any, x: Any, labels: Any) -> float:
    with torch.no_grad():
        return float((module.eval()(x).argmax(1) == labels).float().mean())


@uses_torch
@pytest.mark.parametrize("given", ["tensors", "arrays", "loader"])
def test_a_module_in_one_call(given: str) -> None:
    pytest.importorskip("onnxscript")
    x, labels = rows()
    sets = [(x[:144], labels[:144]), (x[144:], labels[144:])]
    if given == "arrays":
        sets = [tuple(part.numpy() for part in one) for one in sets]
    if given == "loader":
        from torch.utils.data import DataLoader, TensorDataset

        sets = [DataLoader(TensorDataset(*one), batch_size=16) for one in sets]
    module = net()
    found = po.fit(
        module, sets[0], device="rpi4", memory="1GB", lr=0.01, batch=16, epochs=15, validate=sets[1], progress=False
    )
    assert found is module
    assert right(module, x[144:], labels[144:]) > 0.7


@uses_torch
def test_labels_of_minus_100_are_left_out_as_torch_does() -> None:
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(12, 8), nn.Linear(8, 12))
    tokens, labels = torch.randint(0, 12, (8, 5)), torch.randint(0, 12, (8, 5))
    labels[torch.rand(labels.shape) < 0.4] = -100
    ours = nn.Sequential(nn.Embedding(12, 8), nn.Linear(8, 12))
    ours.load_state_dict(module.state_dict())
    descent = torch.optim.SGD(module.parameters(), lr=0.5)
    for _ in range(3):
        descent.zero_grad()
        nn.functional.cross_entropy(module(tokens).transpose(1, 2), labels).backward()
        descent.step()
    asked: Any = {"device": "rpi4", "optimizer": "sgd", "lr": 0.5, "batch": 8, "epochs": 3, "progress": False}
    po.fit(ours, (tokens, labels), **asked)
    for name, value in module.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=1e-4, atol=1e-6)
    with pytest.raises(ModelError, match="holds the label -100"):
        po.fit(ours, (tokens, labels), ignore_index=3, **asked)


@uses_torch
def test_a_loss_of_its_own_on_a_board() -> None:
    pytest.importorskip("onnxscript")

    class Own(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.body = net()

        def forward(self, x: Any, labels: Any) -> Any:
            return nn.functional.cross_entropy(self.body(x), labels)

    x, labels = rows()
    module = po.fit(Own(), (x, labels), device="m4", memory="64KB", epochs=6, lr=0.01, loss="none", progress=False)
    assert right(module.body, x, labels) > 0.7


@uses_torch
def test_what_it_can_t_take_is_said_and_nothing_changes() -> None:
    pytest.importorskip("onnxscript")
    module, (x, labels) = net(), rows()
    before = {name: value.numpy().copy() for name, value in module.state_dict().items()}
    for data in (x, (x,), (x, labels[:5]), [1, 2], []):
        with pytest.raises(OptionError, match="its parts don't have one row a sample"):
            po.fit(module, data, device="rpi4", progress=False)
    with pytest.raises(ModelError):
        po.fit(module, (x, labels, labels), device="rpi4", progress=False)
    with pytest.raises(po.PoetError, match="10 bytes"):
        po.fit(module, (x, labels), device="rpi4", memory="10", progress=False)
    for call in (po.solve, po.load):
        with pytest.raises(TypeError, match=r"po.torch.export\(module, example, .*po.fit\(module, data"):
            call(module)
    for name, value in module.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), before[name])


@pytest.mark.parametrize(
    ("shell", "python"),
    [
        ("--epochs 0: must be at least 1", "epochs=0: must be at least 1"),
        ("take --loss mse for values, or name an --output", 'take loss="mse" for values, or name an output'),
        ("--total-ram 4MB: give --time-limit 5s.", 'memory="4MB": give time_limit="5s".'),
        ("--ignore-index -100 or --lr-schedule step:10:0.1", 'ignore_index=-100 or lr_schedule="step:10:0.1"'),
        ("Use a smaller --lr.", "Use a smaller lr."),
    ],
)
def test_messages_have_arguments_in_place_of_options(shell: str, python: str) -> None:
    assert in_python(shell) == python
